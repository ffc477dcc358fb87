//! Identify Namespace in its three forms.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_BYTES;

/// NSFEAT of [`IdentifyNamespace`](super::IdentifyNamespace).
pub mod nsfeat {
    /// THINP: thin provisioning; NCAP may be below NSZE.
    pub const THIN_PROVISIONING: u8 = 1 << 0;
    /// NSABP: NAWUN, NAWUPF and NACWU hold for this namespace.
    pub const ATOMIC_BOUNDARIES: u8 = 1 << 1;
    /// DAE: reading a deallocated block may be made an error (feature Error Recovery, DULBE).
    pub const DEALLOCATED_ERROR: u8 = 1 << 2;
    /// UIDREUSE: NGUID and EUI64 are never used again.
    pub const UID_NOT_REUSED: u8 = 1 << 3;
    /// OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are defined.
    pub const OPTIMAL_PERFORMANCE: u8 = 1 << 4;
}

/// NSFEAT of [`IdentifyNamespaceIndependent`](super::IdentifyNamespaceIndependent). Its other bits
/// are reserved.
pub mod independent_nsfeat {
    /// UIDREUSE: NGUID and EUI64 are never used again.
    pub const UID_NOT_REUSED: u8 = 1 << 3;
}

/// FLBAS: Formatted LBA Size.
pub mod flbas {
    /// Metadata is at the end of each block's data, not in a buffer of its own.
    pub const METADATA_EXTENDED: u8 = 1 << 4;

    /// The FLBAS bits of LBA format `index` (0 to 63): 3:0 in 3:0 and 5:4 in 6:5.
    #[must_use]
    pub const fn with_index(index: u8) -> u8 {
        (index & 0xf) | ((index & 0x30) << 1)
    }

    /// The LBA format that `flbas` selects.
    #[must_use]
    pub const fn index(flbas: u8) -> u8 {
        (flbas & 0xf) | ((flbas & 0x60) >> 1)
    }
}

/// MC: Metadata Capabilities.
pub mod mc {
    /// Metadata as a part of an extended block.
    pub const EXTENDED: u8 = 1 << 0;
    /// Metadata in a separate buffer.
    pub const SEPARATE: u8 = 1 << 1;
}

/// DPC: End-to-end Data Protection Capabilities.
pub mod dpc {
    /// Protection information type 1.
    pub const TYPE_1: u8 = 1 << 0;
    /// Protection information type 2.
    pub const TYPE_2: u8 = 1 << 1;
    /// Protection information type 3.
    pub const TYPE_3: u8 = 1 << 2;
    /// In the first bytes of metadata.
    pub const FIRST_BYTES: u8 = 1 << 3;
    /// In the last bytes of metadata.
    pub const LAST_BYTES: u8 = 1 << 4;
}

/// DPS: End-to-end Data Protection Type Settings.
pub mod dps {
    /// Bits 2:0: the type enabled, 0 for none.
    pub const TYPE_MASK: u8 = 0b111;
    /// In the first bytes of metadata.
    pub const FIRST_BYTES: u8 = 1 << 3;
}

/// NMIC: Namespace Multi-path I/O and Namespace Sharing Capabilities.
pub mod nmic {
    /// More than one controller may have the namespace attached.
    pub const SHARED: u8 = 1 << 0;
    /// The namespace is dispersed.
    pub const DISPERSED: u8 = 1 << 1;
}

/// RESCAP: Reservation Capabilities.
pub mod rescap {
    /// Persist Through Power Loss.
    pub const PERSIST_THROUGH_POWER_LOSS: u8 = 1 << 0;
    /// Write Exclusive.
    pub const WRITE_EXCLUSIVE: u8 = 1 << 1;
    /// Exclusive Access.
    pub const EXCLUSIVE_ACCESS: u8 = 1 << 2;
    /// Write Exclusive, Registrants Only.
    pub const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 1 << 3;
    /// Exclusive Access, Registrants Only.
    pub const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 1 << 4;
    /// Write Exclusive, All Registrants.
    pub const WRITE_EXCLUSIVE_ALL: u8 = 1 << 5;
    /// Exclusive Access, All Registrants.
    pub const EXCLUSIVE_ACCESS_ALL: u8 = 1 << 6;
    /// Ignore Existing Key as of NVMe 1.3.
    pub const IGNORE_EXISTING_KEY_1_3: u8 = 1 << 7;
}

/// DLFEAT: Deallocate Logical Block Features.
pub mod dlfeat {
    /// Bits 2:0 = 000b: what a deallocated block reads as is not reported.
    pub const READS_NOT_REPORTED: u8 = 0b000;
    /// Bits 2:0 = 001b: a deallocated block reads as zeros.
    pub const READS_ZEROS: u8 = 0b001;
    /// Bits 2:0 = 010b: a deallocated block reads as FFh.
    pub const READS_ONES: u8 = 0b010;
    /// The Deallocate bit of Write Zeroes is supported.
    pub const WRITE_ZEROES_DEALLOCATE: u8 = 1 << 3;
    /// The guard of a deallocated block is the CRC of its data, not FFFFh.
    pub const GUARD_IS_CRC: u8 = 1 << 4;
}

/// NSATTR: Namespace Attributes.
pub mod nsattr {
    /// The namespace is write protected now.
    pub const WRITE_PROTECTED: u8 = 1 << 0;
}

/// NSTAT: Namespace Status.
pub mod nstat {
    /// NRDY: the namespace is ready.
    pub const READY: u8 = 1 << 0;
}

/// An LBA format, 4 bytes (NVM Command Set 1.0 §4.1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: metadata bytes of a block.
    pub ms: U16,
    /// LBADS: a block has `1 << LBADS` bytes of data; at least 9, or 0 for a format that is not
    /// available.
    pub lbads: u8,
    /// RP: relative performance in 1:0; 0 best, 3 degraded.
    pub rp: u8,
}

impl LbaFormat {
    /// The format with blocks of `1 << lbads` bytes and no metadata.
    #[must_use]
    pub const fn new(lbads: u8) -> Self {
        Self { ms: U16::ZERO, lbads, rp: 0 }
    }
}

/// Identify Namespace of the NVM command set, CNS 00h, 4096 bytes (NVM Command Set 1.0 §4.1.5).
///
/// Sizes and boundaries are in logical blocks unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size, blocks.
    pub nsze: U64,
    /// NCAP: the most blocks that may be allocated.
    pub ncap: U64,
    /// NUSE: blocks allocated.
    pub nuse: U64,
    /// NSFEAT: bits of [`nsfeat`].
    pub nsfeat: u8,
    /// NLBAF: LBA formats, 0's based.
    pub nlbaf_z: u8,
    /// FLBAS: the format in use; see [`flbas`].
    pub flbas: u8,
    /// MC: bits of [`mc`].
    pub mc: u8,
    /// DPC: bits of [`dpc`].
    pub dpc: u8,
    /// DPS: see [`dps`].
    pub dps: u8,
    /// NMIC: bits of [`nmic`].
    pub nmic: u8,
    /// RESCAP: bits of [`rescap`].
    pub rescap: u8,
    /// FPI: percent of a format that remains in 6:0; bit 7: the indicator is supported.
    pub fpi: u8,
    /// DLFEAT: see [`dlfeat`].
    pub dlfeat: u8,
    /// NAWUN: atomic write unit normal, 0's based.
    pub nawun_z: U16,
    /// NAWUPF: atomic write unit power fail, 0's based.
    pub nawupf_z: U16,
    /// NACWU: atomic compare and write unit, 0's based.
    pub nacwu_z: U16,
    /// NABSN: atomic boundary size normal, 0's based; 0 for no boundary.
    pub nabsn_z: U16,
    /// NABO: atomic boundary offset.
    pub nabo: U16,
    /// NABSPF: atomic boundary size power fail, 0's based; 0 for no boundary.
    pub nabspf_z: U16,
    /// NOIOB: optimal I/O boundary; 0 for none.
    pub noiob: U16,
    /// NVMCAP: capacity, bytes.
    pub nvmcap: U128,
    /// NPWG: preferred write granularity, 0's based.
    pub npwg_z: U16,
    /// NPWA: preferred write alignment, 0's based.
    pub npwa_z: U16,
    /// NPDG: preferred deallocate granularity, 0's based.
    pub npdg_z: U16,
    /// NPDA: preferred deallocate alignment, 0's based.
    pub npda_z: U16,
    /// NOWS: optimal write size, 0's based.
    pub nows_z: U16,
    /// MSSRL: the most blocks in one source range of a Copy.
    pub mssrl: U16,
    /// MCL: the most blocks of a Copy.
    pub mcl: U32,
    /// MSRC: source ranges of a Copy, 0's based.
    pub msrc_z: u8,
    /// Reserved.
    pub reserved_81: u8,
    /// NULBAF: unique attribute LBA formats.
    pub nulbaf: u8,
    /// Reserved.
    pub reserved_83: [u8; 9],
    /// ANAGRPID: ANA group id.
    pub anagrpid: U32,
    /// Reserved.
    pub reserved_96: [u8; 3],
    /// NSATTR: bits of [`nsattr`].
    pub nsattr: u8,
    /// NVMSETID: NVM Set id.
    pub nvmsetid: U16,
    /// ENDGID: Endurance Group id.
    pub endgid: U16,
    /// NGUID: globally unique id, big endian; 0 for none.
    pub nguid: [u8; 16],
    /// EUI64: IEEE Extended Unique Identifier, big endian; 0 for none.
    pub eui64: [u8; 8],
    /// LBAF: the formats, `nlbaf_z + 1` of them valid.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}

const _: () = {
    assert!(size_of::<LbaFormat>() == 4);
    assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);
    assert!(offset_of!(IdentifyNamespace, nsfeat) == 24);
    assert!(offset_of!(IdentifyNamespace, dlfeat) == 33);
    assert!(offset_of!(IdentifyNamespace, noiob) == 46);
    assert!(offset_of!(IdentifyNamespace, nvmcap) == 48);
    assert!(offset_of!(IdentifyNamespace, mssrl) == 74);
    assert!(offset_of!(IdentifyNamespace, anagrpid) == 92);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, eui64) == 120);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
    assert!(offset_of!(IdentifyNamespace, vendor) == 384);
};

/// I/O Command Set Independent Identify Namespace, CNS 08h, 4096 bytes (NVMe Base 2.1
/// §5.1.13.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespaceIndependent {
    /// NSFEAT: bits of [`independent_nsfeat`].
    pub nsfeat: u8,
    /// NMIC: bits of [`nmic`].
    pub nmic: u8,
    /// RESCAP: bits of [`rescap`].
    pub rescap: u8,
    /// FPI: percent of a format that remains in 6:0; bit 7: the indicator is supported.
    pub fpi: u8,
    /// ANAGRPID: ANA group id.
    pub anagrpid: U32,
    /// NSATTR: bits of [`nsattr`].
    pub nsattr: u8,
    /// Reserved.
    pub reserved_9: u8,
    /// NVMSETID: NVM Set id.
    pub nvmsetid: U16,
    /// ENDGID: Endurance Group id.
    pub endgid: U16,
    /// NSTAT: bits of [`nstat`].
    pub nstat: u8,
    /// Reserved.
    pub reserved_15: [u8; 4081],
}

const _: () = {
    assert!(size_of::<IdentifyNamespaceIndependent>() == IDENTIFY_BYTES);
    assert!(offset_of!(IdentifyNamespaceIndependent, nstat) == 14);
};

/// Identify Namespace specific to the NVM command set, CNS 05h with CSI 00h, 4096 bytes (NVM
/// Command Set 1.0 §4.1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNvmNamespace {
    /// LBSTM: mask of the storage tag.
    pub lbstm: U64,
    /// PIC: Protection Information Capabilities.
    pub pic: u8,
    /// Reserved.
    pub reserved_9: [u8; 3],
    /// ELBAF: extended LBA formats; storage tag size in 6:0, protection information format in 8:7.
    pub elbaf: [U32; 64],
    /// Reserved.
    pub reserved_268: [u8; 3828],
}

const _: () = {
    assert!(size_of::<IdentifyNvmNamespace>() == IDENTIFY_BYTES);
    assert!(offset_of!(IdentifyNvmNamespace, elbaf) == 12);
    assert!(offset_of!(IdentifyNvmNamespace, reserved_268) == 268);
};

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn every_field_is_at_its_byte() {
        // NVM Command Set 1.0 §4.1.5.
        macro_rules! at {
            ($($field:ident $offset:literal),* $(,)?) => {
                $( assert_eq!(offset_of!(IdentifyNamespace, $field), $offset, stringify!($field)); )*
            };
        }
        at!(nsze 0, ncap 8, nuse 16, nsfeat 24, nlbaf_z 25, flbas 26, mc 27, dpc 28, dps 29, nmic 30);
        at!(rescap 31, fpi 32, dlfeat 33, nawun_z 34, nawupf_z 36, nacwu_z 38, nabsn_z 40, nabo 42);
        at!(nabspf_z 44, noiob 46, nvmcap 48, npwg_z 64, npwa_z 66, npdg_z 68, npda_z 70, nows_z 72);
        at!(mssrl 74, mcl 76, msrc_z 80, nulbaf 82, anagrpid 92, nsattr 99, nvmsetid 100, endgid 102);
        at!(nguid 104, eui64 120, lbaf 128, vendor 384);
    }

    #[test]
    fn independent_fields_are_at_their_bytes() {
        // NVMe Base 2.1 §5.1.13.2.8.
        assert_eq!(offset_of!(IdentifyNamespaceIndependent, anagrpid), 4);
        assert_eq!(offset_of!(IdentifyNamespaceIndependent, nsattr), 8);
        assert_eq!(offset_of!(IdentifyNamespaceIndependent, nvmsetid), 10);
        assert_eq!(offset_of!(IdentifyNamespaceIndependent, endgid), 12);
    }

    #[test]
    fn an_lba_format_of_4_kib_is_000c0000h() {
        // NVM Command Set 1.0 §4.1.5: MS 15:0, LBADS 23:16, RP 25:24.
        assert_eq!(LbaFormat::new(12).as_bytes(), 0x000c_0000_u32.to_le_bytes());
        let format = LbaFormat { ms: 8.into(), lbads: 9, rp: 2 };
        assert_eq!(format.as_bytes(), 0x0209_0008_u32.to_le_bytes());
    }

    #[test]
    fn flbas_splits_the_index_around_the_metadata_bit() {
        // NVM Command Set 1.0 §4.1.5: index 3:0 in 3:0, metadata in 4, index 5:4 in 6:5.
        assert_eq!(flbas::with_index(0x0f), 0x0f);
        assert_eq!(flbas::with_index(0x10), 0x20);
        assert_eq!(flbas::with_index(0x3f), 0x6f);
        for index in 0..64 {
            assert_eq!(flbas::index(flbas::with_index(index) | flbas::METADATA_EXTENDED), index);
        }
    }

    #[test]
    fn a_namespace_reads_back_from_its_bytes() {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.nsze = 0x1234.into();
        identify.lbaf[0] = LbaFormat::new(9);
        identify.dlfeat = dlfeat::READS_ZEROS | dlfeat::WRITE_ZEROES_DEALLOCATE;
        let bytes = identify.as_bytes();
        assert_eq!(bytes[..8], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[128..132], [0, 0, 9, 0]);
        assert_eq!(bytes[33], 0b0000_1001);
        assert_eq!(IdentifyNamespace::read_from_bytes(bytes).unwrap(), identify);
    }
}
