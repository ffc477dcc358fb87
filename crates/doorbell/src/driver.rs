//! The driver's half: move a position, and say whether the register must be written.

use crate::{Depth, Slot};

/// Linux's test (`nvme_dbbuf_need_event`): in 16-bit arithmetic, did the move from `old` to `new` pass `event`?
#[inline]
pub fn needs_event_linux(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The specification's test (NVMe Base 2.1 Annex B.5): the same modulo the queue's depth.
#[inline]
pub fn needs_event_annex_b(depth: Depth, event: u16, new: u16, old: u16) -> bool {
    let entries = depth.entries();
    #[allow(clippy::cast_possible_truncation)] // Below 65536.
    let event = if u32::from(event) < entries { event } else { (u32::from(event) % entries) as u16 };
    // How far the move's end is past `event`, less one: modulo the depth.
    let passed = u32::from(depth.distance(event, new)).checked_sub(1).unwrap_or(entries - 1);
    passed < u32::from(depth.distance(old, new))
}

/// One doorbell as the driver sees it: an SQ tail or a CQ head.
#[derive(Debug)]
pub struct DriverDoorbell<S> {
    depth: Depth,
    at: u16,
    /// The position before the last move.
    before: u16,
    shadow: Option<(S, S)>,
    /// Positions that are still to be rung for, whatever EventIdx says.
    ringing: u32,
}

impl<S: Slot> DriverDoorbell<S> {
    /// A doorbell at position 0, by register.
    pub fn new(depth: Depth) -> Self {
        Self { depth, at: 0, before: 0, shadow: None, ringing: 0 }
    }

    /// The current position.
    pub fn position(&self) -> u16 {
        self.at
    }

    /// Uses `slot` and `event` from now on: before the queue is created, or once Doorbell Buffer Config has completed. The
    /// slot takes the current position. A driver that is about to create the queue zeroes the slot before.
    ///
    /// If the slot held anything else, the driver goes on ringing for one revolution: register writes of before may still be
    /// on their way, and a device that finds the slot at the very value that it attached it with cannot tell that it is in
    /// use. A queue that used other slots until now does not move while the command is on its way.
    pub fn attach(&mut self, slot: S, event: S) {
        let agrees = slot.load() == u32::from(self.at);
        slot.store(u32::from(self.at));
        self.shadow = Some((slot, event));
        self.ringing = if agrees { 0 } else { self.depth.entries() };
    }

    /// Back to the register for good (Doorbell Buffer Config failed, or the controller was reset).
    pub fn detach(&mut self) {
        self.shadow = None;
    }

    /// Whether slots are in use.
    #[inline]
    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// Moves to `new` and says whether the register must be written. Entries before `new` must be written already; several
    /// can share one move.
    #[must_use = "a ring that is left out is a command that is never seen"]
    pub fn advance(&mut self, new: u16) -> bool {
        let step = self.store(new);
        if step == Step::Check {
            // Pairs with the fence of the device's arming function.
            S::full_fence();
        }
        self.is_due(step)
    }

    /// Moves two doorbells as [`DriverDoorbell::advance`] does, with one barrier for both: it waits until the other side has
    /// given up the cache lines of the slots, which is most of what a move costs.
    #[must_use = "a ring that is left out is a command that is never seen"]
    pub fn advance_both(a: (&mut Self, u16), b: (&mut Self, u16)) -> (bool, bool) {
        let steps = (a.0.store(a.1), b.0.store(b.1));
        if steps.0 == Step::Check || steps.1 == Step::Check {
            S::full_fence();
        }
        (a.0.is_due(steps.0), b.0.is_due(steps.1))
    }

    /// The first half of a move: tells the slot.
    #[inline]
    fn store(&mut self, new: u16) -> Step {
        self.before = std::mem::replace(&mut self.at, new);
        let moved = self.before != new;
        let Some((slot, _)) = &self.shadow else { return Step::Decided(moved) };
        slot.store(u32::from(new));
        if self.ringing > 0 {
            self.ringing = self.ringing.saturating_sub(u32::from(self.depth.distance(self.before, new)));
            return Step::Decided(moved);
        }
        Step::Check
    }

    /// The second half, after the fence: asks EventIdx.
    #[inline]
    fn is_due(&self, step: Step) -> bool {
        match (step, &self.shadow) {
            (Step::Decided(due), _) => due,
            (Step::Check, Some((_, event))) => {
                #[allow(clippy::cast_possible_truncation)] // The upper half is reserved.
                let event = event.load() as u16;
                // The exact test: modulo the depth, as the specification has it.
                needs_event_annex_b(self.depth, event, self.at, self.before)
            }
            (Step::Check, None) => false,
        }
    }
}

/// Where a move has got to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// By register, or rung for in any case.
    Decided(bool),
    /// The slot is stored; EventIdx tells.
    Check,
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU32};

    use super::*;

    // The table of what an EventIdx value does (`docs/proofs.md`), by sweep over all moves.

    #[test]
    fn an_armed_position_rings_at_the_next_move_and_one_behind_never_rings_before_the_ring_is_full() {
        for entries in 2..=256 {
            let depth = Depth::new(entries).unwrap();
            for old in 0..entries as u16 {
                for steps in 1..=depth.capacity() {
                    let new = depth.advance(old, steps);
                    let armed = old;
                    assert!(needs_event_annex_b(depth, armed, new, old), "depth {entries}, {old} to {new}");
                    assert!(needs_event_linux(armed, new, old), "depth {entries}, {old} to {new}");
                    let behind = depth.previous(old);
                    assert!(!needs_event_annex_b(depth, behind, new, old), "depth {entries}, {old} to {new}");
                    assert!(!needs_event_linux(behind, new, old), "depth {entries}, {old} to {new}");
                }
            }
        }
    }

    #[test]
    fn an_armed_position_that_the_driver_has_passed_is_silent_until_it_comes_round() {
        for entries in 2..=128 {
            let depth = Depth::new(entries).unwrap();
            for armed in 0..entries as u16 {
                for past in 1..=depth.capacity() {
                    let old = depth.advance(armed, past);
                    for steps in 1..=depth.capacity() {
                        let new = depth.advance(old, steps);
                        let round = u32::from(past) + u32::from(steps) > entries;
                        assert_eq!(needs_event_annex_b(depth, armed, new, old), round, "{entries}: {old} to {new}");
                        assert_eq!(needs_event_linux(armed, new, old), round, "{entries}: {old} to {new}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_constant_outside_the_ring_silences_nobody() {
        let ones = 0xffff;
        for entries in 2..=256u32 {
            let depth = Depth::new(entries).unwrap();
            let by_one = |old: &u16| (depth.next(*old), *old);
            let linux = (0..entries as u16).filter(|old| {
                let (new, old) = by_one(old);
                needs_event_linux(ones, new, old)
            });
            assert_eq!(linux.count(), 1, "once a revolution");
            let annex_b = (0..entries as u16).filter(|old| {
                let (new, old) = by_one(old);
                needs_event_annex_b(depth, ones, new, old)
            });
            assert_eq!(annex_b.count(), 1, "at the constant modulo the depth");
        }
    }

    #[test]
    fn both_tests_agree_for_every_event_index_inside_the_ring() {
        for entries in 2..=96u32 {
            let depth = Depth::new(entries).unwrap();
            for event in 0..entries as u16 {
                for old in 0..entries as u16 {
                    for steps in 1..=depth.capacity() {
                        let new = depth.advance(old, steps);
                        assert_eq!(
                            needs_event_linux(event, new, old),
                            needs_event_annex_b(depth, event, new, old),
                            "depth {entries}, EventIdx {event}, {old} to {new}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn sixteen_bit_arithmetic_and_the_largest_ring_agree() {
        let depth = Depth::new(65536).unwrap();
        let corners = [0u16, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff];
        for event in corners {
            for old in corners {
                for new in corners {
                    assert_eq!(needs_event_linux(event, new, old), needs_event_annex_b(depth, event, new, old));
                }
            }
        }
    }

    #[test]
    fn an_event_index_at_the_tail_is_passed_by_nobody() {
        // A device that arms at the driver's position of the future (a CQ's tail, say) is not woken before it is reached.
        let depth = Depth::new(4).unwrap();
        assert!(!needs_event_linux(3, 3, 0));
        assert!(!needs_event_annex_b(depth, 3, 3, 0));
    }

    #[test]
    fn by_register_every_move_is_written_and_no_move_is_not() {
        let mut driver = DriverDoorbell::<Arc<AtomicU32>>::new(Depth::new(4).unwrap());
        assert!(driver.advance(1));
        assert!(!driver.advance(1));
        assert!(driver.advance(0));
        assert_eq!(driver.position(), 0);
    }

    #[test]
    fn a_hostile_event_index_costs_a_ring_at_most() {
        let depth = Depth::new(5).unwrap();
        for hostile in [5, 7, 0xffff, 0x8000_0000, u32::MAX] {
            let (slot, event) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(hostile)));
            let mut driver = DriverDoorbell::new(depth);
            driver.attach(slot.clone(), event);
            for at in [1, 3, 2, 2, 1] {
                let _ = driver.advance(at);
                assert_eq!(slot.load(), u32::from(at));
            }
        }
    }

    #[test]
    fn a_slot_with_a_leftover_in_it_is_rung_for_during_one_revolution() {
        let (slot, event) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(1)));
        let mut driver = DriverDoorbell::new(Depth::new(4).unwrap());
        assert!(driver.advance(2));
        driver.attach(slot.clone(), event.clone());
        assert_eq!(slot.load(), 2);
        // EventIdx stays one behind each time: the device is awake.
        for at in [3, 0, 1, 2] {
            event.store(u32::from(driver.depth.previous(driver.at)));
            assert!(driver.advance(at));
        }
        event.store(1);
        assert!(!driver.advance(3));
        driver.detach();
        assert!(driver.advance(0));
        assert_eq!(slot.load(), 3, "the slot is not touched any more");
    }
}
