//! One guest with all devices, and points measured on them in turn.
//!
//! Guest and host take turns: a fio job says when it is about to start and when it is done,
//! and waits until the host has read the counters. So each point's counts are those of its
//! I/O alone.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::device::{self, Device, Kind, Store};
use super::job::{Job, RunResult};
use crate::fault::{Context, Result, bail, ensure};
use crate::process;
use crate::qemu::{Guest, GuestConfig};
use crate::rig::Rig;
use crate::server::Server;
use crate::stats::{Counters, ratio};

const SCRIPT: &str = include_str!("../../guest/compare.sh");

/// Limits for a step of the conversation, many times what it takes; a point also gets its own time.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
const POINT_LIMIT: Duration = Duration::from_secs(120);

/// Trace events of QEMU's `nvme` that count.
const TRACE_EVENTS: [&str; 2] = ["pci_nvme_mmio_doorbell_sq", "pci_nvme_mmio_doorbell_cq"];

/// The guest's kernel function that rings a virtio queue: one register write each.
const VIRTIO_RING: &str = "vp_notify";

/// Depth and jobs of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Point {
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
}

/// Who is to be measured, and how.
pub(crate) struct Setup<'a> {
    pub(crate) rig: &'a Rig,
    /// Kernel, accelerator, memory.
    pub(crate) guest: &'a GuestConfig,
    /// Path of `shadowbell`; only needed when a device is ours.
    pub(crate) program: Option<&'a Path>,
    pub(crate) devices: &'a [Device],
    pub(crate) store: &'a Store,
    /// QEMU's way to files.
    pub(crate) aio: &'a str,
    pub(crate) job: &'a Job,
    /// Count register writes of QEMU's devices, which costs their time.
    pub(crate) trace: bool,
}

/// What was seen of one device at one point, once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    pub(crate) device: &'static str,
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) point: Point,
    pub(crate) ios: u64,
    pub(crate) iops: f64,
    /// CPU time of QEMU and the server together; fio's own time in the guest is part of it.
    pub(crate) cpu_us_per_io: f64,
    pub(crate) interrupts_per_io: f64,
    pub(crate) latency_us: Option<f64>,
    /// `None` where nobody counts them.
    pub(crate) register_writes_per_io: Option<f64>,
    /// Those of them that are CQ heads; `None` where there are no CQs, or nobody counts.
    pub(crate) cq_writes_per_io: Option<f64>,
}

/// A device in the guest.
struct Lane {
    device: Device,
    slot: String,
    server: Option<Server>,
}

/// A running guest with its devices.
pub(crate) struct Session {
    guest: Guest,
    lanes: Vec<Lane>,
    trace: Option<Trace>,
    counts_are_exact: bool,
}

/// CPU time and counters at one moment.
struct Moment {
    cpu_us: u64,
    counters: Counters,
}

impl Session {
    /// Starts the servers, then the guest; returns once all disks are there. Logs and sockets are in `dir`.
    pub(crate) fn start(setup: &Setup<'_>, dir: &Path) -> Result<Self> {
        let mut qemu_args = Vec::new();
        let mut lanes = Vec::new();
        for (number, device) in setup.devices.iter().enumerate() {
            let server = match device.kind {
                Kind::Shadowbell { args, .. } => {
                    let (disk, args) = setup.store.serve(number, args)?;
                    let program = setup.program.context("no shadowbell program")?;
                    Some(Server::start(program, &[disk], &args, dir, device.name)?)
                }
                _ => None,
            };
            let socket = server.as_ref().map(Server::socket);
            qemu_args.extend(device::qemu_args(device, number, setup.store, setup.aio, socket)?);
            lanes.push(Lane { device: *device, slot: device::slot(number), server });
        }
        let log = dir.join("trace.log");
        if setup.trace {
            for event in TRACE_EVENTS {
                qemu_args.extend(["-trace".to_owned(), event.to_owned()]);
            }
            qemu_args.extend(["-D".to_owned(), log.display().to_string()]);
        }
        qemu_args.extend(setup.guest.qemu_args.iter().cloned());
        let job = dir.join("compare.fio");
        std::fs::write(&job, setup.job.for_guest()).context(job.display())?;
        let slots: Vec<&str> = lanes.iter().map(|lane| lane.slot.as_str()).collect();
        let script = format!(
            "modules=\"{}\" slots=\"{}\" kprobe={}\n{SCRIPT}",
            device::MODULES,
            slots.join(" "),
            if setup.trace { VIRTIO_RING } else { "" }
        );
        let config =
            GuestConfig { script, qemu_args, files: vec![(job, "opt/compare.fio".to_owned())], ..setup.guest.clone() };
        let mut guest = Guest::boot(setup.rig, &config, dir, "guest")?;
        if let Err(fault) = guest.wait_for("@ready", BOOT_LIMIT) {
            bail!("{fault}{}", said(&guest, dir));
        }
        let trace = setup.trace.then(|| Trace::open(&log)).transpose()?;
        let session = Self { guest, lanes, trace, counts_are_exact: setup.job.counts_are_exact };
        for lane in &session.lanes {
            lane.rest()?;
        }
        Ok(session)
    }

    /// Measures one device at one point, for about `seconds`.
    pub(crate) fn measure(&mut self, lane: usize, point: Point, round: u32, seconds: u32) -> Result<Measurement> {
        let limit = POINT_LIMIT + Duration::from_secs(u64::from(seconds)) * 4;
        let Self { guest, lanes, trace, counts_are_exact } = self;
        let lane = lanes.get_mut(lane).context("no such device")?;
        let name = lane.device.name;
        let Point { jobs, depth } = point;
        lane.wake()?;
        guest.send(&format!("{} {jobs} {depth} {seconds}", lane.slot))?;
        let mut step = || -> Result<(Moment, Moment, String)> {
            let before = meet(guest, "@before", jobs, lane, trace.as_mut(), limit)?;
            let after = meet(guest, "@after", jobs, lane, trace.as_mut(), limit)?;
            let line = guest.wait_for("@result", limit)?;
            Ok((before, after, line))
        };
        let result = step();
        let (before, after, line) = match result {
            Ok(all) => all,
            Err(fault) => bail!("{name}, {jobs} job(s), depth {depth}: {fault}{}", last_words(guest)),
        };
        lane.rest()?;
        let run = RunResult::parse(&line).context(name)?;
        let counts = after.counters.since(&before.counters);
        let ours = lane.device.is_ours();
        ensure!(
            !(ours && *counts_are_exact) || counts.commands == run.ios,
            "{name}, {jobs} job(s), depth {depth}: the server counted {} commands for {} I/Os of fio",
            counts.commands,
            run.ios
        );
        let rings = counts.sq_doorbell_writes + counts.cq_doorbell_writes;
        let (register_writes, cq_writes) = match lane.device.kind {
            Kind::Shadowbell { .. } => (Some(rings), Some(counts.cq_doorbell_writes)),
            Kind::Nvme { traced: true, .. } if trace.is_some() => (Some(rings), Some(counts.cq_doorbell_writes)),
            Kind::VirtioBlk | Kind::VirtioScsi if trace.is_some() => (Some(run.hits), None),
            _ => (None, None),
        };
        Ok(Measurement {
            device: name,
            round,
            point,
            ios: run.ios,
            iops: run.iops,
            cpu_us_per_io: ratio(after.cpu_us.saturating_sub(before.cpu_us), run.ios),
            interrupts_per_io: ratio(run.interrupts, run.ios),
            latency_us: run.latency_us,
            register_writes_per_io: register_writes.map(|count| ratio(count, run.ios)),
            cq_writes_per_io: cq_writes.map(|count| ratio(count, run.ios)),
        })
    }

    /// Ends guest and servers, which must all end well.
    pub(crate) fn stop(mut self) -> Result<()> {
        // The guest's driver shuts every device down and waits for its answer.
        for lane in &self.lanes {
            lane.wake()?;
        }
        self.guest.send("end")?;
        self.guest.succeed(BOOT_LIMIT)?;
        for server in self.lanes.into_iter().filter_map(|lane| lane.server) {
            server.stop()?;
        }
        Ok(())
    }
}

impl Lane {
    /// A server that spins is stopped while another device is measured, or it would take its core.
    fn rest(&self) -> Result<()> {
        match (&self.server, self.device.kind) {
            (Some(server), Kind::Shadowbell { spins: true, .. }) => server.pause(),
            _ => Ok(()),
        }
    }

    fn wake(&self) -> Result<()> {
        self.server.as_ref().map_or(Ok(()), Server::resume)
    }

    /// CPU time of QEMU and of this device's server.
    fn cpu_us(&self, guest: &Guest) -> Result<u64> {
        Ok(guest.cpu_us()? + self.server.as_ref().map_or(Ok(0), Server::cpu_us)?)
    }
}

/// Waits until every job of a point says `mark`, takes the counts, lets the jobs go on.
fn meet(
    guest: &mut Guest,
    mark: &str,
    jobs: u32,
    lane: &mut Lane,
    trace: Option<&mut Trace>,
    limit: Duration,
) -> Result<Moment> {
    let end = Instant::now() + limit;
    for _ in 0..jobs {
        guest.wait_for(mark, end.saturating_duration_since(Instant::now()))?;
    }
    let cpu_us = lane.cpu_us(guest)?;
    let counters = match (&mut lane.server, trace) {
        (Some(server), _) => server.stats()?.totals,
        (None, Some(trace)) => trace.counters()?,
        (None, None) => Counters::default(),
    };
    // Reading the counters takes time of the server, which must not be the point's.
    let cpu_us = if mark == "@before" { lane.cpu_us(guest)? } else { cpu_us };
    for _ in 0..jobs {
        guest.release()?;
    }
    Ok(Moment { cpu_us, counters })
}

/// The end of the guest's console, for a report of a failure.
fn last_words(guest: &Guest) -> String {
    let from = guest.output.len().saturating_sub(10);
    guest.output.iter().skip(from).map(|line| format!("\n    {line}")).collect()
}

/// What guest and QEMU said when the guest did not come up.
fn said(guest: &Guest, dir: &Path) -> String {
    format!("{}\n{}", last_words(guest), process::tail(&dir.join("guest.qemu.log"), 10))
}

/// Counts events in QEMU's trace log as it grows; QEMU writes it line by line.
struct Trace {
    log: BufReader<File>,
    /// A line whose end is not there yet.
    line: Vec<u8>,
    counters: Counters,
}

impl Trace {
    fn open(path: &Path) -> Result<Self> {
        let log = BufReader::new(File::open(path).context(path.display())?);
        Ok(Self { log, line: Vec::new(), counters: Counters::default() })
    }

    /// The counts since the start. One device at a time does I/O, so they are its own.
    fn counters(&mut self) -> Result<Counters> {
        while self.log.read_until(b'\n', &mut self.line)? > 0 {
            if self.line.ends_with(b"\n") {
                count_event(&String::from_utf8_lossy(&self.line), &mut self.counters);
                self.line.clear();
            }
        }
        Ok(self.counters)
    }
}

/// Adds one trace line; events of the admin queue (queue 0) do not count.
fn count_event(line: &str, counters: &mut Counters) {
    let number_after = |key: &str| -> Option<u64> {
        let rest = line.split_once(key)?.1.trim_start();
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    let (counter, queue) = if line.contains("doorbell_sq") {
        (&mut counters.sq_doorbell_writes, number_after("sqid"))
    } else if line.contains("doorbell_cq") {
        (&mut counters.cq_doorbell_writes, number_after("cqid"))
    } else {
        return;
    };
    *counter += u64::from(queue.is_some_and(|queue| queue != 0));
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn trace_events_of_the_admin_queue_do_not_count() {
        let mut counters = Counters::default();
        for line in [
            "pci_nvme_mmio_doorbell_sq sqid 1 new_tail 4",
            "pci_nvme_mmio_doorbell_sq sqid 0 new_tail 4",
            "pci_nvme_mmio_doorbell_cq cqid 2 new_head 4",
            "pci_nvme_irq_msix raising MSI-X IRQ vector 1",
        ] {
            count_event(line, &mut counters);
        }
        assert_eq!((counters.sq_doorbell_writes, counters.cq_doorbell_writes), (1, 1));
    }

    #[test]
    fn a_trace_line_counts_once_it_is_complete() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut trace = Trace::open(file.path()).unwrap();
        file.write_all(b"pci_nvme_mmio_doorbell_sq sqid 1 new_tail 4\npci_nvme_mmio_doorbell_sq sq").unwrap();
        assert_eq!(trace.counters().unwrap().sq_doorbell_writes, 1);
        file.write_all(b"id 1 new_tail 5\n").unwrap();
        assert_eq!(trace.counters().unwrap().sq_doorbell_writes, 2);
        assert_eq!(trace.counters().unwrap().sq_doorbell_writes, 2);
    }
}
