//! A checked view of shared memory: plain copies and atomic words.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{Fault, Mapping};

/// Bytes of one mapping that follow each other.
#[derive(Debug, Clone)]
struct Piece {
    /// First byte; valid for `len` bytes for as long as `_keep` lives.
    at: NonNull<u8>,
    len: usize,
    _keep: Arc<Mapping>,
}

/// A range of guest memory, resolved once and then used without further look-ups.
///
/// It usually is one piece; a VMM that split its RAM in the middle of a queue gives two. Naturally aligned words never
/// straddle pieces, since mappings are page-granular. The mappings stay alive with the window, so it can outlive an
/// unmap: whoever holds one must drop or renew it when the memory map changes.
#[derive(Debug, Clone)]
pub struct Window {
    pieces: Vec<Piece>,
    len: usize,
}

// SAFETY: a piece points into a `Mapping`, which is Send and Sync and is kept alive by the piece.
unsafe impl Send for Piece {}
// SAFETY: as above; a shared piece allows atomics and opaque copies only.
unsafe impl Sync for Piece {}

impl Window {
    pub(crate) fn empty() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }

    /// Appends `len` bytes of `mapping` from `offset`; the caller has checked that they are inside.
    pub(crate) fn push(&mut self, mapping: Arc<Mapping>, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= mapping.len()), "piece inside its mapping");
        self.pieces.push(Piece { at: mapping.at(offset), len, _keep: mapping });
        self.len += len;
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a page under it was lost; see [`crate::sigbus`].
    pub fn is_torn(&self) -> bool {
        self.pieces.iter().any(|p| p._keep.is_torn())
    }

    /// Address of `offset` and how many bytes follow it in the same piece.
    #[inline]
    fn locate(&self, offset: usize) -> Result<(NonNull<u8>, usize), Fault> {
        let mut rest = offset;
        for piece in &self.pieces {
            if rest < piece.len {
                // SAFETY: rest < len, so the result is inside the piece.
                return Ok((unsafe { piece.at.add(rest) }, piece.len - rest));
            }
            rest -= piece.len;
        }
        Err(Fault::OutOfBounds)
    }

    /// Address of `size` bytes at `offset`, aligned to `align` (a power of two), all in one piece.
    #[inline]
    fn words(&self, offset: usize, size: usize, align: usize) -> Result<NonNull<u8>, Fault> {
        let (at, left) = self.locate(offset)?;
        if left < size {
            return Err(Fault::OutOfBounds);
        }
        if !(at.as_ptr() as usize).is_multiple_of(align) {
            return Err(Fault::Misaligned);
        }
        Ok(at)
    }

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`] when the window is shorter; nothing is copied then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        self.check(offset, out.len())?;
        let mut done = 0;
        while done < out.len() {
            let (at, left) = self.locate(offset + done)?;
            let n = left.min(out.len() - done);
            copy(at.as_ptr(), out[done..].as_mut_ptr(), n);
            done += n;
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Fault::OutOfBounds`] when the window is shorter; nothing is copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.check(offset, bytes.len())?;
        let mut done = 0;
        while done < bytes.len() {
            let (at, left) = self.locate(offset + done)?;
            let n = left.min(bytes.len() - done);
            copy(bytes[done..].as_ptr(), at.as_ptr(), n);
            done += n;
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Fault> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) { Ok(()) } else { Err(Fault::OutOfBounds) }
    }

    /// Copies `len` bytes at `offset` of this window to or from the raw range at `other`.
    pub(crate) fn transfer(&self, offset: usize, other: *mut u8, len: usize, to_other: bool) -> Result<(), Fault> {
        self.check(offset, len)?;
        let mut done = 0;
        while done < len {
            let (at, left) = self.locate(offset + done)?;
            let n = left.min(len - done);
            // wrapping_add: the caller vouches for other..other + len, and copy() makes no reference of it.
            let there = other.wrapping_add(done);
            if to_other {
                copy(at.as_ptr(), there, n);
            } else {
                copy(there, at.as_ptr(), n);
            }
            done += n;
        }
        Ok(())
    }

    /// Reads `N` 64-bit words (little endian in memory) at `offset` with relaxed loads, each word once.
    ///
    /// The order against other accesses is the caller's: an Acquire load of the position that made the entry valid.
    ///
    /// # Errors
    /// [`Fault::Misaligned`] unless 8-byte aligned, [`Fault::OutOfBounds`] past the end of a piece.
    #[inline]
    pub fn load_words<const N: usize>(&self, offset: usize) -> Result<[u64; N], Fault> {
        let at = self.words(offset, N * 8, 8)?.cast::<u64>();
        Ok(std::array::from_fn(|i| {
            // SAFETY: `words` checked N * 8 bytes and the alignment; the piece keeps them mapped; atomics may race with the
            // guest.
            let word = unsafe { AtomicU64::from_ptr(at.add(i).as_ptr()) };
            u64::from_le(word.load(Ordering::Relaxed))
        }))
    }

    /// Stores two 64-bit words at `offset`: the first relaxed, the second with Release, so that a reader who sees the second
    /// sees the first and all that was written before.
    ///
    /// # Errors
    /// As [`Window::load_words`].
    #[inline]
    pub fn store_pair(&self, offset: usize, first: u64, second: u64) -> Result<(), Fault> {
        let at = self.words(offset, 16, 8)?.cast::<u64>();
        // SAFETY: 16 bytes, aligned, mapped for as long as the piece lives.
        let low = unsafe { AtomicU64::from_ptr(at.as_ptr()) };
        // SAFETY: as above.
        let high = unsafe { AtomicU64::from_ptr(at.add(1).as_ptr()) };
        low.store(first.to_le(), Ordering::Relaxed);
        high.store(second.to_le(), Ordering::Release);
        Ok(())
    }

    /// Loads one 64-bit word with Acquire.
    ///
    /// # Errors
    /// As [`Window::load_words`].
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> Result<u64, Fault> {
        let at = self.words(offset, 8, 8)?.cast::<u64>();
        // SAFETY: 8 bytes, aligned, mapped for as long as the piece lives.
        let word = unsafe { AtomicU64::from_ptr(at.as_ptr()) };
        Ok(u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Stores 64-bit words with relaxed stores; a later Release publishes them.
    ///
    /// # Errors
    /// As [`Window::load_words`].
    #[inline]
    pub fn store_words<const N: usize>(&self, offset: usize, words: [u64; N]) -> Result<(), Fault> {
        let at = self.words(offset, N * 8, 8)?.cast::<u64>();
        for (i, value) in words.iter().enumerate() {
            // SAFETY: `words` checked N * 8 bytes and the alignment.
            let word = unsafe { AtomicU64::from_ptr(at.add(i).as_ptr()) };
            word.store(value.to_le(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Asks the processor for the cache line at `offset`, which will be loaded soon. A hint: past the end it does nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if let Ok((at, _)) = self.locate(offset) {
            // SAFETY: a prefetch touches no memory as far as the program can tell; the address is mapped, besides.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.as_ptr().cast());
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = at;
        }
    }

    /// As [`Window::prefetch`], for a line that will be stored to: it is taken away from the other side ahead of time, so that
    /// a full fence after the store need not wait for that.
    #[inline]
    pub fn prefetch_for_store(&self, offset: usize) {
        if let Ok((at, _)) = self.locate(offset) {
            // SAFETY: as above. PREFETCHW does nothing on processors of the architecture that do not know it.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = at;
        }
    }

    /// The 32-bit word at `offset` as a cell of its own, which keeps its mapping alive.
    ///
    /// # Errors
    /// [`Fault::Misaligned`] unless 4-byte aligned, [`Fault::OutOfBounds`] past the end.
    pub fn cell32(&self, offset: usize) -> Result<Cell32, Fault> {
        let at = self.words(offset, 4, 4)?.cast::<AtomicU32>();
        let mut rest = offset;
        for piece in &self.pieces {
            if rest < piece.len {
                return Ok(Cell32 { at, keep: piece._keep.clone() });
            }
            rest -= piece.len;
        }
        Err(Fault::OutOfBounds)
    }
}

/// One little-endian 32-bit word in shared memory.
#[derive(Debug, Clone)]
pub struct Cell32 {
    at: NonNull<AtomicU32>,
    keep: Arc<Mapping>,
}

// SAFETY: an atomic word inside a mapping that the cell keeps alive.
unsafe impl Send for Cell32 {}
// SAFETY: as above.
unsafe impl Sync for Cell32 {}

impl Cell32 {
    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside `keep`'s mapping, both checked when the cell was made; an atomic may be shared with
        // whoever else writes the memory.
        unsafe { self.at.as_ref() }
    }

    /// Loads the value.
    #[inline]
    pub fn load(&self, order: Ordering) -> u32 {
        u32::from_le(self.word().load(order))
    }

    /// Stores a value.
    #[inline]
    pub fn store(&self, value: u32, order: Ordering) {
        self.word().store(value.to_le(), order);
    }

    /// Whether the page under it was lost; see [`crate::sigbus`].
    pub fn is_torn(&self) -> bool {
        self.keep.is_torn()
    }
}

/// Copies `len` bytes between memory that others may write meanwhile.
///
/// A racing writer yields old or new bytes, which is all that a device promises. Both ranges must be valid for `len` bytes;
/// every caller in this crate has them from a live mapping, or from a slice of its own.
#[inline]
pub(crate) fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the contract above; memmove, not memcpy, since two guest ranges may overlap.
    unsafe { libc::memmove(to.cast(), from.cast(), len) };
    forget_memory(from, to);
}

/// The compiler knows what memmove does. Without this it may drop a copy whose result it finds unused, or read the source
/// again later instead of the copy: a double fetch of memory that the guest can change in between.
#[inline(always)]
pub(crate) fn forget_memory(from: *const u8, to: *mut u8) {
    // SAFETY: no instruction at all; to the compiler it may read and write any memory, these two ranges among it.
    #[cfg(not(miri))]
    unsafe {
        std::arch::asm!("/* {} {} */", in(reg) from, in(reg) to, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    let _ = (from, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split() -> Window {
        let (a, _) = Mapping::new_shared("a", 4096).unwrap();
        let (b, _) = Mapping::new_shared("b", 8192).unwrap();
        let mut window = Window::empty();
        window.push(a, 0, 4096);
        window.push(b, 4096, 4096);
        window
    }

    #[test]
    fn copies_cross_pieces_and_stop_at_the_end() {
        let window = split();
        assert_eq!(window.len(), 8192);
        window.write(4090, b"hello world!").unwrap();
        let mut out = [0; 12];
        window.read(4090, &mut out).unwrap();
        assert_eq!(&out, b"hello world!");
        assert_eq!(window.write(8190, &[9; 3]), Err(Fault::OutOfBounds));
        let mut last = [1; 2];
        window.read(8190, &mut last).unwrap();
        assert_eq!(last, [0; 2], "a refused copy changes nothing");
        assert_eq!(window.read(usize::MAX, &mut last), Err(Fault::OutOfBounds));
    }

    #[test]
    fn words_are_little_endian_and_checked() {
        let window = split();
        window.store_pair(4096, 1, 0x0102_0304_0506_0708).unwrap();
        let mut raw = [0; 16];
        window.read(4096, &mut raw).unwrap();
        assert_eq!(raw, [1, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(window.load_words::<2>(4096).unwrap(), [1, 0x0102_0304_0506_0708]);
        assert_eq!(window.load_words::<1>(4), Err(Fault::Misaligned));
        assert_eq!(window.load_words::<2>(4088), Err(Fault::OutOfBounds), "no word straddles pieces");
        assert_eq!(window.load_words::<1>(8192), Err(Fault::OutOfBounds));
        assert_eq!(window.store_pair(8184, 0, 0), Err(Fault::OutOfBounds));
    }

    #[test]
    fn a_cell_outlives_its_window() {
        let window = split();
        let cell = window.cell32(8188).unwrap();
        assert!(window.cell32(8190).is_err());
        assert!(window.cell32(8192).is_err());
        drop(window);
        cell.store(0x8000_0001, Ordering::Release);
        assert_eq!(cell.load(Ordering::Acquire), 0x8000_0001);
    }
}
