//! Head and tail told with one fence.

use loom::thread;
use shadowbell_doorbell::{Armed, CompletionProducer, DriverDoorbell, SubmissionConsumer};

use crate::rig::*;

/// The driver tells a CQ head and an SQ tail with one barrier while the device, which waits for both, arms both and sleeps:
/// each of the two either rings or is seen.
fn both_once<const DRIVER: bool, const DEVICE: bool>() {
    let (tail, head) = (Pair::new(0), Pair::new(0));
    let mut sq = SubmissionConsumer::new(depth(4));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    let mut cq = CompletionProducer::restore(depth(4), 0, 3, true);
    let (slot, event) = head.words::<DEVICE, true>();
    cq.doorbell().attach(slot, event);
    sq.suppress();
    cq.suppress();
    let driver = thread::spawn(move || {
        let (mut sq, mut cq) = (DriverDoorbell::new(depth(4)), DriverDoorbell::new(depth(4)));
        let (slot, event) = tail.words::<DRIVER, true>();
        sq.attach(slot, event);
        let (slot, event) = head.words::<DRIVER, true>();
        cq.attach(slot, event);
        DriverDoorbell::advance_both((&mut cq, 2), (&mut sq, 1))
    });
    let seen = (cq.arm() == Armed::MoreWork, sq.arm() == Armed::MoreWork);
    let due = driver.join().unwrap();
    assert!((due.0 || seen.0) && (due.1 || seen.1), "{LOST}");
}

#[test]
fn f_one_fence_serves_head_and_tail_in_every_execution() {
    check(None, both_once::<true, true>);
}

#[test]
fn f_one_fence_is_needed_on_either_side() {
    check_fails(LOST, None, both_once::<false, true>);
    check_fails(LOST, None, both_once::<true, false>);
}
