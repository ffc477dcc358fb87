//! Counters of the protocol itself, by queue, since the controller was made. Resets of the controller do not clear them.

use serde::Serialize;

/// Counters of one queue pair: of SQ n and CQ n, wherever the SQ's completions go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounters {
    /// Commands that were fetched.
    pub commands: u64,
    /// Bytes read from the namespace.
    pub read_bytes: u64,
    /// Bytes written to the namespace.
    pub write_bytes: u64,
    /// Writes to the SQ tail register.
    pub sq_doorbell_writes: u64,
    /// Writes to the CQ head register.
    pub cq_doorbell_writes: u64,
    /// Interrupts raised for the CQ.
    pub interrupts: u64,
    /// Interrupts that were not raised, since an earlier or a later one served for their entries too, or the host had read them
    /// already.
    pub interrupts_spared: u64,
    /// Times that EventIdx was armed and the queue was still empty.
    pub arms_won: u64,
    /// Times that the driver had moved on while EventIdx was armed.
    pub arms_lost: u64,
    /// Times that work on this queue ended a sleep.
    pub wakeups: u64,
    /// Times that the SQ had to wait for room in its CQ.
    pub parked: u64,
    /// Doorbell values that were refused.
    pub invalid_doorbells: u64,
    /// Commands that ended with an error.
    pub errors: u64,
}

impl QueueCounters {
    fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.sq_doorbell_writes += other.sq_doorbell_writes;
        self.cq_doorbell_writes += other.cq_doorbell_writes;
        self.interrupts += other.interrupts;
        self.interrupts_spared += other.interrupts_spared;
        self.arms_won += other.arms_won;
        self.arms_lost += other.arms_lost;
        self.wakeups += other.wakeups;
        self.parked += other.parked;
        self.invalid_doorbells += other.invalid_doorbells;
        self.errors += other.errors;
    }
}

/// Counters with the ratios that people ask for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueReport {
    /// Queue id; `None` for a sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qid: Option<u16>,
    /// The counters.
    #[serde(flatten)]
    pub counters: QueueCounters,
    /// SQ and CQ register writes per command.
    pub doorbell_writes_per_io: f64,
    /// Interrupts per command.
    pub interrupts_per_io: f64,
}

impl QueueReport {
    #[allow(clippy::cast_precision_loss)] // A ratio for people.
    fn new(qid: Option<u16>, counters: QueueCounters) -> Self {
        let per_io = |n: u64| if counters.commands == 0 { 0.0 } else { n as f64 / counters.commands as f64 };
        Self {
            qid,
            counters,
            doorbell_writes_per_io: per_io(counters.sq_doorbell_writes + counters.cq_doorbell_writes),
            interrupts_per_io: per_io(counters.interrupts),
        }
    }
}

/// Counters of the controller as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounters {
    /// Whether shadow doorbells are in use now.
    pub shadow_doorbells: bool,
    /// Whether doorbells can be mapped into the guest.
    pub mapped_doorbells: bool,
    /// Doorbell Buffer Config commands that succeeded.
    pub doorbell_buffer_config: u64,
    /// Doorbell Buffer Config commands that failed.
    pub doorbell_buffer_config_refused: u64,
    /// Times the controller was enabled.
    pub enables: u64,
    /// Resets of any kind: CC.EN to 0, function level, subsystem, by the VMM.
    pub resets: u64,
    /// Changes of the guest's memory map.
    pub memory_changes: u64,
    /// Sleeps that ended.
    pub wakeups: u64,
}

/// All that is counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The controller as a whole.
    pub device: DeviceCounters,
    /// Each queue that ever had a command or a doorbell write, queue 0 (admin) first.
    pub queues: Vec<QueueReport>,
    /// The sum over I/O queues.
    pub totals: QueueReport,
}

/// The counters as the controller keeps them.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) device: DeviceCounters,
    queues: Vec<QueueCounters>,
}

impl Counters {
    pub(crate) fn new(queues: usize) -> Self {
        Self { device: DeviceCounters::default(), queues: vec![QueueCounters::default(); queues] }
    }

    /// Counters of a queue id that is known to exist; anything else counts on the admin queue rather than panic.
    #[inline]
    pub(crate) fn queue(&mut self, qid: u16) -> &mut QueueCounters {
        let i = usize::from(qid);
        let i = if i < self.queues.len() { i } else { 0 };
        &mut self.queues[i]
    }

    pub(crate) fn report(&self) -> Report {
        let mut sum = QueueCounters::default();
        let mut queues = Vec::new();
        for (qid, counters) in (0u16..).zip(&self.queues) {
            if qid > 0 {
                sum.add(counters);
            }
            if *counters != QueueCounters::default() {
                queues.push(QueueReport::new(Some(qid), *counters));
            }
        }
        Report { device: self.device, queues, totals: QueueReport::new(None, sum) }
    }
}
