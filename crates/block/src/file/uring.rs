//! The io_uring engine: batched submission, no blocking call, no allocation per request.
//!
//! # Who may enter the ring
//! Where the kernel can, the ring is made with `SINGLE_ISSUER | DEFER_TASKRUN`: completions are prepared on the thread that
//! asks for them, and only one thread may ask. It is made disabled and belongs to the first thread that uses it; when
//! another thread takes the queue over, it gets a new ring. Requests that the old ring still has then can be reached by
//! nobody (not even after its thread ended: their completions wait for it for ever), so the old ring is torn down and they
//! count as cancelled.
//!
//! # Memory
//! The kernel works on the memory of a request until its completion entry is seen: a slot keeps the request until then, and
//! dropping the queue waits for all of them. Closing a ring ends nothing that has started, and the kernel does not say when
//! it is done with it. So each ring holds the only writer of a pipe among its registered files: the kernel closes it when
//! it frees the ring, after the last request, and the pipe's reader sees that ([`Ring::tear_down`]).

use std::{
    cell::Cell,
    collections::VecDeque,
    fmt, io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};

use super::{
    Shared,
    slot::{IOV_MAX, Io, Progress, Slot},
    sys,
    threads::{Bell, Pool, lock},
};
use crate::{BlockError, BlockQueue, Completion, Operation, Request, Submitted};

/// Most requests in flight of one queue, whatever its opener asks for.
const MAX_DEPTH: usize = 8192;
/// `user_data` of the request that cancels the others; no slot has this number.
const CANCEL: u64 = u64::MAX;
/// Empty polls after which the bell is looked at although it should not ring.
const BELL_CHECK: u32 = 64;

/// A number for the current thread, never used twice in a process.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The ring and who may enter it.
struct Ring {
    /// Hangs up when the kernel has freed the ring.
    life: OwnedFd,
    uring: IoUring,
    /// Only one thread may enter: which one. `None`: nobody yet, the ring is disabled.
    owner: Option<u64>,
    single: bool,
}

impl Ring {
    fn new(shared: &Shared, bell: &Bell, depth: usize) -> io::Result<Self> {
        // One entry for each slot and one for the request that cancels; `depth` is at most MAX_DEPTH.
        let entries = u32::try_from((depth + 1).next_power_of_two()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (life, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let single = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .setup_cqsize(entries * 2)
            .build(entries);
        let ring = match single {
            Ok(uring) => Self { life, uring, owner: None, single: true },
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // Before Linux 6.1.
                let uring = IoUring::builder()
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_cqsize(entries * 2)
                    .build(entries)
                    .or_else(|_| IoUring::builder().setup_cqsize(entries * 2).build(entries))?;
                Self { life, uring, owner: None, single: false }
            }
            Err(error) => return Err(error),
        };
        let submitter = ring.uring.submitter();
        let mut probe = Probe::new();
        submitter.register_probe(&mut probe)?;
        let needed = [
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::AsyncCancel::CODE,
        ];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring lacks operations"));
        }
        submitter.register_files(&[shared.fd.as_raw_fd(), writer.as_raw_fd()])?;
        submitter.register_eventfd(bell.as_fd().as_raw_fd())?;
        Ok(ring)
    }

    /// Whether the current thread may enter; makes it the owner if there is none.
    fn enter_allowed(&mut self) -> io::Result<bool> {
        if !self.single {
            return Ok(true);
        }
        let me = this_thread();
        if self.owner.is_none() {
            self.uring.submitter().register_enable_rings()?;
            self.owner = Some(me);
        }
        Ok(self.owner == Some(me))
    }

    /// Whether the current thread may enter, without making it the owner.
    fn is_ours(&self) -> bool {
        !self.single || self.owner.is_none_or(|owner| owner == this_thread())
    }

    /// Closes the ring and waits until the kernel has done with its requests; cancels what can be.
    fn tear_down(self) {
        let Self { life, uring, .. } = self;
        drop(uring);
        // Nothing is ever written: the pipe only hangs up.
        while poll(&mut [PollFd::new(&life, PollFlags::IN)], None) == Err(Errno::INTR) {}
    }
}

/// Results of the calls that the ring cannot make.
#[derive(Debug, Default)]
struct Lane {
    done: Mutex<Vec<(u32, Result<u64, i32>)>>,
}

/// Reads of what is in the page cache: a single one is faster by a plain call than by the ring and its descriptor. It is tried
/// where it has worked lately, and now and then where it has not.
#[derive(Debug, Default)]
struct Cached {
    /// Requests until the next try.
    skip: u32,
    /// The last failure's `skip`.
    pause: u32,
}

impl Cached {
    const LONGEST: u32 = 256;

    /// The result, or `None` when the ring has to do it.
    fn read(&mut self, shared: &Shared, request: &Request) -> Option<Result<(), BlockError>> {
        let iovecs = request.segments.iovecs();
        if self.skip > 0 || iovecs.len() > IOV_MAX {
            self.skip = self.skip.saturating_sub(1);
            return None;
        }
        if sys::read_cached(shared.fd.as_fd(), iovecs, request.offset) == Ok(request.len) {
            self.pause = 0;
            return Some(request.memory_intact());
        }
        // Not there, not all of it, or an error that the ring will meet as well and report.
        self.pause = (2 * self.pause).clamp(1, Self::LONGEST);
        self.skip = self.pause;
        None
    }
}

pub(super) struct UringQueue {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    /// Taken out by Drop alone.
    ring: ManuallyDrop<Ring>,
    bell: Arc<Bell>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose next step waits to be handed to the kernel.
    pending: VecDeque<u32>,
    /// Slots that were given up before their next step.
    ready: Vec<u32>,
    lane: Arc<Lane>,
    /// Slots that the pool's threads work on.
    in_lane: usize,
    /// Slots that have an entry in the ring, or that the kernel works on: how many, and which.
    in_ring: usize,
    is_in_ring: Vec<bool>,
    cancelling: bool,
    /// The bell may be readable.
    rung: bool,
    empty_polls: u32,
    /// A failure of the ring was logged.
    told: bool,
    cached: Cached,
}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringQueue")
            .field("shared", &self.shared)
            .field("in_ring", &self.in_ring)
            .finish_non_exhaustive()
    }
}

impl UringQueue {
    /// # Errors
    /// When the kernel has no io_uring, or not for us.
    pub(super) fn new(shared: Arc<Shared>, pool: Arc<Pool>, depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, MAX_DEPTH);
        let bell = Arc::new(Bell::new()?);
        let ring = ManuallyDrop::new(Ring::new(&shared, &bell, depth)?);
        let last = u32::try_from(depth).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self {
            shared,
            pool,
            ring,
            bell,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..last).rev().collect(),
            pending: VecDeque::with_capacity(depth),
            ready: Vec::with_capacity(depth),
            lane: Arc::default(),
            in_lane: 0,
            in_ring: 0,
            is_in_ring: vec![false; depth],
            cancelling: false,
            rung: false,
            empty_polls: 0,
            told: false,
            cached: Cached::default(),
        })
    }

    /// Whether this thread may enter the ring; gives it a ring of its own if that belongs to another thread.
    fn enter_allowed(&mut self) -> bool {
        let allowed = match self.ring.enter_allowed() {
            Ok(false) => self.replace_ring(),
            other => other,
        };
        allowed.unwrap_or_else(|error| {
            self.tell("the ring cannot be used", &error);
            false
        })
    }

    fn replace_ring(&mut self) -> io::Result<bool> {
        let ring = Ring::new(&self.shared, &self.bell, self.slots.len())?;
        let old = std::mem::replace(&mut *self.ring, ring);
        self.cancelling = false;
        if self.in_ring > 0 {
            tracing::warn!(
                disk = %self.shared.path.display(),
                requests = self.in_ring,
                "a queue with requests in flight was taken to another thread; they are cancelled"
            );
            old.tear_down();
            self.abandon_ring();
        }
        self.ring.enter_allowed()
    }

    /// Counts what the ring had as cancelled; the kernel is done with it.
    fn abandon_ring(&mut self) {
        for (index, is_in_ring) in (0..).zip(&mut self.is_in_ring) {
            if std::mem::take(is_in_ring) {
                self.in_ring -= 1;
                self.ready.push(index);
            }
        }
        self.bell.ring();
        self.rung = true;
    }

    fn tell(&mut self, what: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::error!(disk = %self.shared.path.display(), %error, "{what}");
        }
    }

    /// Moves pending steps into the ring, as many as fit.
    fn fill(&mut self) {
        let Self { shared, ring, slots, pending, in_ring, is_in_ring, in_lane, .. } = self;
        let mut queue = ring.uring.submission();
        while let Some(&index) = pending.front() {
            let entry = match slots[index as usize].io(shared) {
                Io::Discard { offset, len } => {
                    let (shared, lane, bell) = (shared.clone(), self.lane.clone(), self.bell.clone());
                    self.pool.spawn(Box::new(move || {
                        let result = sys::perform(shared.fd.as_fd(), &Io::Discard { offset, len });
                        lock(&lane.done).push((index, result));
                        bell.ring();
                    }));
                    *in_lane += 1;
                    pending.pop_front();
                    continue;
                }
                io => entry(&io).user_data(u64::from(index)),
            };
            // SAFETY: the entry names an iovec list and memory that slots[index] owns: its request's segments (which hold
            // their mappings), its bounce buffer, its scratch list, or a static. None of these is changed or dropped before
            // the completion entry was seen: only `settle` touches them, after that, and Drop waits.
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            pending.pop_front();
            *in_ring += 1;
            is_in_ring[index as usize] = true;
        }
    }

    /// Gives the ring's entries to the kernel.
    fn start(&mut self) {
        if self.pending.is_empty() && self.ring.uring.submission().is_empty() {
            return;
        }
        if !self.enter_allowed() {
            return;
        }
        loop {
            self.fill();
            if self.ring.uring.submission().is_empty() {
                return;
            }
            match self.ring.uring.submit() {
                Ok(n) if n > 0 => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => {
                    // The completion ring is full, or the kernel has no memory now: the next poll tries again.
                    match other {
                        Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                            self.tell("requests cannot be submitted", &error);
                        }
                        _ => {}
                    }
                    self.bell.ring();
                    self.rung = true;
                    return;
                }
            }
        }
    }

    /// Looks at a slot's result and hands its request back if it is complete.
    fn settle(&mut self, index: u32, result: Result<u64, i32>, done: &mut dyn FnMut(Completion)) -> bool {
        match self.slots[index as usize].finish(&self.shared, result) {
            Progress::Again => {
                self.pending.push_back(index);
                false
            }
            Progress::Done(result) => {
                self.hand_back(index, result, done);
                true
            }
        }
    }

    fn hand_back(&mut self, index: u32, result: Result<(), BlockError>, done: &mut dyn FnMut(Completion)) {
        let completion = self.slots[index as usize].take(result);
        self.free.push(index);
        done(completion);
    }

    fn collect_lane(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        let mut handed = 0;
        while let Some((index, result)) = { lock(&self.lane.done).pop() } {
            self.rung = true;
            self.in_lane -= 1;
            handed += usize::from(self.settle(index, result, done));
        }
        handed
    }

    /// Collects results and starts the steps that follow from them.
    fn collect(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        let mut handed = 0;
        let has_work = {
            let queue = self.ring.uring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        if has_work && self.enter_allowed() {
            // With work to run, this enters with GETEVENTS, and that runs it.
            match self.ring.uring.submit() {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    self.tell("completions cannot be collected", &error);
                }
                _ => {}
            }
        }
        // One entry at a time: handing back needs the whole queue, and the iterator would hold the ring.
        loop {
            let next = self.ring.uring.completion().next();
            let Some(entry) = next else { break };
            self.rung = true;
            let result = entry.result();
            match u32::try_from(entry.user_data()) {
                Ok(index) if self.is_in_ring.get(index as usize).copied().unwrap_or(false) => {
                    self.in_ring -= 1;
                    self.is_in_ring[index as usize] = false;
                    let result = u64::try_from(result).map_err(|_| -result);
                    handed += usize::from(self.settle(index, result, done));
                }
                _ => self.cancelling = false,
            }
        }
        while let Some(index) = self.ready.pop() {
            self.rung = true;
            self.hand_back(index, Err(BlockError::Cancelled), done);
            handed += 1;
        }
        if self.in_lane > 0 {
            handed += self.collect_lane(done);
        }
        if !self.pending.is_empty() {
            self.start();
        }
        handed
    }
}

/// The ring's entry for a step.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
fn entry(io: &Io<'_>) -> squeue::Entry {
    let file = types::Fixed(0);
    match io {
        // An iovec list has at most IOV_MAX pieces.
        Io::Read { iovecs, offset } => {
            opcode::Readv::new(file, iovecs.as_ptr(), iovecs.len() as u32).offset(*offset).build()
        }
        Io::Write { iovecs, offset, durable } => {
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            opcode::Writev::new(file, iovecs.as_ptr(), iovecs.len() as u32).offset(*offset).rw_flags(flags).build()
        }
        Io::Fallocate { mode, offset, len } => {
            opcode::Fallocate::new(file, *len).offset(*offset).mode(mode.bits() as i32).build()
        }
        Io::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        // Not for the ring; `fill` has sent it elsewhere.
        Io::Discard { .. } => opcode::Nop::new().build(),
    }
}

impl BlockQueue for UringQueue {
    #[inline]
    fn submit(&mut self, request: &mut Request) -> Submitted {
        if let Some(result) = self.shared.answer(request) {
            return Submitted::Done(result);
        }
        if request.operation == Operation::Read && !self.shared.is_direct() && self.in_flight() == 0 {
            // With others on their way it goes along in their batch.
            if let Some(result) = self.cached.read(&self.shared, request) {
                return Submitted::Done(result);
            }
        }
        let Some(index) = self.free.pop() else { return Submitted::Full };
        self.slots[index as usize].start(&self.shared, request.take());
        self.pending.push_back(index);
        Submitted::Queued
    }

    fn kick(&mut self) {
        self.start();
    }

    fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        self.start();
        let mut handed = self.collect(done);
        if handed > 0 {
            self.empty_polls = 0;
            return handed;
        }
        self.empty_polls += 1;
        if self.rung || self.empty_polls >= BELL_CHECK {
            self.empty_polls = 0;
            // The kernel may ring a moment after we saw the entry: it rings for each, so without a ring one is to come.
            if self.bell.silence() {
                self.rung = false;
            }
            // What came in between rings after the silence.
            handed = self.collect(done);
        }
        handed
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some((*self.bell).as_fd())
    }

    fn cancel(&mut self) {
        if self.in_flight() == 0 {
            return;
        }
        for slot in &mut self.slots {
            slot.give_up();
        }
        if !self.pending.is_empty() {
            self.ready.extend(self.pending.drain(..));
            self.bell.ring();
        }
        if self.in_ring == 0 || self.cancelling || !self.enter_allowed() {
            return;
        }
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(CANCEL);
        // SAFETY: the entry names no memory.
        self.cancelling = unsafe { self.ring.uring.submission().push(&entry) }.is_ok();
        self.start();
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if self.ring.is_ours() {
            self.cancel();
            while self.in_ring > 0 {
                self.bell.silence();
                self.collect(&mut |_| {});
                if self.in_ring > 0 {
                    self.bell.wait(1000);
                }
            }
        }
        while self.in_lane > 0 {
            self.bell.silence();
            self.collect_lane(&mut |_| {});
            if self.in_lane > 0 {
                self.bell.wait(1000);
            }
        }
        // SAFETY: taken once, here, and not used again: the drop of the other fields does not know it.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        if self.in_ring > 0 {
            ring.tear_down();
        } else {
            // Let go of the image at once: the kernel frees the ring later.
            let _ = ring.uring.submitter().unregister_files();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{conformance::Guest, file::FileOptions};

    #[test]
    fn cached_reads_are_tried_where_they_work_and_seldom_where_they_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        std::fs::write(&path, vec![7; 65536]).unwrap();
        let options = FileOptions { direct: super::super::Direct::Off, ..FileOptions::default() };
        let shared = super::super::open::open(&path, &options).unwrap();
        let (guest, mut cached) = (Guest::new(), Cached::default());
        let segments = guest.segments(&[(0, 4096)]);
        let request = Request { tag: 1, operation: Operation::Read, offset: 8192, len: 4096, segments };
        assert_eq!(cached.read(&shared, &request), Some(Ok(())));
        assert_eq!(guest.read(0, 4096), vec![7; 4096]);
        // Nothing is there any more: the ring has to say so.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let mut tries = 0;
        for _ in 0..10_000 {
            tries += u32::from(cached.skip == 0);
            assert_eq!(cached.read(&shared, &request), None);
        }
        assert!((10..80).contains(&tries), "{tries} tries");
        std::fs::write(&path, vec![9; 65536]).unwrap();
        while cached.read(&shared, &request).is_none() {}
        assert_eq!((cached.skip, cached.pause), (0, 0));
        assert_eq!(guest.read(0, 4096), vec![9; 4096]);
    }
}
