//! Guest memory: the floor that everything else stands on.
//!
//! A client (a VMM) hands over file descriptors that hold the guest's RAM. This crate maps them, translates
//! guest addresses (IOVAs) to checked pieces of those mappings, and moves bytes in and out by copy or by atomic cell.
//!
//! # The rules that hold here
//! - The guest and the client write this memory at any time. No `&[u8]`, `&T` or `&mut T` over it ever leaves the crate:
//!   there are copies ([`Window::read`], [`Segments::copy_to`]), atomic words ([`Cell32`], [`Window::load_words`]), and raw
//!   [`libc::iovec`]s for the kernel, which needs no Rust reference.
//! - A [`MemoryMap`] is an immutable snapshot. Every pointer that was resolved from one keeps the underlying [`Mapping`]
//!   alive, so it can be stale but never dangling. Who unmaps waits until the old snapshot has no other holder; see
//!   [`AddressSpace`].
//! - A client can cut the file behind a mapping short. Touching the lost pages raises SIGBUS, which
//!   [`sigbus::install`] turns into zero pages and a mark on the mapping ([`Mapping::is_torn`]).
//!
//! # Not done
//! - Dirty page tracking for migration.
//! - Memory that a client shares without a file descriptor: such a range is known to the map and every access to it is
//!   [`Fault::Unbacked`].
//!
//! Unsafe code lives in `mapping.rs`, `window.rs`, `segments.rs` and `sigbus.rs`.

mod map;
#[allow(unsafe_code)]
mod mapping;
#[allow(unsafe_code)]
mod segments;
mod shared;
#[allow(unsafe_code)]
pub mod sigbus;
#[allow(unsafe_code)]
mod window;

pub use map::{AddressSpace, Backing, MapError, MemoryMap};
pub use mapping::{MIN_PAGE, Mapping, Protection};
pub use segments::Segments;
pub use shared::{SharedPages, page_size};
pub use window::{Cell32, Window};

/// What the device is about to do with guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The device reads guest memory (a host-to-controller transfer).
    Read,
    /// The device writes guest memory (a controller-to-host transfer).
    Write,
}

/// Why a guest address cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No mapping covers the address.
    #[error("address {iova:#x} is not mapped")]
    Unmapped {
        /// First guest address that failed.
        iova: u64,
    },
    /// The range is known but came without a file descriptor.
    #[error("address {iova:#x} has no shared memory behind it (guest RAM must be shared, for QEMU: share=on)")]
    Unbacked {
        /// First guest address that failed.
        iova: u64,
    },
    /// The mapping does not allow this access.
    #[error("address {iova:#x} does not allow {access:?}")]
    Protected {
        /// First guest address that failed.
        iova: u64,
        /// The refused access.
        access: Access,
    },
    /// The offset or the length goes past the end, or past 2^64.
    #[error("range is out of bounds")]
    OutOfBounds,
    /// An atomic access at an address that is not naturally aligned.
    #[error("address is misaligned")]
    Misaligned,
}
