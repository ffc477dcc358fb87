//! The driver's memory: what the device may reach, and nothing else.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dma::{Access, AddressSpace, Backing, Fault, Mapping, Protection, Window};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
};

use crate::{error::MemoryError, transport::Transport};

/// Alignment of ranges and of what they are grown by: the largest memory page that the driver uses.
pub(crate) const MAX_PAGE: usize = 64 << 10;

/// One range of memory that is given to the device as a whole. Nobody, the device's process included, can cut it short.
#[derive(Debug)]
pub struct DmaRange {
    iova: u64,
    mapping: Arc<Mapping>,
    fd: OwnedFd,
}

impl DmaRange {
    fn new(iova: u64, len: u64) -> Result<Self, Errno> {
        let fd = memfd_create("shadowbell-driver", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len)?;
        // A device in another process gets the descriptor; pages that it took away would raise SIGBUS here.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of_file(fd.as_fd(), 0, len, Protection::READ_WRITE)?;
        Ok(Self { iova, mapping, fd })
    }

    /// Address for the device.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Whether it holds no byte; never.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// The memory in this process.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The file behind it, from offset 0 on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Free ranges of one [`DmaRange`]: length by offset.
#[derive(Debug)]
struct Region {
    range: DmaRange,
    free: BTreeMap<usize, usize>,
}

#[derive(Debug, Default)]
struct State {
    space: AddressSpace,
    regions: Vec<Region>,
    next_iova: u64,
    total: usize,
}

/// All memory of one device.
#[derive(Debug)]
pub(crate) struct Pool {
    transport: Arc<dyn Transport>,
    /// Unit of allocation, in bytes: the controller's memory page.
    page: usize,
    chunk: usize,
    limit: usize,
    state: Mutex<State>,
}

impl Pool {
    pub(crate) fn new(transport: Arc<dyn Transport>, page: usize, iova: u64, chunk: usize, limit: usize) -> Arc<Self> {
        let state = State { next_iova: iova, ..State::default() };
        Arc::new(Self { transport, page, chunk, limit, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zeroed memory of at least `bytes` bytes, page aligned.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Buffer, MemoryError> {
        let buffer = self.allocate_as_it_is(bytes)?;
        buffer.zero();
        Ok(buffer)
    }

    /// As [`Pool::allocate`], with whatever is there: pages that were never used stay with the kernel until they are.
    pub(crate) fn allocate_as_it_is(self: &Arc<Self>, bytes: usize) -> Result<Buffer, MemoryError> {
        let beyond = MemoryError::Limit { wanted: bytes, limit: self.limit };
        let len = bytes.checked_next_multiple_of(self.page).filter(|len| *len > 0).ok_or(beyond.clone())?;
        let mut state = self.state();
        let found = match state.take(len) {
            Some(found) => found,
            None => {
                let size = len.max(self.chunk).checked_next_multiple_of(MAX_PAGE).ok_or(beyond.clone())?;
                // A last, smaller range, if that is all that is left.
                let left = self.limit.saturating_sub(state.total);
                let size = if size <= left { size } else { left - left % MAX_PAGE };
                if size < len {
                    return Err(beyond);
                }
                state.grow(&*self.transport, size)?;
                state.take(len).ok_or(beyond)?
            }
        };
        let (region, offset) = found;
        let iova = state.regions[region].range.iova + offset as u64;
        let window =
            state.space.snapshot().window(iova, len, Access::Write).map_err(|_| MemoryError::System(Errno::FAULT))?;
        drop(state);
        Ok(Buffer(Arc::new(Allocation { pool: self.clone(), region, offset, iova, window })))
    }

    /// Takes all memory back from the device, which uses none of it any more.
    pub(crate) fn unmap(&self) {
        let state = self.state();
        for region in &state.regions {
            if let Err(error) = self.transport.unmap(&region.range) {
                tracing::debug!(%error, "memory was not taken back from the device");
            }
        }
    }
}

impl State {
    fn grow(&mut self, transport: &dyn Transport, size: usize) -> Result<(), MemoryError> {
        let iova = self.next_iova;
        let range = DmaRange::new(iova, size as u64).map_err(MemoryError::System)?;
        self.space
            .map(iova, size as u64, Backing::Mapped(range.mapping.clone()), Protection::READ_WRITE)
            .map_err(|_| MemoryError::System(Errno::NOSPC))?;
        if let Err(error) = transport.map(&range) {
            // It was just mapped.
            let _ = self.space.unmap(iova, size as u64);
            return Err(MemoryError::Map(error));
        }
        self.next_iova = iova.saturating_add(size as u64);
        self.total += size;
        self.regions.push(Region { range, free: BTreeMap::from([(0, size)]) });
        Ok(())
    }

    /// First fit.
    fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        for (index, region) in self.regions.iter_mut().enumerate() {
            let fit = region.free.iter().find(|(_, free)| **free >= len).map(|(at, free)| (*at, *free));
            if let Some((at, free)) = fit {
                region.free.remove(&at);
                if free > len {
                    region.free.insert(at + len, free - len);
                }
                return Some((index, at));
            }
        }
        None
    }

    fn give_back(&mut self, index: usize, offset: usize, len: usize) {
        let Some(Region { free, .. }) = self.regions.get_mut(index) else { return };
        let (mut start, mut end) = (offset, offset + len);
        if let Some((at, before)) = free.range(..offset).next_back().map(|(at, len)| (*at, *len))
            && at + before == offset
        {
            free.remove(&at);
            start = at;
        }
        if let Some(after) = free.remove(&end) {
            end += after;
        }
        free.insert(start, end - start);
    }
}

#[derive(Debug)]
struct Allocation {
    pool: Arc<Pool>,
    region: usize,
    offset: usize,
    iova: u64,
    window: Window,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.pool.state().give_back(self.region, self.offset, self.window.len());
    }
}

/// Memory that the device can reach, page aligned and contiguous for it.
///
/// A clone is another handle to the same memory, which goes back to the pool with the last handle. A command in flight holds
/// one, so that a device which is late writes into no memory of others. The device can write here at any time: bytes move
/// by copy.
#[derive(Debug, Clone)]
pub struct Buffer(Arc<Allocation>);

impl Buffer {
    /// Size in bytes: what was asked for, rounded up to whole pages.
    pub fn len(&self) -> usize {
        self.0.window.len()
    }

    /// Whether it holds no byte; never.
    pub fn is_empty(&self) -> bool {
        self.0.window.is_empty()
    }

    /// Address for the device.
    pub fn iova(&self) -> u64 {
        self.0.iova
    }

    /// The memory, for access by words and cells.
    pub fn window(&self) -> &Window {
        &self.0.window
    }

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        self.window().read(offset, out)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.window().write(offset, bytes)
    }

    /// Fills it with zeros.
    pub fn zero(&self) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..self.len()).step_by(ZEROS.len()) {
            // Buffers are whole pages.
            let _ = self.write(at, &ZEROS);
        }
    }

    /// `len` bytes from `offset`, for a command. A range that is not inside is refused when the command is submitted.
    pub fn slice(&self, offset: usize, len: usize) -> Data<'_> {
        Data { buffer: self, offset, len }
    }

    /// The whole buffer, for a command.
    pub fn data(&self) -> Data<'_> {
        self.slice(0, self.len())
    }
}

/// A part of a [`Buffer`], as the data of a command.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Data<'_> {
    /// The address for the device, if the range is inside the buffer and dword aligned.
    pub(crate) fn iova(&self) -> Option<u64> {
        let inside = self.offset.checked_add(self.len).is_some_and(|end| end <= self.buffer.len());
        (inside && self.len > 0 && self.offset.is_multiple_of(4)).then(|| self.buffer.iova() + self.offset as u64)
    }
}

impl<'a> From<&'a Buffer> for Data<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        buffer.data()
    }
}
