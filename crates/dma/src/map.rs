//! Which guest addresses mean which bytes.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::io::Errno;

use crate::{Access, Fault, Mapping, Protection, Window};

/// What stands behind a range of guest addresses.
#[derive(Debug)]
pub enum Backing {
    /// A file (usually a memfd) from this offset in bytes. Closed once it is mapped.
    File {
        /// The file.
        fd: OwnedFd,
        /// Where the range starts in it, in bytes.
        offset: u64,
    },
    /// Memory that is mapped already, for embedded guests.
    Mapped(Arc<Mapping>),
    /// Nothing that we could reach: private RAM, or ROM.
    None,
}

/// Why a range was not mapped or unmapped. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Empty, or past 2^64.
    #[error("range {iova:#x}+{len:#x} is empty or ends past 2^64")]
    BadRange {
        /// Start of the range.
        iova: u64,
        /// Size in bytes.
        len: u64,
    },
    /// Another range is there already.
    #[error("range {iova:#x}+{len:#x} overlaps one that is mapped already")]
    Overlap {
        /// Start of the range.
        iova: u64,
        /// Size in bytes.
        len: u64,
    },
    /// The range to unmap cuts a mapped one in two, or nothing is mapped there.
    #[error("range {iova:#x}+{len:#x} does not match what is mapped")]
    NoMatch {
        /// Start of the range.
        iova: u64,
        /// Size in bytes.
        len: u64,
    },
    /// More ranges than we hold for one client.
    #[error("more than {} ranges", AddressSpace::MAX_RANGES)]
    TooMany,
    /// The file cannot be mapped.
    #[error("cannot map the file behind {iova:#x}+{len:#x}: {errno}")]
    Mmap {
        /// Start of the range.
        iova: u64,
        /// Size in bytes.
        len: u64,
        /// What failed; `EINVAL` also stands for a file that is too short or an address that is not page aligned.
        errno: Errno,
    },
}

#[derive(Debug, Clone)]
struct Range {
    iova: u64,
    /// Last guest address, so that a range may end at 2^64.
    last: u64,
    protection: Protection,
    mapping: Option<Arc<Mapping>>,
}

/// An immutable snapshot of a guest's memory.
#[derive(Debug, Default)]
pub struct MemoryMap {
    /// Sorted by address, without overlap.
    ranges: Vec<Range>,
}

impl MemoryMap {
    /// The mapping and the offset in it of a range that lies in one piece, as nearly all do; `None` for all others, which
    /// [`MemoryMap::pieces`] sorts out.
    #[inline]
    pub(crate) fn one_piece(&self, iova: u64, len: usize, access: Access) -> Option<(&Arc<Mapping>, usize)> {
        let range = self.find(iova)?;
        let mapping = range.mapping.as_ref()?;
        let allowed = match access {
            Access::Read => range.protection.read,
            Access::Write => range.protection.write,
        };
        // A range is never longer than its mapping, whose size is a usize.
        let offset = usize::try_from(iova - range.iova).ok()?;
        (allowed && len <= mapping.len() - offset).then_some((mapping, offset))
    }

    #[inline]
    fn find(&self, iova: u64) -> Option<&Range> {
        let i = self.ranges.partition_point(|r| r.last < iova);
        self.ranges.get(i).filter(|r| r.iova <= iova)
    }

    /// Calls `f(mapping, offset, len)` for each piece of `iova..iova + len`.
    pub(crate) fn pieces(
        &self,
        iova: u64,
        len: usize,
        access: Access,
        mut f: impl FnMut(&Arc<Mapping>, usize, usize),
    ) -> Result<(), Fault> {
        let (mut at, mut left) = (iova, len as u64);
        if left > 0 && at.checked_add(left - 1).is_none() {
            return Err(Fault::OutOfBounds);
        }
        while left > 0 {
            let range = self.find(at).ok_or(Fault::Unmapped { iova: at })?;
            let mapping = range.mapping.as_ref().ok_or(Fault::Unbacked { iova: at })?;
            let allowed = match access {
                Access::Read => range.protection.read,
                Access::Write => range.protection.write,
            };
            if !allowed {
                return Err(Fault::Protected { iova: at, access });
            }
            let offset = at - range.iova;
            // A range is never longer than its mapping, whose size is a usize.
            let n = (mapping.len() as u64 - offset).min(left);
            #[allow(clippy::cast_possible_truncation)]
            f(mapping, offset as usize, n as usize);
            left -= n;
            at = at.wrapping_add(n);
        }
        Ok(())
    }

    /// Copies from guest memory.
    ///
    /// # Errors
    /// The first address that fails; bytes before it may have been copied.
    pub fn read(&self, iova: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.window(iova, out.len(), Access::Read)?.read(0, out)
    }

    /// Copies into guest memory.
    ///
    /// # Errors
    /// The first address that fails; nothing was written then.
    pub fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.window(iova, bytes.len(), Access::Write)?.write(0, bytes)
    }

    /// Resolves a range for repeated use.
    ///
    /// # Errors
    /// The first address that `access` is not possible for.
    pub fn window(&self, iova: u64, len: usize, access: Access) -> Result<Window, Fault> {
        let mut window = Window::empty();
        self.pieces(iova, len, access, |mapping, offset, len| window.push(mapping.clone(), offset, len))?;
        Ok(window)
    }

    /// Whether the file behind some range was cut short; see [`crate::sigbus`].
    pub fn is_torn(&self) -> bool {
        self.ranges.iter().any(|r| r.mapping.as_ref().is_some_and(|m| m.is_torn()))
    }

    /// Number of ranges, and how many of them have no memory that we can reach.
    pub fn ranges(&self) -> (usize, usize) {
        (self.ranges.len(), self.ranges.iter().filter(|r| r.mapping.is_none()).count())
    }
}

/// A guest's memory as its VMM maps and unmaps it.
///
/// Each change makes a new [`MemoryMap`]. To unmap safely: keep the old snapshot, make the change, give the new snapshot
/// to all who use the memory, and wait until nobody else holds the old one ([`AddressSpace::is_idle`]). Only then may
/// the owner be told that the memory is its own again.
#[derive(Debug, Default)]
pub struct AddressSpace {
    current: Arc<MemoryMap>,
}

impl AddressSpace {
    /// Ranges that one client may hold at a time.
    pub const MAX_RANGES: usize = 65535;

    /// An address space with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory as it is now.
    pub fn snapshot(&self) -> Arc<MemoryMap> {
        self.current.clone()
    }

    /// Whether `old` is used by nobody but the caller.
    pub fn is_idle(old: &Arc<MemoryMap>) -> bool {
        Arc::strong_count(old) == 1
    }

    /// Adds a range of `len` bytes at `iova`.
    ///
    /// # Errors
    /// [`MapError`]; nothing changes then.
    pub fn map(&mut self, iova: u64, len: u64, backing: Backing, protection: Protection) -> Result<(), MapError> {
        let bad = MapError::BadRange { iova, len };
        let last = iova.checked_add(len.checked_sub(1).ok_or(bad)?).ok_or(bad)?;
        let at = self.current.ranges.partition_point(|r| r.last < iova);
        if self.current.ranges.get(at).is_some_and(|r| r.iova <= last) {
            return Err(MapError::Overlap { iova, len });
        }
        if self.current.ranges.len() >= Self::MAX_RANGES {
            return Err(MapError::TooMany);
        }
        let failed = |errno| MapError::Mmap { iova, len, errno };
        let mapping = match backing {
            Backing::None => None,
            _ if !iova.is_multiple_of(crate::MIN_PAGE) => return Err(failed(Errno::INVAL)),
            Backing::File { fd, offset } => {
                Some(Mapping::of_file(fd.as_fd(), offset, len, protection).map_err(failed)?)
            }
            Backing::Mapped(mapping) if mapping.len() as u64 == len => Some(mapping),
            Backing::Mapped(_) => return Err(failed(Errno::INVAL)),
        };
        let mut ranges = self.current.ranges.clone();
        ranges.insert(at, Range { iova, last, protection, mapping });
        self.current = Arc::new(MemoryMap { ranges });
        Ok(())
    }

    /// Takes away every range inside `iova..iova + len` and says how many bytes that were.
    ///
    /// # Errors
    /// [`MapError::NoMatch`] when the borders cut a range or nothing is mapped there; nothing changes then.
    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<u64, MapError> {
        let bad = MapError::BadRange { iova, len };
        let last = iova.checked_add(len.checked_sub(1).ok_or(bad)?).ok_or(bad)?;
        let start = self.current.ranges.partition_point(|r| r.last < iova);
        let end = self.current.ranges.partition_point(|r| r.iova <= last);
        let gone = &self.current.ranges[start..end.max(start)];
        if gone.is_empty() || gone.iter().any(|r| r.iova < iova || r.last > last) {
            return Err(MapError::NoMatch { iova, len });
        }
        let bytes = gone.iter().fold(0u64, |sum, r| sum.wrapping_add((r.last - r.iova).wrapping_add(1)));
        let mut ranges = self.current.ranges.clone();
        ranges.drain(start..end);
        self.current = Arc::new(MemoryMap { ranges });
        Ok(bytes)
    }

    /// Takes everything away.
    pub fn unmap_all(&mut self) {
        self.current = Arc::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segments;

    const RW: Protection = Protection::READ_WRITE;

    fn file(pages: u64) -> (Arc<Mapping>, OwnedFd) {
        Mapping::new_shared("guest", pages * 4096).unwrap()
    }

    fn part(fd: &OwnedFd, offset: u64) -> Backing {
        Backing::File { fd: fd.try_clone().unwrap(), offset }
    }

    #[test]
    fn maps_translate_across_ranges_that_follow_each_other() {
        let (ram, fd) = file(4);
        let mut space = AddressSpace::new();
        space.map(0x10000, 8192, part(&fd, 0), RW).unwrap();
        space.map(0x12000, 8192, part(&fd, 8192), RW).unwrap();
        let map = space.snapshot();
        map.write(0x11ffe, &[1, 2, 3, 4]).unwrap();
        let mut out = [0; 4];
        ram.window().read(8190, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4]);
        assert_eq!(map.read(0x13ffe, &mut out), Err(Fault::Unmapped { iova: 0x14000 }));
        assert_eq!(map.read(0xffff, &mut out), Err(Fault::Unmapped { iova: 0xffff }));
        assert_eq!(map.read(u64::MAX - 1, &mut out), Err(Fault::OutOfBounds));
    }

    #[test]
    fn address_zero_and_the_last_page_are_legal() {
        let (_ram, fd) = file(1);
        let mut space = AddressSpace::new();
        space.map(0, 4096, part(&fd, 0), RW).unwrap();
        space.map(u64::MAX - 4095, 4096, part(&fd, 0), RW).unwrap();
        space.snapshot().write(0, &[5]).unwrap();
        let mut out = [0];
        space.snapshot().read(u64::MAX - 4095, &mut out).unwrap();
        assert_eq!(out, [5]);
        assert_eq!(space.unmap(u64::MAX - 4095, 4096), Ok(4096));
    }

    #[test]
    fn hostile_ranges_are_refused_and_change_nothing() {
        let (_ram, fd) = file(2);
        let mut space = AddressSpace::new();
        space.map(0x2000, 0x2000, part(&fd, 0), RW).unwrap();
        let einval = |iova, len| Err(MapError::Mmap { iova, len, errno: Errno::INVAL });
        assert_eq!(space.map(0x1000, 0x1001, part(&fd, 0), RW), Err(MapError::Overlap { iova: 0x1000, len: 0x1001 }));
        assert_eq!(space.map(0x3fff, 1, part(&fd, 0), RW), Err(MapError::Overlap { iova: 0x3fff, len: 1 }));
        assert_eq!(space.map(0x8000, 0, part(&fd, 0), RW), Err(MapError::BadRange { iova: 0x8000, len: 0 }));
        assert_eq!(space.map(u64::MAX, 2, part(&fd, 0), RW), Err(MapError::BadRange { iova: u64::MAX, len: 2 }));
        assert_eq!(space.map(0x8000, 0x3000, part(&fd, 0), RW), einval(0x8000, 0x3000), "longer than the file");
        assert_eq!(space.map(0x8000, 0x1000, part(&fd, 0x1_0000_0000), RW), einval(0x8000, 0x1000));
        assert_eq!(space.map(0x8000, 0x1000, part(&fd, u64::MAX - 4095), RW), einval(0x8000, 0x1000));
        assert_eq!(space.map(0x8000, 0x1000, part(&fd, 1), RW), einval(0x8000, 0x1000));
        assert_eq!(space.map(0x8001, 0x1000, part(&fd, 0), RW), einval(0x8001, 0x1000));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(
            space.map(0x8000, 0x1000, Backing::File { fd: socket.into(), offset: 0 }, RW),
            Err(MapError::Mmap { iova: 0x8000, len: 0x1000, errno: Errno::NODEV })
        );
        assert_eq!(space.unmap(0x2000, 0x1000), Err(MapError::NoMatch { iova: 0x2000, len: 0x1000 }));
        assert_eq!(space.unmap(0x9000, 0x1000), Err(MapError::NoMatch { iova: 0x9000, len: 0x1000 }));
        assert_eq!(space.snapshot().ranges(), (1, 0));
        assert_eq!(space.unmap(0x1000, 0x4000), Ok(0x2000));
        assert_eq!(space.snapshot().ranges(), (0, 0));
    }

    #[test]
    fn ranges_without_a_file_are_known_but_not_reachable() {
        let mut space = AddressSpace::new();
        space.map(0xfffc_0000, 0x4_0000, Backing::None, Protection::READ).unwrap();
        assert_eq!(space.snapshot().read(0xfffc_0000, &mut [0]), Err(Fault::Unbacked { iova: 0xfffc_0000 }));
    }

    #[test]
    fn protection_is_checked_both_ways() {
        let (_ram, fd) = file(1);
        let mut space = AddressSpace::new();
        space.map(0, 4096, part(&fd, 0), Protection::READ).unwrap();
        space.map(4096, 4096, part(&fd, 0), Protection { read: false, write: true }).unwrap();
        let map = space.snapshot();
        assert_eq!(map.write(1, &[1]), Err(Fault::Protected { iova: 1, access: Access::Write }));
        map.write(4097, &[3]).unwrap();
        assert_eq!(map.read(4097, &mut [0]), Err(Fault::Protected { iova: 4097, access: Access::Read }));
        let mut out = [0];
        map.read(1, &mut out).unwrap();
        assert_eq!(out, [3]);
    }

    #[test]
    fn an_old_snapshot_is_busy_while_a_list_or_a_window_uses_it() {
        let (_ram, fd) = file(2);
        let mut space = AddressSpace::new();
        space.map(0, 8192, part(&fd, 0), RW).unwrap();
        let mut list = Segments::with_capacity(4);
        list.push(&space.snapshot(), 100, 4096, Access::Write).unwrap();
        list.push(&space.snapshot(), 4196, 100, Access::Write).unwrap();
        assert_eq!((list.iovecs().len(), list.bytes()), (1, 4196), "neighbours are merged");
        let old = space.snapshot();
        space.unmap_all();
        assert!(!AddressSpace::is_idle(&old));
        list.write(4190, b"abcdef").unwrap();
        assert_eq!(list.write(4191, b"abcdef"), Err(Fault::OutOfBounds));
        list.release();
        assert!(AddressSpace::is_idle(&old));
        let mut out = [0; 6];
        old.read(4290, &mut out).unwrap();
        assert_eq!(&out, b"abcdef");
    }

    #[test]
    fn lists_copy_to_and_from_device_memory() {
        let (_ram, fd) = file(4);
        let (disk, _fd) = file(4);
        let mut space = AddressSpace::new();
        space.map(0, 16384, part(&fd, 0), RW).unwrap();
        let map = space.snapshot();
        map.write(4090, b"scattered").unwrap();
        let mut list = Segments::default();
        list.push(&map, 4090, 4, Access::Read).unwrap();
        list.push(&map, 4094, 5, Access::Read).unwrap();
        list.push(&map, 0, 3, Access::Read).unwrap();
        list.copy_to(&disk.window(), 50).unwrap();
        let mut out = [1; 12];
        disk.window().read(50, &mut out).unwrap();
        assert_eq!(&out, b"scattered\0\0\0");
        assert_eq!(list.copy_to(&disk.window(), 16384 - 8), Err(Fault::OutOfBounds));
        disk.window().write(0, b"AAAABBBBBCCC").unwrap();
        list.copy_from(&disk.window(), 0).unwrap();
        map.read(4090, &mut out[..9]).unwrap();
        assert_eq!(&out[..9], b"AAAABBBBB");
        list.zero();
        let mut out = [1; 9];
        list.read(0, &mut out).unwrap();
        assert_eq!(out, [0; 9]);
    }
}
