//! System calls without a safe form in rustix.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use rustix::fs::{fallocate, fdatasync};

use super::slot::Io;

/// `BLKDISCARD`: `_IO(0x12, 119)` in linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Pieces of memory for the kernel, in a buffer that is used again.
#[derive(Debug, Default)]
pub(super) struct Iovecs(pub(super) Vec<libc::iovec>);

// SAFETY: plain numbers for the kernel. The memory they name belongs to the request or to the bounce buffer in the same
// slot, which moves to another thread together with them; nothing in Rust looks behind them.
unsafe impl Send for Iovecs {}

/// Locks all of a file for as long as this open file description lives: for writing, or shared with other readers.
///
/// # Errors
/// `EAGAIN` when somebody else holds a lock that excludes this one, else what the kernel says.
pub(super) fn lock_whole_file(fd: BorrowedFd<'_>, exclusive: bool) -> io::Result<()> {
    set_lock(fd, if exclusive { libc::F_WRLCK } else { libc::F_RDLCK })
}

/// Gives the lock of [`lock_whole_file`] back.
///
/// # Errors
/// What the kernel says.
pub(super) fn unlock_whole_file(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_lock(fd, libc::F_UNLCK)
}

fn set_lock(fd: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: an all-zero flock is a valid value of this C struct; zero start and length mean the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).map_err(|_| io::ErrorKind::InvalidInput)?;
    lock.l_whence = libc::c_short::try_from(libc::SEEK_SET).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: F_OFD_SETLK reads the flock, which lives across the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads what is in the page cache, without waiting for anything: bytes read, or the error number, `EAGAIN` when nothing is
/// there. `iovecs` are those of a request, at most IOV_MAX.
pub(super) fn read_cached(fd: BorrowedFd<'_>, iovecs: &[libc::iovec], offset: u64) -> Result<u64, i32> {
    // SAFETY: the memory is mapped for as long as the request lives; the kernel writes there, to which no Rust reference exists.
    let n =
        unsafe { libc::preadv2(fd.as_raw_fd(), iovecs.as_ptr(), count(iovecs), position(offset)?, libc::RWF_NOWAIT) };
    moved(n)
}

/// Carries out one step and blocks for as long as it takes; bytes moved, or the error number.
pub(super) fn perform(fd: BorrowedFd<'_>, io: &Io<'_>) -> Result<u64, i32> {
    match io {
        Io::Read { iovecs, offset } => {
            // SAFETY: `Io` names memory that is mapped for as long as it lives, at most IOV_MAX pieces of it; the kernel
            // writes there, to which no Rust reference exists.
            let n = unsafe { libc::preadv2(fd.as_raw_fd(), iovecs.as_ptr(), count(iovecs), position(*offset)?, 0) };
            moved(n)
        }
        Io::Write { iovecs, offset, durable } => {
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: as above; the kernel only reads there.
            let n =
                unsafe { libc::pwritev2(fd.as_raw_fd(), iovecs.as_ptr(), count(iovecs), position(*offset)?, flags) };
            moved(n)
        }
        Io::Sync => fdatasync(fd).map(|()| 0).map_err(|errno| errno.raw_os_error()),
        Io::Fallocate { mode, offset, len } => {
            fallocate(fd, *mode, *offset, *len).map(|()| 0).map_err(|errno| errno.raw_os_error())
        }
        Io::Discard { offset, len } => {
            let range = [*offset, *len];
            // SAFETY: BLKDISCARD reads two 64-bit numbers, which live across the call.
            let result = unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
            moved(result as isize)
        }
    }
}

/// At most IOV_MAX, see [`Io`].
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
fn count(iovecs: &[libc::iovec]) -> libc::c_int {
    iovecs.len() as libc::c_int
}

fn position(offset: u64) -> Result<libc::off_t, i32> {
    libc::off_t::try_from(offset).map_err(|_| libc::EINVAL)
}

fn moved(n: isize) -> Result<u64, i32> {
    u64::try_from(n).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
