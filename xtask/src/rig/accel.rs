//! TCG or KVM: which one really boots a guest here.

use std::fs;
use std::time::Duration;

use clap::ValueEnum;

use super::Rig;
use crate::fault::Result;
use crate::qemu::{Disk, Guest, GuestConfig};

/// How QEMU runs the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accel {
    /// Emulated: works everywhere, and gives figures that compare between machines.
    Tcg,
    /// Hardware virtualisation.
    Kvm,
    /// KVM if a guest boots with it, TCG otherwise.
    Auto,
}

impl Accel {
    /// Replaces [`Accel::Auto`] by what works; the answer is kept until the next boot of this machine.
    pub(crate) fn resolve(self, rig: &Rig) -> Result<Self> {
        if self != Self::Auto {
            return Ok(self);
        }
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let cache = rig.dir().join("accel");
        let works = match fs::read_to_string(&cache) {
            Ok(text) if text.starts_with(&boot_id) => text.ends_with("kvm"),
            _ => {
                let works = kvm_boots(rig)?;
                // Only saves time: a rig that is not ours to write probes again.
                let _ = fs::write(&cache, format!("{boot_id}{}", if works { "kvm" } else { "tcg" }));
                works
            }
        };
        Ok(if works { Self::Kvm } else { Self::Tcg })
    }
}

/// Boots a guest without disks under KVM: a `/dev/kvm` that opens proves nothing.
fn kvm_boots(rig: &Rig) -> Result<bool> {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(false);
    }
    let config =
        GuestConfig { disk: Disk::None, accel: Accel::Kvm, script: "exit 0\n".to_owned(), ..GuestConfig::default() };
    let dir = crate::workdir()?;
    let mut guest = Guest::boot(rig, &config, dir.path(), "kvm-probe")?;
    let booted = guest.finish(Duration::from_secs(20))?.status == Some(0);
    if !booted {
        eprintln!("rig: /dev/kvm exists but a guest does not boot with it: using TCG");
    }
    Ok(booted)
}
