//! Commands in flight, and the identifiers by which the device names them.

use crate::{error::Violation, memory::Buffer};

/// A command in flight.
#[derive(Debug, Default)]
struct Slot {
    busy: bool,
    /// Distinguishes the lives of the slot.
    generation: u16,
    /// The caller's name for the command.
    tag: u64,
    /// How many commands were submitted before it.
    sequence: u64,
    /// Its data, so that the memory is nobody else's before the device is done with it.
    buffer: Option<Buffer>,
    /// When it was first seen in flight, in ticks of the owner; 0 for not yet.
    seen: u64,
}

/// A command that is done.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) tag: u64,
}

/// A table of commands, fixed in size.
///
/// A command identifier is the slot's index in its low bits and the slot's generation above, so that a completion which comes
/// a second time does not hit the next command in that slot. FFFFh is never given out (NVMe Base 2.1 §4.1.1). A table of
/// 32768 slots or more has no bits left for generations; a repeated completion is then found only while its slot is free.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    index_bits: u32,
}

impl Slots {
    /// A table of `count` slots, 1 to 65535.
    pub(crate) fn new(count: u16) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(count.into(), Slot::default);
        let index_bits = 16 - (count - 1).leading_zeros();
        Self { slots, free: (0..count).rev().collect(), index_bits }
    }

    pub(crate) fn in_flight(&self) -> u16 {
        // Both are at most 65535.
        u16::try_from(self.slots.len() - self.free.len()).unwrap_or(u16::MAX)
    }

    /// The slot that [`Slots::open`] would take.
    #[inline]
    pub(crate) fn next(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Takes a slot for a command and returns its identifier.
    #[inline]
    pub(crate) fn open(&mut self, tag: u64, sequence: u64, buffer: Option<Buffer>) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        let Slot { generation, .. } = *slot;
        *slot = Slot { busy: true, generation, tag, sequence, buffer, seen: 0 };
        Some(self.cid(index, generation))
    }

    #[inline]
    fn cid(&self, index: u16, generation: u16) -> u16 {
        index | generation.checked_shl(self.index_bits).unwrap_or(0)
    }

    /// Ends the command that a completion names; `fetched` is how many commands the device has fetched.
    #[inline]
    pub(crate) fn close(&mut self, cid: u16, fetched: u64) -> Result<Finished, Violation> {
        let mask = u16::MAX.checked_shr(16 - self.index_bits).unwrap_or(0);
        let index = cid & mask;
        let generation = cid.checked_shr(self.index_bits).unwrap_or(0);
        let index_bits = self.index_bits;
        let slot = self.slots.get_mut(usize::from(index)).ok_or(Violation::UnknownCommand)?;
        if !slot.busy || slot.generation != generation {
            return Err(Violation::Repeated);
        }
        if slot.sequence >= fetched {
            return Err(Violation::NotFetched);
        }
        slot.busy = false;
        slot.buffer = None;
        slot.generation = next_generation(slot.generation, index_bits);
        self.free.push(index);
        Ok(Finished { tag: slot.tag })
    }

    /// Gives up all commands in flight and returns their tags in the order of submission.
    pub(crate) fn clear(&mut self) -> Vec<u64> {
        let mut lost: Vec<_> = self.slots.iter().filter(|s| s.busy).map(|s| (s.sequence, s.tag)).collect();
        lost.sort_unstable();
        for (index, slot) in (0u16..).zip(&mut self.slots) {
            if slot.busy {
                let generation = next_generation(slot.generation, self.index_bits);
                *slot = Slot { generation, ..Slot::default() };
                self.free.push(index);
            }
        }
        lost.into_iter().map(|(_, tag)| tag).collect()
    }

    /// Takes the data of all commands in flight.
    pub(crate) fn take_buffers(&mut self, out: &mut Vec<Buffer>) {
        out.extend(self.slots.iter_mut().filter_map(|slot| slot.buffer.take()));
    }

    /// Finds a command that has been in flight for `limit` ticks since it was first seen here, and starts its time anew.
    pub(crate) fn expired(&mut self, now: u64, limit: u64) -> Option<u16> {
        if self.free.len() == self.slots.len() {
            return None;
        }
        let now = now.max(1);
        for (index, slot) in (0u16..).zip(&mut self.slots) {
            if !slot.busy {
                continue;
            }
            if slot.seen == 0 {
                slot.seen = now;
            } else if now - slot.seen >= limit {
                slot.seen = now;
                let generation = slot.generation;
                return Some(self.cid(index, generation));
            }
        }
        None
    }

    /// The identifier of the command in flight that has this tag.
    pub(crate) fn find(&self, tag: u64) -> Option<u16> {
        let (index, slot) = (0u16..).zip(&self.slots).find(|(_, slot)| slot.busy && slot.tag == tag)?;
        Some(self.cid(index, slot.generation))
    }
}

/// The generation after `generation`. All ones is left out: with the index all ones it would be FFFFh.
fn next_generation(generation: u16, index_bits: u32) -> u16 {
    let values = u16::MAX.checked_shr(index_bits).unwrap_or(0);
    if values == 0 || generation + 1 >= values { 0 } else { generation + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_good_for_one_completion() {
        for count in [1, 2, 3, 31, 1023, 4095, 32767] {
            let mut slots = Slots::new(count);
            let cid = slots.open(7, 0, None).unwrap();
            assert_eq!(slots.close(cid, 0).unwrap_err(), Violation::NotFetched, "count {count}");
            assert_eq!(slots.close(cid, 1).unwrap().tag, 7);
            assert_eq!(slots.close(cid, 1).unwrap_err(), Violation::Repeated);
            let again = slots.open(8, 1, None).unwrap();
            if count < 16384 {
                assert_ne!(again, cid);
                assert_eq!(slots.close(cid, 2).unwrap_err(), Violation::Repeated, "of an earlier life");
            }
            assert_eq!(slots.close(again, 2).unwrap().tag, 8);
        }
    }

    #[test]
    fn no_identifier_is_ffff_and_none_is_given_twice_at_a_time() {
        for count in [1u16, 2, 4, 16, 255, 256, 65535] {
            let mut slots = Slots::new(count);
            for round in 0..(if count > 1000 { 2 } else { 300 }) {
                let mut cids: Vec<_> = (0..count).map(|i| slots.open(i.into(), 0, None).unwrap()).collect();
                assert_eq!(slots.open(0, 0, None), None);
                assert_eq!(slots.in_flight(), count);
                assert!(!cids.contains(&0xffff), "count {count}, round {round}");
                for cid in &cids {
                    slots.close(*cid, 1).unwrap();
                }
                cids.sort_unstable();
                cids.dedup();
                assert_eq!(cids.len(), usize::from(count));
            }
        }
    }

    #[test]
    fn identifiers_that_were_never_given_out_are_refused() {
        let mut slots = Slots::new(5);
        let cid = slots.open(1, 0, None).unwrap();
        for other in (0..=u16::MAX).filter(|other| *other != cid) {
            assert!(slots.close(other, 1).is_err());
        }
        assert_eq!(slots.close(7, 1).unwrap_err(), Violation::UnknownCommand);
        assert_eq!(slots.close(cid, 1).unwrap().tag, 1);
    }

    #[test]
    fn time_runs_from_the_first_look_and_starts_anew_when_it_is_over() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.expired(100, 10), None);
        let cid = slots.open(1, 0, None).unwrap();
        assert_eq!(slots.expired(200, 10), None);
        assert_eq!(slots.expired(209, 10), None);
        assert_eq!(slots.expired(210, 10), Some(cid));
        assert_eq!(slots.expired(211, 10), None);
        assert_eq!(slots.expired(220, 10), Some(cid));
        assert_eq!(slots.find(1), Some(cid));
        assert_eq!(slots.clear(), [1]);
        assert_eq!(slots.expired(300, 10), None);
        assert_eq!(slots.close(cid, 1).unwrap_err(), Violation::Repeated);
    }
}
