//! Guest memory, a queue and helpers for the suite.

use std::{
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use dma::{Access, AddressSpace, Backing, Mapping, MemoryMap, Protection, Segments};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::MIN_SIZE;
use crate::{BlockDevice, BlockError, BlockQueue, Capabilities, Completion, Operation, Request, Submitted};

/// How long anything may take, on the slowest of machines.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// Where guest memory starts and how much there is, in bytes.
pub(super) const RAM: u64 = 0x10_0000;
pub(super) const RAM_LEN: u64 = 16 << 20;
/// Guest memory for tests: plain RAM from one memfd.
pub struct Guest {
    map: Arc<MemoryMap>,
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

impl Guest {
    /// 16 MiB at 1 MiB.
    pub fn new() -> Self {
        let (ram, _) = Mapping::new_shared("guest", RAM_LEN).unwrap_or_else(|errno| panic!("memory: {errno}"));
        let mut space = AddressSpace::new();
        let mapped = space.map(RAM, RAM_LEN, Backing::Mapped(ram), Protection::READ_WRITE);
        assert_eq!(mapped, Ok(()));
        Self { map: space.snapshot() }
    }

    /// Stores bytes at an offset from the start of its RAM.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(self.map.write(RAM + at, bytes), Ok(()));
    }

    /// Loads bytes from an offset.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.map.read(RAM + at, &mut bytes), Ok(()));
        bytes
    }

    /// A list of (offset, length) pieces.
    pub fn segments(&self, pieces: &[(u64, usize)]) -> Segments {
        let mut list = Segments::with_capacity(pieces.len());
        for &(at, len) in pieces {
            assert_eq!(list.push(&self.map, RAM + at, len, Access::Write), Ok(()));
        }
        list
    }

    /// Whether no request holds the memory any more.
    pub fn is_idle(&self) -> bool {
        AddressSpace::is_idle(&self.map)
    }
}

/// Pieces that follow each other from `at`, cut to the sizes in `cuts` again and again, with gaps of 8 bytes.
pub(super) fn scatter(mut at: u64, len: usize, cuts: &[usize]) -> Vec<(u64, usize)> {
    let (mut list, mut left) = (Vec::new(), len);
    for &cut in cuts.iter().cycle() {
        if left == 0 {
            break;
        }
        let n = cut.min(left);
        list.push((at, n));
        at += n as u64 + 8;
        left -= n;
    }
    list
}

pub(super) fn gather(guest: &Guest, pieces: &[(u64, usize)]) -> Vec<u8> {
    pieces.iter().flat_map(|&(at, len)| guest.read(at, len)).collect()
}

pub(super) fn spread(guest: &Guest, pieces: &[(u64, usize)], bytes: &[u8]) {
    let mut done = 0;
    for &(at, len) in pieces {
        guest.write(at, &bytes[done..done + len]);
        done += len;
    }
}

/// xorshift64*: the same numbers every time.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[7]).collect()
    }
}

pub(super) fn open(device: &Arc<dyn BlockDevice>, depth: usize) -> Box<dyn BlockQueue> {
    device.open_queue(depth).unwrap_or_else(|error| panic!("{}: {error}", device.name()))
}

/// Whether `wait_fd` is readable, at the latest after `limit`.
pub(super) fn rings(queue: &dyn BlockQueue, limit: Duration) -> bool {
    let Some(fd) = queue.wait_fd() else { return true };
    let timeout = Timespec { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(1), tv_nsec: 0 };
    let fd = fd.as_fd();
    let deadline = Instant::now() + limit;
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(n) => return n > 0,
            Err(_) if Instant::now() < deadline => {}
            Err(errno) => panic!("poll: {errno}"),
        }
    }
}

/// Polls, sleeping on `wait_fd`, until `n` requests were handed back.
pub(super) fn collect(queue: &mut dyn BlockQueue, n: usize) -> Vec<Completion> {
    let deadline = Instant::now() + LIMIT;
    let mut list = Vec::new();
    while list.len() < n {
        let before = list.len();
        let said = queue.poll(&mut |completion| list.push(completion));
        assert_eq!(said, list.len() - before, "poll counts what it hands back");
        if said == 0 {
            assert!(Instant::now() < deadline, "{} of {n} requests did not complete", n - list.len());
            assert!(rings(queue, LIMIT), "wait_fd must wake who waits for {} requests", n - list.len());
        }
    }
    list
}

pub(super) fn request(tag: u64, operation: Operation, offset: u64, len: u64, segments: Segments) -> Request {
    Request { tag, operation, offset, len, segments }
}

/// Submits one request and waits for it.
pub(super) fn run(queue: &mut dyn BlockQueue, mut request: Request) -> Result<(), BlockError> {
    let (tag, offset, bytes) = (request.tag, request.offset, request.segments.bytes());
    let completion = match queue.submit(&mut request) {
        Submitted::Done(result) => Completion { request, result },
        Submitted::Queued => {
            queue.kick();
            collect(queue, 1).remove(0)
        }
        Submitted::Full => panic!("an idle queue is not full"),
    };
    let back = &completion.request;
    assert_eq!(
        (back.tag, back.offset, back.segments.bytes()),
        (tag, offset, bytes),
        "the request comes back as it was"
    );
    completion.result
}

/// A device with a queue and guest memory, for one request at a time.
pub(super) struct Bench {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) queue: Box<dyn BlockQueue>,
    pub(super) caps: Capabilities,
    pub(super) guest: Guest,
    pub(super) block: u64,
}

impl Bench {
    pub(super) fn new(device: Arc<dyn BlockDevice>) -> Self {
        let caps = device.capabilities();
        assert!(caps.size >= MIN_SIZE, "the suite needs a larger device");
        let queue = open(&device, 64);
        Self { device, queue, caps, guest: Guest::new(), block: u64::from(caps.block_size) }
    }

    pub(super) fn run(
        &mut self,
        operation: Operation,
        offset: u64,
        len: u64,
        pieces: &[(u64, usize)],
    ) -> Result<(), BlockError> {
        run(&mut *self.queue, request(7, operation, offset, len, self.guest.segments(pieces)))
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.guest.write(0, bytes);
        let done = self.run(Operation::Write { fua: false }, offset, bytes.len() as u64, &[(0, bytes.len())]);
        assert_eq!(done, Ok(()), "write of {} bytes at {offset}", bytes.len());
    }

    pub(super) fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let at = RAM_LEN / 2;
        self.guest.write(at, &vec![0xee; len]);
        assert_eq!(
            self.run(Operation::Read, offset, len as u64, &[(at, len)]),
            Ok(()),
            "read of {len} bytes at {offset}"
        );
        self.guest.read(at, len)
    }
}

/// Bytes of `n` blocks, each block different.
pub(super) fn pattern(block: u64, n: u64, seed: u64) -> Vec<u8> {
    Random(seed * 2 + 1).bytes(usize::try_from(block * n).unwrap_or(0))
}
