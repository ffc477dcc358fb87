//! One mmap of a file descriptor: created, torn, dropped.

use std::{
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::{
    fs::{FileType, MemfdFlags, fstat, fstatfs, ftruncate, memfd_create},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
};

use crate::{Window, sigbus};

/// Smallest page that a map's address, size and file offset are multiples of, in bytes.
pub const MIN_PAGE: u64 = 4096;

/// `f_type` of hugetlbfs (`HUGETLBFS_MAGIC` in linux/magic.h).
const HUGETLBFS_MAGIC: i64 = 0x958458f6;

/// What the owner of the memory allows the device to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
}

impl Protection {
    /// Reads and writes allowed.
    pub const READ_WRITE: Self = Self { read: true, write: true };
    /// Reads only.
    pub const READ: Self = Self { read: true, write: false };
}

/// A live mmap. Unmapped when the last holder drops it.
#[derive(Debug)]
pub struct Mapping {
    /// What `mmap` returned; `base..base + mapped` belongs to this value alone.
    base: NonNull<u8>,
    mapped: usize,
    /// Where the wanted bytes start in the mapping (not 0 only for files with huge pages).
    skip: usize,
    len: usize,
    protection: Protection,
    /// Of this process alone; see [`Mapping::new_private`].
    private: bool,
    watch: sigbus::Watch,
}

// SAFETY: the mapping is process-wide memory, reached only through atomics, opaque copies and the kernel; the pointer is
// not tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` allows nothing but those accesses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared with whoever else holds the file.
    ///
    /// The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// `EINVAL` when `offset` or `len` is not a multiple of [`MIN_PAGE`], when `len` is 0 or when the file is shorter than
    /// `offset + len`; `ENODEV` when `fd` is no regular file (memfd, tmpfs and hugetlbfs files are); else what mmap says.
    pub fn of_file(fd: BorrowedFd<'_>, offset: u64, len: u64, protection: Protection) -> Result<Arc<Self>, Errno> {
        if len == 0 || !offset.is_multiple_of(MIN_PAGE) || !len.is_multiple_of(MIN_PAGE) {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        let stat = fstat(fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::NODEV);
        }
        // A mapping past the end of the file would raise SIGBUS at the first touch.
        if u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)? < end {
            return Err(Errno::INVAL);
        }
        // hugetlbfs takes only whole huge pages: map the pages around the wanted range.
        let fs = fstatfs(fd)?;
        let page = if fs.f_type == HUGETLBFS_MAGIC { u64::try_from(fs.f_bsize).unwrap_or(MIN_PAGE) } else { MIN_PAGE };
        let start = offset - offset % page;
        let mapped = end.checked_next_multiple_of(page).ok_or(Errno::INVAL)? - start;
        let mapped = usize::try_from(mapped).map_err(|_| Errno::NOMEM)?;
        let mut prot = ProtFlags::empty();
        if protection.read {
            prot |= ProtFlags::READ;
        }
        if protection.write {
            // Write-only pages do not exist on the machines that we run on.
            prot |= ProtFlags::READ | ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped, prot, MapFlags::SHARED, fd, start)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Arc::new(Self {
            base,
            mapped,
            // Both differences are below `mapped`, which fits.
            skip: usize::try_from(offset - start).map_err(|_| Errno::NOMEM)?,
            len: usize::try_from(len).map_err(|_| Errno::NOMEM)?,
            protection,
            private: false,
            watch: sigbus::Watch::new(base.as_ptr() as usize, mapped),
        }))
    }

    /// New zeroed memory of `len` bytes (rounded up to pages) in a memfd, mapped; for embedded guests, drivers and tests.
    /// The descriptor can be given to another process.
    ///
    /// # Errors
    /// What memfd_create, ftruncate and mmap say.
    pub fn new_shared(name: &str, len: u64) -> Result<(Arc<Self>, std::os::fd::OwnedFd), Errno> {
        let len = len.max(1).checked_next_multiple_of(MIN_PAGE).ok_or(Errno::INVAL)?;
        let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len)?;
        let mapping = Self::of_file(fd.as_fd(), 0, len, Protection::READ_WRITE)?;
        Ok((mapping, fd))
    }

    /// New zeroed memory of `len` bytes (rounded up to pages) that only this process can reach, in huge pages where the system
    /// has them for the asking. Pages are taken when they are first written.
    ///
    /// # Errors
    /// What mmap says.
    pub fn new_private(len: u64) -> Result<Arc<Self>, Errno> {
        let len = len.max(1).checked_next_multiple_of(MIN_PAGE).ok_or(Errno::INVAL)?;
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags)? };
        // SAFETY: the range was just mapped; the advice changes no content. It is refused where there are no huge pages.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let watch = sigbus::Watch::new(base.as_ptr() as usize, len);
        Ok(Arc::new(Self { base, mapped: len, skip: 0, len, protection: Protection::READ_WRITE, private: true, watch }))
    }

    /// Gives the pages of a range of private memory back to the system; they read as zeros from then on.
    ///
    /// # Errors
    /// `EINVAL` when the memory is not private, or the range is not inside it or not of whole pages ([`MIN_PAGE`]).
    pub fn release(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let page = usize::try_from(MIN_PAGE).unwrap_or(4096);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !self.private || !inside || !(offset | len).is_multiple_of(page) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the range is inside our own mapping, which is reached through atomics, opaque copies and the kernel only;
        // that its bytes become zeros is a write like any other to those.
        unsafe { madvise(self.at(offset).as_ptr().cast(), len, Advice::LinuxDontNeed) }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte; never true for a mapping that was made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the device may do with it.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Whether pages were lost because the file behind it was cut short. Lost pages read as zeros from then on.
    pub fn is_torn(&self) -> bool {
        self.watch.is_torn()
    }

    /// Whether a page that is lost is answered by the handler of [`crate::sigbus`], if that is installed: there is room for so
    /// many mappings only.
    pub fn is_watched(&self) -> bool {
        self.watch.is_there()
    }

    /// The whole mapping as one [`Window`].
    pub fn window(self: &Arc<Self>) -> Window {
        let mut window = Window::empty();
        window.push(self.clone(), 0, self.len);
        window
    }

    /// Address of byte `offset`, which must be at most `len`; stays valid for as long as the mapping lives.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.len, "offset inside the mapping");
        // SAFETY: skip + offset <= skip + len <= mapped, so the result stays inside the mmap (or one past it).
        unsafe { self.base.add(self.skip + offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch.release();
        // SAFETY: base and mapped are what mmap returned, and nobody else holds the value: the last `Arc` is being dropped.
        // An error leaves the memory mapped, which harms nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_of_private_memory_read_as_zeros_and_their_neighbours_stay() {
        let memory = Mapping::new_private(4 << 20).unwrap();
        let window = memory.window();
        window.write(0, &vec![7; 4 << 20]).unwrap();
        memory.release(4096, 8192).unwrap();
        let mut bytes = vec![1; 16384];
        window.read(0, &mut bytes).unwrap();
        assert!(bytes[..4096].iter().all(|b| *b == 7) && bytes[12288..].iter().all(|b| *b == 7));
        assert!(bytes[4096..12288].iter().all(|b| *b == 0));
        for (offset, len) in [(1, 4096), (0, 100), (4 << 20, 4096), (usize::MAX - 4095, 4096), (0, 8 << 20)] {
            assert_eq!(memory.release(offset, len), Err(Errno::INVAL), "{offset}+{len}");
        }
    }

    #[test]
    fn shared_memory_is_not_released_behind_its_owners_back() {
        let (memory, _fd) = Mapping::new_shared("shared", 8192).unwrap();
        assert_eq!(memory.release(0, 4096), Err(Errno::INVAL));
    }
}
