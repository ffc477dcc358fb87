//! Memory of ours that another process may map.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
};

use crate::{Cell32, Fault, Mapping, Protection, Window};

/// Size of this host's pages in bytes: what an mmap is made of.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// A range of zeroed memory in a file of its own, to give away. The file's size is sealed, so that nobody can take the memory
/// from under us.
#[derive(Debug)]
pub struct SharedPages {
    fd: Arc<OwnedFd>,
    window: Window,
}

impl SharedPages {
    /// `len` bytes at `offset` of a new memfd. What is before them in the file is a hole and takes no memory.
    ///
    /// # Errors
    /// `EINVAL` when this host's pages do not divide `offset` and `len`; else what the system says.
    pub fn new(name: &str, offset: u64, len: u64) -> Result<Self, Errno> {
        let page = page_size();
        if !offset.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(Errno::INVAL);
        }
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, offset.checked_add(len).ok_or(Errno::INVAL)?)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let window = Mapping::of_file(fd.as_fd(), offset, len, Protection::READ_WRITE)?.window();
        Ok(Self { fd: Arc::new(fd), window })
    }

    /// The file.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// A word; `offset` counts from the start of the range.
    ///
    /// # Errors
    /// As [`Window::cell32`].
    pub fn cell32(&self, offset: usize) -> Result<Cell32, Fault> {
        self.window.cell32(offset)
    }

    /// Fills the range with zeros.
    pub fn zero(&self) {
        const ZEROS: [u8; 512] = [0; 512];
        for at in (0..self.window.len()).step_by(ZEROS.len()) {
            // Inside: the range is made of pages.
            let _ = self.window.write(at, &ZEROS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_sides_see_the_same_words_and_nobody_can_cut_the_file_short() {
        let page = page_size();
        let ours = SharedPages::new("page", page, page).unwrap();
        let theirs = Mapping::of_file(ours.fd().as_fd(), page, page, Protection::READ_WRITE).unwrap().window();
        theirs.write(8, &[1, 2, 3, 4]).unwrap();
        assert_eq!(ours.cell32(8).unwrap().load(Ordering::Acquire), 0x0403_0201);
        let last = usize::try_from(page).unwrap() - 4;
        ours.cell32(last).unwrap().store(7, Ordering::Release);
        assert!(ours.cell32(last + 4).is_err());
        ours.zero();
        let mut raw = [1; 4];
        for at in [8, last] {
            theirs.read(at, &mut raw).unwrap();
            assert_eq!(raw, [0; 4]);
        }
        for len in [0, page, 3 * page] {
            assert_eq!(ftruncate(&**ours.fd(), len), Err(Errno::PERM));
        }
    }

    #[test]
    fn only_whole_pages_can_be_given_away() {
        for (offset, len) in [(1, page_size()), (0, page_size() - 1), (0, 0), (u64::MAX - page_size() + 1, page_size())]
        {
            assert!(SharedPages::new("page", offset, len).is_err(), "{offset} {len}");
        }
    }
}
