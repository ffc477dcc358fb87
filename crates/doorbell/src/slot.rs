//! The word that both sides share.

use std::sync::atomic::{Ordering, fence};

/// A 32-bit little-endian word in memory that device and driver share: a shadow doorbell or an EventIdx.
pub trait Slot {
    /// Loads with Acquire: what the other side wrote before it stored this value is visible afterwards.
    fn load(&self) -> u32;

    /// Stores with Release: whoever loads this value sees what was written before.
    fn store(&self, value: u32);

    /// A full (store-load) barrier between this side's store to one slot and its load of the other. It pairs with the same
    /// call on the other side.
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

impl Slot for dma::Cell32 {
    #[inline]
    fn load(&self) -> u32 {
        dma::Cell32::load(self, Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u32) {
        dma::Cell32::store(self, value, Ordering::Release);
    }
}

impl Slot for std::sync::Arc<std::sync::atomic::AtomicU32> {
    #[inline]
    fn load(&self) -> u32 {
        std::sync::atomic::AtomicU32::load(self, Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u32) {
        std::sync::atomic::AtomicU32::store(self, value, Ordering::Release);
    }
}
