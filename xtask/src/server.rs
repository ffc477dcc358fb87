//! A running `shadowbell serve`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use rustix::process::Signal;

use crate::fault::{Context, Result, bail, ensure};
use crate::process::{self, Process, wait_until};
use crate::qemu::Disk;
use crate::stats::Stats;

const START_LIMIT: Duration = Duration::from_secs(20);
const STATS_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Builds the program (release) and gives its path. `SHADOWBELL_PROGRAM` names one that is built already.
pub(crate) fn build() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("SHADOWBELL_PROGRAM") {
        return Ok(program.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--release",
        "-p",
        "shadowbell",
        "--message-format=json-render-diagnostics",
        "--manifest-path",
    ]);
    command.arg(manifest).stdin(Stdio::null()).stderr(Stdio::inherit());
    let result = command.output().context("cannot run cargo")?;
    ensure!(result.status.success(), "cargo build --release -p shadowbell failed");
    for line in result.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line).context("cargo's messages")?;
        if message["target"]["name"] == "shadowbell"
            && let Some(path) = message["executable"].as_str()
        {
            return Ok(PathBuf::from(path));
        }
    }
    bail!("package shadowbell has no program of that name")
}

/// A server with its own socket and statistics file; ended on drop.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    lines: Receiver<String>,
    log: File,
    socket: PathBuf,
    stats_file: PathBuf,
    namespaces: usize,
    /// Lines that it printed so far.
    output: Vec<String>,
}

impl Server {
    /// Starts the server; returns once it listens. Its logs in `dir` begin with `name`.
    pub(crate) fn start(program: &Path, disks: &[String], args: &[String], dir: &Path, name: &str) -> Result<Self> {
        let socket = dir.join(format!("{name}.sock"));
        let stats_file = dir.join(format!("{name}.stats.json"));
        let mut command = Command::new(program);
        command.arg("serve").arg("--socket").arg(&socket).args(disks);
        command.arg("--stats-file").arg(&stats_file).args(args);
        let error_log = dir.join(format!("{name}.err.log"));
        let mut process = Process::start("shadowbell", &command, &error_log)?;
        let log_path = dir.join(format!("{name}.log"));
        let log = File::create(&log_path).context(log_path.display())?;
        let stdout = process.take_stdout()?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(|line| line.ok()) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self { process, lines, log, socket, stats_file, namespaces: disks.len(), output: Vec::new() };
        let listening = wait_until(START_LIMIT, || {
            server.read_lines();
            if server.output.iter().any(|line| line.contains("listening")) {
                return Ok(Some(()));
            }
            if let Some(status) = server.process.exited()? {
                let tail = process::tail(&error_log, 10);
                bail!("shadowbell serve ended at its start ({}):\n{tail}", process::describe(status));
            }
            Ok(None)
        })?;
        listening.context("shadowbell serve did not say that it is listening")?;
        Ok(server)
    }

    /// This server as a guest's disk.
    pub(crate) fn disk(&self) -> Disk {
        Disk::Shadowbell { socket: self.socket.clone(), namespaces: self.namespaces }
    }

    /// The socket for the VMM.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops the process where it is, until [`Server::resume`].
    pub(crate) fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets a paused server go on; does nothing to any other.
    pub(crate) fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Asks for fresh statistics (SIGUSR1) and waits until the file has been replaced.
    pub(crate) fn stats(&mut self) -> Result<Stats> {
        let before = identity(&self.stats_file);
        self.process.signal(Signal::USR1)?;
        let fresh = wait_until(STATS_LIMIT, || {
            if let Some(status) = self.process.exited()? {
                bail!("shadowbell serve ended by itself: {}", process::describe(status));
            }
            let now = identity(&self.stats_file);
            Ok((now.is_some() && now != before).then_some(()))
        })?;
        fresh.context("no new statistics file after SIGUSR1")?;
        self.read_stats()
    }

    /// SIGTERM: must end it with status 0 and leave no socket. Gives what it printed and its last statistics.
    pub(crate) fn stop(mut self) -> Result<(Vec<String>, Stats)> {
        self.process.signal(Signal::TERM)?;
        let Some(status) = self.process.wait(STOP_LIMIT)? else {
            bail!("shadowbell serve still runs {} s after SIGTERM", STOP_LIMIT.as_secs());
        };
        // The reader thread ends with the pipe; wait for its last line.
        while let Ok(line) = self.lines.recv() {
            self.take_line(line);
        }
        ensure!(status.success(), "shadowbell serve ended with {} at SIGTERM", process::describe(status));
        ensure!(!self.socket.exists(), "shadowbell serve left its socket behind");
        let stats = self.read_stats()?;
        Ok((std::mem::take(&mut self.output), stats))
    }

    pub(crate) fn cpu_us(&self) -> Result<u64> {
        self.process.cpu_us()
    }

    fn read_stats(&self) -> Result<Stats> {
        let text = fs::read_to_string(&self.stats_file).context(self.stats_file.display())?;
        Stats::parse(&text).context("statistics file")
    }

    fn read_lines(&mut self) {
        loop {
            match self.lines.try_recv() {
                Ok(line) => self.take_line(line),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    fn take_line(&mut self, line: String) {
        // The log serves only a failure's report.
        let _ = writeln!(self.log, "{line}");
        self.output.push(line);
    }
}

/// What changes when a file is replaced.
fn identity(path: &Path) -> Option<(u64, i64, i64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec()))
}
