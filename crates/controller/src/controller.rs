//! The control half: the CC/CSTS machine, resets, the turn of the loop, interrupts.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use dma::MemoryMap;
use doorbell::{Armed, Depth};
use nvme::{
    logs::AsyncEvent,
    registers::{Cc, Csts, Doorbell, ShutdownNotification, ShutdownStatus, doorbell_at},
};
use pci::{Interrupts, Wait};
use thiserror::Error;

use crate::{
    admin::{events::Events, features::Features, logs::ErrorLog},
    clock::Clock,
    config::{Config, ConfigError, DoorbellMode},
    engine::{DSTRD, DoorbellPage, Engine, Fetch, PREFETCH},
    namespace::Namespace,
    queue::{CompletionQueue, SubmissionQueue},
    registers::{RegisterEvent, Registers},
    stats::Report,
    support::Offer,
};

/// Commands that one queue may have carried out before the next queue gets its turn.
const BATCH: u16 = 64;

/// Looks at tails that a turn without work ends with, of all queues together.
const LOOKS: usize = 16;

/// Bounds of the slow look at sleeping queues. Drivers before Linux 4.19 lack the full barrier, so one of their commands can
/// go unnoticed; the look finds it.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Why a controller could not be made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration space cannot be laid out.
    #[error("PCI configuration space: {0}")]
    Pci(pci::ConfigError),
    /// A disk gives us no queue.
    #[error("cannot open a queue on {disk}: {error}")]
    Disk {
        /// Which disk.
        disk: String,
        /// What the system says.
        error: io::Error,
    },
}

/// What a reset takes with it (NVMe Base 2.1 §3.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reset {
    /// CC.EN was cleared: AQA, ASQ, ACQ and the rest of CC stay.
    Enable,
    /// NVM subsystem reset: all registers, and CSTS.NSSRO says so.
    Subsystem,
    /// Function level, or by the VMM: all registers.
    Function,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// CSTS.RDY is 0.
    Disabled,
    /// CSTS.RDY is 1.
    Ready,
    /// A reset has begun; requests are still at a backend, and RDY stays as it was until they are back. All other registers
    /// are reset already, and what the host writes to them counts.
    Draining,
}

/// An NVMe controller without its bus.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) config: Config,
    pub(crate) offer: Offer,
    pub(crate) registers: Registers,
    pub(crate) engine: Engine,
    pub(crate) interrupts: Interrupts,
    /// MSI-X is in use; else the legacy line is.
    pub(crate) msix_enabled: bool,
    /// The legacy line must not be raised.
    pub(crate) intx_disabled: bool,
    pub(crate) features: Features,
    pub(crate) events: Events,
    pub(crate) errors: ErrorLog,
    pub(crate) unsafe_shutdowns: u64,
    pub(crate) started: Instant,
    state: State,
    /// For mapped doorbells.
    clock: Clock,
    /// CQs with an interrupt that was put off.
    pub(crate) owed: Vec<u16>,
    /// Commands that this turn has fetched.
    fetched: usize,
    /// The last call of [`Controller::prepare_wait`] allowed a sleep.
    asleep: bool,
    /// Until the next slow look.
    look_after: Duration,
    /// When the last sleep ended, and how much time was spent awake before.
    awake_since: Instant,
    busy: Duration,
}

impl Controller {
    pub(crate) fn new(config: Config) -> Result<Self, CreateError> {
        config.check()?;
        let mut namespaces = Vec::new();
        for (nsid, device) in (1..).zip(&config.namespaces) {
            let opened = Namespace::open(device, &config.serial, nsid);
            namespaces.push(opened.map_err(|error| CreateError::Disk { disk: device.name(), error })?);
        }
        let queues = config.io_queues + 1;
        let now = Instant::now();
        let mut this = Self {
            offer: Offer { doorbells: None },
            registers: Registers::new(config.queue_entries),
            features: Features::new(namespaces.len(), queues),
            engine: Engine::new(namespaces, queues.into()),
            interrupts: Interrupts::new(queues),
            msix_enabled: false,
            intx_disabled: false,
            events: Events::default(),
            errors: ErrorLog::default(),
            unsafe_shutdowns: 0,
            started: now,
            state: State::Disabled,
            clock: Clock::new(),
            owed: Vec::new(),
            fetched: 0,
            asleep: false,
            look_after: FIRST_LOOK,
            awake_since: now,
            busy: Duration::ZERO,
            config,
        };
        this.set_up_doorbells();
        Ok(this)
    }

    /// Makes what the configuration says of doorbells true, with a new page where they are to be mapped. There are no queues.
    pub(crate) fn set_up_doorbells(&mut self) {
        self.engine.doorbell_page = match self.config.doorbells {
            DoorbellMode::Mapped => DoorbellPage::new()
                .inspect_err(|errno| {
                    let page = dma::page_size();
                    tracing::warn!(%errno, page, "doorbells cannot be mapped on this host: they are trapped");
                })
                .ok(),
            DoorbellMode::Shadow | DoorbellMode::Register => None,
        };
        let shadow = self.config.doorbells != DoorbellMode::Register && self.engine.doorbell_page.is_none();
        self.offer = Offer { doorbells: shadow.then_some(self.config.doorbell_command) };
    }

    pub(crate) fn report(&self) -> Report {
        let mut report = self.engine.counters.report();
        report.device.shadow_doorbells = self.engine.shadow.is_some();
        report.device.mapped_doorbells = self.engine.doorbell_page.is_some();
        report
    }

    /// Whether some disk has a cache that a flush empties.
    pub(crate) fn has_write_cache(&self) -> bool {
        self.engine.namespaces.iter().any(|n| n.capabilities.volatile_cache)
    }

    /// Time spent awake.
    pub(crate) fn busy_time(&self) -> Duration {
        self.busy
    }

    // ---- registers --------------------------------------------------------------------------------------------------

    /// A write to BAR0 of any width. Registers are dwords; whatever is not made of whole ones is ignored.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let (dwords, rest) = data.as_chunks::<4>();
        if !offset.is_multiple_of(4) || !rest.is_empty() {
            tracing::debug!(offset, len = data.len(), "register write that is not made of dwords was ignored");
            return;
        }
        for (at, value) in (offset..).step_by(4).zip(dwords) {
            let value = u32::from_le_bytes(*value);
            if at >= nvme::registers::offset::DOORBELLS {
                self.ring(at, value);
                continue;
            }
            match self.registers.write(at, value) {
                RegisterEvent::None => {}
                RegisterEvent::Cc(before) => self.configure(before),
                RegisterEvent::SubsystemReset => self.begin_reset(Reset::Subsystem),
                RegisterEvent::InterruptMask => self.raise_line(),
            }
        }
    }

    /// A doorbell register was written.
    fn ring(&mut self, at: u64, value: u32) {
        if self.state != State::Ready {
            return;
        }
        let counters = &mut self.engine.counters;
        let refused = match doorbell_at(at, DSTRD) {
            Some(Doorbell::SqTail(qid)) => match self.engine.sqs.get_mut(usize::from(qid)) {
                Some(Some(queue)) => {
                    counters.queue(qid).sq_doorbell_writes += 1;
                    probes::ring_received(qid, false, value);
                    queue.consumer.ring(value).err().map(|_| Some(qid))
                }
                _ => Some(None),
            },
            Some(Doorbell::CqHead(qid)) => match self.engine.cqs.get_mut(usize::from(qid)) {
                Some(Some(queue)) => {
                    counters.queue(qid).cq_doorbell_writes += 1;
                    probes::ring_received(qid, true, value);
                    queue.producer.ring(value).err().map(|_| Some(qid))
                }
                _ => Some(None),
            },
            None => Some(None),
        };
        match refused {
            None => {}
            Some(Some(qid)) => self.invalid_doorbell(qid),
            Some(None) => self.events.raise(AsyncEvent::INVALID_DOORBELL_REGISTER),
        }
    }

    pub(crate) fn invalid_doorbell(&mut self, qid: u16) {
        self.engine.counters.queue(qid).invalid_doorbells += 1;
        self.events.raise(AsyncEvent::INVALID_DOORBELL_VALUE);
    }

    /// CC was written (NVMe Base 2.1 §3.1.4.5).
    fn configure(&mut self, before: Cc) {
        let cc = self.registers.cc;
        match (before.en(), cc.en()) {
            (false, true) if self.state == State::Disabled => self.enable(),
            // Enabled again before RDY has cleared: `drained` comes back to it.
            (false, true) => {}
            (true, false) if self.state == State::Ready => self.begin_reset(Reset::Enable),
            // It was not ready because it could not be enabled.
            (true, false) if self.state == State::Disabled => {
                self.registers.csts = Csts(0).with_nssro(self.registers.csts.nssro());
            }
            _ => {}
        }
        if cc.shn() != ShutdownNotification::NONE
            && cc.shn() != before.shn()
            && self.registers.csts.shst() == ShutdownStatus::NORMAL_OPERATION
        {
            self.registers.csts = self.registers.csts.with_shst(ShutdownStatus::OCCURRING);
            self.engine.flush_all();
            self.finish_shutdown();
        }
    }

    fn finish_shutdown(&mut self) -> bool {
        let done = self.registers.csts.shst() == ShutdownStatus::OCCURRING && !self.engine.is_flushing();
        if done {
            self.registers.csts = self.registers.csts.with_shst(ShutdownStatus::COMPLETE);
        }
        done
    }

    fn enable(&mut self) {
        match self.try_enable() {
            Ok(()) => {
                self.state = State::Ready;
                self.registers.csts = self.registers.csts.with_rdy(true);
                self.engine.counters.device.enables += 1;
            }
            Err(reason) => {
                tracing::warn!(reason, cc = self.registers.cc.0, "the controller cannot be enabled: fatal status");
                self.registers.csts = self.registers.csts.with_cfs(true);
            }
        }
    }

    fn try_enable(&mut self) -> Result<(), &'static str> {
        let Registers { cap, cc, aqa, asq, acq, .. } = self.registers;
        let check = |good: bool, reason| if good { Ok(()) } else { Err(reason) };
        check((cap.mpsmin()..=cap.mpsmax()).contains(&cc.mps()), "CC.MPS is not between CAP.MPSMIN and CAP.MPSMAX")?;
        check(matches!(cc.css(), 0 | 6), "CC.CSS selects no command set that is on offer")?;
        check(cc.ams() == 0, "CC.AMS selects an arbitration that is not on offer")?;
        let page = 4096u64 << cc.mps();
        check(asq.is_multiple_of(page) && acq.is_multiple_of(page), "ASQ or ACQ is not page aligned")?;
        let sq_depth = Depth::from_size_z(aqa.asqs_z()).map_err(|_| "AQA.ASQS is 0")?;
        let cq_depth = Depth::from_size_z(aqa.acqs_z()).map_err(|_| "AQA.ACQS is 0")?;
        let memory = &self.engine.memory;
        let cq = CompletionQueue::new(memory, acq, cq_depth, Some(0));
        let sq = SubmissionQueue::new(memory, asq, sq_depth, 0);
        check(cq.ring.is_mapped() && sq.ring.is_mapped(), "ASQ or ACQ is not in guest memory")?;
        self.engine.page = page;
        self.engine.add_cq(0, cq);
        self.engine.add_sq(0, sq);
        Ok(())
    }

    // ---- resets -----------------------------------------------------------------------------------------------------

    /// A reset of the function, as at power on. It is done when [`Controller::is_quiet`] says so.
    pub(crate) fn reset_function(&mut self) {
        self.begin_reset(Reset::Function);
    }

    fn begin_reset(&mut self, kind: Reset) {
        if self.state == State::Ready
            && kind != Reset::Enable
            && self.registers.csts.shst() == ShutdownStatus::NORMAL_OPERATION
        {
            self.unsafe_shutdowns += 1;
        }
        // Queues go at once: from here on nothing is fetched, posted or signalled. What is at a backend goes on to its end.
        self.engine.reset();
        let Self { features, events, interrupts, engine, .. } = self;
        *features = Features::new(engine.namespaces.len(), interrupts.vectors());
        *events = Events::default();
        interrupts.clear_pending();
        self.owed.clear();
        engine.counters.device.resets += 1;
        let Registers { cc, aqa, asq, acq, csts, .. } = self.registers;
        let fresh = Registers::new(self.config.queue_entries);
        self.registers = match kind {
            Reset::Enable => {
                Registers { cc, aqa, asq, acq, csts: Csts(0).with_rdy(csts.rdy()).with_nssro(csts.nssro()), ..fresh }
            }
            Reset::Subsystem => Registers { csts: Csts(0).with_rdy(csts.rdy()).with_nssro(true), ..fresh },
            Reset::Function => Registers { csts: Csts(0).with_rdy(csts.rdy()), ..fresh },
        };
        self.state = State::Draining;
        self.drained();
    }

    /// Ends a reset once nothing is in flight; says whether it did.
    fn drained(&mut self) -> bool {
        if self.state != State::Draining || self.engine.in_flight() > 0 {
            return false;
        }
        self.state = State::Disabled;
        self.registers.csts = self.registers.csts.with_rdy(false);
        if self.registers.cc.en() {
            self.enable();
        }
        true
    }

    /// No reset and no flush is running and no request is at a backend.
    pub(crate) fn is_quiet(&self) -> bool {
        self.engine.in_flight() == 0 && self.state != State::Draining
    }

    pub(crate) fn set_memory(&mut self, memory: Arc<MemoryMap>) {
        self.engine.counters.device.memory_changes += 1;
        self.engine.set_memory(memory);
        self.raise_interrupts();
    }

    // ---- the turn of the loop ---------------------------------------------------------------------------------------

    /// Commands are carried out.
    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Ready && self.engine.bus_master
    }

    /// Does what there is to do, and says how many things that were, see [`pci::PciFunction::poll`].
    pub(crate) fn poll(&mut self) -> usize {
        if self.asleep {
            self.awake_since = Instant::now();
        }
        let mut worked = self.engine.collect(self.asleep);
        worked |= self.drained();
        worked |= self.finish_shutdown();
        if self.is_running() {
            worked |= self.run_queues();
            if !worked && self.waits_for_tails() {
                // A few more looks right away: a whole turn costs many times as much.
                for _ in 0..LOOKS / self.engine.active.len().max(1) {
                    if !self.engine.tails_are_still() {
                        worked = self.run_queues();
                        break;
                    }
                }
            }
            self.engine.kick();
            self.engine.rotate();
            worked |= self.finish_deletions();
            worked |= self.deliver_events();
        }
        if !self.engine.failures.is_empty() {
            self.engine.failures.drain(..).for_each(|failure| self.errors.record(failure));
        }
        self.raise_interrupts();
        if worked {
            if std::mem::take(&mut self.asleep) {
                self.engine.counters.device.wakeups += 1;
            }
            self.look_after = FIRST_LOOK;
            self.clock.worked();
        }
        std::mem::take(&mut self.fetched).max(worked.into())
    }

    /// Carries out what the queues have, up to a batch of each.
    #[inline]
    fn run_queues(&mut self) -> bool {
        let (mut worked, mut i) = (false, 0);
        // Admin commands add and remove queues on the way.
        while let Some(qid) = self.engine.active.get(i).copied() {
            worked |= self.run(qid);
            i += 1;
        }
        worked
    }

    /// Nothing but a queue's tail can bring work now.
    fn waits_for_tails(&self) -> bool {
        self.owed.is_empty() && self.engine.namespaces.iter().all(|namespace| !namespace.at_work)
    }

    /// Carries out what one queue has, up to a batch.
    #[inline]
    fn run(&mut self, qid: u16) -> bool {
        let Some(sq) = self.engine.sqs.get_mut(usize::from(qid)).and_then(Option::as_mut) else { return false };
        if !sq.ring.is_mapped() || sq.deleting.is_some() {
            return false;
        }
        let (waiting, invalid) = match sq.consumer.look() {
            Ok(0) => return false,
            Ok(waiting) => (waiting, false),
            Err(_) => (sq.consumer.waiting(), true),
        };
        if invalid {
            self.invalid_doorbell(qid);
            if waiting == 0 {
                return true;
            }
        }
        let Some(sq) = self.engine.sqs.get_mut(usize::from(qid)).and_then(Option::as_mut) else { return false };
        sq.busy = true;
        sq.consumer.suppress();
        sq.prefetch(0..PREFETCH);
        probes::tail_seen(qid, sq.consumer.tail(), waiting);
        let mut done = 0;
        while done < waiting.min(BATCH) {
            match self.engine.fetch(qid) {
                Fetch::Command(fetched) if qid == 0 => self.admin(fetched),
                Fetch::Command(fetched) => self.engine.execute(qid, fetched),
                Fetch::Nothing => break,
                Fetch::InvalidDoorbell => {
                    self.events.raise(AsyncEvent::INVALID_DOORBELL_VALUE);
                    break;
                }
            }
            done += 1;
        }
        self.fetched += usize::from(done);
        if done > 0 && self.asleep {
            self.engine.counters.queue(qid).wakeups += 1;
        }
        done > 0
    }

    /// Arms every queue, and says whether it is safe to sleep.
    pub(crate) fn prepare_wait(&mut self) -> Wait {
        let (mut shadow, mut by_clock) = (false, false);
        if self.is_running() {
            // An event that waits for room in the admin CQ needs to hear of the head, as a command does.
            if self.events.is_ready(self.features.async_events) {
                match self.engine.arm_room(0) {
                    Some(Armed::Idle) | None => {}
                    Some(Armed::ByClock) => by_clock = true,
                    Some(Armed::MoreWork) => return Wait::Busy,
                    Some(Armed::Invalid(_)) => {
                        self.invalid_doorbell(0);
                        return Wait::Busy;
                    }
                }
            }
            for i in 0..self.engine.active.len() {
                let qid = self.engine.active[i];
                match self.engine.arm(qid) {
                    Some(Armed::Idle) => {}
                    Some(Armed::ByClock) => by_clock = true,
                    Some(Armed::MoreWork) => return Wait::Busy,
                    Some(Armed::Invalid(_)) => {
                        self.invalid_doorbell(qid);
                        return Wait::Busy;
                    }
                    None => continue,
                }
                shadow |= qid != 0 && self.engine.shadow.is_some();
            }
        }
        // Nobody would see the heads move.
        let had_events = self.events.is_ready(self.features.async_events);
        if self.look_at_owed(true) {
            self.raise_line();
        }
        if !had_events && self.events.is_ready(self.features.async_events) {
            // One of the heads was no position.
            return Wait::Busy;
        }
        if !std::mem::replace(&mut self.asleep, true) {
            self.busy += self.awake_since.elapsed();
        }
        // The next look comes later each time that one finds nothing.
        let look = if by_clock { Some(self.clock.pause()) } else { shadow.then_some(self.look_after) };
        self.look_after = (self.look_after * 2).min(LAST_LOOK);
        let look = look.map(|look| Instant::now() + look);
        Wait::Until(look.into_iter().chain(self.owed_until()).min())
    }

    // ---- interrupts -------------------------------------------------------------------------------------------------

    /// Signals the legacy line if its level is active. The VMM takes it as edges, and asks again after each
    /// ([`Controller::raise_line`] runs then).
    pub(crate) fn raise_line(&mut self) {
        if !self.intx_disabled
            && let Some(qid) = self.line()
        {
            self.engine.counters.queue(qid).interrupts += 1;
            self.interrupts.signal_intx();
        }
    }

    /// The level of the legacy line: active while a CQ with interrupts enabled holds entries that the host has not consumed
    /// and the vector is not masked. Returns such a CQ.
    pub(crate) fn line(&mut self) -> Option<u16> {
        if self.msix_enabled || self.state != State::Ready || self.registers.intms & 1 != 0 {
            return None;
        }
        for i in 0..self.engine.cqs.len() {
            let Some(queue) = self.engine.cqs[i].as_mut().filter(|q| q.vector.is_some()) else { continue };
            let (bad, unread) = (queue.producer.look().is_err(), queue.producer.unread());
            let qid = u16::try_from(i).unwrap_or(u16::MAX);
            if bad {
                self.invalid_doorbell(qid);
            }
            if unread > 0 {
                return Some(qid);
            }
        }
        None
    }
}
