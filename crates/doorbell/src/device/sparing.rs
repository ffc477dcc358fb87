//! Interrupts that follow the CQ head.
//!
//! A host that was interrupted reads entries until it finds none. While it has yet to read some that it was told of, an
//! interrupt for further ones is usually waste: it finds them on the way. Usually, not always: it may have looked at the phase
//! for the last time right before an entry was stored there. So a spared interrupt is a **debt**:
//!
//! - when the head moves and leaves entries unread, the host may have stopped there: the debt is due;
//! - when the head has come to the tail, the host has read everything: the debt is void;
//! - a device that sleeps does not see the head move, so it pays before;
//! - a host may read entries and move its head much later, or never: the caller pays after a limited time. Otherwise it could
//!   wait for ever beside another queue that keeps the device awake.
//!
//! No fence is needed. A debt ends with an interrupt, which the host cannot miss, or with a head that says that all was read.

use super::CompletionProducer;
use crate::{Invalid, Slot};

/// How an interrupt that is owed stands; see [`CompletionProducer::debt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Debt {
    /// The head has not moved: the host is on its way. Look again; pay before a sleep, and after a limited time.
    Stands,
    /// The host may have stopped before the entries: raise the interrupt, and say so ([`CompletionProducer::raised`]).
    Due,
    /// Nothing is owed: the host has read everything.
    Void,
}

impl<S: Slot> CompletionProducer<S> {
    /// Entries that no interrupt has told of, as far as they were unread at the last look.
    #[inline]
    pub fn untold(&self) -> u16 {
        self.depth().distance(self.told, self.tail)
    }

    /// An interrupt was raised for everything that was posted.
    #[inline]
    pub fn raised(&mut self) {
        self.told = self.tail;
        self.debt = None;
    }

    /// Entries were posted: whether their interrupt can be spared. If so it is owed from now on ([`CompletionProducer::debt`]);
    /// if not, the caller raises it ([`CompletionProducer::raised`]).
    ///
    /// The head is looked at only when it was behind what the host was told of, and only where memory says where it is: a slot
    /// that is in use, or a mapped register.
    ///
    /// # Errors
    /// [`Invalid`] when the look found a bad head. Raise the interrupt then.
    pub fn spares(&mut self) -> Result<bool, Invalid> {
        if self.depth().distance(self.head.seen(), self.told) == 0 || !(self.head.has_shadow() || self.head.is_mapped())
        {
            return Ok(false);
        }
        self.look_lazily()?;
        let on_its_way = self.depth().distance(self.head.seen(), self.told) > 0 && self.debt != Some(true);
        if !on_its_way || !(self.head.is_live() || self.head.is_mapped()) {
            return Ok(false);
        }
        self.debt.get_or_insert(false);
        Ok(true)
    }

    /// Looks how a debt stands. [`Debt::Void`] without one.
    ///
    /// # Errors
    /// [`Invalid`] when the look found a bad head. The debt is due then.
    pub fn debt(&mut self) -> Result<Debt, Invalid> {
        if self.debt.is_none() {
            return Ok(Debt::Void);
        }
        self.look_lazily()?;
        if self.unread() == 0 {
            self.raised();
            return Ok(Debt::Void);
        }
        Ok(if self.debt == Some(true) { Debt::Due } else { Debt::Stands })
    }

    /// As [`CompletionProducer::look`], for who looks all the time: EventIdx shares its line with the host and follows in steps of
    /// half a ring. A host that moves further between two looks may ring once.
    fn look_lazily(&mut self) -> Result<(), Invalid> {
        let (room, before) = (self.unread(), self.head.seen());
        if self.head.look(room)? {
            self.heed_move(before);
            let half = self.depth().capacity() / 2;
            self.head.suppress(half);
        }
        Ok(())
    }

    /// The head has moved on from `before`.
    pub(super) fn heed_move(&mut self, before: u16) {
        let (steps, to_told) =
            (self.depth().distance(before, self.head.seen()), self.depth().distance(before, self.told));
        if steps > to_told {
            // It has read what it was told of, and more.
            self.told = self.head.seen();
        }
        if let Some(moved) = &mut self.debt {
            *moved = true;
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU32};

    use super::*;
    use crate::Depth;

    type Word = Arc<AtomicU32>;

    /// A CQ with a mapped head, or with a slot that the host uses.
    fn cq(entries: u32, mapped: bool) -> (CompletionProducer<Word>, Word) {
        let head = Word::default();
        let mut cq = CompletionProducer::new(Depth::new(entries).unwrap());
        if mapped {
            cq.doorbell().map(head.clone());
        } else {
            cq.doorbell().attach_live(head.clone(), Word::default());
        }
        (cq, head)
    }

    fn post(cq: &mut CompletionProducer<Word>, entries: u16) {
        for _ in 0..entries {
            let permit = cq.reserve().unwrap().expect("room");
            let _ = cq.post(permit);
        }
    }

    #[test]
    fn the_first_interrupt_is_raised_and_those_behind_it_are_spared_until_the_head_moves() {
        for mapped in [false, true] {
            let (mut cq, head) = cq(16, mapped);
            post(&mut cq, 3);
            assert_eq!(cq.spares(), Ok(false));
            cq.raised();
            post(&mut cq, 1);
            assert_eq!(cq.spares(), Ok(true));
            assert_eq!(cq.debt(), Ok(Debt::Stands));
            post(&mut cq, 1);
            assert_eq!(cq.spares(), Ok(true));
            head.store(3);
            assert_eq!(cq.debt(), Ok(Debt::Due), "it has stopped before the last two");
            cq.raised();
            assert_eq!(cq.debt(), Ok(Debt::Void));
            post(&mut cq, 1);
            assert_eq!(cq.spares(), Ok(true), "it was told of two, which it has not read");
            head.store(6);
            assert_eq!(cq.debt(), Ok(Debt::Void), "it has found all of them");
            post(&mut cq, 1);
            assert_eq!(cq.spares(), Ok(false), "it sleeps");
        }
    }

    #[test]
    fn a_head_that_moves_before_the_next_entry_makes_the_debt_due_whoever_looked() {
        let (mut cq, head) = cq(4, false);
        post(&mut cq, 2);
        assert_eq!(cq.spares(), Ok(false));
        cq.raised();
        post(&mut cq, 1);
        assert_eq!(cq.spares(), Ok(true));
        head.store(2);
        post(&mut cq, 1);
        assert_eq!(cq.spares(), Ok(false), "the ring was full, so that the head was looked at: the debt is due");
        cq.raised();
        head.store(3);
        post(&mut cq, 1);
        assert_eq!(cq.spares(), Ok(true));
        head.store(0);
        assert_eq!(cq.look(), Ok(true));
        assert_eq!(cq.debt(), Ok(Debt::Due));
    }

    #[test]
    fn nothing_is_spared_where_memory_does_not_tell_the_head() {
        let (slot, event) = (Word::default(), Word::default());
        let mut cq = CompletionProducer::new(Depth::new(8).unwrap());
        for shadow in [false, true] {
            if shadow {
                cq.doorbell().attach(slot.clone(), event.clone());
            }
            for _ in 0..20 {
                post(&mut cq, 2);
                assert_eq!(cq.spares(), Ok(false));
                cq.raised();
                let tail = cq.tail();
                // The head stays one behind.
                let head = cq.depth().previous(tail);
                cq.ring(head.into()).unwrap();
            }
        }
    }

    #[test]
    fn a_bad_head_raises_the_interrupt() {
        let (mut cq, head) = cq(8, true);
        post(&mut cq, 1);
        assert_eq!(cq.spares(), Ok(false));
        cq.raised();
        post(&mut cq, 1);
        head.store(7);
        assert_eq!(cq.spares(), Err(Invalid { value: 7 }));
        cq.raised();
        post(&mut cq, 1);
        assert_eq!(cq.spares(), Ok(true), "reported once, and the head stands");
        head.store(6);
        assert_eq!(cq.debt(), Err(Invalid { value: 6 }));
    }

    /// Every interleaving of a host and a device on small rings, step by step, with a perfect memory: loom's part is the weak
    /// one. The host stops reading where it finds nothing, and starts at an interrupt only.
    #[test]
    fn no_entry_is_left_unread_on_any_path_of_small_rings() {
        for entries in 2..=5 {
            for mapped in [false, true] {
                // Bits choose who goes next.
                for schedule in 0u32..1 << 14 {
                    walk(entries, mapped, schedule);
                }
            }
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Host {
        Sleeps,
        Reads,
        HasFoundNothing,
    }

    fn walk(entries: u32, mapped: bool, schedule: u32) {
        let depth = Depth::new(entries).unwrap();
        let (mut cq, head) = cq(entries, mapped);
        let (mut interrupts, mut read_to, mut host) = (0u32, 0u16, Host::Sleeps);
        let mut go_on = |cq: &CompletionProducer<Word>, interrupts: &mut u32| {
            host = match host {
                Host::Sleeps if *interrupts > 0 => {
                    *interrupts = 0;
                    Host::Reads
                }
                Host::Sleeps => Host::Sleeps,
                Host::Reads if read_to != cq.tail() => {
                    read_to = depth.next(read_to);
                    Host::Reads
                }
                Host::Reads => Host::HasFoundNothing,
                Host::HasFoundNothing => {
                    head.store(u32::from(read_to));
                    Host::Sleeps
                }
            };
            (host, read_to)
        };
        for step in 0..14 {
            if schedule >> step & 1 != 0 {
                go_on(&cq, &mut interrupts);
                continue;
            }
            if let Some(permit) = cq.reserve().unwrap() {
                let _ = cq.post(permit);
                if !cq.spares().unwrap() {
                    cq.raised();
                    interrupts += 1;
                }
            }
            if cq.debt().unwrap() == Debt::Due {
                cq.raised();
                interrupts += 1;
            }
        }
        // The device sleeps.
        if cq.debt().unwrap() != Debt::Void {
            cq.raised();
            interrupts += 1;
        }
        for _ in 0..4 * entries {
            go_on(&cq, &mut interrupts);
        }
        let end = go_on(&cq, &mut interrupts);
        assert_eq!(end, (Host::Sleeps, cq.tail()), "{entries} entries, schedule {schedule:014b}");
    }
}
