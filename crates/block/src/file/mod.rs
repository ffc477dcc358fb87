//! Raw images and block devices of the host.
//!
//! # What a caller should know
//! - The image is locked (an OFD lock over the whole file; exclusive open on block devices): of two servers of ours one
//!   writer or many readers have it. QEMU's locks are OFD locks on some bytes of the file, so a writer of ours and any
//!   QEMU exclude each other.
//! - Direct I/O is used where the file can do it at the disk's block size. A request whose memory is not aligned for it
//!   goes through a buffer of its own.
//! - Without a write cache every write is on stable storage when it completes, and flushes are still carried out.
//! - After a flush of a page-cached file failed, the kernel has dropped data that we reported as written, and says so only
//!   once. Every later flush then fails too.
//! - Reading past the end of a file that was cut short behind our back is an error; writing there makes it grow again.
//!
//! # Three engines
//! [`Engine::Uring`] submits in batches and never blocks; a single read of a file in the page cache it tries by a plain call
//! first. [`Engine::Threads`] does the same with a few threads for hosts and containers where io_uring is forbidden.
//! [`Engine::Inline`] makes each call in `submit`, which pays for files in memory; of those without holes it copies the pages
//! without a call.

mod error;
mod inline;
mod mapped;
mod open;
mod probe;
mod slot;
#[allow(unsafe_code)]
mod sys;
mod threads;
#[allow(unsafe_code)]
mod uring;

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{BlockDevice, BlockError, BlockQueue, Capabilities, Operation, Request};

pub use error::OpenError;

/// Whether data goes past the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Where the file can do it at the disk's block size.
    #[default]
    Auto,
    /// Refuse a file that cannot.
    On,
    /// Use the page cache.
    Off,
}

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// Inline for files on tmpfs; else io_uring, or threads where the kernel does not let us.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// A few threads with blocking calls.
    Threads,
    /// Blocking calls in the middle of `submit`.
    Inline,
}

/// How to open an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOptions {
    /// Refuse writes; several servers may then share the image.
    pub read_only: bool,
    /// Complete writes when the host has them, and make them durable at a flush. Without it every write is durable.
    pub write_cache: bool,
    /// Past the page cache or through it.
    pub direct: Direct,
    /// Block size in bytes, 512 or 4096. Default: the block device's own; 512 for files, whatever they lie on, so that an
    /// image keeps its meaning when it moves.
    pub block_size: Option<u32>,
    /// Make a sparse file of this size in bytes if there is none. One that is there must have this size.
    pub create: Option<u64>,
    /// How requests reach the kernel.
    pub engine: Engine,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            write_cache: true,
            direct: Direct::Auto,
            block_size: None,
            create: None,
            engine: Engine::Auto,
        }
    }
}

/// A raw image or a block device.
#[derive(Debug)]
pub struct FileDevice {
    shared: Arc<Shared>,
    pool: Arc<threads::Pool>,
    engine: Engine,
    /// The reason for the slower engine was logged.
    told: AtomicBool,
}

impl FileDevice {
    /// Opens and locks an image.
    ///
    /// # Errors
    /// [`OpenError`]: what is wrong with which path and what to do about it.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, OpenError> {
        let shared = Arc::new(open::open(path.as_ref(), &options)?);
        let pool = Arc::new(threads::Pool::new(&shared.path));
        let device = Self { shared, pool, engine: options.engine, told: AtomicBool::new(false) };
        tracing::debug!(disk = %device.name(), capabilities = ?device.capabilities(), direct = device.is_direct(), "opened");
        Ok(device)
    }

    /// Whether data goes past the page cache now. May become false once, when the file turns out not to be able to.
    pub fn is_direct(&self) -> bool {
        self.shared.is_direct()
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> String {
        let kind = if self.shared.block_device { "block device" } else { "file" };
        format!("{kind} {}", self.shared.path.display())
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    fn open_queue(&self, depth: usize) -> std::io::Result<Box<dyn BlockQueue>> {
        let engine = if self.engine == Engine::Auto && self.shared.in_memory { Engine::Inline } else { self.engine };
        if engine == Engine::Inline {
            return Ok(Box::new(inline::InlineQueue::new(self.shared.clone())));
        }
        if engine != Engine::Threads {
            match uring::UringQueue::new(self.shared.clone(), self.pool.clone(), depth) {
                Ok(queue) => return Ok(Box::new(queue)),
                Err(error) if engine == Engine::Uring => {
                    return Err(std::io::Error::new(error.kind(), format!("io_uring for {}: {error}", self.name())));
                }
                Err(error) => {
                    if !self.told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(disk = %self.name(), %error, "io_uring is not available; using threads");
                    }
                }
            }
        }
        Ok(Box::new(threads::ThreadQueue::new(self.shared.clone(), self.pool.clone(), depth)?))
    }
}

/// What all queues of one image share.
#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    path: PathBuf,
    block_device: bool,
    /// A file on tmpfs.
    in_memory: bool,
    /// Its pages, for the inline engine.
    mapped: Option<mapped::MappedFile>,
    capabilities: Capabilities,
    write_cache: bool,
    /// Alignment of memory addresses for direct I/O, a power of two.
    memory_align: usize,
    /// `fd` has O_DIRECT.
    direct: AtomicBool,
    /// Keep O_DIRECT whatever happens.
    direct_forced: bool,
    /// The file does not know RWF_DSYNC: sync after each durable write instead.
    no_dsync: AtomicBool,
    /// It cannot make holes.
    no_punch: AtomicBool,
    /// It cannot zero ranges.
    no_zero_range: AtomicBool,
    /// A flush failed and data was dropped.
    lost_writes: AtomicBool,
}

impl Shared {
    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Goes back to the page cache after the kernel refused an aligned direct request. False if that is not allowed.
    fn leave_direct(&self) -> bool {
        if self.direct_forced {
            return false;
        }
        // First the flag of the file, then ours: who sees ours must not meet O_DIRECT.
        let flags = fcntl_getfl(&self.fd).and_then(|flags| fcntl_setfl(&self.fd, flags - OFlags::DIRECT));
        if let Err(errno) = flags {
            tracing::warn!(disk = %self.path.display(), %errno, "O_DIRECT could not be switched off");
            return false;
        }
        if self.direct.swap(false, Ordering::SeqCst) {
            tracing::warn!(disk = %self.path.display(), "direct I/O was refused; using the page cache");
        }
        true
    }

    /// Answers what needs no system call; `None` for the rest.
    fn answer(&self, request: &Request) -> Option<Result<(), BlockError>> {
        if let Err(error) = self.capabilities.check(request) {
            return Some(Err(error));
        }
        match request.operation {
            Operation::Flush if self.lost_writes.load(Ordering::Relaxed) => Some(Err(BlockError::WriteFault)),
            Operation::Flush if self.capabilities.read_only => Some(Ok(())),
            Operation::Flush => None,
            Operation::Discard if !self.capabilities.discard => Some(Err(BlockError::Unsupported)),
            _ if request.len == 0 => Some(Ok(())),
            _ => None,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A ring that the kernel still tears down may hold the open file, and with it the lock, for a while.
        let _ = sys::unlock_whole_file(self.fd.as_fd());
    }
}
