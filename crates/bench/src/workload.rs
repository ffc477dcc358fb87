//! What is to be measured.

use std::{fmt, time::Duration};

use serde::Serialize;

/// The mix of a workload, in fio's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads and writes.
    Rw,
    /// Random reads and writes.
    RandRw,
}

impl Rw {
    /// Whether addresses are random.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw)
    }

    /// How many commands of a hundred are reads, when `mix` are for the mixed kinds.
    #[must_use]
    pub fn read_percent(self, mix: u8) -> u8 {
        match self {
            Self::Read | Self::RandRead => 100,
            Self::Write | Self::RandWrite => 0,
            Self::Rw | Self::RandRw => mix.min(100),
        }
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::Rw => "rw",
            Self::RandRw => "randrw",
        })
    }
}

/// How a job learns of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CompletionMode {
    /// It looks.
    Poll,
    /// It sleeps until the device signals an eventfd.
    Interrupt,
}

/// Which doorbells a point uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DoorbellKind {
    /// Registers.
    Register,
    /// Shadow doorbells.
    Shadow,
    /// Registers that are memory which the device shares with its driver.
    Mapped,
}

impl fmt::Display for DoorbellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Register => "register",
            Self::Shadow => "shadow",
            Self::Mapped => "mapped",
        })
    }
}

/// What all points of a run have in common.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The mix.
    pub rw: Rw,
    /// Bytes of a command.
    pub block_bytes: usize,
    /// Bytes of the namespace, from its start on, that are used: all of them for `None`, and 64 MiB with `verify`.
    pub size: Option<u64>,
    /// Reads of a hundred commands, for the mixed kinds.
    pub read_percent: u8,
    /// Commands that are told to the device at a time: 1 for each by itself, as fio and its guest do.
    pub submit_batch: u16,
    /// How completions are learnt of.
    pub completion: CompletionMode,
    /// How long a point is measured.
    pub runtime: Duration,
    /// How long it runs before that.
    pub ramp: Duration,
    /// Write content that can be checked, and check all that is read.
    pub verify: bool,
    /// How long one command may take.
    pub command_timeout: Duration,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            rw: Rw::RandRead,
            block_bytes: 4096,
            size: None,
            read_percent: 50,
            submit_batch: 1,
            completion: CompletionMode::Poll,
            runtime: Duration::from_secs(3),
            ramp: Duration::from_millis(250),
            verify: false,
            command_timeout: Duration::from_secs(10),
        }
    }
}

/// One point of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Commands of a job in flight.
    pub iodepth: u16,
    /// Jobs: threads with a queue pair each.
    pub numjobs: u16,
    /// Which doorbells.
    pub doorbells: DoorbellKind,
}
