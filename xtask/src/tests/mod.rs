//! `xtask vm-tests`: stories of stock guests on shadowbell disks.
//!
//! Each test starts its own server and guests. Waiting is always for something, with a
//! generous limit. With `--reference` the same stories are run on QEMU's own NVMe device:
//! what fails there too is the fault of the rig, not of shadowbell.

mod bench;
mod data;
mod doorbells;
mod firmware;
mod management;

use std::time::Instant;

use clap::Args;

use crate::fault::{Fault, Result, bail};
use crate::process;
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};
use crate::server;
use bench::Bench;

/// Options of `xtask vm-tests`.
#[derive(Args, Debug)]
pub(crate) struct VmTestsArgs {
    /// Run only tests whose name contains one of these
    filter: Vec<String>,
    /// Only print the names
    #[arg(long)]
    list: bool,
    /// Run only what is for this kernel
    #[arg(long, value_enum)]
    kernel: Option<Kernel>,
    /// How QEMU runs the guests
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accel,
    /// Run on QEMU's own nvme device instead (claims about our statistics are left out)
    #[arg(long)]
    reference: bool,
}

struct Test {
    name: &'static str,
    kernels: &'static [Kernel],
    run: fn(&mut Bench) -> Result<()>,
}

const BOTH: &[Kernel] = &Kernel::ALL;
const OLD: &[Kernel] = &[Kernel::V6_12];

const TESTS: &[Test] = &[
    Test { name: "ext4_survives_a_reboot", kernels: BOTH, run: data::ext4_survives_a_reboot },
    Test { name: "fio_verifies_random_writes", kernels: BOTH, run: data::fio_verifies_random_writes },
    Test { name: "shadow_doorbells_are_used", kernels: BOTH, run: doorbells::shadow_doorbells_are_used },
    Test { name: "registers_alone_work", kernels: BOTH, run: doorbells::registers_alone_work },
    Test { name: "mapped_doorbells_are_no_messages", kernels: BOTH, run: doorbells::mapped_doorbells_are_no_messages },
    Test {
        name: "mapped_doorbells_survive_reboots_and_rebinds",
        kernels: OLD,
        run: doorbells::mapped_doorbells_survive_reboots_and_rebinds,
    },
    Test { name: "twenty_resets_under_load", kernels: BOTH, run: management::twenty_resets_under_load },
    Test { name: "twenty_rebinds_under_load", kernels: BOTH, run: management::twenty_rebinds_under_load },
    Test { name: "discard_and_zeroes_make_holes", kernels: OLD, run: data::discard_and_zeroes_make_holes },
    Test { name: "nvme_cli_sees_a_sane_controller", kernels: BOTH, run: management::nvme_cli_sees_a_sane_controller },
    Test { name: "two_namespaces", kernels: OLD, run: data::two_namespaces },
    Test { name: "two_devices_of_one_worker", kernels: OLD, run: data::two_devices_of_one_worker },
    Test { name: "seabios_boots_from_the_disk", kernels: OLD, run: firmware::seabios_boots_from_the_disk },
    Test { name: "ovmf_boots_from_the_disk", kernels: OLD, run: firmware::ovmf_boots_from_the_disk },
    Test { name: "queues_of_two_entries", kernels: OLD, run: doorbells::queues_of_two_entries },
    Test { name: "driver_asks_for_two_entries", kernels: OLD, run: doorbells::driver_asks_for_two_entries },
    Test { name: "queues_of_1024_entries", kernels: OLD, run: doorbells::queues_of_1024_entries },
    Test { name: "killed_guest_leaves_what_it_flushed", kernels: OLD, run: data::killed_guest_leaves_what_it_flushed },
];

/// Runs the tests; the result is the exit status.
pub(crate) fn run(args: &VmTestsArgs) -> Result<u8> {
    let mut chosen = Vec::new();
    for test in TESTS {
        for kernel in test.kernels {
            let name = format!("{}/{}", test.name, kernel.name());
            let wanted = args.filter.is_empty() || args.filter.iter().any(|part| name.contains(part.as_str()));
            if wanted && args.kernel.is_none_or(|only| only == *kernel) {
                chosen.push((name, *kernel, test.run));
            }
        }
    }
    if args.list {
        for (name, ..) in &chosen {
            println!("{name}");
        }
        return Ok(0);
    }
    if chosen.is_empty() {
        bail!("no VM test matches; cargo xtask vm-tests --list shows their names");
    }
    let rig = Rig::ready()?;
    let accel = args.accel.resolve(&rig)?;
    let program = if args.reference { None } else { Some(server::build()?) };
    let (mut passed, mut failed) = (0, 0);
    for (name, kernel, test) in chosen {
        let started = Instant::now();
        let mut bench = Bench::new(&rig, program.clone(), kernel, accel)?;
        let result = test(&mut bench);
        process::check_interrupt()?;
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                passed += 1;
                println!("ok {name} ({seconds:.1} s)");
            }
            Err(fault) => {
                failed += 1;
                report(&name, seconds, &fault, &bench);
            }
        }
    }
    println!("\n{passed} passed, {failed} failed");
    Ok(u8::from(failed > 0))
}

fn report(name: &str, seconds: f64, fault: &Fault, bench: &Bench) {
    println!("FAILED {name} ({seconds:.1} s)");
    println!("  {fault}");
    for (log, tail) in bench.log_tails() {
        print!("  end of {log}:\n{tail}");
    }
}
