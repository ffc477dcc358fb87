//! MSI-X vectors that come late, and the legacy line, which is a level.

use std::sync::atomic::Ordering;

use nvme::{logs::AsyncEvent, registers::offset, shadow::cq_slot};
use pci::PciFunction;

use crate::host::{Bells, Machine, Setup, Signal, commands, config, disk::GatedDisk, ram};

const COMMAND: u16 = 4;
const STATUS: u16 = 6;
const INTERRUPT_STATUS: u16 = 1 << 3;

fn machine(signal: Signal) -> Machine {
    let mut m = Machine::boot(config(ram(512)), Setup { signal, ..Setup::default() });
    m.create_pair(1, 16, Bells::Register);
    m
}

fn pending(m: &mut Machine, vector: u16) -> bool {
    let mut raw = [0];
    m.function.bar_read(4, 0x4000 + u64::from(vector / 8), &mut raw);
    raw[0] >> (vector % 8) & 1 != 0
}

/// Linux creates CQs before it sets their vectors up, and the VMM connects one at its first use.
#[test]
fn an_interrupt_waits_for_its_vector_to_be_connected() {
    let mut m = machine(Signal::Msix);
    m.disconnect(1);
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    assert!(pending(&mut m, 1) && !pending(&mut m, 0));
    m.connect(1);
    assert!(!pending(&mut m, 1));
    assert_eq!(m.take_interrupts(1), 1);
    m.disconnect(1);
    m.connect(1);
    assert_eq!(m.take_interrupts(1), 0, "it was delivered");
    m.reap(1);
    assert_eq!(m.outstanding(1), 0);
}

#[test]
fn a_reset_forgets_what_is_pending() {
    let mut m = machine(Signal::Msix);
    m.disconnect(1);
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.disable();
    assert!(!pending(&mut m, 1));
    m.connect(1);
    assert_eq!(m.take_interrupts(1), 0);
}

#[test]
fn a_batch_is_one_interrupt() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    for lba in 0..20 {
        m.submit(1, commands::write_zeroes(lba, 1));
    }
    m.settle();
    assert_eq!(m.take_interrupts(1), 0);
    disk.release_all();
    m.settle();
    assert_eq!(m.take_interrupts(1), 1);
    assert_eq!((m.reap(1), m.counters(1).interrupts), (20, 1));
    m.settle();
    assert_eq!(m.take_interrupts(1), 0);
}

#[test]
fn a_cq_without_interrupts_is_silent() {
    for signal in [Signal::Msix, Signal::Intx] {
        let mut m = machine(signal);
        let (cq, sq) = (m.alloc_ring(16, 16), m.alloc_ring(16, 64));
        m.add_cq(2, 16, cq, None, Bells::Register);
        m.add_sq(2, 16, sq, 2, Bells::Register);
        m.ok(0, commands::create_cq(2, 16, cq, None));
        m.ok(0, commands::create_sq(2, 16, sq, 2));
        m.settle_and_serve();
        let before = m.counters(2).interrupts;
        m.submit(2, commands::write_zeroes(0, 1));
        m.settle();
        assert_eq!((0..3).map(|v| m.take_interrupts(v)).sum::<u64>() + m.take_line(), 0);
        assert_eq!(m.counters(2).interrupts, before);
        m.reap(2);
        assert_eq!(m.outstanding(2), 0);
    }
}

#[test]
fn two_cqs_may_share_a_vector() {
    let mut m = machine(Signal::Msix);
    let (cq, sq) = (m.alloc_ring(16, 16), m.alloc_ring(16, 64));
    m.add_cq(2, 16, cq, Some(1), Bells::Register);
    m.add_sq(2, 16, sq, 2, Bells::Register);
    m.ok(0, commands::create_cq(2, 16, cq, Some(1)));
    m.ok(0, commands::create_sq(2, 16, sq, 2));
    for _ in 0..20 {
        m.submit(1, commands::write_zeroes(0, 1));
        m.ok(2, commands::write_zeroes(0, 1));
        m.drain(1);
    }
}

// ---- the legacy line ----------------------------------------------------------------------------------------------------

/// Active while a CQ holds entries that the host has not consumed (NVMe over PCIe 1.0 §3.5.1).
#[test]
fn the_line_is_active_until_the_head_has_moved() {
    let mut m = machine(Signal::Intx);
    m.settle_and_serve();
    m.submit(1, commands::write_zeroes(0, 1));
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    assert_eq!(m.take_line(), 1);
    for _ in 0..3 {
        m.function.intx_unmasked();
        assert_eq!(m.take_line(), 1, "still active");
    }
    m.pop(1).unwrap();
    m.ring_cq(1);
    m.function.intx_unmasked();
    assert_eq!(m.take_line(), 1, "one is left");
    m.pop(1).unwrap();
    m.ring_cq(1);
    m.function.intx_unmasked();
    assert_eq!(m.take_line(), 0);
}

#[test]
fn intms_and_intmc_mask_the_line() {
    let mut m = machine(Signal::Intx);
    m.settle_and_serve();
    m.write32(offset::INTMS, 1);
    assert_eq!((m.read32(offset::INTMS), m.read32(offset::INTMC)), (1, 1));
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.function.intx_unmasked();
    assert_eq!(m.take_line(), 0);
    m.write32(offset::INTMC, 2);
    assert_eq!(m.take_line(), 0, "another vector");
    m.write32(offset::INTMC, 1);
    assert_eq!(m.take_line(), 1);
    m.reap(1);
    m.write32(offset::INTMS, 1);
    m.write32(offset::INTMC, 1);
    assert_eq!(m.take_line(), 0, "nothing is left");
}

/// PCI 3.0 §6.2.2: Interrupt Disable keeps the line silent; Interrupt Status tells its level all the same.
#[test]
fn interrupt_disable_keeps_the_line_silent_until_it_is_cleared() {
    let mut m = machine(Signal::Intx);
    m.settle_and_serve();
    assert_eq!(m.config_u16(STATUS) & INTERRUPT_STATUS, 0);
    m.config_write(COMMAND, &0x406u16.to_le_bytes());
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.function.intx_unmasked();
    m.write32(offset::INTMC, 1);
    assert_eq!(m.take_line(), 0);
    assert_eq!(m.config_u16(STATUS) & INTERRUPT_STATUS, INTERRUPT_STATUS);
    m.config_write(COMMAND, &6u16.to_le_bytes());
    assert_eq!(m.take_line(), 1);
    m.reap(1);
    assert_eq!(m.config_u16(STATUS) & INTERRUPT_STATUS, 0);
}

#[test]
fn msix_silences_the_line_and_its_end_brings_it_back() {
    let mut m = machine(Signal::Intx);
    m.settle_and_serve();
    let control = m.capability(0x11) + 2;
    m.config_write(control, &0x8000u16.to_le_bytes());
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.function.intx_unmasked();
    assert_eq!((m.take_line(), m.config_u16(STATUS) & INTERRUPT_STATUS), (0, 0));
    m.config_write(control, &0u16.to_le_bytes());
    assert_eq!(m.take_line(), 1);
}

#[test]
fn a_line_that_is_connected_late_is_active_at_once() {
    let mut m = machine(Signal::Intx);
    m.settle_and_serve();
    m.function.connect_intx(None);
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    assert_eq!(m.take_line(), 0);
    m.set_up_pci();
    assert!(m.take_line() > 0);
}

#[test]
fn the_line_follows_slots_too() {
    let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Intx, ..Setup::default() });
    m.use_shadow_doorbells();
    m.create_pair(1, 16, Bells::Slot);
    m.ok(1, commands::write_zeroes(0, 1));
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    assert_eq!(m.take_line(), 1);
    m.reap(1);
    assert_eq!(m.counters(1).cq_doorbell_writes, 0);
    m.function.intx_unmasked();
    assert_eq!(m.take_line(), 0);
}

/// The line's level looks at the heads, and what is wrong there is an event wherever it is found.
#[test]
fn a_bad_head_that_the_line_finds_is_an_event() {
    let mut m = Machine::boot(config(ram(512)), Setup { signal: Signal::Intx, ..Setup::default() });
    m.use_shadow_doorbells();
    m.create_pair(1, 16, Bells::Slot);
    for _ in 0..20 {
        m.ok(1, commands::write_zeroes(0, 1));
    }
    let request = m.submit(0, commands::event_request());
    m.settle_and_serve();
    let slot = m.slot(false, cq_slot(1, 0));
    slot.store(0xffff, Ordering::Release);
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.reap(0);
    let entry = m.take(0, request).expect("an event");
    assert_eq!(AsyncEvent::from_dw0(entry.dw0.get()), AsyncEvent::INVALID_DOORBELL_VALUE);
    assert!(m.take_line() > 0, "and the line is active all the same");
    m.reap(1);
    m.drain(1);
}

#[test]
fn a_reset_drops_the_line() {
    let mut m = machine(Signal::Intx);
    m.settle_and_serve();
    m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    m.take_line();
    m.write32(offset::CC, 0);
    m.function.intx_unmasked();
    assert_eq!((m.take_line(), m.config_u16(STATUS) & INTERRUPT_STATUS), (0, 0));
}
