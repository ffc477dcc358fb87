//! One point: from a reset controller to a row.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use driver::{Counters, Device, DoorbellPolicy, Doorbells, Namespace, Options, QueueOptions, QueuePair, Transport};
use serde::Serialize;

use crate::{
    addresses::Plain,
    error::BenchError,
    job::{Control, Job, Outcome},
    latency::Latency,
    report::{CountedBy, DriverSide, Row, per},
    verify::Verified,
    verify_work::VerifyWork,
    workload::{CompletionMode, DoorbellKind, Point, Workload},
};

/// How often the supervisor looks at the jobs.
const LOOK: Duration = Duration::from_millis(50);
/// Jobs that complete nothing for so long have the device looked at.
const STALL: Duration = Duration::from_secs(1);
/// Entries of a queue at least: more than is in flight, as guests have them.
pub(crate) const MIN_ENTRIES: u32 = 128;
/// Bytes that are verified where the workload does not say.
const VERIFIED_BYTES: u64 = 64 << 20;

/// What a device has counted on its I/O queues, since some moment that stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceCounters {
    /// Commands.
    pub commands: u64,
    /// Writes to doorbell registers.
    pub register_writes: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Times that I/O ended a sleep of the device.
    pub wakeups: u64,
}

impl DeviceCounters {
    fn since(&self, before: &Self) -> Self {
        Self {
            commands: self.commands.saturating_sub(before.commands),
            register_writes: self.register_writes.saturating_sub(before.register_writes),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            wakeups: self.wakeups.saturating_sub(before.wakeups),
        }
    }
}

/// The device behind a transport, as far as one can ask it otherwise than as its driver.
pub trait Target {
    /// What it has counted, up to all that the driver has done before; `None` when it cannot be asked.
    ///
    /// # Errors
    /// [`BenchError::Target`] when it should answer and does not.
    fn counters(&mut self) -> Result<Option<DeviceCounters>, BenchError>;

    /// Whether it is still there. Called many times a second.
    ///
    /// # Errors
    /// [`BenchError::Target`] with what became of it.
    fn check(&mut self) -> Result<(), BenchError>;
}

impl<T: Target + ?Sized> Target for Box<T> {
    fn counters(&mut self) -> Result<Option<DeviceCounters>, BenchError> {
        (**self).counters()
    }

    fn check(&mut self) -> Result<(), BenchError> {
        (**self).check()
    }
}

/// How far a point is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Of the point's time, 0 to 1.
    pub fraction: f64,
    /// Commands a second, lately.
    pub iops: f64,
}

/// A device under measurement.
#[derive(Debug)]
pub struct Bench<T> {
    transport: Arc<dyn Transport>,
    target: T,
    cores: usize,
}

impl<T: Target> Bench<T> {
    /// For the device behind `transport`.
    pub fn new(transport: Arc<dyn Transport>, target: T) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { transport, target, cores }
    }

    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        self.transport.clone()
    }

    /// The device, as it was given.
    pub fn target(&mut self) -> &mut T {
        &mut self.target
    }

    /// Resets the controller and measures one point. `stop` ends it early.
    ///
    /// `None` when it was stopped before anything was measured, or when the device does not have the doorbells that it wants.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn measure(
        &mut self,
        workload: &Workload,
        point: Point,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Row>, BenchError> {
        let policy = match point.doorbells {
            // Whether registers are mapped is the device's matter.
            DoorbellKind::Register | DoorbellKind::Mapped => DoorbellPolicy::Register,
            DoorbellKind::Shadow => DoorbellPolicy::Shadow,
        };
        let options = Options {
            doorbells: policy,
            io_queue_pairs: point.numjobs,
            command_timeout: workload.command_timeout,
            ..Options::default()
        };
        let mut device =
            Device::open(self.transport.clone(), options).map_err(BenchError::driver("setting up the controller"))?;
        let plan = Plan::new(&device, workload, point)?;
        let mut queues = plan.create(&mut device, workload.completion)?;
        let kind = match device.doorbells() {
            Doorbells::Register => DoorbellKind::Register,
            Doorbells::Shadow | Doorbells::VendorShadow => DoorbellKind::Shadow,
            Doorbells::Mapped => DoorbellKind::Mapped,
        };
        if kind != point.doorbells {
            return Ok(None);
        }
        let before = self.target.counters()?;
        let (outcomes, verified) = self.run(&plan, workload, &device, &mut queues, stop, progress)?;
        // Registers are read behind all doorbells that were written.
        device.check_health().map_err(BenchError::driver("asking for the controller's status"))?;
        let after = self.target.counters()?;
        for queue in queues {
            device.delete_queue_pair(queue).map_err(BenchError::driver("deleting an I/O queue"))?;
        }
        drop(device);
        let counted = before.zip(after).map(|(before, after)| after.since(&before));
        Ok(row(&plan, workload, &outcomes, counted, verified))
    }

    fn run(
        &mut self,
        plan: &Plan,
        workload: &Workload,
        device: &Device,
        queues: &mut [QueuePair],
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Vec<Outcome>, Option<Verified>), BenchError> {
        let jobs = plan.point.numjobs;
        let control = Control::new(jobs, workload.ramp, workload.runtime);
        // The device wants a processor as well.
        let crowded = usize::from(jobs) + 1 > self.cores;
        std::thread::scope(|scope| {
            let (sender, results) = channel();
            let mut failed = None;
            for (index, queue) in (0u16..).zip(queues.iter_mut()) {
                let (control, sender) = (&control, sender.clone());
                let started =
                    std::thread::Builder::new().name(format!("bench-job-{index}")).spawn_scoped(scope, move || {
                        let result = plan.job(workload, index, queue, control, crowded);
                        // The supervisor listens until all senders are gone.
                        let _ = sender.send((index, result));
                    });
                if let Err(error) = started {
                    failed = Some(BenchError::Thread(error));
                    control.leave();
                    break;
                }
            }
            drop(sender);
            let mut outcomes: Vec<Option<Outcome>> = (0..jobs).map(|_| None).collect();
            let mut verified: Option<Verified> = None;
            let mut watch = Watch::new();
            loop {
                match results.recv_timeout(LOOK) {
                    Ok((index, Ok((outcome, checked)))) => {
                        outcomes[usize::from(index)] = Some(outcome);
                        if let Some(checked) = checked {
                            verified.get_or_insert_default().add(checked);
                        }
                    }
                    Ok((_, Err(error))) => {
                        // The first one says why; the others follow from it.
                        failed.get_or_insert(error);
                        control.leave();
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if stop.load(Ordering::Relaxed) {
                    control.stop();
                }
                if let Err(error) = watch.look(&control, device, &mut self.target, progress) {
                    failed = Some(error);
                    control.leave();
                }
            }
            if let Some(error) = failed {
                // A child that has ended says more than its closed socket.
                return Err(if error.is_gone() { self.target.check().err().unwrap_or(error) } else { error });
            }
            let outcomes: Result<Vec<_>, _> =
                (0u16..).zip(outcomes).map(|(index, outcome)| outcome.ok_or(BenchError::Lost(index))).collect();
            Ok((outcomes?, verified))
        })
    }
}

/// What the supervisor has seen of the jobs.
struct Watch {
    seen: u64,
    moved: Instant,
    looked: Instant,
}

impl Watch {
    fn new() -> Self {
        let now = Instant::now();
        Self { seen: 0, moved: now, looked: now }
    }

    #[allow(clippy::cast_precision_loss)] // For people.
    fn look(
        &mut self,
        control: &Control,
        device: &Device,
        target: &mut impl Target,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), BenchError> {
        let now = Instant::now();
        let since = now.duration_since(self.looked);
        if since < LOOK {
            return Ok(());
        }
        self.looked = now;
        target.check()?;
        let total = control.progress();
        let fraction = control.start.elapsed().as_nanos() as f64 / (control.until.max(1) as f64);
        let iops = total.saturating_sub(self.seen) as f64 / since.as_secs_f64();
        progress(Progress { fraction: fraction.min(1.0), iops });
        if total != self.seen {
            (self.seen, self.moved) = (total, now);
        } else if now.duration_since(self.moved) >= STALL {
            self.moved = now;
            device.check_health().map_err(BenchError::driver("looking at a device that completes nothing"))?;
        }
        Ok(())
    }
}

/// A point, checked against the device.
struct Plan {
    point: Point,
    namespace: Namespace,
    entries: u32,
    /// Commands that fit into the range.
    units: u64,
    /// For content that is told from that of earlier runs.
    seed: u64,
}

impl Plan {
    fn new(device: &Device, workload: &Workload, point: Point) -> Result<Self, BenchError> {
        let refuse = |why: String| Err(BenchError::Workload(why));
        let Some(namespace) = device.namespaces().first().copied() else {
            return refuse("the device has no namespace that can be used".to_owned());
        };
        let Workload { block_bytes, .. } = *workload;
        if block_bytes == 0 || !block_bytes.is_multiple_of(namespace.block_bytes()) {
            let block = namespace.block_bytes();
            return refuse(format!("--bs {block_bytes}: the disk has blocks of {block} bytes; use a multiple of that"));
        }
        if block_bytes > device.max_transfer() {
            let most = device.max_transfer();
            return refuse(format!("--bs {block_bytes}: the device takes at most {most} bytes in one command"));
        }
        if point.numjobs == 0 || point.iodepth == 0 {
            return refuse("there must be at least one job and one command in flight".to_owned());
        }
        if point.numjobs > device.io_queue_pairs() {
            let (jobs, pairs) = (point.numjobs, device.io_queue_pairs());
            return refuse(format!("--numjobs {jobs}: the device has {pairs} I/O queue pairs, and each job needs one"));
        }
        let wanted = (2 * u32::from(point.iodepth)).next_power_of_two().max(MIN_ENTRIES);
        let entries = wanted.min(device.max_entries());
        if u32::from(point.iodepth) >= entries {
            let (depth, most) = (point.iodepth, device.max_entries());
            return refuse(format!("--iodepth {depth}: the device's queues hold at most {} commands", most - 1));
        }
        let size = match workload.size {
            Some(size) if size > namespace.bytes() => {
                let bytes = namespace.bytes();
                return refuse(format!("--size {size}: the disk has {bytes} bytes"));
            }
            Some(size) => size,
            None if workload.verify => namespace.bytes().min(VERIFIED_BYTES),
            None => namespace.bytes(),
        };
        let units = size / block_bytes as u64;
        let least = if workload.verify { u64::from(point.numjobs) } else { 1 };
        if units < least {
            return refuse(format!("{size} bytes are too few for commands of {block_bytes} bytes"));
        }
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |t| u64::from(t.subsec_nanos()) ^ (t.as_secs() << 20));
        Ok(Self { point, namespace, entries, units, seed })
    }

    fn create(&self, device: &mut Device, completion: CompletionMode) -> Result<Vec<QueuePair>, BenchError> {
        let interrupt = completion == CompletionMode::Interrupt;
        let options = QueueOptions { entries: self.entries, interrupt, head_batch: 1 };
        (0..self.point.numjobs)
            .map(|_| device.create_queue_pair(options).map_err(BenchError::driver("creating an I/O queue")))
            .collect()
    }

    fn job(
        &self,
        workload: &Workload,
        index: u16,
        queue: &mut QueuePair,
        control: &Control,
        crowded: bool,
    ) -> Result<(Outcome, Option<Verified>), BenchError> {
        let Point { iodepth, numjobs, .. } = self.point;
        let bytes = usize::from(iodepth) * workload.block_bytes;
        let data = queue.allocate(bytes).map_err(|error| BenchError::driver("memory for data")(error.into()))?;
        let job = Job {
            index,
            queue,
            namespace: self.namespace,
            data,
            block_bytes: workload.block_bytes,
            depth: iodepth,
            submit_batch: workload.submit_batch.max(1),
            completion: workload.completion,
            crowded,
            control,
        };
        if workload.verify {
            let mut work = VerifyWork::new(workload, &self.namespace, self.units, index, numjobs, iodepth, self.seed);
            let outcome = job.run(&mut work)?;
            return Ok((outcome, Some(work.verified())));
        }
        let mut work = Plain::new(workload, &self.namespace, self.units, index, numjobs);
        Ok((job.run(&mut work)?, None))
    }
}

#[allow(clippy::cast_precision_loss)] // For people.
fn row(
    plan: &Plan,
    workload: &Workload,
    outcomes: &[Outcome],
    device: Option<DeviceCounters>,
    verified: Option<Verified>,
) -> Option<Row> {
    let mut latency = Latency::new();
    let mut sum = Counters::default();
    let (mut iops, mut window, mut errors, mut first_error, mut cut) = (0.0, 0u64, 0, None, false);
    for outcome in outcomes {
        latency.add(&outcome.latency);
        if outcome.window > 0 {
            iops += outcome.latency.count() as f64 * 1e9 / outcome.window as f64;
        }
        window = window.max(outcome.window);
        errors += outcome.errors;
        first_error = first_error.or(outcome.first_error);
        cut |= outcome.cut;
        let Counters { submitted, completed, sq_rings, sq_spared, cq_rings, cq_spared, interrupts, sleeps } =
            outcome.counters;
        sum.submitted += submitted;
        sum.completed += completed;
        sum.sq_rings += sq_rings;
        sum.sq_spared += sq_spared;
        sum.cq_rings += cq_rings;
        sum.cq_spared += cq_spared;
        sum.interrupts += interrupts;
        sum.sleeps += sleeps;
    }
    if cut && latency.count() == 0 && verified.as_ref().is_none_or(|v| v.faults == 0) {
        return None;
    }
    let Point { iodepth, numjobs, doorbells } = plan.point;
    let completed = sum.completed;
    let counted = device.unwrap_or(DeviceCounters {
        commands: completed,
        register_writes: sum.register_writes(),
        interrupts: sum.interrupts,
        wakeups: 0,
    });
    Some(Row {
        rw: workload.rw,
        bs: workload.block_bytes,
        iodepth,
        numjobs,
        iodepth_batch: workload.submit_batch.max(1),
        doorbells,
        iops,
        mib_per_s: iops * workload.block_bytes as f64 / f64::from(1 << 20),
        latency_us: latency.summary(),
        register_writes_per_io: per(counted.register_writes, counted.commands),
        interrupts_per_io: per(counted.interrupts, counted.commands),
        wakeups_per_io: device.map(|d| per(d.wakeups, d.commands)),
        ratio_to_register: None,
        limit_iops: None,
        runtime_s: window as f64 / 1e9,
        interrupted: cut,
        errors,
        first_error: first_error.map(|status| status.to_string()),
        queue_entries: plan.entries,
        counted_by: if device.is_some() { CountedBy::Device } else { CountedBy::Driver },
        device,
        driver: DriverSide::from(sum),
        verify: verified,
    })
}
