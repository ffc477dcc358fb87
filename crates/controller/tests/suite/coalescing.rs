//! Interrupt Coalescing (feature 08h) and Interrupt Vector Configuration (09h), NVMe Base 2.1 §5.1.25.2.2 and §5.1.25.2.3.

use std::time::{Duration, Instant};

use nvme::features::{FeatureId, InterruptCoalescing, InterruptVectorConfig};

use crate::host::{Bells, Machine, Setup, commands, config, ram};

/// So long that no test gets there: 25.5 ms is all that the field holds, and a busy machine may take that away.
const LONGEST: u8 = 255;

fn machine() -> Machine {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.create_pair(1, 64, Bells::Register);
    m.create_pair(2, 64, Bells::Register);
    m.settle_and_serve();
    m
}

fn coalesce(m: &mut Machine, threshold_z: u8, time_100us: u8) {
    let value = InterruptCoalescing { threshold_z, time_100us }.to_dword();
    m.ok(0, commands::set_feature(FeatureId::INTERRUPT_COALESCING, value));
}

fn disable_vector(m: &mut Machine, iv: u16, cd: bool) {
    m.ok(0, commands::set_feature(FeatureId::INTERRUPT_VECTOR_CONFIG, InterruptVectorConfig { iv, cd }.to_dword()));
}

/// Completes commands one by one, each in a turn of its own, and returns how many it took to the first interrupt. `None`: there was
/// none, or the time was over before.
fn commands_to_an_interrupt(m: &mut Machine, qid: u16, most: u32) -> Option<u32> {
    let start = Instant::now();
    for n in 1..=most {
        m.submit(qid, commands::write_zeroes(0, 1));
        m.settle();
        if m.take_interrupts(qid) > 0 {
            return (start.elapsed() < Duration::from_millis(25)).then_some(n);
        }
    }
    None
}

/// Empties the queue and waits for the end of what is gathered.
fn finish(m: &mut Machine, qid: u16) {
    m.reap(qid);
    m.clock = true;
    m.run_until("nothing is owed", |m| m.is_asleep() && m.until.is_none());
    m.clock = false;
    m.take_interrupts(qid);
}

#[test]
fn an_interrupt_comes_with_the_completion_that_reaches_the_threshold() {
    let mut m = machine();
    for threshold in [2, 5, 16] {
        coalesce(&mut m, threshold - 1, LONGEST);
        // On a machine that is too busy the time is over first.
        let in_time = (0..100).find_map(|_| {
            let n = commands_to_an_interrupt(&mut m, 1, u32::from(threshold));
            finish(&mut m, 1);
            n
        });
        assert_eq!(in_time, Some(threshold.into()));
    }
    assert!(m.counters(1).interrupts_spared > 0);
}

#[test]
fn an_interrupt_comes_at_the_time_that_prepare_wait_names() {
    let mut m = machine();
    for time in [1, 20] {
        coalesce(&mut m, 200, time);
        let before = Instant::now();
        m.submit(1, commands::write_zeroes(0, 1));
        m.settle();
        let Some(until) = m.until else {
            // The time was over before the device slept.
            assert!(before.elapsed() >= Duration::from_micros(100) * time.into());
            assert_eq!(m.take_interrupts(1), 1);
            continue;
        };
        assert!(until >= before + Duration::from_micros(100) * time.into());
        assert_eq!(m.take_interrupts(1), 0);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        m.wake();
        m.settle();
        assert_eq!((m.take_interrupts(1), m.until), (1, None));
        m.reap(1);
        assert_eq!(m.outstanding(1), 0);
    }
}

#[test]
fn neither_a_time_nor_a_threshold_of_zero_puts_an_interrupt_off() {
    let mut m = machine();
    for (threshold_z, time) in [(10, 0), (0, LONGEST), (0, 0)] {
        coalesce(&mut m, threshold_z, time);
        for _ in 0..10 {
            m.submit(1, commands::write_zeroes(0, 1));
            m.settle();
            assert_eq!((m.take_interrupts(1), m.until), (1, None));
            m.reap(1);
        }
    }
}

#[test]
fn a_vector_can_be_left_out() {
    let mut m = machine();
    coalesce(&mut m, 200, LONGEST);
    disable_vector(&mut m, 1, true);
    m.submit(1, commands::write_zeroes(0, 1));
    m.submit(2, commands::write_zeroes(0, 1));
    m.settle();
    assert_eq!(m.take_interrupts(1), 1);
    finish(&mut m, 2);
    disable_vector(&mut m, 1, false);
    let before = Instant::now();
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    assert!(m.take_interrupts(1) == 0 || before.elapsed() >= Duration::from_millis(25));
}

/// Interrupt coalescing is not supported for the admin CQ.
#[test]
fn the_admin_queue_is_never_put_off() {
    let mut m = machine();
    coalesce(&mut m, 200, LONGEST);
    for cd in [true, false] {
        disable_vector(&mut m, 0, cd);
        m.submit(0, commands::get_feature(FeatureId::ARBITRATION, nvme::features::Select::CURRENT, 0));
        m.settle();
        assert_eq!(m.take_interrupts(0), 1);
        m.reap(0);
    }
}

#[test]
fn a_reset_ends_it_and_what_was_gathered() {
    let mut m = machine();
    coalesce(&mut m, 200, LONGEST);
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.disable();
    m.settle();
    assert_eq!((m.take_interrupts(1), m.until), (0, None));
    m.enable();
    m.create_pair(1, 16, Bells::Register);
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    assert_eq!((m.take_interrupts(1), m.until), (1, None));
}
