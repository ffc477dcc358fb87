//! Mapped doorbells: the page of BAR 0 that holds the doorbell registers is memory, for the VMM to map into the guest.
//!
//! It is ours and no guest memory: it stays where it is whatever happens to the guest's memory map.

use dma::{Cell32, SharedPages};
use nvme::registers::offset;
use pci::MappableArea;
use rustix::io::Errno;

use super::Engine;

/// Size of the page in bytes: the registers of queues 0 to 511.
const BYTES: u64 = 4096;

/// The page.
#[derive(Debug)]
pub(crate) struct DoorbellPage(SharedPages);

impl DoorbellPage {
    /// A new page of zeros.
    ///
    /// # Errors
    /// `EINVAL` when pages of this host are larger; else what the system says.
    pub(crate) fn new() -> Result<Self, Errno> {
        SharedPages::new("nvme-doorbells", offset::DOORBELLS, BYTES).map(Self)
    }

    pub(crate) fn area(&self) -> MappableArea {
        MappableArea { offset: offset::DOORBELLS, len: BYTES, fd: self.0.fd().clone() }
    }

    pub(super) fn zero(&self) {
        self.0.zero();
    }
}

impl Engine {
    /// The register at `slot` (an offset as in a page of shadow doorbells), if doorbells are mapped.
    pub(super) fn mapped_register(&self, slot: usize) -> Option<Cell32> {
        self.doorbell_page.as_ref()?.0.cell32(slot).ok()
    }
}
