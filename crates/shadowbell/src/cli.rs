//! The command line.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use controller::{Config, DoorbellMode, PciId};
use pci::PollMode;

use crate::{device_args::DeviceArgs, disk::DiskSpec, worker_arg::WorkersArg};

/// A virtual NVMe disk for QEMU and Cloud Hypervisor, in a process of its own.
///
/// The guest drives it with its in-box NVMe driver. Where that driver knows shadow doorbells (Linux does), I/O under load
/// leaves the guest no more for doorbells.
#[derive(Debug, Parser)]
#[command(name = "shadowbell", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Bench(BenchArgs),
    Identify(IdentifyArgs),
}

/// Serve disks to virtual machines over vfio-user sockets.
///
/// Each --socket is one NVMe controller, for one virtual machine at a time, and each DISK a namespace of it: the first is
/// nvme0n1 in a Linux guest, the second nvme0n2, and so on. With several sockets, the disks of each follow it. The exact
/// arguments for the VMM are printed at start. SIGUSR1 prints statistics; SIGTERM or Ctrl-C ends the server cleanly.
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES:\n  \
    shadowbell serve --socket /run/vm1.sock disk.img\n  \
    shadowbell serve --socket /run/vm1.sock --create 20G new.img\n  \
    shadowbell serve --socket /tmp/fast.sock null:64G ram:1G\n  \
    shadowbell serve --workers 2-3 --socket /run/vm1.sock a.img b.img --socket /run/vm2.sock c.img\n\n\
    EXIT STATUS: 0 after a clean end, 1 when something could not be opened or failed, 2 for wrong arguments.\n\
    LOGS go to standard error; RUST_LOG=debug (or trace, warn, ...) says how many.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    /// Refuse writes. Several servers may then share an image.
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Create image files that do not exist, sparse, with this size.
    #[arg(long, value_name = "SIZE", conflicts_with = "read_only")]
    pub(crate) create: Option<Size>,

    /// Bytes of a block: 512 or 4096. Default: 512, for block devices their own.
    #[arg(long, value_name = "BYTES", value_parser = block_size)]
    pub(crate) block_size: Option<u32>,

    /// With `off`, every write of an image is on stable storage when it completes, and the guest need not flush.
    #[arg(long, value_name = "MODE", default_value = "on")]
    pub(crate) write_cache: Switch,

    /// Whether images bypass the host's page cache.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) direct: DirectMode,

    /// Serial number of the one controller, up to 20 characters. Default: derived from the disks' paths, so that it stays the
    /// same.
    #[arg(long, value_name = "TEXT")]
    pub(crate) serial: Option<String>,

    /// Model number, up to 40 characters.
    #[arg(long, value_name = "TEXT", default_value = "shadowbell virtual NVMe disk")]
    pub(crate) model: String,

    /// I/O queue pairs on offer, 1 to 511; guests use one for each CPU.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=i64::from(Config::MAX_IO_QUEUES)))]
    pub(crate) queues: u16,

    /// Largest number of entries of a queue, 2 to 4096.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=i64::from(Config::MAX_QUEUE_ENTRIES)))]
    pub(crate) queue_depth: u32,

    /// PCI vendor and device id, in hex. Default: 1234:dbdb, or what `--identity` says.
    #[arg(long, value_name = "VVVV:DDDD", value_parser = pci_id)]
    pub(crate) pci_id: Option<PciId>,

    /// Whose device this is. `google` is for guests whose driver knows only the vendor form of shadow doorbells (2016,
    /// command C0h) and looks for PCI vendor 1AE0h; the standard form (7Ch) is not on offer then.
    #[arg(long, value_name = "NAME", default_value = "shadowbell")]
    pub(crate) identity: Identity,

    /// Doorbells beside plain registers. `shadow`: shadow doorbells, for guests that ask for them. `mapped`: the page of the
    /// registers is mapped into the guest, for guests that do not (Windows, BSDs, firmware); the server then looks at it
    /// by the clock while it is idle, and shadow doorbells are not offered. `register`: neither. `auto` is `shadow`.
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub(crate) doorbells: DoorbellsArg,

    /// What a worker does while its guests are silent: `auto` polls for up to 50 us where that has paid lately, then sleeps;
    /// `always` keeps a core busy; `never` does not poll.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) poll: Poll,

    /// Threads that serve the devices, each its share of them: a number, or the CPUs on which one thread each is to run, as
    /// in `0,2-3`; a single CPU is `cpu:3`. Default: one for each device, as far as there are CPUs.
    #[arg(long, value_name = "N|CPULIST")]
    pub(crate) workers: Option<WorkersArg>,

    /// Also write the statistics to this file, as JSON; it is replaced as a whole.
    #[arg(long, value_name = "PATH")]
    pub(crate) stats_file: Option<PathBuf>,

    /// End when this process does: the one that started the server.
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) end_with_parent: Option<i32>,
}

/// Measure what shadow doorbells gain.
///
/// Without arguments: starts a server with a null disk in a process of its own, drives it over its vfio-user socket, and
/// prints a table of I/O rates, latencies, doorbell register writes, wake-ups and interrupts for each command, with doorbell
/// registers and with shadow doorbells, at depths from 1 to 128. Takes about a minute. Ctrl-C prints what was measured so far.
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES:\n  \
    shadowbell bench\n  \
    shadowbell bench --shape 2022\n  \
    shadowbell bench --rw randrw --rwmixread 70 --iodepth 32 --numjobs 1,4 disk.img\n  \
    shadowbell bench --verify ram:256M\n  \
    shadowbell bench --target socket:/run/vm1.sock --output-format html --output report.html\n\n\
    Writes and --verify overwrite the disk's content, as with fio.\n\n\
    EXIT STATUS: 0 when all was measured, 1 when something failed or was not what it should be, 2 for wrong arguments, \
    130 after Ctrl-C.")]
pub(crate) struct BenchArgs {
    /// The disk, as for `serve`: a path, `null:SIZE` or `ram:SIZE`. Default: `null:64G`.
    #[arg(value_name = "DISK")]
    pub(crate) disk: Option<DiskSpec>,

    /// What is driven: `socket:PATH`, a server that runs already, or `in-process`, DISK without a server and its socket.
    /// Default: DISK in a server process that the bench starts and ends.
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Option<BenchTarget>,

    /// A published measurement to repeat. Options that are given as well go before it.
    #[arg(long, value_name = "YEAR")]
    pub(crate) shape: Option<Shape>,

    /// Mix of commands. Default: randread.
    #[arg(long, value_name = "MIX")]
    pub(crate) rw: Option<RwArg>,

    /// Bytes of a command. Default: 4k.
    #[arg(long, value_name = "SIZE", default_value = "4k", hide_default_value = true)]
    pub(crate) bs: Size,

    /// Commands of each job in flight, 1 to 2047; a list is measured one after the other. Default: 1,2,4,8,16,32,64,128.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=2047))]
    pub(crate) iodepth: Vec<u16>,

    /// Commands that a job tells the device about at a time. fio's default is 1: a doorbell for each command.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=2047))]
    pub(crate) iodepth_batch: u16,

    /// Jobs, each a thread with a queue pair of its own, 1 to 511; a list is measured one after the other. Default: 1.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=511))]
    pub(crate) numjobs: Vec<u16>,

    /// How long each row is measured: seconds, or a number with ms, s or m.
    #[arg(long, value_name = "TIME", default_value = "3", value_parser = duration)]
    pub(crate) runtime: Duration,

    /// Bytes of the disk that are used, from its start on. Default: all; with --verify 64M.
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,

    /// Reads of a hundred commands, for rw and randrw.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Doorbells that are measured; `both` is registers and shadow doorbells, and gives their ratio. For `mapped` the server that
    /// the bench starts is told so.
    #[arg(long, value_name = "KIND", default_value = "both")]
    pub(crate) doorbells: DoorbellArg,

    /// How jobs learn of completions.
    #[arg(long, value_name = "HOW", default_value = "poll")]
    pub(crate) completion: CompletionArg,

    /// For the server that the bench starts, or the controller in this process: as for `serve`.
    #[arg(long, value_name = "MODE")]
    pub(crate) poll: Option<Poll>,

    /// Write the disk once, from start to end, before the first row: blocks that were never written are cheaper to read.
    /// Whatever is on the disk is lost.
    #[arg(long)]
    pub(crate) precondition: bool,

    /// Also measure the bare protocol (SQE, tail, EventIdx and CQE between two threads, with nothing behind them) before and
    /// after each row with one job and no registers, and print what part of it driver and device reach.
    #[arg(long)]
    pub(crate) limit: bool,

    /// Write content that carries its LBA, its version and a checksum, and check all that is read. A block that is stale,
    /// torn or misplaced is reported.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Form of the report.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output_format: BenchFormat,

    /// Write the report to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// What the bench drives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BenchTarget {
    /// A server that runs already.
    Socket(PathBuf),
    /// The controller in this process.
    InProcess,
}

impl FromStr for BenchTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("socket", path)) if !path.is_empty() => Ok(Self::Socket(path.into())),
            None if text == "in-process" => Ok(Self::InProcess),
            _ => Err("a target is socket:PATH or in-process".to_owned()),
        }
    }
}

/// Published measurements of shadow doorbells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// 4 KiB reads, depth 64, 2 jobs.
    #[value(name = "2015")]
    Y2015,
    /// Random reads, depth 32, 4 jobs.
    #[value(name = "2016")]
    Y2016,
    /// Random reads, depth 16, 4 and 64 jobs.
    #[value(name = "2019")]
    Y2019,
    /// Random reads, depths 1, 2, 4 and 8, one job.
    #[value(name = "2022")]
    Y2022,
}

/// A mix of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum RwArg {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads and writes.
    #[value(alias = "readwrite")]
    Rw,
    /// Random reads and writes.
    RandRw,
}

/// Doorbells to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoorbellArg {
    /// Doorbell registers.
    Register,
    /// Shadow doorbells.
    Shadow,
    /// Mapped registers.
    Mapped,
    /// Registers and shadow doorbells, one after the other, at each depth.
    Both,
}

/// How jobs learn of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionArg {
    /// They look.
    Poll,
    /// They sleep until the device interrupts.
    Interrupt,
}

/// Form of a bench report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchFormat {
    /// For people at a terminal.
    Table,
    /// For programs.
    Json,
    /// One file with charts.
    Html,
}

/// Say what a controller and its disks are, as nvme-cli's id-ctrl and id-ns do.
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES:\n  \
    shadowbell identify socket:/run/vm1.sock\n  \
    shadowbell identify disk.img --output-format json\n\n\
    The controller behind a socket is reset: not while a virtual machine uses it.")]
pub(crate) struct IdentifyArgs {
    /// `socket:PATH`, a server that runs already, or a disk as for `serve`, which is served in this process.
    #[arg(value_name = "TARGET")]
    pub(crate) target: IdentifyTarget,

    /// Form of the answer.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output_format: IdentifyFormat,
}

/// What is to be identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdentifyTarget {
    /// A server that runs already.
    Socket(PathBuf),
    /// A disk.
    Disk(DiskSpec),
}

impl FromStr for IdentifyTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("socket", "")) => Err("the path of the socket is missing: socket:PATH".to_owned()),
            Some(("socket", path)) => Ok(Self::Socket(path.into())),
            _ => text.parse().map(Self::Disk),
        }
    }
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdentifyFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// What to do while the guest is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Poll {
    /// Poll where it pays.
    Auto,
    /// Poll.
    Always,
    /// Sleep.
    Never,
}

impl From<Poll> for PollMode {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Auto => Self::Auto,
            Poll::Always => Self::Always,
            Poll::Never => Self::Never,
        }
    }
}

/// Which doorbells a served device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoorbellsArg {
    /// What serves most guests.
    Auto,
    /// Shadow doorbells.
    Shadow,
    /// Registers that are mapped into the guest.
    Mapped,
    /// Registers alone.
    Register,
}

impl DoorbellsArg {
    /// The controller's setting.
    pub(crate) fn mode(self) -> DoorbellMode {
        match self {
            // Whether the guest will ask for shadow doorbells is not known when the VMM maps the device. A mapped device never
            // sleeps for good, and takes posted writes from a guest that could do without: so it has to be asked for.
            Self::Auto | Self::Shadow => DoorbellMode::Shadow,
            Self::Mapped => DoorbellMode::Mapped,
            Self::Register => DoorbellMode::Register,
        }
    }
}

/// PCI identity and form of shadow doorbells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Identity {
    /// The project's own; the standard form.
    Shadowbell,
    /// 1ae0:001f; the vendor form.
    Google,
}

/// Whether to bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectMode {
    /// Where the file can.
    Auto,
    /// Refuse a file that cannot.
    On,
    /// Never.
    Off,
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let shift = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(format!("`{text}` is no size; write bytes, or a number with K, M, G or T: 64G")),
        };
        let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(Self(bytes)),
            _ => Err(format!("`{text}` is no size; write bytes, or a number with K, M, G or T: 64G")),
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        _ => return Err(format!("`{text}` is no time; write seconds, or a number with ms, s or m: 500ms")),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let seconds = digits.parse::<f64>().ok().filter(|_| plain).map(|n| n * unit);
    match seconds {
        Some(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is no time from 10ms to a day; write seconds, or a number with ms, s or m: 500ms")),
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err("blocks have 512 or 4096 bytes".to_owned()),
    }
}

fn pci_id(text: &str) -> Result<PciId, String> {
    let hex = |part: &str| {
        let digits = (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        digits.then(|| u16::from_str_radix(part, 16).ok()).flatten()
    };
    match text.split_once(':').map(|(vendor, device)| (hex(vendor), hex(device))) {
        // FFFFh is what reads of a missing device give.
        Some((Some(vendor), Some(device))) if vendor != 0xffff => Ok(PciId { vendor, device }),
        _ => Err("write vendor and device in hex: 1234:dbdb".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn sizes_are_powers_of_1024_and_checked() {
        let size = |text: &str| text.parse::<Size>().map(|s| s.0);
        assert_eq!(size("64G"), Ok(64 << 30));
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("10m"), Ok(10 << 20));
        assert_eq!(size("1TiB"), Ok(1 << 40));
        for bad in ["", "G", "-1", "1X", "99999999T", "18446744073709551616", "1.5G", "0x10", "9223372036854775808"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "0", "-1", "1h", "s", "inf", "1e3", "1ms", "9999999"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pci_ids_are_two_hex_numbers() {
        assert_eq!(pci_id("1af4:5"), Ok(PciId { vendor: 0x1af4, device: 5 }));
        for bad in ["", "1234", ":", "12345:1", "+123:1", "ffff:ffff", "12g4:1"] {
            assert!(pci_id(bad).is_err(), "{bad}");
        }
    }
}
