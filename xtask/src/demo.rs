//! `xtask demo`: the main job, shown to a newcomer.

use std::fs::File;
use std::time::Duration;

use clap::Args;

use crate::fault::{Context, Result};
use crate::figures::{self, Figure, Sweep};
use crate::qemu::{Guest, GuestConfig};
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};
use crate::server::{self, Server};
use crate::workdir;

/// Options of `xtask demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Stock kernel of the guest
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Kernel,
    /// How QEMU runs the guest
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accel,
}

const LIMIT: Duration = Duration::from_secs(120);

/// Runs the demonstration; the result is the exit status.
pub(crate) fn run(args: &DemoArgs) -> Result<u8> {
    println!("1. Building shadowbell and the VM rig (the first time takes some minutes).");
    let program = server::build()?;
    let rig = Rig::ready()?;
    let config = GuestConfig { kernel: args.kernel, accel: args.accel.resolve(&rig)?, ..GuestConfig::default() };

    println!("\n2. One shadowbell process serves two disks; a stock Debian kernel boots in QEMU with them.");
    let dir = workdir()?;
    let image = dir.path().join("demo.img");
    File::create(&image).and_then(|file| file.set_len(256 << 20)).context(image.display())?;
    let disks = ["null:64G".to_owned(), image.display().to_string()];
    println!("     shadowbell serve null:64G demo.img --socket demo.sock");
    let server = Server::start(&program, &disks, &[], dir.path(), "demo")?;
    let story = GuestConfig {
        disk: server.disk(),
        script: include_str!("../guest/demo.sh").to_owned(),
        echo: true,
        ..config.clone()
    };
    let mut guest = Guest::boot(&rig, &story, dir.path(), "guest")?;
    guest.succeed(LIMIT)?;
    let (_, stats) = server.stop()?;
    println!(
        "  The server did {} commands and went at SIGTERM. On the host, e2fsck checks the image:",
        stats.totals.commands
    );
    let report = rig.e2fsck(&image)?;
    println!("    {}", report.lines().last().unwrap_or("clean"));

    println!("\n3. 4 KiB random reads of a null disk in the guest: with shadow doorbells, then without.");
    let sweep = Sweep { jobs: vec![1], depths: vec![1, 4, 32], ios: 8000 };
    let mut points = figures::shadowbell(&rig, &config, &sweep, &program, "shadow doorbells", &[])?;
    points.extend(figures::shadowbell(
        &rig,
        &config,
        &sweep,
        &program,
        "registers only",
        &["--doorbells", "register"],
    )?);
    println!("\n{}", figures::table(&points));
    explain(&points);
    Ok(0)
}

/// Says what the table's columns mean for the reader.
fn explain(points: &[Figure]) {
    println!(
        "A guest tells an NVMe disk about new commands by writing a doorbell register. For a virtual\n\
         disk each such write stops the guest's processor (a trap, here also a socket message).\n\
         Shadow doorbells are a page of guest memory that both sides read instead; the register\n\
         is written only when the disk has asked for it."
    );
    let deepest = points.iter().map(|point| point.depth).max();
    let mut totals = points.iter().filter(|point| Some(point.depth) == deepest).map(Figure::doorbell_writes_per_io);
    if let (Some(depth), Some(with), Some(without)) = (deepest, totals.next(), totals.next()) {
        println!("At depth {depth}: {with:.2} doorbell writes for each read, {without:.2} without them.");
    }
    println!("QEMU's own device beside it, and more points: cargo xtask figures");
}
