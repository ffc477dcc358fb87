//! One request on its way through the kernel, step by step, whichever engine carries the steps out.
//!
//! A request may take several: the rest of a short transfer, the fall-back where a filesystem cannot punch holes, the sync
//! after write zeroes that must be durable. [`Slot::io`] says what the next step is, [`Slot::finish`] what its result means.

use std::sync::atomic::{AtomicBool, Ordering};

use dma::Segments;
use rustix::fs::FallocateFlags;

use super::{Shared, sys::Iovecs};
use crate::{BlockError, Completion, Direction, Operation, Request};

/// Most pieces that one call takes (UIO_MAXIOV).
pub(super) const IOV_MAX: usize = 1024;
/// How often in a row a step is tried again that was interrupted or found no resources.
const MAX_RETRIES: u32 = 1000;
/// Pages of a bounce buffer that a slot keeps for its next request; larger ones are given back.
const KEPT_PAGES: usize = 32;

/// Memory that is aligned for direct I/O.
#[derive(Debug, Clone)]
#[repr(C, align(4096))]
pub(super) struct Page([u8; 4096]);

impl Page {
    pub(super) const ZERO: Self = Self([0; 4096]);

    pub(super) fn bytes_mut(&mut self) -> &mut [u8; 4096] {
        &mut self.0
    }
}

/// What zeros are written from.
static ZEROS: [Page; 16] = [Page::ZERO; 16];
const ZEROS_LEN: usize = 16 * 4096;
/// Pieces of [`ZEROS`] in one write: 4 MiB.
const ZEROS_PIECES: usize = 64;

/// One system call. The memory that it names is mapped, and no Rust reference to it exists, for as long as the slot that it
/// came from keeps its request; there are at most [`IOV_MAX`] pieces.
#[derive(Debug)]
pub(super) enum Io<'a> {
    Read { iovecs: &'a [libc::iovec], offset: u64 },
    Write { iovecs: &'a [libc::iovec], offset: u64, durable: bool },
    Sync,
    Fallocate { mode: FallocateFlags, offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
}

/// What the result of a step means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is another step.
    Again,
    /// The request is complete.
    Done(Result<(), BlockError>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The request's own bytes.
    Data,
    Punch,
    ZeroRange,
    /// Zeros by hand.
    Zeros,
    /// BLKDISCARD.
    Discard,
    Sync,
}

/// Room for a request; used again and again, so that it allocates only when a request is larger than all before.
#[derive(Debug)]
pub(super) struct Slot {
    request: Request,
    stage: Stage,
    /// Bytes that are done in this stage.
    done: usize,
    retries: u32,
    /// Give up at the next chance.
    cancelled: bool,
    /// The last step was made with O_DIRECT.
    direct: bool,
    /// The data goes through `bounce`.
    bouncing: bool,
    bounce: Vec<Page>,
    scratch: Iovecs,
}

fn no_request() -> Request {
    Request { tag: 0, operation: Operation::Flush, offset: 0, len: 0, segments: Segments::default() }
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            request: no_request(),
            stage: Stage::Sync,
            done: 0,
            retries: 0,
            cancelled: false,
            direct: false,
            bouncing: false,
            bounce: Vec::new(),
            scratch: Iovecs::default(),
        }
    }
}

impl Slot {
    /// Takes a request that [`Shared::answer`] has let through.
    pub(super) fn start(&mut self, shared: &Shared, request: Request) {
        self.stage = match request.operation {
            Operation::Read | Operation::Write { .. } => Stage::Data,
            Operation::Flush => Stage::Sync,
            Operation::WriteZeroes { may_unmap, .. } => zeroing(shared, may_unmap),
            Operation::Discard if shared.block_device => Stage::Discard,
            Operation::Discard => Stage::Punch,
        };
        (self.done, self.retries, self.cancelled) = (0, 0, false);
        self.bouncing = self.stage == Stage::Data && shared.is_direct() && !is_aligned(&request.segments, shared);
        self.request = request;
        if self.bouncing {
            let pages = self.request.segments.bytes().div_ceil(4096);
            if self.bounce.len() < pages {
                self.bounce.resize(pages, Page::ZERO);
            }
            if let Operation::Write { .. } = self.request.operation {
                self.copy_bounce();
            }
        }
    }

    /// Marks a request as given up: it makes no further step.
    pub(super) fn give_up(&mut self) {
        self.cancelled = true;
    }

    /// Hands the request back.
    pub(super) fn take(&mut self, result: Result<(), BlockError>) -> Completion {
        if self.bounce.len() > KEPT_PAGES {
            self.bounce = Vec::new();
        }
        Completion { request: std::mem::replace(&mut self.request, no_request()), result }
    }

    /// The next step.
    pub(super) fn io(&mut self, shared: &Shared) -> Io<'_> {
        self.direct = shared.is_direct();
        let (offset, len) = (self.request.offset, self.request.len);
        let at = offset + self.done as u64;
        let durable = self.is_durable(shared) && !shared.no_dsync.load(Ordering::Relaxed);
        match self.stage {
            Stage::Data => {
                let write = self.request.operation != Operation::Read;
                let iovecs = if self.bouncing {
                    let base = self.bounce.as_mut_ptr().cast::<u8>().wrapping_add(self.done);
                    let iov_len = self.request.segments.bytes() - self.done;
                    self.scratch.0.clear();
                    self.scratch.0.push(libc::iovec { iov_base: base.cast(), iov_len });
                    &self.scratch.0
                } else {
                    rest(self.request.segments.iovecs(), self.done, &mut self.scratch.0)
                };
                if write { Io::Write { iovecs, offset: at, durable } } else { Io::Read { iovecs, offset: at } }
            }
            Stage::Zeros => {
                let mut left = len - self.done as u64;
                self.scratch.0.clear();
                while left > 0 && self.scratch.0.len() < ZEROS_PIECES {
                    let n = usize::try_from(left).unwrap_or(ZEROS_LEN).min(ZEROS_LEN);
                    self.scratch.0.push(libc::iovec { iov_base: ZEROS.as_ptr().cast_mut().cast(), iov_len: n });
                    left -= n as u64;
                }
                Io::Write { iovecs: &self.scratch.0, offset: at, durable }
            }
            Stage::Punch => Io::Fallocate { mode: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len },
            Stage::ZeroRange => {
                Io::Fallocate { mode: FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, len }
            }
            Stage::Discard => Io::Discard { offset, len },
            Stage::Sync => Io::Sync,
        }
    }

    /// Takes the result of the step that [`Slot::io`] named: bytes moved, or an error number.
    pub(super) fn finish(&mut self, shared: &Shared, result: Result<u64, i32>) -> Progress {
        match result {
            Ok(n) => self.advance(shared, n),
            Err(errno) => self.recover(shared, errno),
        }
    }

    fn advance(&mut self, shared: &Shared, n: u64) -> Progress {
        self.retries = 0;
        if let Stage::Data | Stage::Zeros = self.stage {
            // No byte moved and no error: the file ends before the disk does.
            let Some(n) = usize::try_from(n).ok().filter(|&n| n > 0) else { return self.fail(libc::EIO) };
            self.done += n;
            if (self.done as u64) < self.request.len {
                return self.again();
            }
            if self.request.operation == Operation::Read && self.bouncing {
                self.copy_bounce();
            }
        }
        let synced = match self.stage {
            Stage::Data | Stage::Zeros => !shared.no_dsync.load(Ordering::Relaxed),
            Stage::Sync => true,
            Stage::Punch | Stage::ZeroRange | Stage::Discard => false,
        };
        if self.is_durable(shared) && !synced {
            return self.turn(Stage::Sync);
        }
        Progress::Done(self.request.memory_intact())
    }

    fn recover(&mut self, shared: &Shared, errno: i32) -> Progress {
        let lacking = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV);
        match (self.stage, errno) {
            (_, libc::EINTR | libc::EAGAIN) if self.retries < MAX_RETRIES || self.cancelled => {
                self.retries += 1;
                self.again()
            }
            // O_DIRECT with an alignment that should do, and does not.
            (Stage::Data | Stage::Zeros, libc::EINVAL) if self.direct && shared.leave_direct() => self.again(),
            (Stage::Data | Stage::Zeros, libc::EOPNOTSUPP)
                if self.is_durable(shared) && !shared.no_dsync.load(Ordering::Relaxed) =>
            {
                remember(&shared.no_dsync, shared, "durable writes");
                self.again()
            }
            (Stage::Punch, _) if lacking => {
                remember(&shared.no_punch, shared, "holes");
                match self.request.operation {
                    Operation::WriteZeroes { .. } => self.turn(zeroing(shared, false)),
                    _ => self.fail(libc::EOPNOTSUPP),
                }
            }
            (Stage::ZeroRange, _) if lacking => {
                remember(&shared.no_zero_range, shared, "zeroed ranges");
                self.turn(Stage::Zeros)
            }
            // Known, but not for this range: zeros by hand are always right.
            (Stage::ZeroRange, libc::EINVAL) => self.turn(Stage::Zeros),
            (Stage::Punch, libc::EINVAL) if self.request.operation != Operation::Discard => self.turn(Stage::Zeros),
            (stage, errno) => {
                let cached = !self.direct && errno != libc::ECANCELED;
                let eaten = stage == Stage::Sync || (errno == libc::EIO && self.is_durable(shared));
                if cached && eaten && !shared.lost_writes.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        disk = %shared.path.display(),
                        error = %std::io::Error::from_raw_os_error(errno),
                        "writes that were reported as done may be lost; every further flush of this disk will fail"
                    );
                }
                self.fail(errno)
            }
        }
    }

    /// Whether the request must be on stable storage when it completes.
    fn is_durable(&self, shared: &Shared) -> bool {
        match self.request.operation {
            Operation::Read | Operation::Flush => false,
            Operation::Write { fua } | Operation::WriteZeroes { fua, .. } => fua || !shared.write_cache,
            Operation::Discard => !shared.write_cache,
        }
    }

    fn turn(&mut self, stage: Stage) -> Progress {
        (self.stage, self.done) = (stage, 0);
        self.again()
    }

    fn again(&self) -> Progress {
        if self.cancelled { Progress::Done(Err(BlockError::Cancelled)) } else { Progress::Again }
    }

    fn fail(&self, errno: i32) -> Progress {
        let direction = if self.request.operation == Operation::Read { Direction::Read } else { Direction::Write };
        Progress::Done(Err(BlockError::from_errno(errno, direction)))
    }

    /// Copies between the request's memory and the bounce buffer, in the direction of the request.
    fn copy_bounce(&mut self) {
        let (segments, total) = (&self.request.segments, self.request.segments.bytes());
        for (i, page) in self.bounce[..total.div_ceil(4096)].iter_mut().enumerate() {
            let n = (total - i * 4096).min(4096);
            let copied = match self.request.operation {
                Operation::Read => segments.write(i * 4096, &page.0[..n]),
                _ => segments.read(i * 4096, &mut page.0[..n]),
            };
            debug_assert!(copied.is_ok(), "the list holds its own bytes");
        }
    }
}

/// How a range becomes zeros here.
fn zeroing(shared: &Shared, may_unmap: bool) -> Stage {
    if may_unmap && !shared.no_punch.load(Ordering::Relaxed) {
        Stage::Punch
    } else if !shared.no_zero_range.load(Ordering::Relaxed) {
        Stage::ZeroRange
    } else {
        Stage::Zeros
    }
}

fn remember(flag: &AtomicBool, shared: &Shared, what: &str) {
    if !flag.swap(true, Ordering::Relaxed) {
        tracing::info!(disk = %shared.path.display(), "the storage does not know {what}");
    }
}

/// Whether direct I/O takes the list as it is: addresses aligned, lengths whole blocks (kernels before 6.18 want that of
/// each piece).
fn is_aligned(segments: &Segments, shared: &Shared) -> bool {
    let (memory, block) = (shared.memory_align - 1, shared.capabilities.block_size as usize - 1);
    segments.iovecs().iter().all(|piece| piece.iov_base as usize & memory == 0 && piece.iov_len & block == 0)
}

/// What is left of `list` after `done` bytes, at most [`IOV_MAX`] pieces; `scratch` holds it when `done` is inside a piece.
fn rest<'a>(list: &'a [libc::iovec], done: usize, scratch: &'a mut Vec<libc::iovec>) -> &'a [libc::iovec] {
    let (mut first, mut skip) = (0, done);
    while list.get(first).is_some_and(|piece| piece.iov_len <= skip) && first + 1 < list.len() {
        skip -= list[first].iov_len;
        first += 1;
    }
    let window = &list[first..list.len().min(first + IOV_MAX)];
    if skip == 0 {
        return window;
    }
    scratch.clear();
    scratch.extend_from_slice(window);
    if let Some(piece) = scratch.first_mut() {
        piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(skip).cast();
        piece.iov_len -= skip;
    }
    scratch
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{
        conformance::Guest,
        file::{Direct, FileDevice, FileOptions},
    };

    const FAULT: Progress = Progress::Done(Err(BlockError::WriteFault));
    const OK: Progress = Progress::Done(Ok(()));

    fn disk(options: FileOptions) -> (TempDir, FileDevice) {
        let directory = tempfile::tempdir().unwrap();
        let options = FileOptions { create: Some(8 << 20), ..options };
        let device = FileDevice::open(directory.path().join("disk"), options).unwrap();
        (directory, device)
    }

    fn cached() -> FileOptions {
        FileOptions { direct: Direct::Off, ..FileOptions::default() }
    }

    fn start(shared: &Shared, operation: Operation, len: u64, segments: Segments) -> Slot {
        let mut slot = Slot::default();
        slot.start(shared, Request { tag: 1, operation, offset: 4096, len, segments });
        slot
    }

    #[test]
    fn short_transfers_go_on_where_they_stopped() {
        let (_directory, device) = disk(cached());
        let (shared, guest) = (&*device.shared, Guest::new());
        let pieces: Vec<(u64, usize)> = (0..2000).map(|i| (i * 1024, 512)).collect();
        let segments = guest.segments(&pieces);
        let all = segments.iovecs().to_vec();
        let mut slot = start(shared, Operation::Read, 2000 * 512, segments);
        let mut done = 0;
        // Inside a piece, at a border, many pieces, more than one call takes.
        for n in [1, 511, 512, 700, 512 * 1024, 3] {
            let Io::Read { iovecs, offset } = slot.io(shared) else { panic!("a read") };
            assert_eq!(offset, 4096 + done as u64);
            assert!(iovecs.len() <= IOV_MAX);
            let (piece, skip) = (&all[done / 512], done % 512);
            assert_eq!(iovecs[0].iov_base as usize, piece.iov_base as usize + skip);
            assert_eq!(iovecs[0].iov_len, 512 - skip);
            assert_eq!(slot.finish(shared, Ok(n)), Progress::Again);
            done += usize::try_from(n).unwrap();
        }
        assert_eq!(slot.finish(shared, Ok((2000 * 512 - done) as u64)), OK);
    }

    #[test]
    fn no_progress_is_an_error_not_a_loop() {
        let (_directory, device) = disk(cached());
        let (shared, guest) = (&*device.shared, Guest::new());
        let mut slot = start(shared, Operation::Write { fua: false }, 4096, guest.segments(&[(0, 4096)]));
        assert_eq!(slot.finish(shared, Ok(0)), FAULT);
        let mut slot = start(shared, Operation::Read, 4096, guest.segments(&[(0, 4096)]));
        for _ in 0..MAX_RETRIES {
            assert_eq!(slot.finish(shared, Err(libc::EINTR)), Progress::Again);
        }
        assert_eq!(slot.finish(shared, Err(libc::EAGAIN)), Progress::Done(Err(BlockError::ReadFault)));
    }

    #[test]
    fn a_request_that_is_given_up_makes_no_further_step() {
        let (_directory, device) = disk(cached());
        let (shared, guest) = (&*device.shared, Guest::new());
        for result in [Ok(512), Err(libc::EINTR), Err(libc::ECANCELED)] {
            let mut slot = start(shared, Operation::Read, 4096, guest.segments(&[(0, 4096)]));
            slot.give_up();
            assert_eq!(slot.finish(shared, result), Progress::Done(Err(BlockError::Cancelled)));
        }
        let mut slot = start(shared, Operation::Read, 4096, guest.segments(&[(0, 4096)]));
        slot.give_up();
        assert_eq!(slot.finish(shared, Ok(4096)), OK, "it was carried out in time");
    }

    #[test]
    fn durable_writes_without_dsync_are_synced() {
        let (_directory, device) = disk(FileOptions { write_cache: false, ..cached() });
        let (shared, guest) = (&*device.shared, Guest::new());
        let write = || start(shared, Operation::Write { fua: false }, 4096, guest.segments(&[(0, 4096)]));
        let mut slot = write();
        assert!(matches!(slot.io(shared), Io::Write { durable: true, .. }));
        assert_eq!(slot.finish(shared, Err(libc::EOPNOTSUPP)), Progress::Again);
        for mut slot in [slot, write()] {
            assert!(matches!(slot.io(shared), Io::Write { durable: false, .. }));
            assert_eq!(slot.finish(shared, Ok(4096)), Progress::Again);
            assert!(matches!(slot.io(shared), Io::Sync));
            assert_eq!(slot.finish(shared, Ok(0)), OK);
        }
        let mut discard = start(shared, Operation::Discard, 4096, Segments::default());
        assert_eq!(discard.finish(shared, Ok(0)), Progress::Again, "what reads as zeros must do so after a crash");
        assert!(matches!(discard.io(shared), Io::Sync));
    }

    #[test]
    fn zeroing_falls_back_step_by_step_and_remembers() {
        let (_directory, device) = disk(cached());
        let shared = &*device.shared;
        shared.no_punch.store(false, Ordering::Relaxed);
        let zeroes =
            |len| start(shared, Operation::WriteZeroes { may_unmap: true, fua: false }, len, Segments::default());
        let mut slot = zeroes(8 << 20);
        assert!(matches!(slot.io(shared), Io::Fallocate { mode, .. } if mode.contains(FallocateFlags::PUNCH_HOLE)));
        assert_eq!(slot.finish(shared, Err(libc::EOPNOTSUPP)), Progress::Again);
        assert!(matches!(slot.io(shared), Io::Fallocate { mode, .. } if mode.contains(FallocateFlags::ZERO_RANGE)));
        assert_eq!(slot.finish(shared, Err(libc::EOPNOTSUPP)), Progress::Again);
        let Io::Write { iovecs, offset: 4096, durable: false } = slot.io(shared) else { panic!("zeros by hand") };
        assert_eq!(iovecs.iter().map(|piece| piece.iov_len).sum::<usize>(), 4 << 20);
        assert_eq!(slot.finish(shared, Ok(4 << 20)), Progress::Again);
        let Io::Write { iovecs, offset, .. } = slot.io(shared) else { panic!("the rest") };
        assert_eq!((iovecs.len(), offset), (64, 4096 + (4 << 20)));
        assert_eq!(slot.finish(shared, Ok(4 << 20)), OK);
        assert!(matches!(zeroes(4096).io(shared), Io::Write { .. }), "what failed is not tried again");
        let mut discard = start(shared, Operation::Discard, 4096, Segments::default());
        assert_eq!(discard.finish(shared, Err(libc::EOPNOTSUPP)), Progress::Done(Err(BlockError::Unsupported)));
        let mut slot = zeroes(4096);
        assert_eq!(slot.finish(shared, Err(libc::ENOSPC)), Progress::Done(Err(BlockError::NoSpace)));
    }

    #[test]
    fn other_errors_of_zeroing_are_not_swallowed() {
        let (_directory, device) = disk(cached());
        let shared = &*device.shared;
        shared.no_punch.store(false, Ordering::Relaxed);
        for operation in [Operation::WriteZeroes { may_unmap: true, fua: false }, Operation::Discard] {
            let mut slot = start(shared, operation, 4096, Segments::default());
            assert_eq!(slot.finish(shared, Err(libc::EIO)), FAULT, "{operation:?}");
        }
    }

    #[test]
    fn after_a_failed_flush_no_flush_succeeds() {
        let (_directory, device) = disk(cached());
        let shared = &*device.shared;
        let flush =
            || Request { tag: 1, operation: Operation::Flush, offset: 0, len: 0, segments: Segments::default() };
        assert_eq!(shared.answer(&flush()), None);
        let mut slot = start(shared, Operation::Flush, 0, Segments::default());
        let _ = slot.io(shared);
        assert_eq!(slot.finish(shared, Err(libc::EIO)), FAULT);
        assert_eq!(shared.answer(&flush()), Some(Err(BlockError::WriteFault)));
    }

    #[test]
    fn direct_io_that_is_refused_goes_through_the_page_cache() {
        let (_directory, device) = disk(FileOptions::default());
        if !device.is_direct() {
            // Nothing to leave on this filesystem.
            return;
        }
        let (shared, guest) = (&*device.shared, Guest::new());
        let read = || start(shared, Operation::Read, 4096, guest.segments(&[(0, 4096)]));
        let (mut one, mut two) = (read(), read());
        let _ = (one.io(shared), two.io(shared));
        assert_eq!(one.finish(shared, Err(libc::EINVAL)), Progress::Again);
        assert!(!device.is_direct());
        assert_eq!(two.finish(shared, Err(libc::EINVAL)), Progress::Again, "it was under way with O_DIRECT too");
        let _ = two.io(shared);
        assert_eq!(two.finish(shared, Err(libc::EINVAL)), Progress::Done(Err(BlockError::ReadFault)));
    }

    #[test]
    fn memory_that_is_misaligned_for_direct_io_is_bounced() {
        let (_directory, device) = disk(FileOptions::default());
        if !device.is_direct() {
            return;
        }
        let (shared, guest) = (&*device.shared, Guest::new());
        guest.write(2, b"hello");
        let mut slot = start(shared, Operation::Write { fua: false }, 8192, guest.segments(&[(2, 5000), (9000, 3192)]));
        let Io::Write { iovecs, .. } = slot.io(shared) else { panic!("a write") };
        assert_eq!((iovecs.len(), iovecs[0].iov_len, iovecs[0].iov_base as usize % 4096), (1, 8192, 0));
        assert_eq!(&slot.bounce[0].0[..5], b"hello");
        let aligned = guest.segments(&[(0, 4096)]);
        let base = aligned.iovecs()[0].iov_base;
        let mut slot = start(shared, Operation::Read, 4096, aligned);
        let Io::Read { iovecs, .. } = slot.io(shared) else { panic!("a read") };
        assert_eq!(iovecs[0].iov_base, base, "straight into guest memory");
    }
}
