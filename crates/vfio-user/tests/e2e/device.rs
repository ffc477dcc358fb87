//! A device that is just enough to see what the server does to it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use dma::{AddressSpace, MemoryMap, SharedPages};
use pci::{Bar, ConfigSpace, ConfigSpaceBuilder, Interrupt, Interrupts, MappableArea, MsixLayout, PciFunction, Wait};
use rustix::event::{EventfdFlags, eventfd};

/// MSI-X vectors of the device.
pub(crate) const VECTORS: u16 = 40;
/// A write of `n` raises MSI-X vector `n`.
pub(crate) const RAISE_MSIX: u64 = 0x1000;
/// A write sets the level of the legacy line.
pub(crate) const LEVEL: u64 = 0x1008;
/// A write starts a request that lasts until [`Shared::release`].
pub(crate) const START: u64 = 0x1010;
/// A write of a guest address: the device writes `b"DMA!"` there. Read back: 1 when that worked.
pub(crate) const DMA: u64 = 0x1018;

/// A write replaces the descriptor that the device waits for; the new one has the old one's number, as often happens.
pub(crate) const SWAP: u64 = 0x1020;

/// A write of 1 keeps the device busy in every turn, of 0 ends that.
pub(crate) const SPIN: u64 = 0x1028;
/// An area of BAR 0 that can be mapped: offset and length.
pub(crate) const AREA: (u64, u64) = (0x2000, 0x1000);

/// What tests see of the device and may tell it, from another thread.
pub(crate) struct Shared {
    pub writes: Mutex<Vec<(usize, u64, Vec<u8>)>>,
    pub resets: AtomicU64,
    pub unmasked: AtomicU64,
    pub in_flight: AtomicU64,
    pub polls: AtomicU64,
    /// How long the device rests at most, if not 0, in ns.
    pub deadline: AtomicU64,
    /// How late each of these rests ended.
    pub late: Mutex<Vec<Duration>>,
    /// A reset waits for the request in flight, too.
    release: AtomicBool,
    kick: Mutex<OwnedFd>,
}

impl Shared {
    /// Ends the requests in flight.
    pub(crate) fn release(&self) {
        self.release.store(true, Ordering::SeqCst);
        rustix::io::write(&*self.kick.lock().unwrap(), &1u64.to_ne_bytes()).unwrap();
    }

    pub(crate) fn writes(&self) -> Vec<(usize, u64, Vec<u8>)> {
        self.writes.lock().unwrap().clone()
    }
}

pub(crate) struct Device {
    pub shared: Arc<Shared>,
    config: ConfigSpace,
    memory: Vec<u8>,
    interrupts: Interrupts,
    level: bool,
    /// The legacy line was signalled and not unmasked since.
    line_masked: bool,
    map: Arc<MemoryMap>,
    in_flight: Vec<Arc<MemoryMap>>,
    dma_worked: bool,
    generation: u64,
    spinning: bool,
    until: Option<Instant>,
    /// What it offers to be mapped of BAR 0: offset and length.
    pub area: Option<(u64, u64)>,
    pages: SharedPages,
}

/// Pages that hold [`AREA`] at its offset.
fn new_pages() -> SharedPages {
    SharedPages::new("area", AREA.0, AREA.1).unwrap()
}

fn new_kick() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn bars() -> [Option<Bar>; 6] {
    let bar = |size, is_64bit| Some(Bar { size, is_64bit, prefetchable: false });
    [bar(16384, true), None, None, None, bar(8192, false), None]
}

impl Device {
    pub(crate) fn new() -> Self {
        let layout = MsixLayout { vectors: VECTORS, table_bar: 4, table_offset: 0, pba_bar: 4, pba_offset: 4096 };
        let config = ConfigSpaceBuilder {
            vendor: 0x1d1d,
            device: 0x1f1f,
            class: 0x01_08_02,
            bars: bars(),
            msix: Some(layout),
            ..Default::default()
        };
        let shared = Shared {
            writes: Mutex::default(),
            resets: AtomicU64::new(0),
            unmasked: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            late: Mutex::default(),
            release: AtomicBool::new(false),
            kick: Mutex::new(new_kick()),
        };
        Self {
            shared: Arc::new(shared),
            config: config.build().unwrap(),
            memory: vec![0; 16384],
            interrupts: Interrupts::new(VECTORS),
            level: false,
            line_masked: false,
            map: AddressSpace::new().snapshot(),
            in_flight: Vec::new(),
            dma_worked: false,
            generation: 0,
            spinning: false,
            until: None,
            area: None,
            pages: new_pages(),
        }
    }

    fn update_line(&mut self) {
        if self.level && !self.line_masked {
            self.line_masked = true;
            self.interrupts.signal_intx();
        }
    }
}

impl PciFunction for Device {
    fn bars(&self) -> [Option<Bar>; 6] {
        bars()
    }

    fn msix_vectors(&self) -> u16 {
        VECTORS
    }

    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.config.read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let _ = self.config.write(offset, data);
    }

    fn bar_read(&mut self, bar: usize, offset: u64, data: &mut [u8]) {
        if bar == 0 && offset == DMA {
            data.fill(0);
            data[0] = self.dma_worked.into();
            return;
        }
        let at = usize::try_from(offset).unwrap();
        match bar {
            0 => data.copy_from_slice(&self.memory[at..at + data.len()]),
            4 => assert!(at + data.len() <= 8192),
            other => panic!("read of BAR {other}"),
        }
    }

    fn bar_write(&mut self, bar: usize, offset: u64, data: &[u8]) {
        self.shared.writes.lock().unwrap().push((bar, offset, data.to_vec()));
        let at = usize::try_from(offset).unwrap();
        assert!(at + data.len() <= if bar == 0 { 16384 } else { 8192 });
        let mut value = [0; 8];
        let n = data.len().min(8);
        value[..n].copy_from_slice(&data[..n]);
        let value = u64::from_le_bytes(value);
        match (bar, offset) {
            (0, RAISE_MSIX) => self.interrupts.signal_msix(u16::try_from(value).unwrap_or(u16::MAX)),
            (0, LEVEL) => {
                self.level = value != 0;
                self.update_line();
            }
            (0, START) => self.in_flight.push(self.map.clone()),
            (0, SWAP) => {
                let mut kick = self.shared.kick.lock().unwrap();
                rustix::io::dup2(new_kick(), &mut kick).unwrap();
                self.generation += 1;
            }
            (0, SPIN) => self.spinning = value != 0,
            (0, DMA) => self.dma_worked = self.map.write(value, b"DMA!").is_ok(),
            (0, _) => self.memory[at..at + data.len()].copy_from_slice(data),
            (4, _) => {}
            (other, _) => panic!("write to BAR {other}"),
        }
        self.shared.in_flight.store(self.in_flight.len() as u64, Ordering::SeqCst);
    }

    fn mappable(&self, bar: usize) -> Option<MappableArea> {
        let (offset, len) = self.area.filter(|_| bar == 0)?;
        Some(MappableArea { offset, len, fd: self.pages.fd().clone() })
    }

    fn revoke(&mut self) {
        self.pages = new_pages();
    }

    fn connect_msix(&mut self, vector: u16, interrupt: Option<Interrupt>) {
        self.interrupts.connect_msix(vector, interrupt);
    }

    fn connect_intx(&mut self, interrupt: Option<Interrupt>) {
        self.interrupts.connect_intx(interrupt);
        self.line_masked = false;
        self.update_line();
    }

    fn intx_unmasked(&mut self) {
        self.shared.unmasked.fetch_add(1, Ordering::SeqCst);
        self.line_masked = false;
        self.update_line();
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.map = map;
    }

    fn reset(&mut self) {
        self.shared.resets.fetch_add(1, Ordering::SeqCst);
        self.config.reset();
        self.memory.fill(0);
        self.interrupts.clear_pending();
        self.level = false;
        self.dma_worked = false;
        self.spinning = false;
    }

    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    fn poll(&mut self) -> usize {
        self.shared.polls.fetch_add(1, Ordering::Relaxed);
        // A poll before the deadline has another reason.
        if let Some(late) = self.until.take().and_then(|until| Instant::now().checked_duration_since(until)) {
            self.shared.late.lock().unwrap().push(late);
        }
        if self.spinning {
            return 1;
        }
        let kicked = rustix::io::read(&*self.shared.kick.lock().unwrap(), &mut [0u8; 8]).is_ok();
        if self.shared.release.swap(false, Ordering::SeqCst) {
            self.in_flight.clear();
            self.shared.in_flight.store(0, Ordering::SeqCst);
        }
        kicked.into()
    }

    fn wants_polling(&self) -> bool {
        false
    }

    fn prepare_wait(&mut self) -> Wait {
        let deadline = self.shared.deadline.load(Ordering::SeqCst);
        self.until = (deadline > 0).then(|| Instant::now() + Duration::from_nanos(deadline));
        Wait::Until(self.until)
    }

    fn wait_fds(&self, add: &mut dyn FnMut(BorrowedFd<'_>)) {
        add(self.shared.kick.lock().unwrap().as_fd());
    }

    fn wait_fds_generation(&self) -> u64 {
        self.generation
    }
}
