//! What a file can do: alignment of direct I/O, holes, sizes that pay.

use std::{fs, os::fd::BorrowedFd, path::PathBuf};

use rustix::{
    fs::{
        AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl, fstat, fstatfs,
        ioctl_blksszget, major, minor, statx,
    },
    io::{Errno, pread},
};

use super::slot::Page;

/// `f_type` of tmpfs (`TMPFS_MAGIC` in linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Whether the page cache is all there is to the file.
pub(super) fn is_in_memory(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC)
}

/// Switches direct I/O on; returns the alignment of memory that it needs, in bytes.
///
/// # Errors
/// Why not, in words; the file then uses the page cache as before.
pub(super) fn go_direct(fd: BorrowedFd<'_>, block_device: bool, block_size: u32) -> Result<usize, String> {
    let (memory, unit, sure) = match reported(fd)? {
        Some((memory, unit)) => (memory, unit, true),
        None if block_device => {
            let unit = ioctl_blksszget(fd).map_err(|errno| errno.to_string())?;
            (unit.max(512), unit, true)
        }
        None => {
            // On tmpfs the page cache is the disk.
            if is_in_memory(fd) {
                return Err("the file is in memory (tmpfs)".into());
            }
            (512, 512, false)
        }
    };
    if unit > block_size {
        return Err(format!("the storage works in units of {unit} bytes and the disk in blocks of {block_size}"));
    }
    let flags = fcntl_getfl(fd).map_err(|errno| errno.to_string())?;
    fcntl_setfl(fd, flags | OFlags::DIRECT).map_err(|errno| format!("the filesystem refuses O_DIRECT ({errno})"))?;
    let trials: &[(u32, u32)] = if sure { &[(memory, unit)] } else { &[(512, 512), (4096, 4096)] };
    for &(memory, unit) in trials.iter().filter(|(_, unit)| *unit <= block_size) {
        let mut pages = vec![Page::ZERO; 1];
        let page = pages[0].bytes_mut();
        // A trial read; a hole may accept more than the data around it, which `Shared::leave_direct` answers.
        match pread(fd, &mut page[..unit as usize], u64::from(unit)) {
            Err(Errno::INVAL) => {}
            _ => return Ok((memory as usize).next_power_of_two()),
        }
    }
    fcntl_setfl(fd, flags).map_err(|errno| format!("O_DIRECT could not be switched off ({errno})"))?;
    Err("a trial read of one block was refused".into())
}

/// Alignment of memory and of offsets as the kernel reports it (Linux 6.1 and newer).
fn reported(fd: BorrowedFd<'_>) -> Result<Option<(u32, u32)>, String> {
    let Ok(stat) = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(None) };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(None);
    }
    match (stat.stx_dio_mem_align, stat.stx_dio_offset_align) {
        (0, _) | (_, 0) => Err("the filesystem cannot do it for this file".into()),
        (memory, unit) => Ok(Some((memory, unit))),
    }
}

pub(super) struct Limits {
    pub(super) discard: bool,
    pub(super) discard_granularity: u32,
    pub(super) preferred_write: u32,
}

pub(super) fn limits(fd: BorrowedFd<'_>, block_device: bool, block_size: u32, size: u64, read_only: bool) -> Limits {
    let stat = fstat(fd).ok();
    let unit = |bytes: u64| {
        let fits = bytes.is_power_of_two() && (u64::from(block_size)..=1 << 20).contains(&bytes);
        u32::try_from(bytes).ok().filter(|_| fits)
    };
    if !block_device {
        let own =
            stat.and_then(|stat| u64::try_from(stat.st_blksize).ok()).and_then(unit).unwrap_or(block_size.max(4096));
        return Limits {
            discard: !read_only && can_punch(fd, size, own.max(block_size)),
            discard_granularity: own,
            preferred_write: own,
        };
    }
    let queue = stat.and_then(|stat| queue_directory(stat.st_rdev));
    let limit = |name: &str| {
        let text = fs::read_to_string(queue.as_ref()?.join(name)).ok()?;
        text.trim().parse::<u64>().ok().filter(|&value| value != 0)
    };
    Limits {
        discard: !read_only && limit("discard_max_bytes").is_some(),
        discard_granularity: limit("discard_granularity").and_then(unit).unwrap_or(block_size),
        preferred_write: limit("optimal_io_size")
            .and_then(unit)
            .or_else(|| limit("physical_block_size").and_then(unit))
            .unwrap_or(block_size.max(4096)),
    }
}

/// The sysfs directory with a block device's limits; a partition has it one level up.
fn queue_directory(device: u64) -> Option<PathBuf> {
    let own = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    let own = fs::canonicalize(own).ok()?;
    [own.join("queue"), own.parent()?.join("queue")].into_iter().find(|path| path.is_dir())
}

/// Tries to make a hole behind the end of the file, where nothing is.
fn can_punch(fd: BorrowedFd<'_>, size: u64, unit: u32) -> bool {
    let unit = u64::from(unit);
    let offset = size.next_multiple_of(unit);
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, unit).is_ok()
}
