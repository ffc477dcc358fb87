//! What people and programs get to read: failures, the greeting, statistics.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use controller::{QueueReport, Report};

/// Why the program ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Wrong arguments.
    pub(crate) fn usage(message: String) -> Self {
        Self { message, code: 2 }
    }

    /// Something could not be opened, or failed.
    pub(crate) fn runtime(message: String) -> Self {
        Self { message, code: 1 }
    }

    /// Tells the user and gives the exit status.
    pub(crate) fn report(self) -> ExitCode {
        let _ = writeln!(io::stderr(), "shadowbell: {self}");
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Writes to standard output. Nobody may be listening; that is no reason to end.
pub(crate) fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A size as people say it.
pub(crate) fn human(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let hundredths = (u128::from(bytes) * 100) >> shift;
            return if hundredths % 100 == 0 {
                format!("{} {unit}", hundredths / 100)
            } else {
                format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
            };
        }
    }
    format!("{bytes} bytes")
}

/// The statistics of one device, with what tells it from the others.
#[derive(Debug)]
pub(crate) struct DeviceReport {
    /// Path of its socket.
    pub(crate) socket: String,
    pub(crate) serial: String,
    pub(crate) report: Report,
}

/// The statistics as a table.
pub(crate) fn table(DeviceReport { socket, report, .. }: &DeviceReport) -> String {
    let device = &report.device;
    let mut text = format!(
        "statistics of {socket}: {}shadow doorbells {} (set up {} times, refused {}), {} enables, {} resets, {} wake-ups\n",
        if device.mapped_doorbells { "mapped doorbells, " } else { "" },
        if device.shadow_doorbells { "in use" } else { "not in use" },
        device.doorbell_buffer_config,
        device.doorbell_buffer_config_refused,
        device.enables,
        device.resets,
        device.wakeups,
    );
    let _ = writeln!(
        text,
        "{:>6} {:>12} {:>11} {:>11} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "queue",
        "commands",
        "read",
        "written",
        "SQ rings",
        "CQ rings",
        "rings/IO",
        "irqs/IO",
        "spared",
        "arms won",
        "lost",
        "wake-ups",
        "parked",
        "errors"
    );
    for queue in &report.queues {
        let name = match queue.qid {
            Some(0) => "admin".to_owned(),
            Some(qid) => qid.to_string(),
            None => "I/O".to_owned(),
        };
        row(&mut text, &name, queue);
    }
    row(&mut text, "I/O", &report.totals);
    text
}

fn row(text: &mut String, name: &str, queue: &QueueReport) {
    let c = &queue.counters;
    let _ = writeln!(
        text,
        "{name:>6} {:>12} {:>11} {:>11} {:>9} {:>9} {:>8.4} {:>8.4} {:>8} {:>9} {:>9} {:>9} {:>7} {:>7}",
        c.commands,
        human(c.read_bytes),
        human(c.write_bytes),
        c.sq_doorbell_writes,
        c.cq_doorbell_writes,
        queue.doorbell_writes_per_io,
        queue.interrupts_per_io,
        c.interrupts_spared,
        c.arms_won,
        c.arms_lost,
        c.wakeups,
        c.parked,
        c.errors,
    );
}

/// Replaces `path` by the statistics as JSON: whoever reads it sees the old file or the new one.
pub(crate) fn write_json<'a>(path: &Path, reports: impl IntoIterator<Item = &'a DeviceReport>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::runtime(format!("statistics file {}: {error}", path.display()));
    let mut name = path.file_name().ok_or_else(|| failed(io::ErrorKind::IsADirectory.into()))?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let devices = reports.into_iter().map(|DeviceReport { socket, serial, report }| {
        let mut device = serde_json::to_value(report)?;
        device["socket"] = socket.as_str().into();
        device["serial"] = serial.as_str().into();
        Ok(device)
    });
    let devices = devices.collect::<Result<Vec<_>, serde_json::Error>>().map_err(|error| failed(error.into()))?;
    let json = format!("{:#}\n", serde_json::json!({ "devices": devices }));
    let written = std::fs::write(&temporary, json).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(human(0), "0 bytes");
        assert_eq!(human(512), "512 bytes");
        assert_eq!(human(64 << 30), "64 GiB");
        assert_eq!(human(1536 << 20), "1.50 GiB");
        assert_eq!(human(u64::MAX), "16777215.99 TiB");
    }
}
