//! A disk that is not there: for benchmarks of everything above it.

use std::os::fd::BorrowedFd;

use crate::{BlockDevice, BlockQueue, Capabilities, Completion, Operation, Request, Submitted};

/// Drops writes. Reads complete without touching the buffer, or fill it with zeros.
#[derive(Debug, Clone, Copy)]
pub struct NullDevice {
    capabilities: Capabilities,
    zeroes: bool,
}

impl NullDevice {
    /// A device of `size` bytes. With `zeroes`, reads fill the buffer with zeros; else they leave it as it is, so that only
    /// the path to the device is measured.
    ///
    /// # Errors
    /// `InvalidInput` with the reason for a block size that is not 512 or 4096, or a size that is not a multiple of it.
    pub fn new(size: u64, block_size: u32, zeroes: bool) -> std::io::Result<Self> {
        Capabilities::check_geometry(size, block_size)?;
        let capabilities = Capabilities {
            size,
            block_size,
            read_only: false,
            volatile_cache: false,
            discard: true,
            discard_zeroes: zeroes,
            discard_granularity: block_size,
            preferred_write: block_size,
        };
        Ok(Self { capabilities, zeroes })
    }
}

impl BlockDevice for NullDevice {
    fn name(&self) -> String {
        if self.zeroes { "null (zeroes)".into() } else { "null".into() }
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn open_queue(&self, _depth: usize) -> std::io::Result<Box<dyn BlockQueue>> {
        Ok(Box::new(NullQueue(*self)))
    }
}

struct NullQueue(NullDevice);

impl BlockQueue for NullQueue {
    #[inline]
    fn submit(&mut self, request: &mut Request) -> Submitted {
        Submitted::Done(self.0.capabilities.check(request).and_then(|()| {
            if self.0.zeroes && request.operation == Operation::Read {
                request.segments.zero();
                request.memory_intact()?;
            }
            Ok(())
        }))
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
