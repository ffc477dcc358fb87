//! The server's statistics, as it writes them with `--stats-file`.

use serde::Deserialize;

/// The whole file.
#[derive(Debug, Deserialize)]
struct AllStats {
    devices: Vec<Stats>,
}

/// Those of one device. Every number counts from the server's start.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Stats {
    pub(crate) device: Device,
    pub(crate) queues: Vec<Queue>,
    /// Sum over the I/O queues.
    pub(crate) totals: Counters,
}

impl Stats {
    /// Those of the first device; our servers have one.
    pub(crate) fn parse(text: &str) -> serde_json::Result<Self> {
        let all: AllStats = serde_json::from_str(text)?;
        all.devices.into_iter().next().ok_or_else(|| serde::de::Error::custom("no device"))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    /// Shadow doorbells are in use now.
    pub(crate) shadow_doorbells: bool,
    /// Doorbell registers can be mapped into the guest.
    pub(crate) mapped_doorbells: bool,
    /// Accepted Doorbell Buffer Config commands (7Ch).
    pub(crate) doorbell_buffer_config: u64,
    pub(crate) resets: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Queue {
    pub(crate) qid: u16,
    #[serde(flatten)]
    pub(crate) counters: Counters,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Counters {
    pub(crate) commands: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) sq_doorbell_writes: u64,
    pub(crate) cq_doorbell_writes: u64,
    pub(crate) interrupts: u64,
    pub(crate) arms_won: u64,
    pub(crate) arms_lost: u64,
    pub(crate) wakeups: u64,
    pub(crate) errors: u64,
}

impl Counters {
    /// What happened since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            commands: self.commands.saturating_sub(before.commands),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
            sq_doorbell_writes: self.sq_doorbell_writes.saturating_sub(before.sq_doorbell_writes),
            cq_doorbell_writes: self.cq_doorbell_writes.saturating_sub(before.cq_doorbell_writes),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            arms_won: self.arms_won.saturating_sub(before.arms_won),
            arms_lost: self.arms_lost.saturating_sub(before.arms_lost),
            wakeups: self.wakeups.saturating_sub(before.wakeups),
            errors: self.errors.saturating_sub(before.errors),
        }
    }

    /// `count` for each command; 0 without commands.
    pub(crate) fn per_io(&self, count: u64) -> f64 {
        ratio(count, self.commands)
    }
}

/// `part / whole`; 0 when `whole` is.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agreed_shape_is_read_and_unknown_members_are_ignored() {
        let text = r#"{"devices":[{"socket":"/tmp/a","serial":"S","device":{"shadow_doorbells":true,"doorbell_buffer_config":1,"resets":3,"x":1},
            "queues":[{"qid":1,"commands":10,"sq_doorbell_writes":9,"doorbell_writes_per_io":0.9,"interrupts":5}],
            "totals":{"commands":10,"sq_doorbell_writes":9,"interrupts":5}}]}"#;
        let stats = Stats::parse(text).unwrap();
        assert!(Stats::parse(r#"{"devices":[]}"#).is_err());
        assert!(stats.device.shadow_doorbells);
        assert_eq!((stats.queues[0].qid, stats.queues[0].counters.commands), (1, 10));
        assert!((stats.totals.per_io(stats.totals.sq_doorbell_writes) - 0.9).abs() < 1e-9);
    }
}
