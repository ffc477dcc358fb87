//! Child processes that never outlive the task that started them.
//!
//! Each child is started through `setpriv --pdeathsig KILL`, so the kernel ends it
//! even when this process is killed outright; in the ordinary case [`Process`]
//! ends it on drop. Children must be started from the main thread: the kernel's
//! parent-death signal follows the thread, not the process.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fault::{Context, Fault, Result, bail};

/// How often waiting loops look again.
pub(crate) const POLL: Duration = Duration::from_millis(20);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Turns SIGINT and SIGTERM into a flag that every wait looks at; the second signal ends at once.
pub(crate) fn catch_signals() -> Result<()> {
    let flag = Arc::clone(INTERRUPTED.get_or_init(Arc::default));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag)).context("signal handler")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("signal handler")?;
    }
    Ok(())
}

/// The user asked to stop.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails once the user asked to stop.
pub(crate) fn check_interrupt() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Waits until `ready` gives a value; `None` when `limit` passes first.
pub(crate) fn wait_until<T>(limit: Duration, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready()? {
            return Ok(Some(value));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        check_interrupt()?;
        std::thread::sleep(POLL);
    }
}

/// A running child, ended on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command` with piped stdin and stdout; stderr goes to the file `log`.
    pub(crate) fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let log = File::create(log).context(log.display())?;
        let mut guarded = Command::new("setpriv");
        guarded.args(["--pdeathsig", "KILL", "--"]);
        guarded.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(key, value),
                None => guarded.env_remove(key),
            };
        }
        let child = guarded
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context(format!("cannot start {name} (through setpriv of util-linux)"))?;
        Ok(Self { child, name: name.to_owned() })
    }

    pub(crate) fn take_stdout(&mut self) -> Result<ChildStdout> {
        self.child.stdout.take().context("stdout already taken")
    }

    pub(crate) fn take_stdin(&mut self) -> Result<ChildStdin> {
        self.child.stdin.take().context("stdin already taken")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).context(format!("signal to {}", self.name))
    }

    pub(crate) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The exit status, or `None` when the child still runs after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        wait_until(limit, || Ok(self.child.try_wait()?))
    }

    /// Ends the child at once and reaps it.
    pub(crate) fn kill(&mut self) {
        // Both fail only when the child has been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// CPU time that the child has used so far, in microseconds (10 ms resolution).
    pub(crate) fn cpu_us(&self) -> Result<u64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).context(&path)?;
        // utime and stime are fields 14 and 15; the name (2) may hold spaces.
        let after = text.rsplit_once(')').context("odd /proc stat line")?.1;
        let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Ok(ticks * 1_000_000 / rustix::param::clock_ticks_per_second())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Words for how a child ended.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "unknown end".to_owned(),
    }
}

/// Last `lines` lines of a text file, indented; empty when there is none.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let Ok(bytes) = fs::read(path) else { return String::new() };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all[from..].iter().map(|line| format!("    {line}\n")).collect()
}

/// Runs a command to its end with its output in `log`; a failure shows the log's tail.
pub(crate) fn run_logged(command: &mut Command, log: &Path, what: &str) -> Result<()> {
    let file = File::options().create(true).append(true).open(log).context(log.display())?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .context(format!("{what}: cannot run {}", command.get_program().display()))?;
    check_interrupt()?;
    if !status.success() {
        let tail = tail(log, 20);
        bail!("{what}: {}; the end of {}:\n{tail}", describe(status), log.display());
    }
    Ok(())
}

/// Runs a command and gives its standard output; a failure shows its standard error.
pub(crate) fn output(command: &mut Command, what: &str) -> Result<Vec<u8>> {
    let result = command
        .stdin(Stdio::null())
        .output()
        .context(format!("{what}: cannot run {}", command.get_program().display()))?;
    if result.status.success() {
        Ok(result.stdout)
    } else {
        let stderr = String::from_utf8_lossy(&result.stderr);
        Err(Fault::new(format!("{what}: {}: {}", describe(result.status), stderr.trim())))
    }
}
