//! The report for a terminal.

use std::fmt::Write as _;

use super::summary::{Report, Row};

/// The whole report.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in facts(report) {
        let _ = writeln!(text, "{name:<8} {value}");
    }
    text.push('\n');
    text.push_str(&table(&report.rows));
    text.push_str(&ratios(&report.rows));
    text.push('\n');
    for about in &report.devices {
        let _ = writeln!(text, "{:<21} {}", about.name, about.about);
    }
    text.push_str(
        "\nratio: ours by the better of nvme and virtio-blk at the same point: IOPS more than 1, CPU less than 1 is better.\n\
         CPU us/IO: QEMU and the server together, the guest's fio included. range: IOPS of the slowest and the fastest round.\n",
    );
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// The circumstances, as names and values.
pub(crate) fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let machine = &report.machine;
    vec![
        ("disks", report.backing.clone()),
        ("job", job_line(&report.job)),
        ("rounds", format!("{}, {} s a point, devices in turn at each point, medians", report.rounds, report.seconds)),
        ("guest", format!("{}, {}", report.guest, report.accel)),
        ("QEMU", report.qemu.clone()),
        ("ours", report.shadowbell.clone()),
        (
            "machine",
            format!(
                "{}, {} cores, kernel {}, load {:.1} before, {:.1} after",
                machine.cpu, machine.cores, machine.kernel, machine.load_before, machine.load_after
            ),
        ),
        ("command", report.command.clone()),
    ]
}

/// The options of a job file on one line.
fn job_line(job: &str) -> String {
    let options = job.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with([';', '#', '[']));
    options.collect::<Vec<_>>().join(" ")
}

/// A table of all rows.
pub(crate) fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.device.len()).max().unwrap_or(0).max(6);
    let mut text = format!(
        "{:>4} {:>5}  {:<width$} {:>9} {:>6} {:>17} {:>7} {:>6} {:>9} {:>6} {:>9}\n\
         {:>4} {:>5}  {:<width$} {:>9} {:>6} {:>17} {:>7} {:>6} {:>9} {:>6} {:>9}\n",
        "",
        "",
        "",
        "",
        "",
        "",
        "CPU",
        "",
        "register",
        "irqs",
        "mean",
        "jobs",
        "depth",
        "device",
        "IOPS",
        "ratio",
        "range",
        "us/IO",
        "ratio",
        "writes/IO",
        "/IO",
        "us",
    );
    let mut last = None;
    for row in rows {
        let first = last != Some(row.point);
        if first && last.is_some() {
            text.push('\n');
        }
        last = Some(row.point);
        let [jobs, depth] = if first {
            [row.point.jobs.to_string(), row.point.depth.to_string()]
        } else {
            [String::new(), String::new()]
        };
        let [iops, iops_ratio, range, cpu, cpu_ratio, writes, interrupts, latency] = cells(row);
        let _ = writeln!(
            text,
            "{jobs:>4} {depth:>5}  {:<width$} {iops:>9} {iops_ratio:>6} {range:>17} {cpu:>7} {cpu_ratio:>6} {writes:>9} \
             {interrupts:>6} {latency:>9}",
            row.device
        );
    }
    text
}

/// A row's numbers: IOPS, ratio, range, CPU, ratio, register writes, interrupts, latency.
pub(crate) fn cells(row: &Row) -> [String; 8] {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let (low, high) = row.iops_range;
    [
        format!("{:.0}", row.iops),
        ratio(row.iops_ratio),
        format!("{low:.0}..{high:.0}"),
        format!("{:.1}", row.cpu_us_per_io),
        ratio(row.cpu_ratio),
        row.register_writes_per_io.map_or_else(|| "?".to_owned(), |writes| format!("{writes:.3}")),
        format!("{:.3}", row.interrupts_per_io),
        row.latency_us.map_or_else(|| "?".to_owned(), |latency| format!("{latency:.1}")),
    ]
}

/// Our ratios alone, a line for each device and number of jobs; empty when there are none.
fn ratios(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut keys: Vec<(&str, u32)> = Vec::new();
    for row in rows.iter().filter(|row| row.iops_ratio.is_some()) {
        if !keys.contains(&(row.device, row.point.jobs)) {
            keys.push((row.device, row.point.jobs));
        }
    }
    if keys.is_empty() {
        return text;
    }
    text.push_str("\nours by the better of nvme and virtio-blk, IOPS / CPU per I/O:\n");
    for (device, jobs) in keys {
        let _ = write!(text, "  {device:<20} {jobs} job{}", if jobs == 1 { " " } else { "s" });
        for row in rows.iter().filter(|row| (row.device, row.point.jobs) == (device, jobs)) {
            if let (Some(iops), Some(cpu)) = (row.iops_ratio, row.cpu_ratio) {
                let _ = write!(text, "  depth {} {iops:.2} / {cpu:.2}", row.point.depth);
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::compare::device;
    use crate::compare::measure::Point;
    use crate::compare::summary::{self, About, tests::measurement};

    pub(in crate::compare) fn report() -> Report {
        let names = ["nvme", "shadowbell"].map(str::to_owned);
        let devices = device::select(&names).unwrap();
        let timed = vec![
            measurement("nvme", 1, 10_000.0, 100.0),
            measurement("shadowbell", 1, 15_000.0, 50.0),
            measurement("nvme", 32, 20_000.0, 80.0),
            measurement("shadowbell", 32, 30_000.0, 60.0),
        ];
        let points = [Point { jobs: 1, depth: 1 }, Point { jobs: 1, depth: 32 }];
        Report {
            command: "xtask compare --job 'a<b>&c.fio'".to_owned(),
            shadowbell: "shadowbell 0".to_owned(),
            qemu: "QEMU 0".to_owned(),
            accel: "TCG".to_owned(),
            guest: "Linux".to_owned(),
            machine: bench::Machine {
                kernel: "0".to_owned(),
                cpu: "none".to_owned(),
                cores: 2,
                load_before: 0.0,
                load_after: 1.0,
            },
            backing: "null disk".to_owned(),
            job: "; a comment\n[job]\nrw=randread\nbs=4k\n".to_owned(),
            rounds: 1,
            seconds: 1,
            devices: devices.iter().map(|device| About { name: device.name, about: device.about }).collect(),
            rows: summary::rows(&devices, &points, &timed, &[]),
            measurements: timed,
            notes: vec!["a <note>".to_owned()],
        }
    }

    #[test]
    fn the_table_names_each_point_once_and_leaves_the_unknown_open() {
        let text = render(&report());
        assert!(text.contains("rw=randread bs=4k\n"), "{text}");
        let line = |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap().to_owned();
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(fields(&line("1     1  nvme")), "1 1 nvme 10000 10000..10000 100.0 ? 1.000 100.0");
        assert_eq!(fields(&line("shadowbell  ")), "shadowbell 15000 1.50 15000..15000 50.0 0.50 ? 1.000 66.7");
        assert_eq!(text.matches("  nvme  ").count(), 2, "{text}");
        assert!(text.contains("depth 1 1.50 / 0.50  depth 32 1.50 / 0.75\n"), "{text}");
        assert!(text.ends_with("note: a <note>\n"));
    }

    #[test]
    fn no_rows_make_an_empty_table() {
        assert_eq!(table(&[]).lines().count(), 2);
        assert_eq!(ratios(&[]), "");
    }
}
