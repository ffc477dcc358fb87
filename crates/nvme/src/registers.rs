//! Controller properties (the registers in BAR 0) and the doorbells behind them.
//!
//! NVMe Base 2.1 §3.1.4; NVMe over PCIe 1.0 §3.1.

use crate::bits::{flag, get8, get16, put, put32};
use crate::open_enum::open_enum;

mod doorbells;
#[cfg(test)]
mod tests;

pub use doorbells::{Doorbell, doorbell_at};

/// Byte offsets of the properties in BAR 0 (NVMe Base 2.1 §3.1.4).
pub mod offset {
    /// Controller Capabilities, 8 bytes, read only.
    pub const CAP: u64 = 0x0;
    /// Version, 4 bytes, read only.
    pub const VS: u64 = 0x8;
    /// Interrupt Mask Set, 4 bytes, write 1 to set.
    pub const INTMS: u64 = 0xc;
    /// Interrupt Mask Clear, 4 bytes, write 1 to clear.
    pub const INTMC: u64 = 0x10;
    /// Controller Configuration, 4 bytes.
    pub const CC: u64 = 0x14;
    /// Controller Status, 4 bytes, read only but for NSSRO.
    pub const CSTS: u64 = 0x1c;
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: u64 = 0x20;
    /// Admin Queue Attributes, 4 bytes.
    pub const AQA: u64 = 0x24;
    /// Admin Submission Queue base address, 8 bytes.
    pub const ASQ: u64 = 0x28;
    /// Admin Completion Queue base address, 8 bytes.
    pub const ACQ: u64 = 0x30;
    /// Controller Memory Buffer Location, 4 bytes.
    pub const CMBLOC: u64 = 0x38;
    /// Controller Memory Buffer Size, 4 bytes.
    pub const CMBSZ: u64 = 0x3c;
    /// Boot Partition Information, 4 bytes.
    pub const BPINFO: u64 = 0x40;
    /// Boot Partition Read Select, 4 bytes.
    pub const BPRSEL: u64 = 0x44;
    /// Boot Partition Memory Buffer Location, 8 bytes.
    pub const BPMBL: u64 = 0x48;
    /// Controller Memory Buffer Memory Space Control, 8 bytes.
    pub const CMBMSC: u64 = 0x50;
    /// Controller Memory Buffer Status, 4 bytes.
    pub const CMBSTS: u64 = 0x58;
    /// Controller Memory Buffer Elasticity Buffer Size, 4 bytes.
    pub const CMBEBS: u64 = 0x5c;
    /// Controller Memory Buffer Sustained Write Throughput, 4 bytes.
    pub const CMBSWTP: u64 = 0x60;
    /// NVM Subsystem Shutdown, 4 bytes.
    pub const NSSD: u64 = 0x64;
    /// Controller Ready Timeouts, 4 bytes, read only.
    pub const CRTO: u64 = 0x68;
    /// Persistent Memory Region Capabilities, 4 bytes.
    pub const PMRCAP: u64 = 0xe00;
    /// Persistent Memory Region Control, 4 bytes.
    pub const PMRCTL: u64 = 0xe04;
    /// Persistent Memory Region Status, 4 bytes.
    pub const PMRSTS: u64 = 0xe08;
    /// Persistent Memory Region Elasticity Buffer Size, 4 bytes.
    pub const PMREBS: u64 = 0xe0c;
    /// Persistent Memory Region Sustained Write Throughput, 4 bytes.
    pub const PMRSWTP: u64 = 0xe10;
    /// Persistent Memory Region Memory Space Control Lower, 4 bytes.
    pub const PMRMSCL: u64 = 0xe14;
    /// Persistent Memory Region Memory Space Control Upper, 4 bytes.
    pub const PMRMSCU: u64 = 0xe18;
    /// The first doorbell, the tail of the Admin SQ (NVMe over PCIe 1.0 §3.1.2).
    pub const DOORBELLS: u64 = 0x1000;
}

/// The value that resets the NVM subsystem when written to NSSR, "NVMe" in ASCII
/// (NVMe Base 2.1 §3.1.4.7).
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// CAP.CSS bits: which I/O command sets the controller has (NVMe Base 2.1 §3.1.4.1).
pub mod cap_css {
    /// The NVM command set.
    pub const NVM: u8 = 1 << 0;
    /// One or more I/O command sets, listed by Identify with CNS 1Ch.
    pub const IO_COMMAND_SETS: u8 = 1 << 6;
    /// No I/O command set; only the Admin Queue.
    pub const ADMIN_ONLY: u8 = 1 << 7;
}

/// CAP.AMS bits: optional arbitration mechanisms (NVMe Base 2.1 §3.1.4.1). Round robin is
/// mandatory and has no bit.
pub mod cap_ams {
    /// Weighted round robin with urgent priority class.
    pub const WEIGHTED_ROUND_ROBIN: u8 = 1 << 0;
    /// Vendor specific.
    pub const VENDOR: u8 = 1 << 1;
}

/// CAP.CRMS bits: the ways of becoming ready (NVMe Base 2.1 §3.1.4.1).
pub mod cap_crms {
    /// Controller Ready With Media (CRWMS).
    pub const WITH_MEDIA: u8 = 1 << 0;
    /// Controller Ready Independent of Media (CRIMS).
    pub const INDEPENDENT_OF_MEDIA: u8 = 1 << 1;
}

/// Controller Capabilities, CAP (NVMe Base 2.1 §3.1.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cap(pub u64);

impl Cap {
    /// MQES: the most entries of one I/O queue, 0's based.
    #[must_use]
    pub const fn mqes_z(self) -> u16 {
        get16(self.0, 0, 16)
    }

    /// CQR: I/O queues have to be physically contiguous.
    #[must_use]
    pub const fn cqr(self) -> bool {
        flag(self.0, 16)
    }

    /// AMS: arbitration mechanisms, bits of [`cap_ams`].
    #[must_use]
    pub const fn ams(self) -> u8 {
        get8(self.0, 17, 2)
    }

    /// TO: the longest wait for CSTS.RDY to follow CC.EN, in units of 500 ms.
    #[must_use]
    pub const fn to_500ms(self) -> u8 {
        get8(self.0, 24, 8)
    }

    /// DSTRD: doorbells are `4 << DSTRD` bytes apart.
    #[must_use]
    pub const fn dstrd(self) -> u8 {
        get8(self.0, 32, 4)
    }

    /// NSSRS: NVM Subsystem Reset is supported.
    #[must_use]
    pub const fn nssrs(self) -> bool {
        flag(self.0, 36)
    }

    /// CSS: command sets, bits of [`cap_css`].
    #[must_use]
    pub const fn css(self) -> u8 {
        get8(self.0, 37, 8)
    }

    /// BPS: boot partitions are supported.
    #[must_use]
    pub const fn bps(self) -> bool {
        flag(self.0, 45)
    }

    /// CPS: controller power scope (0 not reported, 1 controller, 2 domain, 3 NVM subsystem).
    #[must_use]
    pub const fn cps(self) -> u8 {
        get8(self.0, 46, 2)
    }

    /// MPSMIN: the smallest memory page is `1 << (12 + MPSMIN)` bytes.
    #[must_use]
    pub const fn mpsmin(self) -> u8 {
        get8(self.0, 48, 4)
    }

    /// MPSMAX: the largest memory page is `1 << (12 + MPSMAX)` bytes.
    #[must_use]
    pub const fn mpsmax(self) -> u8 {
        get8(self.0, 52, 4)
    }

    /// PMRS: a Persistent Memory Region is supported.
    #[must_use]
    pub const fn pmrs(self) -> bool {
        flag(self.0, 56)
    }

    /// CMBS: a Controller Memory Buffer is supported.
    #[must_use]
    pub const fn cmbs(self) -> bool {
        flag(self.0, 57)
    }

    /// NSSS: NVM Subsystem Shutdown is supported.
    #[must_use]
    pub const fn nsss(self) -> bool {
        flag(self.0, 58)
    }

    /// CRMS: the ways of becoming ready, bits of [`cap_crms`].
    #[must_use]
    pub const fn crms(self) -> u8 {
        get8(self.0, 59, 2)
    }

    /// All fields at once.
    #[must_use]
    pub const fn fields(self) -> CapFields {
        CapFields {
            mqes_z: self.mqes_z(),
            cqr: self.cqr(),
            ams: self.ams(),
            to_500ms: self.to_500ms(),
            dstrd: self.dstrd(),
            nssrs: self.nssrs(),
            css: self.css(),
            bps: self.bps(),
            cps: self.cps(),
            mpsmin: self.mpsmin(),
            mpsmax: self.mpsmax(),
            pmrs: self.pmrs(),
            cmbs: self.cmbs(),
            nsss: self.nsss(),
            crms: self.crms(),
        }
    }
}

/// The fields of [`Cap`], from which one is made. Units as at its getters. A value wider than its
/// field is cut to the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapFields {
    /// See [`Cap::mqes_z`].
    pub mqes_z: u16,
    /// See [`Cap::cqr`].
    pub cqr: bool,
    /// See [`Cap::ams`].
    pub ams: u8,
    /// See [`Cap::to_500ms`].
    pub to_500ms: u8,
    /// See [`Cap::dstrd`].
    pub dstrd: u8,
    /// See [`Cap::nssrs`].
    pub nssrs: bool,
    /// See [`Cap::css`].
    pub css: u8,
    /// See [`Cap::bps`].
    pub bps: bool,
    /// See [`Cap::cps`].
    pub cps: u8,
    /// See [`Cap::mpsmin`].
    pub mpsmin: u8,
    /// See [`Cap::mpsmax`].
    pub mpsmax: u8,
    /// See [`Cap::pmrs`].
    pub pmrs: bool,
    /// See [`Cap::cmbs`].
    pub cmbs: bool,
    /// See [`Cap::nsss`].
    pub nsss: bool,
    /// See [`Cap::crms`].
    pub crms: u8,
}

impl CapFields {
    /// The register with these fields.
    #[must_use]
    pub const fn encode(self) -> Cap {
        let word = put(0, 0, 16, self.mqes_z as u64);
        let word = put(word, 16, 1, self.cqr as u64);
        let word = put(word, 17, 2, self.ams as u64);
        let word = put(word, 24, 8, self.to_500ms as u64);
        let word = put(word, 32, 4, self.dstrd as u64);
        let word = put(word, 36, 1, self.nssrs as u64);
        let word = put(word, 37, 8, self.css as u64);
        let word = put(word, 45, 1, self.bps as u64);
        let word = put(word, 46, 2, self.cps as u64);
        let word = put(word, 48, 4, self.mpsmin as u64);
        let word = put(word, 52, 4, self.mpsmax as u64);
        let word = put(word, 56, 1, self.pmrs as u64);
        let word = put(word, 57, 1, self.cmbs as u64);
        let word = put(word, 58, 1, self.nsss as u64);
        let word = put(word, 59, 2, self.crms as u64);
        Cap(word)
    }
}

/// Version, VS and the VER field of Identify Controller (NVMe Base 2.1 §3.1.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// NVMe 2.0, the version that shadowbell claims.
    pub const NVME_2_0: Self = Self::new(2, 0, 0);

    /// The version `major.minor.tertiary`.
    #[must_use]
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        Self(((major as u32) << 16) | ((minor as u32) << 8) | tertiary as u32)
    }

    /// MJR.
    #[must_use]
    pub const fn major(self) -> u16 {
        get16(self.0 as u64, 16, 16)
    }

    /// MNR.
    #[must_use]
    pub const fn minor(self) -> u8 {
        get8(self.0 as u64, 8, 8)
    }

    /// TER.
    #[must_use]
    pub const fn tertiary(self) -> u8 {
        get8(self.0 as u64, 0, 8)
    }
}

impl core::fmt::Display for Version {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())?;
        match self.tertiary() {
            0 => Ok(()),
            tertiary => write!(f, ".{tertiary}"),
        }
    }
}

open_enum! {
    /// CC.SHN: how the host asks for shutdown (NVMe Base 2.1 §3.1.4.5).
    ShutdownNotification {
        /// No notification.
        NONE = 0, "none";
        /// Normal shutdown.
        NORMAL = 1, "normal";
        /// Abrupt shutdown.
        ABRUPT = 2, "abrupt";
    }
}

open_enum! {
    /// CSTS.SHST: how far a shutdown is (NVMe Base 2.1 §3.1.4.6).
    ShutdownStatus {
        /// Normal operation; no shutdown was asked for.
        NORMAL_OPERATION = 0, "normal operation";
        /// Shutdown processing is occurring.
        OCCURRING = 1, "occurring";
        /// Shutdown processing is complete.
        COMPLETE = 2, "complete";
    }
}

open_enum! {
    /// CC.CSS: the command sets that the host selects (NVMe Base 2.1 §3.1.4.5).
    CommandSetSelected {
        /// The NVM command set.
        NVM = 0, "NVM";
        /// All supported I/O command sets.
        ALL_SUPPORTED = 6, "all supported";
        /// Admin command set only.
        ADMIN_ONLY = 7, "admin only";
    }
}

/// Controller Configuration, CC (NVMe Base 2.1 §3.1.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cc(pub u32);

impl Cc {
    /// EN: the controller is, or is to be, enabled.
    #[must_use]
    pub const fn en(self) -> bool {
        flag(self.0 as u64, 0)
    }

    /// CSS: the selected command sets, a [`CommandSetSelected`].
    #[must_use]
    pub const fn css(self) -> u8 {
        get8(self.0 as u64, 4, 3)
    }

    /// MPS: the memory page is `1 << (12 + MPS)` bytes.
    #[must_use]
    pub const fn mps(self) -> u8 {
        get8(self.0 as u64, 7, 4)
    }

    /// AMS: the selected arbitration (0 round robin, 1 weighted, 7 vendor).
    #[must_use]
    pub const fn ams(self) -> u8 {
        get8(self.0 as u64, 11, 3)
    }

    /// SHN: shutdown notification.
    #[must_use]
    pub const fn shn(self) -> ShutdownNotification {
        ShutdownNotification(get8(self.0 as u64, 14, 2))
    }

    /// IOSQES: an I/O submission queue entry is `1 << IOSQES` bytes.
    #[must_use]
    pub const fn iosqes(self) -> u8 {
        get8(self.0 as u64, 16, 4)
    }

    /// IOCQES: an I/O completion queue entry is `1 << IOCQES` bytes.
    #[must_use]
    pub const fn iocqes(self) -> u8 {
        get8(self.0 as u64, 20, 4)
    }

    /// CRIME: Controller Ready Independent of Media Enable.
    #[must_use]
    pub const fn crime(self) -> bool {
        flag(self.0 as u64, 24)
    }

    /// With EN.
    #[must_use]
    pub const fn with_en(self, en: bool) -> Self {
        Self(put32(self.0, 0, 1, en as u32))
    }

    /// With CSS.
    #[must_use]
    pub const fn with_css(self, css: u8) -> Self {
        Self(put32(self.0, 4, 3, css as u32))
    }

    /// With MPS.
    #[must_use]
    pub const fn with_mps(self, mps: u8) -> Self {
        Self(put32(self.0, 7, 4, mps as u32))
    }

    /// With AMS.
    #[must_use]
    pub const fn with_ams(self, ams: u8) -> Self {
        Self(put32(self.0, 11, 3, ams as u32))
    }

    /// With SHN.
    #[must_use]
    pub const fn with_shn(self, shn: ShutdownNotification) -> Self {
        Self(put32(self.0, 14, 2, shn.0 as u32))
    }

    /// With IOSQES.
    #[must_use]
    pub const fn with_iosqes(self, iosqes: u8) -> Self {
        Self(put32(self.0, 16, 4, iosqes as u32))
    }

    /// With IOCQES.
    #[must_use]
    pub const fn with_iocqes(self, iocqes: u8) -> Self {
        Self(put32(self.0, 20, 4, iocqes as u32))
    }

    /// With CRIME.
    #[must_use]
    pub const fn with_crime(self, crime: bool) -> Self {
        Self(put32(self.0, 24, 1, crime as u32))
    }
}

/// Controller Status, CSTS (NVMe Base 2.1 §3.1.4.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Csts(pub u32);

impl Csts {
    /// RDY: the controller is ready to process commands.
    #[must_use]
    pub const fn rdy(self) -> bool {
        flag(self.0 as u64, 0)
    }

    /// CFS: a fatal error occurred that no completion can tell.
    #[must_use]
    pub const fn cfs(self) -> bool {
        flag(self.0 as u64, 1)
    }

    /// SHST: shutdown status.
    #[must_use]
    pub const fn shst(self) -> ShutdownStatus {
        ShutdownStatus(get8(self.0 as u64, 2, 2))
    }

    /// NSSRO: an NVM Subsystem Reset occurred; the host clears it by writing 1.
    #[must_use]
    pub const fn nssro(self) -> bool {
        flag(self.0 as u64, 4)
    }

    /// PP: command processing is paused.
    #[must_use]
    pub const fn pp(self) -> bool {
        flag(self.0 as u64, 5)
    }

    /// ST: the shutdown that SHST tells of is one of the NVM subsystem.
    #[must_use]
    pub const fn st(self) -> bool {
        flag(self.0 as u64, 6)
    }

    /// With RDY.
    #[must_use]
    pub const fn with_rdy(self, rdy: bool) -> Self {
        Self(put32(self.0, 0, 1, rdy as u32))
    }

    /// With CFS.
    #[must_use]
    pub const fn with_cfs(self, cfs: bool) -> Self {
        Self(put32(self.0, 1, 1, cfs as u32))
    }

    /// With SHST.
    #[must_use]
    pub const fn with_shst(self, shst: ShutdownStatus) -> Self {
        Self(put32(self.0, 2, 2, shst.0 as u32))
    }

    /// With NSSRO.
    #[must_use]
    pub const fn with_nssro(self, nssro: bool) -> Self {
        Self(put32(self.0, 4, 1, nssro as u32))
    }

    /// With PP.
    #[must_use]
    pub const fn with_pp(self, pp: bool) -> Self {
        Self(put32(self.0, 5, 1, pp as u32))
    }

    /// With ST.
    #[must_use]
    pub const fn with_st(self, st: bool) -> Self {
        Self(put32(self.0, 6, 1, st as u32))
    }
}

/// Admin Queue Attributes, AQA (NVMe Base 2.1 §3.1.4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Aqa(pub u32);

impl Aqa {
    /// The register for an Admin SQ and an Admin CQ of these sizes in entries, 0's based; 12 bits
    /// each.
    #[must_use]
    pub const fn new(asqs_z: u16, acqs_z: u16) -> Self {
        Self(put32(put32(0, 0, 12, asqs_z as u32), 16, 12, acqs_z as u32))
    }

    /// ASQS: entries of the Admin SQ, 0's based.
    #[must_use]
    pub const fn asqs_z(self) -> u16 {
        get16(self.0 as u64, 0, 12)
    }

    /// ACQS: entries of the Admin CQ, 0's based.
    #[must_use]
    pub const fn acqs_z(self) -> u16 {
        get16(self.0 as u64, 16, 12)
    }
}

/// Controller Ready Timeouts, CRTO (NVMe Base 2.1 §3.1.4.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Crto(pub u32);

impl Crto {
    /// The register for these timeouts, in units of 500 ms: CRWMT (with media) and CRIMT
    /// (independent of media).
    #[must_use]
    pub const fn new(crwmt_500ms: u16, crimt_500ms: u16) -> Self {
        Self(((crimt_500ms as u32) << 16) | crwmt_500ms as u32)
    }

    /// CRWMT: the longest wait for readiness with media, in units of 500 ms.
    #[must_use]
    pub const fn crwmt_500ms(self) -> u16 {
        get16(self.0 as u64, 0, 16)
    }

    /// CRIMT: the longest wait for readiness independent of media, in units of 500 ms.
    #[must_use]
    pub const fn crimt_500ms(self) -> u16 {
        get16(self.0 as u64, 16, 16)
    }
}
