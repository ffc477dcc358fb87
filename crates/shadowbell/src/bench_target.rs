//! What the bench and `identify` drive: a server of their own, one that runs already, or a controller in this process.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use controller::{Config, NvmeFunction, Report};
use driver::{InProcess, Transport, VfioUser};
use pci::PollMode;
use rustix::process::{Pid, Signal, kill_process};
use shadowbell_bench::{BenchError, DeviceCounters, Target};
use vfio_user::ClientOptions;

use crate::{
    cli::{Cli, Command as CliCommand, DoorbellsArg, Poll, ServeArgs},
    disk::DiskSpec,
    output::Failure,
};

/// A server of our own listens, and answers a signal, within this time.
const SERVER_TIME: Duration = Duration::from_secs(20);
/// It ends within this time, or is killed.
const END_TIME: Duration = Duration::from_secs(5);
/// A connection to a server is set up in this time.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// How often something is looked at that is waited for.
const LOOK: Duration = Duration::from_millis(2);

/// The arguments of `serve` for a disk, with all defaults.
fn serve_args(disk: &DiskSpec) -> Result<ServeArgs, Failure> {
    let words = ["shadowbell", "serve", "--socket", "none", "--"].map(OsString::from);
    let words = words.into_iter().chain([argument(disk)]);
    match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(CliCommand::Serve(args)) => Ok(args),
        _ => Err(Failure::usage(format!("{disk} is no disk"))),
    }
}

/// A disk as an argument.
fn argument(disk: &DiskSpec) -> OsString {
    match disk {
        // `null:1G` in the current directory.
        DiskSpec::Path(path) if path.is_relative() => Path::new(".").join(path).into(),
        DiskSpec::Path(path) => path.clone().into(),
        other => other.to_string().into(),
    }
}

/// Totals of the statistics, by name: those of a server of another build are read as far as they are known.
fn counters(totals: &serde_json::Value) -> Option<DeviceCounters> {
    let get = |name: &str| totals.get(name).and_then(serde_json::Value::as_u64);
    Some(DeviceCounters {
        commands: get("commands")?,
        register_writes: get("sq_doorbell_writes")? + get("cq_doorbell_writes")?,
        interrupts: get("interrupts")?,
        wakeups: get("wakeups")?,
    })
}

/// Connects to a server, within a limited time whatever the server does.
pub(crate) fn connect(path: &Path) -> Result<Arc<dyn Transport>, Failure> {
    let (sender, receiver) = mpsc::channel();
    let socket = path.to_owned();
    // A server that does not accept can block the connecting itself; then the thread stays behind.
    std::thread::Builder::new()
        .name("connect".into())
        .spawn(move || {
            let _ = sender.send(VfioUser::connect(&socket, ClientOptions::default()));
        })
        .map_err(|error| Failure::runtime(format!("cannot start a thread: {error}")))?;
    let name = path.display();
    match receiver.recv_timeout(CONNECT_TIME) {
        Ok(Ok(transport)) => Ok(Arc::new(transport)),
        Ok(Err(error)) => Err(Failure::runtime(format!(
            "socket {name}: {error}; is `shadowbell serve --socket {name}` running, and no other client connected?"
        ))),
        Err(_) => Err(Failure::runtime(format!(
            "socket {name}: the server does not answer; it may be busy with another client, or stopped"
        ))),
    }
}

/// A server that runs already. It cannot be asked for its counters.
#[derive(Debug)]
pub(crate) struct Foreign;

impl Target for Foreign {
    fn counters(&mut self) -> Result<Option<DeviceCounters>, BenchError> {
        Ok(None)
    }

    fn check(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

/// How a device of our own is to be served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Service {
    /// As for `serve`; its default for `None`.
    pub(crate) poll: Option<Poll>,
    /// As for `serve`.
    pub(crate) doorbells: DoorbellsArg,
}

/// The controller in this process.
#[derive(Debug)]
pub(crate) struct Local(pub(crate) Arc<InProcess<NvmeFunction>>);

impl Local {
    /// Serves `disk` in this process.
    pub(crate) fn start(disk: &DiskSpec, queues: u16, entries: u32, how: Service) -> Result<Self, Failure> {
        let args = serve_args(disk)?;
        let mut config = Config::new("SBBENCH", vec![disk.open(&args)?]);
        config.io_queues = queues;
        config.queue_entries = entries;
        config.doorbells = how.doorbells.mode();
        let function = NvmeFunction::new(config).map_err(|error| Failure::runtime(format!("disk {disk}: {error}")))?;
        let poll = how.poll.map_or(PollMode::Auto, PollMode::from);
        let transport = InProcess::spawn_with(function, poll).map_err(|error| Failure::runtime(error.to_string()))?;
        Ok(Self(Arc::new(transport)))
    }
}

impl Target for Local {
    fn counters(&mut self) -> Result<Option<DeviceCounters>, BenchError> {
        let report: Report = self
            .0
            .with(|function| function.report())
            .map_err(|error| BenchError::Target(format!("the device's thread: {error}")))?;
        Ok(serde_json::to_value(&report.totals).ok().as_ref().and_then(counters))
    }

    fn check(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

/// A server in a process of its own, which ends with this value.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    ended: Option<ExitStatus>,
    directory: tempfile::TempDir,
}

impl Server {
    /// Starts `shadowbell serve` for `disk` and waits until it listens.
    pub(crate) fn start(disk: &DiskSpec, queues: u16, entries: u32, how: Service) -> Result<Self, Failure> {
        let runtime = |what: &str, error: std::io::Error| Failure::runtime(format!("{what}: {error}"));
        let program = std::env::current_exe().map_err(|error| runtime("cannot find this program", error))?;
        let directory = tempfile::Builder::new()
            .prefix("shadowbell-bench-")
            .tempdir()
            .map_err(|error| runtime(&format!("temporary directory in {}", std::env::temp_dir().display()), error))?;
        let at = |name: &str| directory.path().join(name);
        let log = fs::File::create(at("log")).map_err(|error| runtime("the server's log", error))?;
        let child = Command::new(program)
            .arg("serve")
            .args(["--socket".into(), at("socket"), "--stats-file".into(), at("stats.json")])
            .args(["--queues".to_owned(), queues.to_string(), "--queue-depth".to_owned(), entries.to_string()])
            .args(["--end-with-parent".to_owned(), std::process::id().to_string()])
            .args(how.poll.and_then(|poll| poll.to_possible_value()).map(|poll| format!("--poll={}", poll.get_name())))
            .args(how.doorbells.to_possible_value().map(|mode| format!("--doorbells={}", mode.get_name())))
            .arg("--")
            .arg(argument(disk))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C is for the bench, which then ends the server.
            .process_group(0)
            .spawn()
            .map_err(|error| runtime("cannot start the server", error))?;
        let mut this = Self { child, ended: None, directory };
        // The statistics are written once it listens.
        let statistics = this.directory.path().join("stats.json");
        let listens = this.wait_for("it does not listen", || fs::exists(&statistics).unwrap_or(false).then_some(()));
        match listens {
            Ok(()) => Ok(this),
            // What is wrong with its arguments is wrong with ours.
            Err(_) if this.ended.is_some_and(|status| status.code() == Some(2)) => {
                Err(Failure::usage(this.last_words()))
            }
            Err(error) => Err(Failure::runtime(error.to_string())),
        }
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Looks for something that the server does, until it is there, the server is gone, or the time is over.
    fn wait_for<R>(&mut self, failure: &str, mut look: impl FnMut() -> Option<R>) -> Result<R, BenchError> {
        let deadline = Instant::now() + SERVER_TIME;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            self.check()?;
            if Instant::now() >= deadline {
                let pid = self.child.id();
                return Err(BenchError::Target(format!(
                    "the server (process {pid}): {failure} within {SERVER_TIME:?}"
                )));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The last words of the server.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        line.trim().trim_start_matches("shadowbell: ").to_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn end(&mut self) {
        if self.ended.is_some() {
            return;
        }
        // The process is not waited for yet: the number is still its own.
        let _ = kill_process(self.pid(), Signal::TERM);
        let deadline = Instant::now() + END_TIME;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.ended = Some(status);
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        self.ended = self.child.wait().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Target for Server {
    fn counters(&mut self) -> Result<Option<DeviceCounters>, BenchError> {
        let path = self.directory.path().join("stats.json");
        let failed = |error: std::io::Error| BenchError::Target(format!("statistics {}: {error}", path.display()));
        // It is replaced as a whole: when it is there again, it is new.
        fs::remove_file(&path).map_err(failed)?;
        self.check()?;
        kill_process(self.pid(), Signal::USR1).map_err(|errno| failed(errno.into()))?;
        let text = self.wait_for("it writes no statistics", || fs::read(&path).ok())?;
        let report: serde_json::Value = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        // It serves one device.
        Ok(report.pointer("/devices/0/totals").and_then(counters))
    }

    fn check(&mut self) -> Result<(), BenchError> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap_or(None);
        }
        match self.ended {
            None => Ok(()),
            Some(status) => Err(BenchError::Target(format!("the server has ended ({status}): {}", self.last_words()))),
        }
    }
}
