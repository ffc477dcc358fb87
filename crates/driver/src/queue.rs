//! A pair of I/O queues.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nvme::{
    NvmOpcode, Status, SubmissionQueueEntry,
    nvm::{DatasetManagement, DsmRange, PrInfo, ReadWrite, WriteZeroes},
    zerocopy::IntoBytes,
};

use crate::{
    error::{CommandId, Error, MemoryError, SubmitError},
    interrupt::Vector,
    memory::{Buffer, Data},
    namespace::Namespace,
    prp,
    ring::{Completed, Counters, Ring},
    shared::{Orphan, Shared},
};

/// The clock is read once in this many polls.
const POLLS_PER_LOOK: u32 = 1024;
/// A wait for an interrupt looks at the device's health this often.
const WAIT_SLICE: Duration = Duration::from_millis(250);
/// Polls before a wait without interrupts begins to give the processor away.
const SPINS: u32 = 200;

/// A completed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The caller's name for the command.
    pub tag: u64,
    /// What became of it.
    pub status: Status,
    /// Dword 0 of the completion: command specific.
    pub dw0: u32,
}

impl Completion {
    /// Whether the command succeeded.
    ///
    /// # Errors
    /// The status, if it did not.
    pub fn ok(&self) -> Result<(), Status> {
        if self.status.is_success() { Ok(()) } else { Err(self.status) }
    }
}

/// A submission queue and a completion queue, owned by whoever uses them; it can be sent to any thread.
///
/// Commands are written by [`QueuePair::read`] and its like, told to the device by [`QueuePair::ring`], once for as many as one
/// likes, and come back by [`QueuePair::poll`] or [`QueuePair::wait`], in any order, under the caller's tags. Nothing here
/// allocates, locks or enters the kernel as long as the device does not have to be woken.
///
/// A queue pair that is dropped is deleted by the device when it creates the next; [`crate::Device::delete_queue_pair`] does
/// it at once. After an [`Error`] of [`QueuePair::poll`] other than [`Error::TimedOut`] it is of no use until the controller
/// was reset and the pair recovered.
#[derive(Debug)]
pub struct QueuePair {
    shared: Arc<Shared>,
    epoch: u64,
    ring: Ring,
    /// One page for each slot: its PRP list, or its ranges of Dataset Management.
    lists: Buffer,
    vector: Option<Vector>,
    max_transfer: usize,
    broken: Option<Error>,
    cooperative: bool,
    /// Nothing is left for the device to delete.
    released: bool,
    polls: u32,
    started: Instant,
    /// How long a command may take, and when that was looked at last; both in ms.
    limit: u64,
    looked: u64,
}

impl QueuePair {
    pub(crate) fn new(
        shared: Arc<Shared>,
        ring: Ring,
        vector: Option<Vector>,
        max_transfer: usize,
        limit: Duration,
    ) -> Result<Self, MemoryError> {
        let slots = usize::from(ring.depth().capacity());
        Ok(Self {
            epoch: shared.epoch(),
            lists: shared.pool.allocate_as_it_is(slots * shared.page)?,
            cooperative: shared.transport.is_cooperative(),
            shared,
            ring,
            vector,
            max_transfer,
            broken: None,
            released: false,
            polls: 0,
            started: Instant::now(),
            limit: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1),
            looked: 0,
        })
    }

    // ---- for the device ---------------------------------------------------------------------------------------------

    pub(crate) fn parts(&mut self) -> (&mut Ring, Option<&Vector>) {
        (&mut self.ring, self.vector.as_ref())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The device has no queues of this id any more, or never had.
    pub(crate) fn release(mut self) {
        self.released = true;
    }

    /// As new, in the controller's present life.
    pub(crate) fn restart(&mut self) -> Vec<u64> {
        self.epoch = self.shared.epoch();
        self.broken = None;
        self.ring.restart()
    }

    pub(crate) fn set_broken(&mut self, error: Error) {
        self.broken = Some(error);
    }

    // ---- what it is -------------------------------------------------------------------------------------------------

    /// Queue id of both queues.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.ring.qid()
    }

    /// How many commands can be in flight at a time.
    #[must_use]
    pub fn capacity(&self) -> u16 {
        self.ring.depth().capacity()
    }

    /// Commands submitted and not completed.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// The longest data of one command, in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// What was done so far, with the interrupts that have come until now.
    pub fn counters(&mut self) -> Counters {
        if let Some(vector) = &self.vector {
            self.ring.counters.interrupts += vector.drain();
        }
        self.ring.counters
    }

    /// Memory for data.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, MemoryError> {
        self.shared.pool.allocate(bytes)
    }

    /// The command in flight with this tag, as the device knows it; looks through all of them.
    pub fn find(&mut self, tag: u64) -> Option<CommandId> {
        let sqid = self.qid();
        self.ring.slots().find(tag).map(|cid| CommandId { sqid, cid })
    }

    // ---- submission -------------------------------------------------------------------------------------------------

    /// Reads blocks from `lba` on into `data`, whose length says how many.
    ///
    /// # Errors
    /// [`SubmitError`]; so for all commands. Nothing is told to the device before [`QueuePair::ring`].
    #[inline]
    pub fn read<'a>(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        data: impl Into<Data<'a>>,
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        self.transfer(NvmOpcode::READ, namespace, lba, data.into(), false, tag)
    }

    /// Writes `data` to the blocks from `lba` on.
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn write<'a>(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        data: impl Into<Data<'a>>,
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        self.transfer(NvmOpcode::WRITE, namespace, lba, data.into(), false, tag)
    }

    /// As [`QueuePair::write`], complete only when the blocks are on non-volatile media (FUA).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn write_through<'a>(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        data: impl Into<Data<'a>>,
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        self.transfer(NvmOpcode::WRITE, namespace, lba, data.into(), true, tag)
    }

    #[inline]
    fn transfer(
        &mut self,
        opcode: NvmOpcode,
        namespace: &Namespace,
        lba: u64,
        data: Data<'_>,
        fua: bool,
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        let command = ReadWrite {
            slba: lba,
            nlb_z: namespace.length_z(data.len).map_err(SubmitError::Argument)?,
            stc: false,
            prinfo: PrInfo(0),
            fua,
            lr: false,
            dtype: 0,
            dspec: 0,
            dsm: 0,
        };
        let sqe = SubmissionQueueEntry { nsid: namespace.nsid().into(), ..command.encode(opcode) };
        self.submit(sqe, Some(data), tag)
    }

    /// Brings all writes that were completed to non-volatile media.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn flush(&mut self, namespace: &Namespace, tag: u64) -> Result<CommandId, SubmitError> {
        let sqe = SubmissionQueueEntry {
            opcode: NvmOpcode::FLUSH.0,
            nsid: namespace.nsid().into(),
            ..SubmissionQueueEntry::default()
        };
        self.submit(sqe, None, tag)
    }

    /// Zeroes 1 to 65536 blocks; with `deallocate` the device may give their space back.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn write_zeroes(
        &mut self,
        namespace: &Namespace,
        lba: u64,
        blocks: u32,
        deallocate: bool,
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        let nlb_z = blocks.checked_sub(1).and_then(|n| u16::try_from(n).ok());
        let command = WriteZeroes {
            slba: lba,
            nlb_z: nlb_z.ok_or(SubmitError::Argument("not 1 to 65536 blocks"))?,
            stc: false,
            deac: deallocate,
            prinfo: PrInfo(0),
            fua: false,
            lr: false,
        };
        let sqe = SubmissionQueueEntry { nsid: namespace.nsid().into(), ..command.encode() };
        self.submit(sqe, None, tag)
    }

    /// Tells the device that the content of 1 to 256 ranges, each of a first block and a number of blocks, is no longer
    /// needed (Dataset Management, Deallocate).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn deallocate(
        &mut self,
        namespace: &Namespace,
        ranges: &[(u64, u32)],
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        let nr_z = ranges.len().checked_sub(1).and_then(|n| u8::try_from(n).ok());
        let nr_z = nr_z.ok_or(SubmitError::Argument("not 1 to 256 ranges"))?;
        self.usable()?;
        let at = self.next_list().ok_or(SubmitError::Full)?;
        for (i, (slba, length)) in ranges.iter().enumerate() {
            let range = DsmRange { cattr: 0.into(), length: (*length).into(), slba: (*slba).into() };
            // 256 ranges of 16 bytes fit into the smallest page.
            let _ = self.lists.write(at + i * size_of::<DsmRange>(), range.as_bytes());
        }
        let command = DatasetManagement { nr_z, idr: false, idw: false, ad: true };
        let sqe = SubmissionQueueEntry {
            nsid: namespace.nsid().into(),
            prp1: (self.lists.iova() + at as u64).into(),
            ..command.encode()
        };
        self.push(sqe, tag, None)
    }

    /// Submits any command. Its identifier is filled in, and its PRPs when there is data.
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn submit(
        &mut self,
        sqe: SubmissionQueueEntry,
        data: Option<Data<'_>>,
        tag: u64,
    ) -> Result<CommandId, SubmitError> {
        self.usable()?;
        let Some(data) = data else { return self.push(sqe, tag, None) };
        let iova = data.iova().ok_or(SubmitError::Argument("data is not inside its buffer, or not dword aligned"))?;
        if data.len > self.max_transfer {
            return Err(SubmitError::Argument("more data than the device takes in one command"));
        }
        let at = self.next_list().ok_or(SubmitError::Full)?;
        let (prp1, prp2) = prp::pointers(self.shared.page, iova, data.len, Some((&self.lists, at)))
            .ok_or(SubmitError::Argument("more data than one PRP list holds"))?;
        let sqe = SubmissionQueueEntry { prp1: prp1.into(), prp2: prp2.into(), ..sqe };
        self.push(sqe, tag, Some(data.buffer.clone()))
    }

    /// Where the page of the next command's slot starts.
    #[inline]
    fn next_list(&mut self) -> Option<usize> {
        let page = self.shared.page;
        self.ring.slots().next().map(|index| usize::from(index) * page)
    }

    #[inline]
    fn push(&mut self, sqe: SubmissionQueueEntry, tag: u64, buffer: Option<Buffer>) -> Result<CommandId, SubmitError> {
        let cid = self.ring.push(sqe, tag, buffer).ok_or(SubmitError::Full)?;
        Ok(CommandId { sqid: self.qid(), cid })
    }

    /// Tells the device about all commands submitted since the last time.
    ///
    /// # Errors
    /// [`Error::Reset`], or that of an earlier failure, or of the transport.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Error> {
        self.usable()?;
        let result = self.ring.ring(&*self.shared.transport).map_err(Error::from);
        self.keep(result)
    }

    // ---- completion -------------------------------------------------------------------------------------------------

    /// Hands every command that is complete to `done`, without waiting, and returns their number.
    ///
    /// # Errors
    /// [`Error::TimedOut`] once for each command that takes too long, all others for good: [`Error::Reset`] after a controller
    /// reset, [`Error::Protocol`] for a completion that cannot be, [`Error::DeviceGone`], [`Error::FatalStatus`], and the
    /// transport's. Completions before that were handed over.
    #[inline]
    pub fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        self.usable()?;
        if self.cooperative {
            self.shared.transport.drive();
        }
        let result = self
            .ring
            .poll(&*self.shared.transport, |Completed { tag, status, dw0 }| done(Completion { tag, status, dw0 }));
        let count = self.keep(result)?;
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.look()?;
        }
        Ok(count)
    }

    /// Rings, then waits for at least one completion, by interrupt where the pair has one: like [`QueuePair::poll`] otherwise.
    /// Returns 0 when nothing is in flight or the time is over.
    ///
    /// # Errors
    /// As [`QueuePair::poll`].
    pub fn wait(&mut self, timeout: Duration, done: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        self.ring()?;
        let deadline = Instant::now().checked_add(timeout);
        let mut spins = 0u32;
        loop {
            let count = self.poll(done)?;
            if count > 0 || self.in_flight() == 0 {
                return Ok(count);
            }
            if self.vector.is_none() || self.cooperative {
                spins = spins.saturating_add(1);
                if spins < SPINS {
                    std::hint::spin_loop();
                    continue;
                }
                std::thread::yield_now();
                // On a busy machine it may be long until the polls are counted up.
                self.look()?;
            }
            let left = deadline.map_or(WAIT_SLICE, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                self.look()?;
                return Ok(0);
            }
            if let Some(vector) = self.vector.as_ref().filter(|_| !self.cooperative) {
                self.ring.counters.sleeps += 1;
                let slice = left.min(WAIT_SLICE).min(Duration::from_millis(self.limit));
                let signals = vector.wait(slice)?;
                self.ring.counters.interrupts += signals;
                if signals == 0 {
                    self.look()?;
                    let health = self.shared.check_health();
                    self.keep(health)?;
                }
            }
        }
    }

    /// Looks for commands that take too long.
    fn look(&mut self) -> Result<(), Error> {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.looked) < (self.limit / 16).max(1) {
            return Ok(());
        }
        self.looked = now;
        let Some(cid) = self.ring.slots().expired(now, self.limit) else { return Ok(()) };
        let health = self.shared.check_health();
        self.keep(health)?;
        Err(Error::TimedOut(CommandId { sqid: self.qid(), cid }))
    }

    #[inline]
    fn usable(&self) -> Result<(), Error> {
        if self.shared.epoch() != self.epoch {
            return Err(Error::Reset);
        }
        match &self.broken {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// An error stays.
    #[inline]
    fn keep<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.released {
            let mut memory = vec![self.ring.sq_memory().clone(), self.ring.cq_memory().clone(), self.lists.clone()];
            self.ring.slots().take_buffers(&mut memory);
            self.shared.leave(Orphan { qid: self.ring.qid(), epoch: self.epoch, memory });
        }
    }
}
