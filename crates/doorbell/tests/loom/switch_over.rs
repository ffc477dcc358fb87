//! Doorbell Buffer Config on a queue that is running.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Release},
        },
    },
    thread,
};
use shadowbell_doorbell::{DriverDoorbell, SubmissionConsumer};

use crate::rig::*;

/// The driver has moved by register once, moves on while the command is on its way, and then by slot; it waits for room where
/// the ring is full. `leftover` is in the slot when the device takes it.
fn switch_over<const DRIVER: bool, const DEVICE: bool>(entries: u32, leftover: u32, by_slot: u16) {
    let tail = Pair::new(leftover);
    // What completions tell the driver: how many entries were taken.
    let taken = Arc::new(AtomicU32::new(0));
    let registers = Arc::new(Registers::default());
    let completed = Arc::new(Flag::default());

    let mut doorbell = DriverDoorbell::new(depth(entries));
    assert!(doorbell.advance(1));
    registers.write(Message::Ring(1));
    let driver = {
        let (tail, registers, completed) = (tail.clone(), registers.clone(), completed.clone());
        let taken = taken.clone();
        thread::spawn(move || {
            let mut submitted = 1;
            let mut step = |doorbell: &mut DriverDoorbell<_>| {
                while submitted + 1 >= entries && submitted - taken.load(Acquire) == entries - 1 {
                    thread::yield_now();
                }
                submitted += 1;
                let to = depth(entries).next(doorbell.position());
                if doorbell.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            };
            step(&mut doorbell);
            completed.wait();
            let (slot, event) = tail.words::<DRIVER, true>();
            doorbell.attach(slot, event);
            for _ in 0..by_slot {
                step(&mut doorbell);
            }
            registers.close();
        })
    };
    let mut sq = SubmissionConsumer::<Word<DEVICE>>::new(depth(entries));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    completed.set();
    let mut consumed = 0;
    drain_and_sleep(&mut sq, &registers, Care::Full, |_| {
        consumed += 1;
        taken.store(consumed, Release);
    });
    driver.join().unwrap();
    assert_eq!(consumed, 2 + u32::from(by_slot), "{LOST}");
}

#[test]
fn c_a_running_queue_goes_over_to_its_slot_and_loses_nothing() {
    for leftover in [0, 2, 3, 4] {
        check(Some(3), move || switch_over::<true, true>(8, leftover, 1));
        check(Some(3), move || switch_over::<true, true>(8, leftover, 2));
    }
    // Round a tiny ring, past whatever was left over.
    for leftover in [0, 1, 2] {
        check(Some(3), move || switch_over::<true, true>(3, leftover, 2));
    }
}

/// A queue that never moved, and a driver that trusts EventIdx from its first move on (Linux).
fn switch_over_idle<const DRIVER: bool, const DEVICE: bool>(moves: u16) {
    let tail = Pair::new(0);
    let registers = Arc::new(Registers::default());
    let completed = Arc::new(Flag::default());
    let driver = {
        let (tail, registers, completed) = (tail.clone(), registers.clone(), completed.clone());
        thread::spawn(move || {
            completed.wait();
            let mut doorbell = DriverDoorbell::new(depth(4));
            let (slot, event) = tail.words::<DRIVER, true>();
            doorbell.attach(slot, event);
            for to in 1..=moves {
                if doorbell.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            }
            registers.close();
        })
    };
    let mut sq = SubmissionConsumer::<Word<DEVICE>>::new(depth(4));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    completed.set();
    // Awake for a moment.
    sq.suppress();
    let mut consumed = 0;
    drain_and_sleep(&mut sq, &registers, Care::Full, |_| consumed += 1);
    driver.join().unwrap();
    assert_eq!(consumed, moves, "{LOST}");
}

#[test]
fn c_an_idle_queue_goes_over_to_its_slot_and_loses_nothing() {
    check(None, || switch_over_idle::<true, true>(1));
    check(Some(5), || switch_over_idle::<true, true>(2));
}

#[test]
fn c_without_the_devices_fence_the_first_move_is_lost() {
    check_fails(LOST, None, || switch_over_idle::<true, false>(1));
}

#[test]
fn c_without_the_drivers_fence_the_first_move_is_lost() {
    check_fails(LOST, None, || switch_over_idle::<false, true>(1));
}
