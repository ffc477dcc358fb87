//! The pieces of guest memory that one command moves, in the kernel's own shape.

use std::sync::Arc;

use crate::{
    Access, Fault, Mapping, MemoryMap, Window,
    window::{copy, forget_memory},
};

/// A scatter-gather list over guest memory: filled from PRPs or SGLs, read by a backend.
///
/// Meant to be used again: [`Segments::clear`] keeps the allocation and the hold on the memory map, so that a busy queue
/// neither allocates nor touches reference counts per command. An idle list must be [released](Segments::release) when the
/// memory map changes.
#[derive(Debug, Default)]
pub struct Segments {
    /// Each entry lies in a mapping that `keep` holds.
    list: Vec<libc::iovec>,
    bytes: usize,
    keep: Option<Arc<MemoryMap>>,
}

// SAFETY: the pointers go into mappings that `keep` holds, and those are Send and Sync.
unsafe impl Send for Segments {}
// SAFETY: as above; a shared list allows opaque copies only.
unsafe impl Sync for Segments {}

impl Segments {
    /// An empty list with room for `n` pieces.
    pub fn with_capacity(n: usize) -> Self {
        Self { list: Vec::with_capacity(n), bytes: 0, keep: None }
    }

    /// Forgets the pieces, keeps the allocation and the memory map.
    #[inline]
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    /// Whether it is as new: without an allocation and without a hold on a map.
    #[inline]
    pub fn is_released(&self) -> bool {
        self.list.capacity() == 0 && self.keep.is_none()
    }

    /// Forgets the pieces and lets the memory map go.
    pub fn release(&mut self) {
        self.clear();
        self.keep = None;
    }

    /// Appends `len` bytes of guest memory from `iova`; pieces that follow each other in memory become one.
    ///
    /// All pieces of one list come from one snapshot.
    ///
    /// # Errors
    /// The first address that `access` is not possible for. The list then holds a part; the caller clears it.
    #[inline]
    pub fn push(&mut self, map: &Arc<MemoryMap>, iova: u64, len: usize, access: Access) -> Result<(), Fault> {
        if !self.keep.as_ref().is_some_and(|keep| Arc::ptr_eq(keep, map)) {
            assert!(self.list.is_empty(), "one list, one snapshot");
            self.keep = Some(map.clone());
        }
        let Self { list, bytes, .. } = self;
        let mut add = |mapping: &Mapping, offset: usize, len: usize| {
            let at = mapping.at(offset).as_ptr();
            match list.last_mut() {
                Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == at => last.iov_len += len,
                _ => list.push(libc::iovec { iov_base: at.cast(), iov_len: len }),
            }
            *bytes += len;
        };
        if len > 0
            && let Some((mapping, offset)) = map.one_piece(iova, len, access)
        {
            add(mapping, offset, len);
            return Ok(());
        }
        map.pieces(iova, len, access, |mapping, offset, len| add(mapping, offset, len))
    }

    /// Total size in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether memory of the guest that the pieces belong to was lost; see [`crate::sigbus`].
    pub fn is_torn(&self) -> bool {
        self.keep.as_ref().is_some_and(|map| map.is_torn())
    }

    /// The pieces, for the kernel: valid for as long as this list is neither changed nor dropped. Never make a reference
    /// of them: the guest writes there.
    pub fn iovecs(&self) -> &[libc::iovec] {
        &self.list
    }

    /// Copies all bytes of the list to `window` at `offset` (guest to device).
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`] when the window is too short; a part may have been copied.
    pub fn copy_to(&self, window: &Window, offset: usize) -> Result<(), Fault> {
        self.each(offset, |at, len, offset| window.transfer(offset, at, len, false))
    }

    /// Copies bytes from `window` at `offset` until the list is full (device to guest).
    ///
    /// # Errors
    /// As [`Segments::copy_to`].
    pub fn copy_from(&self, window: &Window, offset: usize) -> Result<(), Fault> {
        self.each(offset, |at, len, offset| window.transfer(offset, at, len, true))
    }

    /// Copies the list's bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`] when the list is shorter than `offset + out.len()`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        self.span(offset, out.len(), |at, done, n| copy(at, out[done..].as_mut_ptr(), n))
    }

    /// Copies `bytes` into the list from `offset` on.
    ///
    /// # Errors
    /// As [`Segments::read`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.span(offset, bytes.len(), |at, done, n| copy(bytes[done..].as_ptr(), at, n))
    }

    /// Fills all pieces with zeros.
    pub fn zero(&self) {
        for piece in &self.list {
            // SAFETY: the piece is inside a live mapping.
            unsafe { libc::memset(piece.iov_base, 0, piece.iov_len) };
            forget_memory(piece.iov_base.cast(), piece.iov_base.cast());
        }
    }

    fn each(
        &self,
        mut offset: usize,
        mut f: impl FnMut(*mut u8, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        for piece in &self.list {
            f(piece.iov_base.cast(), piece.iov_len, offset)?;
            offset = offset.checked_add(piece.iov_len).ok_or(Fault::OutOfBounds)?;
        }
        Ok(())
    }

    /// Visits `len` bytes from `offset`: (address, bytes visited before, bytes here).
    fn span(&self, offset: usize, len: usize, mut f: impl FnMut(*mut u8, usize, usize)) -> Result<(), Fault> {
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(Fault::OutOfBounds);
        }
        let (mut skip, mut done) = (offset, 0);
        for piece in &self.list {
            if done == len {
                break;
            }
            if skip >= piece.iov_len {
                skip -= piece.iov_len;
                continue;
            }
            let n = (piece.iov_len - skip).min(len - done);
            f(piece.iov_base.cast::<u8>().wrapping_add(skip), done, n);
            skip = 0;
            done += n;
        }
        Ok(())
    }
}
