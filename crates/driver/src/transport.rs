//! The way to a device.

mod cooperative;
mod in_process;
mod mapped;
mod pci_setup;
mod vfio;

use std::{fmt::Debug, os::fd::BorrowedFd};

pub use cooperative::Cooperative;
pub use in_process::InProcess;
pub use vfio::VfioUser;

use crate::{error::TransportError, memory::DmaRange};

/// A device's PCI identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

/// What a driver needs of a PCI function. Shared by all its queue pairs; every call takes a limited time.
pub trait Transport: Send + Sync + Debug {
    /// The identity in configuration space.
    fn pci_id(&self) -> PciId;

    /// Size in bytes of BAR 0, where the registers are.
    fn register_bytes(&self) -> u64;

    /// Number of MSI-X vectors; 0 if there are none.
    fn vectors(&self) -> u16;

    /// Switches on memory space, bus mastering and MSI-X. To be done again after [`Transport::reset`].
    ///
    /// # Errors
    /// [`TransportError`]; so for all calls.
    fn enable(&self) -> Result<(), TransportError>;

    /// Reads a 32-bit register.
    ///
    /// # Errors
    /// [`TransportError`].
    fn read32(&self, offset: u64) -> Result<u32, TransportError>;

    /// Reads a 64-bit register.
    ///
    /// # Errors
    /// [`TransportError`].
    fn read64(&self, offset: u64) -> Result<u64, TransportError>;

    /// Writes a 32-bit register.
    ///
    /// # Errors
    /// [`TransportError`].
    fn write32(&self, offset: u64, value: u32) -> Result<(), TransportError>;

    /// Writes a 64-bit register.
    ///
    /// # Errors
    /// [`TransportError`].
    fn write64(&self, offset: u64, value: u64) -> Result<(), TransportError>;

    /// Writes a doorbell and does not wait for the device: posted. Writes of one thread arrive in their order, and before
    /// later calls of that thread.
    ///
    /// # Errors
    /// [`TransportError`].
    fn ring(&self, offset: u64, value: u32) -> Result<(), TransportError>;

    /// Whether doorbell registers are memory that device and driver share, so that [`Transport::ring`] is a store.
    fn has_mapped_doorbells(&self) -> bool {
        false
    }

    /// Gives a range of memory to the device.
    ///
    /// # Errors
    /// [`TransportError`].
    fn map(&self, range: &DmaRange) -> Result<(), TransportError>;

    /// Takes a range back; afterwards the device does not touch it any more.
    ///
    /// # Errors
    /// [`TransportError`].
    fn unmap(&self, range: &DmaRange) -> Result<(), TransportError>;

    /// Has an MSI-X vector signal an eventfd. The connection ends with [`Transport::reset`].
    ///
    /// # Errors
    /// [`TransportError`].
    fn connect_vector(&self, vector: u16, eventfd: BorrowedFd<'_>) -> Result<(), TransportError>;

    /// Function-level reset; done when the call returns.
    ///
    /// # Errors
    /// [`TransportError`].
    fn reset(&self) -> Result<(), TransportError>;

    /// Whether the device has no thread of its own: it works when [`Transport::drive`] is called.
    fn is_cooperative(&self) -> bool {
        false
    }

    /// Lets a cooperative device work for a while.
    fn drive(&self) {}
}
