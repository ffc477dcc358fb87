//! Interrupts: which are raised at once, which later, and which never.
//!
//! A turn that has posted entries to a CQ owes one interrupt for all of them. With MSI-X it can be put off for two reasons:
//!
//! - The host asks for it (Interrupt Coalescing, feature 08h): until enough completions have come together, or the time that it
//!   names is over. They are counted by CQ; a vector that several CQs share fires as soon as one of them has enough.
//! - The host has yet to read entries that it was told of, and will find these on its way ([`doorbell::CompletionProducer::spares`]).
//!   That is a guess, so the interrupt stays owed: it is raised when the head says that the guess was wrong, before a sleep, and
//!   after [`PATIENCE`]. The last is for hosts that read entries and move their head late: while another queue keeps this thread
//!   awake, neither the head nor a sleep would ever bring them their interrupt.

use std::time::{Duration, Instant};

use doorbell::Debt;

use crate::controller::Controller;

/// How long an interrupt is owed on the strength of a guess.
const PATIENCE: Duration = Duration::from_micros(100);

/// Unit of the aggregation time.
const TIME_UNIT: Duration = Duration::from_micros(100);

/// An interrupt that was put off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owed {
    reason: Reason,
    /// The latest time for it.
    until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The host wants more completions to come together.
    Gathering,
    /// The host is on its way to the entries, as far as we know.
    Spared,
}

impl Controller {
    /// One interrupt, now or later, for each CQ that has new entries.
    pub(crate) fn raise_interrupts(&mut self) {
        if self.engine.raise.is_empty() && self.owed.is_empty() {
            return;
        }
        let mut line = false;
        let mut raise = std::mem::take(&mut self.engine.raise);
        for cqid in raise.drain(..) {
            line |= self.decide(cqid);
        }
        self.engine.raise = raise;
        line |= self.look_at_owed(false);
        if line {
            self.raise_line();
        }
    }

    /// Decides about the interrupt for new entries of a CQ. Says whether the legacy line is concerned.
    fn decide(&mut self, cqid: u16) -> bool {
        let Some(cq) = self.engine.cqs.get_mut(usize::from(cqid)).and_then(Option::as_mut) else { return false };
        cq.owes_interrupt = false;
        let Some(vector) = cq.vector else { return false };
        if !self.msix_enabled {
            return true;
        }
        let owed = cq.owed.map(|owed| owed.reason);
        if owed.is_some() {
            // The one that is owed will serve for these as well.
            self.engine.counters.queue(cqid).interrupts_spared += 1;
        }
        // The admin queue's are never put off by request.
        let coalescing = if cqid == 0 { None } else { self.features.coalescing(vector) };
        if owed != Some(Reason::Spared)
            && let Some((threshold, time)) = coalescing
            && cq.producer.untold() < threshold
        {
            if owed.is_none() {
                cq.owed = Some(Owed { reason: Reason::Gathering, until: Instant::now() + TIME_UNIT * time.into() });
                self.owed.push(cqid);
            }
            return false;
        }
        match cq.producer.spares() {
            Ok(true) => {
                if owed != Some(Reason::Spared) {
                    cq.owed = Some(Owed { reason: Reason::Spared, until: Instant::now() + PATIENCE });
                }
                if owed.is_none() {
                    self.owed.push(cqid);
                }
            }
            Ok(false) => self.raise(cqid),
            Err(_) => {
                self.raise(cqid);
                self.invalid_doorbell(cqid);
            }
        }
        false
    }

    /// Raises the interrupt of a CQ by MSI-X.
    fn raise(&mut self, cqid: u16) {
        let Some(cq) = self.engine.cqs.get_mut(usize::from(cqid)).and_then(Option::as_mut) else { return };
        cq.owed = None;
        cq.producer.raised();
        if let Some(vector) = cq.vector {
            self.engine.counters.queue(cqid).interrupts += 1;
            self.interrupts.signal_msix(vector);
        }
    }

    /// Raises what is due of the interrupts that were put off. Before a sleep, all guesses are. Says whether the legacy line is
    /// concerned.
    pub(crate) fn look_at_owed(&mut self, before_sleep: bool) -> bool {
        if self.owed.is_empty() {
            return false;
        }
        let now = Instant::now();
        let mut line = false;
        let mut all = std::mem::take(&mut self.owed);
        all.retain(|cqid| {
            let Some(cq) = self.engine.cqs.get_mut(usize::from(*cqid)).and_then(Option::as_mut) else { return false };
            let Some(Owed { reason, until }) = cq.owed else { return false };
            if !self.msix_enabled {
                // The guest has turned MSI-X off meanwhile.
                cq.owed = None;
                line = true;
                return false;
            }
            let due = match reason {
                Reason::Gathering => now >= until,
                Reason::Spared => match cq.producer.debt() {
                    Ok(Debt::Due) => true,
                    Ok(Debt::Stands) => before_sleep || now >= until,
                    Ok(Debt::Void) => {
                        cq.owed = None;
                        self.engine.counters.queue(*cqid).interrupts_spared += 1;
                        return false;
                    }
                    Err(_) => {
                        self.invalid_doorbell(*cqid);
                        true
                    }
                },
            };
            if due {
                self.raise(*cqid);
            }
            !due
        });
        self.owed = all;
        line
    }

    /// When the next interrupt that was put off is due by the clock.
    pub(crate) fn owed_until(&self) -> Option<Instant> {
        let owed = |cqid: &u16| self.engine.cqs.get(usize::from(*cqid))?.as_ref()?.owed;
        self.owed.iter().filter_map(owed).map(|owed| owed.until).min()
    }
}
