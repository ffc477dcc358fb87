//! Guest memory as the host sees it, and PRPs that describe it.

use std::{os::fd::OwnedFd, sync::Arc};

use dma::{Access, AddressSpace, Backing, Mapping, MemoryMap, Protection, Window};

/// Bytes of RAM in every layout.
const RAM: u64 = 16 << 20;

/// Where the RAM is in guest address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One range that starts at address 0, which is a legal address for anything.
    Low,
    /// One range above 4 GiB.
    High,
    /// Ranges of 48 KiB that follow each other in guest addresses and go backwards in the file behind them, so that nothing
    /// larger is one piece for the device, and pages of 64 KiB are none.
    Pieces,
}

impl Layout {
    pub const ALL: [Self; 3] = [Self::Low, Self::High, Self::Pieces];

    fn base(self) -> u64 {
        match self {
            Self::Low => 0,
            Self::High => 0x1_4000_0000,
            Self::Pieces => 0x10_0000,
        }
    }

    fn ranges(self) -> Vec<Range> {
        let piece = if self == Self::Pieces { 0xc000 } else { RAM };
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < RAM {
            let len = piece.min(RAM - at);
            ranges.push(Range { iova: self.base() + at, len, offset: RAM - at - len });
            at += len;
        }
        ranges
    }
}

#[derive(Debug, Clone, Copy)]
struct Range {
    iova: u64,
    len: u64,
    offset: u64,
}

/// A command's pair of pointers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prps {
    pub prp1: u64,
    pub prp2: u64,
}

/// RAM with an allocator that never frees, and two views of it: the host's own, and the device's, from which ranges can be
/// taken away.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
    ranges: Vec<Range>,
    host: Arc<MemoryMap>,
    device: AddressSpace,
    next: u64,
    end: u64,
}

impl Memory {
    pub fn new(layout: Layout) -> Self {
        let (_mapping, fd) = Mapping::new_shared("guest", RAM).unwrap();
        let mut memory = Self {
            fd,
            ranges: layout.ranges(),
            host: Arc::default(),
            device: AddressSpace::new(),
            next: layout.base(),
            end: layout.base() + RAM,
        };
        memory.host = memory.map_all().snapshot();
        memory.device = memory.map_all();
        memory
    }

    fn map_all(&self) -> AddressSpace {
        let mut space = AddressSpace::new();
        for range in &self.ranges {
            space.map(range.iova, range.len, self.backing(range.offset), Protection::READ_WRITE).unwrap();
        }
        space
    }

    fn backing(&self, offset: u64) -> Backing {
        Backing::File { fd: self.fd.try_clone().unwrap(), offset }
    }

    /// What the device gets.
    pub fn snapshot(&self) -> Arc<MemoryMap> {
        self.device.snapshot()
    }

    /// Takes all RAM away from the device.
    pub fn hide(&mut self) {
        self.device = AddressSpace::new();
    }

    /// Gives all RAM back to the device, where it was.
    pub fn show(&mut self) {
        self.device = self.map_all();
    }

    /// Gives the RAM back in other memory with the same content, as a guest that moves finds it. The host sees it there too.
    pub fn show_elsewhere(&mut self) {
        let (_mapping, fd) = Mapping::new_shared("moved", RAM).unwrap();
        let old = std::mem::replace(&mut self.fd, fd);
        let before = self.host.clone();
        // The other way round in the file, so that no offset is as it was.
        for range in &mut self.ranges {
            range.offset = RAM - range.offset - range.len;
        }
        self.host = self.map_all().snapshot();
        for range in &self.ranges {
            let mut bytes = vec![0; usize::try_from(range.len).unwrap()];
            before.read(range.iova, &mut bytes).unwrap();
            self.host.write(range.iova, &bytes).unwrap();
        }
        drop(old);
        self.show();
    }

    /// `bytes` of zeroed memory at a multiple of `align`.
    pub fn alloc(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.next.next_multiple_of(align);
        self.next = at + bytes;
        assert!(self.next <= self.end, "the test needs more RAM");
        at
    }

    /// The first address behind the RAM, which no range covers.
    pub fn nowhere(&self) -> u64 {
        self.end
    }

    pub fn window(&self, at: u64, bytes: usize) -> Window {
        self.host.window(at, bytes, Access::Write).unwrap()
    }

    pub fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.host.read(at, &mut out).unwrap();
        out
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.host.write(at, bytes).unwrap();
    }

    pub fn write_u64s(&self, at: u64, values: &[u64]) {
        for (i, value) in (0u64..).zip(values) {
            self.write(at + i * 8, &value.to_le_bytes());
        }
    }

    /// PRPs for `len` bytes from `buffer` on, which is one range of guest addresses with any dword offset in its first page.
    /// Lists start at the beginning of a page of their own.
    pub fn prps(&mut self, page: u64, buffer: u64, len: u64) -> Prps {
        self.prps_with_list_at(page, buffer, len, 0)
    }

    /// As [`Memory::prps`], with the first list at this offset in its page.
    pub fn prps_with_list_at(&mut self, page: u64, buffer: u64, len: u64, list_offset: u64) -> Prps {
        let first = page - buffer % page;
        let rest: Vec<u64> = (0..len.saturating_sub(first).div_ceil(page)).map(|i| buffer + first + i * page).collect();
        let prp2 = match rest.as_slice() {
            [] => 0,
            [second] => *second,
            entries => self.list(page, entries, list_offset),
        };
        Prps { prp1: buffer, prp2 }
    }

    /// Writes a PRP list, chained where it does not fit, and returns its address (NVMe Base 2.1 §4.3.1).
    pub fn list(&mut self, page: u64, entries: &[u64], offset: u64) -> u64 {
        let at = self.alloc(page, page) + offset;
        let room = usize::try_from((page - offset) / 8).unwrap();
        if entries.len() <= room {
            self.write_u64s(at, entries);
        } else {
            let (here, later) = entries.split_at(room - 1);
            let next = self.list(page, later, 0);
            self.write_u64s(at, here);
            self.write_u64s(at + 8 * here.len() as u64, &[next]);
        }
        at
    }
}
