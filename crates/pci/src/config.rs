//! Configuration space: 4096 bytes with a write mask for each bit.
//!
//! Everything that a guest may write is in the masks, so that a write of any width at any offset is one loop over bytes.
//! BAR sizing needs no state either: the address bits below a BAR's size are simply not writable.

use crate::{Bar, capabilities};

/// Size of configuration space in bytes (PCI Express; the first 256 bytes are the conventional part).
pub const CONFIG_SPACE_SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const CAPABILITIES_POINTER: usize = 0x34;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_PARITY: u16 = 1 << 6;
const COMMAND_SERR: u16 = 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS_INTERRUPT: u16 = 1 << 3;
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Error bits, cleared by writing ones (PCI 3.0 §6.2.3).
const STATUS_WRITE_ONE_CLEARS: u16 = 0xf900;

/// Where a function keeps its MSI-X table and its pending bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MsixLayout {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR slot with the table.
    pub table_bar: u8,
    /// Start of the table in that BAR in bytes, a multiple of 8; 16 bytes a vector.
    pub table_offset: u32,
    /// BAR slot with the pending bit array.
    pub pba_bar: u8,
    /// Start of the pending bit array in that BAR in bytes, a multiple of 8; 8 bytes for each 64 vectors begun.
    pub pba_offset: u32,
}

/// What a function says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigSpaceBuilder {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// Revision ID.
    pub revision: u8,
    /// Class code: base class, subclass and interface in the low 24 bits, say 01_08_02h for NVMe.
    pub class: u32,
    /// The BARs by slot; the upper slot of a 64-bit BAR stays `None`.
    pub bars: [Option<Bar>; 6],
    /// MSI-X, if the function has it.
    pub msix: Option<MsixLayout>,
}

/// Why a configuration space cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The size is no power of two, below 16 bytes or too large for the BAR's width.
    #[error("BAR {slot}: {size:#x} is no power of two that this kind of BAR can hold")]
    BarSize {
        /// Slot of the BAR.
        slot: usize,
        /// The refused size in bytes.
        size: u64,
    },
    /// A 64-bit BAR needs its upper slot, which is taken or does not exist.
    #[error("BAR {slot} has 64 bits, and no free slot follows it")]
    BarUpperSlot {
        /// Slot of the BAR.
        slot: usize,
    },
    /// The number of vectors, or a table that is misaligned or does not fit its BAR.
    #[error("MSI-X table or pending bits are misaligned, outside of their BAR, or not 1 to 2048 vectors")]
    Msix,
}

/// What a write to configuration space did, beyond storing bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct ConfigEvents {
    /// Initiate Function Level Reset was written: reset the function, [`ConfigSpace::reset`] included.
    pub flr: bool,
    /// MSI-X Enable or Function Mask changed.
    pub msix: bool,
    /// Memory Space Enable, Bus Master Enable or Interrupt Disable changed.
    pub command: bool,
    /// The power state changed.
    pub power: bool,
}

impl ConfigEvents {
    /// Whether nothing happened.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// PCI power states that the function has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerState {
    /// Fully on.
    D0,
    /// Only configuration space works.
    D3Hot,
}

/// The configuration space of one function.
#[derive(Debug, Clone)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_SPACE_SIZE]>,
    defaults: Box<[u8; CONFIG_SPACE_SIZE]>,
    /// Bits that a write stores.
    writable: Box<[u8; CONFIG_SPACE_SIZE]>,
    /// Bits that a write of one clears.
    write_one_clears: Box<[u8; CONFIG_SPACE_SIZE]>,
    bars: [Option<Bar>; 6],
    power_at: usize,
    express_at: usize,
    msix_at: Option<usize>,
}

impl ConfigSpaceBuilder {
    /// Builds the space with the capabilities Power Management, PCI Express and, if wanted, MSI-X.
    ///
    /// # Errors
    /// [`ConfigError`] when BARs or MSI-X layout contradict themselves.
    pub fn build(&self) -> Result<ConfigSpace, ConfigError> {
        let mut layout = Layout::new();
        layout.put16(0x00, self.vendor, 0);
        layout.put16(0x02, self.device, 0);
        let command = COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_PARITY | COMMAND_SERR | COMMAND_INTX_DISABLE;
        layout.put16(COMMAND, 0, command);
        layout.put16(STATUS, STATUS_CAPABILITIES, 0);
        layout.clear_by_one(STATUS, STATUS_WRITE_ONE_CLEARS);
        layout.put32(0x08, u32::from(self.revision) | self.class << 8, 0);
        // Cache Line Size is stored and means nothing for PCI Express (PCIe Base §7.5.1.1.7).
        layout.put8(0x0c, 0, 0xff);
        self.bars(&mut layout)?;
        layout.put16(0x2c, self.subsystem_vendor, 0);
        layout.put16(0x2e, self.subsystem, 0);
        // Interrupt Line belongs to software; Interrupt Pin INTA.
        layout.put8(0x3c, 0, 0xff);
        layout.put8(0x3d, 1, 0);

        let mut next = capabilities::Chain::new(CAPABILITIES_POINTER, 0x40);
        let power_at = capabilities::power_management(&mut layout, &mut next);
        let express_at = capabilities::express(&mut layout, &mut next);
        let msix_at = match &self.msix {
            Some(msix) => {
                self.check_msix(msix)?;
                Some(capabilities::msix(&mut layout, &mut next, msix))
            }
            None => None,
        };
        let Layout { bytes, writable, write_one_clears } = layout;
        let defaults = bytes.clone();
        Ok(ConfigSpace { bytes, defaults, writable, write_one_clears, bars: self.bars, power_at, express_at, msix_at })
    }

    fn bars(&self, layout: &mut Layout) -> Result<(), ConfigError> {
        for (slot, bar) in self.bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let largest = if bar.is_64bit { 1 << 63 } else { 1 << 31 };
            if !bar.size.is_power_of_two() || !(16..=largest).contains(&bar.size) {
                return Err(ConfigError::BarSize { slot, size: bar.size });
            }
            if bar.is_64bit && self.bars.get(slot + 1) != Some(&None) {
                return Err(ConfigError::BarUpperSlot { slot });
            }
            let kind = u32::from(bar.is_64bit) << 2 | u32::from(bar.prefetchable) << 3;
            let mask = !(bar.size - 1);
            let at = BAR0 + 4 * slot;
            layout.put32(at, kind, low(mask));
            if bar.is_64bit {
                layout.put32(at + 4, 0, low(mask >> 32));
            }
        }
        Ok(())
    }

    fn check_msix(&self, msix: &MsixLayout) -> Result<(), ConfigError> {
        let fits = |bar: u8, offset: u32, len: u64| {
            offset.is_multiple_of(8)
                && matches!(self.bars.get(usize::from(bar)), Some(Some(bar)) if u64::from(offset) + len <= bar.size)
        };
        let vectors = u64::from(msix.vectors);
        if (1..=2048).contains(&vectors)
            && fits(msix.table_bar, msix.table_offset, 16 * vectors)
            && fits(msix.pba_bar, msix.pba_offset, vectors.div_ceil(64) * 8)
        {
            Ok(())
        } else {
            Err(ConfigError::Msix)
        }
    }
}

/// The low 32 bits.
#[allow(clippy::cast_possible_truncation)]
fn low(value: u64) -> u32 {
    value as u32
}

impl ConfigSpace {
    /// Reads; bytes past the end are zero.
    pub fn read(&self, offset: u16, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(usize::from(offset) + i).copied().unwrap_or(0);
        }
    }

    /// Writes what is writable and says what that did. Bytes past the end are dropped.
    pub fn write(&mut self, offset: u16, data: &[u8]) -> ConfigEvents {
        let command_before = self.u16_at(COMMAND);
        let power_before = self.power_bits();
        let msix_before = self.msix_control();
        let flr_at = self.express_at + capabilities::DEVICE_CONTROL + 1;
        let mut flr = false;
        for (i, &byte) in data.iter().enumerate() {
            let at = usize::from(offset) + i;
            let (Some(&mask), Some(&clear)) = (self.writable.get(at), self.write_one_clears.get(at)) else { break };
            self.bytes[at] = (self.bytes[at] & !mask | byte & mask) & !(byte & clear);
            // Initiate FLR always reads as zero.
            flr |= at == flr_at && byte & capabilities::INITIATE_FLR_HIGH_BYTE != 0;
        }
        // A power state that we do not have is discarded (PCI PM 1.2 §3.2.4).
        if !matches!(self.power_bits(), 0 | 3) {
            let at = self.power_at + capabilities::POWER_CONTROL;
            self.bytes[at] = self.bytes[at] & !3 | power_before;
        }
        let watched = COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_INTX_DISABLE;
        ConfigEvents {
            flr,
            msix: msix_before != self.msix_control(),
            command: (command_before ^ self.u16_at(COMMAND)) & watched != 0,
            power: power_before != self.power_bits(),
        }
    }

    /// Restores every register to what it was at power on.
    pub fn reset(&mut self) {
        *self.bytes = *self.defaults;
    }

    /// The BARs by slot.
    pub fn bars(&self) -> [Option<Bar>; 6] {
        self.bars
    }

    /// The address that software gave a BAR; 0 for an empty slot.
    pub fn bar_address(&self, slot: usize) -> u64 {
        let Some(Some(bar)) = self.bars.get(slot) else { return 0 };
        let at = BAR0 + 4 * slot;
        let high = if bar.is_64bit { u64::from(self.u32_at(at + 4)) << 32 } else { 0 };
        high | u64::from(self.u32_at(at) & !0xf)
    }

    /// Memory Space Enable: the BARs answer.
    pub fn memory_enabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_MEMORY != 0
    }

    /// Bus Master Enable: the function may do DMA and send messages.
    pub fn bus_master(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// Interrupt Disable: the function must not raise INTx.
    pub fn intx_disabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_INTX_DISABLE != 0
    }

    /// Sets Interrupt Status, the level of INTx before Interrupt Disable.
    pub fn set_interrupt_status(&mut self, active: bool) {
        let status = self.u16_at(STATUS) & !STATUS_INTERRUPT | if active { STATUS_INTERRUPT } else { 0 };
        self.bytes[STATUS..STATUS + 2].copy_from_slice(&status.to_le_bytes());
    }

    /// MSI-X Enable; never set for a function without MSI-X.
    pub fn msix_enabled(&self) -> bool {
        self.msix_control() & capabilities::MSIX_ENABLE != 0
    }

    /// MSI-X Function Mask.
    pub fn msix_masked(&self) -> bool {
        self.msix_control() & capabilities::MSIX_FUNCTION_MASK != 0
    }

    /// The power state that software asked for.
    pub fn power_state(&self) -> PowerState {
        if self.power_bits() == 0 { PowerState::D0 } else { PowerState::D3Hot }
    }

    fn power_bits(&self) -> u8 {
        self.bytes[self.power_at + capabilities::POWER_CONTROL] & 3
    }

    fn msix_control(&self) -> u16 {
        let bits = capabilities::MSIX_ENABLE | capabilities::MSIX_FUNCTION_MASK;
        self.msix_at.map_or(0, |at| self.u16_at(at + capabilities::MSIX_CONTROL) & bits)
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from(self.u16_at(at)) | u32::from(self.u16_at(at + 2)) << 16
    }
}

/// A space under construction. Offsets come from this crate, never from a guest.
pub(crate) struct Layout {
    bytes: Box<[u8; CONFIG_SPACE_SIZE]>,
    writable: Box<[u8; CONFIG_SPACE_SIZE]>,
    write_one_clears: Box<[u8; CONFIG_SPACE_SIZE]>,
}

impl Layout {
    fn new() -> Self {
        let zero = || Box::new([0; CONFIG_SPACE_SIZE]);
        Self { bytes: zero(), writable: zero(), write_one_clears: zero() }
    }

    pub(crate) fn put8(&mut self, at: usize, value: u8, writable: u8) {
        self.bytes[at] = value;
        self.writable[at] = writable;
    }

    pub(crate) fn put16(&mut self, at: usize, value: u16, writable: u16) {
        for (i, (v, w)) in value.to_le_bytes().into_iter().zip(writable.to_le_bytes()).enumerate() {
            self.put8(at + i, v, w);
        }
    }

    pub(crate) fn put32(&mut self, at: usize, value: u32, writable: u32) {
        for (i, (v, w)) in value.to_le_bytes().into_iter().zip(writable.to_le_bytes()).enumerate() {
            self.put8(at + i, v, w);
        }
    }

    pub(crate) fn clear_by_one(&mut self, at: usize, bits: u16) {
        self.write_one_clears[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> ConfigSpaceBuilder {
        let bar = |size| Some(Bar { size, is_64bit: true, prefetchable: false });
        ConfigSpaceBuilder {
            vendor: 0x1d1d,
            device: 0x1f1f,
            subsystem_vendor: 0x1234,
            subsystem: 0x5678,
            revision: 3,
            class: 0x01_08_02,
            bars: [bar(16384), None, Some(Bar { size: 8192, is_64bit: false, prefetchable: true }), None, None, None],
            msix: Some(MsixLayout { vectors: 65, table_bar: 2, table_offset: 0, pba_bar: 2, pba_offset: 4096 }),
        }
    }

    fn space() -> ConfigSpace {
        builder().build().unwrap()
    }

    fn read32(space: &ConfigSpace, at: u16) -> u32 {
        let mut data = [0; 4];
        space.read(at, &mut data);
        u32::from_le_bytes(data)
    }

    fn quiet_write(space: &mut ConfigSpace, at: u16, data: &[u8]) {
        assert_eq!(space.write(at, data), ConfigEvents::default());
    }

    /// Offset of a capability, found as software finds it.
    fn capability(space: &ConfigSpace, id: u8) -> u16 {
        let mut header = [0; 2];
        space.read(0x34, &mut header[..1]);
        let mut at = u16::from(header[0]);
        for _ in 0..48 {
            assert_ne!(at, 0, "capability {id:#x} is missing");
            space.read(at, &mut header);
            if header[0] == id {
                return at;
            }
            at = u16::from(header[1]);
        }
        panic!("the chain of capabilities is a circle");
    }

    #[test]
    fn a_fresh_space_says_who_it_is() {
        let space = space();
        assert_eq!(read32(&space, 0), 0x1f1f_1d1d);
        assert_eq!(read32(&space, 8), 0x0108_0203);
        assert_eq!(read32(&space, 0x2c), 0x5678_1234);
        assert_eq!(read32(&space, 0x3c), 0x100, "pin A");
        assert_eq!(read32(&space, 4), 0x0010_0000, "a list of capabilities, everything off");
        assert_eq!(read32(&space, 0x100), 0, "no extended capability");
        assert_eq!(space.power_state(), PowerState::D0);
    }

    #[test]
    fn bars_are_sized_by_writing_ones_at_any_width() {
        let mut space = space();
        for at in [0x10, 0x14, 0x18, 0x1c, 0x30] {
            quiet_write(&mut space, at, &[0xff; 4]);
        }
        assert_eq!(read32(&space, 0x10), 0xffff_c004);
        assert_eq!(read32(&space, 0x14), 0xffff_ffff);
        assert_eq!(read32(&space, 0x18), 0xffff_e008);
        assert_eq!(read32(&space, 0x1c), 0, "an empty slot");
        assert_eq!(read32(&space, 0x30), 0, "no ROM");
        quiet_write(&mut space, 0x10, &0x12_3456_7890u64.to_le_bytes());
        assert_eq!(space.bar_address(0), 0x12_3456_4000);
        quiet_write(&mut space, 0x11, &[0xff, 0]);
        assert_eq!(space.bar_address(0), 0x12_3400_c000);
        assert_eq!((space.bar_address(1), space.bar_address(6)), (0, 0));
    }

    #[test]
    fn command_bits_are_reported_when_they_change() {
        let mut space = space();
        let events = space.write(4, &[0xff, 0xff]);
        assert_eq!(events, ConfigEvents { command: true, ..Default::default() });
        assert_eq!(read32(&space, 4) & 0xffff, 0x546);
        assert!(space.memory_enabled() && space.bus_master() && space.intx_disabled());
        quiet_write(&mut space, 4, &[0xff, 0xff]);
        assert!(space.write(5, &[0]).command);
        assert!(!space.intx_disabled());
    }

    #[test]
    fn interrupt_status_is_ours_and_not_writable() {
        let mut space = space();
        space.set_interrupt_status(true);
        quiet_write(&mut space, 6, &[0, 0]);
        assert_eq!(read32(&space, 4) >> 16, 0x18);
        quiet_write(&mut space, 6, &[0xff, 0xff]);
        space.set_interrupt_status(false);
        assert_eq!(read32(&space, 4) >> 16, 0x10);
    }

    #[test]
    fn power_states_that_do_not_exist_are_discarded() {
        let mut space = space();
        let control = capability(&space, 1) + 4;
        assert_eq!(read32(&space, control), 8, "No_Soft_Reset");
        quiet_write(&mut space, control, &[1]);
        assert!(space.write(control, &[3]).power);
        assert_eq!(space.power_state(), PowerState::D3Hot);
        quiet_write(&mut space, control, &[2]);
        assert_eq!(space.power_state(), PowerState::D3Hot);
        assert!(space.write(control, &[0]).power);
    }

    #[test]
    fn a_function_level_reset_is_an_event_and_reads_as_zero() {
        let mut space = space();
        let express = capability(&space, 0x10);
        assert_eq!(read32(&space, express + 4) >> 28 & 1, 1, "FLR capable");
        assert!(space.write(express + 8, &0x8000u16.to_le_bytes()).flr);
        assert_eq!(read32(&space, express + 8) & 0x8000, 0);
        assert!(space.write(express + 9, &[0x80]).flr);
        assert!(!space.write(express + 8, &[0x80]).flr);
        assert!(space.write(0, &[0xff; 4096]).flr);
    }

    #[test]
    fn msix_control_is_reported_and_its_size_is_fixed() {
        let mut space = space();
        let msix = capability(&space, 0x11);
        assert_eq!(read32(&space, msix) >> 16, 64, "0's based");
        assert_eq!((read32(&space, msix + 4), read32(&space, msix + 8)), (2, 4096 | 2));
        assert!(space.write(msix + 3, &[0x80]).msix);
        assert!(space.msix_enabled() && !space.msix_masked());
        assert!(space.write(msix, &[0xff; 12]).msix);
        assert!(space.msix_masked());
        assert_eq!(read32(&space, msix) >> 16, 0xc040);
        quiet_write(&mut space, msix + 4, &[0xff; 8]);
        assert_eq!(read32(&space, msix + 4), 2);
        space.reset();
        assert!(!space.msix_enabled() && !space.msix_masked());
    }

    #[test]
    fn every_offset_and_width_is_harmless() {
        let fresh = space();
        let mut space = fresh.clone();
        let mut data = [0x5a; 17];
        for offset in 0..=u16::MAX {
            for len in [0, 1, 2, 3, 4, 7, 8, 17] {
                let _ = space.write(offset, &[0xff; 17][..len]);
                space.read(offset, &mut data[..len]);
            }
        }
        data = [0x5a; 17];
        space.read(4095, &mut data[..2]);
        assert_eq!(data[..3], [0, 0, 0x5a]);
        space.reset();
        assert_eq!(space.bytes, fresh.bytes);
    }

    #[test]
    fn contradictions_are_refused() {
        let with = |f: fn(&mut ConfigSpaceBuilder)| {
            let mut b = builder();
            f(&mut b);
            b.build().err()
        };
        let upper = |slot| Some(ConfigError::BarUpperSlot { slot });
        assert_eq!(with(|b| b.bars[1] = b.bars[0]), upper(0));
        assert_eq!(with(|b| b.bars[5] = b.bars[0]), upper(5));
        for size in [0, 8, 24, 1 << 32] {
            let mut b = builder();
            b.bars[2] = Some(Bar { size, is_64bit: false, prefetchable: false });
            assert_eq!(b.build().err(), Some(ConfigError::BarSize { slot: 2, size }));
        }
        for msix in [
            MsixLayout { vectors: 0, table_bar: 2, table_offset: 0, pba_bar: 2, pba_offset: 4096 },
            MsixLayout { vectors: 2049, table_bar: 0, table_offset: 0, pba_bar: 2, pba_offset: 4096 },
            MsixLayout { vectors: 2, table_bar: 1, table_offset: 0, pba_bar: 2, pba_offset: 4096 },
            MsixLayout { vectors: 2, table_bar: 9, table_offset: 0, pba_bar: 2, pba_offset: 4096 },
            MsixLayout { vectors: 2, table_bar: 2, table_offset: 4, pba_bar: 2, pba_offset: 4096 },
            MsixLayout { vectors: 65, table_bar: 2, table_offset: 0, pba_bar: 2, pba_offset: 8184 },
        ] {
            let mut b = builder();
            b.msix = Some(msix);
            assert_eq!(b.build().err(), Some(ConfigError::Msix), "{msix:?}");
        }
    }
}
