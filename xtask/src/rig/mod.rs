//! The VM rig: a Debian chroot with QEMU and tools, stock kernels, an initramfs for each.
//!
//! Everything comes from Debian's packages through the mirror that apt is configured with.
//! It lives in one cache directory and is built once; each stage leaves a stamp with its
//! inputs, and is done again when these change. The chroot is only a package store: QEMU
//! and the other tools run on the host's file system through the chroot's own loader, so
//! paths and sockets of the host just work and no mounts stay behind.

pub(crate) mod accel;
mod bootdisk;
mod debian;
mod initramfs;
mod kernel;
mod stubs;

pub(crate) use bootdisk::BOOT_MARK;

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::fault::{Context, Result, bail, ensure};
use crate::process::{self, output};

/// Where the rig lives unless `SHADOWBELL_RIG` says otherwise.
const DEFAULT_DIR: &str = "/var/cache/shadowbell/rig";

/// Debian's multiarch library directory inside the chroot.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A stock Debian kernel that guests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 13's own.
    #[value(name = "6.12")]
    V6_12,
    /// From trixie-backports.
    #[value(name = "7")]
    V7,
}

impl Kernel {
    pub(crate) const ALL: [Self; 2] = [Self::V6_12, Self::V7];

    /// Short name, in file names and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V6_12 => "6.12",
            Self::V7 => "7",
        }
    }

    /// How the name of its Debian package begins.
    fn package_prefix(self) -> &'static str {
        match self {
            Self::V6_12 => "linux-image-6.12.",
            Self::V7 => "linux-image-7.",
        }
    }
}

/// The rig's directory. Values from [`Rig::ready`] are complete.
#[derive(Debug, Clone)]
pub(crate) struct Rig {
    dir: PathBuf,
}

impl Rig {
    /// Sets up whatever is missing (as root; about two minutes from nothing) and gives the rig.
    pub(crate) fn ready() -> Result<Self> {
        let dir = env::var_os("SHADOWBELL_RIG").map_or_else(|| PathBuf::from(DEFAULT_DIR), PathBuf::from);
        ensure!(dir.is_absolute(), "SHADOWBELL_RIG must be an absolute path, not {}", dir.display());
        let rig = Self { dir };
        let stages = rig.stages();
        if stages.iter().all(|stage| rig.is_done(stage)) {
            return Ok(rig);
        }
        ensure!(
            rustix::process::geteuid().is_root(),
            "the VM rig in {} is not set up; do it once as root: cargo xtask rig",
            rig.dir.display()
        );
        for sub in ["stamps", "logs"] {
            let path = rig.dir.join(sub);
            fs::create_dir_all(&path).context(path.display())?;
        }
        let lock_path = rig.dir.join("lock");
        let lock = File::create(&lock_path).context(lock_path.display())?;
        if lock.try_lock().is_err() {
            eprintln!("rig: waiting for another set-up that holds {}", lock_path.display());
            lock.lock().context(lock_path.display())?;
        }
        let count = stages.len();
        for (number, stage) in stages.iter().enumerate() {
            if rig.is_done(stage) {
                continue;
            }
            process::check_interrupt()?;
            let started = std::time::Instant::now();
            eprintln!("rig: [{}/{count}] {}", number + 1, stage.what);
            rig.forget(stage);
            (stage.work)(&rig).context(format!("rig: {}", stage.what))?;
            fs::write(rig.stamp(stage), &stage.inputs).context("stamp")?;
            eprintln!("rig: [{}/{count}] done in {:.0} s", number + 1, started.elapsed().as_secs_f64());
        }
        Ok(rig)
    }

    fn stages(&self) -> Vec<Stage> {
        let base = Stage::new("base", "Debian 13 base system (debootstrap)", debian::BASE_INPUTS, debian::base);
        let packages =
            Stage::after(&base, "packages", "QEMU, fio, nvme-cli and tools", debian::PACKAGES, debian::packages);
        let kernel_612 = Stage::after(&packages, "kernel-6.12", "kernel 6.12", kernel::INPUTS, |rig| {
            kernel::fetch(rig, Kernel::V6_12)
        });
        let kernel_7 =
            Stage::after(&packages, "kernel-7", "kernel 7", kernel::INPUTS, |rig| kernel::fetch(rig, Kernel::V7));
        let stubs = Stage::after(&packages, "stubs", "fio without its network libraries", stubs::INPUTS, stubs::build);
        let initrd = format!("{}\n{}", initramfs::INPUTS, stubs.inputs);
        let initrd_612 = Stage::after(&kernel_612, "initrd-6.12", "guest initramfs for kernel 6.12", &initrd, |rig| {
            initramfs::build(rig, Kernel::V6_12)
        });
        let initrd_7 = Stage::after(&kernel_7, "initrd-7", "guest initramfs for kernel 7", &initrd, |rig| {
            initramfs::build(rig, Kernel::V7)
        });
        let boot_inputs = format!("{}\n{}", bootdisk::INPUTS, crate::qemu::KERNEL_ARGUMENTS);
        let boot = Stage::after(&initrd_612, "bootdisk", "disk that firmware can boot", &boot_inputs, bootdisk::build);
        vec![base, packages, kernel_612, kernel_7, stubs, initrd_612, initrd_7, boot]
    }

    fn stamp(&self, stage: &Stage) -> PathBuf {
        self.dir.join("stamps").join(stage.name)
    }

    fn is_done(&self, stage: &Stage) -> bool {
        fs::read_to_string(self.stamp(stage)).is_ok_and(|inputs| inputs == stage.inputs)
    }

    fn forget(&self, stage: &Stage) {
        // Missing is what is wanted.
        let _ = fs::remove_file(self.stamp(stage));
    }

    fn log(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join("logs").join(name);
        File::create(&path).context(path.display())?;
        Ok(path)
    }

    /// The chroot, or a path inside it.
    fn root(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.dir.join("root").join(inside)
    }

    /// A program of the chroot, run on the host's file system.
    pub(crate) fn tool(&self, path: &str) -> Command {
        let name = path.rsplit('/').next().unwrap_or(path);
        let mut command = Command::new(self.root("lib64/ld-linux-x86-64.so.2"));
        command.args(["--argv0", name, "--library-path"]).arg(self.root(LIBRARIES)).arg(self.root(path));
        command
    }

    /// A program run inside the chroot by root, in mount and PID namespaces that end with it.
    fn inside<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"])
            .arg("mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"")
            .arg(self.root(""))
            .args(["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
            .args(arguments);
        command
    }

    /// QEMU with its own firmware and modules.
    pub(crate) fn qemu(&self) -> Command {
        let mut command = self.tool("usr/bin/qemu-system-x86_64");
        command.env("QEMU_MODULE_DIR", self.root(LIBRARIES).join("qemu"));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root(data));
        }
        command
    }

    /// First line of `qemu-system-x86_64 --version`.
    pub(crate) fn qemu_version(&self) -> Result<String> {
        let text = output(self.qemu().arg("--version"), "QEMU")?;
        Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned())
    }

    /// The uncompressed kernel, which boots without a decompressor (PVH).
    pub(crate) fn vmlinux(&self, kernel: Kernel) -> PathBuf {
        self.dir.join(format!("vmlinux-{}", kernel.name()))
    }

    /// The kernel as Debian packs it.
    fn vmlinuz(&self, kernel: Kernel) -> PathBuf {
        self.dir.join(format!("vmlinuz-{}", kernel.name()))
    }

    pub(crate) fn initrd(&self, kernel: Kernel) -> PathBuf {
        self.dir.join(format!("initrd-{}.cpio", kernel.name()))
    }

    /// A raw image that SeaBIOS and OVMF boot; copy it before use.
    pub(crate) fn boot_disk(&self) -> PathBuf {
        self.dir.join("bootdisk.img")
    }

    /// OVMF's code and variable store (to be copied).
    pub(crate) fn ovmf(&self) -> (PathBuf, PathBuf) {
        let dir = self.root("usr/share/OVMF");
        (dir.join("OVMF_CODE_4M.fd"), dir.join("OVMF_VARS_4M.fd"))
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks a file system image with `e2fsck -f -n`: it must be clean as it is.
    pub(crate) fn e2fsck(&self, image: &Path) -> Result<String> {
        let result = self.tool("usr/sbin/e2fsck").args(["-f", "-n"]).arg(image).output()?;
        let text = String::from_utf8_lossy(&result.stdout).into_owned();
        if result.status.code() != Some(0) {
            bail!("e2fsck -f -n says {}:\n{text}", process::describe(result.status));
        }
        Ok(text)
    }
}

/// One step of the set-up.
struct Stage {
    name: &'static str,
    what: &'static str,
    /// Everything that the result depends on, as text; kept as the stamp.
    inputs: String,
    work: fn(&Rig) -> Result<()>,
}

impl Stage {
    fn new(name: &'static str, what: &'static str, inputs: &str, work: fn(&Rig) -> Result<()>) -> Self {
        Self { name, what, inputs: inputs.to_owned(), work }
    }

    /// A stage that is done again whenever `before` is.
    fn after(
        before: &Self,
        name: &'static str,
        what: &'static str,
        inputs: &str,
        work: fn(&Rig) -> Result<()>,
    ) -> Self {
        Self::new(name, what, &format!("{inputs}\n-- after {}\n{}", before.name, before.inputs), work)
    }
}
