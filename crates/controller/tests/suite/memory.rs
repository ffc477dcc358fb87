//! Guest memory that goes away and comes back under live queues, as firmware does it.

use dma::AddressSpace;
use nvme::Status;

use crate::host::{
    Bells, Machine, Setup, Signal, commands, config,
    disk::GatedDisk,
    memory::{Layout, Prps},
    ram,
};

fn hide(m: &mut Machine) {
    m.memory.hide();
    m.update_memory();
}

fn show(m: &mut Machine) {
    m.memory.show();
    m.update_memory();
}

#[test]
fn commands_wait_for_their_ring() {
    for layout in Layout::ALL {
        for bells in [Bells::Register, Bells::Slot] {
            let mut m = Machine::boot(config(ram(512)), Setup { layout, ..Setup::default() });
            m.create_pair(1, 16, bells);
            m.use_shadow_doorbells();
            m.write_blocks(1, 0, &[1; 512], 512);
            hide(&mut m);
            let cid = m.submit(1, commands::write_zeroes(0, 1));
            m.settle_and_serve();
            assert!(m.take(1, cid).is_none());
            show(&mut m);
            assert_eq!(m.wait(1, cid).status(), Status::SUCCESS, "{layout:?}, {bells:?}");
            m.write_blocks(1, 0, &[1; 512], 512);
        }
    }
}

#[test]
fn queues_go_on_where_their_memory_is_now() {
    for layout in Layout::ALL {
        for bells in [Bells::Register, Bells::Slot, Bells::Both] {
            let mut m = Machine::boot(config(ram(512)), Setup { layout, ..Setup::default() });
            m.create_pair(1, 5, bells);
            m.use_shadow_doorbells();
            for round in 0..6 {
                for lba in 0..7 {
                    m.write_blocks(1, lba, &[round; 512], 512);
                }
                hide(&mut m);
                m.settle();
                m.memory.show_elsewhere();
                m.attach_all();
                m.update_memory();
                assert_eq!(m.read_blocks(1, 6, 1, 512), [round; 512], "{layout:?}, {bells:?}");
            }
        }
    }
}

/// Completions of commands whose CQ is away wait for it, and then come with an interrupt.
#[test]
fn completions_wait_for_their_ring() {
    for signal in [Signal::Msix, Signal::Intx, Signal::Polled] {
        let disk = GatedDisk::new(512);
        let mut m = Machine::boot(config(disk.clone()), Setup { signal, ..Setup::default() });
        m.create_pair(1, 16, Bells::Register);
        disk.close_gate();
        let cids: Vec<u16> = (0..5).map(|lba| m.submit(1, commands::write_zeroes(lba, 1))).collect();
        m.settle();
        hide(&mut m);
        disk.release_all();
        m.settle_and_serve();
        assert_eq!(m.outstanding(1), 5);
        assert_eq!(m.take_interrupts(1) + m.take_line(), 0);
        show(&mut m);
        for cid in cids {
            assert_eq!(m.wait(1, cid).status(), Status::SUCCESS, "{signal:?}");
        }
    }
}

/// Who unmaps waits until nobody holds the old snapshot: requests in flight do, and nothing else.
#[test]
fn requests_in_flight_hold_the_old_memory_until_they_are_done() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.create_pair(1, 16, Bells::Slot);
    m.use_shadow_doorbells();
    // Idle lists, lists of PRP lists, and commands without data of before hold nothing.
    m.write_blocks(1, 0, &[1; 65536], 512);
    m.ok(1, commands::flush(1));
    let old = m.memory.snapshot();
    m.memory.hide();
    m.update_memory();
    assert!(AddressSpace::is_idle(&old), "nothing is in flight");
    m.memory.show();
    m.update_memory();
    drop(old);

    disk.close_gate();
    let (buffer, prps) = m.data(65536);
    let read = m.submit(1, commands::read(0, 128, prps));
    let zeroes = m.submit(1, commands::write_zeroes(500, 1));
    m.settle();
    let old = m.memory.snapshot();
    hide(&mut m);
    m.settle();
    assert!(!AddressSpace::is_idle(&old));
    // The write zeroes has no memory of the guest's.
    disk.release(1);
    m.settle();
    assert!(!AddressSpace::is_idle(&old));
    disk.release(0);
    m.settle();
    assert!(AddressSpace::is_idle(&old), "the read is done");
    show(&mut m);
    for cid in [read, zeroes] {
        assert_eq!(m.wait(1, cid).status(), Status::SUCCESS);
    }
    assert_eq!(m.memory.read(buffer, 65536), [1; 65536], "and its data is there");
}

#[test]
fn a_command_without_data_holds_no_memory() {
    let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.create_pair(1, 16, Bells::Register);
    m.write_blocks(1, 0, &[1; 512], 512);
    disk.close_gate();
    m.submit(1, commands::write_zeroes(500, 1));
    m.submit(1, commands::flush(1));
    m.settle();
    assert_eq!(disk.held(), 2);
    let old = m.memory.snapshot();
    hide(&mut m);
    assert!(AddressSpace::is_idle(&old));
    show(&mut m);
    disk.open_gate();
    m.drain(1);
}

#[test]
fn data_that_is_away_is_a_transfer_error() {
    let mut m = Machine::with_queue(ram(512));
    let nowhere = m.memory.nowhere();
    let sqe = commands::read(0, 1, Prps { prp1: nowhere, prp2: 0 });
    assert_eq!(m.status(1, sqe), Status::DATA_TRANSFER_ERROR.with_dnr());
}

#[test]
fn a_reset_while_memory_is_away_is_clean() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.create_pair(1, 16, Bells::Slot);
    m.use_shadow_doorbells();
    disk.close_gate();
    for lba in 0..5 {
        m.submit(1, commands::write_zeroes(lba, 1));
    }
    m.settle();
    hide(&mut m);
    // Some completions have come and found no ring.
    disk.release_some(3);
    m.settle();
    m.write32(nvme::registers::offset::CC, 0);
    disk.open_gate();
    m.settle();
    assert!(!m.csts().rdy());
    m.forget();
    // It cannot be enabled where there is no memory.
    m.prepare_admin_queues();
    let cc = m.cc();
    m.write32(nvme::registers::offset::CC, cc.0);
    assert!(m.csts().cfs());
    m.write32(nvme::registers::offset::CC, 0);
    show(&mut m);
    m.forget();
    m.enable();
    m.create_pair(1, 16, Bells::Register);
    m.write_blocks(1, 0, &[1; 512], 512);
}

#[test]
fn a_queue_may_be_deleted_while_its_memory_is_away_from_it() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.create_pair(1, 16, Bells::Register);
    disk.close_gate();
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    let deletion = m.submit(0, commands::delete_sq(1));
    m.settle();
    hide(&mut m);
    disk.open_gate();
    m.settle();
    show(&mut m);
    assert_eq!(m.wait(0, deletion).status(), Status::SUCCESS);
    assert_eq!(m.outstanding(1), 0);
}
