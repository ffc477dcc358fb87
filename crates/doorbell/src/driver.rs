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
    let event = u32::from(event) % entries;
    let passed = (u32::from(new) + 2 * entries - event - 1) % entries;
    passed < u32::from(depth.distance(old, new))
}

/// One doorbell as the driver sees it: an SQ tail or a CQ head.
#[derive(Debug)]
pub struct DriverDoorbell<S> {
    depth: Depth,
    at: u16,
    shadow: Option<(S, S)>,
}

impl<S: Slot> DriverDoorbell<S> {
    /// A doorbell at position 0, by register.
    pub fn new(depth: Depth) -> Self {
        Self { depth, at: 0, shadow: None }
    }

    /// The current position.
    pub fn position(&self) -> u16 {
        self.at
    }

    /// Uses `slot` and `event` from now on. The slot takes the current position first, so that a device which looks at it
    /// sees no move.
    pub fn attach(&mut self, slot: S, event: S) {
        slot.store(u32::from(self.at));
        self.shadow = Some((slot, event));
    }

    /// Back to the register for good (Doorbell Buffer Config failed, or the controller was reset).
    pub fn detach(&mut self) {
        self.shadow = None;
    }

    /// Moves to `new` and says whether the register must be written. Entries before `new` must be written already; several
    /// can share one move.
    #[must_use = "a ring that is left out is a command that is never seen"]
    pub fn advance(&mut self, new: u16) -> bool {
        let old = std::mem::replace(&mut self.at, new);
        let Some((slot, event)) = &self.shadow else { return old != new };
        slot.store(u32::from(new));
        // Pairs with the fence of the device's arming function.
        S::full_fence();
        let event = event.load();
        #[allow(clippy::cast_possible_truncation)] // The upper half is reserved.
        let event = event as u16;
        // The exact test: modulo the depth, as the specification has it.
        needs_event_annex_b(self.depth, event, new, old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of what an EventIdx value does, by sweep over all positions of rings of 2 to 64 entries.
    #[test]
    fn an_armed_position_rings_at_the_next_move_and_one_behind_never_rings_before_the_ring_is_full() {
        for entries in 2..=64 {
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
    fn both_tests_agree_for_every_event_index_inside_the_ring() {
        for entries in 2..=24u32 {
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
}
