//! Each behaviour of a doorbell, by name.

use std::sync::{Arc, atomic::AtomicU32};

use super::*;
use crate::DriverDoorbell;

type Word = Arc<AtomicU32>;

fn word(value: u32) -> Word {
    Arc::new(AtomicU32::new(value))
}

fn depth(entries: u32) -> Depth {
    Depth::new(entries).unwrap()
}

/// A doorbell of 8 entries at `seen`, with the slot and the EventIdx that it was attached to.
fn attached(seen: u16, slot: u32, event: u32) -> (Doorbell<Word>, Word, Word) {
    let (slot, event) = (word(slot), word(event));
    let mut doorbell = Doorbell::restore(depth(8), seen);
    doorbell.attach(slot.clone(), event.clone());
    (doorbell, slot, event)
}

#[test]
fn attaching_publishes_event_idx_from_our_own_state_whatever_the_pages_held() {
    for leftover in [0, 3, 0xdead_beef] {
        let (mut doorbell, slot, event) = attached(5, leftover, leftover);
        assert_eq!(event.load(), 5, "never the slot's value, and the upper half is zero");
        assert_eq!(slot.load(), leftover, "the host's page is never written");
        assert_eq!(doorbell.look(7), Ok(false), "a leftover is no position");
        assert_eq!(doorbell.seen(), 5);
    }
}

#[test]
fn a_driver_that_did_io_before_the_command_is_heard_though_its_page_held_zeros() {
    // As Linux has it: the old position is what the slot holds.
    let (mut doorbell, slot, event) = attached(5, 0, 0);
    assert_eq!(doorbell.arm(7), Armed::Idle);
    slot.store(6);
    assert!(crate::needs_event_linux(event.load() as u16, 6, 0), "it rings");
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 6);
}

#[test]
fn a_queue_whose_slot_never_moves_goes_on_by_register() {
    // Queue 0 of Linux: the page stays zero, the tail passes zero often.
    let (mut doorbell, _slot, _event) = attached(0, 0, 0);
    for turn in 1..40u16 {
        let tail = turn % 8;
        assert_eq!(doorbell.arm(7), Armed::Idle);
        assert_eq!(doorbell.ring(tail.into(), 7), Ok(()));
        assert_eq!(doorbell.look(7), Ok(false));
        assert_eq!(doorbell.seen(), tail);
        assert!(!doorbell.is_live());
    }
}

#[test]
fn a_register_write_that_is_older_than_the_slot_is_a_kick_without_a_value() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(3);
    assert_eq!(doorbell.ring(1, 7), Ok(()));
    assert_eq!(doorbell.seen(), 3, "the ring looks at the slot");
    assert_eq!(doorbell.ring(2, 7), Ok(()));
    assert_eq!(doorbell.look(7), Ok(false));
    assert_eq!(doorbell.seen(), 3);
}

#[test]
fn a_slot_in_use_is_noticed_by_a_ring_before_it_can_come_round_to_where_it_was() {
    // A completion queue is looked at only when it seems full. The host has rung for its first move and goes silent.
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(1);
    assert_eq!(doorbell.ring(1, 7), Ok(()));
    assert!(doorbell.is_live());
    slot.store(0);
    assert_eq!(doorbell.look(7), Ok(true), "seven more, to the value that the slot was attached with");
    assert_eq!(doorbell.seen(), 0);
}

#[test]
fn a_leftover_in_the_slot_forbids_suppression_until_the_slot_moves() {
    // Were EventIdx behind, a move to just the leftover would be neither rung nor seen.
    let (mut doorbell, slot, event) = attached(5, 0, 0);
    doorbell.suppress(3);
    assert_eq!(event.load(), 5);
    assert_eq!(doorbell.ring(6, 7), Ok(()));
    assert_eq!(event.load(), 6, "the next move must ring, if it is made by slot");
    slot.store(0);
    assert!(crate::needs_event_annex_b(depth(8), 6, 0, 6));
    assert_eq!(doorbell.ring(0, 7), Ok(()));
    assert_eq!(doorbell.seen(), 0);
    slot.store(1);
    assert_eq!(doorbell.look(7), Ok(true));
    doorbell.suppress(1);
    assert_eq!(event.load(), 0);
}

#[test]
fn a_register_move_away_from_the_slot_ends_suppression() {
    let (mut doorbell, _slot, event) = attached(0, 0, 0);
    doorbell.suppress(3);
    assert_eq!(event.load(), 7, "a new queue: slot and position agree");
    assert_eq!(doorbell.ring(2, 7), Ok(()));
    assert_eq!(event.load(), 2);
    // It stands where it must, but no fence followed it: arming makes up for that.
    event.store(99);
    assert_eq!(doorbell.arm(7), Armed::Idle);
    assert_eq!(event.load(), 2);
}

#[test]
fn arming_finds_what_came_in_between_and_says_so_once() {
    let (mut doorbell, slot, event) = attached(0, 0, 0);
    slot.store(2);
    assert_eq!(doorbell.arm(7), Armed::MoreWork);
    assert_eq!(event.load(), 0, "armed where the device was, before the look");
    assert_eq!(doorbell.arm(7), Armed::Idle);
    assert_eq!(event.load(), 2);
    event.store(99);
    assert_eq!(doorbell.arm(7), Armed::Idle);
    assert_eq!(event.load(), 99, "EventIdx that is armed already is not written again");
}

#[test]
fn a_position_that_only_looks_armed_is_armed_properly() {
    // Suppressed one behind 5; then the driver fills the ring and stands at 4, which EventIdx names by accident.
    let (mut doorbell, slot, event) = attached(5, 5, 0);
    doorbell.suppress(3);
    assert_eq!(event.load(), 4);
    slot.store(4);
    assert_eq!(doorbell.look(7), Ok(true));
    event.store(99);
    assert_eq!(doorbell.arm(7), Armed::Idle);
    assert_eq!(event.load(), 4, "stored with its fence");
}

#[test]
fn suppression_keeps_one_behind_and_writes_only_when_it_must() {
    let (mut doorbell, slot, event) = attached(0, 0, 0);
    let mut writes = 0;
    for turn in 1..=80u32 {
        let before = event.load();
        event.store(99);
        doorbell.suppress(3);
        if event.load() == 99 {
            event.store(before);
        } else {
            writes += 1;
        }
        let old = doorbell.seen();
        slot.store(turn % 8);
        let new = (turn % 8) as u16;
        assert!(!crate::needs_event_linux(event.load() as u16, new, old), "turn {turn}");
        assert!(!crate::needs_event_annex_b(depth(8), event.load() as u16, new, old), "turn {turn}");
        assert_eq!(doorbell.look(7), Ok(true));
    }
    assert_eq!(writes, 27, "every third move");
    doorbell.suppress(3);
    event.store(99);
    doorbell.suppress(3);
    assert_eq!(event.load(), 99, "settled");
}

#[test]
fn the_smallest_ring_is_suppressed_without_writing_the_same_again() {
    let (slot, event) = (word(0), word(0));
    let mut doorbell = Doorbell::new(depth(2));
    doorbell.attach(slot.clone(), event.clone());
    doorbell.suppress(0);
    assert_eq!(event.load(), 1);
    event.store(99);
    doorbell.suppress(0);
    assert_eq!(event.load(), 99);
}

#[test]
fn bad_register_values_are_refused_and_change_nothing() {
    let mut plain = Doorbell::<Word>::restore(depth(8), 3);
    for value in [8, 9, 0xffff, 0x1_0004, 0x8000_0003, u32::MAX] {
        assert_eq!(plain.ring(value, 7), Err(Invalid { value }));
        assert_eq!(plain.ring(value, 7), Err(Invalid { value }), "each write is an event of its own");
    }
    assert_eq!(plain.ring(2, 6), Err(Invalid { value: 2 }), "backwards: there is room for six");
    assert_eq!(plain.ring(4, 0), Err(Invalid { value: 4 }), "a full ring");
    assert_eq!(plain.seen(), 3);
    assert_eq!(plain.ring(4, 1), Ok(()));
    assert_eq!(plain.seen(), 4);
}

#[test]
fn a_register_value_that_was_never_a_position_is_reported_though_the_slot_is_in_use_and_the_ring_still_kicks() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(1);
    assert_eq!(doorbell.ring(0xffff_ffff, 7), Err(Invalid { value: 0xffff_ffff }));
    assert_eq!(doorbell.seen(), 1);
}

#[test]
fn the_upper_half_of_a_slot_is_ignored() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(0xabcd_0003);
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 3);
    slot.store(0x1234_0003);
    assert_eq!(doorbell.look(7), Ok(false));
}

#[test]
fn a_bad_slot_is_reported_once_and_lets_the_device_sleep() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(8);
    assert_eq!(doorbell.arm(7), Armed::Invalid(Invalid { value: 8 }));
    for _ in 0..3 {
        assert_eq!(doorbell.arm(7), Armed::Idle);
        assert_eq!(doorbell.look(7), Ok(false));
    }
    slot.store(9);
    assert_eq!(doorbell.look(7), Err(Invalid { value: 9 }), "another one");
    slot.store(8);
    assert_eq!(doorbell.look(7), Err(Invalid { value: 8 }), "again, after something else");
    slot.store(1);
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 1);
}

#[test]
fn a_position_that_was_bad_is_taken_when_it_comes_again_and_is_good() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(5);
    assert_eq!(doorbell.look(3), Err(Invalid { value: 5 }), "room for three");
    slot.store(0);
    assert_eq!(doorbell.look(3), Ok(false), "the driver has put it right");
    slot.store(5);
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.ring(6, 0), Ok(()), "the register's value is of no use");
    assert_eq!(doorbell.look(7), Ok(false));

    // A refused register value does not stick to the slot.
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    assert_eq!(doorbell.ring(5, 3), Err(Invalid { value: 5 }));
    slot.store(5);
    assert_eq!(doorbell.look(7), Ok(true));
}

#[test]
fn memory_that_goes_away_and_comes_back_elsewhere_keeps_position_and_source() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(2);
    assert_eq!(doorbell.look(7), Ok(true));
    doorbell.suspend();
    assert!(doorbell.has_shadow() && doorbell.is_live());
    assert_eq!(doorbell.ring(1, 7), Ok(()), "still of no value");
    assert_eq!(doorbell.arm(7), Armed::Idle);
    doorbell.suppress(3);
    assert_eq!(doorbell.look(7), Ok(false));
    let (slot, event) = (word(6), word(0x5555));
    doorbell.resume(slot, event.clone());
    assert_eq!(event.load(), 2, "armed where the device is");
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 6);
}

#[test]
fn register_writes_wait_while_the_memory_is_away() {
    let (mut doorbell, slot, event) = attached(0, 0, 0);
    doorbell.suspend();
    assert_eq!(doorbell.ring(2, 7), Ok(()));
    assert_eq!(doorbell.ring(3, 7), Ok(()));
    assert_eq!(doorbell.ring(8, 7), Err(Invalid { value: 8 }));
    assert_eq!(doorbell.look(7), Ok(false));
    doorbell.resume(slot, event.clone());
    assert_eq!(event.load(), 0);
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 3);
    assert_eq!(doorbell.look(7), Ok(false), "once");

    // Or for good.
    doorbell.suspend();
    assert_eq!(doorbell.ring(4, 7), Ok(()));
    doorbell.detach();
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 4);
}

#[test]
fn a_slot_that_comes_into_use_while_its_memory_is_away_is_not_missed() {
    // Were the register heeded meanwhile, the slot could come round to where it was.
    let (slot, event) = (word(0), word(0));
    let mut doorbell = Doorbell::new(depth(2));
    doorbell.attach(slot.clone(), event.clone());
    doorbell.suspend();
    slot.store(1);
    assert_eq!(doorbell.ring(1, 1), Ok(()));
    assert_eq!(doorbell.seen(), 0, "so that the driver cannot go on");
    doorbell.resume(slot, event);
    assert_eq!(doorbell.look(1), Ok(true));
    assert!(doorbell.is_live());
    assert_eq!(doorbell.look(1), Ok(false));
}

#[test]
fn nothing_is_resumed_that_was_never_attached() {
    let mut doorbell = Doorbell::new(depth(8));
    doorbell.suspend();
    doorbell.resume(word(3), word(0));
    assert!(!doorbell.has_shadow());
    assert_eq!(doorbell.look(7), Ok(false));
}

#[test]
fn nothing_reads_a_slot_after_it_was_let_go() {
    let (mut doorbell, slot, event) = attached(0, 0, 0);
    slot.store(2);
    doorbell.detach();
    assert_eq!((Arc::strong_count(&slot), Arc::strong_count(&event)), (1, 1));
    slot.store(7);
    assert_eq!(doorbell.look(7), Ok(true), "what the slot held then");
    assert_eq!(doorbell.seen(), 2);
    assert_eq!(doorbell.ring(3, 7), Ok(()));
    assert_eq!(doorbell.seen(), 3);
    doorbell.suppress(3);
    assert_eq!(doorbell.arm(7), Armed::Idle);
}

#[test]
fn new_buffers_lose_neither_what_the_old_ones_said_last_nor_take_rings_of_before() {
    let (mut doorbell, old, _event) = attached(0, 0, 0);
    old.store(2);
    assert_eq!(doorbell.look(7), Ok(true));
    old.store(5);
    let (slot, event) = (word(5), word(0));
    doorbell.detach();
    doorbell.attach(slot.clone(), event.clone());
    assert_eq!(event.load(), 2);
    assert_eq!(doorbell.ring(1, 7), Ok(()), "of old");
    assert_eq!(doorbell.seen(), 5);
    assert_eq!(doorbell.ring(1, 7), Ok(()), "of old");
    assert_eq!(doorbell.seen(), 5);
    slot.store(6);
    assert_eq!(doorbell.look(7), Ok(true));

    // Twice in a row, and a page of zeros.
    doorbell.attach(word(6), word(0));
    slot.store(7);
    let zeros = word(0);
    doorbell.attach(zeros.clone(), word(0));
    assert_eq!(doorbell.look(7), Ok(false), "zeros are no position, and the driver was at 6 in the last page but one");
    assert_eq!(doorbell.seen(), 6);
    assert_eq!(doorbell.ring(3, 7), Ok(()));
    assert_eq!(doorbell.seen(), 6, "of old");
    assert_eq!(doorbell.ring(0, 7), Ok(()));
    assert_eq!(doorbell.seen(), 0, "slot and register agree");
}

#[test]
fn what_was_said_before_is_forgotten_once_the_slot_says_more() {
    let (mut doorbell, slot, event) = attached(0, 0, 0);
    doorbell.suspend();
    assert_eq!(doorbell.ring(1, 7), Ok(()));
    slot.store(3);
    doorbell.resume(slot.clone(), event);
    assert_eq!(doorbell.look(7), Ok(true));
    doorbell.suspend();
    doorbell.detach();
    assert_eq!(doorbell.look(7), Ok(false));
    assert_eq!(doorbell.seen(), 3);

    // A value that was refused in the old slot is good in the new one.
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(5);
    assert_eq!(doorbell.look(3), Err(Invalid { value: 5 }));
    let slot = word(0);
    doorbell.attach(slot.clone(), word(0));
    let _ = doorbell.look(3);
    slot.store(5);
    assert_eq!(doorbell.look(7), Ok(true));
}

#[test]
fn one_ring_moves_no_further_than_there_is_room_even_in_two_steps() {
    let (mut doorbell, slot, _event) = attached(0, 0, 0);
    slot.store(3);
    doorbell.detach();
    assert_eq!(doorbell.ring(4, 3), Err(Invalid { value: 4 }));
    assert_eq!(doorbell.seen(), 3);
}

#[test]
fn an_imported_queue_catches_up_with_a_driver_that_moved_on_without_a_ring() {
    let (slot, event) = (word(6), word(7));
    let mut doorbell = Doorbell::restore(depth(8), 2);
    doorbell.attach_live(slot, event.clone());
    assert_eq!(event.load(), 2);
    assert_eq!(doorbell.ring(1, 7), Ok(()));
    assert_eq!(doorbell.seen(), 6);
}

#[test]
fn slots_are_little_endian_words_in_guest_memory() {
    let (ram, _fd) = dma::Mapping::new_shared("slots", 4096).unwrap();
    let cell = |at| ram.window().cell32(at).unwrap();
    let mut doorbell = Doorbell::restore(depth(1024), 0x102);
    doorbell.attach(cell(8), cell(16));
    let mut event = [0; 4];
    ram.window().read(16, &mut event).unwrap();
    assert_eq!(event, [2, 1, 0, 0]);
    ram.window().write(8, &[3, 2, 0, 0]).unwrap();
    assert_eq!(doorbell.look(1023), Ok(true));
    assert_eq!(doorbell.seen(), 0x203);
}

#[test]
fn a_driver_that_switches_over_under_load_is_followed_from_every_leftover() {
    // The driver moved by register, its writes are late, and the slot holds any value when the device attaches it.
    for leftover in 0..8 {
        for (late, at) in [(0, 3), (1, 3), (3, 3), (2, 7)] {
            for steps in 1..=7u16 {
                let (mut doorbell, slot, event) = attached(late, leftover, 0);
                let mut driver = DriverDoorbell::new(depth(8));
                assert!(driver.advance(at));
                driver.attach(slot, event);
                let new = depth(8).advance(at, steps);
                let outstanding = depth(8).distance(late, at) + steps;
                if outstanding > 7 {
                    continue;
                }
                // The register writes arrive in the end, in their order.
                let rung = driver.advance(new);
                doorbell.ring(at.into(), 7).unwrap();
                if rung {
                    doorbell.ring(new.into(), 7 - depth(8).distance(late, doorbell.seen())).unwrap();
                } else {
                    doorbell.look(7 - depth(8).distance(late, doorbell.seen())).unwrap();
                }
                assert_eq!(doorbell.seen(), new, "leftover {leftover}, from {late} and {at} by {steps}");
            }
        }
    }
}

// ---- mapped registers ---------------------------------------------------------------------------------------------------

fn mapped(entries: u32, seen: u16) -> (Doorbell<Word>, Word) {
    let register = word(0xdead_beef);
    let mut doorbell = Doorbell::restore(depth(entries), seen);
    doorbell.map(register.clone());
    (doorbell, register)
}

#[test]
fn a_mapped_register_begins_at_the_position_whatever_it_held() {
    let (mut doorbell, register) = mapped(8, 5);
    assert_eq!(register.load(), 5);
    assert_eq!(doorbell.look(7), Ok(false));
    assert!(doorbell.is_mapped() && !doorbell.has_shadow() && !doorbell.is_live());
}

#[test]
fn a_mapped_register_is_followed_over_the_wrap_from_every_position_by_every_step() {
    for entries in [2, 3, 8, 33] {
        for from in 0..entries as u16 {
            for steps in 1..entries as u16 {
                let (mut doorbell, register) = mapped(entries, from);
                let to = depth(entries).advance(from, steps);
                register.store(to.into());
                assert_eq!(doorbell.look(steps - 1), Err(Invalid { value: to.into() }), "no room for so many");
                assert_eq!(doorbell.look(steps), Ok(false), "refused once");
                register.store(0xabcd_0000 | u32::from(from));
                assert_eq!(doorbell.look(steps), Ok(false), "the upper half is ignored");
                register.store(0x1234_0000 | u32::from(to));
                assert_eq!(doorbell.look(steps), Ok(true), "{entries} entries, {from} by {steps}");
                assert_eq!((doorbell.seen(), doorbell.look(entries as u16 - 1)), (to, Ok(false)));
            }
        }
    }
}

#[test]
fn every_value_of_a_mapped_register_is_a_position_or_is_refused_once() {
    for value in (0..=u16::MAX).map(u32::from).chain([0x1_0000, 0x8000_0009, u32::MAX]) {
        let (mut doorbell, register) = mapped(10, 7);
        register.store(value);
        let position = value & 0xffff;
        match (position, doorbell.look(4)) {
            (7, Ok(false)) | (8..=9 | 0..=1, Ok(true)) => assert_eq!(u32::from(doorbell.seen()), position),
            (_, Err(invalid)) => {
                assert_eq!((invalid.value, doorbell.seen()), (position, 7));
                assert!((2..=6).contains(&position) || position > 9, "{value:#x}");
                assert_eq!(doorbell.look(4), Ok(false));
                register.store(8);
                assert_eq!(doorbell.look(4), Ok(true), "put right");
            }
            other => panic!("{value:#x}: {other:?}"),
        }
    }
}

#[test]
fn a_mapped_register_cannot_be_armed_and_says_so_after_a_look() {
    let (mut doorbell, register) = mapped(8, 0);
    assert_eq!(doorbell.arm(7), Armed::ByClock);
    register.store(3);
    assert_eq!(doorbell.arm(7), Armed::MoreWork);
    register.store(9);
    assert_eq!(doorbell.arm(7), Armed::Invalid(Invalid { value: 9 }));
    assert_eq!(doorbell.arm(7), Armed::ByClock);
    doorbell.suppress(3);
    assert_eq!((register.load(), doorbell.seen()), (9, 3), "nothing is written there");
}

#[test]
fn a_write_that_is_trapped_all_the_same_goes_to_the_mapped_register() {
    let (mut doorbell, register) = mapped(8, 0);
    assert_eq!(doorbell.ring(3, 7), Ok(()));
    assert_eq!((doorbell.seen(), register.load()), (3, 3));
    register.store(5);
    assert_eq!(doorbell.look(7), Ok(true), "the next one is stored again");
    for _ in 0..2 {
        assert_eq!(doorbell.ring(8, 7), Err(Invalid { value: 8 }), "each write is an event of its own");
    }
    assert_eq!(doorbell.look(7), Ok(false));
    assert_eq!((doorbell.ring(6, 7), doorbell.seen()), (Ok(()), 6));
}

#[test]
fn a_mapped_register_stays_the_source_whatever_happens_to_guest_memory() {
    let (mut doorbell, register) = mapped(8, 0);
    doorbell.attach(word(4), word(0));
    doorbell.suspend();
    doorbell.resume(word(4), word(0));
    doorbell.detach();
    register.store(2);
    assert_eq!(doorbell.look(7), Ok(true));
    assert_eq!(doorbell.seen(), 2);
}
