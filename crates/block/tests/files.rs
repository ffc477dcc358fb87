//! Images and block devices: what is refused and how it is said, locks, holes, files that change behind our back.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::panic)]

use std::{
    fs,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use dma::{Access, AddressSpace, Backing, Protection, Segments};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
};
use shadowbell_block::{
    BlockDevice, BlockError, BlockQueue, Operation, Request, Submitted,
    conformance::Guest,
    file::{Direct, Engine, FileDevice, FileOptions, OpenError},
};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const DEFAULT: FileOptions = FileOptions {
    read_only: false,
    write_cache: true,
    direct: Direct::Auto,
    block_size: None,
    create: None,
    engine: Engine::Auto,
};
const READ_ONLY: FileOptions = FileOptions { read_only: true, ..DEFAULT };

fn image(size: u64) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    (directory, path)
}

fn refused(path: &Path, options: FileOptions) -> OpenError {
    let error = FileDevice::open(path, options).unwrap_err();
    assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "the message names the image: {error}");
    error
}

fn engines() -> impl Iterator<Item = Engine> {
    let (_directory, path) = image(MIB);
    let device = FileDevice::open(path, FileOptions { engine: Engine::Uring, ..DEFAULT }).unwrap();
    let uring = device.open_queue(1).map_err(|error| eprintln!("skipped: {error}")).is_ok();
    [Engine::Uring, Engine::Threads, Engine::Inline].into_iter().filter(move |&engine| uring || engine != Engine::Uring)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(
    queue: &mut dyn BlockQueue,
    operation: Operation,
    offset: u64,
    len: u64,
    segments: Segments,
) -> Result<(), BlockError> {
    let mut result = None;
    match queue.submit(&mut Request { tag: 1, operation, offset, len, segments }) {
        Submitted::Done(result) => return result,
        Submitted::Queued => {}
        Submitted::Full => panic!("full"),
    }
    while queue.poll(&mut |completion| result = Some(completion.result)) == 0 {
        let fd = queue.wait_fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
    }
    result.unwrap()
}

#[test]
fn a_missing_image_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.img");
    let error = refused(&path, DEFAULT);
    assert!(matches!(error, OpenError::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("check the path"));
    let error = refused(&path, FileOptions { create: Some(MIB), ..READ_ONLY });
    assert!(matches!(error, OpenError::CreateReadOnly { .. }), "{error}");
    let error = refused(&directory.path().join("no/where.img"), FileOptions { create: Some(MIB), ..DEFAULT });
    assert!(error.to_string().contains("directory"), "{error}");
}

#[test]
fn what_is_no_disk_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let error = refused(directory.path(), DEFAULT);
    assert!(error.to_string().contains("directory"), "{error}");
    // Opening it would block.
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(refused(&pipe, DEFAULT).to_string().contains("pipe"));
    assert!(refused(Path::new("/dev/null"), DEFAULT).to_string().contains("character device"));
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(refused(&socket, DEFAULT).to_string().contains("socket"));
}

#[test]
fn sizes_that_are_no_disk_are_refused() {
    let (_directory, path) = image(0);
    assert!(matches!(refused(&path, DEFAULT), OpenError::Empty { .. }));
    let (_directory, path) = image(MIB + 1);
    let error = refused(&path, DEFAULT);
    assert!(error.to_string().contains(&(MIB + 512).to_string()), "says the size that would do: {error}");
    let (_directory, path) = image(MIB + 512);
    let error = refused(&path, FileOptions { block_size: Some(4096), ..DEFAULT });
    assert!(error.to_string().contains("use block size 512"), "{error}");
    for block_size in [0, 1, 1024, 8192] {
        let error = refused(&path, FileOptions { block_size: Some(block_size), ..DEFAULT });
        assert!(matches!(error, OpenError::BadBlockSize { .. }), "{error}");
    }
    assert_eq!(FileDevice::open(&path, DEFAULT).unwrap().capabilities().size, MIB + 512);
}

#[test]
fn create_makes_a_sparse_image_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new.img");
    let create = |size| FileOptions { create: Some(size), ..DEFAULT };
    assert!(matches!(refused(&path, create(0)), OpenError::Empty { .. }));
    assert!(matches!(refused(&path, create(513)), OpenError::BadSize { .. }));
    assert!(!path.exists(), "what was refused leaves nothing behind");
    for _ in 0..2 {
        let device = FileDevice::open(&path, create(64 * MIB)).unwrap();
        assert_eq!(device.capabilities().size, 64 * MIB);
    }
    assert!(fs::metadata(&path).unwrap().blocks() < 64, "sparse");
    let error = refused(&path, create(32 * MIB));
    assert!(matches!(error, OpenError::Exists { .. }), "{error}");
    assert!(path.exists());
}

#[test]
fn permissions_are_explained() {
    if is_root() {
        eprintln!("skipped: root may do everything");
        return;
    }
    let (_directory, path) = image(MIB);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let error = refused(&path, DEFAULT);
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(FileDevice::open(&path, READ_ONLY).unwrap().capabilities().read_only);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    assert!(matches!(refused(&path, READ_ONLY), OpenError::Permission { access: "read", .. }));
    assert!(matches!(refused(&path, DEFAULT), OpenError::Permission { access: "read and write", .. }));
}

#[test]
fn an_image_has_one_writer_or_many_readers() {
    let (_directory, path) = image(MIB);
    for engine in engines() {
        let options = FileOptions { engine, ..DEFAULT };
        let writer = FileDevice::open(&path, options).unwrap();
        for other in [options, READ_ONLY] {
            let error = refused(&path, other);
            assert!(matches!(error, OpenError::Locked { .. }), "{error}");
            assert!(error.to_string().contains("another disk server"), "{error}");
        }
        let mut queue = writer.open_queue(8).unwrap();
        let guest = Guest::new();
        assert_eq!(run(&mut *queue, Operation::Read, 0, 512, guest.segments(&[(0, 512)])), Ok(()));
        drop(writer);
        assert!(matches!(refused(&path, options), OpenError::Locked { .. }), "its queue still uses it");
        drop(queue);
        let reader = FileDevice::open(&path, READ_ONLY).expect("free as soon as the last queue is gone");
        let _second = FileDevice::open(&path, READ_ONLY).unwrap();
        assert!(matches!(refused(&path, options), OpenError::Locked { .. }));
        drop(reader);
    }
}

#[test]
fn a_file_that_is_cut_short_gives_errors_and_no_hang() {
    for engine in engines() {
        for direct in [Direct::Auto, Direct::Off] {
            let (_directory, path) = image(MIB);
            let device = FileDevice::open(&path, FileOptions { engine, direct, ..DEFAULT }).unwrap();
            let mut queue = device.open_queue(8).unwrap();
            let guest = Guest::new();
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB / 2 + 512).unwrap();
            let read = |offset| (Operation::Read, offset, 4096, guest.segments(&[(0, 4096)]));
            let mut go = |(operation, offset, len, segments)| run(&mut *queue, operation, offset, len, segments);
            assert_eq!(go(read(0)), Ok(()));
            assert_eq!(go(read(MIB - 4096)), Err(BlockError::ReadFault), "{engine:?} {direct:?}");
            assert_eq!(go(read(MIB / 2)), Err(BlockError::ReadFault), "half of it is there");
            assert_eq!(go((Operation::Flush, 0, 0, Segments::default())), Ok(()));
        }
    }
}

#[test]
fn zeroing_shows_as_holes_on_the_host_or_keeps_the_space() {
    for engine in engines() {
        for write_cache in [true, false] {
            let (_directory, path) = image(8 * MIB);
            let device = FileDevice::open(&path, FileOptions { engine, write_cache, ..DEFAULT }).unwrap();
            let capabilities = device.capabilities();
            assert_eq!(capabilities.volatile_cache, write_cache);
            if !capabilities.discard {
                eprintln!("skipped: the filesystem of the temporary directory cannot punch holes");
                return;
            }
            assert!(capabilities.discard_zeroes);
            let mut queue = device.open_queue(8).unwrap();
            let guest = Guest::new();
            guest.write(0, &vec![0xa5; 8 << 20]);
            let all = |operation, segments| (operation, 0, 8 * MIB, segments);
            let mut go = |(operation, offset, len, segments)| run(&mut *queue, operation, offset, len, segments);
            let used = || {
                fs::File::open(&path).unwrap().sync_all().unwrap();
                fs::metadata(&path).unwrap().blocks() * 512
            };
            for operation in [Operation::Discard, Operation::WriteZeroes { may_unmap: true, fua: true }] {
                assert_eq!(go(all(Operation::Write { fua: true }, guest.segments(&[(0, 8 << 20)]))), Ok(()));
                assert!(used() >= 8 * MIB);
                assert_eq!(go(all(operation, Segments::default())), Ok(()));
                assert!(used() < MIB, "{operation:?} gives the space back: {} bytes used", used());
            }
            assert_eq!(go(all(Operation::Write { fua: false }, guest.segments(&[(0, 8 << 20)]))), Ok(()));
            let zeroes = Operation::WriteZeroes { may_unmap: false, fua: false };
            assert_eq!(go(all(zeroes, Segments::default())), Ok(()));
            assert!(used() >= 8 * MIB, "without may_unmap the range stays allocated");
            assert_eq!(go((Operation::Read, 4 * MIB, 4096, guest.segments(&[(0, 4096)]))), Ok(()));
            assert_eq!(guest.read(0, 4096), vec![0; 4096]);
        }
    }
}

#[test]
fn a_file_that_refuses_writes_is_read_only_to_the_guest() {
    for engine in engines() {
        let memory = memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, MIB).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let device = FileDevice::open(&path, FileOptions { engine, ..DEFAULT }).unwrap();
        fcntl_add_seals(&memory, SealFlags::WRITE).unwrap();
        let mut queue = device.open_queue(4).unwrap();
        let guest = Guest::new();
        let mut go = |operation, segments| run(&mut *queue, operation, 0, 512, segments);
        assert_eq!(go(Operation::Write { fua: false }, guest.segments(&[(0, 512)])), Err(BlockError::ReadOnly));
        assert_eq!(go(Operation::Discard, Segments::default()), Err(BlockError::ReadOnly), "never swallowed");
        assert_eq!(go(Operation::Read, guest.segments(&[(0, 512)])), Ok(()));
    }
}

#[test]
fn lost_guest_memory_is_an_error_of_the_request_alone() {
    for engine in engines() {
        for direct in [Direct::Auto, Direct::Off] {
            let (_directory, path) = image(MIB);
            let device = FileDevice::open(&path, FileOptions { engine, direct, ..DEFAULT }).unwrap();
            let mut queue = device.open_queue(8).unwrap();
            let ram: OwnedFd = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&ram, 65536).unwrap();
            let mut space = AddressSpace::new();
            let backing = Backing::File { fd: ram.as_fd().try_clone_to_owned().unwrap(), offset: 0 };
            space.map(0, 65536, backing, Protection::READ_WRITE).unwrap();
            ftruncate(&ram, 4096).unwrap();
            for operation in [Operation::Read, Operation::Write { fua: false }] {
                let mut lost = Segments::default();
                lost.push(&space.snapshot(), 8192, 4096, Access::Write).unwrap();
                let result = run(&mut *queue, operation, 0, 4096, lost);
                assert_eq!(result, Err(BlockError::Memory), "{engine:?} {direct:?} {operation:?}");
            }
            let mut there = Segments::default();
            there.push(&space.snapshot(), 0, 4096, Access::Write).unwrap();
            assert_eq!(run(&mut *queue, Operation::Read, 0, 4096, there), Ok(()));
        }
    }
}

#[test]
fn direct_io_is_used_where_it_can_be() {
    let (_directory, path) = image(MIB);
    match FileDevice::open(&path, FileOptions { direct: Direct::On, ..DEFAULT }) {
        Ok(device) => assert!(device.is_direct()),
        Err(error) => {
            assert!(error.to_string().contains("direct I/O is not possible"), "{error}");
            eprintln!("skipped: {error}");
            return;
        }
    }
    assert!(FileDevice::open(&path, DEFAULT).unwrap().is_direct());
    assert!(!FileDevice::open(&path, FileOptions { direct: Direct::Off, ..DEFAULT }).unwrap().is_direct());
}

/// A loop device over an image; gone with the value.
struct Loop(PathBuf, #[allow(dead_code)] TempDir);

impl Loop {
    fn new(size: u64, block_size: u32) -> Option<Self> {
        let (directory, path) = image(size);
        let block_size = block_size.to_string();
        let output = Command::new("losetup").args(["-f", "--show", "-b", &block_size]).arg(&path).output();
        let output = output.ok().filter(|output| output.status.success());
        if output.is_none() {
            eprintln!("skipped: no loop device (root and the loop module are needed)");
        }
        Some(Self(String::from_utf8(output?.stdout).unwrap().trim().into(), directory))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn block_devices_have_their_own_size_block_size_and_zeroing() {
    let Some(device) = Loop::new(16 * MIB, 4096) else { return };
    let error = refused(&device.0, FileOptions { block_size: Some(512), ..DEFAULT });
    assert!(matches!(error, OpenError::BlockSizeTooSmall { needs: 4096, .. }), "{error}");
    for engine in engines() {
        let disk = FileDevice::open(&device.0, FileOptions { engine, ..DEFAULT }).unwrap();
        let capabilities = disk.capabilities();
        assert_eq!((capabilities.size, capabilities.block_size), (16 * MIB, 4096));
        assert!(matches!(refused(&device.0, DEFAULT), OpenError::Locked { .. }), "opened exclusively");
        let mut queue = disk.open_queue(8).unwrap();
        let guest = Guest::new();
        let mut go = |operation, offset, len, segments| run(&mut *queue, operation, offset, len, segments);
        let one = 1 << 20;
        for operation in [
            Operation::WriteZeroes { may_unmap: true, fua: true },
            Operation::WriteZeroes { may_unmap: false, fua: false },
            Operation::Discard,
        ] {
            guest.write(0, &vec![0x42; one]);
            assert_eq!(go(Operation::Write { fua: false }, 0, MIB, guest.segments(&[(0, one)])), Ok(()));
            assert_eq!(go(operation, 4096, 8192, Segments::default()), Ok(()), "{engine:?} {operation:?}");
            assert_eq!(go(Operation::Flush, 0, 0, Segments::default()), Ok(()));
            assert_eq!(go(Operation::Read, 0, MIB, guest.segments(&[(4, one)])), Ok(()), "through a bounce buffer");
            let back = guest.read(4, one);
            assert!(back[..4096].iter().chain(&back[12288..]).all(|&byte| byte == 0x42));
            let zeroed = back[4096..12288].iter().all(|&byte| byte == 0);
            assert!(zeroed || (operation == Operation::Discard && !capabilities.discard_zeroes));
        }
    }
}

/// A filesystem of 1 MiB; unmounted with the value.
struct Mounted(TempDir);

impl Mounted {
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(directory.path());
        let mounted = is_root() && mount.status().is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("skipped: a small filesystem can be mounted by root only");
        }
        mounted.then(|| Self(directory))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_filesystem_is_said_to_be_full() {
    let Some(directory) = Mounted::new() else { return };
    for engine in engines() {
        let path = directory.0.path().join("disk.img");
        let device = FileDevice::open(&path, FileOptions { create: Some(8 * MIB), engine, ..DEFAULT }).unwrap();
        let mut queue = device.open_queue(8).unwrap();
        let guest = Guest::new();
        let all = guest.segments(&[(0, 4 << 20)]);
        let result = run(&mut *queue, Operation::Write { fua: false }, 0, 4 * MIB, all);
        assert_eq!(result, Err(BlockError::NoSpace), "{engine:?}");
        let result =
            run(&mut *queue, Operation::WriteZeroes { may_unmap: false, fua: false }, 0, 4 * MIB, Segments::default());
        assert_eq!(result, Err(BlockError::NoSpace), "{engine:?}");
        assert_eq!(run(&mut *queue, Operation::Discard, 0, 8 * MIB, Segments::default()), Ok(()));
        let result = run(&mut *queue, Operation::Write { fua: false }, 0, 65536, guest.segments(&[(0, 65536)]));
        assert_eq!(result, Ok(()), "and takes data again when there is room");
        drop((queue, device));
        fs::remove_file(path).unwrap();
    }
}

/// A file in memory, full of this byte.
fn file_in_memory(byte: u8) -> (OwnedFd, String) {
    let memory = memfd_create("whole", MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&memory, &vec![byte; 1 << 20], 0).unwrap();
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    (memory, path)
}

#[test]
fn a_file_in_memory_without_holes_says_what_the_file_says() {
    dma::sigbus::install();
    let (memory, path) = file_in_memory(7);
    let mut queue = FileDevice::open(&path, DEFAULT).unwrap().open_queue(4).unwrap();
    let guest = Guest::new();
    let mut go = |operation, offset, len: u64, segments| run(&mut *queue, operation, offset, len, segments);
    guest.write(0, &[9; 8192]);
    assert_eq!(go(Operation::Write { fua: true }, 4096, 8192, guest.segments(&[(0, 4096), (4096, 4096)])), Ok(()));
    let mut bytes = [0; 16384];
    rustix::io::pread(&memory, &mut bytes, 0).unwrap();
    assert!(bytes[..4096].iter().all(|b| *b == 7) && bytes[4096..12288].iter().all(|b| *b == 9) && bytes[12288] == 7);
    rustix::io::pwrite(&memory, &[3; 512], 512).unwrap();
    assert_eq!(go(Operation::Read, 512, 512, guest.segments(&[(100, 512)])), Ok(()));
    assert_eq!(guest.read(100, 512), [3; 512]);
    // After this there are holes, and no look at one may fill it.
    assert_eq!(go(Operation::Discard, 0, MIB, Segments::default()), Ok(()));
    assert_eq!(go(Operation::Read, 0, 8192, guest.segments(&[(0, 8192)])), Ok(()));
    assert_eq!(guest.read(0, 8192), vec![0; 8192]);
    assert_eq!(rustix::fs::fstat(&memory).unwrap().st_blocks, 0);
}

#[test]
fn a_file_in_memory_that_is_cut_short_is_an_error_and_no_crash() {
    dma::sigbus::install();
    let (memory, path) = file_in_memory(7);
    let mut queue = FileDevice::open(&path, DEFAULT).unwrap().open_queue(4).unwrap();
    let guest = Guest::new();
    ftruncate(&memory, 65536).unwrap();
    let mut go = |operation, offset, segments| run(&mut *queue, operation, offset, 4096, segments);
    assert_eq!(go(Operation::Read, 131_072, guest.segments(&[(0, 4096)])), Err(BlockError::ReadFault));
    assert_eq!(go(Operation::Read, 4096, guest.segments(&[(0, 4096)])), Ok(()));
    assert_eq!(guest.read(0, 4096), vec![7; 4096]);
    // As for every file: writing there makes it grow again.
    assert_eq!(go(Operation::Write { fua: false }, 131_072, guest.segments(&[(0, 4096)])), Ok(()));
    assert_eq!(go(Operation::Read, 131_072, guest.segments(&[(4096, 4096)])), Ok(()));
    assert_eq!(guest.read(4096, 4096), vec![7; 4096]);
}
