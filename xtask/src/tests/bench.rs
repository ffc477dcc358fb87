//! What a test starts: servers and guests, with their logs in one directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::fault::{Context, Result, bail, ensure};
use crate::process;
use crate::qemu::{Disk, Guest, GuestConfig};
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};
use crate::server::Server;
use crate::stats::Stats;
use crate::workdir;

const PRELUDE: &str = include_str!("../../guest/tests/prelude.sh");

/// Limit for a guest's boot and a script of some seconds; ten times what is usual.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// One test's surroundings.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) rig: Rig,
    /// `None`: QEMU's own device is under test.
    program: Option<PathBuf>,
    kernel: Kernel,
    accel: Accel,
    dir: TempDir,
    guests: u32,
    servers: u32,
}

impl Bench {
    pub(super) fn new(rig: &Rig, program: Option<PathBuf>, kernel: Kernel, accel: Accel) -> Result<Self> {
        Ok(Self { rig: rig.clone(), program, kernel, accel, dir: workdir()?, guests: 0, servers: 0 })
    }

    /// shadowbell is under test.
    pub(super) fn is_ours(&self) -> bool {
        self.program.is_some()
    }

    /// An empty raw image of `mib` MiB.
    pub(super) fn image(&self, name: &str, mib: u64) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        File::create(&path).and_then(|file| file.set_len(mib << 20)).context(path.display())?;
        Ok(path)
    }

    /// Starts the server (or names QEMU's device) for these disks.
    pub(super) fn serve(&mut self, disks: &[&Path], args: &[&str]) -> Result<Served> {
        self.servers += 1;
        let Some(program) = &self.program else {
            return Ok(Served { server: None, disk: reference(disks, args)? });
        };
        let disks: Vec<String> = disks.iter().map(|disk| disk.to_string_lossy().into_owned()).collect();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let server = Server::start(program, &disks, &args, self.dir.path(), &format!("server-{}", self.servers))?;
        Ok(Served { disk: server.disk(), server: Some(server) })
    }

    /// A guest of the usual kind with a test script.
    pub(super) fn config(&self, served: &Served, script: &str) -> GuestConfig {
        GuestConfig {
            kernel: self.kernel,
            accel: self.accel,
            disk: served.disk.clone(),
            script: format!("{PRELUDE}{script}"),
            ..GuestConfig::default()
        }
    }

    pub(super) fn boot(&mut self, config: &GuestConfig) -> Result<Guest> {
        self.guests += 1;
        Guest::boot(&self.rig, config, self.dir.path(), &format!("guest-{}", self.guests))
    }

    /// Boots a guest of the usual kind and reads to its good end.
    pub(super) fn run(&mut self, served: &Served, script: &str, limit: Duration) -> Result<Guest> {
        let config = self.config(served, script);
        let mut guest = self.boot(&config)?;
        guest.succeed(limit)?;
        Ok(guest)
    }

    /// Names and last lines of all logs that hold something.
    pub(super) fn log_tails(&self) -> Vec<(String, String)> {
        let Ok(entries) = fs::read_dir(self.dir.path()) else { return Vec::new() };
        let mut tails: Vec<(String, String)> = entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let text = process::tail(&self.dir.path().join(&name), 25);
                (name.ends_with(".log") && !text.is_empty()).then_some((name, text))
            })
            .collect();
        tails.sort();
        tails
    }
}

/// A disk that guests can be given.
#[derive(Debug)]
pub(super) struct Served {
    server: Option<Server>,
    disk: Disk,
}

impl Served {
    /// Claims about our own doings can be checked.
    pub(super) fn is_ours(&self) -> bool {
        self.server.is_some()
    }

    /// Fresh statistics; `None` from QEMU's own device.
    pub(super) fn stats(&mut self) -> Result<Option<Stats>> {
        self.server.as_mut().map(Server::stats).transpose()
    }

    /// Ends the server, which must go well, with no command failed without reason.
    pub(super) fn stop(self) -> Result<Option<Stats>> {
        let Some(server) = self.server else { return Ok(None) };
        let (_, stats) = server.stop()?;
        ensure!(stats.totals.errors == 0, "the I/O queues count {} errors", stats.totals.errors);
        Ok(Some(stats))
    }
}

/// QEMU's own device with the like of our options.
fn reference(disks: &[&Path], args: &[&str]) -> Result<Disk> {
    let drives = disks
        .iter()
        .map(|disk| if disk.starts_with("null:64G") { "null".into() } else { disk.to_path_buf() })
        .collect();
    let properties = match args {
        [] => String::new(),
        // Mapped registers are registers all the same.
        ["--doorbells", "register" | "mapped"] => "dbcs=off".to_owned(),
        ["--queue-depth", depth] => format!("mqes={}", depth.parse::<u32>().context("--queue-depth")? - 1),
        _ => bail!("QEMU's device has no equal of {args:?}"),
    };
    Ok(Disk::Qemu { drives, properties })
}
