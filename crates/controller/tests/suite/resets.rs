//! Resets with I/O in flight and disks that stall: they may take time, late completions are thrown away, and nothing is
//! written to guest memory once they are reported done (NVMe Base 2.1 §3.7.2).

use nvme::{Status, registers::offset};
use pci::PciFunction;

use crate::host::{Bells, Machine, Setup, commands, config, disk::GatedDisk, memory::Layout, random::Random};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Disable,
    Subsystem,
    Function,
    Device,
}

const KINDS: [Kind; 4] = [Kind::Disable, Kind::Subsystem, Kind::Function, Kind::Device];

fn reset(m: &mut Machine, kind: Kind) {
    match kind {
        Kind::Disable => m.write32(offset::CC, 0),
        Kind::Subsystem => m.write32(offset::NSSR, nvme::registers::NSSR_RESET),
        Kind::Function => {
            let control = m.capability(0x10) + 8;
            m.config_write(control, &(1u16 << 15).to_le_bytes());
        }
        Kind::Device => {
            m.function.reset();
            m.wake();
        }
    }
}

fn bring_up(m: &mut Machine) {
    m.forget();
    m.set_up_pci();
    m.enable();
    m.create_pair(1, 16, Bells::Slot);
    m.write_blocks(1, 100, &[0x42; 1024], 512);
    assert_eq!(m.read_blocks(1, 100, 2, 512), [0x42; 1024]);
}

#[test]
fn a_reset_is_over_when_the_disk_has_let_go_and_not_before() {
    for kind in KINDS {
        for shadow in [false, true] {
            let disk = GatedDisk::new(512);
            let mut m = Machine::boot(config(disk.clone()), Setup::default());
            if shadow {
                m.use_shadow_doorbells();
            }
            m.create_pair(1, 16, Bells::Slot);
            disk.close_gate();
            let (buffer, prps) = m.data(4096);
            for lba in 0..5 {
                m.submit(1, commands::read(lba, 8, prps));
            }
            m.settle();
            m.take_interrupts(1);
            let (cq, acq) = (m.cqs[&1].base, m.cqs[&0].base);
            let rings = [m.memory.read(cq, 256), m.memory.read(acq, 512)];
            reset(&mut m, kind);
            m.settle();
            assert!(m.csts().rdy() && !m.function.is_quiet(), "{kind:?}: RDY is held");
            assert!(disk.cancels() > 0, "{kind:?}: the disk was asked to hurry");
            disk.release_some(4);
            m.settle();
            assert!(m.csts().rdy() && !m.function.is_quiet(), "{kind:?}: one is left");
            disk.release_all();
            m.settle();
            assert!(!m.csts().rdy() && m.function.is_quiet(), "{kind:?}");
            // No completion, no interrupt.
            assert_eq!([m.memory.read(cq, 256), m.memory.read(acq, 512)], rings, "{kind:?}");
            assert_eq!(m.take_interrupts(1), 0);
            // And from now on the memory is the guest's.
            for at in [cq, acq, buffer] {
                m.memory.write(at, &[0x99; 4096]);
            }
            m.write_sq_doorbell(1, 3);
            m.settle();
            for at in [cq, acq, buffer] {
                assert_eq!(m.memory.read(at, 4096), [0x99; 4096], "{kind:?}");
            }
            disk.open_gate();
            bring_up(&mut m);
        }
    }
}

/// What no disk has seen yet is not sent to it any more.
#[test]
fn commands_that_wait_for_a_full_disk_are_dropped() {
    for kind in KINDS {
        let disk = GatedDisk::new(512);
        disk.limit(2);
        disk.close_gate();
        let mut m = Machine::boot(config(disk.clone()), Setup::default());
        m.create_pair(1, 16, Bells::Register);
        let (buffer, prps) = m.data(4096);
        for i in 0..9u64 {
            m.memory.write_u64s(buffer + 16 * i, &[1 << 32, i]);
        }
        m.submit(1, commands::deallocate(9, prps));
        m.submit(1, commands::write_zeroes(0, 1));
        m.settle();
        reset(&mut m, kind);
        m.settle();
        assert!(m.csts().rdy());
        disk.release_all();
        m.settle();
        assert!(!m.csts().rdy(), "{kind:?}");
        assert_eq!(disk.seen().len(), 2);
        disk.open_gate();
        disk.limit(usize::MAX);
        bring_up(&mut m);
    }
}

#[test]
fn a_reset_takes_waiting_events_and_deletions_with_it() {
    for kind in KINDS {
        let disk = GatedDisk::new(512);
        disk.close_gate();
        let mut m = Machine::boot(config(disk.clone()), Setup::default());
        m.create_pair(1, 16, Bells::Register);
        for _ in 0..4 {
            m.submit(0, commands::event_request());
        }
        m.submit(1, commands::write_zeroes(0, 1));
        m.submit(0, commands::delete_sq(1));
        m.write_sq_doorbell(1, 999);
        m.settle();
        reset(&mut m, kind);
        disk.open_gate();
        m.settle();
        bring_up(&mut m);
        // Four requests find room again, and no event of before comes.
        for _ in 0..4 {
            m.submit(0, commands::event_request());
        }
        m.settle_and_serve();
        assert_eq!(m.outstanding(0), 4, "{kind:?}");
    }
}

#[test]
fn resets_in_the_middle_of_resets_end_once() {
    let mut random = Random::new(11);
    for _ in 0..60 {
        let disk = GatedDisk::new(512);
        disk.close_gate();
        let mut m = Machine::boot(config(disk.clone()), Setup::default());
        m.create_pair(1, 16, Bells::Register);
        for lba in 0..3 {
            m.submit(1, commands::write_zeroes(lba, 1));
        }
        m.settle();
        for _ in 0..1 + random.below(5) {
            let kind = random.pick(&KINDS);
            reset(&mut m, kind);
            if random.one_in(2) {
                m.turn();
            }
            if random.one_in(3) {
                let cc = m.cc();
                m.write32(offset::CC, cc.0);
            }
            m.settle();
            assert!(m.csts().rdy());
        }
        m.write32(offset::CC, 0);
        disk.open_gate();
        m.settle();
        assert!(m.function.is_quiet() && !m.csts().rdy());
        bring_up(&mut m);
    }
}

#[test]
fn a_thousand_cycles_under_load() {
    let disk = GatedDisk::new(512);
    let mut random = Random::new(1);
    let mut m = Machine::power_on(config(disk.clone()), Setup { layout: Layout::Low, ..Setup::default() });
    m.set_up_pci();
    m.prepare_admin_queues();
    let (asq, acq) = (m.sqs[&0].base, m.cqs[&0].base);
    let rings: Vec<(u64, u64)> = (0..3).map(|_| (m.alloc_ring(32, 64), m.alloc_ring(32, 16))).collect();
    let pages = (m.buffer(4096), m.buffer(4096));
    let (_, prps) = m.data(8192);
    for vector in 0..4 {
        m.connect(vector);
    }
    for cycle in 0..1000u64 {
        // The same memory again, cleared as a driver does.
        m.forget();
        m.memory.write(acq, &[0; 512]);
        let depth = m.setup.admin_depth;
        m.add_cq(0, depth, acq, Some(0), Bells::Register);
        m.add_sq(0, depth, asq, 0, Bells::Register);
        m.write32(offset::CC, m.cc().0);
        m.run_until("ready", |m| m.csts().rdy());
        if random.one_in(2) {
            m.memory.write(pages.0, &[0; 4096]);
            m.memory.write(pages.1, &[0; 4096]);
            m.ok(0, commands::doorbell_buffer_config(pages.0, pages.1));
            m.shadow = Some(pages);
        }
        for (qid, (sq, cq)) in (1..).zip(&rings) {
            let depth = u32::try_from(2 + random.below(31)).unwrap();
            m.memory.write(*cq, &[0; 512]);
            m.add_cq(qid, depth, *cq, Some(qid), Bells::Slot);
            m.add_sq(qid, depth, *sq, qid, Bells::Slot);
            m.ok(0, commands::create_cq(qid, depth, *cq, Some(qid)));
            m.ok(0, commands::create_sq(qid, depth, *sq, qid));
        }
        if random.one_in(2) {
            disk.close_gate();
        }
        for _ in 0..random.below(60) {
            let qid = u16::try_from(1 + random.below(3)).unwrap();
            if m.sqs[&qid].room() > 0 {
                m.submit(qid, commands::read(random.below(4096), 16, prps));
            }
            if random.one_in(3) {
                m.turn();
            }
            if random.one_in(5) {
                m.serve_interrupts();
            }
            if random.one_in(9) {
                disk.release_randomly(&mut random);
            }
        }
        m.write32(offset::CC, m.cc().with_en(false).0);
        disk.open_gate();
        while m.csts().rdy() {
            assert!(m.turn(), "RDY never clears in cycle {cycle}");
        }
    }
    disk.open_gate();
    bring_up(&mut m);
    let report = m.function.report();
    assert_eq!((report.device.enables, report.device.resets), (1001, 1000));
}

#[test]
fn a_client_that_vanishes_leaves_a_clean_function() {
    let disk = GatedDisk::new(512);
    disk.close_gate();
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.use_shadow_doorbells();
    m.create_pair(1, 16, Bells::Slot);
    let (_, prps) = m.data(4096);
    for lba in 0..5 {
        m.submit(1, commands::read(lba, 8, prps));
    }
    m.settle();
    // As the server ends a session: reset, no vectors, no memory.
    m.function.reset();
    m.disconnect(0);
    m.disconnect(1);
    let old = m.memory.snapshot();
    m.memory.hide();
    m.update_memory();
    m.settle();
    assert!(!m.function.is_quiet() && !dma::AddressSpace::is_idle(&old));
    disk.open_gate();
    m.settle();
    assert!(m.function.is_quiet() && dma::AddressSpace::is_idle(&old));
    // The next one.
    m.memory.show();
    m.update_memory();
    bring_up(&mut m);
    assert_eq!(m.status(0, commands::delete_sq(2)), Status::INVALID_QUEUE_ID.with_dnr());
}
