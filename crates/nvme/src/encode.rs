//! The host's direction: typed commands as submission queue entries.
//!
//! Each `encode` is the inverse of the `From<&SubmissionQueueEntry>` of its type. It fills in what the type knows; the command
//! identifier and the pointers to data are the queue's business and stay zero. A type that several opcodes share takes the
//! opcode as an argument. Values wider than their field are cut to it.

use crate::admin::{
    AbortCmd, CreateCq, CreateSq, DeleteQueue, DoorbellBufferConfig, GetFeatures, GetLogPage, IdentifyCmd, SetFeatures,
};
use crate::bits::{get32, put32};
use crate::command::{AdminOpcode, NvmOpcode, SubmissionQueueEntry, halves};
use crate::nvm::{DatasetManagement, ReadWrite, WriteZeroes};

/// An entry of zeros with this opcode.
fn admin(opcode: AdminOpcode) -> SubmissionQueueEntry {
    SubmissionQueueEntry { opcode: opcode.0, ..SubmissionQueueEntry::default() }
}

/// Two half-dwords as one dword.
fn join(low: u16, high: u16) -> u32 {
    put32(low.into(), 16, 16, high.into())
}

/// Lower and upper half of a quadword.
fn dwords(value: u64) -> (u32, u32) {
    (get32(value, 0, 32), get32(value, 32, 32))
}

fn bit(shift: u32, value: bool) -> u32 {
    u32::from(value) << shift
}

impl CreateCq {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        SubmissionQueueEntry {
            prp1: self.prp1.into(),
            cdw10: join(self.qid, self.size_z).into(),
            cdw11: (bit(0, self.pc) | bit(1, self.ien) | join(0, self.iv)).into(),
            ..admin(AdminOpcode::CREATE_CQ)
        }
    }
}

impl CreateSq {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        let cdw11 = bit(0, self.pc) | join(0, self.cqid);
        SubmissionQueueEntry {
            prp1: self.prp1.into(),
            cdw10: join(self.qid, self.size_z).into(),
            cdw11: put32(cdw11, 1, 2, self.qprio.0.into()).into(),
            cdw12: u32::from(self.nvmsetid).into(),
            ..admin(AdminOpcode::CREATE_SQ)
        }
    }
}

impl DeleteQueue {
    /// The entry, for [`AdminOpcode::DELETE_SQ`] or [`AdminOpcode::DELETE_CQ`].
    #[must_use]
    pub fn encode(&self, opcode: AdminOpcode) -> SubmissionQueueEntry {
        SubmissionQueueEntry { cdw10: u32::from(self.qid).into(), ..admin(opcode) }
    }
}

impl DoorbellBufferConfig {
    /// The entry, for [`AdminOpcode::DOORBELL_BUFFER_CONFIG`] or its vendor form.
    #[must_use]
    pub fn encode(&self, opcode: AdminOpcode) -> SubmissionQueueEntry {
        SubmissionQueueEntry { prp1: self.shadow.into(), prp2: self.event_idx.into(), ..admin(opcode) }
    }
}

impl IdentifyCmd {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        SubmissionQueueEntry {
            nsid: self.nsid.into(),
            cdw10: join(self.cns.0.into(), self.cntid).into(),
            cdw11: put32(self.nvmsetid.into(), 24, 8, self.csi.0.into()).into(),
            cdw14: put32(0, 0, 7, self.uuid_index.into()).into(),
            ..admin(AdminOpcode::IDENTIFY)
        }
    }
}

impl GetLogPage {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        let (numdl, numdu) = halves(self.numd_z);
        let (lpol, lpou) = dwords(self.offset);
        let cdw10 = put32(join(self.lid.0.into(), numdl), 8, 7, self.lsp.into()) | bit(15, self.rae);
        let cdw14 = put32(bit(23, self.ot), 24, 8, self.csi.0.into());
        SubmissionQueueEntry {
            nsid: self.nsid.into(),
            cdw10: cdw10.into(),
            cdw11: join(numdu, self.lsi).into(),
            cdw12: lpol.into(),
            cdw13: lpou.into(),
            cdw14: put32(cdw14, 0, 7, self.uuid_index.into()).into(),
            ..admin(AdminOpcode::GET_LOG_PAGE)
        }
    }
}

impl GetFeatures {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        SubmissionQueueEntry {
            nsid: self.nsid.into(),
            cdw10: put32(self.fid.0.into(), 8, 3, self.select.0.into()).into(),
            cdw11: self.cdw11.into(),
            cdw14: put32(0, 0, 7, self.uuid_index.into()).into(),
            ..admin(AdminOpcode::GET_FEATURES)
        }
    }
}

impl SetFeatures {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        SubmissionQueueEntry {
            nsid: self.nsid.into(),
            cdw10: (u32::from(self.fid.0) | bit(31, self.save)).into(),
            cdw11: self.cdw11.into(),
            cdw12: self.cdw12.into(),
            cdw13: self.cdw13.into(),
            cdw14: put32(0, 0, 7, self.uuid_index.into()).into(),
            cdw15: self.cdw15.into(),
            ..admin(AdminOpcode::SET_FEATURES)
        }
    }
}

impl AbortCmd {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        SubmissionQueueEntry { cdw10: join(self.sqid, self.cid).into(), ..admin(AdminOpcode::ABORT) }
    }
}

/// An entry of zeros with this opcode and first block.
fn nvm(opcode: NvmOpcode, slba: u64) -> SubmissionQueueEntry {
    let (low, high) = dwords(slba);
    SubmissionQueueEntry { opcode: opcode.0, cdw10: low.into(), cdw11: high.into(), ..SubmissionQueueEntry::default() }
}

impl ReadWrite {
    /// The entry, for [`NvmOpcode::READ`], [`NvmOpcode::WRITE`], [`NvmOpcode::COMPARE`] or [`NvmOpcode::VERIFY`]; the
    /// namespace is left to fill in.
    #[must_use]
    pub fn encode(&self, opcode: NvmOpcode) -> SubmissionQueueEntry {
        let cdw12 = u32::from(self.nlb_z) | bit(24, self.stc) | bit(30, self.fua) | bit(31, self.lr);
        let cdw12 = put32(put32(cdw12, 20, 4, self.dtype.into()), 26, 4, self.prinfo.0.into());
        SubmissionQueueEntry {
            cdw12: cdw12.into(),
            cdw13: join(self.dsm.into(), self.dspec).into(),
            ..nvm(opcode, self.slba)
        }
    }
}

impl WriteZeroes {
    /// The entry; the namespace is left to fill in.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        let cdw12 =
            u32::from(self.nlb_z) | bit(24, self.stc) | bit(25, self.deac) | bit(30, self.fua) | bit(31, self.lr);
        SubmissionQueueEntry {
            cdw12: put32(cdw12, 26, 4, self.prinfo.0.into()).into(),
            ..nvm(NvmOpcode::WRITE_ZEROES, self.slba)
        }
    }
}

impl DatasetManagement {
    /// The entry; the namespace is left to fill in.
    #[must_use]
    pub fn encode(&self) -> SubmissionQueueEntry {
        SubmissionQueueEntry {
            opcode: NvmOpcode::DATASET_MANAGEMENT.0,
            cdw10: u32::from(self.nr_z).into(),
            cdw11: (bit(0, self.idr) | bit(1, self.idw) | bit(2, self.ad)).into(),
            ..SubmissionQueueEntry::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries with every bit set, none, and patterns in which neighbouring fields differ.
    fn entries() -> impl Iterator<Item = SubmissionQueueEntry> {
        let patterns = [0, u64::MAX, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0xaaaa_5555_aaaa_5555];
        patterns.into_iter().map(|word| SubmissionQueueEntry::from_words([word; 8]))
    }

    /// What is decoded, encoded and decoded again is the same, and the opcode is the one wanted.
    fn round<T: PartialEq + std::fmt::Debug + for<'a> From<&'a SubmissionQueueEntry>>(
        opcode: u8,
        encode: impl Fn(&T) -> SubmissionQueueEntry,
    ) {
        for entry in entries() {
            let command = T::from(&entry);
            let encoded = encode(&command);
            assert_eq!(T::from(&encoded), command, "{entry:?}");
            assert_eq!((encoded.opcode, encoded.flags, encoded.cid.get()), (opcode, 0, 0));
        }
    }

    #[test]
    fn encoding_is_the_inverse_of_decoding() {
        round(0x05, CreateCq::encode);
        round(0x01, CreateSq::encode);
        round(0x00, |c: &DeleteQueue| c.encode(AdminOpcode::DELETE_SQ));
        round(0x04, |c: &DeleteQueue| c.encode(AdminOpcode::DELETE_CQ));
        round(0x7c, |c: &DoorbellBufferConfig| c.encode(AdminOpcode::DOORBELL_BUFFER_CONFIG));
        round(0xc0, |c: &DoorbellBufferConfig| c.encode(AdminOpcode::GOOGLE_DOORBELL_BUFFER_CONFIG));
        round(0x06, IdentifyCmd::encode);
        round(0x02, GetLogPage::encode);
        round(0x0a, GetFeatures::encode);
        round(0x09, SetFeatures::encode);
        round(0x08, AbortCmd::encode);
        round(0x02, |c: &ReadWrite| c.encode(NvmOpcode::READ));
        round(0x01, |c: &ReadWrite| c.encode(NvmOpcode::WRITE));
        round(0x08, WriteZeroes::encode);
        round(0x09, DatasetManagement::encode);
    }

    #[test]
    fn a_created_queue_is_in_its_dwords() {
        // NVMe Base 2.1 §5.2.1 and §5.2.2, as Linux writes them.
        let cq = CreateCq { qid: 1, size_z: 1023, pc: true, ien: true, iv: 1, prp1: 0x1000 }.encode();
        assert_eq!((cq.cdw10.get(), cq.cdw11.get(), cq.prp1.get()), (0x03ff_0001, 0x0001_0003, 0x1000));
        let sq = CreateSq {
            qid: 2,
            size_z: 3,
            pc: true,
            qprio: crate::admin::QueuePriority::MEDIUM,
            cqid: 7,
            nvmsetid: 0,
            prp1: 0,
        };
        assert_eq!((sq.encode().cdw10.get(), sq.encode().cdw11.get()), (0x0003_0002, 0x0007_0005));
    }

    #[test]
    fn a_write_is_in_its_dwords() {
        // NVM Command Set 1.0 §3.2.6.
        let write =
            ReadWrite { slba: 0x1_0000_0002, nlb_z: 7, fua: true, ..ReadWrite::from(&nvm(NvmOpcode::WRITE, 0)) };
        let sqe = write.encode(NvmOpcode::WRITE);
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw12.get()), (2, 1, 0x4000_0007));
    }

    #[test]
    fn a_wide_value_is_cut_to_its_field() {
        let lsp = GetLogPage { lsp: 0xff, ..GetLogPage::from(&SubmissionQueueEntry::default()) };
        assert_eq!(lsp.encode().cdw10.get(), 0x7f00);
    }
}
