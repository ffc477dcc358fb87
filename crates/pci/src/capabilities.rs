//! The capabilities of a function: Power Management, PCI Express, MSI-X.

use crate::config::{Layout, MsixLayout};

/// PMCSR, from the start of its capability.
pub(crate) const POWER_CONTROL: usize = 4;
/// Device Control, from the start of the PCI Express capability.
pub(crate) const DEVICE_CONTROL: usize = 8;
/// Initiate Function Level Reset, in the high byte of Device Control.
pub(crate) const INITIATE_FLR_HIGH_BYTE: u8 = 0x80;
/// Message Control, from the start of the MSI-X capability.
pub(crate) const MSIX_CONTROL: usize = 2;
pub(crate) const MSIX_ENABLE: u16 = 1 << 15;
pub(crate) const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// The list of capabilities as it grows.
pub(crate) struct Chain {
    /// Where the pointer to the next capability belongs.
    pointer: usize,
    next: u8,
}

impl Chain {
    /// `pointer` holds the offset of the first capability, which will stand at `first`.
    pub(crate) fn new(pointer: usize, first: u8) -> Self {
        Self { pointer, next: first }
    }

    fn add(&mut self, layout: &mut Layout, id: u8, len: u8) -> usize {
        let at = self.next;
        layout.put8(self.pointer, at, 0);
        layout.put8(usize::from(at), id, 0);
        self.pointer = usize::from(at) + 1;
        self.next = at + len.next_multiple_of(4);
        usize::from(at)
    }
}

/// PCI Power Management (PCI PM 1.2 §3.2): D0 and D3hot, and no reset on the way back.
pub(crate) fn power_management(layout: &mut Layout, chain: &mut Chain) -> usize {
    let at = chain.add(layout, 0x01, 8);
    layout.put16(at + 2, 3, 0);
    layout.put16(at + POWER_CONTROL, 1 << 3, 3);
    at
}

/// PCI Express endpoint, version 2 (PCIe Base §7.5.3): 8 GT/s by 4 lanes, payloads of 128 bytes, function-level reset.
pub(crate) fn express(layout: &mut Layout, chain: &mut Chain) -> usize {
    let at = chain.add(layout, 0x10, 0x3c);
    layout.put16(at + 2, 0x0002, 0);
    // Extended tags, no limit on L0s and L1 latency, role-based error reporting, FLR.
    layout.put32(at + 4, 1 << 5 | 7 << 6 | 7 << 9 | 1 << 15 | 1 << 28, 0);
    // Relaxed ordering, 512-byte read requests and no snoop are the defaults. FLR is no stored bit.
    layout.put16(at + DEVICE_CONTROL, 1 << 4 | 1 << 11 | 2 << 12, 0x79ff);
    layout.clear_by_one(at + 0x0a, 0xf);
    // 8 GT/s, 4 lanes, ASPM optionality compliance.
    layout.put32(at + 0x0c, 3 | 4 << 4 | 1 << 22, 0);
    // Read completion boundary, common clock, extended synch.
    layout.put16(at + 0x10, 0, 1 << 3 | 1 << 6 | 1 << 7);
    layout.put16(at + 0x12, 3 | 4 << 4 | 1 << 12, 0);
    // Completion time-outs may be switched off.
    layout.put32(at + 0x24, 1 << 4, 0);
    layout.put16(at + 0x28, 0, 1 << 4);
    // 2.5, 5 and 8 GT/s; target 8 GT/s.
    layout.put32(at + 0x2c, 7 << 1, 0);
    layout.put16(at + 0x30, 3, 0xf);
    at
}

/// MSI-X (PCIe Base §7.7.2).
pub(crate) fn msix(layout: &mut Layout, chain: &mut Chain, msix: &MsixLayout) -> usize {
    let at = chain.add(layout, 0x11, 12);
    layout.put16(at + MSIX_CONTROL, msix.vectors - 1, MSIX_ENABLE | MSIX_FUNCTION_MASK);
    layout.put32(at + 4, msix.table_offset | u32::from(msix.table_bar), 0);
    layout.put32(at + 8, msix.pba_offset | u32::from(msix.pba_bar), 0);
    at
}
