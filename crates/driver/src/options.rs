//! What the caller decides.

use std::time::Duration;

/// Which doorbells a driver uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellPolicy {
    /// Shadow doorbells where the controller has them: by Doorbell Buffer Config (7Ch), or by its vendor form (C0h) where the PCI
    /// vendor is 1AE0h and 7Ch is not advertised. Registers otherwise.
    #[default]
    Shadow,
    /// Registers only.
    Register,
}

/// Settings of a [`Device`](crate::Device).
#[derive(Debug, Clone)]
pub struct Options {
    /// Doorbells.
    pub doorbells: DoorbellPolicy,
    /// I/O queue pairs to ask for, at least 1; the controller may have fewer.
    pub io_queue_pairs: u16,
    /// Entries of the admin queues, 4 to 4096.
    pub admin_entries: u16,
    /// Wait for admin commands by interrupt, where there is one, instead of polling.
    pub admin_interrupt: bool,
    /// How long an admin command may take.
    pub admin_timeout: Duration,
    /// How long an I/O command may take.
    pub command_timeout: Duration,
    /// Asynchronous Event Requests to keep with the controller; its own limit holds as well.
    pub event_requests: u8,
    /// Address, for the device, of the first range of driver memory: a multiple of 64 KiB. Further ranges follow.
    pub iova: u64,
    /// Size in bytes of a range of driver memory; pages are taken from the kernel when they are first used.
    pub memory_chunk: usize,
    /// The most driver memory in bytes.
    pub memory_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            doorbells: DoorbellPolicy::default(),
            io_queue_pairs: 64,
            admin_entries: 32,
            admin_interrupt: true,
            admin_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            event_requests: 2,
            iova: 1 << 32,
            memory_chunk: 64 << 20,
            memory_limit: 4 << 30,
        }
    }
}

/// Settings of a [`QueuePair`](crate::QueuePair).
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Entries of both queues, 2 to CAP.MQES + 1; one less can be in flight.
    pub entries: u32,
    /// Have the device raise an interrupt, for [`QueuePair::wait`](crate::QueuePair::wait). Without a free MSI-X vector, and
    /// without this, a pair polls.
    pub interrupt: bool,
    /// By register, tell the CQ head once this many entries are consumed, at most half a queue: 1 for each poll that finds
    /// something. With shadow doorbells it is told with the next SQ tail, or by the next poll that finds nothing.
    pub head_batch: u16,
}

impl QueueOptions {
    /// With this many entries.
    #[must_use]
    pub fn with_entries(self, entries: u32) -> Self {
        Self { entries, ..self }
    }

    /// With, or without, interrupts.
    #[must_use]
    pub fn with_interrupt(self, interrupt: bool) -> Self {
        Self { interrupt, ..self }
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { entries: 129, interrupt: false, head_batch: 1 }
    }
}
