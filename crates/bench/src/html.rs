//! The report as one HTML file that needs nothing else.

use std::fmt::Write as _;

use crate::{
    chart::{Chart, Series, escape},
    report::{Report, Row},
    table::{micros, per_io, thousands, workload},
    workload::{CompletionMode, DoorbellKind},
};

/// The style sheet of the page and of its charts.
pub const STYLE: &str = include_str!("html.css");

/// The report as HTML.
#[must_use]
pub fn render(report: &Report) -> String {
    let machine = &report.machine;
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>shadowbell bench: {}</title><style>{STYLE}</style>\
         </head><body><h1>shadowbell bench</h1><p>{}</p><dl>",
        escape(&report.target),
        headline(report),
    );
    let summary = report.rows.first().map_or_else(String::new, |row| {
        let completion = match report.completion {
            CompletionMode::Poll => "polling for completions",
            CompletionMode::Interrupt => "waiting for interrupts",
        };
        format!("{}, {completion}, {:.1} s a row", workload(row), row.runtime_s)
    });
    for (name, value) in [
        ("Disk", report.target.clone()),
        ("Workload", summary),
        ("Machine", format!("{}, {} cores, kernel {}", machine.cpu, machine.cores, machine.kernel)),
        ("Load average", format!("{:.1} before, {:.1} after", machine.load_before, machine.load_after)),
        ("Version", report.shadowbell.clone()),
        ("Command", report.command.clone()),
    ] {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>");
    for chart in charts(&report.rows) {
        page.push_str(&chart.render());
    }
    table(&mut page, report);
    notes(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

/// What a reader in a hurry wants to know: the whole span, not the best row.
fn headline(report: &Report) -> String {
    let ratios = report.rows.iter().filter_map(|row| row.ratio_to_register);
    let (low, high) = ratios.fold((f64::INFINITY, 0.0), |(low, high), n| (n.min(low), n.max(high)));
    let span = match (format!("{low:.1}"), format!("{high:.1}")) {
        _ if !low.is_finite() => return "NVMe commands through the shadowbell driver.".to_owned(),
        (low, high) if low == high => low,
        (low, high) => format!("{low} to {high}"),
    };
    let most = |kind| {
        let rows = report.rows.iter().filter(|row| row.doorbells == kind);
        per_io(rows.map(|row| row.register_writes_per_io).fold(0.0, f64::max))
    };
    format!(
        "Shadow doorbells give <strong>{span} times</strong> the IOPS of doorbell registers. Register writes for each \
         command, at most: {} with registers, {} with shadow doorbells.",
        most(DoorbellKind::Register),
        escape(&most(DoorbellKind::Shadow))
    )
}

/// Charts over the depth for each number of jobs, or over the jobs when the depth is always the same.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let distinct = |key: fn(&Row) -> u16| {
        let mut values: Vec<_> = rows.iter().map(key).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    let (depths, jobs) = (distinct(|row| row.iodepth), distinct(|row| row.numjobs));
    if depths.len() == 1 && jobs.len() > 1 {
        return group(rows, &jobs, "jobs", &format!(", depth {}", depths[0]), |row| row.numjobs);
    }
    let groups = jobs.iter().map(|jobs_here| {
        let rows: Vec<_> = rows.iter().filter(|row| row.numjobs == *jobs_here).cloned().collect();
        let suffix = if *jobs_here == 1 { ", 1 job".to_owned() } else { format!(", {jobs_here} jobs") };
        group(&rows, &depths, "depth", &suffix, |row| row.iodepth)
    });
    groups.flatten().collect()
}

fn group(rows: &[Row], places: &[u16], x_title: &'static str, suffix: &str, key: fn(&Row) -> u16) -> Vec<Chart> {
    let values = |kind, value: &dyn Fn(&Row) -> f64| -> Vec<Option<f64>> {
        let row = |place| rows.iter().find(|row| row.doorbells == kind && key(row) == place);
        places.iter().map(|place| row(*place).map(value)).collect()
    };
    let kinds = [
        (DoorbellKind::Shadow, "shadow", "shadow doorbells"),
        (DoorbellKind::Mapped, "shadow", "mapped doorbells"),
        (DoorbellKind::Register, "register", "registers"),
    ];
    let lines = |name: &str, dash: &'static str, value: &dyn Fn(&Row) -> f64| -> Vec<Series> {
        let lines = kinds.iter().map(|(kind, class, title)| Series {
            name: if name.is_empty() { (*title).to_owned() } else { format!("{title}, {name}") },
            class,
            dash,
            values: values(*kind, value),
        });
        lines.filter(|series| series.values.iter().any(Option::is_some)).collect()
    };
    let chart = |title: &str, y_title, logarithmic, series| Chart {
        title: format!("{title}{suffix}"),
        x_title,
        y_title,
        x: places.iter().map(u16::to_string).collect(),
        logarithmic,
        series,
    };
    let latencies = [
        lines("p50", "", &|row| row.latency_us.p50),
        lines("p99", "7 4", &|row| row.latency_us.p99),
        lines("p99.9", "2 4", &|row| row.latency_us.p99_9),
    ];
    vec![
        chart("I/O rate", "IOPS", false, lines("", "", &|row| row.iops)),
        chart("Latency (logarithmic)", "µs", true, latencies.concat()),
        chart(
            "Doorbell register writes for each command",
            "writes/IO",
            false,
            lines("", "", &|row| row.register_writes_per_io),
        ),
    ]
}

fn table(page: &mut String, report: &Report) {
    page.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>jobs<th>depth<th>doorbells<th>IOPS<th>ratio<th>mean µs<th>p50 µs\
         <th>p99 µs<th>p99.9 µs<th>register writes/IO<th>wake-ups/IO<th>irqs/IO</tr></thead><tbody>",
    );
    for row in &report.rows {
        let latency = &row.latency_us;
        let _ = write!(page, "<tr class=\"{}\">", row.doorbells);
        for cell in [
            row.numjobs.to_string(),
            row.iodepth.to_string(),
            row.doorbells.to_string(),
            thousands(row.iops),
            row.ratio_to_register.map_or_else(String::new, |ratio| format!("{ratio:.2}×")),
            micros(latency.mean),
            micros(latency.p50),
            micros(latency.p99),
            micros(latency.p99_9),
            per_io(row.register_writes_per_io),
            row.wakeups_per_io.map_or_else(|| "–".to_owned(), per_io),
            per_io(row.interrupts_per_io),
        ] {
            let _ = write!(page, "<td>{}", escape(&cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>");
}

fn notes(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>What the columns mean</h2><ul><li>register writes/IO: writes to doorbell registers for each command. In a \
         virtual machine each one is an exit from the guest.<li>ratio: IOPS with shadow doorbells by IOPS with \
         registers, at the same depth and number of jobs.<li>wake-ups/IO: sleeps of the device that I/O has ended, for \
         each command.<li>irqs/IO: interrupts that the device has raised, for each command.</ul>",
    );
    let faults = report.rows.iter().filter_map(|row| row.verify.as_ref());
    let (checked, faulty) = faults.clone().fold((0, 0), |sum, v| (sum.0 + v.checked, sum.1 + v.faults));
    let mut notes = report.notes.clone();
    if checked > 0 {
        notes.push(format!("verify: {checked} blocks were read and checked, {faulty} were not what they should be"));
        notes.extend(faults.flat_map(|v| v.first.iter().map(ToString::to_string)));
    }
    if report.interrupted {
        notes.push("interrupted: what is above was measured before".to_owned());
    }
    if notes.is_empty() {
        return;
    }
    page.push_str("<h2>Notes</h2><ul>");
    for note in notes {
        let _ = write!(page, "<li>{}", escape(&note));
    }
    page.push_str("</ul>");
}
