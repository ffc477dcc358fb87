//! A job: one thread, one queue pair, and the loop that measures.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use driver::{Buffer, Completion, Counters, Namespace, QueuePair, nvme::Status};

use crate::{addresses::Work, error::BenchError, latency::Latency, workload::CompletionMode};

/// Polls in vain before the processor is given away, when each job has one: some microseconds, so that a device which was
/// put on the same processor by a busy system is not waited for in vain.
const PATIENCE: u32 = 256;
/// The same when there are more jobs than processors: then whoever is waited for needs the one that waits.
const NO_PATIENCE: u32 = 16;
/// A wait for an interrupt looks at the stop flag this often.
const WAIT_SLICE: Duration = Duration::from_millis(50);

/// Nothing new is submitted; what is in flight is waited for.
const STOP: u8 = 1;
/// The device is gone: nothing is waited for.
const LEAVE: u8 = 2;

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// What jobs and their supervisor tell each other.
#[derive(Debug)]
pub(crate) struct Control {
    halt: AtomicU8,
    progress: Vec<Padded>,
    pub(crate) start: Instant,
    /// From here on completions count; ns since the start.
    pub(crate) from: u64,
    /// Until here; ns since the start.
    pub(crate) until: u64,
}

impl Control {
    pub(crate) fn new(jobs: u16, ramp: Duration, runtime: Duration) -> Self {
        let progress = (0..jobs).map(|_| Padded::default()).collect();
        let (from, until) = (nanos(ramp), nanos(ramp.saturating_add(runtime)));
        Self { halt: AtomicU8::new(0), progress, start: Instant::now(), from, until }
    }

    pub(crate) fn stop(&self) {
        self.halt.fetch_max(STOP, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.halt.fetch_max(LEAVE, Ordering::Relaxed);
    }

    /// Commands that all jobs have completed.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.iter().map(|n| n.0.load(Ordering::Relaxed)).sum()
    }

    #[inline]
    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What came of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Of the commands that count.
    pub(crate) latency: Latency,
    /// The time that counts, in ns.
    pub(crate) window: u64,
    /// Commands that the device has failed.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<Status>,
    /// What the driver has counted, warm-up and all.
    pub(crate) counters: Counters,
    /// It was stopped before its time.
    pub(crate) cut: bool,
}

pub(crate) struct Job<'a> {
    pub(crate) index: u16,
    pub(crate) queue: &'a mut QueuePair,
    pub(crate) namespace: Namespace,
    pub(crate) data: Buffer,
    pub(crate) block_bytes: usize,
    pub(crate) depth: u16,
    /// Commands that are told to the device at a time.
    pub(crate) submit_batch: u16,
    pub(crate) completion: CompletionMode,
    /// There are more jobs than processors.
    pub(crate) crowded: bool,
    pub(crate) control: &'a Control,
}

impl Job<'_> {
    /// Runs until the time is over and the work is done, or until it is stopped.
    pub(crate) fn run(self, work: &mut impl Work) -> Result<Outcome, BenchError> {
        match self.completion {
            CompletionMode::Poll => self.measure::<true>(work),
            CompletionMode::Interrupt => self.measure::<false>(work),
        }
    }

    fn measure<const POLL: bool>(self, work: &mut impl Work) -> Result<Outcome, BenchError> {
        let Job { index, queue, namespace, data, block_bytes, depth, submit_batch, crowded, control, .. } = self;
        let patience = if crowded { NO_PATIENCE } else { PATIENCE };
        let (ring, lost) = (BenchError::driver("ringing a doorbell"), BenchError::driver("waiting for I/O"));
        let mut free: Vec<u16> = (0..depth).rev().collect();
        let mut started = vec![0u64; usize::from(depth)];
        let mut done: Vec<Completion> = Vec::with_capacity(usize::from(depth));
        let mut latency = Latency::new();
        // Slots of the commands that this turn tells the device about, and when those were told that it has found complete.
        let mut told: Vec<u16> = Vec::with_capacity(usize::from(depth));
        let mut finished: Vec<u64> = Vec::with_capacity(usize::from(depth));
        let (mut errors, mut first_error) = (0, None);
        let (mut completed, mut idle) = (0u64, 0u32);
        let mut until = control.until;
        let mut cut = false;
        let mut now = control.now();
        loop {
            match control.halt.load(Ordering::Relaxed) {
                0 => {
                    let mut untold = 0;
                    while let Some(slot) = free.pop() {
                        let offset = usize::from(slot) * block_bytes;
                        let Some(command) = work.next(slot, &data, offset, now >= until) else {
                            free.push(slot);
                            break;
                        };
                        let part = data.slice(offset, block_bytes);
                        let submitted = if command.write {
                            queue.write(&namespace, command.lba, part, slot.into())
                        } else {
                            queue.read(&namespace, command.lba, part, slot.into())
                        };
                        submitted.map_err(BenchError::submit)?;
                        told.push(slot);
                        untold += 1;
                        if untold >= submit_batch {
                            queue.ring().map_err(&ring)?;
                            untold = 0;
                        }
                    }
                }
                STOP => {
                    if !cut {
                        cut = true;
                        now = control.now();
                        until = until.min(now);
                    }
                }
                _ => return Err(BenchError::Target("the device is gone".to_owned())),
            }
            queue.ring().map_err(&ring)?;
            if !told.is_empty() || !finished.is_empty() {
                // One reading for the whole turn: the end of what it has found complete, and the beginning of what it has
                // told the device about. The device is at work meanwhile.
                now = control.now();
                if (control.from..=until).contains(&now) {
                    finished.iter().for_each(|started| latency.record(now.saturating_sub(*started)));
                }
                finished.clear();
                told.drain(..).for_each(|slot| started[usize::from(slot)] = now);
            }
            if queue.in_flight() == 0 && (cut || now >= until) {
                break;
            }
            let mut keep = |completion: Completion| done.push(completion);
            let count = if POLL {
                queue.poll(&mut keep).map_err(&lost)?
            } else {
                queue.wait(WAIT_SLICE, &mut keep).map_err(&lost)?
            };
            if count == 0 {
                idle += 1;
                if idle >= patience || !POLL {
                    idle = 0;
                    if POLL {
                        std::thread::yield_now();
                    }
                    now = control.now();
                }
                continue;
            }
            idle = 0;
            for completion in done.drain(..) {
                // Tags are the slots that were given to the driver, which hands each back once.
                let Ok(slot) = u16::try_from(completion.tag) else { continue };
                finished.push(started[usize::from(slot)]);
                if !completion.status.is_success() {
                    errors += 1;
                    first_error.get_or_insert(completion.status);
                }
                work.done(slot, &data, usize::from(slot) * block_bytes, &completion);
                free.push(slot);
            }
            completed += count as u64;
            if let Some(progress) = control.progress.get(usize::from(index)) {
                progress.0.store(completed, Ordering::Relaxed);
            }
        }
        let window = until.saturating_sub(control.from);
        Ok(Outcome { latency, window, errors, first_error, counters: queue.counters(), cut })
    }
}
