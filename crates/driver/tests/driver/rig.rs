//! Controllers to test against, and what every test needs.

use std::{
    fmt::Debug,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use block::{BlockDevice, RamDevice};
use controller::{Config, NvmeFunction, Report};
use pci::PollMode;
use rustix::event::{EventfdFlags, eventfd};
use shadowbell_driver::{
    Buffer, Completion, Cooperative, Data, Device, DoorbellPolicy, Error, InProcess, Namespace, Options, QueuePair,
    Transport, VfioUser, nvme::Status,
};
use vfio_user::{Client, ClientOptions, Control, Server, ServerOptions, Worker};

/// Longer than anything takes; a test that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn ram(bytes: u64, block: u32) -> Arc<dyn BlockDevice> {
    Arc::new(RamDevice::new(bytes, block).unwrap())
}

pub(crate) fn nvme(disks: Vec<Arc<dyn BlockDevice>>) -> NvmeFunction {
    NvmeFunction::new(Config::new("driver-tests", disks)).unwrap()
}

pub(crate) fn options(doorbells: DoorbellPolicy) -> Options {
    Options { doorbells, ..Options::default() }
}

pub(crate) fn cooperative(function: NvmeFunction) -> Arc<Cooperative<NvmeFunction>> {
    Arc::new(Cooperative::new(function).unwrap())
}

/// Opens a device, keeping the way to its other side.
pub(crate) fn open<T: Transport + 'static>(transport: &Arc<T>, options: Options) -> Device {
    Device::open(transport.clone(), options).unwrap()
}

/// A vfio-user server on a thread.
pub(crate) struct Served {
    directory: tempfile::TempDir,
    stop: OwnedFd,
    thread: Option<JoinHandle<Report>>,
}

impl Served {
    pub(crate) fn start(function: NvmeFunction) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::bind(directory.path().join("disk.sock"), ServerOptions::default()).unwrap();
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let wake = stop.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let mut worker = Worker::new(PollMode::Auto);
            worker.add(server, function);
            worker.run(&[wake.as_fd()], &mut |_, _| Control::Stop).unwrap();
            worker.devices()[0].function().report()
        });
        Self { directory, stop, thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> Arc<VfioUser> {
        let path = self.directory.path().join("disk.sock");
        Arc::new(VfioUser::connect(path, ClientOptions::default().timeout(PATIENCE)).unwrap())
    }

    /// A connection, and a handle by which to cut it.
    pub(crate) fn connect_to_kill(&self) -> (Arc<VfioUser>, UnixStream) {
        let stream = UnixStream::connect(self.directory.path().join("disk.sock")).unwrap();
        let kill = stream.try_clone().unwrap();
        let client = Client::over(stream.into(), ClientOptions::default().timeout(PATIENCE)).unwrap();
        (Arc::new(VfioUser::over(client).unwrap()), kill)
    }

    /// Ends the server under its client, and returns what it counted.
    pub(crate) fn stop(&mut self) -> Option<Report> {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

/// The ways to the real controller.
pub(crate) fn ways(function: impl Fn() -> NvmeFunction) -> Vec<(&'static str, Arc<dyn Transport>, Option<Served>)> {
    let served = Served::start(function());
    vec![
        ("cooperative", cooperative(function()), None),
        ("in process", Arc::new(InProcess::spawn(function()).unwrap()), None),
        ("socket", served.connect(), Some(served)),
    ]
}

/// Waits for exactly one completion, which must be of `tag`.
pub(crate) fn one(queue: &mut QueuePair, tag: u64) -> Completion {
    let mut got = Vec::new();
    assert_eq!(queue.wait(PATIENCE, &mut |completion| got.push(completion)), Ok(1));
    assert_eq!(got[0].tag, tag);
    got[0]
}

/// Waits until everything in flight is complete and successful.
pub(crate) fn drain(queue: &mut QueuePair) -> Result<usize, Error> {
    let mut count = 0;
    while queue.in_flight() > 0 {
        count += queue.wait(PATIENCE, &mut |completion| assert_eq!(completion.ok(), Ok(()), "{completion:?}"))?;
    }
    Ok(count)
}

pub(crate) fn write<'a>(queue: &mut QueuePair, disk: &Namespace, lba: u64, data: impl Into<Data<'a>>) -> Status {
    queue.write(disk, lba, data, 1).unwrap();
    one(queue, 1).status
}

pub(crate) fn read<'a>(queue: &mut QueuePair, disk: &Namespace, lba: u64, data: impl Into<Data<'a>>) -> Status {
    queue.read(disk, lba, data, 2).unwrap();
    one(queue, 2).status
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

pub(crate) fn bytes(buffer: &Buffer, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    buffer.read(offset, &mut out).unwrap();
    out
}

/// The error of a result that must have one.
pub(crate) fn error<T: Debug>(result: Result<T, Error>) -> Error {
    result.unwrap_err()
}
