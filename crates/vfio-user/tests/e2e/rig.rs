//! A server in a thread, and a client that may send anything.

use std::{
    io::{ErrorKind, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pci::PollMode;
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use shadowbell_vfio_user::{
    Client, ClientOptions, Control, Device as Served, Server, ServerOptions, Statistics, Worker, WorkerStatistics,
    codec::wire::{FLAG_ERROR, FLAG_NO_REPLY, Header, RegionAccess, TYPE_COMMAND, command},
};
use zerocopy::IntoBytes;

use crate::device::{Device, Shared};

/// Far more than anything needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Waits for what another thread does.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Whether an eventfd was signalled since the last call.
pub(crate) fn signalled(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0u8; 8]).is_ok()
}

/// A running server.
pub(crate) struct Rig {
    pub device: Arc<Shared>,
    pub path: PathBuf,
    wake: OwnedFd,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Option<Statistics>>>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(ServerOptions::default())
    }

    pub(crate) fn with(options: ServerOptions) -> Self {
        Self::start(options, Device::new())
    }

    /// A device that offers this area of BAR 0 to be mapped.
    pub(crate) fn with_area(offset: u64, len: u64) -> Self {
        let mut device = Device::new();
        device.area = Some((offset, len));
        Self::start(ServerOptions::default(), device)
    }

    fn start(options: ServerOptions, device: Device) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device.sock");
        let server = Server::bind(&path, options).unwrap();
        let shared = device.shared.clone();
        let wake = new_eventfd();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(None));
        let thread = {
            let (wake, stop, seen) = (wake.try_clone().unwrap(), stop.clone(), seen.clone());
            std::thread::spawn(move || {
                let mut control = |devices: &mut [Served<Device>], _: &WorkerStatistics| {
                    rustix::io::read(&wake, &mut [0u8; 8]).unwrap();
                    *seen.lock().unwrap() = Some(*devices[0].statistics());
                    if stop.load(Ordering::SeqCst) { Control::Stop } else { Control::Continue }
                };
                let mut worker = Worker::new(PollMode::Auto);
                worker.add(server, device);
                worker.run(&[wake.as_fd()], &mut control).unwrap();
            })
        };
        Self { device: shared, path, wake, stop, seen, thread: Some(thread), _dir: dir }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.path, ClientOptions::default().timeout(LIMIT)).unwrap()
    }

    pub(crate) fn raw(&self) -> Raw {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Raw { stream }
    }

    /// A raw client that has said VERSION.
    pub(crate) fn greeted(&self) -> Raw {
        let mut raw = self.raw();
        raw.greet();
        raw
    }

    pub(crate) fn wake(&self) {
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
    }

    pub(crate) fn statistics(&self) -> Statistics {
        *self.seen.lock().unwrap() = None;
        self.wake();
        let mut stats = None;
        wait_until("statistics", || {
            stats = *self.seen.lock().unwrap();
            stats.is_some()
        });
        stats.unwrap()
    }

    pub(crate) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.device.release();
        self.ask_to_stop();
        if !std::thread::panicking() {
            self.join();
        }
    }
}

/// A client that knows no manners.
pub(crate) struct Raw {
    pub stream: UnixStream,
}

/// A message with a header that tells the truth.
pub(crate) fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(Header::SIZE + payload.len()).unwrap();
    let header = Header { message_id: id, command, size, flags, error: 0 };
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn write_message(id: u16, flags: u32, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = RegionAccess { offset, region, count: u32::try_from(data.len()).unwrap() };
    message(id, command::REGION_WRITE, flags, &[access.as_bytes(), data].concat())
}

/// A doorbell as QEMU sends it.
pub(crate) fn posted(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    write_message(0, TYPE_COMMAND | FLAG_NO_REPLY, region, offset, data)
}

pub(crate) fn read_message(id: u16, region: u32, offset: u64, count: u32) -> Vec<u8> {
    message(id, command::REGION_READ, TYPE_COMMAND, RegionAccess { offset, region, count }.as_bytes())
}

impl Raw {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends what the server may no longer want to read.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![MaybeUninit::uninit(); 4096];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    pub(crate) fn receive(&mut self) -> (Header, Vec<u8>) {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).unwrap();
        let (header, _) = Header::split(&bytes).unwrap();
        assert!(header.is_reply());
        let mut payload = vec![0; usize::try_from(header.size).unwrap() - 16];
        self.stream.read_exact(&mut payload).unwrap();
        (header, payload)
    }

    /// The errno of the next answer, 0 for success.
    pub(crate) fn receive_error(&mut self, id: u16) -> u32 {
        let (header, payload) = self.receive();
        assert_eq!(header.message_id, id);
        if header.flags & FLAG_ERROR == 0 {
            return 0;
        }
        assert!(payload.is_empty(), "an error is a header alone");
        header.error
    }

    pub(crate) fn greet(&mut self) {
        self.send(&message(0xffff, command::VERSION, TYPE_COMMAND, &[0, 0, 1, 0]));
        assert_eq!(self.receive_error(0xffff), 0);
    }

    /// Proves that the connection lives and that all before it was handled, without any other answer.
    pub(crate) fn sync(&mut self) {
        self.send(&read_message(0xabcd, 7, 0, 4));
        let (header, payload) = self.receive();
        assert_eq!((header.message_id, header.flags & FLAG_ERROR), (0xabcd, 0));
        assert_eq!(payload[16..], [0x1d, 0x1d, 0x1f, 0x1f]);
    }

    /// Receives one answer and says how many descriptors came with its header, which is read by itself as QEMU does.
    pub(crate) fn receive_with_fds(&mut self) -> (Header, Vec<u8>, Vec<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; Header::SIZE];
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert_eq!(got.bytes, Header::SIZE);
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        let (header, _) = Header::split(&bytes).unwrap();
        let mut payload = vec![0; usize::try_from(header.size).unwrap() - Header::SIZE];
        self.stream.read_exact(&mut payload).unwrap();
        (header, payload, fds)
    }

    /// Waits until the server has closed the connection; answers that are under way are skipped.
    pub(crate) fn expect_closed(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("not closed: {error}"),
            }
        }
    }
}
