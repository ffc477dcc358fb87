//! Shadow doorbells, registers, and queues of extreme sizes.

use std::path::Path;
use std::time::Duration;

use super::bench::{Bench, LIMIT};
use crate::fault::{Context, Result, ensure};
use crate::qemu::GuestConfig;
use crate::stats::Stats;

const RANDOM_READ: &str = include_str!("../../guest/tests/random-read.sh");
const EXT4: &str = include_str!("../../guest/tests/ext4.sh");
const REBIND: &str = include_str!("../../guest/tests/rebind.sh");
const DEPTH: &str = include_str!("../../guest/tests/depth.sh");

/// Reads of `random-read.sh`.
const READS: u64 = 8000;

/// The driver sends 7Ch, and from then on register writes are few.
pub(super) fn shadow_doorbells_are_used(bench: &mut Bench) -> Result<()> {
    let mut served = bench.serve(&[Path::new("null:64G")], &[])?;
    let config = bench.config(&served, &format!("{RANDOM_READ}echo measured\nread go\n"));
    let mut guest = bench.boot(&config)?;
    guest.wait_for("measured", LIMIT)?;
    // While the guest still lives: a shutdown ends the use of shadow doorbells.
    let stats = served.stats()?;
    guest.release()?;
    guest.succeed(LIMIT)?;
    ensure!(guest.value("oacs", "dbbuf").as_deref() == Some("1"), "OACS does not offer Doorbell Buffer Config");
    if let Some(Stats { device, queues, totals }) = stats {
        ensure!(device.doorbell_buffer_config >= 1, "no Doorbell Buffer Config command was accepted");
        ensure!(device.shadow_doorbells, "shadow doorbells are not in use");
        ensure!(totals.commands >= READS, "{} commands for {READS} reads", totals.commands);
        let by_queue: u64 = queues.iter().filter(|queue| queue.qid != 0).map(|queue| queue.counters.commands).sum();
        ensure!(
            by_queue == totals.commands,
            "the I/O queues count {by_queue} commands, the totals {}",
            totals.commands
        );
        let submission = totals.per_io(totals.sq_doorbell_writes);
        ensure!(submission <= 1.05, "{submission:.3} SQ doorbell register writes per command");
        let completion = totals.per_io(totals.cq_doorbell_writes);
        ensure!(completion <= 0.01, "{completion:.3} CQ doorbell register writes per command");
    }
    served.stop()?;
    Ok(())
}

/// The same without the offer of shadow doorbells, and data comes back right too.
pub(super) fn registers_alone_work(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 1024)?;
    let mut served = bench.serve(&[&image], &["--doorbells", "register"])?;
    let script = format!("{RANDOM_READ}{DEPTH}echo measured\nread go\n");
    let config = bench.config(&served, &script);
    let mut guest = bench.boot(&config)?;
    guest.wait_for("measured", LIMIT)?;
    let stats = served.stats()?;
    guest.release()?;
    guest.succeed(LIMIT)?;
    ensure!(guest.value("oacs", "dbbuf").as_deref() == Some("0"), "OACS offers Doorbell Buffer Config");
    if let Some(Stats { device, totals, .. }) = stats {
        ensure!(
            !device.shadow_doorbells && device.doorbell_buffer_config == 0,
            "shadow doorbells are in use although they were switched off"
        );
        ensure!(totals.commands >= READS, "{} commands for {READS} reads", totals.commands);
        ensure!(totals.cq_doorbell_writes > 0, "no CQ doorbell register writes were counted");
    }
    served.stop()?;
    Ok(())
}

const MAPPED: [&str; 2] = ["--doorbells", "mapped"];

/// A driver that is offered no shadow doorbells writes registers, and no write leaves the guest.
pub(super) fn mapped_doorbells_are_no_messages(bench: &mut Bench) -> Result<()> {
    let mut served = bench.serve(&[Path::new("null:64G")], &MAPPED)?;
    let config = bench.config(&served, &format!("{RANDOM_READ}echo measured\nread go\n"));
    let mut guest = bench.boot(&config)?;
    guest.wait_for("measured", LIMIT)?;
    let stats = served.stats()?;
    guest.release()?;
    guest.succeed(LIMIT)?;
    ensure!(guest.value("oacs", "dbbuf").as_deref() == Some("0"), "OACS offers Doorbell Buffer Config");
    if let Some(stats) = stats {
        ensure!(stats.totals.commands >= READS, "{} commands for {READS} reads", stats.totals.commands);
        register_writes_are_rare(&stats)?;
    }
    served.stop()?;
    Ok(())
}

/// A guest that restarts, one after it on the same server, and a driver that is taken off and put back under load.
pub(super) fn mapped_doorbells_survive_reboots_and_rebinds(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 256)?;
    let mut served = bench.serve(&[&image], &MAPPED)?;
    let config = GuestConfig { may_reboot: true, ..bench.config(&served, EXT4) };
    let mut guest = bench.boot(&config)?;
    guest.wait_for("written", LIMIT)?;
    guest.wait_for("verified, boot 1", LIMIT)?;
    guest.succeed(LIMIT)?;
    bench.rig.e2fsck(&image)?;
    bench.run(&served, REBIND, Duration::from_secs(300))?;
    if let Some(stats) = served.stats()? {
        register_writes_are_rare(&stats)?;
    }
    served.stop()?;
    Ok(())
}

/// Of the I/O queues. QEMU traps accesses for a second after each edge of the legacy line, which the admin queue has until the
/// driver has switched MSI-X on.
fn register_writes_are_rare(stats: &Stats) -> Result<()> {
    let Stats { device, totals, .. } = stats;
    ensure!(device.mapped_doorbells && device.doorbell_buffer_config == 0, "doorbells are not mapped");
    let writes = totals.sq_doorbell_writes + totals.cq_doorbell_writes;
    ensure!(
        writes * 1000 <= totals.commands,
        "{writes} register writes were messages, of {} commands",
        totals.commands
    );
    Ok(())
}

pub(super) fn queues_of_two_entries(bench: &mut Bench) -> Result<()> {
    let depth = ["--queue-depth", "2"];
    queue_depth(bench, &depth, "", 1)
}

/// The controller offers more, the driver wants two.
pub(super) fn driver_asks_for_two_entries(bench: &mut Bench) -> Result<()> {
    queue_depth(bench, &[], "nvme.io_queue_depth=2", 1)
}

pub(super) fn queues_of_1024_entries(bench: &mut Bench) -> Result<()> {
    queue_depth(bench, &["--queue-depth", "1024"], "nvme.io_queue_depth=1024", 1023)
}

/// Verified I/O; the driver must see `requests` request slots (a queue holds one less than its entries).
fn queue_depth(bench: &mut Bench, args: &[&str], append: &str, requests: u32) -> Result<()> {
    let image = bench.image("disk.img", 128)?;
    let served = bench.serve(&[&image], args)?;
    let mut config = bench.config(&served, DEPTH);
    append.clone_into(&mut config.append);
    let mut guest = bench.boot(&config)?;
    guest.succeed(LIMIT)?;
    let seen = guest.value("requests=", "requests").context("no queue size in the guest's output")?;
    ensure!(seen == requests.to_string(), "the driver has {seen} request slots, not {requests}");
    served.stop()?;
    Ok(())
}
