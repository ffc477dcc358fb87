//! A submission queue's tail.

use loom::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};
use shadowbell_doorbell::{Armed, DriverDoorbell, SubmissionConsumer};

use crate::rig::*;
/// A driver submits `moves` entries one by one while the device drains and sleeps. Checks that each entry is consumed once and
/// is what the driver wrote.
pub(crate) fn submission<const DRIVER: bool, const DEVICE: bool, const ORDER: bool>(
    entries: u32,
    moves: u16,
    care: Care,
) {
    let tail = Pair::new(0);
    let sqes: Arc<Vec<AtomicU32>> = Arc::new((0..entries).map(|_| AtomicU32::new(0)).collect());
    let registers = Arc::new(Registers::default());

    let driver = {
        let (tail, sqes, registers) = (tail.clone(), sqes.clone(), registers.clone());
        let mut doorbell = DriverDoorbell::new(depth(entries));
        let (slot, event) = tail.words::<DRIVER, true>();
        doorbell.attach(slot, event);
        move || {
            for n in 0..moves {
                sqes[usize::from(n) % entries as usize].store(u32::from(n) + 1, Relaxed);
                let to = depth(entries).advance(0, n + 1);
                if doorbell.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            }
            registers.close();
        }
    };
    let mut sq = SubmissionConsumer::new(depth(entries));
    let (slot, event) = tail.words::<DEVICE, ORDER>();
    sq.doorbell().attach(slot, event);

    let driver = thread::spawn(driver);
    let mut consumed = 0;
    drain_and_sleep(&mut sq, &registers, care, |at| {
        consumed += 1;
        assert_eq!(sqes[usize::from(at)].load(Relaxed), consumed, "{STALE}");
    });
    driver.join().unwrap();
    assert_eq!(consumed, u32::from(moves), "{LOST}");
}

/// Moves one by one and returns the value of the last register write.
pub(crate) fn move_on<const FENCE: bool>(doorbell: &mut DriverDoorbell<Word<FENCE>>, moves: u16) -> Option<u16> {
    (1..=moves).fold(None, |rung, to| if doorbell.advance(to) { Some(to) } else { rung })
}

/// The core of it, small enough for every execution: the driver makes its moves while the device drains and arms once and
/// sleeps. It wakes if the driver rang, whenever that was.
fn arm_once<const DRIVER: bool, const DEVICE: bool>(moves: u16, awake: bool, care: Care) {
    let tail = Pair::new(0);
    let mut sq = SubmissionConsumer::new(depth(4));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    if awake {
        sq.suppress();
    }
    let mut doorbell = DriverDoorbell::new(depth(4));
    let (slot, event) = tail.words::<DRIVER, true>();
    doorbell.attach(slot, event);
    let driver = thread::spawn(move || move_on(&mut doorbell, moves));
    let mut consumed = 0;
    let mut drain = |sq: &mut SubmissionConsumer<_>| {
        while sq.take().is_some() {
            consumed += 1;
        }
    };
    let _ = sq.look().unwrap();
    drain(&mut sq);
    while sq.arm() == Armed::MoreWork && care == Care::Full {
        drain(&mut sq);
    }
    // Asleep.
    if let Some(rung) = driver.join().unwrap() {
        sq.ring(rung.into()).unwrap();
        drain(&mut sq);
    }
    assert_eq!(consumed, moves, "{LOST}");
}

#[test]
fn a_arming_once_against_a_driver_in_every_execution() {
    for awake in [false, true] {
        check(None, move || arm_once::<true, true>(1, awake, Care::Full));
        check(None, move || arm_once::<true, true>(2, awake, Care::Full));
        check(None, move || arm_once::<true, true>(3, awake, Care::Full));
    }
}

#[test]
fn a_arming_once_fails_without_either_fence_and_without_the_second_look() {
    check_fails(LOST, None, || arm_once::<false, true>(1, true, Care::Full));
    check_fails(LOST, None, || arm_once::<true, false>(1, true, Care::Full));
    check_fails(LOST, None, || arm_once::<true, true>(1, true, Care::NoRecheck));
}

#[test]
fn a_no_submission_is_lost_between_arming_and_sleep() {
    check(Some(5), || submission::<true, true, true>(4, 1, Care::Full));
    check(Some(5), || submission::<true, true, true>(4, 2, Care::Full));
    check(Some(5), || submission::<true, true, true>(4, 3, Care::Full));
}

#[test]
fn a_without_the_drivers_fence_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<false, true, true>(4, 2, Care::Full));
}

#[test]
fn a_without_the_devices_fence_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<true, false, true>(4, 2, Care::Full));
}

#[test]
fn a_without_the_second_look_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<true, true, true>(4, 2, Care::NoRecheck));
}

#[test]
fn a_without_arming_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<true, true, true>(4, 2, Care::NoArm));
}
