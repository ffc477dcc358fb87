//! The chroot: Debian 13 (trixie) with QEMU from backports.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::Rig;
use crate::fault::{Context, Result, ensure};
use crate::process::{output, run_logged};

const SUITE: &str = "trixie";

pub(super) const BASE_INPUTS: &str = "trixie minbase, 1";

/// Packages, one a line; those after "backports:" come from trixie-backports.
pub(super) const PACKAGES: &str = "\
busybox-static
dosfstools
e2fsprogs
fio
grub-common
grub-efi-amd64-bin
grub-pc-bin
kmod
mtools
nvme-cli
ovmf
xz-utils
zstd
backports:
qemu-system-x86
seabios
";

/// Installs packages on the host when the program that they bring is missing.
fn host_needs(rig: &Rig, program: &str, package: &str) -> Result<()> {
    let found = env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| dir.join(program).exists()));
    if found {
        return Ok(());
    }
    eprintln!("rig: installing {package} on this machine");
    let log = rig.log("host-apt.log")?;
    let mut update = Command::new("apt-get");
    run_logged(update.args(["update", "-q"]), &log, "apt-get update")?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-q", "--no-install-recommends", package]);
    run_logged(&mut install, &log, &format!("apt-get install {package}"))
}

pub(super) fn base(rig: &Rig) -> Result<()> {
    host_needs(rig, "debootstrap", "debootstrap")?;
    for (program, package) in [("unshare", "util-linux"), ("cc", "gcc"), ("readelf", "binutils")] {
        host_needs(rig, program, package)?;
    }
    let root = rig.root("");
    if root.exists() {
        fs::remove_dir_all(&root).context(root.display())?;
    }
    let log = rig.log("debootstrap.log")?;
    let mut debootstrap = Command::new("unshare");
    debootstrap.args(["--mount", "debootstrap", "--variant=minbase"]);
    let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    if keyring.exists() {
        debootstrap.arg("--keyring").arg(keyring);
    }
    debootstrap.arg(SUITE).arg(&root).arg(mirror()?);
    // An older debootstrap does not know the suite by name, but builds it the same way.
    if !Path::new("/usr/share/debootstrap/scripts").join(SUITE).exists() {
        debootstrap.arg("/usr/share/debootstrap/scripts/sid");
    }
    run_logged(&mut debootstrap, &log, "debootstrap (is the package mirror reachable?)")?;
    let conf = "\
APT::Install-Recommends \"false\";
APT::Sandbox::User \"root\";
Dpkg::Options { \"--force-unsafe-io\"; };
Acquire::Languages \"none\";
Acquire::Retries \"3\";
";
    write(rig, "etc/apt/apt.conf.d/99rig", conf)?;
    let slim = "path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n";
    write(rig, "etc/dpkg/dpkg.cfg.d/rig", slim)
}

pub(super) fn packages(rig: &Rig) -> Result<()> {
    let mirror = mirror()?;
    let sources: String =
        ["", "-updates", "-backports"].map(|pocket| format!("deb {mirror} {SUITE}{pocket} main\n")).concat();
    write(rig, "etc/apt/sources.list", &sources)?;
    for name in ["resolv.conf", "hosts"] {
        // A machine without one of these resolves names in some other way.
        if let Ok(text) = fs::read_to_string(Path::new("/etc").join(name)) {
            write(rig, &format!("etc/{name}"), &text)?;
        }
    }
    let log = rig.log("packages.log")?;
    run_logged(&mut rig.inside(["apt-get", "update", "-q"]), &log, "apt-get update in the chroot")?;
    let (plain, backports) = PACKAGES.split_once("backports:\n").context("package list")?;
    let mut install = rig.inside(["apt-get", "install", "-y", "-q"]);
    run_logged(install.args(plain.lines()), &log, "apt-get install in the chroot")?;
    let mut install = rig.inside(["apt-get", "install", "-y", "-q", "-t", "trixie-backports"]);
    run_logged(install.args(backports.lines()), &log, "apt-get install from backports")
}

/// The Debian mirror of this machine's own apt configuration, or `SHADOWBELL_MIRROR`.
fn mirror() -> Result<String> {
    if let Ok(mirror) = env::var("SHADOWBELL_MIRROR") {
        return Ok(mirror);
    }
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release names no VERSION_CODENAME; is this Debian?")?
        .trim_matches('"');
    let targets = output(
        Command::new("apt-get").args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]),
        "apt-get indextargets",
    )?;
    let targets = String::from_utf8_lossy(&targets);
    let uri = targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(suite, uri)| (suite == codename).then_some(uri));
    let uri = uri.context(format!(
        "apt on this machine has no source for Debian {codename}; set SHADOWBELL_MIRROR to a mirror's address"
    ))?;
    ensure!(
        uri.starts_with("http") || uri.starts_with("file:"),
        "apt's source for {codename} is of a kind that debootstrap cannot use; set SHADOWBELL_MIRROR"
    );
    Ok(uri.to_owned())
}

fn write(rig: &Rig, path: &str, text: &str) -> Result<()> {
    let path = rig.root(path);
    // A link (resolv.conf may be one) would point outside of the chroot.
    let _ = fs::remove_file(&path);
    fs::write(&path, text).context(path.display())
}
