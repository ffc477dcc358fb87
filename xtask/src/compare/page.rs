//! The report as one HTML file that needs nothing else.

use std::fmt::Write as _;

use bench::chart::{Chart, Series, escape};
use bench::html::STYLE;

use super::device::ALL;
use super::summary::{Report, Row};
use super::text::{cells, facts};

const OWN_STYLE: &str = include_str!("page.css");

/// A colour for each of [`ALL`], so that a device has the same one in every report.
const CLASSES: [&str; ALL.len()] = ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8"];

/// The report as HTML.
pub(crate) fn render(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>shadowbell compare</title>\
         <style>{STYLE}{OWN_STYLE}</style></head><body><h1>shadowbell beside QEMU's disks</h1><p>{}</p><dl>",
        escape(&headline(&report.rows))
    );
    for (name, value) in facts(report) {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>");
    if !report.notes.is_empty() {
        page.push_str("<h2>Notes</h2><ul>");
        for note in &report.notes {
            let _ = write!(page, "<li>{}", escape(note));
        }
        page.push_str("</ul>");
    }
    for chart in charts(&report.rows) {
        page.push_str(&chart.render());
    }
    table(&mut page, report);
    page.push_str("<h2>Devices</h2><dl>");
    for about in &report.devices {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", about.name, escape(about.about));
    }
    let _ = writeln!(page, "</dl><h2>Job file</h2><pre>{}</pre></body></html>", escape(&report.job));
    page
}

/// The whole span of our default's ratios, not the best point.
fn headline(rows: &[Row]) -> String {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.device == "shadowbell").collect();
    let span = |value: fn(&Row) -> Option<f64>| {
        let values = ours.iter().filter_map(|row| value(row));
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), n| (n.min(low), n.max(high)));
        low.is_finite().then(|| format!("{low:.2} to {high:.2}"))
    };
    match (span(|row| row.iops_ratio), span(|row| row.cpu_ratio)) {
        (Some(iops), Some(cpu)) => format!(
            "shadowbell (--poll auto) does {iops} times the IOPS of the better of nvme and virtio-blk, for {cpu} times the \
             CPU time per I/O of the cheaper of the two."
        ),
        _ => "One fio job, one guest, several disks.".to_owned(),
    }
}

/// Charts over the depth, for each number of jobs.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let distinct = |key: fn(&Row) -> u32| {
        let mut values: Vec<u32> = rows.iter().map(key).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    let depths = distinct(|row| row.point.depth);
    let mut charts = Vec::new();
    for jobs in distinct(|row| row.point.jobs) {
        let chart = |title: &str, y_title, logarithmic, value: &dyn Fn(&Row) -> Option<f64>| {
            let series = ALL.iter().zip(CLASSES).map(|(device, class)| Series {
                name: device.name.to_owned(),
                class,
                dash: if device.is_ours() { "" } else { "6 3" },
                values: depths
                    .iter()
                    .map(|depth| {
                        let at = rows.iter().find(|row| {
                            row.device == device.name && row.point.jobs == jobs && row.point.depth == *depth
                        });
                        at.and_then(value)
                    })
                    .collect(),
            });
            Chart {
                title: format!("{title}, {jobs} job{}", if jobs == 1 { "" } else { "s" }),
                x_title: "depth",
                y_title,
                x: depths.iter().map(u32::to_string).collect(),
                logarithmic,
                series: series.filter(|series| series.values.iter().any(Option::is_some)).collect(),
            }
        };
        let all = [
            chart("I/O rate", "IOPS", false, &|row| Some(row.iops)),
            chart("CPU time of QEMU and server (logarithmic)", "µs/IO", true, &|row| Some(row.cpu_us_per_io)),
            chart("Register writes", "writes/IO", false, &|row| row.register_writes_per_io),
            chart("Interrupts", "interrupts/IO", false, &|row| Some(row.interrupts_per_io)),
        ];
        charts.extend(all.into_iter().filter(|chart| !chart.series.is_empty()));
    }
    charts
}

fn table(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>Medians</h2><div class=\"scroll\"><table><thead><tr><th>jobs<th>depth<th class=\"name\">device<th>IOPS<th>ratio<th>range\
         <th>CPU µs/IO<th>ratio<th>register writes/IO<th>interrupts/IO<th>mean µs</tr></thead><tbody>",
    );
    let mut last = None;
    for row in &report.rows {
        let ours = ALL.iter().any(|device| device.name == row.device && device.is_ours());
        let first = last != Some(row.point);
        last = Some(row.point);
        let _ = write!(
            page,
            "<tr class=\"{}{}\"><td>{}<td>{}<td class=\"name\">{}",
            if first { "first " } else { "" },
            if ours { "ours" } else { "" },
            row.point.jobs,
            row.point.depth,
            escape(row.device)
        );
        for cell in cells(row) {
            let _ = write!(page, "<td>{}", escape(&cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str(
        "</tbody></table></div><ul><li>ratio: ours by the better of nvme and virtio-blk at the same point. IOPS more than 1 \
         and CPU less than 1 is better.<li>CPU: QEMU and the server together, the guest's fio included.<li>register \
         writes/IO: exact; ? where nobody counts them.<li>range: IOPS of the slowest and the fastest round.</ul>",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::text::tests::report;

    #[test]
    fn the_page_has_charts_and_rows_and_escapes_what_users_wrote() {
        let page = render(&report());
        assert!(page.contains("&lt;note&gt;") && page.contains("a&lt;b&gt;&amp;c.fio") && !page.contains("<note>"));
        assert_eq!(page.matches("<tr class=").count(), 4);
        // Rate, CPU and interrupts; nobody has counted register writes.
        assert_eq!(page.matches("<figure>").count(), 3);
        assert!(!page.contains("http") || page.matches("http").count() == page.matches("http://www.w3.org").count());
        assert!(page.contains("does 1.50 to 1.50 times the IOPS"), "{}", &page[..3000]);
    }

    #[test]
    fn a_report_without_references_claims_nothing() {
        assert_eq!(headline(&[]), "One fio job, one guest, several disks.");
    }
}
