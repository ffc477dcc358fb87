//! The admin command set: one file for each family of commands.

pub(crate) mod events;
pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod logs;
pub(crate) mod queues;

use dma::Access;
use nvme::{Status, SubmissionQueueEntry};

use crate::{controller::Controller, io::MAX_TRANSFER};

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
}
