//! `xtask compare`: one fio job in one guest, on QEMU's disks and on ours in turn.
//!
//! All devices are in the same guest and take turns at each point, so that what else goes on
//! in the machine meets all of them alike; several rounds give medians. Register writes of
//! QEMU's devices are counted in a second, untimed run, since counting costs time.

mod device;
mod job;
mod measure;
mod page;
mod summary;
mod text;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::fault::{Context, Result};
use crate::process;
use crate::qemu::GuestConfig;
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};
use crate::{server, workdir};
use device::{Backing, Device, Kind, Store};
use job::Job;
use measure::{Measurement, Point, Session, Setup};
use summary::{About, Report};

pub(crate) use device::{REGISTERS, SHADOWBELL};
pub(crate) use summary::{Row, too_few};
pub(crate) use text::table;

/// Status when the user stopped it.
const INTERRUPTED: u8 = 130;

/// Options of `xtask compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Fewer points, one second each: some minutes
    #[arg(long)]
    quick: bool,
    /// Rounds; medians are over these
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each measurement [default: 2; with --quick 1]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Depths [default: 1,2,4,8,16,32,64; with --quick 1,32]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    depths: Vec<u32>,
    /// Numbers of jobs, one for each processor of the guest at most
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u32).range(1..=2))]
    jobs: Vec<u32>,
    /// Only these devices; a wrong name lists all
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// What stands behind every device: null, ram (a file on tmpfs for each), or a raw image or block device (read-only)
    #[arg(long, value_name = "null|ram|FILE", default_value = "null")]
    backing: Backing,
    /// Run this fio job file: one job section; depth, jobs and file name come from here, ${RUNTIME} is for its use
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// How QEMU reads files
    #[arg(long, value_name = "HOW", default_value = "io_uring", value_parser = ["io_uring", "native", "threads"])]
    qemu_aio: String,
    /// Leave out the second run, which counts register writes of QEMU's devices
    #[arg(long)]
    no_trace: bool,
    /// Also write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Stock kernel of the guest
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Kernel,
    /// How QEMU runs the guest
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accel,
}

/// Makes the comparison; the result is the exit status.
pub(crate) fn run(args: &CompareArgs) -> Result<u8> {
    let devices = device::select(&args.only)?;
    let job = Job::read(args.job.as_deref())?;
    let seconds = args.seconds.unwrap_or(if args.quick { 1 } else { 2 });
    let depths = match (&args.depths[..], args.quick) {
        ([], true) => vec![1, 32],
        ([], false) => vec![1, 2, 4, 8, 16, 32, 64],
        (own, _) => own.to_vec(),
    };
    for path in [&args.json, &args.html].into_iter().flatten() {
        // Not after an hour of measuring.
        std::fs::File::options().append(true).create(true).open(path).context(path.display())?;
    }
    let rig = Rig::ready()?;
    let accel = args.accel.resolve(&rig)?;
    let program = server::build()?;
    let guest = GuestConfig { kernel: args.kernel, accel, ..GuestConfig::default() };
    let mut machine = bench::Machine::this();
    let store = Store::new(&args.backing)?;
    let points = sweep(&args.jobs, &depths);
    let setup = Setup {
        rig: &rig,
        guest: &guest,
        program: Some(&program),
        devices: &devices,
        store: &store,
        aio: &args.qemu_aio,
        job: &job,
        trace: false,
    };
    let timed = rounds(&setup, &points, args.rounds, seconds, "round")?;
    // Ours count for themselves. QEMU's nvme with ioeventfd passes by its trace.
    let silent: Vec<Device> = devices
        .iter()
        .copied()
        .filter(|device| !matches!(device.kind, Kind::Shadowbell { .. } | Kind::Nvme { traced: false, .. }))
        .collect();
    let counted = if args.no_trace || silent.is_empty() || process::interrupted() {
        Vec::new()
    } else {
        let setup = Setup { devices: &silent, trace: true, ..setup };
        rounds(&setup, &points, 1, 1, "counting register writes, round")?
    };
    machine.after();
    let mut report = Report {
        command: command_line(),
        shadowbell: version(&program)?,
        qemu: rig.qemu_version()?,
        accel: format!("{accel:?}").to_uppercase(),
        guest: format!("Debian's Linux {}, {} processors, {} MiB", args.kernel.name(), guest.cpus, guest.memory_mib),
        machine,
        backing: args.backing.describe(),
        job: job.text.clone(),
        rounds: args.rounds,
        seconds,
        devices: devices.iter().map(|device| About { name: device.name, about: device.about }).collect(),
        rows: summary::rows(&devices, &points, &timed, &counted),
        measurements: timed,
        notes: Vec::new(),
    };
    report.notes = notes(&report, accel, !counted.is_empty());
    print!("{}", text::render(&report));
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?).context(path.display())?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, page::render(&report)).context(path.display())?;
    }
    Ok(if process::interrupted() { INTERRUPTED } else { 0 })
}

/// Medians of a few devices on null disks, for others than `compare`.
pub(crate) fn medians(
    rig: &Rig,
    guest: &GuestConfig,
    program: &Path,
    devices: &[Device],
    depths: &[u32],
    rounds_of_it: u32,
) -> Result<Vec<Row>> {
    let points = sweep(&[1], depths);
    let job = Job::default();
    let store = Store::new(&Backing::Null)?;
    let setup =
        Setup { rig, guest, program: Some(program), devices, store: &store, aio: "threads", job: &job, trace: false };
    let timed = rounds(&setup, &points, rounds_of_it, 1, "round")?;
    Ok(summary::rows(devices, &points, &timed, &[]))
}

fn sweep(jobs: &[u32], depths: &[u32]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for &jobs in jobs {
        for &depth in depths {
            let point = Point { jobs, depth };
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    points
}

/// Boots a guest and measures every device at every point, the devices in turn, several times.
fn rounds(setup: &Setup<'_>, points: &[Point], rounds: u32, seconds: u32, what: &str) -> Result<Vec<Measurement>> {
    let dir = workdir()?;
    let devices = setup.devices;
    let mut session = Session::start(setup, dir.path())?;
    let mut all = Vec::new();
    let mut progress = Progress::new(points.len() * devices.len() * usize::try_from(rounds).unwrap_or(usize::MAX));
    for round in 1..=rounds {
        for (number, &point) in points.iter().enumerate() {
            for turn in 0..devices.len() {
                // Another one begins at each point and in each round: none is always the first.
                let shift = number + usize::try_from(round).unwrap_or(0);
                let lane = (turn + shift) % devices.len();
                progress.show(&format!(
                    "{what} {round} of {rounds}, {} job(s), depth {}, {}",
                    point.jobs, point.depth, devices[lane].name
                ));
                match session.measure(lane, point, round, seconds) {
                    Ok(measurement) => all.push(measurement),
                    // What was measured so far is worth a report.
                    Err(_) if process::interrupted() && !all.is_empty() => {
                        progress.line("interrupted");
                        return Ok(all);
                    }
                    Err(fault) => {
                        progress.line("failed");
                        return Err(fault);
                    }
                }
            }
        }
        progress.line(&format!("{what} {round} of {rounds} done"));
    }
    session.stop()?;
    Ok(all)
}

/// Where a run is: one line that changes on a terminal, a line a round elsewhere.
struct Progress {
    total: usize,
    done: usize,
    started: Instant,
    terminal: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self { total, done: 0, started: Instant::now(), terminal: std::io::stderr().is_terminal() }
    }

    /// Says what comes next.
    fn show(&mut self, next: &str) {
        if self.terminal {
            let left = remaining(self.started.elapsed(), self.done, self.total);
            eprint!("\r\x1b[Kcompare: {} of {}{left}: {next}", self.done + 1, self.total);
        }
        self.done += 1;
    }

    /// A line that stays.
    fn line(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}compare: {text} after {:.0} s", self.started.elapsed().as_secs_f64());
    }
}

/// Time left, from the pace so far.
fn remaining(elapsed: Duration, done: usize, total: usize) -> String {
    let (Ok(done_u32), Ok(left)) = (u32::try_from(done), u32::try_from(total.saturating_sub(done))) else {
        return String::new();
    };
    if done_u32 < 3 {
        return String::new();
    }
    let seconds = (elapsed / done_u32).saturating_mul(left).as_secs();
    format!(" ({}:{:02} left)", seconds / 60, seconds % 60)
}

/// What the reader should know.
fn notes(report: &Report, accel: Accel, counted: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if process::interrupted() {
        notes.push("Interrupted: what is here was measured before.".to_owned());
    }
    if accel == Accel::Tcg {
        notes.push(
            "TCG: the guest's processors are emulated, so a register write is no exit from the guest here, and fio costs \
             many times what it costs on a real processor. What a device saves in exits shows in the register writes \
             alone; with KVM each one costs time as well."
                .to_owned(),
        );
    }
    let unknown: Vec<&str> = report
        .devices
        .iter()
        .map(|about| about.name)
        .filter(|name| report.rows.iter().any(|row| row.device == *name && row.register_writes_per_io.is_none()))
        .collect();
    if counted {
        notes.push(
            "Register writes: ours from the server's counters in the timed run; QEMU's nvme from its trace and virtio from \
             a probe in the guest (vp_notify) in a run of its own, which is slower and so may differ a little."
                .to_owned(),
        );
    }
    if !unknown.is_empty() {
        notes.push(format!("Nobody counts the register writes of {}.", unknown.join(", ")));
    }
    let machine = &report.machine;
    #[expect(clippy::cast_precision_loss, reason = "a number of processors")]
    let cores = machine.cores as f64;
    // Guest, QEMU and server alone make a load of about 2.
    if machine.load_before > cores / 2.0 {
        notes.push(format!(
            "The machine was busy with other things (load {:.1} before the start, on {} cores): ratios say more than rates.",
            machine.load_before, machine.cores
        ));
    }
    notes.extend(summary::too_few(&report.rows));
    if report.rounds < 3 {
        notes.push("Fewer than three rounds: a median of so few is no more than one of them.".to_owned());
    }
    notes
}

fn version(program: &Path) -> Result<String> {
    let text = process::output(Command::new(program).arg("--version"), "shadowbell --version")?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// As one would type it.
fn command_line() -> String {
    let words = std::env::args().skip(1).map(|word| if word.contains(' ') { format!("'{word}'") } else { word });
    ["cargo xtask".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_has_each_point_once() {
        let points = sweep(&[1, 2, 1], &[4, 4]);
        assert_eq!(points, [Point { jobs: 1, depth: 4 }, Point { jobs: 2, depth: 4 }]);
    }

    #[test]
    fn the_time_left_is_told_once_there_is_a_pace() {
        assert_eq!(remaining(Duration::from_secs(10), 2, 10), "");
        assert_eq!(remaining(Duration::from_secs(30), 3, 10), " (1:10 left)");
        assert_eq!(remaining(Duration::from_secs(30), 10, 10), " (0:00 left)");
    }
}
