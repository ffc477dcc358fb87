//! Asynchronous Event Requests and Abort (NVMe Base 2.1 §5.1.2, §5.1.1).

use nvme::{
    Status,
    admin::AbortCmd,
    features::FeatureId,
    logs::{AsyncEvent, AsyncEventType, LogId},
    shadow::cq_slot,
};

use crate::host::{Bells, Machine, Setup, commands, config, ram};

fn machine() -> Machine {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.create_pair(1, 16, Bells::Register);
    m
}

fn event(m: &mut Machine, cid: u16) -> Option<AsyncEvent> {
    m.settle_and_serve();
    let entry = m.take(0, cid)?;
    assert_eq!(entry.status(), Status::SUCCESS);
    Some(AsyncEvent::from_dw0(entry.dw0.get()))
}

fn read_log(m: &mut Machine, lid: LogId, retain: bool) {
    m.fetch(512, |prps| {
        let mut sqe = commands::get_log(lid, 0, 512, prps);
        sqe.cdw10 = (sqe.cdw10.get() | u32::from(retain) << 15).into();
        sqe
    });
}

#[test]
fn requests_wait_and_only_four_of_them() {
    let mut m = machine();
    let cids: Vec<u16> = (0..4).map(|_| m.submit(0, commands::event_request())).collect();
    m.settle_and_serve();
    assert_eq!(m.outstanding(0), 4);
    assert_eq!(m.status(0, commands::event_request()), Status::AER_LIMIT_EXCEEDED.with_dnr());
    assert!(cids.into_iter().all(|cid| m.take(0, cid).is_none()));
}

/// They hold no place in the CQ either: with two entries there would be none left.
#[test]
fn waiting_requests_leave_the_smallest_admin_queue_usable() {
    let mut m = Machine::boot(config(ram(512)), Setup { admin_depth: 2, ..Setup::default() });
    for _ in 0..4 {
        m.submit(0, commands::event_request());
        m.settle_and_serve();
        // A parked command has left the SQ; only a later completion tells the host (SQHD).
        let head = m.sqs[&0].tail;
        m.sqs.get_mut(&0).unwrap().head = head;
    }
    m.create_pair(1, 4, Bells::Register);
    m.ok(1, commands::write_zeroes(0, 1));
}

#[test]
fn bad_doorbells_are_events_once_for_each_kind_until_the_log_is_read() {
    let mut m = machine();
    let cids: Vec<u16> = (0..3).map(|_| m.submit(0, commands::event_request())).collect();
    // No such queue; a tail past the ring; a head that passes the tail.
    m.write_sq_doorbell(9, 1);
    m.write_sq_doorbell(1, 16);
    m.write_cq_doorbell(1, 1);
    assert_eq!(event(&mut m, cids[0]), Some(AsyncEvent::INVALID_DOORBELL_REGISTER));
    assert_eq!(event(&mut m, cids[1]), None, "the type is masked until its log was read");
    read_log(&mut m, LogId::SMART, false);
    read_log(&mut m, LogId::ERROR, true);
    assert_eq!(event(&mut m, cids[1]), None, "another log, or the event was retained");
    read_log(&mut m, LogId::ERROR, false);
    assert_eq!(event(&mut m, cids[1]), Some(AsyncEvent::INVALID_DOORBELL_VALUE));
    read_log(&mut m, LogId::ERROR, false);
    assert_eq!(event(&mut m, cids[2]), None, "two bad values were one event");
    assert_eq!(m.counters(1).invalid_doorbells, 2);
    m.ok(1, commands::write_zeroes(0, 1));
}

#[test]
fn every_kind_of_bad_doorbell_is_refused() {
    let mut m = machine();
    for value in [16, 0xffff, 0x10000, 0x1_0001, 0x8000_0000, u32::MAX] {
        for cq in [false, true] {
            let cid = m.submit(0, commands::event_request());
            if cq {
                m.write_cq_doorbell(1, value)
            } else {
                m.write_sq_doorbell(1, value)
            }
            assert_eq!(event(&mut m, cid), Some(AsyncEvent::INVALID_DOORBELL_VALUE), "{value:#x}");
            read_log(&mut m, LogId::ERROR, false);
        }
    }
    // Registers of queues that could never be, between doorbells and BAR end.
    for at in [0x1000 + 8 * 2, 0x1000 + 8 * 65, 0x3ff8, 0x3ffc] {
        let cid = m.submit(0, commands::event_request());
        m.write32(at, 0);
        assert_eq!(event(&mut m, cid), Some(AsyncEvent::INVALID_DOORBELL_REGISTER), "{at:#x}");
        read_log(&mut m, LogId::ERROR, false);
    }
    m.ok(1, commands::write_zeroes(0, 1));
}

#[test]
fn an_event_before_the_request_is_kept() {
    let mut m = machine();
    m.write_sq_doorbell(1, 99);
    m.settle_and_serve();
    let cid = m.submit(0, commands::event_request());
    assert_eq!(event(&mut m, cid), Some(AsyncEvent::INVALID_DOORBELL_VALUE));
}

/// An event held back by the mask (feature 0Bh) is sent once it is enabled.
#[test]
fn events_are_masked_by_the_feature() {
    let mut m = machine();
    let cid = m.submit(0, commands::event_request());
    // The disk has 300 K.
    m.ok(0, commands::set_feature(FeatureId::TEMPERATURE_THRESHOLD, 299));
    assert_eq!(event(&mut m, cid), None);
    m.ok(0, commands::set_feature(FeatureId::ASYNC_EVENT_CONFIG, 1));
    assert_eq!(event(&mut m, cid), None, "another warning");
    m.ok(0, commands::set_feature(FeatureId::ASYNC_EVENT_CONFIG, 2));
    let got = event(&mut m, cid).unwrap();
    assert_eq!((got.kind, got.info, got.log), (AsyncEventType::SMART, 1, LogId::SMART));
}

/// Another warning's bit does not let it through.
#[test]
fn an_event_of_before_is_held_back_by_the_mask_of_now() {
    let mut m = machine();
    m.ok(0, commands::set_feature(FeatureId::TEMPERATURE_THRESHOLD, 299));
    m.ok(0, commands::set_feature(FeatureId::ASYNC_EVENT_CONFIG, 2));
    m.ok(0, commands::set_feature(FeatureId::ASYNC_EVENT_CONFIG, 1));
    let cid = m.submit(0, commands::event_request());
    assert_eq!(event(&mut m, cid), None);
    m.ok(0, commands::set_feature(FeatureId::ASYNC_EVENT_CONFIG, 2));
    assert_eq!(event(&mut m, cid).unwrap().kind, AsyncEventType::SMART);
}

#[test]
fn a_waiting_request_can_be_aborted() {
    let mut m = machine();
    let cids: Vec<u16> = (0..2).map(|_| m.submit(0, commands::event_request())).collect();
    m.settle();
    assert_eq!(m.ok(0, commands::abort(0, cids[1])), 0);
    // The aborted command completes before the Abort does.
    assert_eq!(m.take(0, cids[1]).unwrap().status(), Status::ABORTED_BY_REQUEST);
    assert_eq!(m.ok(0, commands::abort(0, cids[1])), AbortCmd::NOT_ABORTED, "it is gone");
    assert_eq!(m.ok(0, commands::abort(1, 0x77)), AbortCmd::NOT_ABORTED, "no such command");
    assert_eq!(m.status(0, commands::abort(7, 1)), Status::INVALID_FIELD.with_dnr(), "no such queue");
    m.write_sq_doorbell(1, 99);
    assert_eq!(event(&mut m, cids[0]), Some(AsyncEvent::INVALID_DOORBELL_VALUE));
}

/// A driver that uses the slots of queue 0 rings for the CQ head only when EventIdx asks for it, and an event that waits for
/// room there has to ask.
#[test]
fn an_event_that_waits_for_room_hears_of_the_silent_head() {
    let mut m = Machine::boot(config(ram(512)), Setup { admin_depth: 2, ..Setup::default() });
    m.sqs.get_mut(&0).unwrap().bells = Bells::Slot;
    m.cqs.get_mut(&0).unwrap().bells = Bells::Slot;
    m.use_shadow_doorbells();
    let cid = m.submit(0, commands::event_request());
    m.settle();
    let head = m.sqs[&0].tail;
    m.sqs.get_mut(&0).unwrap().head = head;
    // For one revolution a slot driver rings every time; let that be over.
    for _ in 0..4 {
        m.ok(0, commands::set_feature(FeatureId::ARBITRATION, 0));
    }
    // A completion fills the CQ, and the host does not take it; an event follows.
    let filler = m.submit(0, commands::set_feature(FeatureId::ARBITRATION, 0));
    m.settle();
    m.write_sq_doorbell(9, 1);
    m.settle();
    assert!(m.is_asleep());
    let slot = m.slot(false, cq_slot(0, 0));
    let before = slot.load(std::sync::atomic::Ordering::Acquire);
    m.reap(0);
    assert_ne!(slot.load(std::sync::atomic::Ordering::Acquire), before, "the head was told by slot");
    assert!(m.take(0, filler).is_some());
    assert_eq!(event(&mut m, cid), Some(AsyncEvent::INVALID_DOORBELL_REGISTER));
}
