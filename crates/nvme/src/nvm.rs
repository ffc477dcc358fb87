//! Commands of the NVM command set as typed values, each decoded from a submission queue entry.
//!
//! NVM Command Set 1.0 §3.2. Decoding does not look at the opcode and does not judge: it separates
//! fields.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{flag, get8, get16};
use crate::command::{SubmissionQueueEntry, halves};

pub use crate::identify::LbaFormat;

/// Protection Information Field, PRINFO: 4 bits (NVM Command Set 1.0 §3.2.4, §3.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PrInfo(pub u8);

impl PrInfo {
    /// Bits 2:0, PRCHK: check the reference tag.
    pub const CHECK_REFERENCE_TAG: u8 = 1 << 0;
    /// PRCHK: check the application tag.
    pub const CHECK_APPLICATION_TAG: u8 = 1 << 1;
    /// PRCHK: check the guard.
    pub const CHECK_GUARD: u8 = 1 << 2;
    /// Bit 3, PRACT: the controller inserts or strips the protection information.
    pub const ACTION: u8 = 1 << 3;
}

/// Read, Write, Compare or Verify: the dwords that they share (NVM Command Set 1.0 §3.2.4, §3.2.6,
/// §3.2.1, §3.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadWrite {
    /// SLBA: first block.
    pub slba: u64,
    /// NLB: blocks, 0's based.
    pub nlb_z: u16,
    /// STC: check the storage tag.
    pub stc: bool,
    /// PRINFO.
    pub prinfo: PrInfo,
    /// FUA: write to, or read from, non-volatile media before completion.
    pub fua: bool,
    /// LR: limited retry.
    pub lr: bool,
    /// DTYPE: directive type; Write only.
    pub dtype: u8,
    /// DSPEC: directive specific; Write only.
    pub dspec: u16,
    /// DSM: hints on the blocks; access frequency 3:0, access latency 5:4, sequential 6,
    /// incompressible 7. Read and Write only.
    pub dsm: u8,
}

impl ReadWrite {
    /// Blocks: `nlb_z + 1`, 1 to 65536.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.nlb_z as u32 + 1
    }
}

impl From<&SubmissionQueueEntry> for ReadWrite {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw12 = sqe.cdw12.get().into();
        let cdw13 = sqe.cdw13.get().into();
        Self {
            slba: slba(sqe),
            nlb_z: get16(cdw12, 0, 16),
            stc: flag(cdw12, 24),
            prinfo: PrInfo(get8(cdw12, 26, 4)),
            fua: flag(cdw12, 30),
            lr: flag(cdw12, 31),
            dtype: get8(cdw12, 20, 4),
            dspec: get16(cdw13, 16, 16),
            dsm: get8(cdw13, 0, 8),
        }
    }
}

/// Write Zeroes (NVM Command Set 1.0 §3.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteZeroes {
    /// SLBA: first block.
    pub slba: u64,
    /// NLB: blocks, 0's based.
    pub nlb_z: u16,
    /// STC: check the storage tag.
    pub stc: bool,
    /// DEAC: the controller should deallocate the blocks.
    pub deac: bool,
    /// PRINFO.
    pub prinfo: PrInfo,
    /// FUA: write to non-volatile media before completion.
    pub fua: bool,
    /// LR: limited retry.
    pub lr: bool,
}

impl WriteZeroes {
    /// Blocks: `nlb_z + 1`, 1 to 65536.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.nlb_z as u32 + 1
    }
}

impl From<&SubmissionQueueEntry> for WriteZeroes {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw12 = sqe.cdw12.get().into();
        Self {
            slba: slba(sqe),
            nlb_z: get16(cdw12, 0, 16),
            stc: flag(cdw12, 24),
            deac: flag(cdw12, 25),
            prinfo: PrInfo(get8(cdw12, 26, 4)),
            fua: flag(cdw12, 30),
            lr: flag(cdw12, 31),
        }
    }
}

/// Write Uncorrectable (NVM Command Set 1.0 §3.2.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteUncorrectable {
    /// SLBA: first block.
    pub slba: u64,
    /// NLB: blocks, 0's based.
    pub nlb_z: u16,
}

impl From<&SubmissionQueueEntry> for WriteUncorrectable {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        Self { slba: slba(sqe), nlb_z: halves(sqe.cdw12.get()).0 }
    }
}

/// Dataset Management (NVM Command Set 1.0 §3.2.3). Its data is `nr_z + 1` [`DsmRange`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetManagement {
    /// NR: ranges, 0's based.
    pub nr_z: u8,
    /// IDR: the ranges are about to be read as one.
    pub idr: bool,
    /// IDW: the ranges are about to be written as one.
    pub idw: bool,
    /// AD: deallocate the ranges.
    pub ad: bool,
}

impl DatasetManagement {
    /// The most ranges that one command can have.
    pub const MAX_RANGES: usize = 256;

    /// Ranges: `nr_z + 1`, 1 to 256.
    #[must_use]
    pub const fn ranges(&self) -> usize {
        self.nr_z as usize + 1
    }
}

impl From<&SubmissionQueueEntry> for DatasetManagement {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw11 = sqe.cdw11.get().into();
        Self { nr_z: get8(sqe.cdw10.get().into(), 0, 8), idr: flag(cdw11, 0), idw: flag(cdw11, 1), ad: flag(cdw11, 2) }
    }
}

/// A range of Dataset Management, 16 bytes (NVM Command Set 1.0 §3.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Context Attributes: hints.
    pub cattr: U32,
    /// Length in logical blocks; *not* 0's based, and 0 is a legal empty range.
    pub length: U32,
    /// Starting LBA.
    pub slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == 16);

/// CDW11 in the upper half, CDW10 in the lower.
fn slba(sqe: &SubmissionQueueEntry) -> u64 {
    (u64::from(sqe.cdw11.get()) << 32) | u64::from(sqe.cdw10.get())
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn sqe(cdw10: u32, cdw11: u32, cdw12: u32, cdw13: u32) -> SubmissionQueueEntry {
        SubmissionQueueEntry {
            cdw10: cdw10.into(),
            cdw11: cdw11.into(),
            cdw12: cdw12.into(),
            cdw13: cdw13.into(),
            ..Default::default()
        }
    }

    #[test]
    fn read_write_joins_the_lba_and_counts_from_one() {
        // NVM Command Set 1.0 §3.2.6.
        let write = ReadWrite::from(&sqe(0x89ab_cdef, 0x0123_4567, 0x4000_0007, 0));
        assert_eq!((write.slba, write.nlb_z, write.blocks()), (0x0123_4567_89ab_cdef, 7, 8));
        assert!(write.fua && !write.lr);
        assert_eq!(ReadWrite::from(&sqe(0, 0, 0xffff, 0)).blocks(), 65536);
    }

    #[test]
    fn read_write_flags_are_at_their_bits() {
        let with = |cdw12| ReadWrite::from(&sqe(0, 0, cdw12, 0));
        assert!(with(1 << 31).lr);
        assert!(with(1 << 30).fua);
        assert_eq!(with(1 << 29).prinfo, PrInfo(PrInfo::ACTION));
        assert_eq!(with(1 << 28).prinfo, PrInfo(PrInfo::CHECK_GUARD));
        assert_eq!(with(1 << 26).prinfo, PrInfo(PrInfo::CHECK_REFERENCE_TAG));
        assert!(with(1 << 24).stc);
        assert_eq!(with(0x00f0_0000).dtype, 0xf);
        let hints = ReadWrite::from(&sqe(0, 0, 0, 0x1234_ff56));
        assert_eq!((hints.dspec, hints.dsm), (0x1234, 0x56));
    }

    #[test]
    fn write_zeroes_deallocates_by_bit_25() {
        // NVM Command Set 1.0 §3.2.8; Linux sends it as NVME_WZ_DEAC, 1 << 9 of the upper half.
        let zeroes = WriteZeroes::from(&sqe(0x10, 0x1, 0x0200_00ff, 0));
        assert_eq!(
            zeroes,
            WriteZeroes {
                slba: 0x1_0000_0010,
                nlb_z: 255,
                stc: false,
                deac: true,
                prinfo: PrInfo(0),
                fua: false,
                lr: false,
            }
        );
        assert_eq!(zeroes.blocks(), 256);
    }

    #[test]
    fn write_uncorrectable_has_lba_and_length_only() {
        let uncorrectable = WriteUncorrectable::from(&sqe(1, 2, 0xffff_0003, 0));
        assert_eq!(uncorrectable, WriteUncorrectable { slba: 0x2_0000_0001, nlb_z: 3 });
    }

    #[test]
    fn dataset_management_has_up_to_256_ranges() {
        // NVM Command Set 1.0 §3.2.3: AD is bit 2, IDW bit 1, IDR bit 0.
        let discard = DatasetManagement::from(&sqe(0xffff_ffff, 0x4, 0, 0));
        assert_eq!(discard, DatasetManagement { nr_z: 255, idr: false, idw: false, ad: true });
        assert_eq!(discard.ranges(), DatasetManagement::MAX_RANGES);
        let hint = DatasetManagement::from(&sqe(0, 0x1, 0, 0));
        assert_eq!((hint.idr, hint.idw, hint.ad, hint.ranges()), (true, false, false, 1));
        assert!(DatasetManagement::from(&sqe(0, 0x2, 0, 0)).idw);
    }

    #[test]
    fn a_range_is_attributes_length_and_lba() {
        let range = DsmRange { cattr: 1.into(), length: 8.into(), slba: 0x0807_0605_0403_0201.into() };
        assert_eq!(range.as_bytes(), [1, 0, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
