//! One thread for any number of devices: poll those that have work, arm the others, and sleep in one wait.

use std::{
    io,
    num::NonZeroU64,
    ops::RangeInclusive,
    os::fd::BorrowedFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use pci::{Pace, Pacer, PciFunction, PollMode};
use rustix::{io::Errno, thread::set_current_timer_slack};

use crate::{
    device::Device,
    poller::{Poller, Source},
    server::Server,
    statistics::WorkerStatistics,
};

/// While some device is active, the descriptors are looked at this often: soon after a look that found a message, since one
/// doorbell follows another, and less and less often while there is none. A look is one system call of less than 1 us.
const LOOK_INTERVAL: RangeInclusive<Duration> = Duration::from_micros(5)..=Duration::from_micros(40);

/// Things done, or turns with nothing to do, from one look at the clock to the next. Reading it takes 30 ns.
const CLOCK: usize = 16;

/// How late the kernel may end a sleep, to save wake-ups, in ns. Its usual 50 us are as long as the shortest deadlines.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1_000);

/// What the owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Finish what is in flight, disconnect the clients and return.
    Stop,
}

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The event loop itself failed.
    #[error("cannot {what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
    /// Requests in flight did not end in time after a stop.
    #[error("after a stop, requests were still in flight behind {}", join(.0))]
    StillBusy(
        /// The sockets of the devices.
        Vec<PathBuf>,
    ),
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn failed(what: &'static str) -> impl Fn(Errno) -> WorkerError {
    move |errno| WorkerError::Io { what, error: errno.into() }
}

/// A poll group: devices that share one thread, each with a socket, a client and a function of its own.
///
/// A device is *active*, that is polled in each turn, or *rests*: it is armed, and its descriptors or its deadline
/// ([`pci::Wait::Until`]) wake it. A device that has nothing to do rests soon, however busy the others are; the thread sleeps when
/// all rest. How long polling pays is learned once for the thread, see [`Pacer`].
///
/// Devices are polled in turn, a bounded piece of work each, and so are their clients' messages. What a client does, or a
/// guest, costs its own device at most.
#[derive(Debug)]
pub struct Worker<F> {
    devices: Vec<Device<F>>,
    pacer: Pacer,
    stats: WorkerStatistics,
}

impl<F: PciFunction> Worker<F> {
    /// One without devices.
    pub fn new(poll: PollMode) -> Self {
        Self { devices: Vec::new(), pacer: Pacer::new(poll), stats: WorkerStatistics::default() }
    }

    /// Gives it a device to serve.
    pub fn add(&mut self, server: Server, function: F) {
        self.devices.push(Device::new(server, function, self.devices.len()));
    }

    /// The devices, in the order in which they were added.
    pub fn devices(&self) -> &[Device<F>] {
        &self.devices
    }

    /// The devices, in the order in which they were added.
    pub fn devices_mut(&mut self) -> &mut [Device<F>] {
        &mut self.devices
    }

    /// What was seen so far.
    pub fn statistics(&self) -> &WorkerStatistics {
        &self.stats
    }

    /// Serves the devices on this thread until the owner says stop.
    ///
    /// `control` is called whenever one of `wake` is readable; it makes it unreadable again, and may look at the devices. The
    /// kernel is told to end this thread's sleeps on time (its timer slack).
    ///
    /// # Errors
    /// [`WorkerError`]. Nothing that a client does is an error here.
    pub fn run(
        &mut self,
        wake: &[BorrowedFd<'_>],
        control: &mut dyn FnMut(&mut [Device<F>], &WorkerStatistics) -> Control,
    ) -> Result<(), WorkerError> {
        // Without it, deadlines are met less well.
        let _ = set_current_timer_slack(TIMER_SLACK);
        let poller = Poller::new(self.devices.len()).map_err(failed("create an epoll set"))?;
        for fd in wake {
            poller.add(fd, Source::Owner, 0).map_err(failed("watch the owner's descriptors"))?;
        }
        let mut group = Group {
            active: Vec::with_capacity(self.devices.len()),
            devices: &mut self.devices,
            pacer: &mut self.pacer,
            stats: &mut self.stats,
            poller,
            due: None,
            looked: Instant::now(),
            interval: *LOOK_INTERVAL.start(),
            effort: 0,
            stopping: false,
        };
        let result = group.run(control);
        let poller = group.poller;
        for device in &mut self.devices {
            device.leave(&poller);
        }
        result
    }
}

/// A worker that runs.
struct Group<'a, F> {
    devices: &'a mut [Device<F>],
    pacer: &'a mut Pacer,
    stats: &'a mut WorkerStatistics,
    poller: Poller,
    /// The active devices, in the order of their next turn.
    active: Vec<usize>,
    /// No device's rest ends before then.
    due: Option<Instant>,
    /// When the descriptors were looked at last.
    looked: Instant,
    interval: Duration,
    /// What was done since the last look at the clock, see [`CLOCK`].
    effort: usize,
    /// The owner has said stop.
    stopping: bool,
}

type ControlFn<'a, F> = dyn FnMut(&mut [Device<F>], &WorkerStatistics) -> Control + 'a;

impl<F: PciFunction> Group<'_, F> {
    fn run(&mut self, control: &mut ControlFn<'_, F>) -> Result<(), WorkerError> {
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.update_listening(&self.poller);
            activate(&mut self.active, device, index, self.looked);
        }
        loop {
            self.turn();
            if self.stopping
                && let Some(result) = self.stopped()
            {
                return result;
            }
            if self.active.is_empty() {
                self.sleep(control)?;
            } else if self.effort >= CLOCK {
                self.effort = 0;
                self.look(control)?;
            }
        }
    }

    /// One turn of each active device. Those that have nothing to do may rest after it.
    #[inline]
    fn turn(&mut self) {
        let (mut done, mut at, mut again) = (0, 0, false);
        while let Some(&index) = self.active.get(at) {
            let device = &mut self.devices[index];
            let things = device.turn(&self.poller);
            done += things;
            if things > 0 {
                (device.warm, device.worked) = (true, true);
            } else if device.has_more() {
                again = true;
            } else if !self.is_polled_idle(index) {
                if self.rest(index) {
                    self.active.swap_remove(at);
                    continue;
                }
                again = true;
            }
            at += 1;
        }
        if self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        self.effort += done.max(1);
        if done > 0 {
            self.pacer.worked(done);
        } else if again {
            self.effort = CLOCK;
        } else if !self.active.is_empty() {
            // Letting others run would keep the other devices' guests waiting.
            match self.pacer.next(self.active.len() == 1) {
                Pace::Poll => {}
                Pace::Yielded => self.effort = CLOCK,
                Pace::Rest => self.rest_all(|_| true),
            }
        }
    }

    /// Whether an active device without work is polled some more rather than put to rest at once.
    fn is_polled_idle(&self, index: usize) -> bool {
        let device = &self.devices[index];
        device.function.wants_polling()
            && match self.pacer.mode() {
                PollMode::Always => true,
                // One that was only looked at, say for its deadline, has no reason to stay.
                PollMode::Auto => device.warm,
                // The pacer may still let others run.
                PollMode::Never => device.warm && self.active.len() == 1,
            }
    }

    /// Arms a device, and says whether it rests now.
    fn rest(&mut self, index: usize) -> bool {
        let device = &mut self.devices[index];
        let rests = device.rest(&self.poller);
        if rests {
            device.active = false;
            self.due = earlier(self.due, device.until);
        }
        rests
    }

    /// Arms the active devices for which `wanted` holds.
    fn rest_all(&mut self, wanted: impl Fn(&Device<F>) -> bool) {
        for at in (0..self.active.len()).rev() {
            let index = self.active[at];
            if wanted(&self.devices[index]) && self.rest(index) {
                self.active.swap_remove(at);
            }
        }
    }

    /// Looks at the clock, and at what depends on it, while some device is active.
    fn look(&mut self, control: &mut ControlFn<'_, F>) -> Result<(), WorkerError> {
        let now = Instant::now();
        if now.duration_since(self.looked) >= self.interval {
            self.stats.looks += 1;
            self.wait(Some(Duration::ZERO), control)?;
        }
        if self.due.is_some_and(|due| due <= now) {
            self.wake_due(now);
        }
        if self.active.len() > 1 {
            self.rest_idle(now);
        }
        Ok(())
    }

    /// Puts those to rest that have had nothing to do for as long as a poll may wait, while others are busy.
    fn rest_idle(&mut self, now: Instant) {
        for &index in &self.active {
            let device = &mut self.devices[index];
            if std::mem::take(&mut device.worked) {
                device.idle_since = now;
            }
        }
        if self.pacer.mode() != PollMode::Always {
            self.rest_all(|device| now.duration_since(device.idle_since) >= Pacer::BUDGET && !device.has_more());
        }
    }

    /// All devices rest.
    fn sleep(&mut self, control: &mut ControlFn<'_, F>) -> Result<(), WorkerError> {
        self.due = self.devices.iter().filter_map(|device| device.until).min();
        let timeout = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        if timeout != Some(Duration::ZERO) {
            self.stats.sleeps += 1;
        }
        self.wait(timeout, control)?;
        if self.due.is_some_and(|due| due <= self.looked) {
            self.wake_due(self.looked);
        }
        Ok(())
    }

    /// Looks at the descriptors, for so long at most, and handles what they brought.
    fn wait(&mut self, timeout: Option<Duration>, control: &mut ControlFn<'_, F>) -> Result<(), WorkerError> {
        let count = self.poller.wait(timeout).map_err(failed("wait for events"))?;
        self.looked = Instant::now();
        let (mut heard, mut owner) = (false, false);
        for event in 0..count {
            let Some(event) = self.poller.event(event) else { continue };
            heard |= event.source == Source::Client;
            if event.source == Source::Owner {
                owner = true;
            } else if let Some(device) = self.devices.get_mut(event.device) {
                device.on_event(event, &self.poller);
                activate(&mut self.active, device, event.device, self.looked);
            }
        }
        self.interval = if heard { *LOOK_INTERVAL.start() } else { (2 * self.interval).min(*LOOK_INTERVAL.end()) };
        if owner {
            self.ask(control);
        }
        Ok(())
    }

    /// The owner wants something.
    fn ask(&mut self, control: &mut ControlFn<'_, F>) {
        let stop = control(self.devices, self.stats) == Control::Stop && !self.stopping;
        if stop {
            tracing::debug!("stop");
            self.stopping = true;
        }
        for (index, device) in self.devices.iter_mut().enumerate() {
            if stop {
                device.stop(&self.poller);
            }
            // It may have been given something to do.
            activate(&mut self.active, device, index, self.looked);
        }
    }

    /// Wakes the devices whose deadline has come.
    fn wake_due(&mut self, now: Instant) {
        self.due = None;
        for (index, device) in self.devices.iter_mut().enumerate() {
            match device.until {
                Some(until) if until <= now => activate(&mut self.active, device, index, now),
                until => self.due = earlier(self.due, until),
            }
        }
    }

    /// The result, when nothing is in flight any more or the time is over.
    fn stopped(&self) -> Option<Result<(), WorkerError>> {
        if !self.devices.iter().all(|device| device.is_stopped() || device.is_overdue()) {
            return None;
        }
        let overdue = self.devices.iter().filter(|device| !device.is_stopped());
        let overdue: Vec<_> = overdue.map(|device| device.path().to_owned()).collect();
        Some(if overdue.is_empty() { Ok(()) } else { Err(WorkerError::StillBusy(overdue)) })
    }
}

/// Makes a device active that rests.
fn activate<F>(active: &mut Vec<usize>, device: &mut Device<F>, index: usize, now: Instant) {
    if !std::mem::replace(&mut device.active, true) {
        (device.warm, device.worked, device.idle_since, device.until) = (false, false, now, None);
        active.push(index);
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
