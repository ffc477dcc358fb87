//! A file in memory (tmpfs) without holes: its pages are there, so they are reached without the kernel.
//!
//! A page that is not there would be made by the mere look at it, for good and past the point where the filesystem is full. So a
//! file with holes, or that may have got some since, is left to system calls. A file that is cut short behind our back takes
//! its pages along: what was copied then is worth nothing, and the system call that follows says what is wrong.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use dma::{Mapping, Protection, Window, sigbus};
use rustix::fs::{SeekFrom, seek};

use crate::{BlockError, Operation, Request};

#[derive(Debug)]
pub(super) struct MappedFile {
    mapping: Arc<Mapping>,
    window: Window,
    /// All pages are known to be there.
    whole: AtomicBool,
}

impl MappedFile {
    /// Maps the file if it has no hole, and if a lost page would not end the process.
    pub(super) fn new(fd: BorrowedFd<'_>, size: u64, read_only: bool) -> Option<Self> {
        let hole = seek(fd, SeekFrom::Hole(0)).ok()?;
        if hole < size || !sigbus::is_installed() {
            return None;
        }
        let protection = if read_only { Protection::READ } else { Protection::READ_WRITE };
        let mapping = Mapping::of_file(fd, 0, size, protection).ok().filter(|mapping| mapping.is_watched())?;
        Some(Self { window: mapping.window(), mapping, whole: AtomicBool::new(true) })
    }

    /// Carries out a request that was checked; `None` leaves it to a system call.
    #[inline]
    pub(super) fn carry_out(&self, request: &Request) -> Option<Result<(), BlockError>> {
        // Inside the mapping, whose size is in the address space.
        let offset = usize::try_from(request.offset).ok()?;
        match request.operation {
            Operation::Discard | Operation::WriteZeroes { .. } => {
                // Before it is done: who sees no holes must not meet one.
                self.whole.store(false, Ordering::Release);
                return None;
            }
            Operation::Flush => return None,
            Operation::Read | Operation::Write { .. } if !self.whole.load(Ordering::Acquire) => return None,
            Operation::Read => request.segments.copy_from(&self.window, offset).ok()?,
            Operation::Write { .. } => request.segments.copy_to(&self.window, offset).ok()?,
        }
        if self.mapping.is_torn() {
            self.whole.store(false, Ordering::Release);
            return None;
        }
        Some(request.memory_intact())
    }
}
