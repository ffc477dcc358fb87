//! A small NVMe host in the same process as the controller, for tests.
//!
//! [`Machine`] is a computer with one NVMe function: it owns the RAM, sets the function up through configuration space, builds
//! queues, rings doorbells by register or by slot, and reaps completions when an interrupt says so. It checks what every
//! driver relies on: each completion belongs to a command that is outstanding, exactly once, in its SQ's own CQ, with an SQ
//! head that moves forward.
//!
//! Time does not pass here. The function gets its turns as its owner in production gives them ([`pci::PciFunction`]), and
//! when it says that it may sleep, only a register write, a configuration write, new memory, an unmasked line or a readable
//! descriptor wakes it. Its slow look ([`pci::Wait::Until`] with a time) never comes, unless the test lets the
//! clock run ([`Machine::clock`]). So a wake-up or an interrupt that is lost is no
//! time-out: [`Machine::run_until`] sees at once that nothing will ever happen.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

pub mod commands;
pub mod disk;
pub mod memory;
mod queues;
pub mod random;

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use block::{BlockDevice, RamDevice};
use dma::{Cell32, Mapping, Protection, Window};
use nvme::{
    CompletionQueueEntry,
    registers::{Cc, Csts, offset},
};
use pci::{Interrupt, PciFunction, Wait};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shadowbell_controller::{Config, NvmeFunction, QueueCounters};

use memory::{Layout, Memory};
pub use queues::{Bells, CompletionQueue, SubmissionQueue};

/// More turns than anything takes.
const LIMIT: u32 = 1_000_000;

/// How the host hears of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// A vector of its own for each CQ.
    Msix,
    /// The legacy line.
    Intx,
    /// It looks at the CQs all the time.
    Polled,
}

/// What a host decides before it enables the controller.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub layout: Layout,
    /// CC.MPS.
    pub mps: u8,
    /// Entries of the admin queues.
    pub admin_depth: u32,
    pub signal: Signal,
    /// How the admin queue's positions are told.
    pub admin_bells: Bells,
}

impl Default for Setup {
    fn default() -> Self {
        Self { layout: Layout::High, mps: 0, admin_depth: 32, signal: Signal::Msix, admin_bells: Bells::Register }
    }
}

pub struct Machine {
    pub function: NvmeFunction,
    pub memory: Memory,
    pub setup: Setup,
    /// Size of a page in bytes, by CC.MPS.
    pub page: u64,
    pub sqs: BTreeMap<u16, SubmissionQueue>,
    pub cqs: BTreeMap<u16, CompletionQueue>,
    /// Reaped completions that nobody has asked for yet.
    pub completed: Vec<CompletionQueueEntry>,
    /// How many commands are outstanding with a (SQ, command id).
    outstanding: HashMap<(u16, u16), u32>,
    next_cid: u16,
    /// The pages of Doorbell Buffer Config.
    pub shadow: Option<(u64, u64)>,
    vectors: BTreeMap<u16, OwnedFd>,
    line: Option<OwnedFd>,
    awake: bool,
    /// Until when the function may sleep at most; the clock never gets there.
    pub until: Option<Instant>,
    /// A sleep that ends by the clock is over at once.
    pub clock: bool,
    /// The doorbell registers, where the function lets them be mapped; looked up when they are first used.
    doorbells: Option<Window>,
    /// The last look at the function found nothing to do; its owner arms the wake-ups next.
    idle: bool,
}

/// A function of one disk with common settings.
pub fn config(disk: impl BlockDevice + 'static) -> Config {
    Config::new("TEST0001", vec![Arc::new(disk)])
}

pub fn ram(block_size: u32) -> RamDevice {
    RamDevice::new(4 << 20, block_size).unwrap()
}

fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Takes what an eventfd has counted.
fn take_count(fd: &OwnedFd) -> u64 {
    let mut raw = [0; 8];
    if rustix::io::read(fd, &mut raw).is_ok() { u64::from_ne_bytes(raw) } else { 0 }
}

// ---- life ---------------------------------------------------------------------------------------------------------------

impl Machine {
    /// A machine with its power on: the function has memory, nothing is enabled.
    pub fn power_on(config: Config, setup: Setup) -> Self {
        let mut function = NvmeFunction::new(config).unwrap();
        let memory = Memory::new(setup.layout);
        function.set_memory(memory.snapshot());
        Self {
            function,
            memory,
            setup,
            page: 4096 << setup.mps,
            sqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            completed: Vec::new(),
            outstanding: HashMap::new(),
            next_cid: 0x100,
            shadow: None,
            vectors: BTreeMap::new(),
            line: None,
            awake: true,
            until: None,
            clock: false,
            doorbells: None,
            idle: false,
        }
    }

    /// A machine whose controller is ready.
    pub fn boot(config: Config, setup: Setup) -> Self {
        let mut machine = Self::power_on(config, setup);
        machine.set_up_pci();
        machine.enable();
        machine
    }

    /// A ready controller with one queue pair of 64 entries, driven by register.
    pub fn with_queue(disk: impl BlockDevice + 'static) -> Self {
        let mut machine = Self::boot(config(disk), Setup::default());
        machine.create_pair(1, 64, Bells::Register);
        machine
    }

    /// Bus master, and the kind of interrupt that the host wants.
    pub fn set_up_pci(&mut self) {
        const COMMAND: u16 = 4;
        let msix = self.setup.signal == Signal::Msix;
        // Memory space, bus master; INTx is disabled where MSI-X is used.
        let command: u16 = 1 << 1 | 1 << 2 | u16::from(self.setup.signal != Signal::Intx) << 10;
        self.config_write(COMMAND, &command.to_le_bytes());
        let control = self.capability(0x11) + 2;
        self.config_write(control, &(u16::from(msix) << 15).to_le_bytes());
        if self.setup.signal == Signal::Intx {
            let fd = new_eventfd();
            self.function.connect_intx(Some(Interrupt::new(fd.try_clone().unwrap()).unwrap()));
            self.line = Some(fd);
        }
    }

    /// Offset of a capability in configuration space.
    pub fn capability(&mut self, id: u8) -> u16 {
        let mut at = self.config_u8(0x34);
        while at != 0 {
            if self.config_u8(at.into()) == id {
                return at.into();
            }
            at = self.config_u8(u16::from(at) + 1);
        }
        panic!("no capability {id:#x}");
    }

    fn config_u8(&mut self, offset: u16) -> u8 {
        let mut raw = [0];
        self.function.config_read(offset, &mut raw);
        raw[0]
    }

    pub fn config_u16(&mut self, offset: u16) -> u16 {
        let mut raw = [0; 2];
        self.function.config_read(offset, &mut raw);
        u16::from_le_bytes(raw)
    }

    pub fn config_write(&mut self, offset: u16, data: &[u8]) {
        self.function.config_write(offset, data);
        self.wake();
    }

    /// CC as this host enables it.
    pub fn cc(&self) -> Cc {
        Cc(0).with_en(true).with_mps(self.setup.mps).with_iosqes(6).with_iocqes(4)
    }

    /// Writes AQA, ASQ and ACQ for new admin queues of the host's, without enabling.
    pub fn prepare_admin_queues(&mut self) {
        let depth = self.setup.admin_depth;
        let (sq, cq) = (self.alloc_ring(depth, 64), self.alloc_ring(depth, 16));
        self.write32(offset::AQA, (depth - 1) << 16 | (depth - 1));
        self.write64(offset::ASQ, sq);
        self.write64(offset::ACQ, cq);
        self.connect(0);
        let bells = self.setup.admin_bells;
        self.add_cq(0, depth, cq, Some(0), bells);
        self.add_sq(0, depth, sq, 0, bells);
    }

    /// Enables the controller and waits until it is ready (NVMe Base 2.1 §3.5.1).
    pub fn enable(&mut self) {
        self.prepare_admin_queues();
        let cc = self.cc();
        self.write32(offset::CC, cc.0);
        self.run_until("CSTS.RDY is 1", |m| m.csts().rdy());
    }

    /// Disables the controller and waits until it is not ready.
    pub fn disable(&mut self) {
        let cc = Cc(self.read32(offset::CC)).with_en(false);
        self.write32(offset::CC, cc.0);
        self.run_until("CSTS.RDY is 0", |m| !m.csts().rdy());
        self.forget();
    }

    /// Forgets all queues and commands, as after a reset.
    pub fn forget(&mut self) {
        self.sqs.clear();
        self.cqs.clear();
        self.completed.clear();
        self.outstanding.clear();
        self.shadow = None;
        for fd in self.vectors.values().chain(&self.line) {
            take_count(fd);
        }
    }

    // ---- registers ------------------------------------------------------------------------------------------------------

    pub fn read32(&mut self, at: u64) -> u32 {
        let mut raw = [0; 4];
        self.function.bar_read(0, at, &mut raw);
        u32::from_le_bytes(raw)
    }

    pub fn read64(&mut self, at: u64) -> u64 {
        let mut raw = [0; 8];
        self.function.bar_read(0, at, &mut raw);
        u64::from_le_bytes(raw)
    }

    pub fn write32(&mut self, at: u64, value: u32) {
        self.function.bar_write(0, at, &value.to_le_bytes());
        self.wake();
    }

    pub fn write64(&mut self, at: u64, value: u64) {
        self.function.bar_write(0, at, &value.to_le_bytes());
        self.wake();
    }

    pub fn csts(&mut self) -> Csts {
        Csts(self.read32(offset::CSTS))
    }

    /// Writes the doorbell register of an SQ's tail.
    pub fn write_sq_doorbell(&mut self, qid: u16, value: u32) {
        self.write32(0x1000 + 8 * u64::from(qid), value);
    }

    /// Writes the doorbell register of a CQ's head.
    pub fn write_cq_doorbell(&mut self, qid: u16, value: u32) {
        self.write32(0x1004 + 8 * u64::from(qid), value);
    }

    pub fn counters(&self, qid: u16) -> QueueCounters {
        let report = self.function.report();
        report.queues.iter().find(|q| q.qid == Some(qid)).map_or_else(QueueCounters::default, |q| q.counters)
    }

    /// A doorbell register as a guest sees it that has it mapped; `offset` is in BAR 0.
    pub fn mapped_register(&mut self, offset: u64) -> Cell32 {
        let function = &self.function;
        let window = self.doorbells.get_or_insert_with(|| {
            let area = function.mappable(0).unwrap();
            assert_eq!((area.offset, area.len), (0x1000, 0x1000));
            Mapping::of_file(area.fd.as_fd(), area.offset, area.len, Protection::READ_WRITE).unwrap().window()
        });
        window.cell32(usize::try_from(offset - 0x1000).unwrap()).unwrap()
    }

    /// Looks the doorbell registers up again.
    pub fn forget_mapping(&mut self) {
        self.doorbells = None;
    }

    // ---- interrupts -----------------------------------------------------------------------------------------------------

    /// Connects an MSI-X vector.
    pub fn connect(&mut self, vector: u16) {
        if self.setup.signal == Signal::Msix && !self.vectors.contains_key(&vector) {
            let fd = new_eventfd();
            self.function.connect_msix(vector, Some(Interrupt::new(fd.try_clone().unwrap()).unwrap()));
            self.vectors.insert(vector, fd);
        }
    }

    pub fn disconnect(&mut self, vector: u16) {
        self.function.connect_msix(vector, None);
        self.vectors.remove(&vector);
    }

    /// Takes the interrupts of a vector that were not served yet.
    pub fn take_interrupts(&mut self, vector: u16) -> u64 {
        self.vectors.get(&vector).map_or(0, take_count)
    }

    /// Takes the edges of the legacy line that were not served yet.
    pub fn take_line(&mut self) -> u64 {
        self.line.as_ref().map_or(0, take_count)
    }

    /// Runs the interrupt handlers of all interrupts that are raised.
    pub fn serve_interrupts(&mut self) {
        let ids: Vec<u16> = match self.setup.signal {
            Signal::Polled => self.cqs.keys().copied().collect(),
            Signal::Msix => {
                let raised: Vec<u16> =
                    self.vectors.iter().filter(|(_, fd)| take_count(fd) > 0).map(|(vector, _)| *vector).collect();
                let of_raised = |cq: &CompletionQueue| cq.vector.is_none_or(|v| raised.contains(&v));
                self.cqs.iter().filter(|(_, cq)| of_raised(cq)).map(|(qid, _)| *qid).collect()
            }
            Signal::Intx => {
                let raised = self.take_line() > 0;
                self.cqs.iter().filter(|(_, cq)| raised || cq.vector.is_none()).map(|(qid, _)| *qid).collect()
            }
        };
        for qid in &ids {
            self.reap(*qid);
        }
        if self.setup.signal == Signal::Intx && !ids.is_empty() {
            // The VMM masks the line at each edge; the end of interrupt unmasks it.
            self.function.intx_unmasked();
        }
    }

    // ---- turns ----------------------------------------------------------------------------------------------------------

    /// Something happened that the owner of the function handles.
    pub fn wake(&mut self) {
        self.awake = true;
        self.idle = false;
    }

    /// Whether the function sleeps.
    pub fn is_asleep(&self) -> bool {
        !self.awake
    }

    fn has_readable_fd(&self) -> bool {
        let mut readable = false;
        self.function.wait_fds(&mut |fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
            readable |= poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0;
        });
        readable
    }

    /// One step of the function's owner: a poll, or the arming of wake-ups after a poll that found nothing. Says whether
    /// something happened: `false` when the function sleeps and nothing wakes it.
    pub fn turn(&mut self) -> bool {
        if !self.awake {
            if !(self.has_readable_fd() || self.clock && self.until.is_some()) {
                return false;
            }
            self.wake();
        }
        if !self.idle {
            self.idle = self.function.poll() == 0;
        } else {
            self.idle = false;
            if let Wait::Until(until) = self.function.prepare_wait() {
                (self.awake, self.until) = (false, until);
            }
        }
        true
    }

    /// One poll of the function, whether it sleeps or not: something else keeps its thread awake.
    pub fn function_poll(&mut self) {
        self.wake();
        self.function.poll();
    }

    /// Turns until the function sleeps. Interrupts are not served.
    pub fn settle(&mut self) {
        let mut turns = 0;
        while self.turn() {
            turns += 1;
            assert!(turns < LIMIT, "the function never sleeps");
        }
    }

    /// Turns, and serves interrupts, until the function sleeps and no interrupt is left.
    pub fn settle_and_serve(&mut self) {
        let mut turns = 0;
        loop {
            self.serve_interrupts();
            if !self.turn() {
                return;
            }
            turns += 1;
            assert!(turns < LIMIT, "the function never sleeps");
        }
    }

    /// Turns, and serves interrupts, until `condition` holds. Panics when nothing will happen any more.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        for _ in 0..LIMIT {
            self.serve_interrupts();
            if condition(self) {
                return;
            }
            if !self.turn() {
                panic!("never: {what}. The function sleeps, and nothing will wake it");
            }
        }
        panic!("never: {what}. The function is busy for ever");
    }

    // ---- memory ---------------------------------------------------------------------------------------------------------

    /// Tells the function where memory is now.
    pub fn update_memory(&mut self) {
        self.function.set_memory(self.memory.snapshot());
        self.wake();
    }

    /// A ring of `entries` entries of `size` bytes, on pages of its own.
    pub fn alloc_ring(&mut self, entries: u32, size: u64) -> u64 {
        self.memory.alloc(u64::from(entries) * size, self.page)
    }

    /// A page-aligned buffer.
    pub fn buffer(&mut self, bytes: u64) -> u64 {
        self.memory.alloc(bytes.next_multiple_of(self.page), self.page)
    }
}
