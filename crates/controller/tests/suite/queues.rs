//! Creating and deleting I/O queues (NVMe Base 2.1 §5.2.1 to §5.2.4).

use nvme::{Status, SubmissionQueueEntry, registers::offset};

use crate::host::{Bells, Machine, Setup, Signal, commands, config, disk::GatedDisk, memory::Prps, ram};

fn machine() -> Machine {
    let mut c = config(ram(512));
    c.io_queues = 8;
    c.queue_entries = 256;
    Machine::boot(c, Setup::default())
}

#[test]
fn bad_completion_queues_are_refused() {
    let mut m = machine();
    m.create_cq(1, 16, Bells::Register);
    let (base, nowhere) = (m.buffer(65536), m.memory.nowhere());
    let mut scattered = commands::create_cq(2, 16, base, None);
    scattered.cdw11 = 0.into();
    for (what, sqe, status) in [
        ("queue 0", commands::create_cq(0, 16, base, None), Status::INVALID_QUEUE_ID),
        ("above the last", commands::create_cq(9, 16, base, None), Status::INVALID_QUEUE_ID),
        ("any 16 bits", commands::create_cq(0xffff, 16, base, None), Status::INVALID_QUEUE_ID),
        ("twice", commands::create_cq(1, 16, base, None), Status::INVALID_QUEUE_ID),
        ("one entry", commands::create_cq(2, 1, base, None), Status::INVALID_QUEUE_SIZE),
        ("above MQES", commands::create_cq(2, 257, base, None), Status::INVALID_QUEUE_SIZE),
        ("65536 entries", commands::create_cq(2, 65536, base, None), Status::INVALID_QUEUE_SIZE),
        ("not contiguous", scattered, Status::INVALID_FIELD),
        ("off its page", commands::create_cq(2, 16, base + 64, None), Status::INVALID_PRP_OFFSET),
        ("at nothing", commands::create_cq(2, 16, nowhere, None), Status::INVALID_FIELD),
        ("at the end of all", commands::create_cq(2, 16, u64::MAX - 0xfff, None), Status::INVALID_FIELD),
        ("vector 9 of 9", commands::create_cq(2, 16, base, Some(9)), Status::INVALID_INTERRUPT_VECTOR),
        ("vector FFFFh", commands::create_cq(2, 16, base, Some(0xffff)), Status::INVALID_INTERRUPT_VECTOR),
    ] {
        assert_eq!(m.status(0, sqe), status.with_dnr(), "{what}");
    }
    // The last of everything, and a vector that other queues have too.
    m.ok(0, commands::create_cq(8, 256, base, Some(8)));
    m.ok(0, commands::create_cq(7, 2, base + 4096, Some(8)));
}

#[test]
fn bad_submission_queues_are_refused() {
    let mut m = machine();
    m.create_pair(1, 16, Bells::Register);
    let (base, nowhere) = (m.buffer(65536), m.memory.nowhere());
    let mut scattered = commands::create_sq(2, 16, base, 1);
    scattered.cdw11 = (1 << 16).into();
    for (what, sqe, status) in [
        ("queue 0", commands::create_sq(0, 16, base, 1), Status::INVALID_QUEUE_ID),
        ("above the last", commands::create_sq(9, 16, base, 1), Status::INVALID_QUEUE_ID),
        ("twice", commands::create_sq(1, 16, base, 1), Status::INVALID_QUEUE_ID),
        ("one entry", commands::create_sq(2, 1, base, 1), Status::INVALID_QUEUE_SIZE),
        ("above MQES", commands::create_sq(2, 257, base, 1), Status::INVALID_QUEUE_SIZE),
        ("not contiguous", scattered, Status::INVALID_FIELD),
        ("off its page", commands::create_sq(2, 16, base + 4, 1), Status::INVALID_PRP_OFFSET),
        ("at nothing", commands::create_sq(2, 16, nowhere, 1), Status::INVALID_FIELD),
        ("half at nothing", commands::create_sq(2, 128, nowhere - 4096, 1), Status::INVALID_FIELD),
        ("on the admin CQ", commands::create_sq(2, 16, base, 0), Status::INVALID_QUEUE_ID),
        ("on a CQ above the last", commands::create_sq(2, 16, base, 9), Status::INVALID_QUEUE_ID),
        ("on a CQ that is not there", commands::create_sq(2, 16, base, 2), Status::CQ_INVALID),
    ] {
        assert_eq!(m.status(0, sqe), status.with_dnr(), "{what}");
    }
    m.ok(0, commands::create_sq(8, 256, base, 1));
}

/// NVMe Base 2.1 §3.1.4.5: the entry sizes of CC are those of I/O queues.
#[test]
fn entry_sizes_must_be_right_when_a_queue_is_created() {
    let mut m = machine();
    let base = m.buffer(8192);
    let cc = m.cc();
    m.write32(offset::CC, cc.with_iocqes(5).0);
    assert_eq!(m.status(0, commands::create_cq(1, 16, base, None)), Status::INVALID_QUEUE_SIZE.with_dnr());
    m.write32(offset::CC, cc.with_iosqes(0).0);
    m.ok(0, commands::create_cq(1, 16, base, None));
    assert_eq!(m.status(0, commands::create_sq(1, 16, base + 4096, 1)), Status::INVALID_QUEUE_SIZE.with_dnr());
}

/// With MSI-X off, vector 0 is the only one.
#[test]
fn vectors_need_msix() {
    let mut c = config(ram(512));
    c.io_queues = 8;
    let mut m = Machine::boot(c, Setup { signal: Signal::Intx, ..Setup::default() });
    let base = m.buffer(4096);
    let refused = Status::INVALID_INTERRUPT_VECTOR.with_dnr();
    assert_eq!(m.status(0, commands::create_cq(1, 16, base, Some(1))), refused);
    m.ok(0, commands::create_cq(1, 16, base, Some(0)));
}

#[test]
fn queues_are_deleted_in_order() {
    let mut m = machine();
    m.create_cq(1, 16, Bells::Register);
    m.create_sq(1, 16, 1, Bells::Register);
    m.create_sq(2, 16, 1, Bells::Register);
    let (in_use, unknown) = (Status::INVALID_QUEUE_DELETION.with_dnr(), Status::INVALID_QUEUE_ID.with_dnr());
    assert_eq!(m.status(0, commands::delete_cq(1)), in_use);
    m.ok(0, commands::delete_sq(1));
    assert_eq!(m.status(0, commands::delete_sq(1)), unknown, "a second time");
    assert_eq!(m.status(0, commands::delete_cq(1)), in_use, "SQ 2 is still there");
    m.ok(0, commands::delete_sq(2));
    m.ok(0, commands::delete_cq(1));
    assert_eq!(m.status(0, commands::delete_cq(1)), unknown, "a second time");
    for qid in [0, 3, 9, 0xffff] {
        assert_eq!(m.status(0, commands::delete_sq(qid)), unknown);
        assert_eq!(m.status(0, commands::delete_cq(qid)), unknown);
    }
    // The admin queue still works.
    m.create_pair(1, 16, Bells::Register);
}

#[test]
fn a_queue_that_is_created_again_starts_from_zero_with_another_size() {
    let mut m = machine();
    for (round, depth) in (0..).zip([16, 2, 256, 3, 17, 2]) {
        m.create_pair(1, depth, Bells::Register);
        for i in 0..depth + 3 + round {
            m.write_blocks(1, i.into(), &[7; 512], 512);
        }
        m.delete_pair(1);
    }
}

#[test]
fn all_queues_can_be_there_at_a_time() {
    let mut c = config(ram(512));
    c.io_queues = 511;
    let mut m = Machine::boot(c, Setup::default());
    for qid in 1..=511 {
        m.create_pair(qid, 2, Bells::Register);
    }
    for qid in 1..=511u16 {
        m.ok(qid, commands::write_zeroes(qid.into(), 1));
    }
}

/// Windows does it.
#[test]
fn several_sqs_share_a_cq() {
    let mut m = machine();
    m.create_cq(3, 5, Bells::Register);
    for qid in 1..=6 {
        m.create_sq(qid, 16, 3, Bells::Register);
    }
    for round in 0..20 {
        for qid in 1..=6 {
            for _ in 0..5 {
                m.push(qid, commands::write_zeroes(round, 1));
            }
            m.ring(qid);
        }
        for qid in 1..=6 {
            m.drain(qid);
        }
    }
}

#[test]
fn deleting_a_busy_queue_waits_for_its_commands() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    for lba in 0..3 {
        m.submit(1, commands::write_zeroes(lba, 1));
    }
    m.settle();
    assert_eq!(disk.held(), 3);
    let deletion = m.submit(0, commands::delete_sq(1));
    m.settle_and_serve();
    assert!(m.take(0, deletion).is_none());
    // Meanwhile the admin queue goes on, the queue still exists, and it takes nothing new.
    let unknown = Status::INVALID_QUEUE_ID.with_dnr();
    assert_eq!(m.status(0, commands::delete_sq(1)), unknown, "it is on its way");
    assert_eq!(m.status(0, commands::create_sq(1, 16, 0, 1)), unknown, "it is still there");
    assert_eq!(m.status(0, commands::delete_cq(1)), Status::INVALID_QUEUE_DELETION.with_dnr());
    m.submit(1, commands::write_zeroes(9, 1));
    m.settle_and_serve();
    assert_eq!(disk.held(), 3);
    disk.release_some(2);
    m.settle_and_serve();
    assert!(m.take(0, deletion).is_none());
    disk.release_all();
    assert_eq!(m.wait(0, deletion).status(), Status::SUCCESS);
    // The commands came before it.
    assert_eq!(m.outstanding(1), 1, "the one that was never fetched");
    m.ok(0, commands::delete_cq(1));
}

#[test]
fn a_deleted_queue_has_no_doorbell() {
    let mut m = machine();
    m.create_pair(1, 16, Bells::Register);
    m.delete_pair(1);
    let before = m.counters(1);
    m.write_sq_doorbell(1, 3);
    m.write_cq_doorbell(1, 3);
    m.settle();
    assert_eq!(m.counters(1), before);
    m.create_pair(1, 16, Bells::Register);
    m.ok(1, commands::write_zeroes(0, 1));
}

/// Linux frees a request before it rings the CQ head: a CQ that is full for a moment fails no command.
#[test]
fn a_full_cq_holds_commands_back_and_loses_none() {
    let mut m = machine();
    m.create_cq(1, 4, Bells::Register);
    m.create_sq(1, 64, 1, Bells::Register);
    for lba in 0..50 {
        m.push(1, commands::write_zeroes(lba, 1));
    }
    m.ring(1);
    m.settle();
    for n in 1.. {
        // Three completions, and never a fourth.
        let mut seen = 0;
        while m.pop(1).is_some() {
            seen += 1;
        }
        assert!(seen <= 3);
        m.ring_cq(1);
        m.settle();
        if m.outstanding(1) == 0 {
            assert_eq!(n, 50u32.div_ceil(3));
            break;
        }
    }
}

#[test]
fn commands_with_flags_are_refused_on_both_kinds_of_queue() {
    let mut m = machine();
    m.create_pair(1, 16, Bells::Register);
    // FUSE, reserved, PSDT.
    for flags in [1, 2, 3, 4, 0x20, 0x40, 0x80, 0xc0] {
        let invalid = Status::INVALID_FIELD.with_dnr();
        let sqe = SubmissionQueueEntry { flags, ..commands::flush(1) };
        assert_eq!(m.status(1, sqe), invalid, "{flags:#x}");
        let (_, prps) = m.data(4096);
        let sqe = commands::identify(nvme::identify::Cns::CONTROLLER, 0, prps);
        assert_eq!(m.status(0, SubmissionQueueEntry { flags, ..sqe }), invalid, "{flags:#x}");
    }
}

/// Greedy neighbours: nobody waits for ever for room in a shared CQ.
#[test]
fn a_busy_sq_does_not_starve_another_one_on_the_same_cq() {
    let mut m = machine();
    m.create_cq(1, 2, Bells::Register);
    m.create_sq(1, 64, 1, Bells::Register);
    m.create_sq(2, 64, 1, Bells::Register);
    let last = m.push(2, commands::write_zeroes(0, 1));
    m.ring(2);
    for _ in 0..200 {
        while m.sqs[&1].room() > 0 {
            m.push(1, commands::write_zeroes(1, 1));
        }
        m.ring(1);
        m.serve_interrupts();
        m.turn();
        if m.take(2, last).is_some() {
            return;
        }
    }
    panic!("SQ 2 never got its turn; SQ 1 had {} commands", m.counters(1).commands);
}

#[test]
fn nothing_is_read_from_where_it_may_not() {
    let mut m = machine();
    m.create_pair(1, 16, Bells::Register);
    // Pointers are not looked at where a command has no data.
    let garbage = Prps { prp1: 0x1234_5678_9abc_def1, prp2: u64::MAX };
    let with = |sqe: SubmissionQueueEntry| SubmissionQueueEntry {
        prp1: garbage.prp1.into(),
        prp2: garbage.prp2.into(),
        mptr: u64::MAX.into(),
        ..sqe
    };
    m.ok(1, with(commands::write_zeroes(0, 1)));
    m.ok(1, with(commands::flush(1)));
    m.ok(0, with(commands::set_feature(nvme::features::FeatureId::ARBITRATION, 0)));
}
