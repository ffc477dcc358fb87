//! The suite over every backend of this crate.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::{path::Path, sync::Arc};

use shadowbell_block::{
    BlockDevice, NullDevice, RamDevice,
    conformance::{Backend, MIN_SIZE},
    conformance_tests,
    file::{Direct, Engine, FileDevice, FileOptions},
};
use tempfile::TempDir;

fn null(block_size: u32, zeroes: bool) -> Option<Backend> {
    Some(Backend {
        make: Box::new(move || Arc::new(NullDevice::new(64 << 30, block_size, zeroes).unwrap())),
        make_read_only: None,
        keeps_data: false,
    })
}

fn ram(block_size: u32) -> Option<Backend> {
    Some(Backend {
        make: Box::new(move || Arc::new(RamDevice::new(MIN_SIZE + u64::from(block_size) * 3, block_size).unwrap())),
        make_read_only: None,
        keeps_data: true,
    })
}

/// A file that goes away with its device.
#[derive(Debug)]
struct Temporary(FileDevice, #[allow(dead_code)] TempDir);

impl BlockDevice for Temporary {
    fn name(&self) -> String {
        self.0.name()
    }

    fn capabilities(&self) -> shadowbell_block::Capabilities {
        self.0.capabilities()
    }

    fn open_queue(&self, depth: usize) -> std::io::Result<Box<dyn shadowbell_block::BlockQueue>> {
        self.0.open_queue(depth)
    }
}

/// Images in `directory`; `None` when the machine lacks it, or what `options` ask for.
fn file(directory: &Path, options: FileOptions) -> Option<Backend> {
    let block = u64::from(options.block_size.unwrap_or(512));
    let create = FileOptions { create: Some(MIN_SIZE + block * 3), ..options };
    let read_only = FileOptions { read_only: true, ..options };
    let trial = tempfile::tempdir_in(directory).ok()?;
    let device = FileDevice::open(trial.path().join("disk"), create).map_err(|error| eprintln!("{error}")).ok()?;
    device.open_queue(1).map_err(|error| eprintln!("{error}")).ok()?;
    let (make_in, read_only_in) = (directory.to_path_buf(), directory.to_path_buf());
    Some(Backend {
        make: Box::new(move || {
            let directory = tempfile::tempdir_in(&make_in).unwrap();
            Arc::new(Temporary(FileDevice::open(directory.path().join("disk"), create).unwrap(), directory))
        }),
        make_read_only: Some(Box::new(move || {
            let directory = tempfile::tempdir_in(&read_only_in).unwrap();
            let path = directory.path().join("disk");
            std::fs::write(&path, vec![0x3c; usize::try_from(MIN_SIZE).unwrap()]).unwrap();
            Arc::new(Temporary(FileDevice::open(path, read_only).unwrap(), directory))
        })),
        keeps_data: true,
    })
}

fn disk(direct: Direct, engine: Engine, block_size: u32, write_cache: bool) -> Option<Backend> {
    let options = FileOptions { direct, engine, write_cache, block_size: Some(block_size), ..FileOptions::default() };
    file(&std::env::temp_dir(), options)
}

fn tmpfs(engine: Engine) -> Option<Backend> {
    file(Path::new("/dev/shm"), FileOptions { engine, ..FileOptions::default() })
}

conformance_tests!(null_512, null(512, false));
conformance_tests!(null_4096_zeroes, null(4096, true));
conformance_tests!(ram_512, ram(512));
conformance_tests!(ram_4096, ram(4096));
conformance_tests!(file_defaults, file(&std::env::temp_dir(), FileOptions::default()));
conformance_tests!(file_uring_direct_512, disk(Direct::On, Engine::Uring, 512, true));
conformance_tests!(file_uring_direct_4096, disk(Direct::On, Engine::Uring, 4096, true));
conformance_tests!(file_uring_cached, disk(Direct::Off, Engine::Uring, 512, true));
conformance_tests!(file_uring_durable, disk(Direct::Auto, Engine::Uring, 4096, false));
conformance_tests!(file_inline, disk(Direct::Auto, Engine::Inline, 512, true));
conformance_tests!(file_threads_direct, disk(Direct::On, Engine::Threads, 512, true));
conformance_tests!(file_threads_cached, disk(Direct::Off, Engine::Threads, 4096, true));
conformance_tests!(file_threads_durable, disk(Direct::Off, Engine::Threads, 512, false));
conformance_tests!(tmpfs_defaults, tmpfs(Engine::Auto));
conformance_tests!(tmpfs_uring, tmpfs(Engine::Uring));
conformance_tests!(tmpfs_threads, tmpfs(Engine::Threads));
