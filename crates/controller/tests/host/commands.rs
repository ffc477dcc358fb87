//! Submission queue entries by the names of their commands.

use nvme::{
    AdminOpcode, NvmOpcode, SubmissionQueueEntry,
    features::{FeatureId, Select},
    identify::Cns,
    logs::LogId,
};

use super::memory::Prps;

/// Namespace 1, where nearly everything happens.
pub const NSID: u32 = 1;

fn admin(opcode: AdminOpcode) -> SubmissionQueueEntry {
    SubmissionQueueEntry { opcode: opcode.0, ..Default::default() }
}

fn nvm(opcode: NvmOpcode) -> SubmissionQueueEntry {
    SubmissionQueueEntry { opcode: opcode.0, nsid: NSID.into(), ..Default::default() }
}

fn with(sqe: SubmissionQueueEntry, prps: Prps) -> SubmissionQueueEntry {
    SubmissionQueueEntry { prp1: prps.prp1.into(), prp2: prps.prp2.into(), ..sqe }
}

/// `depth` is a number of entries; no interrupt without a vector.
pub fn create_cq(qid: u16, depth: u32, base: u64, vector: Option<u16>) -> SubmissionQueueEntry {
    let interrupt = vector.map_or(0, |v| u32::from(v) << 16 | 2);
    SubmissionQueueEntry {
        cdw10: (depth.wrapping_sub(1) << 16 | u32::from(qid)).into(),
        cdw11: (interrupt | 1).into(),
        prp1: base.into(),
        ..admin(AdminOpcode::CREATE_CQ)
    }
}

pub fn create_sq(qid: u16, depth: u32, base: u64, cqid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        cdw10: (depth.wrapping_sub(1) << 16 | u32::from(qid)).into(),
        cdw11: (u32::from(cqid) << 16 | 1).into(),
        prp1: base.into(),
        ..admin(AdminOpcode::CREATE_SQ)
    }
}

pub fn delete_sq(qid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry { cdw10: u32::from(qid).into(), ..admin(AdminOpcode::DELETE_SQ) }
}

pub fn delete_cq(qid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry { cdw10: u32::from(qid).into(), ..admin(AdminOpcode::DELETE_CQ) }
}

pub fn doorbell_buffer_config(shadow: u64, event_idx: u64) -> SubmissionQueueEntry {
    with(admin(AdminOpcode::DOORBELL_BUFFER_CONFIG), Prps { prp1: shadow, prp2: event_idx })
}

pub fn identify(cns: Cns, nsid: u32, prps: Prps) -> SubmissionQueueEntry {
    let sqe =
        SubmissionQueueEntry { nsid: nsid.into(), cdw10: u32::from(cns.0).into(), ..admin(AdminOpcode::IDENTIFY) };
    with(sqe, prps)
}

pub fn get_feature(fid: FeatureId, select: Select, cdw11: u32) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        cdw10: (u32::from(select.0) << 8 | u32::from(fid.0)).into(),
        cdw11: cdw11.into(),
        ..admin(AdminOpcode::GET_FEATURES)
    }
}

pub fn set_feature(fid: FeatureId, value: u32) -> SubmissionQueueEntry {
    SubmissionQueueEntry { cdw10: u32::from(fid.0).into(), cdw11: value.into(), ..admin(AdminOpcode::SET_FEATURES) }
}

/// `bytes` is a multiple of 4 above 0.
pub fn get_log(lid: LogId, offset: u64, bytes: u64, prps: Prps) -> SubmissionQueueEntry {
    let numd_z = u32::try_from(bytes / 4 - 1).unwrap();
    let sqe = SubmissionQueueEntry {
        nsid: nvme::NSID_BROADCAST.into(),
        cdw10: (numd_z << 16 | u32::from(lid.0)).into(),
        cdw11: (numd_z >> 16).into(),
        cdw12: low(offset).into(),
        cdw13: low(offset >> 32).into(),
        ..admin(AdminOpcode::GET_LOG_PAGE)
    };
    with(sqe, prps)
}

pub fn event_request() -> SubmissionQueueEntry {
    admin(AdminOpcode::ASYNC_EVENT_REQUEST)
}

pub fn abort(sqid: u16, cid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry { cdw10: (u32::from(cid) << 16 | u32::from(sqid)).into(), ..admin(AdminOpcode::ABORT) }
}

pub fn flush(nsid: u32) -> SubmissionQueueEntry {
    SubmissionQueueEntry { nsid: nsid.into(), ..nvm(NvmOpcode::FLUSH) }
}

/// `blocks` is 1 to 65536.
pub fn read(lba: u64, blocks: u32, prps: Prps) -> SubmissionQueueEntry {
    with(on_blocks(NvmOpcode::READ, lba, blocks), prps)
}

pub fn write(lba: u64, blocks: u32, prps: Prps) -> SubmissionQueueEntry {
    with(on_blocks(NvmOpcode::WRITE, lba, blocks), prps)
}

pub fn write_zeroes(lba: u64, blocks: u32) -> SubmissionQueueEntry {
    on_blocks(NvmOpcode::WRITE_ZEROES, lba, blocks)
}

fn on_blocks(opcode: NvmOpcode, lba: u64, blocks: u32) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        cdw10: low(lba).into(),
        cdw11: low(lba >> 32).into(),
        cdw12: (blocks - 1).into(),
        ..nvm(opcode)
    }
}

/// Deallocates `ranges` ranges, which the memory at `prps` describes.
pub fn deallocate(ranges: u32, prps: Prps) -> SubmissionQueueEntry {
    let sqe = SubmissionQueueEntry {
        cdw10: (ranges - 1).into(),
        cdw11: (1 << 2).into(),
        ..nvm(NvmOpcode::DATASET_MANAGEMENT)
    };
    with(sqe, prps)
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half")]
fn low(value: u64) -> u32 {
    value as u32
}
