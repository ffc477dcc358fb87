//! The engine for hosts where io_uring is forbidden: a few threads with blocking calls.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{read, write},
};

use super::{
    Shared,
    slot::{Progress, Slot},
    sys,
};
use crate::{BlockError, BlockQueue, Completion, Request, Submitted};

/// Threads that one image uses at most.
const MAX_THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Locks, also after a panic elsewhere: all that is guarded here is whole between statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What wakes the owner of a queue.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn ring(&self) {
        // Fails only when the counter is full, and then it rings already.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable; says whether it was readable.
    pub(super) fn silence(&self) -> bool {
        read(&self.0, &mut [0; 8]).is_ok()
    }

    /// Sleeps until it rings, but not longer than `milliseconds`.
    pub(super) fn wait(&self, milliseconds: u32) {
        let timeout =
            Timespec { tv_sec: i64::from(milliseconds / 1000), tv_nsec: i64::from(milliseconds % 1000) * 1_000_000 };
        // An interrupted sleep is a short one.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout));
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Threads for blocking calls, started as they are needed and ended with the last queue of the image.
pub(super) struct Pool {
    work: Arc<Work>,
    name: String,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Work {
    state: Mutex<State>,
    change: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    stop: bool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(path: &Path) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        Self { work: Arc::default(), name: format!("io {file}"), threads: Mutex::default() }
    }

    /// Has a job done by one of the threads.
    pub(super) fn spawn(&self, job: Job) {
        let waiting = {
            let mut state = lock(&self.work.state);
            state.jobs.push_back(job);
            state.jobs.len() > state.idle
        };
        self.work.change.notify_one();
        if waiting {
            self.grow();
        }
    }

    fn grow(&self) {
        let mut threads = lock(&self.threads);
        if threads.len() >= MAX_THREADS {
            return;
        }
        let work = self.work.clone();
        match thread::Builder::new().name(self.name.clone()).spawn(move || work.serve()) {
            Ok(thread) => threads.push(thread),
            Err(error) if threads.is_empty() => {
                tracing::warn!(%error, "no thread could be started; the disk's calls block its worker");
                drop(threads);
                self.work.serve_once();
            }
            Err(_) => {}
        }
    }
}

impl Work {
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
            } else if state.stop {
                return;
            } else {
                state.idle += 1;
                state = self.change.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn serve_once(&self) {
        loop {
            let job = lock(&self.state).jobs.pop_front();
            let Some(job) = job else { return };
            job();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.work.state).stop = true;
        self.work.change.notify_all();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

/// A slot whose request is complete.
type Finished = (Slot, Result<(), BlockError>);

/// Where the threads put what is complete.
#[derive(Debug)]
struct Mail {
    done: Mutex<Vec<Finished>>,
    bell: Bell,
    /// Requests of batches below this one are given up.
    given_up: AtomicU64,
}

pub(super) struct ThreadQueue {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    mail: Arc<Mail>,
    /// Submitted and not given to the pool yet.
    batch: Vec<Slot>,
    free: Vec<Slot>,
    /// Spare list that is swapped with the mail.
    sorted: Vec<Finished>,
    in_flight: usize,
    depth: usize,
    epoch: u64,
}

impl ThreadQueue {
    pub(super) fn new(shared: Arc<Shared>, pool: Arc<Pool>, depth: usize) -> io::Result<Self> {
        let mail = Mail { done: Mutex::default(), bell: Bell::new()?, given_up: AtomicU64::new(0) };
        Ok(Self {
            shared,
            pool,
            mail: Arc::new(mail),
            batch: Vec::new(),
            free: Vec::new(),
            sorted: Vec::new(),
            in_flight: 0,
            depth: depth.max(1),
            epoch: 1,
        })
    }

    fn collect(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        std::mem::swap(&mut *lock(&self.mail.done), &mut self.sorted);
        let n = self.sorted.len();
        self.in_flight -= n;
        for (mut slot, result) in self.sorted.drain(..) {
            let completion = slot.take(result);
            self.free.push(slot);
            done(completion);
        }
        n
    }
}

/// Carries a request out from its first step to its last.
pub(super) fn run(shared: &Shared, slot: &mut Slot, is_given_up: impl Fn() -> bool) -> Result<(), BlockError> {
    loop {
        if is_given_up() {
            return Err(BlockError::Cancelled);
        }
        let io = slot.io(shared);
        let result = sys::perform(shared.fd.as_fd(), &io);
        if let Progress::Done(result) = slot.finish(shared, result) {
            return result;
        }
    }
}

impl BlockQueue for ThreadQueue {
    fn submit(&mut self, request: &mut Request) -> Submitted {
        if let Some(result) = self.shared.answer(request) {
            return Submitted::Done(result);
        }
        if self.in_flight >= self.depth {
            return Submitted::Full;
        }
        let mut slot = self.free.pop().unwrap_or_default();
        slot.start(&self.shared, request.take());
        self.batch.push(slot);
        self.in_flight += 1;
        Submitted::Queued
    }

    fn kick(&mut self) {
        for mut slot in self.batch.drain(..) {
            let (shared, mail, epoch) = (self.shared.clone(), self.mail.clone(), self.epoch);
            self.pool.spawn(Box::new(move || {
                let given_up = || mail.given_up.load(Ordering::Relaxed) > epoch;
                // A panic must not lose the request: its owner waits for it.
                let result = catch_unwind(AssertUnwindSafe(|| run(&shared, &mut slot, given_up)));
                lock(&mail.done).push((slot, result.unwrap_or(Err(BlockError::WriteFault))));
                mail.bell.ring();
            }));
        }
    }

    fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        self.kick();
        let mut n = self.collect(done);
        // Silence first, then look again: what comes in between rings after the silence.
        if n == 0 && self.mail.bell.silence() {
            n = self.collect(done);
        }
        n
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.mail.bell.as_fd())
    }

    fn cancel(&mut self) {
        self.epoch += 1;
        self.mail.given_up.store(self.epoch, Ordering::Relaxed);
        if !self.batch.is_empty() {
            let batch = self.batch.drain(..).map(|slot| (slot, Err(BlockError::Cancelled)));
            lock(&self.mail.done).extend(batch);
            self.mail.bell.ring();
        }
    }
}

impl Drop for ThreadQueue {
    fn drop(&mut self) {
        self.cancel();
        while self.in_flight > 0 {
            if self.collect(&mut |_| {}) == 0 {
                self.mail.bell.silence();
                if self.collect(&mut |_| {}) == 0 {
                    self.mail.bell.wait(1000);
                }
            }
        }
    }
}
