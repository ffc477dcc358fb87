//! A completion queue that is full.

use loom::{sync::Arc, thread};
use shadowbell_doorbell::{Armed, CompletionProducer, DriverDoorbell};

use crate::{rig::*, tail::move_on};

/// `waiting` completions wait for room in a full CQ while the host consumes `moves` entries one by one.
fn parked<const DRIVER: bool, const DEVICE: bool>(entries: u32, waiting: u16, moves: u16, care: Care) {
    let head = Pair::new(0);
    let registers = Arc::new(Registers::default());

    let mut host = DriverDoorbell::new(depth(entries));
    let (slot, event) = head.words::<DRIVER, true>();
    host.attach(slot, event);
    let mut cq = CompletionProducer::new(depth(entries));
    let (slot, event) = head.words::<DEVICE, true>();
    cq.doorbell().attach(slot, event);
    cq.suppress();
    while let Some(permit) = cq.reserve().unwrap() {
        let _ = cq.post(permit);
    }

    let host = {
        let registers = registers.clone();
        thread::spawn(move || {
            for n in 1..=moves {
                let to = depth(entries).advance(0, n);
                if host.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            }
            registers.close();
        })
    };
    let mut posted = 0;
    'awake: loop {
        while posted < waiting
            && let Some(permit) = cq.reserve().unwrap()
        {
            let _ = cq.post(permit);
            posted += 1;
        }
        if posted < waiting && care != Care::NoArm {
            match cq.arm() {
                Armed::MoreWork if care == Care::Full => continue 'awake,
                Armed::Invalid(invalid) => panic!("{invalid:?}"),
                _ => {}
            }
        }
        match registers.wait() {
            Some(Message::Ring(value)) => cq.ring(value).unwrap(),
            Some(message) => panic!("no {message:?} here"),
            None => break,
        }
    }
    host.join().unwrap();
    assert_eq!(posted, waiting.min(moves), "{LOST}");
}

/// The core of it: the host consumes a full CQ of three in `moves` while the device parks once.
fn park_once<const DRIVER: bool, const DEVICE: bool>(moves: u16, care: Care) {
    let head = Pair::new(0);
    let mut cq = CompletionProducer::new(depth(4));
    let (slot, event) = head.words::<DEVICE, true>();
    cq.doorbell().attach(slot, event);
    cq.suppress();
    while let Some(permit) = cq.reserve().unwrap() {
        let _ = cq.post(permit);
    }
    let mut host = DriverDoorbell::new(depth(4));
    let (slot, event) = head.words::<DRIVER, true>();
    host.attach(slot, event);
    let host = thread::spawn(move || move_on(&mut host, moves));
    let mut has_room = cq.reserve().unwrap().map(|permit| cq.give_back(permit)).is_some();
    if !has_room {
        has_room = cq.arm() == Armed::MoreWork && care == Care::Full;
    }
    // Asleep, unless there is room.
    if let Some(rung) = host.join().unwrap() {
        cq.ring(rung.into()).unwrap();
        has_room |= cq.has_room();
    }
    assert!(has_room, "{LOST}");
}

#[test]
fn b_parking_once_against_a_host_in_every_execution() {
    for moves in 1..=3 {
        check(None, move || park_once::<true, true>(moves, Care::Full));
    }
}

#[test]
fn b_parking_once_fails_without_either_fence_and_without_the_second_look() {
    check_fails(LOST, None, || park_once::<false, true>(1, Care::Full));
    check_fails(LOST, None, || park_once::<true, false>(1, Care::Full));
    check_fails(LOST, None, || park_once::<true, true>(1, Care::NoRecheck));
}

#[test]
fn b_no_room_in_a_full_completion_queue_goes_unnoticed() {
    check(Some(5), || parked::<true, true>(2, 1, 1, Care::Full));
    check(Some(5), || parked::<true, true>(3, 2, 2, Care::Full));
    check(Some(5), || parked::<true, true>(4, 3, 2, Care::Full));
    check(Some(5), || parked::<true, true>(4, 3, 3, Care::Full));
}

#[test]
fn b_without_the_hosts_fence_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<false, true>(3, 2, 2, Care::Full));
}

#[test]
fn b_without_the_devices_fence_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<true, false>(3, 2, 2, Care::Full));
}

#[test]
fn b_without_the_second_look_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<true, true>(3, 2, 2, Care::NoRecheck));
}

#[test]
fn b_without_arming_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<true, true>(2, 1, 1, Care::NoArm));
}
