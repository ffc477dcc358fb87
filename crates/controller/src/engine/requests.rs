//! Commands whose work is with a backend: their requests on the way there and back.

use block::{BlockError, Completion, Operation, Request, Submitted};
use dma::{Access, Segments};
use doorbell::Permit;
use nvme::{Status, SubmissionQueueEntry};

use super::{Command, Engine, Failure, Owner};
use crate::prp;

impl Engine {
    /// Opens a command that will have requests at backends, and returns its tag.
    pub(crate) fn open(&mut self, sqid: u16, sqe: &SubmissionQueueEntry, permit: Permit, lba: u64, parts: u32) -> u64 {
        let owner = Owner::Host { sqid, cid: sqe.cid.get(), permit };
        self.open_for(owner, sqe.nsid.get(), lba, parts)
    }

    fn open_for(&mut self, owner: Owner, nsid: u32, lba: u64, parts: u32) -> u64 {
        let command = Command { owner, parts, status: Status::SUCCESS, nsid, lba, epoch: self.epoch };
        match self.free.pop() {
            Some(i) => {
                self.commands[i as usize] = command;
                i.into()
            }
            None => {
                self.commands.push(command);
                self.commands.len() as u64 - 1
            }
        }
    }

    /// The guest memory that a command's PRPs describe; the list goes back through [`Engine::recycle`], or with a request.
    ///
    /// # Errors
    /// See [`prp::map`].
    #[inline]
    pub(crate) fn map(&mut self, sqe: &SubmissionQueueEntry, len: usize, access: Access) -> Result<Segments, Status> {
        let mut list = self.lists.pop().unwrap_or_else(|| Segments::with_capacity(8));
        let pointers = (sqe.prp1.get(), sqe.prp2.get());
        match prp::map(&self.memory, self.page, pointers, len, access, &mut list, &mut self.scratch) {
            Ok(()) => Ok(list),
            Err(status) => {
                self.recycle(list);
                Err(status)
            }
        }
    }

    /// Takes a list back.
    #[inline]
    pub(crate) fn recycle(&mut self, mut list: Segments) {
        list.clear();
        self.lists.push(list);
    }

    /// Hands a request of the command `tag` to the namespace at `index`. `part` numbers the command's requests.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        index: usize,
        (tag, part): (u64, u32),
        operation: Operation,
        (offset, len): (u64, u64),
        segments: Segments,
    ) {
        let request = Request { tag: tag | u64::from(part) << 32, operation, offset, len, segments };
        let namespace = &mut self.namespaces[index];
        if !namespace.backlog.is_empty() {
            namespace.backlog.push_back(request);
            return;
        }
        match namespace.queue.submit(request) {
            Submitted::Done(completion) => self.finish_part(completion),
            Submitted::Queued => {}
            Submitted::Full(request) => {
                namespace.backlog.push_back(request);
                self.congested = true;
            }
        }
    }

    /// Brings every cache to stable storage; [`Engine::is_flushing`] says when that is done.
    pub(crate) fn flush_all(&mut self) {
        for index in 0..self.namespaces.len() {
            if self.namespaces[index].capabilities.volatile_cache {
                let tag = self.open_for(Owner::Internal, 0, 0, 1);
                self.flushing += 1;
                self.submit(index, (tag, 0), Operation::Flush, (0, 0), Segments::default());
            }
        }
    }

    /// Whether a flush of our own is under way.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing > 0
    }

    /// Collects what the backends have done, and says whether that was anything.
    pub(crate) fn collect(&mut self) -> bool {
        let mut worked = false;
        let mut done = std::mem::take(&mut self.done);
        for i in 0..self.namespaces.len() {
            // Also with nothing in flight: the poll that finds nothing is what silences the queue's descriptor.
            worked |= self.namespaces[i].queue.poll(&mut |completion| done.push(completion)) > 0;
            for completion in done.drain(..) {
                self.finish_part(completion);
            }
        }
        self.done = done;
        if self.congested {
            self.congested = false;
            for i in 0..self.namespaces.len() {
                worked |= self.resubmit(i);
            }
        }
        worked
    }

    fn resubmit(&mut self, index: usize) -> bool {
        let mut worked = false;
        while let Some(request) = self.namespaces[index].backlog.pop_front() {
            match self.namespaces[index].queue.submit(request) {
                Submitted::Done(completion) => self.finish_part(completion),
                Submitted::Queued => {}
                Submitted::Full(request) => {
                    self.namespaces[index].backlog.push_front(request);
                    self.congested = true;
                    break;
                }
            }
            worked = true;
        }
        worked
    }

    /// Gives up all commands of the host: what waits for a backend is dropped, and what is there becomes an orphan.
    pub(super) fn abandon(&mut self) {
        for command in &mut self.commands {
            if matches!(command.owner, Owner::Host { .. }) {
                command.owner = Owner::Orphan;
            }
        }
        for i in 0..self.namespaces.len() {
            let backlog = std::mem::take(&mut self.namespaces[i].backlog);
            for request in backlog {
                self.finish_part(Completion { request, result: Err(BlockError::Cancelled) });
            }
            self.namespaces[i].queue.cancel();
        }
        self.congested = false;
    }

    /// Starts what this turn has submitted.
    pub(crate) fn kick(&mut self) {
        for namespace in &mut self.namespaces {
            if namespace.queue.in_flight() > 0 {
                namespace.queue.kick();
            }
        }
    }

    #[inline]
    fn finish_part(&mut self, completion: Completion) {
        let Completion { request, result } = completion;
        let Request { tag, operation, segments, .. } = request;
        let bytes = segments.bytes() as u64;
        #[allow(clippy::cast_possible_truncation)] // The lower half is the command, the upper one the part.
        let index = tag as u32;
        let Some(command) = self.commands.get_mut(index as usize) else { return };
        // Requests without data have lists without memory, which are not worth keeping. One of an old map must let it go:
        // somebody may wait for that.
        if matches!(operation, Operation::Read | Operation::Write { .. }) {
            let mut segments = segments;
            if command.epoch == self.epoch {
                segments.clear();
            } else {
                segments.release();
            }
            self.lists.push(segments);
        }
        match result {
            Ok(()) => {
                if let Owner::Host { sqid, .. } = command.owner {
                    let counters = self.counters.queue(sqid);
                    match operation {
                        Operation::Read => {
                            counters.read_bytes += bytes;
                            self.reads += 1;
                        }
                        Operation::Write { .. } => {
                            counters.write_bytes += bytes;
                            self.writes += 1;
                        }
                        _ => {}
                    }
                }
            }
            Err(error) if command.status.is_success() => command.status = status_of(error),
            Err(_) => {}
        }
        command.parts = command.parts.saturating_sub(1);
        if command.parts > 0 {
            return;
        }
        let Command { status, nsid, lba, .. } = *command;
        let owner = std::mem::replace(&mut command.owner, Owner::Nobody);
        self.free.push(index);
        match owner {
            Owner::Host { sqid, cid, permit } => {
                if !status.is_success() {
                    self.failures.push(Failure { sqid, cid, status, nsid, lba });
                }
                self.complete(sqid, cid, permit, status, 0);
            }
            Owner::Internal => {
                self.flushing -= 1;
                if !status.is_success() {
                    tracing::error!(%status, "flushing a disk failed: writes that were not flushed before may be lost");
                }
            }
            Owner::Orphan | Owner::Nobody => {}
        }
    }
}

/// The one map from what a backend says to what the host is told.
fn status_of(error: BlockError) -> Status {
    match error {
        BlockError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        BlockError::OutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        BlockError::ReadFault => Status::UNRECOVERED_READ_ERROR,
        BlockError::WriteFault => Status::WRITE_FAULT,
        BlockError::Unsupported => Status::INVALID_FIELD.with_dnr(),
        BlockError::Memory => Status::DATA_TRANSFER_ERROR.with_dnr(),
        BlockError::Cancelled => Status::ABORTED_BY_REQUEST,
    }
}
