//! Who wakes whom: drivers by slot, by register or both, queues of every small size, and how often a register is written.
//! No test here has a clock; a lost wake-up ends a test at once.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use nvme::shadow::{cq_slot, sq_slot};
use pci::{PciFunction, Wait};

use crate::host::{Bells, Machine, Setup, Signal, commands, config, disk::GatedDisk, memory::Layout, ram};

const BELLS: [Bells; 3] = [Bells::Register, Bells::Slot, Bells::Both];

#[test]
fn every_driver_on_every_size_of_queue_is_served() {
    for signal in [Signal::Msix, Signal::Intx, Signal::Polled] {
        let mut m = Machine::boot(config(ram(512)), Setup { signal, layout: Layout::Pieces, ..Setup::default() });
        m.use_shadow_doorbells();
        for sq_bells in BELLS {
            for cq_bells in BELLS {
                for (sq_depth, cq_depth) in [(2, 2), (2, 16), (16, 2), (64, 3), (64, 4), (5, 64), (33, 32)] {
                    m.create_cq(1, cq_depth, cq_bells);
                    m.create_sq(1, sq_depth, 1, sq_bells);
                    for batch in [1, 1, 3, 60, 2, 1] {
                        for lba in 0..batch {
                            m.push(1, commands::write_zeroes(lba, 1));
                            // Batches of one command and of many.
                            if lba % 7 != 6 {
                                m.ring(1);
                            }
                        }
                        m.ring(1);
                        m.drain(1);
                    }
                    m.delete_pair(1);
                }
            }
        }
    }
}

/// Tiny CQs with many waiting commands and a driver that drains silently: the CQ's EventIdx must ask for a ring exactly when
/// a command waits for room.
#[test]
fn silent_draining_of_tiny_cqs_loses_no_command() {
    for cq_depth in 2..=4 {
        for sqs in 1..=3 {
            for take in 1..cq_depth {
                let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Polled, ..Setup::default() });
                m.use_shadow_doorbells();
                m.create_cq(1, cq_depth, Bells::Slot);
                for qid in 1..=sqs {
                    m.create_sq(qid, 64, 1, Bells::Slot);
                    for lba in 0..60 {
                        m.push(qid, commands::write_zeroes(lba, 1));
                    }
                    m.ring(qid);
                }
                // The device sleeps between any two looks of the host's, and the host takes `take` at a time.
                while (1..=sqs).any(|qid| m.outstanding(qid) > 0) {
                    m.settle();
                    let taken = (0..take).filter(|_| m.pop(1).is_some()).count();
                    assert!(taken > 0, "CQ of {cq_depth}, {sqs} SQs: nothing came, nobody was woken");
                    m.ring_cq(1);
                }
                assert!(m.counters(1).parked > 0);
            }
        }
    }
}

/// A device that is awake is never rung for.
#[test]
fn no_register_is_written_while_the_device_does_not_sleep() {
    for depth in [4, 16, 64] {
        for batch in [1, 2, depth / 2, depth - 1] {
            let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Polled, ..Setup::default() });
            m.use_shadow_doorbells();
            m.create_pair(1, depth, Bells::Slot);
            m.ok(1, commands::write_zeroes(0, 1));
            let before = m.counters(1);
            for round in 0..4 * depth {
                for lba in 0..batch {
                    m.push(1, commands::write_zeroes(u64::from(lba + round), 1));
                }
                m.ring(1);
                while m.outstanding(1) > 0 {
                    m.function.poll();
                    m.reap(1);
                }
            }
            let after = m.counters(1);
            assert_eq!(after.commands - before.commands, u64::from(4 * depth * batch));
            assert_eq!(after.cq_doorbell_writes, 0, "depth {depth}, batch {batch}");
            // The device was armed before; from then on it is awake. A batch longer than the one before may ring.
            assert!(
                after.sq_doorbell_writes - before.sq_doorbell_writes <= 2,
                "depth {depth}, batch {batch}: {after:?}"
            );
        }
    }
}

/// At depth 1 a device that sleeps must be woken once for each command, and never for the CQ's head.
#[test]
fn one_register_write_for_each_command_at_depth_1_when_the_device_sleeps() {
    for signal in [Signal::Msix, Signal::Polled] {
        let mut m = Machine::boot(config(ram(512)), Setup { signal, ..Setup::default() });
        m.use_shadow_doorbells();
        m.create_pair(1, 64, Bells::Slot);
        for n in 1..=200 {
            m.settle_and_serve();
            m.ok(1, commands::write_zeroes(n, 1));
            m.settle_and_serve();
            let counters = m.counters(1);
            assert_eq!((counters.sq_doorbell_writes, counters.cq_doorbell_writes, counters.commands), (n, 0, n));
        }
    }
}

/// While awake the device keeps EventIdx just behind the driver, and no constant.
#[test]
fn event_idx_is_armed_at_the_tail_in_sleep_and_behind_it_when_awake() {
    let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Polled, ..Setup::default() });
    m.use_shadow_doorbells();
    m.create_pair(1, 8, Bells::Slot);
    let (sq, cq) = (m.slot(true, sq_slot(1, 0)), m.slot(true, cq_slot(1, 0)));
    for n in 0..40u32 {
        m.settle();
        assert_eq!(sq.load(Ordering::Acquire), n % 8, "armed at the tail");
        m.submit(1, commands::write_zeroes(0, 1));
        m.turn();
        let behind = (n + 1 + 8 - sq.load(Ordering::Acquire)) % 8;
        assert!((1..=4).contains(&behind), "{behind} behind");
        let head = m.cqs[&1].head;
        assert_ne!(cq.load(Ordering::Acquire), u32::from(head), "nobody waits for room");
        m.drain(1);
    }
}

/// A command that comes between the poll that found nothing and the arming is seen by the arming.
#[test]
fn a_command_between_the_last_poll_and_the_arming_is_seen() {
    let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Polled, ..Setup::default() });
    m.use_shadow_doorbells();
    m.create_pair(1, 8, Bells::Slot);
    for _ in 0..100 {
        m.ok(1, commands::write_zeroes(0, 1));
        while m.function.poll() > 0 {}
        let rings = m.counters(1).sq_doorbell_writes;
        let cid = m.submit(1, commands::write_zeroes(0, 1));
        if m.counters(1).sq_doorbell_writes == rings {
            assert_eq!(m.function.prepare_wait(), Wait::Busy, "it would sleep through a command");
        }
        m.wait(1, cid);
    }
    assert!(m.counters(1).arms_lost > 0);
}

#[test]
fn a_disk_that_is_slow_wakes_a_sleeping_device() {
    for bells in BELLS {
        let disk = GatedDisk::new(512);
        let mut m = Machine::boot(config(disk.clone()), Setup::default());
        m.use_shadow_doorbells();
        m.create_cq(1, 3, bells);
        m.create_sq(1, 16, 1, bells);
        disk.close_gate();
        for lba in 0..15 {
            m.submit(1, commands::write_zeroes(lba, 1));
        }
        while m.outstanding(1) > 0 {
            m.settle_and_serve();
            assert!(m.is_asleep() && disk.held() <= 2, "no more than there is room for");
            disk.release_some(1);
        }
    }
}

/// The position of before 7Ch comes from the device, not from the page: one that holds zeros would park the queue for ever.
#[test]
fn queues_at_any_position_take_up_their_slots() {
    for depth in [2, 3, 8] {
        for moved in 0..20 {
            for bells in [Bells::Slot, Bells::Both] {
                let mut m = Machine::boot(config(ram(512)), Setup::default());
                m.create_pair(1, depth, bells);
                for lba in 0..moved {
                    m.ok(1, commands::write_zeroes(lba, 1));
                }
                m.use_shadow_doorbells();
                for lba in 0..u64::from(3 * depth) {
                    m.ok(1, commands::write_zeroes(lba, 1));
                }
                m.use_shadow_doorbells();
                for lba in 0..u64::from(3 * depth) {
                    m.ok(1, commands::write_zeroes(lba, 1));
                }
            }
        }
    }
}

/// Drivers before Linux 4.19 lack the full barrier, so that one of their moves can go by without a ring: while slots are in
/// use, a sleep is never without an end.
#[test]
fn a_command_that_nobody_rang_for_is_found_by_the_slow_look() {
    let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Polled, ..Setup::default() });
    m.create_pair(1, 8, Bells::Slot);
    m.settle();
    assert_eq!(m.until, None, "by register, every command rings");
    m.use_shadow_doorbells();
    m.ok(1, commands::write_zeroes(0, 1));
    m.settle();
    m.push(1, commands::write_zeroes(0, 1));
    m.slot(false, sq_slot(1, 0)).store(2, Ordering::Release);
    assert!(!m.turn(), "asleep");
    let first = m.until.expect("an end of the sleep");
    // The time comes.
    m.wake();
    m.settle();
    assert_eq!(m.reap(1), 1);
    // With nothing to do, the looks become rare.
    let mut waits = Vec::new();
    for _ in 0..12 {
        m.wake();
        m.settle();
        waits.push(m.until.unwrap().saturating_duration_since(Instant::now()));
    }
    assert!(waits[11] > 20 * waits[0] && waits[11] <= Duration::from_secs(1), "{first:?}, {waits:?}");
}
