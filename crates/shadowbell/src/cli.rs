//! The command line.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use controller::{Config, PciId};

use crate::disk::DiskSpec;

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
}

/// Serve disks to one virtual machine at a time over a vfio-user socket.
///
/// Each DISK becomes a namespace of one NVMe controller: the first is nvme0n1 in a Linux guest, the second nvme0n2, and
/// so on. The exact arguments for the VMM are printed at start. SIGUSR1 prints statistics; SIGTERM or Ctrl-C ends the
/// server cleanly.
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES:\n  \
    shadowbell serve --socket /run/vm1.sock disk.img\n  \
    shadowbell serve --socket /run/vm1.sock --create 20G new.img\n  \
    shadowbell serve --socket /tmp/fast.sock null:64G ram:1G\n\n\
    EXIT STATUS: 0 after a clean end, 1 when something could not be opened or failed, 2 for wrong arguments.\n\
    LOGS go to standard error; RUST_LOG=debug (or trace, warn, ...) says how many.")]
pub(crate) struct ServeArgs {
    /// What stands behind a namespace: a raw image or block device (a path), `null:SIZE` (drops writes, for benchmarks;
    /// `null:SIZE,zeroes=on` reads as zeros), or `ram:SIZE`. Sizes take K, M, G, T (powers of 1024).
    #[arg(value_name = "DISK", required = true)]
    pub(crate) disks: Vec<DiskSpec>,

    /// The socket for the VMM. Only its owner may connect; the file is removed at the end.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,

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

    /// Serial number, up to 20 characters. Default: derived from the disks' paths, so that it stays the same.
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

    /// PCI vendor and device id, in hex.
    #[arg(long, value_name = "VVVV:DDDD", default_value = "1234:dbdb", value_parser = pci_id)]
    pub(crate) pci_id: PciId,

    /// Do not offer shadow doorbells: the guest rings every doorbell by register.
    #[arg(long)]
    pub(crate) no_shadow: bool,

    /// Also write the statistics to this file, as JSON; it is replaced as a whole.
    #[arg(long, value_name = "PATH")]
    pub(crate) stats_file: Option<PathBuf>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
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
    fn pci_ids_are_two_hex_numbers() {
        assert_eq!(pci_id("1af4:5"), Ok(PciId { vendor: 0x1af4, device: 5 }));
        for bad in ["", "1234", ":", "12345:1", "+123:1", "ffff:ffff", "12g4:1"] {
            assert!(pci_id(bad).is_err(), "{bad}");
        }
    }
}
