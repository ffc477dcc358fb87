//! What the operator decides about a controller.

use std::sync::Arc;

use block::BlockDevice;
use thiserror::Error;

/// PCI identity of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

impl PciId {
    /// The project's own. It is in no registry; drivers bind to the NVMe class code and look at ids only for quirks.
    /// (QEMU's id, 1b36:0010, makes Linux ignore namespace identifiers.)
    pub const SHADOWBELL: Self = Self { vendor: 0x1234, device: 0xdbdb };
    /// The identity behind which drivers look for [`DoorbellCommand::Vendor`].
    pub const GOOGLE: Self = Self { vendor: 0x1ae0, device: 0x001f };
}

/// The form in which shadow doorbells are set up. Buffers and slots are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellCommand {
    /// Doorbell Buffer Config, 7Ch (NVMe Base 2.1 §5.2.5), advertised in OACS.
    #[default]
    Standard,
    /// The vendor command C0h of 2016, which drivers send when the PCI vendor is 1AE0h. Nothing advertises it; a failure is
    /// command specific status C0h.
    Vendor,
}

/// Which doorbells a controller has beside plain registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellMode {
    /// Shadow doorbells, for guests that ask for them; by [`DoorbellCommand`].
    #[default]
    Shadow,
    /// The registers are memory that the VMM maps into the guest ([`pci::PciFunction::mappable`]): a guest that knows nothing of
    /// shadow doorbells writes them without an exit. Nothing tells the controller when, so that it looks by the clock while it
    /// is enabled. Shadow doorbells are not on offer. A host whose pages are larger than 4 KiB cannot map them: there, it is as
    /// [`DoorbellMode::Shadow`].
    Mapped,
    /// Neither: the guest rings every doorbell by register.
    Register,
}

/// A controller's settings. [`Config::check`] says what is wrong with them.
#[derive(Debug, Clone)]
pub struct Config {
    /// Serial number, 1 to 20 printable ASCII characters. Namespace identifiers are derived from it, so it should stay the
    /// same for the same disks.
    pub serial: String,
    /// Model number, 1 to 40 printable ASCII characters.
    pub model: String,
    /// PCI identity.
    pub pci_id: PciId,
    /// I/O queue pairs on offer, 1 to [`Config::MAX_IO_QUEUES`].
    pub io_queues: u16,
    /// Largest number of entries of a queue, 2 to [`Config::MAX_QUEUE_ENTRIES`].
    pub queue_entries: u32,
    /// Which doorbells there are.
    pub doorbells: DoorbellMode,
    /// By which command shadow doorbells are set up.
    pub doorbell_command: DoorbellCommand,
    /// The disks: namespace 1, 2, ...
    pub namespaces: Vec<Arc<dyn BlockDevice>>,
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Serial or model number.
    #[error("{what} must be 1 to {max} printable ASCII characters, got {got:?}")]
    Text {
        /// Which one.
        what: &'static str,
        /// Its longest length.
        max: usize,
        /// What was given.
        got: String,
    },
    /// A number out of its range.
    #[error("{what} must be {min} to {max}, got {got}")]
    Range {
        /// Which one.
        what: &'static str,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
        /// What was given.
        got: u32,
    },
}

impl Config {
    /// The slots of queues 0 to 511 fill a doorbell page of 4 KiB.
    pub const MAX_IO_QUEUES: u16 = 511;
    /// CAP.MQES stays below 4096: some firmware computes a length of 0 from larger ones.
    pub const MAX_QUEUE_ENTRIES: u32 = 4096;
    /// Namespaces that one controller can hold.
    pub const MAX_NAMESPACES: u32 = 1024;

    /// A controller with usual settings for these disks.
    pub fn new(serial: &str, namespaces: Vec<Arc<dyn BlockDevice>>) -> Self {
        Self {
            serial: serial.to_owned(),
            model: "shadowbell virtual NVMe disk".to_owned(),
            pci_id: PciId::SHADOWBELL,
            io_queues: 64,
            queue_entries: 1024,
            doorbells: DoorbellMode::default(),
            doorbell_command: DoorbellCommand::default(),
            namespaces,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// The first one that cannot be used.
    pub fn check(&self) -> Result<(), ConfigError> {
        text("the serial number", &self.serial, 20)?;
        text("the model number", &self.model, 40)?;
        range("the number of I/O queues", self.io_queues.into(), 1, Self::MAX_IO_QUEUES.into())?;
        range("the queue depth", self.queue_entries, 2, Self::MAX_QUEUE_ENTRIES)?;
        let disks = u32::try_from(self.namespaces.len()).unwrap_or(u32::MAX);
        range("the number of disks", disks, 0, Self::MAX_NAMESPACES)
    }
}

fn text(what: &'static str, got: &str, max: usize) -> Result<(), ConfigError> {
    let fits = (1..=max).contains(&got.len()) && got.bytes().all(|b| (0x20..0x7f).contains(&b));
    if fits { Ok(()) } else { Err(ConfigError::Text { what, max, got: got.to_owned() }) }
}

fn range(what: &'static str, got: u32, min: u32, max: u32) -> Result<(), ConfigError> {
    if (min..=max).contains(&got) { Ok(()) } else { Err(ConfigError::Range { what, min, max, got }) }
}
