//! Why an image could not be opened: what, where, and what to do.

use std::{io, path::PathBuf};

/// Why an image could not be opened. The text names the path and says what can be done.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing there.
    #[error("{}: no such file or device; check the path, or give a size to create it with", path.display())]
    NotFound {
        /// The image.
        path: PathBuf,
    },
    /// May not be opened at all.
    #[error("{}: permission denied; run as a user who may {access} it, or change its owner or mode", path.display())]
    Permission {
        /// The image.
        path: PathBuf,
        /// What was tried: `read`, or `read and write`.
        access: &'static str,
    },
    /// May be read but not written.
    #[error("{}: cannot be written ({source}); open it read-only, or make it writable", path.display())]
    NotWritable {
        /// The image.
        path: PathBuf,
        /// Permission denied, or a read-only filesystem or device.
        source: io::Error,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: is a {kind}; a disk is a regular file or a block device", path.display())]
    NotADisk {
        /// The image.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// In use.
    #[error("{}: in use by {by}; stop that first, or open it read-only in all of them", path.display())]
    Locked {
        /// The image.
        path: PathBuf,
        /// Who has it, as far as the kernel tells.
        by: String,
    },
    /// No bytes in it.
    #[error("{}: is empty; a disk needs at least one block (truncate -s SIZE makes a file of that size)", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
    /// Not a whole number of blocks.
    #[error(
        "{}: its size of {size} bytes is not a multiple of the block size {block_size}; \
         {}extend it to {} bytes (truncate -s)",
        path.display(),
        if *block_size == 4096 && size.is_multiple_of(512) { "use block size 512, or " } else { "" },
        size.next_multiple_of(u64::from(*block_size))
    )]
    BadSize {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The disk's block size in bytes.
        block_size: u32,
    },
    /// Not a block size that a disk can have here.
    #[error("{}: block size {block_size} is not possible; use 512 or 4096", path.display())]
    BadBlockSize {
        /// The image.
        path: PathBuf,
        /// The wanted or found block size in bytes.
        block_size: u32,
    },
    /// The device has larger blocks.
    #[error("{}: block size {block_size} is smaller than the device's own; use {needs}", path.display())]
    BlockSizeTooSmall {
        /// The image.
        path: PathBuf,
        /// The wanted block size in bytes.
        block_size: u32,
        /// The device's own, in bytes.
        needs: u32,
    },
    /// Direct I/O was asked for and cannot be.
    #[error("{}: direct I/O is not possible: {why}; let it choose, or switch direct I/O off", path.display())]
    NoDirect {
        /// The image.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A file of another size is there.
    #[error(
        "{}: exists with {size} bytes, not the {wanted} to create it with; remove it, or leave the size out to use it",
        path.display()
    )]
    Exists {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The size asked for.
        wanted: u64,
    },
    /// A read-only disk cannot be made.
    #[error("{}: not there, and a read-only disk cannot be created; create it without read-only first", path.display())]
    CreateReadOnly {
        /// The image.
        path: PathBuf,
    },
    /// Anything else that the operating system says.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// The image.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
}
