//! A controller, from the host's side: open, reset, shut down.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use doorbell::Depth;
use nvme::{identify::IdentifyController, logs::AsyncEvent, registers::Cap, registers::Version, registers::offset};

use crate::{
    enable::Limits,
    error::Error,
    interrupt::Vector,
    memory::{Buffer, MAX_PAGE, Pool},
    namespace::Namespace,
    options::{DoorbellPolicy, Options},
    prp,
    ring::{Ring, ShadowPages},
    shared::Shared,
    transport::Transport,
};

/// A drop waits no longer for the controller than this.
const DROP_TIME: Duration = Duration::from_secs(2);
/// Shutdown takes at least, and at most, so long.
const SHUTDOWN_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Which doorbells are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbells {
    /// Registers.
    Register,
    /// Shadow doorbells, by Doorbell Buffer Config (7Ch).
    Shadow,
    /// Shadow doorbells, by the vendor form of the command (C0h).
    VendorShadow,
    /// Registers that are memory which the device shares with the driver.
    Mapped,
}

/// The state of shadow doorbells in the controller's present life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShadowState {
    /// Registers, for good until the next reset.
    Off,
    /// The vendor form will be sent once the first I/O queues exist.
    VendorPending,
    /// In use.
    On(Doorbells),
}

/// A controller and its admin queue. I/O goes by [`QueuePair`](crate::QueuePair)s, which it creates, deletes and, after a
/// reset, recovers.
///
/// When it is dropped, the controller is disabled and the driver's memory taken back from it.
#[derive(Debug)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
    pub(crate) limits: Limits,
    /// While the controller is enabled and the admin queue sound.
    pub(crate) admin: Option<Ring>,
    pub(crate) admin_vector: Option<Vector>,
    pub(crate) next_tag: u64,
    /// Every vector that was ever connected, by number, and whether it is connected now.
    pub(crate) vectors: Vec<Option<(Vector, bool)>>,
    pub(crate) identify: Box<IdentifyController>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) max_transfer: usize,
    /// I/O queue pairs that the controller gives us.
    pub(crate) io_queue_pairs: u16,
    /// Which queue ids are taken, from 1 on.
    pub(crate) taken: Vec<bool>,
    pub(crate) pages: Option<ShadowPages>,
    pub(crate) shadow: ShadowState,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Event requests that the controller should hold but does not.
    pub(crate) owed_requests: u8,
    /// CC.EN may be set.
    enabled: bool,
}

impl Device {
    /// Resets the controller behind `transport` and makes it ready.
    ///
    /// # Errors
    /// [`Error`]. The controller is disabled then, if that was possible.
    pub fn open(transport: Arc<dyn Transport>, options: Options) -> Result<Self, Error> {
        if !(4..=4096).contains(&options.admin_entries) {
            return Err(Error::Argument("the admin queues have 4 to 4096 entries"));
        }
        if !options.iova.is_multiple_of(MAX_PAGE as u64) {
            return Err(Error::Argument("driver memory starts at a multiple of 64 KiB"));
        }
        transport.enable()?;
        let limits = Limits::read(&*transport)?;
        let pool = Pool::new(transport.clone(), limits.page, options.iova, options.memory_chunk, options.memory_limit);
        let shared = Shared::new(transport, pool, limits.cap.dstrd(), limits.page);
        let mut device = Self {
            shared: Arc::new(shared),
            options,
            limits,
            admin: None,
            admin_vector: None,
            next_tag: 0,
            vectors: Vec::new(),
            identify: Box::new(nvme::zerocopy::FromZeros::new_zeroed()),
            namespaces: Vec::new(),
            max_transfer: 0,
            io_queue_pairs: 0,
            taken: Vec::new(),
            pages: None,
            shadow: ShadowState::Off,
            events: VecDeque::new(),
            owed_requests: 0,
            enabled: false,
        };
        device.quiesce()?;
        device.start()?;
        Ok(device)
    }

    // ---- what it is -------------------------------------------------------------------------------------------------

    /// Identify Controller, as of the last reset.
    #[must_use]
    pub fn identify(&self) -> &IdentifyController {
        &self.identify
    }

    /// CAP.
    #[must_use]
    pub fn capabilities(&self) -> Cap {
        self.limits.cap
    }

    /// VS.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], and the transport's.
    pub fn version(&self) -> Result<Version, Error> {
        match self.shared.transport.read32(offset::VS)? {
            u32::MAX => Err(Error::DeviceGone),
            version => Ok(Version(version)),
        }
    }

    /// The namespaces that the driver can use, as of the last reset or [`Device::rescan`].
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The longest data of one command, in bytes.
    #[must_use]
    pub fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// The most entries of an I/O queue (CAP.MQES).
    #[must_use]
    pub fn max_entries(&self) -> u32 {
        self.limits.entries
    }

    /// I/O queue pairs that the controller has for us.
    #[must_use]
    pub fn io_queue_pairs(&self) -> u16 {
        self.io_queue_pairs
    }

    /// Which doorbells are in use.
    #[must_use]
    pub fn doorbells(&self) -> Doorbells {
        match self.shadow {
            ShadowState::On(form) => form,
            ShadowState::Off if self.shared.transport.has_mapped_doorbells() => Doorbells::Mapped,
            ShadowState::Off | ShadowState::VendorPending => Doorbells::Register,
        }
    }

    /// The way to the device.
    #[must_use]
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.shared.transport
    }

    /// Memory for data.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        Ok(self.shared.pool.allocate(bytes)?)
    }

    /// Whether the device is there and well.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::FatalStatus`], and the transport's.
    pub fn check_health(&self) -> Result<(), Error> {
        self.shared.check_health()
    }

    // ---- resets -----------------------------------------------------------------------------------------------------

    /// Resets the controller (CC.EN) and makes it ready again; where that fails, by a function-level reset.
    ///
    /// From the first moment on, every queue pair gives [`Error::Reset`], on whatever thread it is, until its owner hands it to
    /// [`Device::recover`]. Shadow doorbells are set up anew before that.
    ///
    /// # Errors
    /// [`Error`]; the device can then only be reset again, or dropped.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.leave();
        self.quiesce()?;
        self.start()
    }

    /// As [`Device::reset`], by a function-level reset.
    ///
    /// # Errors
    /// As [`Device::reset`].
    pub fn reset_function(&mut self) -> Result<(), Error> {
        self.leave();
        self.function_level()?;
        self.settle();
        self.start()
    }

    /// Ends the controller's life for all queue pairs.
    fn leave(&mut self) {
        self.shared.next_epoch();
        self.shadow = ShadowState::Off;
        self.io_queue_pairs = 0;
    }

    /// Disables the controller, by hook or by crook. Then it uses no memory any more.
    fn quiesce(&mut self) -> Result<(), Error> {
        match self.shared.disable(self.limits.ready_time) {
            Ok(()) => {}
            Err(error @ (Error::DeviceGone | Error::Transport(_))) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the controller is reset at function level");
                self.function_level()?;
            }
        }
        self.settle();
        Ok(())
    }

    fn function_level(&mut self) -> Result<(), Error> {
        let transport = &self.shared.transport;
        transport.reset()?;
        for (_, connected) in self.vectors.iter_mut().flatten() {
            *connected = false;
        }
        transport.enable()?;
        self.shared.disable(self.limits.ready_time)
    }

    /// Lets go of the memory that the controller used before it was disabled.
    fn settle(&mut self) {
        self.enabled = false;
        self.admin = None;
        for orphan in self.shared.take_orphans() {
            self.free_qid(orphan.qid);
        }
        self.events.clear();
        self.owed_requests = 0;
    }

    /// From a disabled controller to one that is ready for I/O queues.
    fn start(&mut self) -> Result<(), Error> {
        let result = self.try_start();
        if result.is_err() && self.enabled {
            match self.shared.disable(DROP_TIME.min(self.limits.ready_time)) {
                Ok(()) => self.settle(),
                // The controller may go on to use the memory of the admin queue.
                Err(_) => self.give_up_admin(),
            }
        }
        result
    }

    fn try_start(&mut self) -> Result<(), Error> {
        if Limits::read(&*self.shared.transport)? != self.limits {
            return Err(Error::Implausible("CAP has changed"));
        }
        let entries = u32::from(self.options.admin_entries);
        let depth = Depth::new(entries).map_err(|_| Error::Argument("the admin queues have 4 to 4096 entries"))?;
        let ring = Ring::new(&self.shared.pool, 0, depth, self.shared.dstrd)?;
        self.admin_vector = if self.options.admin_interrupt { self.connect(0)? } else { None };
        let (asq, acq) = (ring.sq_memory().iova(), ring.cq_memory().iova());
        self.admin = Some(ring);
        self.enabled = true;
        self.shared.enable(&self.limits, entries, asq, acq)?;
        *self.identify = self.identify_controller()?;
        self.check_identity()?;
        self.io_queue_pairs = self.request_queues()?;
        self.taken.resize(usize::from(self.limits.last_qid.max(self.io_queue_pairs)) + 1, false);
        self.prepare_doorbells()?;
        self.rescan()?;
        self.start_events()
    }

    /// What Identify Controller says, as far as it matters to the driver.
    fn check_identity(&mut self) -> Result<(), Error> {
        let identify = &self.identify;
        let spans = |sizes: u8, size: u8| (sizes & 0xf..=sizes >> 4).contains(&size);
        if !spans(identify.sqes, 6) || !spans(identify.cqes, 4) {
            return Err(Error::Unsupported("has no queue entries of 64 and 16 bytes"));
        }
        let longest = prp::longest(self.limits.page);
        self.max_transfer = match identify.mdts {
            0 => longest,
            // In units of CAP.MPSMIN, which is the page that we use.
            mdts => self.limits.page.checked_shl(mdts.into()).filter(|n| *n > 0).map_or(longest, |n| n.min(longest)),
        };
        Ok(())
    }

    /// Connects a vector to an eventfd, if there is such a vector.
    pub(crate) fn connect(&mut self, number: u16) -> Result<Option<Vector>, Error> {
        if number >= self.shared.transport.vectors() {
            return Ok(None);
        }
        let index = usize::from(number);
        if self.vectors.len() <= index {
            self.vectors.resize_with(index + 1, || None);
        }
        let vector = match &self.vectors[index] {
            Some((vector, true)) => return Ok(Some(vector.clone())),
            Some((vector, false)) => vector.clone(),
            None => Vector::new(number)?,
        };
        self.shared.transport.connect_vector(number, vector.fd())?;
        self.vectors[index] = Some((vector.clone(), true));
        Ok(Some(vector))
    }

    pub(crate) fn free_qid(&mut self, qid: u16) {
        if let Some(taken) = self.taken.get_mut(usize::from(qid)) {
            *taken = false;
        }
    }

    /// Whether shadow doorbells are wanted.
    pub(crate) fn wants_shadow(&self) -> bool {
        self.options.doorbells == DoorbellPolicy::Shadow
    }

    // ---- the end ----------------------------------------------------------------------------------------------------

    /// Shuts the controller down (CC.SHN) so that nothing in its caches is lost, and disables it. Queue pairs give
    /// [`Error::Reset`] from then on.
    ///
    /// # Errors
    /// [`Error`]; the controller is disabled all the same, if that is possible.
    pub fn shutdown(mut self) -> Result<(), Error> {
        self.leave();
        let claimed = Duration::from_micros(self.identify.rtd3e.get().into());
        self.shared.shut_down(claimed.clamp(SHUTDOWN_TIME.0, SHUTDOWN_TIME.1))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.leave();
        let disabled = if self.enabled { self.shared.disable(DROP_TIME.min(self.limits.ready_time)) } else { Ok(()) };
        match disabled {
            Ok(()) => {
                self.settle();
                self.shared.pool.unmap();
            }
            // Its memory stays as it is for as long as somebody holds a part of it, and then goes with the connection.
            Err(error) => tracing::debug!(%error, "the controller was not disabled"),
        }
    }
}
