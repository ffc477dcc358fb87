//! Enable, disable, shutdown, resets of every kind, with no I/O in flight (NVMe Base 2.1 §3.1.4.5, §3.5, §3.6, §3.7).

use nvme::{
    Status,
    identify::Cns,
    registers::{Cap, Cc, Csts, NSSR_RESET, ShutdownNotification, ShutdownStatus, offset},
};
use pci::PciFunction;

use crate::host::{
    Bells, Machine, Setup, Signal, commands, config,
    disk::GatedDisk,
    memory::{Layout, Prps},
    ram,
};

fn works(m: &mut Machine) {
    let page = m.fetch(4096, |prps| commands::identify(Cns::CONTROLLER, 0, prps));
    assert_eq!(&page[4..12], b"TEST0001");
}

fn shut_down(m: &mut Machine, how: ShutdownNotification) {
    let cc = Cc(m.read32(offset::CC)).with_shn(how);
    m.write32(offset::CC, cc.0);
}

/// Device Control, Initiate Function Level Reset (PCIe Base §7.5.3.4).
fn flr(m: &mut Machine) {
    let control = m.capability(0x10) + 8;
    let value = m.config_u16(control) | 1 << 15;
    m.config_write(control, &value.to_le_bytes());
}

#[test]
fn power_on_shows_what_the_controller_is() {
    let mut c = config(ram(512));
    c.io_queues = 64;
    c.queue_entries = 1024;
    let mut m = Machine::power_on(c, Setup::default());
    let cap = Cap(m.read64(offset::CAP));
    assert_eq!((cap.mqes_z(), cap.dstrd(), cap.mpsmin(), cap.mpsmax()), (1023, 0, 0, 4));
    assert!(cap.cqr() && cap.nssrs() && cap.css() & 1 != 0 && cap.to_500ms() > 0);
    assert_eq!(m.read32(offset::VS), 0x0002_0000);
    for at in [offset::CC, offset::CSTS, offset::AQA, offset::INTMS, offset::ASQ, offset::ACQ] {
        assert_eq!(m.read32(at), 0, "{at:#x}");
    }
    // Class 01h, subclass 08h, interface 02h; INTA.
    assert_eq!((m.config_u16(0x0a), m.config_u16(0x08) >> 8, m.config_u16(0x3c) >> 8), (0x0108, 0x02, 1));
    let bars = m.function.bars();
    // Windows' driver wants 16 KiB at least, 64-bit.
    assert!(bars[0].is_some_and(|b| b.size >= 0x4000 && b.is_64bit) && bars[1].is_none());
    assert_eq!(m.function.msix_vectors(), 65);
}

#[test]
fn it_becomes_ready_with_every_page_size_and_wherever_memory_is() {
    for layout in Layout::ALL {
        for mps in 0..=4 {
            let mut m = Machine::boot(config(ram(512)), Setup { layout, mps, ..Setup::default() });
            works(&mut m);
            m.create_pair(1, 16, Bells::Register);
            m.write_blocks(1, 3, &[0x5a; 1024], 512);
            assert_eq!(m.read_blocks(1, 3, 2, 512), [0x5a; 1024], "{layout:?}, MPS {mps}");
        }
    }
}

#[test]
fn admin_queues_have_2_to_4096_entries() {
    for admin_depth in [2, 3, 4096] {
        let mut m = Machine::boot(config(ram(512)), Setup { admin_depth, ..Setup::default() });
        for _ in 0..10 {
            works(&mut m);
        }
    }
}

#[test]
fn what_cannot_be_enabled_is_fatal_until_it_is_disabled() {
    let mut m = Machine::power_on(config(ram(512)), Setup::default());
    m.set_up_pci();
    m.prepare_admin_queues();
    let good = m.cc();
    let (asq, aqa, nowhere) = (m.read64(offset::ASQ), m.read32(offset::AQA), m.memory.nowhere());
    type Spoil<'a> = (&'a str, &'a dyn Fn(&mut Machine));
    let spoils: [Spoil<'_>; 9] = [
        ("MPS above MPSMAX", &|m| m.write32(offset::CC, good.with_mps(5).0)),
        ("unknown CSS", &|m| m.write32(offset::CC, good.with_css(1).0)),
        ("no admin-only CSS", &|m| m.write32(offset::CC, good.with_css(7).0)),
        ("AMS not on offer", &|m| m.write32(offset::CC, good.with_ams(1).0)),
        ("ASQ at nothing", &|m| m.write64(offset::ASQ, nowhere)),
        ("ACQ at nothing", &|m| m.write64(offset::ACQ, u64::MAX - 0xfff)),
        ("ASQ of one entry", &|m| m.write32(offset::AQA, 31 << 16)),
        ("ACQ of one entry", &|m| m.write32(offset::AQA, 31)),
        ("ASQ off its page", &|m| {
            m.write64(offset::ASQ, asq + 0x1000);
            m.write32(offset::CC, good.with_mps(4).0);
        }),
    ];
    for (what, spoil) in spoils {
        let acq = m.read64(offset::ACQ);
        spoil(&mut m);
        let cc = Cc(m.read32(offset::CC));
        m.write32(offset::CC, if cc.en() { cc } else { good }.0);
        m.settle();
        assert_eq!(m.csts(), Csts(0).with_cfs(true), "{what}");
        m.write32(offset::CC, 0);
        m.settle();
        assert_eq!(m.csts(), Csts(0), "{what}: disabled again");
        m.write64(offset::ASQ, asq);
        m.write64(offset::ACQ, acq);
        m.write32(offset::AQA, aqa);
    }
    m.write32(offset::CC, good.0);
    m.run_until("ready after all", |m| m.csts().rdy());
    works(&mut m);
}

#[test]
fn css_selects_all_supported_command_sets_too() {
    let mut m = Machine::power_on(config(ram(512)), Setup::default());
    m.set_up_pci();
    m.prepare_admin_queues();
    let cc = m.cc().with_css(6);
    m.write32(offset::CC, cc.0);
    m.run_until("ready", |m| m.csts().rdy());
    works(&mut m);
}

/// Windows' driver compares.
#[test]
fn admin_queue_registers_read_back_what_was_written_also_while_enabled() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    let old = (m.read32(offset::AQA), m.read64(offset::ASQ), m.read64(offset::ACQ));
    m.write32(offset::AQA, 0x00ff_00fe);
    m.write64(offset::ASQ, 0x1234_5678_9abc_d000);
    m.write32(offset::ACQ, 0xfffff000);
    m.write32(offset::ACQ + 4, 0xffffffff);
    assert_eq!(m.read32(offset::AQA), 0x00ff_00fe);
    assert_eq!(m.read64(offset::ASQ), 0x1234_5678_9abc_d000);
    assert_eq!(m.read64(offset::ACQ), 0xffff_ffff_ffff_f000);
    works(&mut m);
    m.write32(offset::AQA, old.0);
    m.write64(offset::ASQ, old.1);
    m.write64(offset::ACQ, old.2);
    works(&mut m);
}

/// NVMe Base 2.1 §3.7.2: a Controller Reset keeps AQA, ASQ and ACQ.
#[test]
fn disabling_keeps_the_admin_queue_registers_and_forgets_the_rest() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.write32(offset::INTMS, 1);
    let kept = (m.read32(offset::AQA), m.read64(offset::ASQ), m.read64(offset::ACQ), m.read32(offset::CC) & !1);
    m.disable();
    assert_eq!((m.read32(offset::AQA), m.read64(offset::ASQ), m.read64(offset::ACQ), m.read32(offset::CC)), kept);
    assert_eq!((m.read32(offset::INTMS), m.csts()), (0, Csts(0)));
    m.enable();
    works(&mut m);
}

#[test]
fn doorbells_before_ready_are_nothing() {
    let mut m = Machine::power_on(config(ram(512)), Setup::default());
    m.set_up_pci();
    for at in (0x1000..0x1100).step_by(4) {
        m.write32(at, 0xffff_ffff);
        m.write32(at, 1);
    }
    m.settle();
    m.enable();
    works(&mut m);
    assert_eq!(m.counters(0).invalid_doorbells, 0);
}

#[test]
fn without_bus_master_nothing_is_fetched() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.config_write(4, &2u16.to_le_bytes());
    let (_, prps) = m.data(4096);
    let cid = m.submit(0, commands::identify(Cns::CONTROLLER, 0, prps));
    m.settle_and_serve();
    assert!(m.take(0, cid).is_none());
    assert!(m.csts().rdy());
    m.config_write(4, &6u16.to_le_bytes());
    assert_eq!(m.wait(0, cid).status(), Status::SUCCESS);
}

/// PCI 3.0 §6.2.2: with Bus Master 0 the function generates no accesses. A guest that crashed relies on it.
#[test]
fn without_bus_master_nothing_is_completed_until_it_is_back() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    let (_, prps) = m.data(512);
    let cids = [m.submit(1, commands::read(0, 1, prps)), m.submit(1, commands::read(1, 1, prps))];
    m.settle();
    m.config_write(4, &2u16.to_le_bytes());
    let ring = m.memory.read(m.cqs[&1].base, 64 * 16);
    disk.release_all();
    m.settle();
    assert_eq!(m.memory.read(m.cqs[&1].base, 64 * 16), ring, "the ring is as it was");
    assert_eq!(m.take_interrupts(1), 0);
    m.config_write(4, &6u16.to_le_bytes());
    for cid in cids {
        assert_eq!(m.wait(1, cid).status(), Status::SUCCESS);
    }
}

// ---- shutdown -----------------------------------------------------------------------------------------------------------

#[test]
fn shutdown_is_complete_when_every_cache_is_flushed() {
    for how in [ShutdownNotification::NORMAL, ShutdownNotification::ABRUPT] {
        let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
        let mut m = Machine::boot(config(disk.clone()), Setup::default());
        disk.close_gate();
        shut_down(&mut m, how);
        m.settle();
        assert_eq!(m.csts().shst(), ShutdownStatus::OCCURRING);
        assert_eq!(disk.seen(), [block::Operation::Flush]);
        disk.release_all();
        m.run_until("the shutdown is complete", |m| m.csts().shst() == ShutdownStatus::COMPLETE);
        // NVMe Base 2.1 §3.6: a Controller Reset is what brings the controller back.
        m.disable();
        assert_eq!(m.csts(), Csts(0));
        disk.open_gate();
        m.enable();
        works(&mut m);
    }
}

#[test]
fn shutdown_with_nothing_to_flush_is_complete_at_once() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    shut_down(&mut m, ShutdownNotification::NORMAL);
    assert_eq!(m.csts(), Csts(0).with_rdy(true).with_shst(ShutdownStatus::COMPLETE));
}

#[test]
fn shutdown_and_disable_in_one_write_end_both() {
    let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    let (_, prps) = m.data(512);
    m.submit(1, commands::read(0, 1, prps));
    m.settle();
    let cc = m.cc().with_en(false).with_shn(ShutdownNotification::NORMAL);
    m.write32(offset::CC, cc.0);
    m.settle();
    assert!(m.csts().rdy(), "a read is in flight");
    disk.release_all();
    m.run_until("not ready, shutdown complete", |m| m.csts() == Csts(0).with_shst(ShutdownStatus::COMPLETE));
}

#[test]
fn a_reset_without_shutdown_is_unsafe_and_one_after_it_is_not() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    let count = |m: &mut Machine| {
        let log = m.fetch(512, |prps| commands::get_log(nvme::logs::LogId::SMART, 0, 512, prps));
        u128::from_le_bytes(log[144..160].try_into().unwrap())
    };
    let restart = |m: &mut Machine| {
        m.function.reset();
        m.wake();
        m.settle();
        m.forget();
        m.set_up_pci();
        m.enable();
    };
    assert_eq!(count(&mut m), 0);
    restart(&mut m);
    assert_eq!(count(&mut m), 1);
    shut_down(&mut m, ShutdownNotification::NORMAL);
    restart(&mut m);
    assert_eq!(count(&mut m), 1);
}

// ---- the other resets ---------------------------------------------------------------------------------------------------

#[test]
fn nvm_subsystem_reset_clears_all_and_says_so_until_told() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.write32(offset::NSSR, NSSR_RESET ^ 1);
    m.settle();
    assert!(m.csts().rdy(), "any other word is nothing");
    m.write32(offset::NSSR, NSSR_RESET);
    m.settle();
    m.forget();
    assert_eq!(m.csts(), Csts(0).with_nssro(true));
    for at in [offset::CC, offset::AQA, offset::ASQ, offset::ACQ] {
        assert_eq!(m.read32(at), 0, "{at:#x}");
    }
    m.enable();
    assert_eq!(m.csts(), Csts(0).with_nssro(true).with_rdy(true));
    works(&mut m);
    // NVMe Base 2.1 §3.1.4.6: NSSRO stands until the host writes 1 to it, or the power goes; a Controller Reset is neither.
    m.disable();
    assert_eq!(m.csts(), Csts(0).with_nssro(true));
    m.write32(offset::CC, m.cc().with_mps(9).0);
    assert!(m.csts().cfs() && m.csts().nssro());
    m.write32(offset::CC, 0);
    assert_eq!(m.csts(), Csts(0).with_nssro(true));
    m.write32(offset::CSTS, 0xffff_ffef);
    assert!(m.csts().nssro());
    m.write32(offset::CSTS, 1 << 4);
    assert_eq!(m.csts(), Csts(0));
}

#[test]
fn function_level_reset_is_as_power_on() {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.create_pair(1, 8, Bells::Register);
    flr(&mut m);
    m.settle();
    assert!(m.function.is_quiet());
    m.forget();
    for at in [offset::CC, offset::CSTS, offset::AQA, offset::ASQ, offset::ACQ] {
        assert_eq!(m.read32(at), 0, "{at:#x}");
    }
    assert_eq!(m.config_u16(4), 0, "Command");
    let msix = m.capability(0x11);
    assert_eq!(m.config_u16(msix + 2) >> 14, 0, "MSI-X is off");
    m.set_up_pci();
    m.enable();
    m.create_pair(1, 8, Bells::Register);
    m.write_blocks(1, 0, &[1; 512], 512);
}

/// The guest waits 100 ms after FLR and goes on, whatever a stalled disk does: what it writes meanwhile must count.
#[test]
fn what_is_written_while_a_reset_drains_is_kept() {
    for subsystem in [false, true] {
        let disk = GatedDisk::new(512);
        let mut m = Machine::with_queue(disk.clone());
        disk.close_gate();
        let (_, prps) = m.data(512);
        m.submit(1, commands::read(0, 1, prps));
        m.settle();
        if subsystem {
            m.write32(offset::NSSR, NSSR_RESET);
        } else {
            flr(&mut m);
        }
        m.settle();
        assert!(m.csts().rdy() && !m.function.is_quiet(), "a read is in flight");
        assert_eq!((m.read32(offset::CC), m.read32(offset::AQA)), (0, 0));
        m.forget();
        m.set_up_pci();
        m.prepare_admin_queues();
        let cc = m.cc();
        m.write32(offset::CC, cc.0);
        m.settle();
        disk.open_gate();
        m.run_until("drained, and enabled anew", |m| m.function.is_quiet() && m.csts().rdy());
        works(&mut m);
        assert_eq!(m.csts().nssro(), subsystem);
    }
}

#[test]
fn enabling_again_before_the_reset_is_over_is_not_forgotten() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    let (_, prps) = m.data(512);
    m.submit(1, commands::read(0, 1, prps));
    m.settle();
    let cc = m.cc();
    m.write32(offset::CC, cc.with_en(false).0);
    m.forget();
    m.prepare_admin_queues();
    m.write32(offset::CC, cc.0);
    m.settle();
    disk.open_gate();
    m.run_until("enabled anew", |m| m.function.is_quiet() && m.csts().rdy());
    works(&mut m);
    // The old queue is gone.
    assert_eq!(m.status(0, commands::delete_sq(1)), Status::INVALID_QUEUE_ID.with_dnr());
}

#[test]
fn a_controller_without_namespaces_is_legal() {
    let mut c = config(ram(512));
    c.namespaces.clear();
    let mut m = Machine::boot(c, Setup::default());
    works(&mut m);
    m.create_pair(1, 8, Bells::Register);
    let invalid = Status::INVALID_NAMESPACE.with_dnr();
    assert_eq!(m.status(1, commands::read(0, 1, Prps::default())), invalid);
    assert_eq!(m.status(1, commands::flush(1)), invalid);
    assert_eq!(m.status(1, commands::flush(nvme::NSID_BROADCAST)), Status::SUCCESS);
    shut_down(&mut m, ShutdownNotification::NORMAL);
    assert_eq!(m.csts().shst(), ShutdownStatus::COMPLETE);
}

#[test]
fn every_kind_of_interrupt_brings_up_a_queue() {
    for signal in [Signal::Msix, Signal::Intx, Signal::Polled] {
        let mut m = Machine::boot(config(ram(512)), Setup { signal, ..Setup::default() });
        m.create_pair(1, 8, Bells::Register);
        for lba in 0..30 {
            m.write_blocks(1, lba, &[7; 512], 512);
        }
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let check = |change: &dyn Fn(&mut shadowbell_controller::Config), word: &str| {
        let mut c = config(ram(512));
        change(&mut c);
        let error = shadowbell_controller::NvmeFunction::new(c).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    check(&|c| c.serial = String::new(), "serial");
    check(&|c| c.serial = "x".repeat(21), "serial");
    check(&|c| c.model = "nöt ascii".into(), "model");
    check(&|c| c.io_queues = 0, "I/O queues");
    check(&|c| c.io_queues = 512, "I/O queues");
    check(&|c| c.queue_entries = 1, "queue depth");
    check(&|c| c.queue_entries = 4097, "queue depth");
}

/// What a program does before it ends.
#[test]
fn a_flush_by_the_owner_is_done_when_the_function_is_quiet() {
    for room in [1, usize::MAX] {
        let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
        let mut m = Machine::power_on(config(disk.clone()), Setup::default());
        disk.close_gate();
        disk.limit(room);
        m.function.flush();
        m.function.flush();
        m.wake();
        m.settle();
        assert!(!m.function.is_quiet());
        // The second one waits where the disk takes one request at a time.
        for _ in 0..2 {
            disk.release_all();
            m.settle();
        }
        assert!(m.function.is_quiet());
        assert_eq!(disk.seen(), [block::Operation::Flush; 2]);
    }
}
