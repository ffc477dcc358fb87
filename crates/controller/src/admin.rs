//! The admin command set: one file for each family of commands.

pub(crate) mod events;
pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod logs;
pub(crate) mod queues;

use dma::Access;
use nvme::{AdminOpcode, Status, SubmissionQueueEntry};

use crate::{
    controller::Controller,
    engine::{Failure, Fetched},
    io::MAX_TRANSFER,
};

/// What became of an admin command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It succeeded, with this dword 0 of the completion.
    Done(u32),
    /// It failed.
    Failed(Status),
    /// An Asynchronous Event Request that waits for its event.
    Parked,
    /// It is done when every cache is on stable storage.
    Flush,
    /// A queue is being deleted; the completion follows when its last command is done.
    Deleting(u16),
}

impl From<Result<u32, Status>> for Reply {
    fn from(result: Result<u32, Status>) -> Self {
        match result {
            Ok(dw0) => Self::Done(dw0),
            Err(status) => Self::Failed(status),
        }
    }
}

/// Invalid Field in Command, which a retry does not mend.
pub(crate) const INVALID_FIELD: Status = Status::INVALID_FIELD.with_dnr();

impl Controller {
    /// Sends `data` to the memory that the command's PRPs describe.
    pub(crate) fn send(&mut self, sqe: &SubmissionQueueEntry, data: &[u8]) -> Result<(), Status> {
        if data.len() > MAX_TRANSFER {
            return Err(INVALID_FIELD);
        }
        self.engine.map(sqe, data.len(), Access::Write)?;
        self.engine.request.segments.write(0, data).map_err(|_| Status::DATA_TRANSFER_ERROR.with_dnr())
    }

    /// Carries out one admin command.
    pub(crate) fn admin(&mut self, fetched: Fetched) {
        let Fetched { sqe, permit } = fetched;
        let reply = match self.offer.admin(AdminOpcode(sqe.opcode)) {
            None => Reply::Failed(Status::INVALID_OPCODE.with_dnr()),
            Some(_) if sqe.flags != 0 => Reply::Failed(Status::INVALID_FIELD.with_dnr()),
            Some(handler) => handler(self, &sqe),
        };
        let cid = sqe.cid.get();
        match reply {
            Reply::Done(dw0) => self.engine.complete(0, cid, permit, Status::SUCCESS, dw0),
            Reply::Failed(status) => {
                tracing::debug!(opcode = %AdminOpcode(sqe.opcode), %status, "admin command failed");
                self.errors.record(Failure { sqid: 0, cid, status, nsid: sqe.nsid.get(), lba: 0 });
                self.engine.complete(0, cid, permit, status, 0);
            }
            Reply::Parked => {
                if let Some(sq) = self.engine.sq(0) {
                    sq.outstanding = sq.outstanding.saturating_sub(1);
                }
                if let Some(cq) = self.engine.cq(0) {
                    cq.producer.give_back(permit);
                }
            }
            Reply::Flush => {
                let all = 0..self.engine.namespaces.len();
                self.engine.flush(0, &sqe, permit, all);
            }
            Reply::Deleting(qid) => {
                if let Some(sq) = self.engine.sq(qid) {
                    sq.deleting = Some((cid, permit));
                }
            }
        }
    }

    /// Completes the deletions whose queues have run dry, and says whether there were any.
    pub(crate) fn finish_deletions(&mut self) -> bool {
        if self.engine.deleted.is_empty() {
            return false;
        }
        let deleted = std::mem::take(&mut self.engine.deleted);
        for (qid, cid, permit) in deleted {
            self.engine.remove_sq(qid);
            self.engine.complete(0, cid, permit, Status::SUCCESS, 0);
        }
        true
    }
}
