//! The doorbell registers: which is where.

use super::offset;
use crate::bits::{get, get16};

/// Which doorbell register a BAR offset names, with the queue's id (NVMe over PCIe 1.0 §3.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doorbell {
    /// SQyTDBL, the tail of submission queue y.
    SqTail(u16),
    /// CQyHDBL, the head of completion queue y.
    CqHead(u16),
}

impl Doorbell {
    /// The byte offset in BAR 0 of this doorbell; `dstrd` is CAP.DSTRD, of which 4 bits count.
    #[must_use]
    pub const fn offset(self, dstrd: u8) -> u64 {
        let index = match self {
            Self::SqTail(qid) => 2 * qid as u64,
            Self::CqHead(qid) => 2 * qid as u64 + 1,
        };
        offset::DOORBELLS + index * (4 << (dstrd & 0xf))
    }
}

/// The doorbell at byte `offset_in_bar`, if one starts there. `dstrd` is CAP.DSTRD, of which 4 bits
/// count. Offsets before the doorbells, between two of them, or past that of queue 65535 name none.
#[must_use]
pub const fn doorbell_at(offset_in_bar: u64, dstrd: u8) -> Option<Doorbell> {
    let stride = 4 << (dstrd & 0xf);
    let Some(relative) = offset_in_bar.checked_sub(offset::DOORBELLS) else {
        return None;
    };
    if !relative.is_multiple_of(stride) || relative / stride > 2 * 0xffff + 1 {
        return None;
    }
    let index = relative / stride;
    let qid = get(index, 1, 16);
    Some(if index.is_multiple_of(2) {
        Doorbell::SqTail(get16(qid, 0, 16))
    } else {
        Doorbell::CqHead(get16(qid, 0, 16))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_packed_at_stride_0() {
        // NVMe over PCIe 1.0 §3.1.2: 1000h + (2y * (4 << DSTRD)), + ((2y + 1) * (4 << DSTRD)).
        assert_eq!(doorbell_at(0x1000, 0), Some(Doorbell::SqTail(0)));
        assert_eq!(doorbell_at(0x1004, 0), Some(Doorbell::CqHead(0)));
        assert_eq!(doorbell_at(0x1008, 0), Some(Doorbell::SqTail(1)));
        assert_eq!(doorbell_at(0x100c, 0), Some(Doorbell::CqHead(1)));
    }

    #[test]
    fn a_wider_stride_leaves_gaps_that_are_no_doorbell() {
        assert_eq!(doorbell_at(0x1010, 2), Some(Doorbell::CqHead(0)));
        assert_eq!(doorbell_at(0x1020, 2), Some(Doorbell::SqTail(1)));
        assert_eq!(doorbell_at(0x1004, 2), None);
        assert_eq!(doorbell_at(0x1002, 0), None);
    }

    #[test]
    fn offsets_outside_of_the_doorbells_name_none() {
        assert_eq!(doorbell_at(0, 0), None);
        assert_eq!(doorbell_at(0xffc, 0), None);
        assert_eq!(doorbell_at(0x1000 + 4 * 0x1_ffff, 0), Some(Doorbell::CqHead(0xffff)));
        assert_eq!(doorbell_at(0x1000 + 4 * 0x2_0000, 0), None);
        assert_eq!(doorbell_at(u64::MAX, 15), None);
        assert_eq!(doorbell_at(u64::MAX - 3, 0), None);
    }

    #[test]
    fn every_doorbell_is_found_at_its_own_offset() {
        for dstrd in 0..=15 {
            for qid in [0, 1, 2, 511, 512, 0x7fff, 0x8000, 0xffff] {
                for doorbell in [Doorbell::SqTail(qid), Doorbell::CqHead(qid)] {
                    assert_eq!(doorbell_at(doorbell.offset(dstrd), dstrd), Some(doorbell));
                }
            }
        }
    }
}
