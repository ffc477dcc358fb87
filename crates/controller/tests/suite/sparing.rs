//! Interrupts that follow the CQ head: spared while the host has yet to read what it was told of, and never lost.
//!
//! How long a guess is trusted is a matter of real time, of which a busy machine may take away any amount between two steps. So
//! what an interrupt is spared by is tried again until it was in time ([`owe`]); what must follow from it is checked each time.

use std::time::{Duration, Instant};

use shadowbell_controller::{Config, DoorbellMode};

use crate::host::{Bells, Machine, Setup, Signal, commands, config, ram};

/// Far more tries than any machine needs.
const TRIES: u32 = 10_000;

fn boot(doorbells: DoorbellMode, signal: Signal) -> Machine {
    let mut m = Machine::boot(Config { doorbells, ..config(ram(512)) }, Setup { signal, ..Setup::default() });
    let bells = match doorbells {
        DoorbellMode::Shadow => {
            m.use_shadow_doorbells();
            Bells::Slot
        }
        DoorbellMode::Mapped => Bells::Mapped,
        DoorbellMode::Register => Bells::Register,
    };
    m.clock = doorbells == DoorbellMode::Mapped;
    m.create_pair(1, 64, bells);
    // From here on, a slot is known to be in use.
    for _ in 0..100 {
        m.ok(1, commands::write_zeroes(0, 1));
    }
    m
}

/// One command, and a turn of the device. Returns the interrupts that came.
fn step(m: &mut Machine) -> u64 {
    m.submit(1, commands::write_zeroes(0, 1));
    m.function_poll();
    m.take_interrupts(1)
}

/// Tells the host of one entry that it does not read, and then completes another: the second interrupt was spared.
#[track_caller]
fn owe(m: &mut Machine) {
    for _ in 0..TRIES {
        m.reap(1);
        m.function_poll();
        m.take_interrupts(1);
        assert_eq!(step(m), 1, "the host has read everything, and sleeps");
        if step(m) == 0 {
            return;
        }
    }
    panic!("an interrupt was never spared");
}

#[test]
fn while_the_host_is_on_its_way_further_interrupts_are_spared() {
    for mode in [DoorbellMode::Shadow, DoorbellMode::Mapped] {
        let mut m = boot(mode, Signal::Msix);
        owe(&mut m);
        let before = m.counters(1);
        m.reap(1);
        m.function_poll();
        let after = m.counters(1);
        assert_eq!((m.take_interrupts(1), after.interrupts), (0, before.interrupts), "it has read everything");
        assert_eq!(after.interrupts_spared, before.interrupts_spared + 1);
        assert_eq!(step(&mut m), 1, "a new batch");
    }
}

#[test]
fn a_head_that_moves_and_leaves_entries_unread_brings_the_interrupt() {
    for mode in [DoorbellMode::Shadow, DoorbellMode::Mapped] {
        let mut m = boot(mode, Signal::Msix);
        owe(&mut m);
        assert!(m.pop(1).is_some());
        m.ring_cq(1);
        m.function_poll();
        assert_eq!(m.take_interrupts(1), 1, "{mode:?}: it may have stopped there");
        assert!(m.pop(1).is_some());
    }
}

#[test]
fn before_a_sleep_every_interrupt_is_raised() {
    let mut m = boot(DoorbellMode::Shadow, Signal::Msix);
    owe(&mut m);
    m.settle();
    assert_eq!(m.take_interrupts(1), 1);
    // Unless the host has read everything without it.
    owe(&mut m);
    m.reap(1);
    m.settle();
    assert_eq!(m.take_interrupts(1), 0);
}

/// A driver may read entries and move its head later. While the device is awake for others, nothing else brings its interrupt.
#[test]
fn an_interrupt_is_not_owed_for_ever_to_a_host_that_moves_its_head_late() {
    let mut m = boot(DoorbellMode::Shadow, Signal::Msix);
    owe(&mut m);
    let start = Instant::now();
    while m.take_interrupts(1) == 0 {
        m.function_poll();
        assert!(start.elapsed() < Duration::from_secs(60), "never");
    }
}

#[test]
fn nothing_is_spared_where_the_head_is_told_by_register() {
    let mut m = boot(DoorbellMode::Register, Signal::Msix);
    m.settle();
    for _ in 0..20 {
        m.reap(1);
        m.take_interrupts(1);
        assert_eq!((step(&mut m), step(&mut m), step(&mut m)), (1, 1, 1));
    }
    assert_eq!(m.counters(1).interrupts_spared, 0);
}

/// A line is a level, and follows the head as it is.
#[test]
fn the_legacy_line_is_never_spared() {
    let mut m = boot(DoorbellMode::Shadow, Signal::Intx);
    m.settle_and_serve();
    m.submit(1, commands::write_zeroes(0, 1));
    m.function_poll();
    m.submit(1, commands::write_zeroes(0, 1));
    m.function_poll();
    assert_eq!((m.take_line(), m.counters(1).interrupts_spared), (2, 0));
}

#[test]
fn a_queue_that_goes_while_an_interrupt_is_owed_takes_it_along() {
    let mut m = boot(DoorbellMode::Shadow, Signal::Msix);
    owe(&mut m);
    m.disable();
    m.settle();
    assert_eq!(m.take_interrupts(1), 0);
}
