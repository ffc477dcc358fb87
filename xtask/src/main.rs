//! Tasks of the project: the VM rig and its tests, the comparison, the licence check.
//!
//! `cargo xtask help` lists them. Nothing here is part of the product.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "these tasks talk to a person")]

mod compare;
mod cpio;
mod demo;
mod fault;
mod licences;
mod process;
mod qemu;
mod rig;
mod server;
mod stats;
mod tests;
mod vm;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use fault::{Context as _, Result};

/// Tasks of the shadowbell project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Set up the VM rig (root, Debian; about two minutes, once)
    Rig,
    /// Boot a guest with a shadowbell disk and run a script in it
    Vm(vm::VmArgs),
    /// Run the VM tests: stock guests on shadowbell disks
    VmTests(tests::VmTestsArgs),
    /// Show the main job: serve disks, boot a guest on them, count doorbell writes
    Demo(demo::DemoArgs),
    /// Check licences, sources and bans of all dependencies
    Licences,
    /// Run one fio job in one guest on QEMU's disks and on shadowbell's, and compare
    Compare(compare::CompareArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = process::catch_signals().and_then(|()| run(cli.task));
    match result {
        Ok(status) => ExitCode::from(status),
        Err(fault) => {
            eprintln!("xtask: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<u8> {
    match task {
        Task::Rig => {
            let rig = rig::Rig::ready()?;
            eprintln!("rig: ready ({})", rig.qemu_version()?);
            Ok(0)
        }
        Task::Vm(args) => vm::run(args),
        Task::Demo(args) => demo::run(&args),
        Task::Licences => licences::run(),
        Task::Compare(args) => compare::run(&args),
        Task::VmTests(args) => tests::run(&args),
    }
}

/// A directory for sockets, logs and images of one run, removed at its end.
fn workdir() -> Result<tempfile::TempDir> {
    workdir_in(&std::env::temp_dir())
}

/// The same below `parent`.
fn workdir_in(parent: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("shadowbell-").tempdir_in(parent).context(parent.display())
}
