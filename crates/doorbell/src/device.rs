//! The device's end of a submission queue and of a completion queue.

use crate::{Armed, Depth, Doorbell, Invalid, Slot};

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

    /// Spares the driver its rings while the device is awake; before the completions of this batch are posted. The shared
    /// line is written once in half a ring: a driver that has more than that outstanding may ring now and then.
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
}

impl<S: Slot> CompletionProducer<S> {
    /// An empty queue; the first entries carry phase 1.
    pub fn new(depth: Depth) -> Self {
        Self { head: Doorbell::new(depth), tail: 0, phase: true, reserved: 0 }
    }

    /// A queue with positions from an earlier life.
    pub fn restore(depth: Depth, head: u16, tail: u16, phase: bool) -> Self {
        Self { head: Doorbell::restore(depth, head), tail, phase, reserved: 0 }
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
        let room = self.unread();
        self.head.ring(value, room)
    }

    /// Looks at the head.
    ///
    /// # Errors
    /// See [`Doorbell::look`].
    pub fn look(&mut self) -> Result<bool, Invalid> {
        let room = self.unread();
        self.head.look(room)
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
            // The host consumes up to the tail, which comes up to one before the head seen now; EventIdx there is not passed.
            self.head.suppress(1);
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
        self.reserved -= 1;
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
        let room = self.unread();
        self.head.arm(room)
    }

    /// Spares the host its rings: whenever no submission queue waits for room here.
    #[inline]
    pub fn suppress(&mut self) {
        self.head.suppress(1);
    }
}
