//! What can go wrong between the driver and a device.

use std::time::Duration;

use nvme::Status;
use rustix::io::Errno;

/// Why the way to the device failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Nobody is there any more.
    #[error("the device is gone")]
    Gone,
    /// No answer came in time.
    #[error("{0}: no answer in time")]
    TimedOut(&'static str),
    /// The other side says no, or the way itself failed.
    #[error("{what}: {reason}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        reason: String,
    },
}

/// Why driver memory was not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// [`Options::memory_limit`](crate::Options::memory_limit) is reached, or the size is 0.
    #[error("{wanted} bytes of DMA memory are more than is left of {limit}")]
    Limit {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that one device may have.
        limit: usize,
    },
    /// The kernel has none.
    #[error("cannot create DMA memory: {0}")]
    System(Errno),
    /// The device does not take it.
    #[error("cannot give memory to the device: {0}")]
    Map(TransportError),
}

/// What is wrong with a completion that a device posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The command identifier was never given out.
    #[error("no command has this identifier")]
    UnknownCommand,
    /// The command is complete already: its identifier is free, or belongs to a later command.
    #[error("the command was completed before")]
    Repeated,
    /// The entry names another submission queue.
    #[error("it names submission queue {0}")]
    WrongQueue(u16),
    /// SQHD is no position, goes backwards, or passes the tail.
    #[error("SQHD {0} is not between the head and the tail")]
    SubmissionHead(u16),
    /// By SQHD the device has not fetched the command that it completes.
    #[error("it comes before SQHD passes the command")]
    NotFetched,
}

/// A completion that cannot be. The queue is not used any further; a controller reset mends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of completion queue {qid}, command {cid:#06x}: {violation}")]
pub struct ProtocolError {
    /// The queue pair.
    pub qid: u16,
    /// Index of the entry in the completion queue.
    pub index: u16,
    /// The entry's command identifier.
    pub cid: u16,
    /// What is wrong.
    pub violation: Violation,
}

/// A command as the device knows it, to abort it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandId {
    /// Its submission queue.
    pub sqid: u16,
    /// Its command identifier.
    pub cid: u16,
}

/// Why an operation of a device or of a queue pair failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The way to the device failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Registers read as ones: the device is gone.
    #[error("the device is gone: its registers read as ones")]
    DeviceGone,
    /// CSTS.CFS is set.
    #[error("the controller reports a fatal status")]
    FatalStatus,
    /// CSTS.RDY did not follow CC.EN in the time that the controller claims.
    #[error("the controller did not become {} in {waited:?}", if *.wanted { "ready" } else { "disabled" })]
    NotReady {
        /// The wanted state of CSTS.RDY.
        wanted: bool,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The shutdown was not reported complete in time.
    #[error("the controller did not shut down in {0:?}")]
    NotShutDown(Duration),
    /// The controller is nothing that this driver can drive.
    #[error("the controller {0}")]
    Unsupported(&'static str),
    /// What the device says cannot be.
    #[error("the controller says what cannot be: {0}")]
    Implausible(&'static str),
    /// An admin command failed.
    #[error("{command} failed: {status:?}")]
    Command {
        /// The command.
        command: nvme::AdminOpcode,
        /// Its status.
        status: Status,
    },
    /// An admin command was not completed in time. The controller must be reset.
    #[error("{0} was not completed in time; the controller must be reset")]
    AdminTimedOut(nvme::AdminOpcode),
    /// An I/O command was not completed in time: abort it, or reset the controller. Reported again after as much time more.
    #[error("command {:#06x} of queue {} was not completed in time", .0.cid, .0.sqid)]
    TimedOut(CommandId),
    /// The device posted a completion that cannot be.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The queue pair is from before a controller reset; see [`Device::recover`](crate::Device::recover).
    #[error("the controller was reset; the queue pair must be recovered")]
    Reset,
    /// The device must be reset before anything else.
    #[error("the controller is not enabled; it must be reset")]
    NotEnabled,
    /// All queue pairs that the controller has are in use.
    #[error("all {0} I/O queue pairs are in use")]
    NoQueue(u16),
    /// The caller asks for what cannot be.
    #[error("{0}")]
    Argument(&'static str),
    /// The kernel says no.
    #[error("cannot {what}: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        errno: Errno,
    },
}

/// Why a command was not submitted. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many commands are in flight as the queue can hold: poll first.
    #[error("the queue is full")]
    Full,
    /// The command cannot be built.
    #[error("{0}")]
    Argument(&'static str),
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] Error),
}
