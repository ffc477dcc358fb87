//! What was measured, in one place.

use driver::Counters;
use serde::Serialize;

use crate::{
    bench::DeviceCounters,
    latency::LatencyUs,
    machine::Machine,
    verify::Verified,
    workload::{CompletionMode, DoorbellKind, Rw},
};

/// Who has counted register writes and interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CountedBy {
    /// The device.
    Device,
    /// The driver; then nobody has counted wake-ups.
    Driver,
}

/// What the driver has counted in a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DriverSide {
    /// Commands completed.
    pub commands: u64,
    /// Writes to SQ tail registers.
    pub sq_register_writes: u64,
    /// Moves of SQ tails that needed none.
    pub sq_spared: u64,
    /// Writes to CQ head registers.
    pub cq_register_writes: u64,
    /// Moves of CQ heads that needed none.
    pub cq_spared: u64,
    /// Interrupts seen.
    pub interrupts: u64,
    /// Sleeps for one.
    pub sleeps: u64,
}

impl From<Counters> for DriverSide {
    fn from(c: Counters) -> Self {
        Self {
            commands: c.completed,
            sq_register_writes: c.sq_rings,
            sq_spared: c.sq_spared,
            cq_register_writes: c.cq_rings,
            cq_spared: c.cq_spared,
            interrupts: c.interrupts,
            sleeps: c.sleeps,
        }
    }
}

/// One point, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The mix.
    pub rw: Rw,
    /// Bytes of a command.
    pub bs: usize,
    /// Commands of a job in flight.
    pub iodepth: u16,
    /// Jobs.
    pub numjobs: u16,
    /// Commands told to the device at a time, at most.
    pub iodepth_batch: u16,
    /// Which doorbells.
    pub doorbells: DoorbellKind,
    /// Commands a second, of all jobs.
    pub iops: f64,
    /// Data a second.
    pub mib_per_s: f64,
    /// Latencies.
    pub latency_us: LatencyUs,
    /// Writes to doorbell registers for each command.
    pub register_writes_per_io: f64,
    /// Interrupts for each command.
    pub interrupts_per_io: f64,
    /// Sleeps of the device that I/O has ended, for each command; `None` when the device cannot be asked.
    pub wakeups_per_io: Option<f64>,
    /// IOPS by those of the row with registers and otherwise the same; `None` when there is none.
    pub ratio_to_register: Option<f64>,
    /// Commands a second of the bare protocol between two threads, at the same depth, right after the row; see
    /// [`crate::limit`]. `None` where it was not asked for, or is none: with several jobs, or with registers.
    pub limit_iops: Option<f64>,
    /// How long it was measured.
    pub runtime_s: f64,
    /// It was stopped before its time.
    pub interrupted: bool,
    /// Commands that the device has failed.
    pub errors: u64,
    /// The status of the first of them.
    pub first_error: Option<String>,
    /// Entries of the queues.
    pub queue_entries: u32,
    /// Who has counted.
    pub counted_by: CountedBy,
    /// What the device has counted.
    pub device: Option<DeviceCounters>,
    /// What the driver has counted.
    pub driver: DriverSide,
    /// What became of content that was checked.
    pub verify: Option<Verified>,
}

impl Row {
    /// What part of the bare protocol's rate it has.
    #[must_use]
    pub fn share_of_limit(&self) -> Option<f64> {
        self.limit_iops.filter(|limit| *limit > 0.0).map(|limit| self.iops / limit)
    }
}

/// A ratio for people: 0 of nothing is 0.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn per(n: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / of as f64 }
}

/// A run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of shadowbell.
    pub shadowbell: String,
    /// The command line.
    pub command: String,
    /// What was measured.
    pub target: String,
    /// How completions were learnt of.
    pub completion: CompletionMode,
    /// Where.
    pub machine: Machine,
    /// What.
    pub rows: Vec<Row>,
    /// What the reader should know.
    pub notes: Vec<String>,
    /// It was stopped before its time.
    pub interrupted: bool,
}

impl Report {
    /// Adds a row, with its ratio if its counterpart is there.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
        for i in 0..self.rows.len() {
            let row = &self.rows[i];
            let ratio = (row.doorbells == DoorbellKind::Shadow)
                .then(|| self.rows.iter().find(|other| is_counterpart(row, other)))
                .flatten()
                .filter(|register| register.iops > 0.0)
                .map(|register| row.iops / register.iops);
            self.rows[i].ratio_to_register = ratio;
        }
    }

    /// Adds what the reader should know about the rows, once all are there.
    pub fn conclude(&mut self) {
        let mut notes = Vec::new();
        for row in &self.rows {
            let name = format!("depth {}, {} job(s), {}", row.iodepth, row.numjobs, row.doorbells);
            if row.errors > 0 {
                let status = row.first_error.as_deref().unwrap_or("unknown");
                notes.push(format!("{name}: the device failed {} commands, the first with {status}", row.errors));
            }
            if let Some(device) = &row.device {
                if device.commands != row.driver.commands {
                    notes.push(format!(
                        "{name}: the device counts {} commands, the driver {}",
                        device.commands, row.driver.commands
                    ));
                }
                let written = row.driver.sq_register_writes + row.driver.cq_register_writes;
                // Those to a mapped register reach nobody who could count them.
                if device.register_writes != written && row.doorbells != DoorbellKind::Mapped {
                    notes.push(format!(
                        "{name}: the device counts {} register writes, the driver {written}",
                        device.register_writes
                    ));
                }
            }
        }
        if self.rows.iter().any(|row| row.counted_by == CountedBy::Driver) {
            notes.push(
                "the device cannot be asked for its counters: register writes and interrupts are as the driver counts \
                 them, wake-ups are not known"
                    .to_owned(),
            );
        }
        let most = self.rows.iter().map(|row| row.numjobs).max().unwrap_or(0);
        if self.completion == CompletionMode::Poll && most > 1 && usize::from(most) + 1 > self.machine.cores {
            notes.push(format!(
                "up to {most} jobs poll on {} cores, and the device needs one as well: they take turns; --completion \
                 interrupt lets jobs sleep",
                self.machine.cores
            ));
        }
        let load = self.machine.load_before.max(self.machine.load_after);
        if load > 1.5 && load > self.machine.cores as f64 {
            notes.push(format!(
                "the machine was busy: load average {:.1} before, {:.1} after, on {} cores",
                self.machine.load_before, self.machine.load_after, self.machine.cores
            ));
        }
        self.notes.append(&mut notes);
    }

    /// Whether all that was read was what had been written, and no command failed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(|row| row.errors == 0 && row.verify.as_ref().is_none_or(|v| v.faults == 0))
    }

    /// As JSON.
    ///
    /// # Errors
    /// None in practice; what the serializer says.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

fn is_counterpart(row: &Row, other: &Row) -> bool {
    let key = |row: &Row| (row.rw, row.bs, row.iodepth, row.numjobs);
    other.doorbells == DoorbellKind::Register && key(other) == key(row)
}
