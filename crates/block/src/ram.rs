//! A disk in memory, gone with the process.

use std::{os::fd::BorrowedFd, sync::Arc};

use dma::{Fault, Mapping, Window};

use crate::{BlockDevice, BlockError, BlockQueue, Capabilities, Completion, Direction, Operation, Request, Submitted};

/// Unit in which the kernel takes memory back.
const PAGE: u64 = dma::MIN_PAGE;
static ZEROS: [u8; 4096] = [0; 4096];

/// Memory of this process. It is taken when it is first written, in huge pages where the system has them (2 MiB at a time then),
/// and given back by discard and write zeroes.
///
/// Requests that overlap while in flight on several queues mix byte by byte, as on a real disk.
#[derive(Debug, Clone)]
pub struct RamDevice(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    window: Window,
    mapping: Arc<Mapping>,
    capabilities: Capabilities,
}

impl RamDevice {
    /// A device of `size` zero bytes.
    ///
    /// # Errors
    /// `InvalidInput` with the reason for an impossible geometry, else what the kernel says about the memory.
    pub fn new(size: u64, block_size: u32) -> std::io::Result<Self> {
        Capabilities::check_geometry(size, block_size)?;
        let mapping = Mapping::new_private(size)?;
        let capabilities = Capabilities {
            size,
            block_size,
            read_only: false,
            // A flush has nothing to do: completed writes are as safe as they will ever be.
            volatile_cache: false,
            discard: true,
            discard_zeroes: true,
            discard_granularity: 4096,
            preferred_write: 4096,
        };
        Ok(Self(Arc::new(Memory { window: mapping.window(), mapping, capabilities })))
    }
}

impl BlockDevice for RamDevice {
    fn name(&self) -> String {
        format!("ram of {} bytes", self.0.capabilities.size)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn open_queue(&self, _depth: usize) -> std::io::Result<Box<dyn BlockQueue>> {
        Ok(Box::new(RamQueue(self.0.clone())))
    }
}

impl Memory {
    #[inline]
    fn carry_out(&self, request: &Request) -> Result<(), BlockError> {
        self.capabilities.check(request)?;
        // `check` keeps offset + len inside the window, which is in the address space.
        #[allow(clippy::cast_possible_truncation)]
        let offset = request.offset as usize;
        let outside = |_: Fault| BlockError::OutOfRange;
        match request.operation {
            Operation::Read => request.segments.copy_from(&self.window, offset).map_err(outside)?,
            Operation::Write { .. } => request.segments.copy_to(&self.window, offset).map_err(outside)?,
            Operation::Flush => return Ok(()),
            Operation::WriteZeroes { .. } | Operation::Discard => return self.clear(request.offset, request.len),
        }
        request.memory_intact()
    }

    /// Makes a range read as zeros: whole pages are given back, the parts of pages at the ends are overwritten.
    fn clear(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end - end % PAGE);
        if first >= last {
            // At most two partial pages.
            let cut = first.min(end);
            self.overwrite(offset, cut)?;
            return self.overwrite(cut, end);
        }
        self.overwrite(offset, first)?;
        self.overwrite(last, end)?;
        // Inside the mapping, whose size is in the address space.
        #[allow(clippy::cast_possible_truncation)]
        let (at, len) = (first as usize, (last - first) as usize);
        self.mapping.release(at, len).map_err(|errno| BlockError::from_errno(errno.raw_os_error(), Direction::Write))
    }

    /// Writes zeros to less than a page.
    fn overwrite(&self, from: u64, to: u64) -> Result<(), BlockError> {
        #[allow(clippy::cast_possible_truncation)]
        let (at, len) = (from as usize, (to - from) as usize);
        self.window.write(at, &ZEROS[..len]).map_err(|_| BlockError::OutOfRange)
    }
}

struct RamQueue(Arc<Memory>);

impl BlockQueue for RamQueue {
    #[inline]
    fn submit(&mut self, request: &mut Request) -> Submitted {
        Submitted::Done(self.0.carry_out(request))
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _done: &mut dyn FnMut(Completion)) -> usize {
        0
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn cancel(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Guest;

    /// Memory of this process in use, in bytes.
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
    }

    #[test]
    fn memory_is_taken_by_writes_and_given_back_by_zeroing() {
        // Much more than what other tests of this process use meanwhile.
        const BYTES: u64 = 256 << 20;
        const NOISE: u64 = 64 << 20;
        let device = RamDevice::new(BYTES, 512).unwrap();
        let (mut queue, guest) = (device.open_queue(1).unwrap(), Guest::new());
        let mut run = |operation, offset: u64, len: u64, segments| {
            let submitted = queue.submit(&mut Request { tag: 1, operation, offset, len, segments });
            assert_eq!(submitted, Submitted::Done(Ok(())));
        };
        let before = resident();
        for operation in [Operation::Discard, Operation::WriteZeroes { may_unmap: true, fua: false }] {
            for offset in (0..BYTES).step_by(1 << 20) {
                run(Operation::Write { fua: false }, offset, 1 << 20, guest.segments(&[(0, 1 << 20)]));
            }
            assert!(resident() >= before + BYTES - NOISE, "{operation:?}: written memory is there");
            run(operation, 512, BYTES - 1024, dma::Segments::default());
            assert!(resident() <= before + NOISE, "{operation:?} keeps {} bytes", resident() - before);
        }
    }

    #[test]
    fn impossible_geometry_is_explained() {
        for (size, block_size, word) in
            [(0, 512, "size 0"), (513, 512, "size 513"), (4096, 1024, "block size 1024"), (u64::MAX - 511, 512, "2^63")]
        {
            let error = RamDevice::new(size, block_size).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert!(crate::NullDevice::new(size, block_size, false).is_err());
        }
    }

    #[test]
    fn lost_guest_memory_is_an_error() {
        dma::sigbus::install();
        let ram = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&ram, 8192).unwrap();
        let mut space = dma::AddressSpace::new();
        let fd = ram.try_clone().unwrap();
        space.map(0, 8192, dma::Backing::File { fd, offset: 0 }, dma::Protection::READ_WRITE).unwrap();
        rustix::fs::ftruncate(&ram, 0).unwrap();
        let mut queue = RamDevice::new(1 << 20, 512).unwrap().open_queue(1).unwrap();
        for operation in [Operation::Read, Operation::Write { fua: false }] {
            let mut segments = dma::Segments::default();
            segments.push(&space.snapshot(), 0, 4096, dma::Access::Write).unwrap();
            let mut request = Request { tag: 1, operation, offset: 0, len: 4096, segments };
            assert_eq!(queue.submit(&mut request), Submitted::Done(Err(BlockError::Memory)));
        }
    }
}
