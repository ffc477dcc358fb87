//! `shadowbell bench`.

use std::{
    fs::File,
    io::Write,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use driver::Transport;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use shadowbell_bench::{Bench, BenchError, CompletionMode, DoorbellKind, Machine, Point, Report, Rw, Target, Workload};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use crate::{
    bench_target::{Foreign, Local, Server, Service, connect},
    cli::{BenchArgs, BenchFormat, BenchTarget, CompletionArg, DoorbellArg, DoorbellsArg, RwArg, Shape},
    disk::DiskSpec,
    output::{Failure, human, say},
};

/// The disk where none is given.
const DISK: DiskSpec = DiskSpec::Null { size: 64 << 30, zeroes: false };
/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;
const DEPTHS: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Measures, and reports.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    check(args)?;
    // A file that cannot be written is better known now than after a minute of work.
    let mut output = match &args.output {
        None => None,
        Some(path) => {
            Some(File::create(path).map_err(|error| Failure::runtime(format!("output {}: {error}", path.display())))?)
        }
    };
    let stop = listen()?;
    let (report, failure) = measure(args, &stop)?;
    let text = match args.output_format {
        BenchFormat::Table => shadowbell_bench::table::render(&report),
        BenchFormat::Html => shadowbell_bench::html::render(&report),
        BenchFormat::Json => report.to_json().map_err(|error| Failure::runtime(error.to_string()))?,
    };
    match (&mut output, &args.output) {
        (Some(file), Some(path)) => file
            .write_all(text.as_bytes())
            .map_err(|error| Failure::runtime(format!("output {}: {error}", path.display())))?,
        _ => say(&text),
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if !report.is_good() {
        return Err(Failure::runtime(complaint(&report)));
    }
    Ok(if report.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// What cannot go together.
fn check(args: &BenchArgs) -> Result<(), Failure> {
    if let (Some(BenchTarget::Socket(path)), Some(disk)) = (&args.target, &args.disk) {
        let path = path.display();
        return Err(Failure::usage(format!("disk {disk}: the server at {path} has disks of its own; leave it away")));
    }
    if let (Some(BenchTarget::Socket(path)), Some(_)) = (&args.target, &args.poll) {
        let path = path.display();
        return Err(Failure::usage(format!(
            "--poll: the server at {path} was told when it was started; leave it away"
        )));
    }
    if args.limit && args.completion == CompletionArg::Interrupt {
        return Err(Failure::usage("--limit: the bare protocol polls; leave --completion interrupt away".to_owned()));
    }
    let null = matches!(args.disk, None | Some(DiskSpec::Null { .. })) && !is_socket(args);
    for (option, given) in [("--verify", args.verify), ("--precondition", args.precondition)] {
        if null && given {
            let why = "a null disk keeps nothing; name another, such as ram:256M";
            return Err(Failure::usage(format!("{option}: {why}")));
        }
    }
    Ok(())
}

fn is_socket(args: &BenchArgs) -> bool {
    matches!(args.target, Some(BenchTarget::Socket(_)))
}

/// A flag that the first Ctrl-C sets; the second one ends the program at once.
fn listen() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, so that the first signal finds the flag unset.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .map_err(|error| Failure::runtime(format!("cannot listen to signals: {error}")))?;
    }
    Ok(stop)
}

fn complaint(report: &Report) -> String {
    let faults: u64 = report.rows.iter().filter_map(|row| row.verify.as_ref()).map(|v| v.faults).sum();
    let errors: u64 = report.rows.iter().map(|row| row.errors).sum();
    let first = report.rows.iter().filter_map(|row| row.verify.as_ref()).find_map(|v| v.first.first());
    match first {
        Some(first) => format!("verify: {faults} blocks are not what was written, the first: {first}"),
        None => {
            let status = report.rows.iter().find_map(|row| row.first_error.as_deref()).unwrap_or("an unknown status");
            format!("the device failed {errors} commands, the first with {status}")
        }
    }
}

// ---- what is measured ---------------------------------------------------------------------------------------------------

/// The rows that are wanted: registers and shadow doorbells of one depth after each other, so that noise hits both.
fn points(args: &BenchArgs) -> Vec<Point> {
    let (depths, jobs): (&[u16], &[u16]) = match args.shape {
        None => (&DEPTHS, &[1]),
        Some(Shape::Y2015) => (&[64], &[2]),
        Some(Shape::Y2016) => (&[32], &[4]),
        Some(Shape::Y2019) => (&[16], &[4, 64]),
        Some(Shape::Y2022) => (&[1, 2, 4, 8], &[1]),
    };
    let depths = if args.iodepth.is_empty() { depths } else { &args.iodepth };
    let jobs = if args.numjobs.is_empty() { jobs } else { &args.numjobs };
    let kinds: &[DoorbellKind] = match args.doorbells {
        DoorbellArg::Register => &[DoorbellKind::Register],
        DoorbellArg::Shadow => &[DoorbellKind::Shadow],
        DoorbellArg::Mapped => &[DoorbellKind::Mapped],
        DoorbellArg::Both => &[DoorbellKind::Register, DoorbellKind::Shadow],
    };
    let mut points = Vec::new();
    for numjobs in jobs {
        for iodepth in depths {
            for doorbells in kinds {
                points.push(Point { iodepth: *iodepth, numjobs: *numjobs, doorbells: *doorbells });
            }
        }
    }
    points
}

fn workload(args: &BenchArgs) -> Result<Workload, Failure> {
    let default = match args.shape {
        _ if args.verify && args.rw.is_none() => RwArg::RandRw,
        Some(Shape::Y2015) => RwArg::Read,
        _ => RwArg::RandRead,
    };
    let block_bytes =
        usize::try_from(args.bs.0).map_err(|_| Failure::usage(format!("--bs {}: too large", args.bs.0)))?;
    Ok(Workload {
        rw: match args.rw.unwrap_or(default) {
            RwArg::Read => Rw::Read,
            RwArg::Write => Rw::Write,
            RwArg::RandRead => Rw::RandRead,
            RwArg::RandWrite => Rw::RandWrite,
            RwArg::Rw => Rw::Rw,
            RwArg::RandRw => Rw::RandRw,
        },
        block_bytes,
        size: args.size.map(|size| size.0),
        read_percent: args.rwmixread,
        submit_batch: args.iodepth_batch,
        completion: match args.completion {
            CompletionArg::Poll => CompletionMode::Poll,
            CompletionArg::Interrupt => CompletionMode::Interrupt,
        },
        runtime: args.runtime,
        ramp: (args.runtime / 10).min(Workload::default().ramp),
        verify: args.verify,
        ..Workload::default()
    })
}

/// A disk as people say it.
fn named(disk: &DiskSpec) -> String {
    match disk {
        DiskSpec::Null { size, zeroes: false } => format!("null disk of {}", human(*size)),
        DiskSpec::Null { size, zeroes: true } => format!("null disk of {} that reads as zeros", human(*size)),
        DiskSpec::Ram { size } => format!("disk of {} in memory", human(*size)),
        DiskSpec::Path(path) => path.display().to_string(),
    }
}

/// The rows, and why they are not all there. `Err` when there could not be any.
fn measure(args: &BenchArgs, stop: &AtomicBool) -> Result<(Report, Option<Failure>), Failure> {
    let points = points(args);
    let workload = workload(args)?;
    let queues = points.iter().map(|point| point.numjobs).max().unwrap_or(1);
    let deepest = points.iter().map(|point| point.iodepth).max().unwrap_or(1);
    let entries = (2 * u32::from(deepest)).next_power_of_two().clamp(1024, 4096);
    let disk = args.disk.clone().unwrap_or(DISK);
    let doorbells = match args.doorbells {
        DoorbellArg::Mapped => DoorbellsArg::Mapped,
        DoorbellArg::Register | DoorbellArg::Shadow | DoorbellArg::Both => DoorbellsArg::Auto,
    };
    let how = Service { poll: args.poll, doorbells };
    let (mut bench, target): (Bench<Box<dyn Target>>, String) = match &args.target {
        Some(BenchTarget::Socket(path)) => {
            (Bench::new(connect(path)?, Box::new(Foreign)), format!("the server at {}", path.display()))
        }
        Some(BenchTarget::InProcess) => {
            let local = Local::start(&disk, queues, entries, how)?;
            let transport: Arc<dyn Transport> = local.0.clone();
            (Bench::new(transport, Box::new(local)), format!("{}, controller and driver in one process", named(&disk)))
        }
        None => {
            let server = Server::start(&disk, queues, entries, how)?;
            let transport = connect(&server.socket())?;
            let target = format!("{}, served by a process of its own over a vfio-user socket", named(&disk));
            (Bench::new(transport, Box::new(server)), target)
        }
    };
    let mut report = Report {
        shadowbell: env!("CARGO_PKG_VERSION").to_owned(),
        command: command_line(),
        target,
        completion: workload.completion,
        machine: Machine::this(),
        rows: Vec::new(),
        notes: Vec::new(),
        interrupted: false,
    };
    if cfg!(debug_assertions) {
        report.notes.push("built without optimisation: for figures that count, use `cargo run --release`".to_owned());
    }
    let failure = rows(args, &mut bench, &workload, &points, stop, &mut report).err();
    report.interrupted = stop.load(Ordering::Relaxed);
    report.machine.after();
    report.conclude();
    Ok((report, failure))
}

fn rows(
    args: &BenchArgs,
    bench: &mut Bench<Box<dyn Target>>,
    workload: &Workload,
    points: &[Point],
    stop: &AtomicBool,
    report: &mut Report,
) -> Result<(), Failure> {
    if args.precondition {
        let bar = bar(1);
        bar.set_message("writing the disk");
        let written = bench.precondition(workload, stop, &mut |progress| bar.set_position(steps(progress.fraction)));
        bar.finish_and_clear();
        written.map_err(|error| Failure::runtime(format!("--precondition: {error}")))?;
    }
    let bar = bar(points.len());
    for (index, point) in points.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let limit = args.limit && point.doorbells != DoorbellKind::Register && point.numjobs == 1;
        let before = if limit { Some(bare(point, args, stop)?) } else { None };
        bar.set_message(format!("depth {}, {} job(s), {}", point.iodepth, point.numjobs, point.doorbells));
        let measured = bench.measure(workload, *point, stop, &mut |progress| {
            bar.set_position(index as u64 * STEPS + steps(progress.fraction));
        });
        match measured {
            Ok(Some(mut row)) => {
                if let Some(before) = before {
                    bar.set_message(format!("depth {}, the bare protocol", point.iodepth));
                    row.limit_iops = Some(f64::midpoint(before, bare(point, args, stop)?));
                }
                report.push(row);
            }
            Ok(None) if stop.load(Ordering::Relaxed) => {}
            Ok(None) => {
                let kind = match point.doorbells {
                    DoorbellKind::Register => {
                        "doorbell registers that are not mapped (it was started with --doorbells mapped)"
                    }
                    DoorbellKind::Shadow => {
                        "shadow doorbells (it was started with --doorbells mapped or register, or is not shadowbell)"
                    }
                    DoorbellKind::Mapped => "mapped doorbells (it was not started with --doorbells mapped)",
                };
                if args.doorbells != DoorbellArg::Both {
                    bar.finish_and_clear();
                    return Err(Failure::runtime(format!("the device has no {kind}; use another --doorbells")));
                }
                let note = format!("the device has no {kind}: only the others were measured");
                if !report.notes.contains(&note) {
                    report.notes.push(note);
                }
            }
            Err(error) => {
                bar.finish_and_clear();
                let place = format!("depth {}, {} job(s), {}", point.iodepth, point.numjobs, point.doorbells);
                return Err(match error {
                    BenchError::Workload(why) => Failure::usage(why),
                    error => Failure::runtime(format!("{place}: {error}")),
                });
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The rate of the bare protocol for half the time of a row. It is measured on both sides of the row, since what a virtual
/// machine's processors are to each other can change from one second to the next.
fn bare(point: &Point, args: &BenchArgs, stop: &AtomicBool) -> Result<f64, Failure> {
    shadowbell_bench::limit::bare(point.iodepth, args.iodepth_batch, args.runtime / 2, stop)
        .map_err(|error| Failure::runtime(format!("cannot start a thread for the bare protocol: {error}")))
}

/// Steps of the bar for a row.
const STEPS: u64 = 100;

fn steps(fraction: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A fraction of 100.
    let steps = (fraction.clamp(0.0, 1.0) * 100.0) as u64;
    steps
}

/// A bar on a terminal; nothing where standard error is none.
fn bar(rows: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(rows as u64 * STEPS), ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3}%  {eta:>4} left  {msg}") {
        bar.set_style(style);
    }
    bar
}

/// The command line as it was typed, or nearly so.
fn command_line() -> String {
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    format!("shadowbell {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(words: &[&str]) -> BenchArgs {
        match Cli::try_parse_from(["shadowbell", "bench"].iter().chain(words)).unwrap().command {
            Command::Bench(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn registers_and_shadow_doorbells_alternate() {
        let points = points(&args(&[]));
        assert_eq!(points.len(), 16);
        assert!(points.chunks(2).all(|pair| pair[0].iodepth == pair[1].iodepth
            && pair[0].doorbells == DoorbellKind::Register
            && pair[1].doorbells == DoorbellKind::Shadow));
    }

    #[test]
    fn shapes_are_the_published_ones_and_options_go_before_them() {
        let shape = |words: &[&str]| {
            let args = args(words);
            let points = points(&args).iter().map(|p| (p.iodepth, p.numjobs)).collect::<Vec<_>>();
            (workload(&args).unwrap().rw, points)
        };
        let only = ["--doorbells", "shadow", "--shape"];
        let with = |more: &[&str]| shape(&[&only, more].concat());
        assert_eq!(with(&["2015"]), (Rw::Read, vec![(64, 2)]));
        assert_eq!(with(&["2016"]), (Rw::RandRead, vec![(32, 4)]));
        assert_eq!(with(&["2019"]), (Rw::RandRead, vec![(16, 4), (16, 64)]));
        assert_eq!(with(&["2022"]), (Rw::RandRead, vec![(1, 1), (2, 1), (4, 1), (8, 1)]));
        assert_eq!(with(&["2016", "--rw", "write", "--numjobs", "1"]), (Rw::Write, vec![(32, 1)]));
    }
}
