//! The register file in front of BAR0 (NVMe Base 2.1 §3.1.4). It keeps values; what they set in motion is the controller's.

use nvme::registers::{Aqa, Cap, CapFields, Cc, Csts, Version, cap_css, offset};

/// Largest host page, as log2 of pages of 4 KiB: 64 KiB.
const MPSMAX: u8 = 4;

/// What a register write asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegisterEvent {
    /// Nothing further.
    None,
    /// CC was written; the value before it.
    Cc(Cc),
    /// NVM subsystem reset.
    SubsystemReset,
    /// The mask of the legacy interrupt changed.
    InterruptMask,
}

#[derive(Debug)]
pub(crate) struct Registers {
    pub(crate) cap: Cap,
    pub(crate) cc: Cc,
    pub(crate) csts: Csts,
    pub(crate) aqa: Aqa,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
    /// Masked vectors of pin-based interrupts.
    pub(crate) intms: u32,
}

impl Registers {
    pub(crate) fn new(queue_entries: u32) -> Self {
        let cap = CapFields {
            mqes_z: u16::try_from(queue_entries.saturating_sub(1)).unwrap_or(u16::MAX),
            cqr: true,
            // In-flight I/O is drained before RDY clears, and a backend may be slow: 60 s.
            to_500ms: 120,
            nssrs: true,
            css: cap_css::NVM | cap_css::IO_COMMAND_SETS,
            mpsmin: 0,
            mpsmax: MPSMAX,
            ..CapFields::default()
        };
        Self { cap: cap.encode(), cc: Cc(0), csts: Csts(0), aqa: Aqa(0), asq: 0, acq: 0, intms: 0 }
    }

    /// The 4 bytes at `offset`, a multiple of 4.
    #[allow(clippy::cast_possible_truncation)] // Halves of 64-bit registers.
    fn dword(&self, at: u64) -> u32 {
        match at {
            offset::CAP => self.cap.0 as u32,
            0x4 => (self.cap.0 >> 32) as u32,
            offset::VS => Version::NVME_2_0.0,
            offset::INTMS | offset::INTMC => self.intms,
            offset::CC => self.cc.0,
            offset::CSTS => self.csts.0,
            offset::AQA => self.aqa.0,
            offset::ASQ => self.asq as u32,
            0x2c => (self.asq >> 32) as u32,
            offset::ACQ => self.acq as u32,
            0x34 => (self.acq >> 32) as u32,
            // Reserved, absent features, and doorbells, which read as anything.
            _ => 0,
        }
    }

    /// Reads any width at any offset.
    pub(crate) fn read(&self, at: u64, data: &mut [u8]) {
        for (i, byte) in (at..).zip(data) {
            #[allow(clippy::cast_possible_truncation)] // Below 4.
            let lane = (i % 4) as usize;
            *byte = self.dword(i - i % 4).to_le_bytes()[lane];
        }
    }

    /// Writes a dword register.
    pub(crate) fn write(&mut self, at: u64, value: u32) -> RegisterEvent {
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match at {
            offset::INTMS => {
                self.intms |= value;
                return RegisterEvent::InterruptMask;
            }
            offset::INTMC => {
                self.intms &= !value;
                return RegisterEvent::InterruptMask;
            }
            offset::CC => return RegisterEvent::Cc(std::mem::replace(&mut self.cc, Cc(value))),
            // NSSRO is cleared by writing 1; the rest is read-only.
            offset::CSTS if Csts(value).nssro() => self.csts = self.csts.with_nssro(false),
            offset::NSSR if value == nvme::registers::NSSR_RESET => return RegisterEvent::SubsystemReset,
            // The values are read back as they were written, also while the controller is enabled; they are used when it
            // is enabled next.
            offset::AQA => self.aqa = Aqa(value & 0x0fff_0fff),
            offset::ASQ => self.asq = low(self.asq) & !0xfff,
            0x2c => self.asq = high(self.asq),
            offset::ACQ => self.acq = low(self.acq) & !0xfff,
            0x34 => self.acq = high(self.acq),
            _ => {}
        }
        RegisterEvent::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_any_width_at_any_offset_agree_with_the_dwords() {
        let mut registers = Registers::new(1024);
        registers.write(offset::ASQ, 0x1234_5fff);
        registers.write(0x2c, 0x9abc_def0);
        let mut all = [0; 0x1000];
        registers.read(0, &mut all);
        assert_eq!(&all[0x28..0x30], &0x9abc_def0_1234_5000u64.to_le_bytes());
        assert_eq!(&all[8..12], &[0, 0, 2, 0], "VS 2.0");
        for width in 1..=8 {
            for at in 0..0x100 {
                let mut part = [0xff; 8];
                registers.read(at, &mut part[..width]);
                let at = usize::try_from(at).unwrap();
                assert_eq!(part[..width], all[at..at + width]);
            }
        }
    }

    #[test]
    fn interrupt_masks_set_and_clear_and_subsystem_reset_needs_the_word() {
        let mut registers = Registers::new(2);
        registers.write(offset::INTMS, 5);
        registers.write(offset::INTMC, 1);
        assert_eq!(registers.intms, 4);
        assert_eq!(registers.write(offset::NSSR, 1), RegisterEvent::None);
        assert_eq!(registers.write(offset::NSSR, 0x4e56_4d65), RegisterEvent::SubsystemReset);
        registers.csts = registers.csts.with_nssro(true).with_rdy(true);
        registers.write(offset::CSTS, 1);
        assert!(registers.csts.nssro());
        registers.write(offset::CSTS, 1 << 4);
        assert!(!registers.csts.nssro() && registers.csts.rdy());
        registers.write(offset::CAP, 0);
        assert_eq!(registers.cap.mqes_z(), 1, "read-only");
    }
}
