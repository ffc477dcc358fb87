//! Reset against a ring that is late.

use loom::{sync::Arc, thread};
use shadowbell_doorbell::{Armed, DriverDoorbell, SubmissionConsumer};

use crate::rig::*;

/// One CPU submits while another resets the controller; then the queue is made again with the same slots, from zero. `detach`
/// off: the device keeps the slot over the reset.
fn reset_against_ring(detach: bool) {
    let tail = Pair::new(0);
    let registers = Arc::new(Registers::default());
    let (ready, created) = (Arc::new(Flag::default()), Arc::new(Flag::default()));

    let words = tail.words::<true, true>();
    let submitter = {
        let registers = registers.clone();
        let mut doorbell = DriverDoorbell::new(depth(4));
        let (slot, event) = tail.words::<true, true>();
        doorbell.attach(slot, event);
        thread::spawn(move || {
            if doorbell.advance(2) {
                registers.write(Message::Ring(2));
            }
        })
    };
    let driver = {
        let (tail, registers, ready, created) = (tail.clone(), registers.clone(), ready.clone(), created.clone());
        thread::spawn(move || {
            registers.write(Message::Reset);
            ready.wait();
            // The other CPU's register write is out by now, and may have come after the reset.
            submitter.join().unwrap();
            let mut doorbell = DriverDoorbell::new(depth(4));
            let (slot, event) = tail.words::<true, true>();
            doorbell.attach(slot, event);
            registers.write(Message::Create);
            created.wait();
            if doorbell.advance(1) {
                registers.write(Message::Ring(1));
            }
            registers.close();
        })
    };

    let mut sq = SubmissionConsumer::<Word>::new(depth(4));
    let (slot, event) = words;
    sq.doorbell().attach(slot, event);
    let mut queue = Some(sq);
    let mut lives = vec![0];
    loop {
        let mut message = None;
        if let Some(sq) = &mut queue {
            if sq.look().unwrap() > 0 {
                sq.suppress();
                while sq.take().is_some() {
                    *lives.last_mut().unwrap() += 1;
                }
            }
            message = registers.poll();
            if message.is_none() && sq.arm() == Armed::MoreWork {
                continue;
            }
        }
        match message.or_else(|| registers.wait()) {
            Some(Message::Ring(value)) => {
                if let Some(sq) = &mut queue {
                    sq.ring(value).unwrap();
                }
            }
            Some(Message::Reset) => {
                if detach {
                    queue = None;
                }
                lives.push(0);
                ready.set();
            }
            Some(Message::Create) => {
                if detach {
                    let mut sq = SubmissionConsumer::new(depth(4));
                    let (slot, event) = tail.words::<true, true>();
                    sq.doorbell().attach(slot, event);
                    queue = Some(sq);
                }
                created.set();
            }
            None => break,
        }
    }
    driver.join().unwrap();
    assert!(lives[0] == 0 || lives[0] == 2, "half a move: {lives:?}");
    assert!(lives[1] <= 1, "{STALE}: {lives:?}");
    assert_eq!(lives[1], 1, "{LOST}: {lives:?}");
}

#[test]
fn d_a_ring_that_is_later_than_the_reset_does_nothing() {
    check(Some(3), || reset_against_ring(true));
}

#[test]
fn d_a_device_that_keeps_the_slot_over_the_reset_is_found_out() {
    check_fails(STALE, Some(2), || reset_against_ring(false));
}
