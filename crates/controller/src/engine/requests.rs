//! Commands whose work is with a backend: their requests on the way there and back.

use block::{BlockError, Completion, Operation, Request, Submitted};
use dma::{Access, Segments};
use doorbell::Permit;
use nvme::{Status, SubmissionQueueEntry};

use super::{Command, Engine, Failure, Owner};
use crate::prp;

/// The half of a request's tag that says which command it is of; the other half says which part of it.
const TAG_MASK: u64 = u32::MAX as u64;

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

    /// Fills the list of [`Engine::request`] with the guest memory that a command's PRPs describe.
    ///
    /// # Errors
    /// See [`prp::map`].
    #[inline]
    pub(crate) fn map(&mut self, sqe: &SubmissionQueueEntry, len: usize, access: Access) -> Result<(), Status> {
        if self.request.segments.is_released() {
            // The last one went away with its request.
            self.request.segments = self.lists.pop().unwrap_or_else(|| Segments::with_capacity(8));
        }
        let list = &mut self.request.segments;
        list.clear();
        let pointers = (sqe.prp1.get(), sqe.prp2.get());
        prp::map(&self.memory, self.page, pointers, len, access, list, &mut self.scratch)
    }

    /// Carries out a command that is one request, whose data [`Engine::map`] has found, and completes it if that is possible at
    /// once: such a command needs no place in the table.
    #[inline]
    pub(crate) fn start(
        &mut self,
        index: usize,
        (sqid, sqe, permit): (u16, &SubmissionQueueEntry, Permit),
        lba: u64,
        operation: Operation,
        (offset, len): (u64, u64),
    ) {
        let tag = self.next_tag();
        let submitted = if operation.has_data() {
            let Self { request, namespaces, .. } = self;
            (request.tag, request.operation, request.offset, request.len) = (tag, operation, offset, len);
            namespaces[index].hand_over(request)
        } else {
            // Without a hold on guest memory, which somebody may wait for.
            let segments = Segments::default();
            self.namespaces[index].hand_over(&mut Request { tag, operation, offset, len, segments })
        };
        let Submitted::Done(result) = submitted else {
            self.congested |= submitted == Submitted::Full;
            let opened = self.open(sqid, sqe, permit, lba, 1);
            debug_assert_eq!(opened, tag);
            return;
        };
        self.count(sqid, operation, len, result);
        let cid = sqe.cid.get();
        let status = match result {
            Ok(()) => Status::SUCCESS,
            Err(error) => {
                let status = status_of(error);
                self.failures.push(Failure { sqid, cid, status, nsid: sqe.nsid.get(), lba });
                status
            }
        };
        self.complete(sqid, cid, permit, status, 0);
    }

    /// Hands a request of the command `tag`, which has several, to the namespace at `index`. `part` numbers them.
    pub(crate) fn submit(&mut self, index: usize, (tag, part): (u64, u32), operation: Operation, range: (u64, u64)) {
        let (offset, len) = range;
        let tag = tag | u64::from(part) << 32;
        let mut request = Request { tag, operation, offset, len, segments: Segments::default() };
        match self.namespaces[index].hand_over(&mut request) {
            Submitted::Done(result) => self.finish_part(Completion { request, result }),
            Submitted::Queued => {}
            Submitted::Full => self.congested = true,
        }
    }

    /// The tag that [`Engine::open`] will give.
    #[inline]
    fn next_tag(&self) -> u64 {
        self.free.last().map_or(self.commands.len() as u64, |i| u64::from(*i))
    }

    /// Counts what a request has moved.
    #[inline]
    fn count(&mut self, sqid: u16, operation: Operation, bytes: u64, result: Result<(), BlockError>) {
        let counters = self.counters.queue(sqid);
        match operation {
            Operation::Read if result.is_ok() => {
                counters.read_bytes += bytes;
                self.reads += 1;
            }
            Operation::Write { .. } if result.is_ok() => {
                counters.write_bytes += bytes;
                self.writes += 1;
            }
            _ => {}
        }
    }

    /// Brings every cache to stable storage; [`Engine::is_flushing`] says when that is done.
    pub(crate) fn flush_all(&mut self) {
        for index in 0..self.namespaces.len() {
            if self.namespaces[index].capabilities.volatile_cache {
                let tag = self.open_for(Owner::Internal, 0, 0, 1);
                self.flushing += 1;
                self.submit(index, (tag, 0), Operation::Flush, (0, 0));
            }
        }
    }

    /// Whether a flush of our own is under way.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing > 0
    }

    /// Collects what the backends have done, and says whether that was anything. After a sleep all are asked, since their
    /// descriptors may have ended it without a reason.
    pub(crate) fn collect(&mut self, after_sleep: bool) -> bool {
        let mut worked = false;
        let mut done = std::mem::take(&mut self.done);
        for i in 0..self.namespaces.len() {
            let namespace = &mut self.namespaces[i];
            if !namespace.at_work && !after_sleep {
                continue;
            }
            let found = namespace.queue.poll(&mut |completion| done.push(completion));
            // Once more with nothing in flight: the poll that finds nothing is what silences the queue's descriptor.
            namespace.at_work = found > 0 || namespace.queue.in_flight() > 0;
            worked |= found > 0;
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
        while let Some(mut request) = self.namespaces[index].backlog.pop_front() {
            match self.namespaces[index].queue.submit(&mut request) {
                Submitted::Done(result) => self.finish_part(Completion { request, result }),
                Submitted::Queued => self.namespaces[index].at_work = true,
                Submitted::Full => {
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
            if namespace.at_work {
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
        let index = (tag & TAG_MASK) as u32;
        let Some(command) = self.commands.get_mut(index as usize) else { return };
        // Requests without data have lists without memory, which are not worth keeping. One of an old map must let it go:
        // somebody may wait for that.
        if operation.has_data() {
            let mut segments = segments;
            if command.epoch == self.epoch {
                segments.clear();
            } else {
                segments.release();
            }
            self.lists.push(segments);
        }
        if let Err(error) = result
            && command.status.is_success()
        {
            command.status = status_of(error);
        }
        if let Owner::Host { sqid, .. } = command.owner {
            self.count(sqid, operation, bytes, result);
        }
        let Some(command) = self.commands.get_mut(index as usize) else { return };
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
