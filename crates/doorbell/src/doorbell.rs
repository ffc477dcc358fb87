//! One doorbell as the device sees it.

use crate::{Depth, Slot};

/// A position from the host that cannot be one: out of range, or a move that the ring has no room for. It is ignored; the
/// device reports it by the asynchronous event Invalid Doorbell Write Value (NVMe Base 2.1 §5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalid {
    /// The value as it came.
    pub value: u32,
}

/// What [`Doorbell::arm`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// The driver has not moved and will ring when it does: it is safe to sleep.
    Idle,
    /// The driver has moved meanwhile and may not have rung.
    MoreWork,
    /// The driver has put a bad value there. Nothing to do until the next ring.
    Invalid(Invalid),
    /// The driver has not moved, and nothing will say so when it does: the doorbell is mapped ([`Doorbell::map`]). The caller
    /// must come back by the clock.
    ByClock,
}

/// The shadow half of a doorbell.
#[derive(Debug)]
struct Shadow<S> {
    /// The slot and its EventIdx; `None` while guest memory is being mapped anew.
    words: Option<(S, S)>,
    /// The slot's raw value when it was attached, until another one is seen there. While it is there the driver may well not
    /// use the slot. `None`: the slot is live, the one source of the position.
    unmoved: Option<u32>,
    /// Where EventIdx stands.
    event_at: u16,
    /// A full fence followed the store of EventIdx, and the slot was looked at after that or will be before the device sleeps.
    fenced: bool,
}

impl<S: Slot> Shadow<S> {
    fn publish(&mut self, at: u16) {
        if let Some((_, event)) = &self.words {
            self.event_at = at;
            self.fenced = false;
            event.store(u32::from(at));
            probes::event_idx_written(at);
        }
    }

    /// Publishes a position that the driver's next move must ring from. The caller looks at the slot afterwards.
    fn publish_armed(&mut self, at: u16) {
        self.publish(at);
        // Pairs with the fence between the driver's store of the slot and its load of EventIdx: either the driver sees this
        // EventIdx and rings, or the look that follows sees the driver's move.
        S::full_fence();
        self.fenced = true;
    }

    /// Whether the driver's next move can be seen in the slot, whatever it is. Not while the slot holds a leftover that
    /// differs from the position: the driver could move to just that value.
    fn shows_every_move(&self, seen: u16) -> bool {
        self.unmoved.is_none_or(|raw| raw & SLOT_MASK == u32::from(seen))
    }
}

/// The upper half of a slot is reserved: written as zero, ignored when read.
const SLOT_MASK: u32 = 0xffff;

/// The host's position on one ring (SQ tail or CQ head), from a register, from a slot, or from a host that uses both.
///
/// The position moves only through [`Doorbell::look`] and [`Doorbell::ring`] (and [`Doorbell::arm`], which looks), which check
/// it.
///
/// # What tells the position
/// The register does, until the slot is seen to hold another value than it was attached with. From then on the slot does, and
/// a register write is a kick: posted writes can be older than the slot. A host that begins to use a slot must make its
/// first move visible in it. That is so when the slot held the host's position as it was attached (both are zero in a new
/// queue), and where it did not, as long as the host rings for every move in the first revolution
/// ([`crate::DriverDoorbell::attach`] does).
///
/// A mapped doorbell ([`Doorbell::map`]) is a register that the host stores to without a word to us. It is the one source of
/// the position from its start to its end, and has no EventIdx.
#[derive(Debug)]
pub struct Doorbell<S> {
    depth: Depth,
    /// Last valid position.
    seen: u16,
    shadow: Option<Shadow<S>>,
    /// The register itself, where the host maps it. There is no shadow then.
    mapped: Option<S>,
    /// The driver used a slot of this queue before: it will use the next one too, and register writes may be of old.
    used_slots: bool,
    /// A position that is not checked yet: what a slot held when it was let go, or what the register said while the slot was
    /// out of sight. It counts at the next look, unless that finds the slot in use.
    pending: Option<u32>,
    /// The slot's value that was refused last, so that one that stays is reported once.
    refused: Option<u32>,
}

impl<S: Slot> Doorbell<S> {
    /// A doorbell at position 0, by register.
    pub fn new(depth: Depth) -> Self {
        Self::restore(depth, 0)
    }

    /// A doorbell at a position from an earlier life, by register. The position is below the depth ([`Depth::position`]).
    pub fn restore(depth: Depth, seen: u16) -> Self {
        debug_assert!(depth.position(u32::from(seen)).is_some(), "position {seen} of {depth:?}");
        Self { depth, seen, shadow: None, mapped: None, used_slots: false, pending: None, refused: None }
    }

    /// The ring's size.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// The last valid position.
    #[inline]
    pub fn seen(&self) -> u16 {
        self.seen
    }

    /// Whether a slot is attached.
    #[inline]
    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// Whether the driver was seen to use the slot.
    pub fn is_live(&self) -> bool {
        self.shadow.as_ref().is_some_and(|s| s.unmoved.is_none())
    }

    /// Whether the host maps the register; see [`Doorbell::map`].
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// Makes `register` the doorbell register of this queue, for good: the host stores to it, and nothing tells us when. It
    /// takes the present position, so that nothing that it held before counts. There must be no shadow, now or later.
    pub fn map(&mut self, register: S) {
        debug_assert!(self.shadow.is_none(), "a mapped doorbell has no shadow");
        register.store(u32::from(self.seen));
        self.mapped = Some(register);
    }

    /// Attaches the slot and the EventIdx of this doorbell and publishes an EventIdx from the device's own state, whatever
    /// the pages held before. The caller must look at the queue afterwards, as if it had been rung.
    ///
    /// Slots that are attached already are let go first, as by [`Doorbell::detach`]. A mapped doorbell stays as it is.
    pub fn attach(&mut self, slot: S, event: S) {
        if self.is_mapped() {
            return;
        }
        self.detach();
        let unmoved = Some(slot.load());
        self.shadow = Some(Shadow { words: None, unmoved, event_at: self.seen, fenced: false });
        self.resume(slot, event);
    }

    /// As [`Doorbell::attach`], for a slot that the driver is known to use: that of a queue which was live
    /// ([`Doorbell::is_live`]) when its state was exported. The driver may have moved on since.
    pub fn attach_live(&mut self, slot: S, event: S) {
        self.attach(slot, event);
        self.pending = None;
        self.used_slots = true;
        if let Some(shadow) = &mut self.shadow {
            shadow.unmoved = None;
        }
    }

    /// Lets go of the words, since their memory is being taken away. What is known about the driver stays. The position stands
    /// still until [`Doorbell::resume`], by register too: whether the slot is in use must not be missed.
    pub fn suspend(&mut self) {
        if let Some(shadow) = &mut self.shadow {
            shadow.words = None;
        }
    }

    /// Takes the words again, wherever they are now. The caller must look at the queue afterwards, as if it had been rung.
    pub fn resume(&mut self, slot: S, event: S) {
        if let Some(shadow) = &mut self.shadow {
            shadow.words = Some((slot, event));
            shadow.publish_armed(self.seen);
        }
    }

    /// Lets go of the slot. One that is in use is read a last time; what it held counts at the next look.
    pub fn detach(&mut self) {
        self.refused = None;
        let Some(Shadow { words: Some((slot, _)), unmoved, .. }) = self.shadow.take() else { return };
        let raw = slot.load();
        if unmoved != Some(raw) {
            self.used_slots = true;
            self.pending = Some(raw & SLOT_MASK);
        }
    }

    /// The host wrote the register. `room` is how far the position may move. The caller looks at the queue in any case.
    ///
    /// Once the slot is live this is a look, and the value is of no use: a posted write can be older than the slot. Only one
    /// that was never a position is still reported.
    ///
    /// A mapped register takes the value, as from a host that stores to it, and is looked at.
    ///
    /// # Errors
    /// [`Invalid`]; the position stays.
    pub fn ring(&mut self, value: u32, room: u16) -> Result<(), Invalid> {
        if let Some(register) = &self.mapped {
            register.store(value);
            // Each write is an event of its own.
            self.refused = None;
            return self.look(room).map(drop);
        }
        let before = self.seen;
        // The driver stores the slot before it writes the register, so a slot that was ever used shows it here at the latest.
        let looked = self.look(room).map(drop);
        let room = room - self.depth.distance(before, self.seen);
        looked.and(self.take_register(value, room))
    }

    fn take_register(&mut self, value: u32, room: u16) -> Result<(), Invalid> {
        self.depth.position(value).ok_or(Invalid { value })?;
        match &self.shadow {
            Some(Shadow { unmoved: None, .. }) => return Ok(()),
            // New slots on a queue that had used others: the value may be of old, unless the slot agrees with it.
            Some(Shadow { unmoved: Some(raw), .. }) if self.used_slots && raw & SLOT_MASK != value => return Ok(()),
            Some(Shadow { words: None, .. }) => {
                self.pending = Some(value);
                return Ok(());
            }
            _ => {}
        }
        self.accept_unseen(value, room).map(drop)
    }

    /// Accepts a position that the slot does not show.
    fn accept_unseen(&mut self, value: u32, room: u16) -> Result<bool, Invalid> {
        let moved = self.accept(value, room)?;
        // The driver may yet begin to use the slot, by a move to the very value that is left over there. It must ring then.
        // The fence is that of the arming function.
        let seen = self.seen;
        if let Some(shadow) = &mut self.shadow
            && !shadow.shows_every_move(seen)
            && shadow.event_at != seen
        {
            shadow.publish(seen);
        }
        Ok(moved)
    }

    /// Reads the position from the slot, if it is in use, and says whether it moved. `room` is how far it may move.
    ///
    /// # Errors
    /// [`Invalid`], once for each bad value; the position stays.
    #[inline]
    pub fn look(&mut self, room: u16) -> Result<bool, Invalid> {
        let Some(shadow) = &mut self.shadow else { return self.look_at_register(room) };
        let Some((slot, _)) = &shadow.words else { return Ok(false) };
        let raw = slot.load();
        if let Some(attached) = shadow.unmoved {
            if raw == attached {
                return self.take_pending(room);
            }
            shadow.unmoved = None;
            self.used_slots = true;
            self.pending = None;
        }
        self.take_word(raw, room)
    }

    /// Whether a look would find nothing: one load, and no more. For who looks again and again.
    #[inline]
    pub fn is_still(&self) -> bool {
        let raw = match (&self.shadow, &self.mapped) {
            (Some(Shadow { words: None, .. }), _) => return true,
            (Some(Shadow { words: Some((slot, _)), unmoved: Some(attached), .. }), _) => {
                return slot.load() == *attached && self.pending.is_none();
            }
            (Some(Shadow { words: Some((slot, _)), unmoved: None, .. }), _) => slot.load(),
            (None, Some(register)) => register.load(),
            (None, None) => return self.pending.is_none(),
        };
        let value = raw & SLOT_MASK;
        value == u32::from(self.seen) || self.refused == Some(value)
    }

    /// As [`Doorbell::look`], without a slot.
    #[inline]
    fn look_at_register(&mut self, room: u16) -> Result<bool, Invalid> {
        match &self.mapped {
            Some(register) => {
                let raw = register.load();
                self.take_word(raw, room)
            }
            None => self.take_pending(room),
        }
    }

    /// Accepts what the one source of the position holds, unless that was refused before.
    #[inline]
    fn take_word(&mut self, raw: u32, room: u16) -> Result<bool, Invalid> {
        let value = raw & SLOT_MASK;
        if self.refused == Some(value) {
            return Ok(false);
        }
        self.refused = None;
        if value == u32::from(self.seen) {
            return Ok(false);
        }
        let moved = self.accept(value, room);
        if moved.is_err() {
            self.refused = Some(value);
        }
        moved
    }

    fn take_pending(&mut self, room: u16) -> Result<bool, Invalid> {
        match self.pending.take() {
            Some(value) => self.accept_unseen(value, room),
            None => Ok(false),
        }
    }

    fn accept(&mut self, value: u32, room: u16) -> Result<bool, Invalid> {
        let to = self.depth.position(value).ok_or(Invalid { value })?;
        let steps = self.depth.distance(self.seen, to);
        if steps > room {
            return Err(Invalid { value });
        }
        self.seen = to;
        Ok(steps > 0)
    }

    /// The one function that arms: publishes EventIdx at the last seen position, so that the driver's next move from there
    /// rings, then looks again. A queue without a slot is always armed; one with a mapped register cannot be, and says so.
    pub fn arm(&mut self, room: u16) -> Armed {
        if let Some(shadow) = &mut self.shadow
            && shadow.words.is_some()
            && (shadow.event_at != self.seen || !shadow.fenced)
        {
            shadow.publish_armed(self.seen);
        }
        match self.look(room) {
            Ok(false) if self.is_mapped() => Armed::ByClock,
            Ok(false) => Armed::Idle,
            Ok(true) => Armed::MoreWork,
            Err(invalid) => Armed::Invalid(invalid),
        }
    }

    /// Keeps EventIdx behind the driver while the device is awake. The shared line is written only when it must be: when
    /// EventIdx stands where the driver's next move would ring, or has fallen more than `slack` positions behind.
    ///
    /// It must run before the device lets the driver go on (posts the completion that frees the entries), so that the driver
    /// cannot reach an old EventIdx in its next round without seeing the new one.
    #[inline]
    pub fn suppress(&mut self, slack: u16) {
        let seen = self.seen;
        let Some(shadow) = &mut self.shadow else { return };
        let behind = self.depth.distance(shadow.event_at, seen);
        if (behind == 0 || behind > slack.max(1)) && shadow.shows_every_move(seen) {
            shadow.publish(self.depth.previous(seen));
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests;
