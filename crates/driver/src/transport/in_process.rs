//! A device in this process, on a thread of its own.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
        mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use dma::{AddressSpace, MemoryMap};
use pci::{Pace, Pacer, PciFunction, PollMode, Wait};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{PciId, Transport, cooperative, cooperative::Config, mapped::MappedDoorbells, pci_setup};
use crate::{error::TransportError, memory::DmaRange};

/// How long one access may take. A reset waits for I/O at a backend.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// While something must become quiet, it is looked at this often at least.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

type Task<F> = Box<dyn FnOnce(&mut Worker<F>) + Send>;

enum Message<F> {
    /// A posted write to BAR 0.
    Ring {
        offset: u64,
        value: u32,
    },
    /// Anything else; it answers by itself.
    Task(Task<F>),
    Stop,
}

/// What the thread owns.
struct Worker<F> {
    function: F,
    space: AddressSpace,
    /// Answered once the function is quiet.
    resets: Vec<SyncSender<()>>,
    /// Answered once nobody holds the old memory.
    unmaps: Vec<(Arc<MemoryMap>, SyncSender<()>)>,
    /// What the function wants to be woken by, as of a generation.
    fds: Vec<OwnedFd>,
    fds_generation: Option<u64>,
    pacer: Pacer,
}

impl<F> Worker<F> {
    fn new(function: F, poll: PollMode) -> Self {
        Self {
            pacer: Pacer::new(poll),
            function,
            space: AddressSpace::new(),
            resets: Vec::new(),
            unmaps: Vec::new(),
            fds: Vec::new(),
            fds_generation: None,
        }
    }
}

/// A function on a thread of its own, which sleeps when there is nothing to do. Accesses go there by a queue, and a doorbell
/// wakes the thread only when it sleeps. The thread ends with this value.
#[derive(Debug)]
pub struct InProcess<F> {
    id: PciId,
    register_bytes: u64,
    vectors: u16,
    doorbells: Option<MappedDoorbells>,
    sender: Sender<Message<F>>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Wake {
    fd: OwnedFd,
    /// The thread sleeps, or is about to and will look at the queue again.
    asleep: AtomicBool,
}

impl<F: PciFunction + Send + 'static> InProcess<F> {
    /// Starts the thread, which polls where that pays.
    ///
    /// # Errors
    /// [`TransportError`] when the system gives no eventfd or no thread, or when the function's vendor id is FFFFh.
    pub fn spawn(function: F) -> Result<Self, TransportError> {
        Self::spawn_with(function, PollMode::Auto)
    }

    /// Starts the thread, which polls as `poll` says.
    ///
    /// # Errors
    /// As [`InProcess::spawn`].
    pub fn spawn_with(mut function: F, poll: PollMode) -> Result<Self, TransportError> {
        let id = pci_setup::identity(&mut Config(&mut function))?;
        let vectors = pci_setup::msix(&mut Config(&mut function))?.map_or(0, |(_, vectors)| vectors);
        let register_bytes = function.bars()[0].map_or(0, |bar| bar.size);
        let area = function.mappable(0);
        let doorbells = area.and_then(|area| MappedDoorbells::new(area.offset, area.len, &area.fd, area.offset));
        let failed = |error: std::io::Error| TransportError::Failed {
            what: "starting the device's thread",
            reason: error.to_string(),
        };
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
        let wake = Arc::new(Wake { fd, asleep: AtomicBool::new(false) });
        let (sender, receiver) = channel();
        let worker = Worker::new(function, poll);
        let thread = std::thread::Builder::new()
            .name("nvme-device".into())
            .spawn({
                let wake = wake.clone();
                move || worker.run(&receiver, &wake)
            })
            .map_err(failed)?;
        Ok(Self { id, register_bytes, vectors, doorbells, sender, wake, thread: Some(thread) })
    }

    /// Looks at the function on its thread, or does something to it.
    ///
    /// # Errors
    /// [`TransportError`] when the thread is gone or does not answer.
    pub fn with<R: Send + 'static>(&self, f: impl FnOnce(&mut F) -> R + Send + 'static) -> Result<R, TransportError> {
        self.call("looking at the device", |worker| f(&mut worker.function))
    }

    fn call<R: Send + 'static>(
        &self,
        what: &'static str,
        f: impl FnOnce(&mut Worker<F>) -> R + Send + 'static,
    ) -> Result<R, TransportError> {
        let (sender, receiver) = sync_channel(1);
        self.post(Message::Task(Box::new(move |worker| {
            // Who asked may have given up.
            let _ = sender.send(f(worker));
        })))?;
        receiver.recv_timeout(ANSWER_TIME).map_err(|_| self.lost(what))
    }

    /// As [`InProcess::call`], for what is answered later.
    fn call_later(
        &self,
        what: &'static str,
        f: impl FnOnce(&mut Worker<F>, SyncSender<()>) + Send + 'static,
    ) -> Result<(), TransportError> {
        let (sender, receiver) = sync_channel(1);
        self.post(Message::Task(Box::new(move |worker| f(worker, sender))))?;
        receiver.recv_timeout(ANSWER_TIME).map_err(|_| self.lost(what))
    }

    fn lost(&self, what: &'static str) -> TransportError {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            TransportError::Gone
        } else {
            TransportError::TimedOut(what)
        }
    }
}

impl<F> InProcess<F> {
    fn post(&self, message: Message<F>) -> Result<(), TransportError> {
        self.sender.send(message).map_err(|_| TransportError::Gone)?;
        // Pairs with the fence of the thread: it sees the message, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.wake.asleep.load(Ordering::Relaxed) && self.wake.asleep.swap(false, Ordering::Relaxed) {
            // A full counter wakes as well.
            let _ = rustix::io::write(&self.wake.fd, &1u64.to_ne_bytes());
        }
        Ok(())
    }
}

impl<F> Drop for InProcess<F> {
    fn drop(&mut self) {
        let _ = self.post(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic over there was reported there.
            let _ = thread.join();
        }
    }
}

impl<F: PciFunction> Worker<F> {
    fn run(mut self, receiver: &Receiver<Message<F>>, wake: &Wake) {
        loop {
            loop {
                match receiver.try_recv() {
                    Ok(Message::Ring { offset, value }) => self.write(offset, &value.to_le_bytes()),
                    Ok(Message::Task(task)) => task(&mut self),
                    Ok(Message::Stop) | Err(TryRecvError::Disconnected) => return self.stop(),
                    Err(TryRecvError::Empty) => break,
                }
            }
            let done = self.function.poll();
            self.settle();
            if done > 0 {
                self.pacer.worked(done);
                continue;
            }
            if self.function.wants_polling() && self.pacer.next(true) != Pace::Rest {
                continue;
            }
            let Wait::Until(until) = self.function.prepare_wait() else { continue };
            wake.asleep.store(true, Ordering::Relaxed);
            // Pairs with the fence of who posts.
            fence(Ordering::SeqCst);
            match receiver.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.sleep(until, wake);
                    wake.asleep.store(false, Ordering::Relaxed);
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&wake.fd, &mut count);
                }
                Ok(message) => {
                    wake.asleep.store(false, Ordering::Relaxed);
                    match message {
                        Message::Ring { offset, value } => self.write(offset, &value.to_le_bytes()),
                        Message::Task(task) => task(&mut self),
                        Message::Stop => return self.stop(),
                    }
                }
                Err(TryRecvError::Disconnected) => return self.stop(),
            }
        }
    }

    fn sleep(&mut self, until: Option<Instant>, wake: &Wake) {
        let mut left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if !self.resets.is_empty() || !self.unmaps.is_empty() {
            left = Some(left.map_or(SETTLE_INTERVAL, |left| left.min(SETTLE_INTERVAL)));
        }
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let generation = self.function.wait_fds_generation();
        if self.fds_generation != Some(generation) {
            self.fds_generation = Some(generation);
            self.fds.clear();
            let fds = &mut self.fds;
            self.function.wait_fds(&mut |fd| fds.extend(fd.try_clone_to_owned()));
        }
        let fds = self.fds.iter().map(AsFd::as_fd).chain([wake.fd.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, left.as_ref());
    }

    /// Gives the answers that have waited.
    fn settle(&mut self) {
        if !self.resets.is_empty() && self.function.is_quiet() {
            for sender in self.resets.drain(..) {
                let _ = sender.send(());
            }
        }
        self.unmaps.retain(|(old, sender)| {
            let idle = AddressSpace::is_idle(old);
            if idle {
                let _ = sender.send(());
            }
            !idle
        });
    }

    /// Lets go of the driver's memory before the function goes.
    fn stop(mut self) {
        self.function.reset();
        let deadline = Instant::now() + ANSWER_TIME;
        while !self.function.is_quiet() && Instant::now() < deadline {
            if self.function.poll() == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn inside(&self, offset: u64, len: u64) -> bool {
        let size = self.function.bars()[0].map_or(0, |bar| bar.size);
        offset.checked_add(len).is_some_and(|end| end <= size)
    }

    fn read<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        // A bus access to nowhere reads ones.
        let mut data = [0xff; N];
        if self.inside(offset, N as u64) {
            self.function.bar_read(0, offset, &mut data);
        }
        data
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if self.inside(offset, data.len() as u64) {
            self.function.bar_write(0, offset, data);
        }
    }

    fn set_memory(&mut self) {
        let snapshot = self.space.snapshot();
        self.function.set_memory(snapshot);
    }
}

impl<F: PciFunction + Send + std::fmt::Debug + 'static> Transport for InProcess<F> {
    fn pci_id(&self) -> PciId {
        self.id
    }

    fn register_bytes(&self) -> u64 {
        self.register_bytes
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn enable(&self) -> Result<(), TransportError> {
        self.call("switching the device on", |worker| pci_setup::enable(&mut Config(&mut worker.function)))?
    }

    fn read32(&self, offset: u64) -> Result<u32, TransportError> {
        self.call("reading a register", move |worker| u32::from_le_bytes(worker.read(offset)))
    }

    fn read64(&self, offset: u64) -> Result<u64, TransportError> {
        self.call("reading a register", move |worker| u64::from_le_bytes(worker.read(offset)))
    }

    fn write32(&self, offset: u64, value: u32) -> Result<(), TransportError> {
        self.call("writing a register", move |worker| worker.write(offset, &value.to_le_bytes()))
    }

    fn write64(&self, offset: u64, value: u64) -> Result<(), TransportError> {
        self.call("writing a register", move |worker| worker.write(offset, &value.to_le_bytes()))
    }

    #[inline]
    fn ring(&self, offset: u64, value: u32) -> Result<(), TransportError> {
        if self.doorbells.as_ref().is_some_and(|doorbells| doorbells.ring(offset, value)) {
            return Ok(());
        }
        self.post(Message::Ring { offset, value })
    }

    fn has_mapped_doorbells(&self) -> bool {
        self.doorbells.is_some()
    }

    fn map(&self, range: &DmaRange) -> Result<(), TransportError> {
        // The map and the driver share one mapping.
        let mapping = range.mapping().clone();
        let (iova, len) = (range.iova(), range.len());
        self.call("mapping memory", move |worker| {
            cooperative::map(&mut worker.space, iova, len, mapping)?;
            worker.set_memory();
            Ok(())
        })?
    }

    fn unmap(&self, range: &DmaRange) -> Result<(), TransportError> {
        let (iova, len) = (range.iova(), range.len());
        self.call_later("unmapping memory", move |worker, answer| {
            let old = worker.space.snapshot();
            if cooperative::unmap(&mut worker.space, iova, len).is_ok() {
                worker.set_memory();
                worker.unmaps.push((old, answer));
            } else {
                // What is not mapped needs no wait.
                let _ = answer.send(());
            }
        })
    }

    fn connect_vector(&self, vector: u16, eventfd: BorrowedFd<'_>) -> Result<(), TransportError> {
        let interrupt = cooperative::interrupt(eventfd)?;
        self.call("connecting a vector", move |worker| worker.function.connect_msix(vector, Some(interrupt)))
    }

    fn reset(&self) -> Result<(), TransportError> {
        self.call_later("resetting the function", |worker, answer| {
            worker.function.reset();
            worker.resets.push(answer);
        })
    }
}
