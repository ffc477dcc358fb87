//! What was written is what is read, on the disk and in the image on the host.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::SeekFrom;

use super::bench::{Bench, LIMIT};
use crate::fault::{Context, Result, ensure};
use crate::qemu::GuestConfig;

const EXT4: &str = include_str!("../../guest/tests/ext4.sh");
const KILLED: &str = include_str!("../../guest/tests/killed.sh");

const MIB: u64 = 1 << 20;

/// A guest makes a file system and fills it, restarts, verifies; a second one verifies again.
pub(super) fn ext4_survives_a_reboot(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 256)?;
    let served = bench.serve(&[&image], &[])?;
    let config = GuestConfig { may_reboot: true, ..bench.config(&served, EXT4) };
    let mut guest = bench.boot(&config)?;
    guest.wait_for("written", LIMIT)?;
    guest.wait_for("verified, boot 1", LIMIT)?;
    guest.succeed(LIMIT)?;
    let mut guest = bench.boot(&config)?;
    guest.wait_for("verified, boot 2", LIMIT)?;
    guest.succeed(LIMIT)?;
    served.stop()?;
    bench.rig.e2fsck(&image)?;
    Ok(())
}

pub(super) fn fio_verifies_random_writes(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 512)?;
    let served = bench.serve(&[&image], &[])?;
    bench.run(&served, include_str!("../../guest/tests/fio-verify.sh"), Duration::from_secs(300))?;
    served.stop()?;
    Ok(())
}

/// Discarded and zeroed ranges read as zeroes in the guest and are holes on the host.
pub(super) fn discard_and_zeroes_make_holes(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 64)?;
    let served = bench.serve(&[&image], &[])?;
    let ours = served.is_ours();
    bench.run(&served, include_str!("../../guest/tests/discard.sh"), LIMIT)?;
    served.stop()?;
    let file = File::open(&image)?;
    // Zeroed but still allocated blocks count as a hole unless the page cache holds them.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    for (start, length) in [(8, 16), (32, 8), (48, 4), (56, 1)] {
        if ours {
            let hole = rustix::fs::seek(&file, SeekFrom::Hole(start * MIB))?;
            let data = rustix::fs::seek(&file, SeekFrom::Data(start * MIB))?;
            ensure!(
                hole == start * MIB && data >= (start + length) * MIB,
                "MiB {start} + {length} of the image is no hole (hole from byte {hole}, data from {data})"
            );
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, start * MIB)?;
        ensure!(byte == [0], "MiB {start} of the image is not zero");
    }
    let allocated = file.metadata()?.blocks() * 512 / MIB;
    // 21 of 64 MiB were deallocated; the 8 MiB that the kernel zeroed may stay allocated.
    ensure!(!ours || allocated <= 45, "the image still takes {allocated} MiB of the host's disk");
    Ok(())
}

pub(super) fn two_namespaces(bench: &mut Bench) -> Result<()> {
    let first = bench.image("first.img", 64)?;
    let second = bench.image("second.img", 96)?;
    let served = bench.serve(&[&first, &second], &[])?;
    let guest = bench.run(&served, include_str!("../../guest/tests/namespaces.sh"), LIMIT)?;
    for (prefix, mib) in [("namespace=1", 64), ("namespace=2", 96)] {
        let sectors = guest.value(prefix, "sectors").context(prefix)?;
        ensure!(sectors == (mib * 2048).to_string(), "{prefix} has {sectors} sectors, not {mib} MiB");
    }
    served.stop()?;
    for (image, byte) in [(&first, b'1'), (&second, b'2')] {
        ensure!(holds_only(image, 3 * MIB, byte)?, "{} does not hold what the guest wrote", image.display());
    }
    Ok(())
}

/// Two controllers that one thread serves, in one guest and busy together.
pub(super) fn two_devices_of_one_worker(bench: &mut Bench) -> Result<()> {
    if !bench.is_ours() {
        return Ok(());
    }
    let first = bench.image("first.img", 64)?;
    let second = bench.image("second.img", 96)?;
    let socket = first.with_file_name("second.sock");
    let [image, path] = [&second, &socket].map(|path| path.to_string_lossy().into_owned());
    let served = bench.serve(&[&first], &["--workers", "1", "--socket", &path, &image])?;
    let mut config = bench.config(&served, include_str!("../../guest/tests/two-devices.sh"));
    let device = serde_json::json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": path}});
    config.qemu_args = vec!["-device".to_owned(), device.to_string()];
    bench.boot(&config)?.succeed(LIMIT)?;
    served.stop()?;
    for (image, byte) in [(&first, b'1'), (&second, b'2')] {
        ensure!(holds_only(image, 3 * MIB, byte)?, "{} does not hold what the guest wrote", image.display());
    }
    Ok(())
}

/// Four MiB from `offset` are all `byte`.
fn holds_only(image: &Path, offset: u64, byte: u8) -> Result<bool> {
    let mut data = vec![0; 4 << 20];
    File::open(image)?.read_exact_at(&mut data, offset)?;
    Ok(data.iter().all(|other| *other == byte))
}

/// Power is cut in the midst of writes; the next guest finds all that was flushed.
pub(super) fn killed_guest_leaves_what_it_flushed(bench: &mut Bench) -> Result<()> {
    let image = bench.image("disk.img", 256)?;
    let served = bench.serve(&[&image], &[])?;
    let config = bench.config(&served, KILLED);
    let mut guest = bench.boot(&config)?;
    guest.wait_for("flushed", LIMIT)?;
    guest.wait_for("later 7", LIMIT)?;
    guest.kill();
    let guest = bench.run(&served, KILLED, LIMIT)?;
    let good = guest.output.iter().filter(|line| line.starts_with("kept") && line.ends_with(": OK")).count();
    ensure!(good == 4, "{good} of 4 flushed files were verified");
    served.stop()?;
    bench.rig.e2fsck(&image)?;
    Ok(())
}
