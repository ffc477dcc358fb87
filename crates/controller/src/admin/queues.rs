//! Creating and deleting I/O queues, and Doorbell Buffer Config.

use dma::Access;
use doorbell::Depth;
use nvme::{
    Status, SubmissionQueueEntry,
    admin::{CreateCq, CreateSq, DeleteQueue, DoorbellBufferConfig},
};

use super::{INVALID_FIELD, Reply};
use crate::{
    controller::Controller,
    engine::ShadowPages,
    queue::{CompletionQueue, SubmissionQueue},
};

const INVALID_QUEUE_ID: Status = Status::INVALID_QUEUE_ID.with_dnr();

impl Controller {
    /// Checks what both kinds of queue have in common and returns the depth.
    fn check_new_queue(&self, exists: bool, qid: u16, size_z: u16, pc: bool, prp1: u64) -> Result<Depth, Status> {
        if qid == 0 || qid > self.config.io_queues || exists {
            return Err(INVALID_QUEUE_ID);
        }
        let depth = Depth::from_size_z(size_z).map_err(|_| Status::INVALID_QUEUE_SIZE.with_dnr())?;
        if size_z > self.registers.cap.mqes_z() {
            return Err(Status::INVALID_QUEUE_SIZE.with_dnr());
        }
        // CAP.CQR: queues are physically contiguous.
        if !pc {
            return Err(INVALID_FIELD);
        }
        if !prp1.is_multiple_of(self.engine.page) {
            return Err(Status::INVALID_PRP_OFFSET.with_dnr());
        }
        Ok(depth)
    }
}

/// NVMe Base 2.1 §5.2.1.
pub(crate) fn create_cq(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let command = CreateCq::from(sqe);
    let mut create = || {
        let exists = c.engine.cq(command.qid).is_some();
        let depth = c.check_new_queue(exists, command.qid, command.size_z, command.pc, command.prp1)?;
        if c.registers.cc.iocqes() != 4 {
            return Err(Status::INVALID_QUEUE_SIZE.with_dnr());
        }
        // Without MSI-X there is one vector.
        let vectors = if c.msix_enabled { c.interrupts.vectors() } else { 1 };
        if command.ien && command.iv >= vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR.with_dnr());
        }
        let queue = CompletionQueue::new(&c.engine.memory, command.prp1, depth, command.ien.then_some(command.iv));
        if !queue.ring.is_mapped() {
            return Err(INVALID_FIELD);
        }
        c.engine.add_cq(command.qid, queue);
        Ok(0)
    };
    create().into()
}

/// NVMe Base 2.1 §5.2.2.
pub(crate) fn create_sq(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let command = CreateSq::from(sqe);
    let mut create = || {
        let exists = c.engine.sq(command.qid).is_some();
        let depth = c.check_new_queue(exists, command.qid, command.size_z, command.pc, command.prp1)?;
        if c.registers.cc.iosqes() != 6 {
            return Err(Status::INVALID_QUEUE_SIZE.with_dnr());
        }
        if command.cqid == 0 || command.cqid > c.config.io_queues {
            return Err(INVALID_QUEUE_ID);
        }
        if c.engine.cq(command.cqid).is_none() {
            return Err(Status::CQ_INVALID.with_dnr());
        }
        let queue = SubmissionQueue::new(&c.engine.memory, command.prp1, depth, command.cqid);
        if !queue.ring.is_mapped() {
            return Err(INVALID_FIELD);
        }
        c.engine.add_sq(command.qid, queue);
        Ok(0)
    };
    create().into()
}

/// NVMe Base 2.1 §5.2.4. The queue's commands are completed first.
pub(crate) fn delete_sq(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let DeleteQueue { qid } = sqe.into();
    match c.engine.sq(qid) {
        Some(queue) if qid != 0 && queue.deleting.is_none() => {
            if queue.outstanding > 0 {
                return Reply::Deleting(qid);
            }
            c.engine.remove_sq(qid);
            Reply::Done(0)
        }
        _ => Reply::Failed(INVALID_QUEUE_ID),
    }
}

/// NVMe Base 2.1 §5.2.3. Only when no SQ uses it any more.
pub(crate) fn delete_cq(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let DeleteQueue { qid } = sqe.into();
    match c.engine.cq(qid) {
        Some(queue) if qid != 0 => {
            if queue.users > 0 {
                return Reply::Failed(Status::INVALID_QUEUE_DELETION.with_dnr());
            }
            c.engine.cqs[usize::from(qid)] = None;
            Reply::Done(0)
        }
        _ => Reply::Failed(INVALID_QUEUE_ID),
    }
}

/// NVMe Base 2.1 §5.2.5. Legal at any time, also while queues are busy; sent again, it replaces the buffers. When it fails,
/// nothing changes.
pub(crate) fn doorbell_buffer_config(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    configure_doorbells(c, sqe, INVALID_FIELD)
}

/// The vendor form of 2016: the same, but for the opcode and the status of a failure.
pub(crate) fn vendor_doorbell_buffer_config(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    configure_doorbells(c, sqe, Status::VENDOR_DOORBELL_MEMORY_INVALID.with_dnr())
}

fn configure_doorbells(c: &mut Controller, sqe: &SubmissionQueueEntry, failure: Status) -> Reply {
    let DoorbellBufferConfig { shadow, event_idx } = sqe.into();
    let page = c.engine.page;
    let usable = |address: u64, access| {
        usize::try_from(page).is_ok_and(|bytes| c.engine.memory.window(address, bytes, access).is_ok())
    };
    let valid = shadow.is_multiple_of(page)
        && event_idx.is_multiple_of(page)
        && shadow != event_idx
        && usable(shadow, Access::Read)
        && usable(event_idx, Access::Write);
    if !valid {
        c.engine.counters.device.doorbell_buffer_config_refused += 1;
        probes::buffer_config_refused(shadow, event_idx);
        return Reply::Failed(failure);
    }
    let bytes = usize::try_from(page).unwrap_or(4096);
    c.engine.set_shadow(ShadowPages { shadow, event: event_idx, bytes });
    c.engine.counters.device.doorbell_buffer_config += 1;
    probes::buffer_config_accepted(shadow, event_idx);
    Reply::Done(0)
}
