//! Stock kernels: fetched and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Kernel, Rig};
use crate::fault::{Context, Result, bail, ensure};
use crate::process::{output, run_logged};

pub(super) const INPUTS: &str = "linux-image-cloud-amd64, 2";

const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// Where a kernel's package is unpacked, as seen in the chroot.
fn unpacked(kernel: Kernel) -> String {
    format!("srv/kernel-{}", kernel.name())
}

/// Downloads and unpacks one kernel, and decompresses it for a direct boot.
pub(super) fn fetch(rig: &Rig, kernel: Kernel) -> Result<()> {
    let shown = output(&mut rig.inside(["apt-cache", "show", META_PACKAGE]), "apt-cache show")?;
    let package = String::from_utf8_lossy(&shown)
        .lines()
        .filter_map(|line| line.strip_prefix("Depends:"))
        .flat_map(|line| line.split(','))
        .filter_map(|dependency| dependency.split_whitespace().next())
        .find(|name| name.starts_with(kernel.package_prefix()))
        .context(format!("no {META_PACKAGE} depends on {}*", kernel.package_prefix()))?
        .to_owned();
    let dir = unpacked(kernel);
    let host_dir = rig.root(&dir);
    if host_dir.exists() {
        fs::remove_dir_all(&host_dir)?;
    }
    fs::create_dir_all(&host_dir)?;
    let log = rig.log(&format!("kernel-{}.log", kernel.name()))?;
    // Debian's 7.x kernels come in parts: the image package only pulls the others in.
    let release = package.trim_start_matches("linux-image-");
    let script = format!(
        "set -e; cd /{dir}
        for part in image base binary modules; do
            if apt-cache show linux-$part-{release} > /dev/null 2>&1; then
                apt-get download -q linux-$part-{release}
            fi
        done
        for package in *.deb; do dpkg-deb -x $package .; rm $package; done"
    );
    run_logged(&mut rig.inside(["sh", "-c", &script]), &log, &format!("package {package}"))?;
    // 7.x packages keep the kernel beside its modules.
    let boot = host_dir.join("boot");
    let vmlinuz = if boot.exists() { only_entry(&boot, "vmlinuz-")? } else { modules(rig, kernel)?.join("vmlinuz") };
    fs::copy(&vmlinuz, rig.vmlinuz(kernel)).context(vmlinuz.display())?;
    fs::write(rig.vmlinux(kernel), decompress_kernel(rig, &vmlinuz)?)?;
    Ok(())
}

/// The directory of a kernel's modules.
pub(super) fn modules(rig: &Rig, kernel: Kernel) -> Result<PathBuf> {
    only_entry(&rig.root(unpacked(kernel)).join("usr/lib/modules"), "")
}

fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(dir).context(dir.display())? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(entry.path());
        }
    }
    bail!("nothing named {prefix}* in {}", dir.display())
}

/// Takes the ELF image out of a bzImage (the header is described in Linux's
/// Documentation/arch/x86/boot.rst).
fn decompress_kernel(rig: &Rig, vmlinuz: &Path) -> Result<Vec<u8>> {
    let image = fs::read(vmlinuz).context(vmlinuz.display())?;
    let field = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("kernel image is too short")?;
        let mut word = [0; 4];
        word.copy_from_slice(bytes);
        usize::try_from(u32::from_le_bytes(word)).context("kernel header")
    };
    ensure!(image.get(0x202..0x206) == Some(b"HdrS"), "{} is no bzImage", vmlinuz.display());
    let setup_sectors = usize::from(image[0x1f1]);
    let start = (setup_sectors + 1) * 512 + field(0x248)?;
    // The payload's last word is the size of the uncompressed kernel.
    let end = start + field(0x24c)? - 4;
    let payload = image.get(start..end).context("kernel payload lies outside of the image")?;
    let decompressor = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x1f, 0x8b, ..] => "gzip",
        _ => bail!("{}: unknown compression", vmlinuz.display()),
    };
    let packed = rig.dir().join("payload.tmp");
    fs::write(&packed, payload)?;
    let kernel =
        output(rig.tool(&format!("usr/bin/{decompressor}")).arg("-dcq").arg(&packed), "decompressing the kernel")?;
    fs::remove_file(&packed)?;
    ensure!(kernel.starts_with(b"\x7fELF"), "{}: the payload is no ELF file", vmlinuz.display());
    Ok(kernel)
}
