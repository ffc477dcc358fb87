//! `shadowbell`: a virtual NVMe disk in a process of its own.
#![forbid(unsafe_code)]

mod bench;
mod bench_target;
mod cli;
mod crew;
mod device_args;
mod disk;
mod identify;
mod identify_fields;
mod output;
mod serve;
mod signals;
mod worker_arg;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::{
    cli::{Cli, Command, ServeArgs},
    output::Failure,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    // A client that cuts its memory file short must not take the process with it.
    dma::sigbus::install();
    let result = match cli.command {
        Command::Serve(args) => end_with_parent(&args).and_then(|()| serve::run(&args)).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench::run(&args),
        Command::Identify(args) => identify::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(Failure::report)
}

/// The server of a bench goes when the bench goes, whatever ends that.
fn end_with_parent(args: &ServeArgs) -> Result<(), Failure> {
    let Some(parent) = args.end_with_parent else { return Ok(()) };
    let signal = rustix::process::Signal::TERM;
    rustix::process::set_parent_process_death_signal(Some(signal))
        .map_err(|errno| Failure::runtime(format!("cannot ask to be ended with process {parent}: {errno}")))?;
    let now = rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid);
    if now == parent { Ok(()) } else { Err(Failure::runtime(format!("process {parent} is gone already"))) }
}
