//! Writes a disk once, so that what is read later is there: a block that was never written costs less to read.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use driver::{Buffer, Completion, Device, DoorbellPolicy, Options, QueueOptions};

use crate::{addresses::Random, bench::Bench, bench::Progress, bench::Target, error::BenchError, workload::Workload};

/// Bytes of a write, if the device takes so many.
const CHUNK: usize = 256 << 10;
/// Writes in flight.
const DEPTH: usize = 8;
/// A wait for a completion looks at the stop flag this often.
const SLICE: Duration = Duration::from_millis(50);

impl<T: Target> Bench<T> {
    /// Writes random bytes to all that `workload` uses of the first namespace, from its start to its end. `stop` ends it early.
    ///
    /// # Errors
    /// [`BenchError`], also for a write that the device fails.
    pub fn precondition(
        &mut self,
        workload: &Workload,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), BenchError> {
        let options = Options {
            doorbells: DoorbellPolicy::Shadow,
            command_timeout: workload.command_timeout,
            ..Options::default()
        };
        let mut device =
            Device::open(self.transport(), options).map_err(BenchError::driver("setting up the controller"))?;
        let Some(namespace) = device.namespaces().first().copied() else {
            return Err(BenchError::Workload("the device has no namespace that can be used".to_owned()));
        };
        let block = namespace.block_bytes();
        let chunk = CHUNK.min(device.max_transfer()) / block * block;
        let end = workload.size.unwrap_or(namespace.bytes()).min(namespace.bytes()) / block as u64 * block as u64;
        let mut queue = device
            .create_queue_pair(QueueOptions { interrupt: true, ..QueueOptions::default() })
            .map_err(BenchError::driver("creating an I/O queue"))?;
        let data =
            queue.allocate(DEPTH * chunk).map_err(|error| BenchError::driver("memory for data")(error.into()))?;
        fill(&data);
        let (mut offset, mut written, start) = (0u64, 0u64, Instant::now());
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut done: Vec<Completion> = Vec::new();
        while queue.in_flight() > 0 || offset < end && !stop.load(Ordering::Relaxed) {
            while offset < end
                && let Some(slot) = free.pop()
            {
                let bytes = usize::try_from(end - offset).unwrap_or(chunk).min(chunk);
                let part = data.slice(slot * chunk, bytes);
                queue.write(&namespace, offset / block as u64, part, slot as u64).map_err(BenchError::submit)?;
                offset += bytes as u64;
            }
            queue
                .wait(SLICE, &mut |completion| done.push(completion))
                .map_err(BenchError::driver("waiting for I/O"))?;
            for completion in done.drain(..) {
                completion.ok().map_err(|status| BenchError::Target(format!("the device failed a write: {status}")))?;
                written += chunk as u64;
                free.extend(usize::try_from(completion.tag));
            }
            #[allow(clippy::cast_precision_loss)] // For people.
            progress(Progress {
                fraction: (written as f64 / end.max(1) as f64).min(1.0),
                iops: written as f64 / chunk as f64 / start.elapsed().as_secs_f64().max(1e-9),
            });
            if stop.load(Ordering::Relaxed) {
                offset = end;
            }
        }
        device.delete_queue_pair(queue).map_err(BenchError::driver("deleting an I/O queue"))
    }
}

/// Bytes that do not compress.
fn fill(data: &Buffer) {
    let mut random = Random::new(1);
    for at in (0..data.len()).step_by(8) {
        // Inside the buffer, whose size is a multiple of 8.
        let _ = data.write(at, &random.next().to_le_bytes());
    }
}
