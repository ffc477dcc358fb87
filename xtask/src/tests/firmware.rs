//! Firmware that boots from the disk: QEMU is given no kernel.

use std::fs;
use std::process::Command;

use super::bench::{Bench, LIMIT};
use crate::fault::{Context, Result, ensure};
use crate::process::output;
use crate::qemu::{Firmware, GuestConfig};
use crate::rig::BOOT_MARK;

pub(super) fn seabios_boots_from_the_disk(bench: &mut Bench) -> Result<()> {
    boots(bench, Firmware::Seabios, "pc")
}

pub(super) fn ovmf_boots_from_the_disk(bench: &mut Bench) -> Result<()> {
    boots(bench, Firmware::Ovmf, "efi")
}

fn boots(bench: &mut Bench, firmware: Firmware, platform: &str) -> Result<()> {
    let image = bench.image("boot.img", 0)?;
    let template = bench.rig.boot_disk();
    fs::copy(&template, &image).context(template.display())?;
    let mut served = bench.serve(&[&image], &[])?;
    let config = GuestConfig { firmware, ..bench.config(&served, include_str!("../../guest/tests/from-firmware.sh")) };
    let mut guest = bench.boot(&config)?;
    guest.succeed(LIMIT)?;
    ensure!(
        guest.output.iter().any(|line| line.starts_with("cmdline") && line.contains(BOOT_MARK)),
        "the kernel's command line is not the one on the disk"
    );
    let seen = guest.value("firmware=", "firmware").context("no firmware in the guest's output")?;
    ensure!(seen == platform, "the guest came up by {seen}, not by {platform}");
    let sum = output(Command::new("sha256sum").arg(&image), "sha256sum")?;
    let sum = String::from_utf8_lossy(&sum);
    let read = guest.value("disk", "sha256").context("no checksum in the guest's output")?;
    ensure!(sum.starts_with(&read), "the guest read other bytes than the image holds");
    if let Some(stats) = served.stats()? {
        let size = fs::metadata(&image)?.len();
        ensure!(
            stats.totals.read_bytes > size,
            "only {} bytes were read: less than the disk once by the guest and its kernel by firmware",
            stats.totals.read_bytes
        );
    }
    served.stop()?;
    Ok(())
}
