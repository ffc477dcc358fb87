//! `xtask vm`: one guest with one disk, one script.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::fault::{Context, Result, ensure};
use crate::process;
use crate::qemu::{Disk, Firmware, Guest, GuestConfig};
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};
use crate::server::{self, Server};
use crate::workdir;

/// Status when the time limit passed, and when the script was never started.
const TIMED_OUT: u8 = 124;
const NEVER_STARTED: u8 = 125;

/// Options of `xtask vm`.
#[derive(Args, Debug)]
pub(crate) struct VmArgs {
    /// Shell script to run in the guest
    script: PathBuf,
    /// Disk to serve, as for `shadowbell serve`; more make more namespaces [default: null:64G]
    #[arg(long, value_name = "SPEC")]
    disk: Vec<String>,
    /// Stock kernel of the guest
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Kernel,
    /// Memory of the guest, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// Processors of the guest
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Seconds after which the guest is ended (status 124)
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
    /// More arguments for `shadowbell serve`
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    serve_arg: Vec<String>,
    /// More arguments for QEMU
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu_arg: Vec<String>,
    /// More kernel arguments
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// File for the guest, and its place there [default place: /usr/bin]
    #[arg(long, value_name = "HOST[:GUEST]")]
    file: Vec<String>,
    /// Boot from the disk by this firmware; without --disk a bootable one is served
    #[arg(long, value_enum, default_value = "none")]
    firmware: Firmware,
    /// How QEMU runs the guest
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accel,
    /// Use QEMU's own nvme device on a null drive, with these properties for it
    #[arg(long, value_name = "PROPERTIES", num_args = 0..=1, default_missing_value = "", require_equals = true,
          conflicts_with_all = ["disk", "serve_arg"])]
    qemu_nvme: Option<String>,
}

/// Runs the guest; the result is the exit status for this process.
pub(crate) fn run(args: VmArgs) -> Result<u8> {
    let script = std::fs::read_to_string(&args.script).context(args.script.display())?;
    let files = args.file.iter().map(|spec| file_spec(spec)).collect::<Result<Vec<_>>>()?;
    let rig = Rig::ready()?;
    let dir = workdir()?;
    let boots_from_disk = args.firmware != Firmware::None;
    let mut config = GuestConfig {
        kernel: args.kernel,
        accel: args.accel.resolve(&rig)?,
        firmware: args.firmware,
        memory_mib: args.memory,
        cpus: args.cpus,
        append: args.append,
        files,
        script,
        qemu_args: args.qemu_arg,
        echo: true,
        ..GuestConfig::default()
    };
    let mut disks = args.disk;
    let image = dir.path().join("boot.img");
    if boots_from_disk && disks.is_empty() {
        std::fs::copy(rig.boot_disk(), &image).context(image.display())?;
        disks.push(image.to_string_lossy().into_owned());
    } else if disks.is_empty() {
        disks.push("null:64G".to_owned());
    }
    let server = match args.qemu_nvme {
        Some(properties) => {
            let drive = if boots_from_disk { image } else { "null".into() };
            config.disk = Disk::Qemu { drives: vec![drive], properties };
            None
        }
        None => {
            let program = server::build()?;
            let server = Server::start(&program, &disks, &args.serve_arg, dir.path(), "server")?;
            config.disk = server.disk();
            Some(server)
        }
    };
    let mut guest = Guest::boot(&rig, &config, dir.path(), "guest")?;
    let outcome = guest.finish(Duration::from_secs(args.timeout))?;
    if let Some(seconds) = guest.boot_seconds {
        eprintln!("xtask: the guest was ready after {seconds:.1} s");
    }
    if !outcome.ready {
        eprintln!("xtask: the guest never started the script; the end of its console:");
        eprint!("{}", process::tail(&dir.path().join("guest.log"), 20));
    }
    if let Some(server) = server {
        let (lines, _) = server.stop()?;
        eprintln!("xtask: what shadowbell said:");
        for line in lines {
            eprintln!("    {line}");
        }
    }
    Ok(match outcome.status {
        _ if outcome.timed_out => {
            eprintln!("xtask: not done after {} s", args.timeout);
            TIMED_OUT
        }
        Some(status) => status,
        None => NEVER_STARTED,
    })
}

/// `HOST` or `HOST:GUEST`.
fn file_spec(spec: &str) -> Result<(PathBuf, String)> {
    let (host, guest) = spec.split_once(':').map_or((spec, None), |(host, guest)| (host, Some(guest)));
    let host = PathBuf::from(host);
    ensure!(host.is_file(), "--file {spec}: {} is no file", host.display());
    let name = host.file_name().context("--file")?.to_string_lossy();
    let guest = guest.map_or_else(|| format!("usr/bin/{name}"), str::to_owned);
    Ok((host, guest))
}
