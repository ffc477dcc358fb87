//! The report for a terminal.

use std::fmt::Write as _;

use crate::{
    report::{Report, Row},
    verify::Verified,
    workload::{CompletionMode, DoorbellKind},
};

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let _ = writeln!(text, "shadowbell {}, {}", report.shadowbell, report.target);
    let _ = writeln!(
        text,
        "kernel {}, {}, {} cores, load {:.1} before, {:.1} after",
        machine.kernel, machine.cpu, machine.cores, machine.load_before, machine.load_after
    );
    let Some(first) = report.rows.first() else {
        text.push_str("nothing was measured\n");
        notes(&mut text, report);
        return text;
    };
    let completion = match report.completion {
        CompletionMode::Poll => "polling for completions",
        CompletionMode::Interrupt => "waiting for interrupts",
    };
    let _ = writeln!(text, "{}, {completion}, {:.1} s a row\n", workload(first), first.runtime_s);
    let jobs = report.rows.iter().any(|row| row.numjobs != 1);
    let jobs_head = |name: &str| if jobs { format!("{name:>5}") } else { String::new() };
    let _ = writeln!(
        text,
        "{}{:>6}  {:<8} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}",
        jobs_head(""),
        "",
        "",
        "",
        "",
        "mean",
        "p50",
        "p99",
        "p99.9",
        "register",
        "wake-ups",
        "irqs"
    );
    let _ = writeln!(
        text,
        "{}{:>6}  {:<8} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}",
        jobs_head("jobs"),
        "depth",
        "doorbell",
        "IOPS",
        "ratio",
        "us",
        "us",
        "us",
        "us",
        "writes/IO",
        "/IO",
        "/IO"
    );
    let mut last = None;
    for row in &report.rows {
        let key = (row.numjobs, row.iodepth);
        let first = last != Some(key);
        last = Some(key);
        line(&mut text, row, first, jobs);
    }
    limits(&mut text, report);
    for row in &report.rows {
        if let Some(verified) = &row.verify {
            verify(&mut text, row, verified);
        }
    }
    let both = |kind| report.rows.iter().any(|row| row.doorbells == kind);
    text.push_str(
        "\nregister writes/IO: doorbell register writes for each command; in a virtual machine each one is an exit.\n",
    );
    if both(DoorbellKind::Register) && both(DoorbellKind::Shadow) {
        text.push_str("ratio: IOPS with shadow doorbells by IOPS with registers, at the same depth and jobs.\n");
    }
    if both(DoorbellKind::Mapped) {
        text.push_str("mapped: registers are stores to a page that the device shares: no exit, and the device does not count them.\n");
    }
    text.push_str(
        "wake-ups/IO: sleeps of the device that I/O has ended. irqs/IO: interrupts that the device raised.\n",
    );
    notes(&mut text, report);
    text
}

/// The rows beside the bare protocol.
fn limits(text: &mut String, report: &Report) {
    if report.rows.iter().all(|row| row.limit_iops.is_none()) {
        return;
    }
    let _ = writeln!(text, "\n{:>6}  {:<8} {:>13} {:>12} {:>6}", "depth", "doorbell", "bare protocol", "IOPS", "share");
    for row in &report.rows {
        if let (Some(limit), Some(share)) = (row.limit_iops, row.share_of_limit()) {
            let (depth, kind) = (row.iodepth, row.doorbells);
            let _ = writeln!(
                text,
                "{depth:>6}  {kind:<8} {:>13} {:>12} {share:>6.2}",
                thousands(limit),
                thousands(row.iops)
            );
        }
    }
    text.push_str(
        "bare protocol: commands a second of two threads that exchange SQEs, tail, EventIdx and CQEs and do nothing else.\n",
    );
}

fn line(text: &mut String, row: &Row, first: bool, jobs: bool) {
    if jobs {
        let _ = if first { write!(text, "{:>5}", row.numjobs) } else { write!(text, "{:>5}", "") };
    }
    let _ = if first { write!(text, "{:>6}", row.iodepth) } else { write!(text, "{:>6}", "") };
    let latency = &row.latency_us;
    let _ = writeln!(
        text,
        "  {:<8} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}{}",
        row.doorbells,
        thousands(row.iops),
        row.ratio_to_register.map_or_else(String::new, |ratio| format!("{ratio:.2}x")),
        micros(latency.mean),
        micros(latency.p50),
        micros(latency.p99),
        micros(latency.p99_9),
        per_io(row.register_writes_per_io),
        row.wakeups_per_io.map_or_else(|| "-".to_owned(), per_io),
        per_io(row.interrupts_per_io),
        if row.interrupted { format!("  (stopped after {:.1} s)", row.runtime_s) } else { String::new() },
    );
}

fn verify(text: &mut String, row: &Row, verified: &Verified) {
    let name = format!("verify, depth {}, {} job(s), {}", row.iodepth, row.numjobs, row.doorbells);
    let _ = writeln!(
        text,
        "{name}: {} blocks written, {} read and checked, {} faults",
        verified.written, verified.checked, verified.faults
    );
    for fault in &verified.first {
        let _ = writeln!(text, "  {fault}");
    }
    let more = verified.faults.saturating_sub(verified.first.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
}

fn notes(text: &mut String, report: &Report) {
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if report.interrupted {
        text.push_str("interrupted: what is above was measured before\n");
    }
}

/// The mix and the size of commands.
pub(crate) fn workload(row: &Row) -> String {
    let told = if row.iodepth_batch == 1 { "each submitted by itself" } else { "submitted in batches" };
    format!("{}, {}-byte commands, {told}", row.rw, row.bs)
}

/// A latency with about three digits.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 1000.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// A number for each command; a rare one is not called none.
pub(crate) fn per_io(n: f64) -> String {
    match n {
        0.0 => "0".to_owned(),
        n if n < 0.0001 => "<0.0001".to_owned(),
        n => format!("{n:.4}"),
    }
}

/// A whole number with separators.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Rates are far below 2^63.
pub(crate) fn thousands(n: f64) -> String {
    let digits = (n.round().max(0.0) as u64).to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0.4), "0");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(1_234_567.8), "1,234,568");
        assert_eq!(micros(1.234), "1.23");
        assert_eq!(micros(123.45), "123.5");
        assert_eq!(micros(12345.6), "12346");
        assert_eq!((per_io(0.0).as_str(), per_io(1e-6).as_str(), per_io(2.0).as_str()), ("0", "<0.0001", "2.0000"));
    }
}
