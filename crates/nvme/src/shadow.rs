//! Where a queue's slot is in the Shadow Doorbell buffer and in the EventIdx buffer.
//!
//! Both buffers are one memory page each, laid out as the doorbell registers are: the slot of
//! SQ *y* at `(2y) * (4 << CAP.DSTRD)`, that of CQ *y* at `(2y + 1) * (4 << CAP.DSTRD)`; a slot is a
//! 32-bit little-endian word. NVMe Base 2.1 §5.2.5 and Annex B.5.

/// Bytes of one slot's value; the rest of the stride is unused.
pub const SLOT_BYTES: usize = 4;

/// Byte offset of the slot of submission queue `qid`; `dstrd` is CAP.DSTRD, of which 4 bits count.
#[must_use]
pub const fn sq_slot(qid: u16, dstrd: u8) -> usize {
    2 * qid as usize * stride(dstrd)
}

/// Byte offset of the slot of completion queue `qid`; `dstrd` is CAP.DSTRD, of which 4 bits count.
#[must_use]
pub const fn cq_slot(qid: u16, dstrd: u8) -> usize {
    (2 * qid as usize + 1) * stride(dstrd)
}

/// The greatest queue id whose SQ and CQ slots both lie inside a buffer of `page_bytes`. 0 means
/// that no I/O queue can have slots (and says nothing about queue 0).
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "clamped to u16::MAX first")]
pub const fn max_qid(page_bytes: usize, dstrd: u8) -> u16 {
    let Some(last_start) = page_bytes.checked_sub(SLOT_BYTES) else {
        return 0;
    };
    let last_index = last_start / stride(dstrd);
    // CQ y has index 2y + 1, so y is the greatest with 2y + 1 <= last_index.
    let qid = last_index.saturating_sub(1) / 2;
    if qid > u16::MAX as usize { u16::MAX } else { qid as u16 }
}

const fn stride(dstrd: u8) -> usize {
    4 << (dstrd & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Doorbell;

    #[test]
    fn slots_are_laid_out_as_the_registers() {
        // NVMe Base 2.1 §5.2.5: the same offsets as the doorbells have from 1000h.
        for dstrd in 0..=15 {
            for qid in [0, 1, 2, 511, 0xffff] {
                assert_eq!(sq_slot(qid, dstrd) as u64 + 0x1000, Doorbell::SqTail(qid).offset(dstrd));
                assert_eq!(cq_slot(qid, dstrd) as u64 + 0x1000, Doorbell::CqHead(qid).offset(dstrd));
            }
        }
        assert_eq!((sq_slot(0, 0), cq_slot(0, 0), sq_slot(1, 0), cq_slot(1, 0)), (0, 4, 8, 12));
        assert_eq!((sq_slot(3, 4), cq_slot(3, 4)), (6 * 64, 7 * 64));
    }

    #[test]
    fn a_4_kib_page_has_slots_for_511_io_queues() {
        assert_eq!(max_qid(4096, 0), 511);
        assert_eq!(max_qid(4096, 4), 31);
        assert_eq!(max_qid(65536, 0), 8191);
    }

    #[test]
    fn both_slots_of_max_qid_fit_and_those_of_the_next_do_not() {
        for page_bytes in [4096, 8192, 16384, 65536, 4095, 20] {
            for dstrd in 0..=15 {
                let qid = max_qid(page_bytes, dstrd);
                assert!(qid == 0 || cq_slot(qid, dstrd) + SLOT_BYTES <= page_bytes);
                assert!(cq_slot(qid + 1, dstrd) + SLOT_BYTES > page_bytes);
            }
        }
    }

    #[test]
    fn a_buffer_too_small_or_too_large_is_no_trouble() {
        assert_eq!(max_qid(0, 0), 0);
        assert_eq!(max_qid(3, 0), 0);
        assert_eq!(max_qid(8, 0), 0);
        assert_eq!(max_qid(16, 0), 1);
        assert_eq!(max_qid(usize::MAX, 0), 0xffff);
    }
}
