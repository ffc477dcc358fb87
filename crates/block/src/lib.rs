//! What stands behind a namespace: devices of bytes with queues, independent of NVMe.
//!
//! A [`BlockDevice`] is shared by everybody who uses the disk; each worker opens a [`BlockQueue`] of its own, hands it
//! [`Request`]s and collects [`Completion`]s. A queue is shaped for polling: nothing blocks, nothing is allocated per
//! request, and [`BlockQueue::wait_fd`] says what to sleep on when there is nothing to do.
//!
//! | device | reads | writes | completes |
//! |---|---|---|---|
//! | [`NullDevice`] | nothing, or zeros | dropped | in `submit` |
//! | [`RamDevice`] | a copy | a copy | in `submit` |
//! | [`FileDevice`](file::FileDevice) | raw image or block device | the same | by io_uring, or by threads |
//!
//! Every backend passes the suite in [`conformance`].
//!
//! # Not done
//! - Resizing: [`Capabilities`] are read once.
//! - qcow2, NBD, RBD.
//! - A block device that zeroes by discard is not recognised: its [`Capabilities::discard_zeroes`] is false.
//!
//! Unsafe code lives in `file/uring.rs` and `file/sys.rs`.

use std::{fmt, os::fd::BorrowedFd};

use dma::{Segments, sigbus};

pub mod conformance;
mod error;
pub mod file;
mod null;
mod ram;

pub use error::{BlockError, Direction};
pub use null::NullDevice;
pub use ram::RamDevice;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Fill the segments from the device.
    Read,
    /// Store the segments' bytes.
    Write {
        /// Complete only when the bytes are on stable storage (force unit access).
        fua: bool,
    },
    /// Bring all writes that completed before this request was submitted to stable storage.
    Flush,
    /// Make the range read as zeros.
    WriteZeroes {
        /// The device may give the space back (a hole); else the range stays allocated where the device can tell.
        may_unmap: bool,
        /// As for a write.
        fua: bool,
    },
    /// The range's content is no longer needed; a hint. After success it reads as zeros if
    /// [`Capabilities::discard_zeroes`] says so, else as zeros or as its old content.
    Discard,
}

impl Operation {
    /// Whether it moves data from or to the segments.
    #[inline]
    pub fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. })
    }
}

/// One request: the submitter's, but for the time from [`Submitted::Queued`] until the queue hands it back in a
/// [`Completion`].
#[derive(Debug)]
pub struct Request {
    /// The submitter's own number; unique among its requests in flight, opaque to the queue.
    pub tag: u64,
    /// What to do.
    pub operation: Operation,
    /// First byte on the device; a multiple of [`Capabilities::block_size`].
    pub offset: u64,
    /// Bytes to work on, a multiple of [`Capabilities::block_size`]: for reads and writes equal to `segments.bytes()`, for
    /// a flush 0.
    pub len: u64,
    /// Guest memory to fill or to store; empty for all but reads and writes.
    pub segments: Segments,
}

/// What became of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request as it was submitted.
    pub request: Request,
    /// The result; after an error the range's content is undefined.
    pub result: Result<(), BlockError>,
}

/// What [`BlockQueue::submit`] did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// It is complete, with this result; after an error the range's content is undefined. The request is as it was.
    Done(Result<(), BlockError>),
    /// It is on its way, and its segments with it; [`BlockQueue::poll`] will hand it back.
    Queued,
    /// The queue has no room now: poll, then submit it again. The request is as it was.
    Full,
}

/// What a device is and can do. Fixed for as long as the device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Size in bytes, a multiple of `block_size`.
    pub size: u64,
    /// Smallest unit of every offset and length, in bytes: 512 or 4096. A power of two.
    pub block_size: u32,
    /// Writes fail with [`BlockError::ReadOnly`].
    pub read_only: bool,
    /// Completed writes may be lost at a crash until they are flushed.
    pub volatile_cache: bool,
    /// Discards do something.
    pub discard: bool,
    /// Discarded ranges read as zeros.
    pub discard_zeroes: bool,
    /// Unit in which discards take effect, in bytes; a multiple of `block_size`.
    pub discard_granularity: u32,
    /// Unit in which writes are cheapest, in bytes (a page, a filesystem block); a multiple of `block_size`.
    pub preferred_write: u32,
}

impl Capabilities {
    /// Whether the device can carry out the request: what every queue asks first.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`] for all that changes a read-only device; [`BlockError::OutOfRange`] when a byte is not on
    /// the device, when offset or length is misaligned, or when the segments do not hold `len` bytes.
    #[inline]
    pub fn check(&self, request: &Request) -> Result<(), BlockError> {
        let data = match request.operation {
            Operation::Flush => return Ok(()),
            Operation::Read => true,
            Operation::Write { .. } if !self.read_only => true,
            Operation::WriteZeroes { .. } | Operation::Discard if !self.read_only => false,
            Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard => {
                return Err(BlockError::ReadOnly);
            }
        };
        let mask = u64::from(self.block_size) - 1;
        let inside = request.offset.checked_add(request.len).is_some_and(|end| end <= self.size);
        let aligned = (request.offset | request.len) & mask == 0;
        if inside && aligned && (!data || request.segments.bytes() as u64 == request.len) {
            Ok(())
        } else {
            Err(BlockError::OutOfRange)
        }
    }

    /// Checks size and block size of a device to be made, with the reason in words.
    pub(crate) fn check_geometry(size: u64, block_size: u32) -> std::io::Result<()> {
        let refuse = |why: String| Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        if block_size != 512 && block_size != 4096 {
            return refuse(format!("block size {block_size} is not possible: use 512 or 4096"));
        }
        if size == 0 || !size.is_multiple_of(u64::from(block_size)) {
            return refuse(format!("size {size} is not a multiple of the block size {block_size} above 0"));
        }
        if i64::try_from(size).is_err() {
            return refuse(format!("size {size} is not possible: at most 2^63 - 1 bytes"));
        }
        Ok(())
    }
}

impl Request {
    /// The request itself; what stays has no segments.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { segments: std::mem::take(&mut self.segments), ..*self }
    }

    /// Whether all memory of the request is still there. When a client cuts the file behind its RAM short, the lost pages
    /// become zeros without an error of the access itself; see [`dma::sigbus`].
    #[inline]
    pub(crate) fn memory_intact(&self) -> Result<(), BlockError> {
        if sigbus::events() != 0 && self.segments.is_torn() { Err(BlockError::Memory) } else { Ok(()) }
    }
}

/// A disk. Cheap to share; the work happens in its queues.
pub trait BlockDevice: Send + Sync + fmt::Debug {
    /// Kind and source, for logs and error messages: `file /srv/disk.img`.
    fn name(&self) -> String;

    /// What it is and can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens a queue for up to `depth` requests in flight.
    ///
    /// # Errors
    /// What the operating system says, with what was tried.
    fn open_queue(&self, depth: usize) -> std::io::Result<Box<dyn BlockQueue>>;
}

/// One worker's way to a device. Requests of one queue may complete in any order.
///
/// A queue may be opened on one thread and used on another, and may move while nothing is in flight; requests in flight
/// may count as cancelled when it moves. Dropping it, on any thread, waits until nothing touches the memory of its
/// requests any more.
pub trait BlockQueue: Send {
    /// Carries a request out, or takes it ([`Request::take`]). It checks range and read-only itself, so that no caller can
    /// get it wrong.
    fn submit(&mut self, request: &mut Request) -> Submitted;

    /// Starts all that was submitted; called once a batch. [`BlockQueue::poll`] does the same.
    fn kick(&mut self);

    /// Hands back what is complete and says how many that were. Never blocks.
    fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> usize;

    /// Requests that were queued and not handed back.
    fn in_flight(&self) -> usize;

    /// Becomes readable when [`BlockQueue::poll`] has something to hand back; level-triggered, reset by a `poll` that hands
    /// back nothing. So: poll until it returns 0, then sleep. May be readable without reason. `None` for a queue that
    /// completes everything at once.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks for all requests in flight to end soon. They are handed back by [`BlockQueue::poll`] all the same, some with
    /// [`BlockError::Cancelled`]; a request that the kernel works on runs to its end.
    fn cancel(&mut self);
}
