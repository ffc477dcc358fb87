//! Doorbell Buffer Config (NVMe Base 2.1 §5.2.5): what it takes, what it changes, what ends it.

use std::sync::atomic::Ordering;

use nvme::{
    Status, SubmissionQueueEntry,
    logs::AsyncEvent,
    registers::offset,
    shadow::{cq_slot, sq_slot},
};
use pci::PciFunction;
use shadowbell_controller::{Config, DoorbellCommand, DoorbellMode};

use crate::host::{
    Bells, Machine, Setup, commands, config,
    disk::GatedDisk,
    memory::{Layout, Prps},
    ram,
};

fn machine(setup: Setup) -> Machine {
    Machine::boot(config(ram(512)), setup)
}

fn io(m: &mut Machine, qid: u16, n: u64) {
    for lba in 0..n {
        m.ok(qid, commands::write_zeroes(lba, 1));
    }
}

#[test]
fn bad_pages_are_refused_and_nothing_changes() {
    for mps in [0, 4] {
        let mut m = machine(Setup { mps, ..Setup::default() });
        m.create_pair(1, 16, Bells::Slot);
        let (shadow, event) = m.use_shadow_doorbells();
        io(&mut m, 1, 40);
        let page = m.page;
        let (a, b, nowhere) = (m.buffer(page), m.buffer(page), m.memory.nowhere());
        // Where a guest may have put BAR0.
        m.config_write(0x10, &0xfe00_0000u32.to_le_bytes());
        for (what, first, second) in [
            ("equal", a, a),
            ("PRP1 off its page", a + 8, b),
            ("PRP2 off its page", a, b + 4),
            ("PRP1 off by 2 KiB", a + 2048, b),
            ("PRP1 at nothing", nowhere, b),
            ("PRP2 at nothing", a, nowhere),
            ("both 0", 0, 0),
            ("PRP2 0", a, 0),
            ("the own BAR", 0xfe00_0000, b),
            ("the end of all", a, u64::MAX - page + 1),
        ] {
            let refused = m.status(0, commands::doorbell_buffer_config(first, second));
            assert_eq!(refused, Status::INVALID_FIELD.with_dnr(), "{what}");
            assert!(m.memory.read(a, 4096).iter().chain(&m.memory.read(b, 4096)).all(|x| *x == 0), "{what}");
        }
        // The pages of before still work, and no register was needed for the CQ.
        assert_eq!(m.shadow, Some((shadow, event)));
        let before = m.counters(1).cq_doorbell_writes;
        io(&mut m, 1, 40);
        assert_eq!(m.counters(1).cq_doorbell_writes, before);
        assert_eq!(m.function.report().device.doorbell_buffer_config_refused, 10);
    }
}

#[test]
fn it_takes_a_whole_page_of_the_hosts_size() {
    // Ranges of 16 KiB make a page of 64 KiB four pieces; the last page of RAM is cut off by starting 4 KiB before the end.
    let mut m = machine(Setup { layout: Layout::Pieces, mps: 4, ..Setup::default() });
    m.create_pair(1, 16, Bells::Slot);
    m.use_shadow_doorbells();
    io(&mut m, 1, 40);
    assert!(m.function.report().device.shadow_doorbells);
}

/// A device that does not advertise it fails it, and the driver goes on by register.
#[test]
fn where_it_is_not_on_offer_it_is_no_opcode() {
    let mut c = config(ram(512));
    c.doorbells = DoorbellMode::Register;
    let mut m = Machine::boot(c, Setup::default());
    m.create_pair(1, 16, Bells::Slot);
    let (a, b) = (m.buffer(4096), m.buffer(4096));
    assert_eq!(m.status(0, commands::doorbell_buffer_config(a, b)), Status::INVALID_OPCODE.with_dnr());
    io(&mut m, 1, 40);
}

/// The vendor's form of 2016 is for guests of another PCI id: C0h instead of 7Ch, after the I/O queues exist, with a status of
/// its own.
#[test]
fn the_vendor_form_is_on_offer_instead_where_it_was_asked_for() {
    let vendor = |sqe| SubmissionQueueEntry { opcode: 0xc0, ..sqe };
    let unknown = Status::INVALID_OPCODE.with_dnr();
    let mut m = machine(Setup::default());
    let (a, b) = (m.buffer(4096), m.buffer(4096));
    assert_eq!(m.status(0, vendor(commands::doorbell_buffer_config(a, b))), unknown);

    let mut m =
        Machine::boot(Config { doorbell_command: DoorbellCommand::Vendor, ..config(ram(512)) }, Setup::default());
    let id = m.fetch(4096, |prps| commands::identify(nvme::identify::Cns::CONTROLLER, 0, prps));
    assert_eq!(id[257] & 1, 0, "OACS bit 8");
    m.create_pair(1, 16, Bells::Slot);
    io(&mut m, 1, 5);
    let (shadow, event) = (m.buffer(4096), m.buffer(4096));
    assert_eq!(m.status(0, commands::doorbell_buffer_config(shadow, event)), unknown);
    let refused = m.status(0, vendor(commands::doorbell_buffer_config(shadow, shadow)));
    assert_eq!(refused, Status::VENDOR_DOORBELL_MEMORY_INVALID.with_dnr());
    m.ok(0, vendor(commands::doorbell_buffer_config(shadow, event)));
    m.shadow = Some((shadow, event));
    m.attach_all();
    io(&mut m, 1, 40);
    let before = m.counters(1).cq_doorbell_writes;
    io(&mut m, 1, 40);
    assert_eq!(m.counters(1).cq_doorbell_writes, before);
}

#[test]
fn queues_of_before_and_after_use_their_slots() {
    for layout in Layout::ALL {
        let mut m = machine(Setup { layout, ..Setup::default() });
        m.create_pair(1, 16, Bells::Slot);
        io(&mut m, 1, 5);
        m.use_shadow_doorbells();
        m.create_pair(2, 16, Bells::Slot);
        for qid in [1, 2] {
            io(&mut m, qid, 40);
            let before = m.counters(qid).cq_doorbell_writes;
            io(&mut m, qid, 40);
            assert_eq!(m.counters(qid).cq_doorbell_writes, before, "queue {qid}");
            m.settle();
            assert!(m.counters(qid).arms_won > 0);
        }
    }
}

/// Linux and others never use the slots of queue 0: a device that waits for them hangs the admin queue.
#[test]
fn the_admin_queue_goes_on_by_register() {
    let mut m = machine(Setup { admin_depth: 3, ..Setup::default() });
    m.use_shadow_doorbells();
    for _ in 0..20 {
        m.ok(0, commands::set_feature(nvme::features::FeatureId::ARBITRATION, 0));
    }
    assert_eq!(m.slot(false, sq_slot(0, 0)).load(Ordering::Relaxed), 0);
}

/// ... and who uses them is served too.
#[test]
fn the_admin_queue_may_use_its_slots() {
    for bells in [Bells::Slot, Bells::Both] {
        let mut m = machine(Setup { admin_depth: 3, ..Setup::default() });
        m.sqs.get_mut(&0).unwrap().bells = bells;
        m.cqs.get_mut(&0).unwrap().bells = bells;
        m.use_shadow_doorbells();
        for _ in 0..20 {
            m.ok(0, commands::set_feature(nvme::features::FeatureId::ARBITRATION, 0));
        }
    }
}

#[test]
fn it_is_legal_while_queues_are_busy() {
    for bells in [Bells::Register, Bells::Slot, Bells::Both] {
        let disk = GatedDisk::new(512);
        let mut m = Machine::boot(config(disk.clone()), Setup::default());
        m.create_pair(1, 16, bells);
        for round in 0..4 {
            disk.close_gate();
            for lba in 0..9 {
                m.push(1, commands::write_zeroes(lba, 1));
            }
            m.ring(1);
            if round % 2 == 0 {
                m.settle();
            }
            m.use_shadow_doorbells();
            for lba in 0..5 {
                m.submit(1, commands::write_zeroes(lba, 1));
            }
            m.settle();
            disk.open_gate();
            m.drain(1);
            io(&mut m, 1, 20);
        }
    }
}

#[test]
fn sent_again_it_replaces_the_pages() {
    let mut m = machine(Setup::default());
    m.create_pair(1, 16, Bells::Slot);
    let old = m.use_shadow_doorbells();
    io(&mut m, 1, 21);
    let new = m.use_shadow_doorbells();
    assert_ne!(old, new);
    // Whoever owns the old pages now may write anything there, and finds them untouched.
    for page in [old.0, old.1] {
        m.memory.write(page, &[0x77; 4096]);
    }
    io(&mut m, 1, 40);
    for page in [old.0, old.1] {
        assert!(m.memory.read(page, 4096).iter().all(|b| *b == 0x77));
    }
}

/// NVMe Base 2.1 §5.2.5: the settings are lost at every Controller Level Reset. The old pages belong to someone else then.
#[test]
fn every_reset_ends_it() {
    type Reset = fn(&mut Machine);
    let resets: [(&str, Reset); 4] = [
        ("CC.EN", |m| m.write32(offset::CC, 0)),
        ("NSSR", |m| m.write32(offset::NSSR, nvme::registers::NSSR_RESET)),
        ("FLR", |m| {
            let control = m.capability(0x10) + 8;
            m.config_write(control, &(1u16 << 15).to_le_bytes());
        }),
        ("device reset", |m| {
            m.function.reset();
            m.wake();
        }),
    ];
    for (what, reset) in resets {
        let mut m = machine(Setup::default());
        m.create_pair(1, 16, Bells::Slot);
        let pages = m.use_shadow_doorbells();
        io(&mut m, 1, 21);
        reset(&mut m);
        m.settle();
        m.forget();
        assert!(!m.function.report().device.shadow_doorbells, "{what}");
        for page in [pages.0, pages.1] {
            m.memory.write(page, &[0x77; 4096]);
        }
        m.set_up_pci();
        m.enable();
        // By register, without a word of shadow doorbells.
        m.create_pair(1, 16, Bells::Slot);
        io(&mut m, 1, 40);
        for page in [pages.0, pages.1] {
            assert!(m.memory.read(page, 4096).iter().all(|b| *b == 0x77), "{what}");
        }
        // And sent again, it works again.
        m.use_shadow_doorbells();
        io(&mut m, 1, 40);
    }
}

#[test]
fn slots_are_little_endian_words_with_an_empty_upper_half() {
    let mut m = machine(Setup::default());
    // Page garbage: EventIdx must be written from the device's state, whatever stood there.
    let (shadow, event) = (m.buffer(4096), m.buffer(4096));
    m.memory.write(event, &[0xff; 4096]);
    m.create_pair(1, 300, Bells::Slot);
    io(&mut m, 1, 270);
    m.ok(0, commands::doorbell_buffer_config(shadow, event));
    m.shadow = Some((shadow, event));
    m.attach_all();
    m.settle();
    let raw = |m: &Machine, page, at: usize| m.memory.read(page + at as u64, 4);
    assert_eq!(raw(&m, shadow, sq_slot(1, 0)), [14, 1, 0, 0]);
    assert_eq!(raw(&m, event, sq_slot(1, 0)), [14, 1, 0, 0], "armed at the tail");
    assert_eq!(raw(&m, event, sq_slot(2, 0)), [0xff; 4], "no such queue");
    io(&mut m, 1, 300);
}

/// Slots of garbage on queues whose driver goes on by register.
#[test]
fn garbage_in_the_pages_harms_no_driver_by_register() {
    for garbage in [0xff, 0x80, 0x01] {
        let mut m = machine(Setup::default());
        m.create_pair(1, 16, Bells::Register);
        io(&mut m, 1, 5);
        let (shadow, event) = (m.buffer(4096), m.buffer(4096));
        m.memory.write(shadow, &[garbage; 4096]);
        m.memory.write(event, &[garbage; 4096]);
        m.ok(0, commands::doorbell_buffer_config(shadow, event));
        io(&mut m, 1, 40);
        m.create_pair(2, 5, Bells::Register);
        io(&mut m, 2, 40);
        assert_eq!(m.counters(1).invalid_doorbells + m.counters(2).invalid_doorbells, 0);
    }
}

/// A value that cannot be one is ignored, counted once, and told by Invalid Doorbell Write Value.
#[test]
fn a_bad_value_in_a_slot_is_an_event() {
    let mut m = machine(Setup::default());
    m.create_pair(1, 16, Bells::Slot);
    m.use_shadow_doorbells();
    io(&mut m, 1, 40);
    let request = m.submit(0, commands::event_request());
    m.settle_and_serve();
    let slot = m.slot(false, sq_slot(1, 0));
    let good = slot.load(Ordering::Acquire);
    slot.store(16, Ordering::Release);
    m.wake();
    m.settle_and_serve();
    m.wake();
    m.settle_and_serve();
    let entry = m.take(0, request).unwrap();
    assert_eq!(AsyncEvent::from_dw0(entry.dw0.get()), AsyncEvent::INVALID_DOORBELL_VALUE);
    assert_eq!(m.counters(1).invalid_doorbells, 1);
    // The upper half is reserved and ignored.
    slot.store(good | 0xabcd_0000, Ordering::Release);
    m.wake();
    m.settle();
    assert_eq!(m.counters(1).invalid_doorbells, 1);
    slot.store(good, Ordering::Release);
    io(&mut m, 1, 20);
}

#[test]
fn a_bad_head_in_a_slot_is_an_event_when_it_is_looked_at() {
    let mut m = machine(Setup::default());
    m.create_cq(1, 3, Bells::Slot);
    m.create_sq(1, 16, 1, Bells::Slot);
    m.use_shadow_doorbells();
    io(&mut m, 1, 40);
    let request = m.submit(0, commands::event_request());
    m.settle_and_serve();
    let slot = m.slot(false, cq_slot(1, 0));
    let good = slot.load(Ordering::Acquire);
    slot.store(0xffff, Ordering::Release);
    for lba in 0..4 {
        m.push(1, commands::write_zeroes(lba, 1));
    }
    m.ring(1);
    m.settle();
    m.reap(0);
    let entry = m.take(0, request).unwrap();
    assert_eq!(AsyncEvent::from_dw0(entry.dw0.get()), AsyncEvent::INVALID_DOORBELL_VALUE);
    slot.store(good, Ordering::Release);
    m.drain(1);
}

/// The last word of the page belongs to queue 511.
#[test]
fn queue_511_has_the_last_slots_of_a_page_of_4_kib() {
    let mut c = config(ram(512));
    c.io_queues = 511;
    let mut m = Machine::boot(c, Setup::default());
    m.use_shadow_doorbells();
    m.create_pair(511, 16, Bells::Slot);
    io(&mut m, 511, 40);
    let before = m.counters(511).cq_doorbell_writes;
    io(&mut m, 511, 40);
    assert_eq!((m.counters(511).cq_doorbell_writes, before), (0, 0));
    assert_eq!(m.slot(false, 4092).load(Ordering::Relaxed), 80 % 16);
}

/// A register write can be older than the slot: once the slot is in use, it is a kick without a value.
#[test]
fn late_register_writes_do_not_take_a_queue_back() {
    let mut m = machine(Setup::default());
    m.create_pair(1, 16, Bells::Slot);
    m.use_shadow_doorbells();
    io(&mut m, 1, 10);
    for _ in 0..50 {
        m.submit(1, commands::write_zeroes(0, 1));
        for old in 0..16 {
            m.write_sq_doorbell(1, old);
            m.write_cq_doorbell(1, old);
            m.turn();
        }
        m.drain(1);
    }
    assert_eq!(m.counters(1).invalid_doorbells, 0);
}

#[test]
fn no_data_of_the_command_is_read_but_its_pages() {
    let mut m = machine(Setup::default());
    let (a, b) = (m.buffer(4096), m.buffer(4096));
    let sqe = commands::doorbell_buffer_config(a, b);
    // No NSID, no further dword.
    m.ok(0, SubmissionQueueEntry { nsid: 77.into(), cdw10: u32::MAX.into(), mptr: u64::MAX.into(), ..sqe });
    m.create_pair(1, 4, Bells::Register);
    let refused = m.status(1, commands::read(0, 1, Prps { prp1: m.memory.nowhere(), prp2: 0 }));
    assert_eq!(refused, Status::DATA_TRANSFER_ERROR.with_dnr());
}
