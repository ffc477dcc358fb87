//! Doorbell registers that the VMM maps into the guest: the guest writes them, and nobody is told.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use nvme::{Status, identify::oacs, logs::AsyncEvent, registers::offset};
use pci::PciFunction;
use shadowbell_controller::{Config, DoorbellMode};

use crate::host::{Bells, Machine, Setup, Signal, commands, config, memory::Layout, ram};

fn mapped() -> Config {
    Config { doorbells: DoorbellMode::Mapped, ..config(ram(512)) }
}

/// A machine whose guest rings by store alone, with a clock that runs.
fn machine(signal: Signal) -> Machine {
    let setup = Setup { signal, admin_bells: Bells::Mapped, ..Setup::default() };
    let mut m = Machine::power_on(mapped(), setup);
    m.clock = true;
    m.set_up_pci();
    m.enable();
    m
}

#[test]
fn everything_works_without_one_register_write_that_is_trapped() {
    for signal in [Signal::Msix, Signal::Intx, Signal::Polled] {
        let mut m = machine(signal);
        for (sq_depth, cq_depth) in [(2, 2), (16, 2), (2, 16), (64, 3), (33, 64)] {
            m.create_cq(1, cq_depth, Bells::Mapped);
            m.create_sq(1, sq_depth, 1, Bells::Mapped);
            for batch in [1, 3, 60, 1] {
                for lba in 0..batch {
                    m.push(1, commands::write_zeroes(lba, 1));
                    if lba % 7 != 6 {
                        m.ring(1);
                    }
                }
                m.ring(1);
                m.drain(1);
            }
            m.delete_pair(1);
        }
        for qid in [0, 1] {
            let c = m.counters(qid);
            assert_eq!((c.sq_doorbell_writes, c.cq_doorbell_writes, c.invalid_doorbells), (0, 0, 0), "{signal:?}");
        }
        assert_eq!(m.counters(1).commands, 5 * 65);
        assert!(m.function.report().device.mapped_doorbells);
    }
}

/// A VMM may go on trapping, and a guest may have both.
#[test]
fn writes_that_are_trapped_all_the_same_land_in_the_register() {
    let mut m = machine(Signal::Msix);
    m.create_pair(1, 16, Bells::Register);
    for n in 1..=40u32 {
        m.ok(1, commands::write_zeroes(0, 1));
        assert_eq!(m.mapped_register(0x1008).load(Ordering::Acquire), n % 16);
        assert_eq!(m.mapped_register(0x100c).load(Ordering::Acquire), n % 16);
    }
    assert_eq!(m.counters(1).sq_doorbell_writes, 40);
    m.sqs.get_mut(&1).unwrap().bells = Bells::Mapped;
    m.cqs.get_mut(&1).unwrap().bells = Bells::Mapped;
    for _ in 0..40 {
        m.ok(1, commands::write_zeroes(0, 1));
    }
    assert_eq!(m.counters(1).sq_doorbell_writes, 40);
}

#[test]
fn shadow_doorbells_are_not_on_offer() {
    let mut m = machine(Signal::Msix);
    let (shadow, event) = (m.buffer(4096), m.buffer(4096));
    let status = m.status(0, commands::doorbell_buffer_config(shadow, event));
    assert_eq!(status, Status::INVALID_OPCODE.with_dnr());
    let page = m.fetch(4096, |prps| commands::identify(nvme::identify::Cns::CONTROLLER, 0, prps));
    assert_eq!(u16::from_le_bytes([page[256], page[257]]) & oacs::DOORBELL_BUFFER_CONFIG, 0);
    // And nothing can be mapped where they are.
    for doorbells in [DoorbellMode::Shadow, DoorbellMode::Register] {
        let m = Machine::power_on(Config { doorbells, ..mapped() }, Setup::default());
        assert!(m.function.mappable(0).is_none() && !m.function.report().device.mapped_doorbells);
    }
    assert!((1..6).all(|bar| m.function.mappable(bar).is_none()));
}

#[test]
fn every_reset_clears_the_page_and_a_new_queue_its_own_registers() {
    let resets: [fn(&mut Machine); 3] = [
        |m| m.write32(offset::CC, 0),
        |m| m.write32(offset::NSSR, nvme::registers::NSSR_RESET),
        |m| m.function.reset(),
    ];
    for reset in resets {
        let mut m = machine(Signal::Msix);
        m.create_pair(1, 16, Bells::Mapped);
        m.ok(1, commands::write_zeroes(0, 1));
        m.mapped_register(0x1ffc).store(9, Ordering::Release);
        reset(&mut m);
        m.wake();
        m.run_until("the reset is done", |m| m.function.is_quiet());
        assert!((0x1000..0x2000).step_by(4).all(|at| m.mapped_register(at).load(Ordering::Acquire) == 0));
        m.forget();
        // A guest that writes before its queues exist has said nothing.
        for at in [0x1000, 0x1004, 0x1008, 0x100c, 0x1010] {
            m.mapped_register(at).store(5, Ordering::Release);
        }
        m.set_up_pci();
        m.enable();
        m.create_pair(1, 4, Bells::Mapped);
        assert_eq!(m.mapped_register(0x1010).load(Ordering::Acquire), 5, "no queue of that id was created");
        for _ in 0..10 {
            m.ok(1, commands::write_zeroes(0, 1));
        }
        assert_eq!(m.counters(1).invalid_doorbells + m.counters(0).invalid_doorbells, 0);
    }
}

/// The page is no guest memory.
#[test]
fn the_page_stays_where_it_is_when_guest_memory_moves() {
    for layout in Layout::ALL {
        let mut m = Machine::power_on(mapped(), Setup { layout, admin_bells: Bells::Mapped, ..Setup::default() });
        m.clock = true;
        m.set_up_pci();
        m.enable();
        m.create_pair(1, 5, Bells::Mapped);
        for round in 0..6 {
            for lba in 0..7 {
                m.write_blocks(1, lba, &[round; 512], 512);
            }
            m.memory.hide();
            m.update_memory();
            m.memory.show_elsewhere();
            m.update_memory();
            assert_eq!(m.read_blocks(1, 6, 1, 512), [round; 512], "{layout:?}");
        }
    }
}

/// Not armed, so that it comes back: soon after work, and less and less often while there is none.
#[test]
fn an_enabled_controller_comes_back_by_the_clock_and_another_one_sleeps() {
    let mut m = Machine::power_on(mapped(), Setup { admin_bells: Bells::Mapped, ..Setup::default() });
    m.set_up_pci();
    m.settle();
    assert_eq!(m.until, None, "nothing can come while it is disabled");
    m.clock = true;
    m.enable();
    m.create_pair(1, 16, Bells::Mapped);
    let pause = |m: &mut Machine| {
        m.wake();
        let before = Instant::now();
        m.settle();
        m.until.expect("a time").saturating_duration_since(before)
    };
    for _ in 0..3 {
        m.ok(1, commands::write_zeroes(0, 1));
        m.clock = false;
        let first = pause(&mut m);
        // More than it wants only by what the machine under the test takes away.
        let mut last = Duration::ZERO;
        for _ in 0..30 {
            last = pause(&mut m);
        }
        assert!(last > first && last >= Duration::from_millis(1), "from {first:?} to {last:?}");
        m.clock = true;
    }
    m.write32(offset::CC, 0);
    m.clock = false;
    m.settle();
    assert_eq!(m.until, None);
}

#[test]
fn a_bad_value_is_ignored_counted_and_reported_once() {
    let mut m = machine(Signal::Msix);
    m.create_pair(1, 16, Bells::Mapped);
    let request = m.submit(0, commands::event_request());
    for value in [16, 0xffff] {
        m.mapped_register(0x1008).store(value, Ordering::Release);
        let before = m.counters(1).invalid_doorbells;
        m.run_until("it is seen", |m| m.counters(1).invalid_doorbells > before);
        for _ in 0..50 {
            m.turn();
        }
        assert_eq!(m.counters(1).invalid_doorbells, before + 1);
    }
    let entry = m.wait(0, request);
    assert_eq!(AsyncEvent::from_dw0(entry.dw0.get()), AsyncEvent::INVALID_DOORBELL_VALUE);
    // The upper half is reserved.
    m.push(1, commands::write_zeroes(0, 1));
    m.mapped_register(0x1008).store(0xabcd_0001, Ordering::Release);
    m.drain(1);
    m.ok(1, commands::write_zeroes(0, 1));
}

#[test]
fn a_page_that_somebody_may_still_hold_is_replaced() {
    let mut m = machine(Signal::Msix);
    m.create_pair(1, 16, Bells::Mapped);
    m.ok(1, commands::write_zeroes(0, 1));
    m.function.reset();
    m.wake();
    m.run_until("the reset is done", |m| m.function.is_quiet());
    m.function.revoke();
    m.forget();
    let old = m.mapped_register(0x1000);
    m.forget_mapping();
    m.set_up_pci();
    m.enable();
    old.store(3, Ordering::Release);
    m.create_pair(1, 16, Bells::Mapped);
    m.ok(1, commands::write_zeroes(0, 1));
    assert_eq!((m.counters(0).invalid_doorbells, m.csts().cfs()), (0, false));
}
