//! The device's end of a submission queue and of a completion queue.

use crate::{Armed, Depth, Doorbell, Invalid, Slot};

mod sparing;

pub use sparing::Debt;

/// The consumer of a submission queue: takes entries from head to tail.
#[derive(Debug)]
pub struct SubmissionConsumer<S> {
    tail: Doorbell<S>,
    head: u16,
}

impl<S: Slot> SubmissionConsumer<S> {
    /// An empty queue.
    pub fn new(depth: Depth) -> Self {
        Self { tail: Doorbell::new(depth), head: 0 }
    }

    /// A queue with positions from an earlier life.
    pub fn restore(depth: Depth, head: u16, tail: u16) -> Self {
        Self { tail: Doorbell::restore(depth, tail), head }
    }

    /// The tail's doorbell, to attach and to detach slots.
    pub fn doorbell(&mut self) -> &mut Doorbell<S> {
        &mut self.tail
    }

    /// The ring's size.
    pub fn depth(&self) -> Depth {
        self.tail.depth()
    }

    /// The next entry to take; SQHD of completions.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// The last tail that was seen.
    pub fn tail(&self) -> u16 {
        self.tail.seen()
    }

    fn room(&self) -> u16 {
        self.depth().capacity() - self.waiting()
    }

    /// Entries that are known to wait.
    #[inline]
    pub fn waiting(&self) -> u16 {
        self.depth().distance(self.head, self.tail.seen())
    }

    /// The host wrote the tail register.
    ///
    /// # Errors
    /// See [`Doorbell::ring`].
    pub fn ring(&mut self, value: u32) -> Result<(), Invalid> {
        let room = self.room();
        self.tail.ring(value, room)
    }

    /// Looks at the tail and says how many entries wait. The caller may then read that many from guest memory: the load of
    /// the tail was an Acquire.
    ///
    /// # Errors
    /// See [`Doorbell::look`]; entries that waited before still do.
    #[inline]
    pub fn look(&mut self) -> Result<u16, Invalid> {
        let room = self.room();
        self.tail.look(room)?;
        Ok(self.waiting())
    }

    /// Whether nothing waits and a look would find nothing.
    #[inline]
    pub fn is_still(&self) -> bool {
        self.waiting() == 0 && self.tail.is_still()
    }

    /// Takes one waiting entry and returns its index, or `None`.
    #[inline]
    pub fn take(&mut self) -> Option<u16> {
        if self.waiting() == 0 {
            return None;
        }
        let at = self.head;
        self.head = self.depth().next(at);
        Some(at)
    }

    /// Arms the doorbell before the device sleeps. Only for an empty queue: one with entries waiting (for room in its
    /// completion queue) needs no ring for them.
    pub fn arm(&mut self) -> Armed {
        let room = self.room();
        self.tail.arm(room)
    }

    /// Spares the driver its rings while the device is awake; after a look and before the completions of this batch are
    /// posted. The shared line is written once in half a ring. A driver that fills more than half of the ring at a time may
    /// ring now and then, unless it always does so.
    #[inline]
    pub fn suppress(&mut self) {
        let half = self.depth().capacity() / 2;
        self.tail.suppress(half);
    }
}

/// The right to post one completion. Every command holds one from before it is fetched, so that a completion always finds
/// room. It goes back through [`CompletionProducer::post`] or [`CompletionProducer::give_back`], or with the whole queue.
#[derive(Debug)]
#[must_use = "a permit that is lost makes the completion queue smaller for good"]
pub struct Permit(());

/// Where to store a completion entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posted {
    /// Index of the entry.
    pub index: u16,
    /// The phase tag to store with it.
    pub phase: bool,
}

/// The producer of a completion queue.
#[derive(Debug)]
pub struct CompletionProducer<S> {
    head: Doorbell<S>,
    tail: u16,
    /// Kept here alone: guest memory is never asked what the phase was.
    phase: bool,
    reserved: u16,
    /// The tail that the last interrupt told of; never behind the head.
    told: u16,
    /// An interrupt is owed, and whether the head has moved since.
    debt: Option<bool>,
}

impl<S: Slot> CompletionProducer<S> {
    /// An empty queue; the first entries carry phase 1.
    pub fn new(depth: Depth) -> Self {
        Self { head: Doorbell::new(depth), tail: 0, phase: true, reserved: 0, told: 0, debt: None }
    }

    /// A queue with positions from an earlier life.
    pub fn restore(depth: Depth, head: u16, tail: u16, phase: bool) -> Self {
        Self { head: Doorbell::restore(depth, head), tail, phase, reserved: 0, told: head, debt: None }
    }

    /// The head's doorbell, to attach and to detach slots.
    pub fn doorbell(&mut self) -> &mut Doorbell<S> {
        &mut self.head
    }

    /// The ring's size.
    pub fn depth(&self) -> Depth {
        self.head.depth()
    }

    /// Where the next entry goes.
    pub fn tail(&self) -> u16 {
        self.tail
    }

    /// The last head that was seen.
    pub fn head(&self) -> u16 {
        self.head.seen()
    }

    /// The phase tag of the next entry.
    pub fn phase(&self) -> bool {
        self.phase
    }

    /// Permits that are out.
    pub fn reserved(&self) -> u16 {
        self.reserved
    }

    /// Entries that the host has not consumed, by the last head that was seen.
    #[inline]
    pub fn unread(&self) -> u16 {
        self.depth().distance(self.head.seen(), self.tail)
    }

    fn free(&self) -> u16 {
        self.depth().capacity() - self.unread() - self.reserved
    }

    /// Whether [`CompletionProducer::reserve`] would hand out a permit without a look: by the last head that was seen, less
    /// the permits that are out.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// The host wrote the head register.
    ///
    /// # Errors
    /// See [`Doorbell::ring`]. The head cannot pass the tail.
    pub fn ring(&mut self, value: u32) -> Result<(), Invalid> {
        let (room, before) = (self.unread(), self.head.seen());
        let rung = self.head.ring(value, room);
        if self.head.seen() != before {
            self.head_moved(before);
        }
        rung
    }

    /// Looks at the head. An armed one stays armed if the host has not moved.
    ///
    /// # Errors
    /// See [`Doorbell::look`].
    pub fn look(&mut self) -> Result<bool, Invalid> {
        let (room, before) = (self.unread(), self.head.seen());
        let moved = self.head.look(room)?;
        if moved {
            self.head_moved(before);
        }
        Ok(moved)
    }

    /// A permit for one entry, if there is room. The host's head is looked at only when the one that was seen last leaves
    /// none; EventIdx is moved along, so that the host never rings.
    ///
    /// # Errors
    /// [`Invalid`] when the look found a bad head.
    #[inline]
    pub fn reserve(&mut self) -> Result<Option<Permit>, Invalid> {
        if self.free() == 0 {
            let found = self.look();
            // Nobody sleeps on it now.
            self.suppress();
            found?;
            if self.free() == 0 {
                return Ok(None);
            }
        }
        self.reserved += 1;
        Ok(Some(Permit(())))
    }

    /// Gives a permit back unused.
    pub fn give_back(&mut self, permit: Permit) {
        let Permit(()) = permit;
        debug_assert!(self.reserved > 0, "a permit of another queue");
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Turns a permit into the next entry.
    #[inline]
    pub fn post(&mut self, permit: Permit) -> Posted {
        self.give_back(permit);
        let posted = Posted { index: self.tail, phase: self.phase };
        self.tail = self.depth().next(self.tail);
        if self.tail == 0 {
            self.phase = !self.phase;
        }
        posted
    }

    /// Arms the head's doorbell: only while some submission queue waits for room here.
    pub fn arm(&mut self) -> Armed {
        let (room, before) = (self.unread(), self.head.seen());
        let armed = self.head.arm(room);
        if armed == Armed::MoreWork {
            self.head_moved(before);
        }
        armed
    }

    /// Spares the host its rings: whenever no submission queue waits for room here. The host consumes up to the tail, which
    /// comes up to one before the head that was seen; an EventIdx there is not passed before the head is looked at again.
    #[inline]
    pub fn suppress(&mut self) {
        self.head.suppress(1);
    }

    /// The host has consumed entries, from `before` on.
    fn head_moved(&mut self, before: u16) {
        self.heed_move(before);
        self.suppress();
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU32};

    use super::*;
    use crate::DriverDoorbell;

    type Word = Arc<AtomicU32>;

    fn words() -> (Word, Word) {
        (Arc::default(), Arc::default())
    }

    fn depth(entries: u32) -> Depth {
        Depth::new(entries).unwrap()
    }

    fn shadowed_cq(entries: u32) -> (CompletionProducer<Word>, DriverDoorbell<Word>, Word) {
        let (slot, event) = words();
        let (mut cq, mut host) = (CompletionProducer::new(depth(entries)), DriverDoorbell::new(depth(entries)));
        host.attach(slot.clone(), event.clone());
        cq.doorbell().attach(slot, event.clone());
        cq.suppress();
        (cq, host, event)
    }

    fn fill(cq: &mut CompletionProducer<Word>) -> u16 {
        let mut posted = 0;
        while let Some(permit) = cq.reserve().unwrap() {
            let _ = cq.post(permit);
            posted += 1;
        }
        posted
    }

    #[test]
    fn a_fresh_queue_starts_from_zero_in_every_field() {
        for entries in [2, 3, 1024, 65536] {
            let mut sq = SubmissionConsumer::<Word>::new(depth(entries));
            assert_eq!((sq.head(), sq.tail(), sq.waiting(), sq.take()), (0, 0, 0, None));
            assert!(!sq.doorbell().has_shadow() && !sq.doorbell().is_live());
            let mut cq = CompletionProducer::<Word>::new(depth(entries));
            assert_eq!((cq.head(), cq.tail(), cq.unread(), cq.reserved(), cq.phase()), (0, 0, 0, 0, true));
            assert!(cq.has_room() && !cq.doorbell().has_shadow());
        }
    }

    #[test]
    fn entries_are_taken_in_order_and_once_at_every_size() {
        for entries in [2, 3, 4, 7, 64] {
            let mut sq = SubmissionConsumer::<Word>::new(depth(entries));
            let mut tail = 0;
            for turn in 0..3 * entries {
                let burst = 1 + (turn % (entries - 1)) as u16;
                let first = tail;
                tail = depth(entries).advance(tail, burst);
                sq.ring(tail.into()).unwrap();
                assert_eq!(sq.look(), Ok(burst));
                for i in 0..burst {
                    assert_eq!(sq.take(), Some(depth(entries).advance(first, i)));
                }
                assert_eq!(sq.take(), None);
                assert_eq!(sq.head(), tail, "SQHD");
            }
        }
    }

    #[test]
    fn a_tail_cannot_pass_the_head_that_entries_were_taken_up_to() {
        let mut sq = SubmissionConsumer::<Word>::new(depth(4));
        sq.ring(2).unwrap();
        assert_eq!(sq.ring(1), Err(Invalid { value: 1 }), "backwards");
        assert_eq!(sq.ring(4), Err(Invalid { value: 4 }));
        assert_eq!(sq.look(), Ok(2), "what waited still does");
        assert_eq!(sq.take(), Some(0));
        sq.ring(0).unwrap();
        assert_eq!(sq.waiting(), 3);
        assert_eq!(sq.ring(1), Err(Invalid { value: 1 }), "full");
    }

    #[test]
    fn a_head_cannot_pass_the_tail() {
        let mut cq = CompletionProducer::<Word>::new(depth(4));
        assert_eq!(cq.ring(1), Err(Invalid { value: 1 }), "nothing was posted");
        let permit = cq.reserve().unwrap().unwrap();
        let _ = cq.post(permit);
        assert_eq!(cq.ring(2), Err(Invalid { value: 2 }));
        assert_eq!(cq.ring(1), Ok(()));
        assert_eq!(cq.ring(0), Err(Invalid { value: 0 }), "backwards");
    }

    #[test]
    fn the_phase_turns_at_each_revolution_and_is_kept_privately() {
        for entries in [2, 3, 5] {
            let mut cq = CompletionProducer::<Word>::new(depth(entries));
            for n in 0..6 * entries {
                let permit = cq.reserve().unwrap().unwrap();
                let posted = cq.post(permit);
                assert_eq!(u32::from(posted.index), n % entries);
                assert_eq!(posted.phase, (n / entries).is_multiple_of(2), "entry {n} of {entries}");
                cq.ring(cq.tail().into()).unwrap();
            }
        }
    }

    #[test]
    fn a_queue_with_a_past_goes_on_where_it_was() {
        let mut cq = CompletionProducer::<Word>::restore(depth(4), 2, 3, false);
        assert_eq!((cq.unread(), cq.has_room()), (1, true));
        let permit = cq.reserve().unwrap().unwrap();
        assert_eq!(cq.post(permit), Posted { index: 3, phase: false });
        assert_eq!((cq.tail(), cq.phase()), (0, true));
        let mut sq = SubmissionConsumer::<Word>::restore(depth(4), 3, 1);
        assert_eq!(sq.look(), Ok(2));
        assert_eq!((sq.take(), sq.take(), sq.take()), (Some(3), Some(0), None));
    }

    #[test]
    fn permits_count_commands_in_flight_against_the_room() {
        let mut cq = CompletionProducer::<Word>::new(depth(3));
        let first = cq.reserve().unwrap().unwrap();
        let second = cq.reserve().unwrap().unwrap();
        assert!(!cq.has_room() && cq.reserve().unwrap().is_none());
        cq.give_back(first);
        assert!(cq.has_room());
        let _ = cq.post(second);
        let third = cq.reserve().unwrap().unwrap();
        assert!(cq.reserve().unwrap().is_none(), "one unread and one in flight");
        cq.ring(1).unwrap();
        assert!(cq.has_room());
        cq.give_back(third);
    }

    #[test]
    fn a_silent_host_that_drains_is_noticed_without_a_single_ring() {
        for entries in [2, 3, 4, 64] {
            let (mut cq, mut host, _event) = shadowed_cq(entries);
            for _ in 0..5 * entries {
                assert!(fill(&mut cq) > 0, "{entries} entries: the head is looked at when the cached one says full");
                assert!(!host.advance(cq.tail()), "{entries} entries");
            }
        }
    }

    #[test]
    fn a_full_queue_that_something_waits_for_is_armed_at_the_head_and_the_host_rings() {
        // Not at the tail, and not left where it was: tiny queues that are drained silently find both.
        for entries in [2, 3, 4, 64] {
            for steps in 1..entries as u16 {
                let (mut cq, mut host, event) = shadowed_cq(entries);
                for turn in 0..3 * entries {
                    fill(&mut cq);
                    assert_eq!(cq.arm(), Armed::Idle);
                    assert_eq!(event.load(), u32::from(cq.head()), "{entries} entries, turn {turn}");
                    assert!(!cq.has_room());
                    let to = depth(entries).advance(host.position(), steps);
                    assert!(host.advance(to), "{entries} entries, {steps} at a time, turn {turn}");
                    cq.ring(to.into()).unwrap();
                    // Nobody waits any more: the host need not ring for what it drains now.
                    for _ in 0..steps {
                        assert!(cq.has_room());
                        let permit = cq.reserve().unwrap().unwrap();
                        let _ = cq.post(permit);
                    }
                    assert!(!host.advance(cq.tail()), "{entries} entries, {steps} at a time, turn {turn}");
                }
            }
        }
    }

    #[test]
    fn the_host_need_not_ring_for_room_that_was_found_without_it() {
        type Find = fn(&mut CompletionProducer<Word>);
        let finds: [Find; 2] = [|cq| assert_eq!(cq.arm(), Armed::MoreWork), |cq| assert_eq!(cq.look(), Ok(true))];
        for find in finds {
            let (mut cq, mut host, _event) = shadowed_cq(8);
            fill(&mut cq);
            assert!(!host.advance(5));
            find(&mut cq);
            for _ in 0..5 {
                let permit = cq.reserve().unwrap().unwrap();
                let _ = cq.post(permit);
            }
            assert!(!host.advance(cq.tail()));
        }
    }

    #[test]
    fn a_head_that_moved_before_the_queue_was_armed_is_found_by_arming() {
        let (mut cq, mut host, _event) = shadowed_cq(3);
        fill(&mut cq);
        assert!(!host.advance(1));
        assert_eq!(cq.arm(), Armed::MoreWork);
        assert!(cq.has_room());
    }

    #[test]
    fn looking_at_an_armed_queue_leaves_it_armed() {
        let (mut cq, mut host, _event) = shadowed_cq(3);
        fill(&mut cq);
        assert_eq!(cq.arm(), Armed::Idle);
        assert_eq!(cq.look(), Ok(false));
        assert!(host.advance(1));
    }

    #[test]
    fn a_bad_head_gives_no_room_and_is_reported_once() {
        let (slot, event) = words();
        let mut cq = CompletionProducer::new(depth(4));
        cq.doorbell().attach(slot.clone(), event);
        fill(&mut cq);
        slot.store(4);
        assert_eq!(cq.reserve().unwrap_err(), Invalid { value: 4 });
        assert!(cq.reserve().unwrap().is_none());
        assert_eq!(cq.arm(), Armed::Idle, "it does not spin");
        slot.store(3);
        assert!(cq.reserve().unwrap().is_some());
    }

    #[test]
    fn several_submission_queues_share_one_completion_queue_fairly_by_permit() {
        let mut cq = CompletionProducer::<Word>::new(depth(3));
        let mut sqs = [SubmissionConsumer::<Word>::new(depth(8)), SubmissionConsumer::new(depth(8))];
        sqs.iter_mut().for_each(|sq| sq.ring(5).unwrap());
        let mut taken = [0; 2];
        for round in 0..5 {
            for (sq, taken) in sqs.iter_mut().zip(&mut taken) {
                let permit = cq.reserve().unwrap().expect("two fit");
                assert_eq!(sq.take(), Some(round));
                let _ = cq.post(permit);
                *taken += 1;
            }
            assert!(cq.reserve().unwrap().is_none(), "nothing is fetched that could not be completed");
            cq.ring(cq.tail().into()).unwrap();
        }
        assert_eq!(taken, [5, 5]);
    }

    #[test]
    fn a_driver_that_fills_the_whole_ring_at_a_time_need_not_ring_either() {
        for entries in [2, 3, 4, 32] {
            let (slot, event) = words();
            let mut driver = DriverDoorbell::new(depth(entries));
            driver.attach(slot.clone(), event.clone());
            let mut sq = SubmissionConsumer::new(depth(entries));
            sq.doorbell().attach(slot, event);
            sq.suppress();
            for turn in 0..200u32 {
                let burst = if turn < 100 { depth(entries).capacity() } else { 1 };
                let rung = driver.advance(depth(entries).advance(driver.position(), burst));
                assert!(!rung, "{entries} entries, turn {turn}");
                assert_eq!(sq.look(), Ok(burst));
                sq.suppress();
                while sq.take().is_some() {}
            }
        }
    }

    #[test]
    fn bursts_of_up_to_half_a_ring_in_any_order_are_never_rung_for() {
        for entries in [3, 4, 16, 31] {
            let (slot, event) = words();
            let mut driver = DriverDoorbell::new(depth(entries));
            driver.attach(slot.clone(), event.clone());
            let mut sq = SubmissionConsumer::new(depth(entries));
            sq.doorbell().attach(slot, event);
            sq.suppress();
            for turn in 0..500u32 {
                let burst = 1 + (turn * turn % (depth(entries).capacity() / 2) as u32) as u16;
                assert!(!driver.advance(depth(entries).advance(driver.position(), burst)), "{entries}, turn {turn}");
                assert_eq!(sq.look(), Ok(burst));
                sq.suppress();
                while sq.take().is_some() {}
            }
        }
    }

    #[test]
    fn a_device_that_was_woken_and_polls_again_is_not_rung_though_the_queue_is_still_full() {
        let (mut cq, mut host, _event) = shadowed_cq(4);
        fill(&mut cq);
        assert_eq!(cq.arm(), Armed::Idle);
        assert!(cq.reserve().unwrap().is_none());
        assert!(!host.advance(1));
        assert!(cq.reserve().unwrap().is_some());
    }
}
