//! Opening an image: find, create, lock, measure.

use std::{
    fs::{self, File, FileType, OpenOptions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::AtomicBool,
};

use rustix::fs::{SeekFrom, seek};

use super::{Direct, FileOptions, OpenError, Shared, mapped::MappedFile, probe, sys};
use crate::Capabilities;

pub(super) fn open(path: &Path, options: &FileOptions) -> Result<Shared, OpenError> {
    let failed = |what| move |source: io::Error| OpenError::Io { path: path.into(), what, source };
    if let Some(block_size) = options.block_size {
        check_block_size(path, block_size)?;
    }
    let created = find_or_create(path, options)?;
    let opened = open_existing(path, options);
    if created && opened.as_ref().is_err_and(|error| !matches!(error, OpenError::Locked { .. })) {
        // We made it a moment ago, and nobody else uses it; half a disk helps nobody.
        let _ = fs::remove_file(path);
    }
    let (fd, block_device) = opened?;

    let own_block = if block_device {
        Some(rustix::fs::ioctl_blksszget(&fd).map_err(io::Error::from).map_err(failed("asking for the block size"))?)
    } else {
        None
    };
    let block_size = options.block_size.or(own_block).unwrap_or(512);
    check_block_size(path, block_size)?;
    if let Some(needs) = own_block.filter(|&own| own > block_size) {
        return Err(OpenError::BlockSizeTooSmall { path: path.into(), block_size, needs });
    }

    // Correct for block devices too, whose st_size is 0.
    let size = seek(&fd, SeekFrom::End(0)).map_err(io::Error::from).map_err(failed("asking for the size"))?;
    if size == 0 {
        return Err(OpenError::Empty { path: path.into() });
    }
    if let Some(wanted) = options.create.filter(|&wanted| wanted != size) {
        return Err(OpenError::Exists { path: path.into(), size, wanted });
    }
    if !size.is_multiple_of(u64::from(block_size)) {
        return Err(OpenError::BadSize { path: path.into(), size, block_size });
    }

    let memory_align = match options.direct {
        Direct::Off => None,
        wish => match probe::go_direct(fd.as_fd(), block_device, block_size) {
            Ok(align) => Some(align),
            Err(why) if wish == Direct::On => return Err(OpenError::NoDirect { path: path.into(), why }),
            Err(why) => {
                tracing::debug!(disk = %path.display(), %why, "using the page cache");
                None
            }
        },
    };
    let limits = probe::limits(fd.as_fd(), block_device, block_size, size, options.read_only);
    let capabilities = Capabilities {
        size,
        block_size,
        read_only: options.read_only,
        volatile_cache: options.write_cache && !options.read_only,
        discard: limits.discard,
        // A hole in a file is zeros; BLKDISCARD promises nothing.
        discard_zeroes: limits.discard && !block_device,
        discard_granularity: limits.discard_granularity,
        preferred_write: limits.preferred_write,
    };
    let in_memory = !block_device && probe::is_in_memory(fd.as_fd());
    let mapped = if in_memory { MappedFile::new(fd.as_fd(), size, options.read_only) } else { None };
    Ok(Shared {
        path: path.into(),
        block_device,
        in_memory,
        mapped,
        fd,
        capabilities,
        write_cache: options.write_cache,
        memory_align: memory_align.unwrap_or(1),
        direct: AtomicBool::new(memory_align.is_some()),
        direct_forced: options.direct == Direct::On,
        no_dsync: AtomicBool::new(false),
        no_punch: AtomicBool::new(!block_device && !limits.discard),
        no_zero_range: AtomicBool::new(false),
        lost_writes: AtomicBool::new(false),
    })
}

fn check_block_size(path: &Path, block_size: u32) -> Result<(), OpenError> {
    if block_size == 512 || block_size == 4096 {
        Ok(())
    } else {
        Err(OpenError::BadBlockSize { path: path.into(), block_size })
    }
}

/// Makes the file if it is wanted and missing; says whether it did.
fn find_or_create(path: &Path, options: &FileOptions) -> Result<bool, OpenError> {
    match fs::metadata(path) {
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot_open(path, options.read_only, error)),
    }
    let Some(size) = options.create else { return Err(OpenError::NotFound { path: path.into() }) };
    if options.read_only {
        return Err(OpenError::CreateReadOnly { path: path.into() });
    }
    let block_size = options.block_size.unwrap_or(512);
    if size == 0 {
        return Err(OpenError::Empty { path: path.into() });
    }
    if !size.is_multiple_of(u64::from(block_size)) {
        return Err(OpenError::BadSize { path: path.into(), size, block_size });
    }
    let failed = |what| move |source| OpenError::Io { path: path.into(), what, source };
    let file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file,
        // Somebody was faster: use theirs, if it has the right size.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(failed("creating it (is its directory there?)")(error));
        }
        Err(error) => return Err(failed("creating it")(error)),
    };
    if let Err(error) = file.set_len(size) {
        let _ = fs::remove_file(path);
        return Err(failed("giving the new file its size")(error));
    }
    Ok(true)
}

/// Opens and locks; says whether it is a block device.
fn open_existing(path: &Path, options: &FileOptions) -> Result<(OwnedFd, bool), OpenError> {
    // Before the open: opening a FIFO blocks, and O_NONBLOCK would make io_uring refuse to wait.
    let metadata = fs::metadata(path).map_err(|error| cannot_open(path, options.read_only, error))?;
    let block_device = check_kind(path, metadata.file_type())?;
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    if block_device && !options.read_only {
        // Without O_CREAT: refuse a device that is mounted or that someone else opened in this way.
        how.custom_flags(libc::O_EXCL);
    }
    let file = how.open(path).map_err(|error| cannot_open(path, options.read_only, error))?;
    let metadata = file.metadata().map_err(|error| cannot_open(path, options.read_only, error))?;
    check_kind(path, metadata.file_type())?;
    lock(path, &file, metadata.ino(), options.read_only)?;
    Ok((file.into(), block_device))
}

/// Whether it is a block device; an error for all that is no disk.
fn check_kind(path: &Path, kind: FileType) -> Result<bool, OpenError> {
    let other = |kind| Err(OpenError::NotADisk { path: path.into(), kind });
    match kind {
        kind if kind.is_file() => Ok(false),
        kind if kind.is_block_device() => Ok(true),
        kind if kind.is_dir() => other("directory"),
        kind if kind.is_char_device() => other("character device"),
        kind if kind.is_fifo() => other("pipe"),
        kind if kind.is_socket() => other("socket"),
        _ => other("special file"),
    }
}

fn lock(path: &Path, file: &File, inode: u64, read_only: bool) -> Result<(), OpenError> {
    match sys::lock_whole_file(file.as_fd(), !read_only) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Err(OpenError::Locked { path: path.into(), by: holder(inode) })
        }
        // A filesystem without locks (some network and FUSE ones): serve it, but say so.
        Err(error) => {
            tracing::warn!(disk = %path.display(), %error, "the image cannot be locked; take care not to open it twice");
            Ok(())
        }
    }
}

/// Who holds a lock on the inode, from /proc/locks: `ID: OFDLCK ADVISORY WRITE PID MAJ:MIN:INODE START END`. An OFD lock has
/// no pid there.
fn holder(inode: u64) -> String {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let suffix = format!(":{inode}");
    let pid = locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip_while(|field| *field != "ADVISORY").skip(2);
        let pid = fields.next()?.parse::<u32>().ok()?;
        fields.next()?.ends_with(&suffix).then_some(pid)
    });
    match pid {
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim())
        }
        None => "another disk server (shadowbell, QEMU or the like)".into(),
    }
}

fn cannot_open(path: &Path, read_only: bool, error: io::Error) -> OpenError {
    let path = path.to_path_buf();
    match error.raw_os_error() {
        Some(libc::ENOENT) => OpenError::NotFound { path },
        Some(libc::EROFS) => OpenError::NotWritable { path, source: error },
        Some(libc::EBUSY | libc::ETXTBSY) => {
            OpenError::Locked { path, by: "the kernel (mounted, a running program) or another disk server".into() }
        }
        Some(libc::EACCES | libc::EPERM) if !read_only && File::open(&path).is_ok() => {
            OpenError::NotWritable { path, source: error }
        }
        Some(libc::EACCES | libc::EPERM) => {
            OpenError::Permission { path, access: if read_only { "read" } else { "read and write" } }
        }
        _ => OpenError::Io { path, what: "opening it", source: error },
    }
}
