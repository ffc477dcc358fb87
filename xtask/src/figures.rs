//! `xtask figures`: register writes, interrupts, IOPS and CPU time per I/O, ours beside QEMU's device.
//!
//! Guest and host take turns: a fio job says when it is about to start and when it is done,
//! and waits until the host has read the counters. So each point's counts are those of its
//! I/O alone. Ours come from the server's statistics; those of QEMU's device from its trace,
//! in a run of its own since tracing costs time.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::fault::{Context, Result, bail, ensure};
use crate::qemu::{Disk, Guest, GuestConfig, word};
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};
use crate::server::{self, Server};
use crate::stats::{Counters, ratio};
use crate::workdir;

const SWEEP: &str = include_str!("../guest/sweep.sh");

/// Limit for one point, many times what it takes.
const POINT_LIMIT: Duration = Duration::from_secs(180);

/// Options of `xtask figures`.
#[derive(Args, Debug)]
pub(crate) struct FiguresArgs {
    /// Fewer points and I/Os: a minute instead of six
    #[arg(long)]
    quick: bool,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Stock kernel of the guest
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Kernel,
    /// How QEMU runs the guest
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accel,
    /// Only the devices whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// A device of the comparison.
#[derive(Clone, Copy, Debug)]
enum Device {
    Shadowbell { args: &'static [&'static str] },
    Qemu { properties: &'static str },
}

const DEVICES: [(&str, Device); 4] = [
    ("shadowbell", Device::Shadowbell { args: &[] }),
    ("shadowbell --doorbells register", Device::Shadowbell { args: &["--doorbells", "register"] }),
    ("QEMU nvme", Device::Qemu { properties: "" }),
    ("QEMU nvme, dbcs=off", Device::Qemu { properties: "dbcs=off" }),
];

/// One point of the sweep.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) device: String,
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
    pub(crate) ios: u64,
    pub(crate) sq_writes_per_io: f64,
    pub(crate) cq_writes_per_io: f64,
    pub(crate) interrupts_per_io: f64,
    pub(crate) iops: u64,
    /// CPU time of QEMU and the server together; fio's own time in the guest is part of it.
    pub(crate) cpu_us_per_io: f64,
}

impl Figure {
    /// Register writes of both kinds.
    pub(crate) fn doorbell_writes_per_io(&self) -> f64 {
        self.sq_writes_per_io + self.cq_writes_per_io
    }
}

/// What to measure.
pub(crate) struct Sweep {
    pub(crate) jobs: Vec<u32>,
    pub(crate) depths: Vec<u32>,
    /// I/Os of each job at each point.
    pub(crate) ios: u32,
}

/// Makes the table; the result is the exit status.
pub(crate) fn run(args: &FiguresArgs) -> Result<u8> {
    let rig = Rig::ready()?;
    let sweep = if args.quick {
        Sweep { jobs: vec![1, 2], depths: vec![1, 4, 32], ios: 4000 }
    } else {
        Sweep { jobs: vec![1, 2], depths: vec![1, 2, 4, 8, 32, 64], ios: 20_000 }
    };
    let config = GuestConfig { kernel: args.kernel, accel: args.accel.resolve(&rig)?, ..GuestConfig::default() };
    let mut program = None;
    let mut figures = Vec::new();
    for (name, device) in DEVICES {
        if !name.contains(&args.only) {
            continue;
        }
        eprintln!("figures: {name}");
        figures.extend(match device {
            Device::Shadowbell { args } => {
                let program = match &program {
                    Some(path) => path,
                    None => program.insert(server::build()?),
                };
                shadowbell(&rig, &config, &sweep, program, name, args)?
            }
            Device::Qemu { properties } => qemu(&rig, &config, &sweep, name, properties)?,
        });
    }
    ensure!(!figures.is_empty(), "no device is named {:?}", args.only);
    let version = rig.qemu_version()?;
    println!("{}", table(&figures));
    println!(
        "4 KiB random reads of a 64 GiB null disk, {} I/Os a job at each point; {version}, {:?}, guest with 2 processors, Linux {}.",
        sweep.ios,
        config.accel,
        config.kernel.name()
    );
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures)?).context(path.display())?;
    }
    Ok(0)
}

/// Sweeps our device with these server options.
pub(crate) fn shadowbell(
    rig: &Rig,
    config: &GuestConfig,
    sweep: &Sweep,
    program: &Path,
    name: &str,
    args: &[&str],
) -> Result<Vec<Figure>> {
    let dir = workdir()?;
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let server = Server::start(program, &["null:64G".to_owned()], &args, dir.path(), "server")?;
    let disk = server.disk();
    let mut probe = ServerProbe { server };
    let figures = measure(rig, config, sweep, disk, &mut probe, dir.path(), name)?;
    probe.server.stop()?;
    Ok(figures)
}

/// Sweeps QEMU's own device twice: for its speed, then for its counts.
fn qemu(rig: &Rig, config: &GuestConfig, sweep: &Sweep, name: &str, properties: &str) -> Result<Vec<Figure>> {
    let dir = workdir()?;
    let disk = || Disk::Qemu { drives: vec!["null".into()], properties: properties.to_owned() };
    let mut figures = measure(rig, config, sweep, disk(), &mut NoProbe, dir.path(), name)?;
    let trace = dir.path().join("trace.log");
    let mut traced = config.clone();
    for event in ["pci_nvme_mmio_doorbell_sq", "pci_nvme_mmio_doorbell_cq", "pci_nvme_irq_msix"] {
        traced.qemu_args.extend(["-trace".to_owned(), event.to_owned()]);
    }
    traced.qemu_args.extend(["-D".to_owned(), trace.display().to_string()]);
    let fewer = Sweep { jobs: sweep.jobs.clone(), depths: sweep.depths.clone(), ios: sweep.ios.min(4000) };
    let mut probe = TraceProbe { trace };
    let counted = measure(rig, &traced, &fewer, disk(), &mut probe, dir.path(), name)?;
    for (figure, counts) in figures.iter_mut().zip(counted) {
        figure.sq_writes_per_io = counts.sq_writes_per_io;
        figure.cq_writes_per_io = counts.cq_writes_per_io;
        figure.interrupts_per_io = counts.interrupts_per_io;
    }
    Ok(figures)
}

/// Source of a device's counters.
trait Probe {
    /// The counters since the start; `commands` may be left at 0 where they are not known.
    fn counters(&mut self) -> Result<Counters>;
    /// CPU time of processes other than QEMU.
    fn cpu_us(&self) -> Result<u64> {
        Ok(0)
    }
}

struct ServerProbe {
    server: Server,
}

impl Probe for ServerProbe {
    fn counters(&mut self) -> Result<Counters> {
        Ok(self.server.stats()?.totals)
    }

    fn cpu_us(&self) -> Result<u64> {
        self.server.cpu_us()
    }
}

struct NoProbe;

impl Probe for NoProbe {
    fn counters(&mut self) -> Result<Counters> {
        Ok(Counters::default())
    }
}

/// Counts events in QEMU's trace log, which it writes line by line.
struct TraceProbe {
    trace: PathBuf,
}

impl Probe for TraceProbe {
    fn counters(&mut self) -> Result<Counters> {
        let mut file = File::open(&self.trace).context(self.trace.display())?;
        file.seek(SeekFrom::Start(0))?;
        let mut counters = Counters::default();
        for line in BufReader::new(file).lines() {
            count_event(&line?, &mut counters);
        }
        Ok(counters)
    }
}

/// Adds one trace line; events of the admin queue (queue and vector 0) do not count.
fn count_event(line: &str, counters: &mut Counters) {
    let number_after = |key: &str| -> Option<u64> {
        let rest = line.split_once(key)?.1.trim_start();
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    let (counter, queue) = if line.contains("doorbell_sq") {
        (&mut counters.sq_doorbell_writes, number_after("sqid"))
    } else if line.contains("doorbell_cq") {
        (&mut counters.cq_doorbell_writes, number_after("cqid"))
    } else if line.contains("irq_msix") {
        (&mut counters.interrupts, number_after("vector"))
    } else {
        return;
    };
    *counter += u64::from(queue.is_some_and(|queue| queue != 0));
}

/// CPU time and counters at one moment.
struct Moment {
    cpu_us: u64,
    counters: Counters,
}

/// Boots a guest and takes it through the sweep.
fn measure(
    rig: &Rig,
    config: &GuestConfig,
    sweep: &Sweep,
    disk: Disk,
    probe: &mut dyn Probe,
    dir: &Path,
    name: &str,
) -> Result<Vec<Figure>> {
    let script = format!(
        "disk=/dev/nvme0n1 jobs=\"{}\" depths=\"{}\" ios={}\n{SWEEP}",
        words(&sweep.jobs),
        words(&sweep.depths),
        sweep.ios
    );
    let config = GuestConfig { disk, script, ..config.clone() };
    let mut guest = Guest::boot(rig, &config, dir, "guest")?;
    let mut figures = Vec::new();
    for &jobs in &sweep.jobs {
        for &depth in &sweep.depths {
            let point = format!("@point jobs={jobs} depth={depth}");
            guest.wait_for(&point, POINT_LIMIT).context("the guest does not start")?;
            let before = meet(&mut guest, "@before", jobs, probe)?;
            let after = meet(&mut guest, "@after", jobs, probe)?;
            let result = guest.wait_for("@result", POINT_LIMIT)?;
            let number = |key: &str| -> Result<u64> {
                word(&result, key).and_then(|value| value.parse().ok()).context(format!("{key} in {result:?}"))
            };
            let ios = number("ios")?;
            ensure!(number("errors")? == 0, "fio counted errors at jobs={jobs} depth={depth}");
            ensure!(ios == u64::from(jobs) * u64::from(sweep.ios), "fio did {ios} I/Os");
            let counts = after.counters.since(&before.counters);
            if counts.commands != 0 && counts.commands != ios {
                bail!("the server counted {} commands for {ios} I/Os of fio", counts.commands);
            }
            let figure = Figure {
                device: name.to_owned(),
                jobs,
                depth,
                ios,
                sq_writes_per_io: ratio(counts.sq_doorbell_writes, ios),
                cq_writes_per_io: ratio(counts.cq_doorbell_writes, ios),
                interrupts_per_io: ratio(counts.interrupts, ios),
                iops: number("iops")?,
                cpu_us_per_io: ratio(after.cpu_us.saturating_sub(before.cpu_us), ios),
            };
            eprintln!("figures:   {}", row(&figure));
            figures.push(figure);
        }
    }
    guest.succeed(POINT_LIMIT)?;
    Ok(figures)
}

/// Waits until every job of a point says `mark`, takes the counts, lets the jobs go on.
fn meet(guest: &mut Guest, mark: &str, jobs: u32, probe: &mut dyn Probe) -> Result<Moment> {
    let end = Instant::now() + POINT_LIMIT;
    for _ in 0..jobs {
        guest.wait_for(mark, end.saturating_duration_since(Instant::now()))?;
    }
    let moment = Moment { cpu_us: guest.cpu_us()? + probe.cpu_us()?, counters: probe.counters()? };
    // Reading the counters takes time of the server, which must not be the point's.
    let cpu_us = if mark == "@before" { guest.cpu_us()? + probe.cpu_us()? } else { moment.cpu_us };
    for _ in 0..jobs {
        guest.release()?;
    }
    Ok(Moment { cpu_us, ..moment })
}

fn words(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// One row of the table.
fn row(figure: &Figure) -> String {
    format!(
        "| {} | {} | {} | {:.3} | {:.3} | {:.4} | {:.3} | {} | {:.1} |",
        figure.device,
        figure.jobs,
        figure.depth,
        figure.doorbell_writes_per_io(),
        figure.sq_writes_per_io,
        figure.cq_writes_per_io,
        figure.interrupts_per_io,
        figure.iops,
        figure.cpu_us_per_io
    )
}

/// The figures as a markdown table.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut text = String::from(
        "| device | jobs | depth | doorbell writes/IO | of these SQ | CQ | interrupts/IO | IOPS | CPU us/IO |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for figure in figures {
        // A String takes every write.
        let _ = writeln!(text, "{}", row(figure));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_events_of_the_admin_queue_do_not_count() {
        let mut counters = Counters::default();
        for line in [
            "pci_nvme_mmio_doorbell_sq sqid 1 new_tail 4",
            "pci_nvme_mmio_doorbell_sq sqid 0 new_tail 4",
            "pci_nvme_mmio_doorbell_cq cqid 2 new_head 4",
            "pci_nvme_irq_msix raising MSI-X IRQ vector 1",
            "pci_nvme_irq_msix raising MSI-X IRQ vector 0",
        ] {
            count_event(line, &mut counters);
        }
        assert_eq!((counters.sq_doorbell_writes, counters.cq_doorbell_writes, counters.interrupts), (1, 1, 1));
    }
}
