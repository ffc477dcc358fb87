//! Admin commands as typed values, each decoded from a submission queue entry.
//!
//! Decoding does not look at the opcode and does not judge: it separates fields.

use crate::bits::{flag, get8, get16};
use crate::command::{SubmissionQueueEntry, halves};
use crate::features::{FeatureId, Select};
use crate::identify::{Cns, Csi};
use crate::logs::LogId;
use crate::open_enum::open_enum;

/// Create I/O Completion Queue (NVMe Base 2.1 §5.2.1). PRP1 has the address of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateCq {
    /// QID.
    pub qid: u16,
    /// QSIZE: entries, 0's based.
    pub size_z: u16,
    /// PC: PRP1 is the queue itself, physically contiguous, not a list.
    pub pc: bool,
    /// IEN: interrupts are enabled.
    pub ien: bool,
    /// IV: interrupt vector.
    pub iv: u16,
    /// PRP1: address of the queue, or of its PRP list.
    pub prp1: u64,
}

impl From<&SubmissionQueueEntry> for CreateCq {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let (qid, size_z) = halves(sqe.cdw10.get());
        let cdw11 = sqe.cdw11.get().into();
        Self { qid, size_z, pc: flag(cdw11, 0), ien: flag(cdw11, 1), iv: get16(cdw11, 16, 16), prp1: sqe.prp1.get() }
    }
}

open_enum! {
    /// QPRIO: the priority class of a submission queue under weighted round robin (NVMe Base 2.1
    /// §5.2.2).
    QueuePriority {
        /// Urgent.
        URGENT = 0, "urgent";
        /// High.
        HIGH = 1, "high";
        /// Medium.
        MEDIUM = 2, "medium";
        /// Low.
        LOW = 3, "low";
    }
}

/// Create I/O Submission Queue (NVMe Base 2.1 §5.2.2). PRP1 has the address of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateSq {
    /// QID.
    pub qid: u16,
    /// QSIZE: entries, 0's based.
    pub size_z: u16,
    /// PC: PRP1 is the queue itself, physically contiguous, not a list.
    pub pc: bool,
    /// QPRIO: priority class.
    pub qprio: QueuePriority,
    /// CQID: the completion queue for its completions.
    pub cqid: u16,
    /// NVMSETID: the NVM Set to associate with; 0 for none.
    pub nvmsetid: u16,
    /// PRP1: address of the queue, or of its PRP list.
    pub prp1: u64,
}

impl From<&SubmissionQueueEntry> for CreateSq {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let (qid, size_z) = halves(sqe.cdw10.get());
        let cdw11 = sqe.cdw11.get().into();
        Self {
            qid,
            size_z,
            pc: flag(cdw11, 0),
            qprio: QueuePriority(get8(cdw11, 1, 2)),
            cqid: get16(cdw11, 16, 16),
            nvmsetid: halves(sqe.cdw12.get()).0,
            prp1: sqe.prp1.get(),
        }
    }
}

/// Delete I/O Submission Queue or Delete I/O Completion Queue (NVMe Base 2.1 §5.2.4, §5.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteQueue {
    /// QID.
    pub qid: u16,
}

impl From<&SubmissionQueueEntry> for DeleteQueue {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        Self { qid: halves(sqe.cdw10.get()).0 }
    }
}

/// Doorbell Buffer Config, in its standard and its vendor form (NVMe Base 2.1 §5.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorbellBufferConfig {
    /// PRP1: address of the Shadow Doorbell buffer, which the host writes; one memory page.
    pub shadow: u64,
    /// PRP2: address of the EventIdx buffer, which the controller writes; one memory page.
    pub event_idx: u64,
}

impl From<&SubmissionQueueEntry> for DoorbellBufferConfig {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        Self { shadow: sqe.prp1.get(), event_idx: sqe.prp2.get() }
    }
}

/// Identify (NVMe Base 2.1 §5.1.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentifyCmd {
    /// CNS: what is asked for.
    pub cns: Cns,
    /// CNTID: controller id, for the CNS values that want one.
    pub cntid: u16,
    /// CSI: the I/O command set, for the CNS values that want one.
    pub csi: Csi,
    /// CNSSID: NVM Set id, domain id, Endurance Group id or format index, by CNS.
    pub nvmsetid: u16,
    /// UUID Index; 0 for none.
    pub uuid_index: u8,
    /// NSID.
    pub nsid: u32,
}

impl From<&SubmissionQueueEntry> for IdentifyCmd {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get().into();
        let cdw11 = sqe.cdw11.get().into();
        Self {
            cns: Cns(get8(cdw10, 0, 8)),
            cntid: get16(cdw10, 16, 16),
            csi: Csi(get8(cdw11, 24, 8)),
            nvmsetid: get16(cdw11, 0, 16),
            uuid_index: uuid_index(sqe),
            nsid: sqe.nsid.get(),
        }
    }
}

/// Get Log Page (NVMe Base 2.1 §5.1.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLogPage {
    /// LID: the log.
    pub lid: LogId,
    /// LSP: log specific, 7 bits.
    pub lsp: u8,
    /// RAE: Retain Asynchronous Event; reading does not clear the event.
    pub rae: bool,
    /// NUMDU and NUMDL: dwords to return, 0's based.
    pub numd_z: u32,
    /// LSI: log specific identifier.
    pub lsi: u16,
    /// LPOU and LPOL: where in the log to start, in bytes, or as an index if `ot`.
    pub offset: u64,
    /// OT: the offset is an index into a list of structures, not bytes.
    pub ot: bool,
    /// CSI: the I/O command set, for the logs that want one.
    pub csi: Csi,
    /// UUID Index; 0 for none.
    pub uuid_index: u8,
    /// NSID.
    pub nsid: u32,
}

impl GetLogPage {
    /// Bytes to return: `(numd_z + 1) * 4`, at most 2^34.
    #[must_use]
    pub const fn length(&self) -> u64 {
        (self.numd_z as u64 + 1) * 4
    }
}

impl From<&SubmissionQueueEntry> for GetLogPage {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get().into();
        let cdw14 = sqe.cdw14.get().into();
        let (numdu, lsi) = halves(sqe.cdw11.get());
        Self {
            lid: LogId(get8(cdw10, 0, 8)),
            lsp: get8(cdw10, 8, 7),
            rae: flag(cdw10, 15),
            numd_z: (u32::from(numdu) << 16) | u32::from(get16(cdw10, 16, 16)),
            lsi,
            offset: (u64::from(sqe.cdw13.get()) << 32) | u64::from(sqe.cdw12.get()),
            ot: flag(cdw14, 23),
            csi: Csi(get8(cdw14, 24, 8)),
            uuid_index: uuid_index(sqe),
            nsid: sqe.nsid.get(),
        }
    }
}

/// Get Features (NVMe Base 2.1 §5.1.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetFeatures {
    /// FID: the feature.
    pub fid: FeatureId,
    /// SEL: which of its values.
    pub select: Select,
    /// CDW11: feature specific.
    pub cdw11: u32,
    /// UUID Index; 0 for none.
    pub uuid_index: u8,
    /// NSID.
    pub nsid: u32,
}

impl From<&SubmissionQueueEntry> for GetFeatures {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get().into();
        Self {
            fid: FeatureId(get8(cdw10, 0, 8)),
            select: Select(get8(cdw10, 8, 3)),
            cdw11: sqe.cdw11.get(),
            uuid_index: uuid_index(sqe),
            nsid: sqe.nsid.get(),
        }
    }
}

/// Set Features (NVMe Base 2.1 §5.1.25).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetFeatures {
    /// FID: the feature.
    pub fid: FeatureId,
    /// SV: save the value over power cycles and resets.
    pub save: bool,
    /// CDW11: the value, or a part of it.
    pub cdw11: u32,
    /// CDW12: feature specific.
    pub cdw12: u32,
    /// CDW13: feature specific.
    pub cdw13: u32,
    /// CDW15: feature specific.
    pub cdw15: u32,
    /// UUID Index; 0 for none.
    pub uuid_index: u8,
    /// NSID.
    pub nsid: u32,
}

impl From<&SubmissionQueueEntry> for SetFeatures {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get().into();
        Self {
            fid: FeatureId(get8(cdw10, 0, 8)),
            save: flag(cdw10, 31),
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            cdw13: sqe.cdw13.get(),
            cdw15: sqe.cdw15.get(),
            uuid_index: uuid_index(sqe),
            nsid: sqe.nsid.get(),
        }
    }
}

/// Abort (NVMe Base 2.1 §5.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortCmd {
    /// SQID: the submission queue of the command to abort.
    pub sqid: u16,
    /// CID: the identifier of the command to abort.
    pub cid: u16,
}

impl AbortCmd {
    /// DW0 bit 0 of the completion: set if the command was *not* aborted.
    pub const NOT_ABORTED: u32 = 1 << 0;
}

impl From<&SubmissionQueueEntry> for AbortCmd {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let (sqid, cid) = halves(sqe.cdw10.get());
        Self { sqid, cid }
    }
}

/// Format NVM (NVMe Base 2.1 §5.1.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatNvm {
    /// LBAFU and LBAFL: the LBA format, 0 to 63.
    pub lbaf: u8,
    /// MSET: metadata is at the end of each block's data.
    pub metadata_extended: bool,
    /// PI: protection information type, 0 for none.
    pub pi: u8,
    /// PIL: protection information is in the first bytes of metadata.
    pub pi_first: bool,
    /// SES: secure erase; 0 none, 1 user data, 2 cryptographic.
    pub ses: u8,
    /// NSID; FFFFFFFFh for all.
    pub nsid: u32,
}

impl From<&SubmissionQueueEntry> for FormatNvm {
    fn from(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get().into();
        Self {
            lbaf: (get8(cdw10, 12, 2) << 4) | get8(cdw10, 0, 4),
            metadata_extended: flag(cdw10, 4),
            pi: get8(cdw10, 5, 3),
            pi_first: flag(cdw10, 8),
            ses: get8(cdw10, 9, 3),
            nsid: sqe.nsid.get(),
        }
    }
}

/// UUID Index, CDW14 6:0, of the commands that have one (NVMe Base 2.1 §8.1.28).
fn uuid_index(sqe: &SubmissionQueueEntry) -> u8 {
    get8(sqe.cdw14.get().into(), 0, 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqe(cdws: [u32; 6]) -> SubmissionQueueEntry {
        let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = cdws.map(Into::into);
        SubmissionQueueEntry {
            nsid: 0x11.into(),
            prp1: 0x1000.into(),
            prp2: 0x2000.into(),
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
            ..Default::default()
        }
    }

    #[test]
    fn create_cq_as_linux_sends_it() {
        // NVMe Base 2.1 §5.2.1: queue 3 of 1024 entries, PC and IEN, vector 3.
        let create = CreateCq::from(&sqe([0x03ff_0003, 0x0003_0003, 0, 0, 0, 0]));
        assert_eq!(create, CreateCq { qid: 3, size_z: 1023, pc: true, ien: true, iv: 3, prp1: 0x1000 });
        assert!(!CreateCq::from(&sqe([0, 0x2, 0, 0, 0, 0])).pc);
        assert!(!CreateCq::from(&sqe([0, 0x1, 0, 0, 0, 0])).ien);
    }

    #[test]
    fn create_sq_has_its_priority_in_2_1() {
        // NVMe Base 2.1 §5.2.2.
        let create = CreateSq::from(&sqe([0x03ff_0003, 0x0005_0005, 0xffff_0007, 0, 0, 0]));
        assert_eq!(
            create,
            CreateSq {
                qid: 3,
                size_z: 1023,
                pc: true,
                qprio: QueuePriority::MEDIUM,
                cqid: 5,
                nvmsetid: 7,
                prp1: 0x1000,
            }
        );
        assert_eq!(CreateSq::from(&sqe([0, 0x6, 0, 0, 0, 0])).qprio, QueuePriority::LOW);
    }

    #[test]
    fn delete_queue_reads_only_the_lower_half() {
        assert_eq!(DeleteQueue::from(&sqe([0xffff_0009, 0, 0, 0, 0, 0])), DeleteQueue { qid: 9 });
    }

    #[test]
    fn doorbell_buffer_config_has_the_hosts_buffer_first() {
        // NVMe Base 2.1 §5.2.5: PRP1 is the Shadow Doorbell buffer, PRP2 the EventIdx buffer.
        assert_eq!(
            DoorbellBufferConfig::from(&sqe([0; 6])),
            DoorbellBufferConfig { shadow: 0x1000, event_idx: 0x2000 }
        );
    }

    #[test]
    fn identify_fields_are_at_their_bits() {
        // NVMe Base 2.1 §5.1.13.
        assert_eq!(
            IdentifyCmd::from(&sqe([0x1234_ff06, 0x02ff_5678, 0, 0, 0xffff_ff85, 0])),
            IdentifyCmd {
                cns: Cns::COMMAND_SET_CONTROLLER,
                cntid: 0x1234,
                csi: Csi::ZONED,
                nvmsetid: 0x5678,
                uuid_index: 5,
                nsid: 0x11,
            }
        );
    }

    #[test]
    fn get_log_page_joins_its_halves() {
        // NVMe Base 2.1 §5.1.12.
        let get = GetLogPage::from(&sqe([0x0001_8302, 0x0007_0002, 0x0000_1000, 0x0000_0001, 0x0180_0003, 0]));
        assert_eq!(
            get,
            GetLogPage {
                lid: LogId::SMART,
                lsp: 3,
                rae: true,
                numd_z: 0x0002_0001,
                lsi: 7,
                offset: 0x1_0000_1000,
                ot: true,
                csi: Csi::KEY_VALUE,
                uuid_index: 3,
                nsid: 0x11,
            }
        );
        assert_eq!(get.length(), 0x0002_0002 * 4);
    }

    #[test]
    fn the_longest_log_page_does_not_overflow() {
        let get = GetLogPage::from(&sqe([u32::MAX; 6]));
        assert_eq!((get.numd_z, get.length(), get.lsp), (u32::MAX, 1 << 34, 0x7f));
    }

    #[test]
    fn features_commands_share_the_feature_id() {
        // NVMe Base 2.1 §5.1.11, §5.1.25.
        let get = GetFeatures::from(&sqe([0x0000_0307, 0x55, 0, 0, 0, 0]));
        assert_eq!((get.fid, get.select, get.cdw11), (FeatureId::NUMBER_OF_QUEUES, Select::SUPPORTED, 0x55));
        let set = SetFeatures::from(&sqe([0x8000_0006, 1, 2, 3, 4, 5]));
        assert_eq!(
            set,
            SetFeatures {
                fid: FeatureId::VOLATILE_WRITE_CACHE,
                save: true,
                cdw11: 1,
                cdw12: 2,
                cdw13: 3,
                cdw15: 5,
                uuid_index: 4,
                nsid: 0x11,
            }
        );
        assert!(!SetFeatures::from(&sqe([0x7fff_ff06, 0, 0, 0, 0, 0])).save);
    }

    #[test]
    fn abort_names_the_queue_in_the_lower_half() {
        // NVMe Base 2.1 §5.1.1.
        assert_eq!(AbortCmd::from(&sqe([0x1234_0002, 0, 0, 0, 0, 0])), AbortCmd { sqid: 2, cid: 0x1234 });
    }

    #[test]
    fn format_joins_its_lba_format() {
        // NVMe Base 2.1 §5.1.10: LBAFU 13:12, SES 11:9, PIL 8, PI 7:5, MSET 4, LBAFL 3:0.
        assert_eq!(
            FormatNvm::from(&sqe([0xffff_e352, 0, 0, 0, 0, 0])),
            FormatNvm { lbaf: 0x22, metadata_extended: true, pi: 2, pi_first: true, ses: 1, nsid: 0x11 }
        );
    }
}
