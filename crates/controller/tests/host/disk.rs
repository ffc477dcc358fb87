//! A disk that completes requests when the test says so.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard},
};

use block::{BlockDevice, BlockError, BlockQueue, Capabilities, Completion, Operation, RamDevice, Request, Submitted};
use rustix::event::{EventfdFlags, eventfd};

use super::random::Random;

/// A RAM disk behind a gate.
#[derive(Debug, Clone)]
pub struct GatedDisk(Arc<Gate>);

#[derive(Debug)]
struct Gate {
    ram: RamDevice,
    capabilities: Capabilities,
    ready: OwnedFd,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    open: bool,
    room: usize,
    held: Vec<Request>,
    done: VecDeque<Completion>,
    seen: Vec<Operation>,
    cancels: usize,
}

impl GatedDisk {
    /// A disk of 4 MiB whose gate is open: it completes every request in `submit`.
    pub fn new(block_size: u32) -> Self {
        Self::with(block_size, |_| {})
    }

    /// A disk with other capabilities than a RAM disk has.
    pub fn with(block_size: u32, change: impl FnOnce(&mut Capabilities)) -> Self {
        let ram = RamDevice::new(4 << 20, block_size).unwrap();
        let mut capabilities = ram.capabilities();
        change(&mut capabilities);
        let inner = Inner {
            open: true,
            room: usize::MAX,
            held: Vec::new(),
            done: VecDeque::new(),
            seen: Vec::new(),
            cancels: 0,
        };
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self(Arc::new(Gate { ram, capabilities, ready, inner: Mutex::new(inner) }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap()
    }

    /// Holds every request from now on, until it is released.
    pub fn close_gate(&self) {
        self.inner().open = false;
    }

    /// Completes requests at once from now on, and those that are held.
    pub fn open_gate(&self) {
        self.inner().open = true;
        self.release_all();
    }

    /// Takes only so many requests at a time; further ones are told that the queue is full.
    pub fn limit(&self, room: usize) {
        self.inner().room = room;
    }

    /// Requests that are held.
    pub fn held(&self) -> usize {
        self.inner().held.len()
    }

    /// The offset of each held request.
    pub fn held_offsets(&self) -> Vec<u64> {
        self.inner().held.iter().map(|r| r.offset).collect()
    }

    /// Everything that was ever submitted and taken.
    pub fn seen(&self) -> Vec<Operation> {
        self.inner().seen.clone()
    }

    /// How often the controller asked for cancellation.
    pub fn cancels(&self) -> usize {
        self.inner().cancels
    }

    /// Completes the held request at `index` with success, now doing what it asks for.
    pub fn release(&self, index: usize) {
        let request = self.inner().held.remove(index);
        let completion = carry_out(&self.0.ram, request);
        self.finish(completion);
    }

    /// Ends the held request at `index` with an error.
    pub fn fail(&self, index: usize, error: BlockError) {
        let request = self.inner().held.remove(index);
        self.finish(Completion { request, result: Err(error) });
    }

    /// Completes the oldest `n` held requests.
    pub fn release_some(&self, n: usize) {
        for _ in 0..n.min(self.held()) {
            self.release(0);
        }
    }

    pub fn release_all(&self) {
        self.release_some(usize::MAX);
    }

    /// Completes some of the held requests in some order.
    pub fn release_randomly(&self, random: &mut Random) {
        for _ in 0..random.index(self.held() + 1) {
            self.release(random.index(self.held()));
        }
    }

    fn finish(&self, completion: Completion) {
        self.inner().done.push_back(completion);
        rustix::io::write(&self.0.ready, &1u64.to_ne_bytes()).unwrap();
    }
}

fn carry_out(ram: &RamDevice, mut request: Request) -> Completion {
    match ram.open_queue(1).unwrap().submit(&mut request) {
        Submitted::Done(result) => Completion { request, result },
        Submitted::Queued | Submitted::Full => unreachable!("RAM completes at once"),
    }
}

impl BlockDevice for GatedDisk {
    fn name(&self) -> String {
        "gated disk".into()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn open_queue(&self, _depth: usize) -> std::io::Result<Box<dyn BlockQueue>> {
        Ok(Box::new(GatedQueue(self.clone())))
    }
}

struct GatedQueue(GatedDisk);

impl BlockQueue for GatedQueue {
    fn submit(&mut self, request: &mut Request) -> Submitted {
        if let Err(error) = self.0.0.capabilities.check(request) {
            return Submitted::Done(Err(error));
        }
        let mut inner = self.0.inner();
        if inner.held.len() + inner.done.len() >= inner.room {
            return Submitted::Full;
        }
        inner.seen.push(request.operation);
        if inner.open {
            let Completion { request: back, result } = carry_out(&self.0.0.ram, request.take());
            *request = back;
            return Submitted::Done(result);
        }
        inner.held.push(request.take());
        Submitted::Queued
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        let completions = std::mem::take(&mut self.0.inner().done);
        if completions.is_empty() {
            // An error says that it was not readable.
            let _ = rustix::io::read(&self.0.0.ready, &mut [0; 8]);
        }
        let n = completions.len();
        completions.into_iter().for_each(done);
        n
    }

    fn in_flight(&self) -> usize {
        let inner = self.0.inner();
        inner.held.len() + inner.done.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.0.ready.as_fd())
    }

    /// Only notes it: a stalled disk, which the kernel cannot call back either.
    fn cancel(&mut self) {
        self.0.inner().cancels += 1;
    }
}
