//! What to do when the work has run out: look again, let others run, or sleep.

use std::time::{Duration, Instant};

/// Whether a thread that drives devices polls or sleeps while they have nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollMode {
    /// Poll for a short while where that has paid lately, then sleep.
    #[default]
    Auto,
    /// Never sleep while a device wants to be polled ([`crate::PciFunction::wants_polling`]): a core is busy for good.
    Always,
    /// Do not poll.
    Never,
}

/// What to do next when there is no work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Poll again.
    Poll,
    /// Others were let run, for any length of time. Poll again.
    Yielded,
    /// Arm, and sleep.
    Rest,
}

/// Chances to poll, and to let others run, from one try to the next where it does not pay. The latter costs little, and the
/// guest that gains by it may come at any time.
const POLL_TRIES: u32 = 1024;
const YIELD_TRIES: u32 = 64;

/// Letting others run for longer than this has kept a first command waiting; below, nobody wanted the core.
const LONG: Duration = Duration::from_micros(20);

/// Looks at the queues between two looks at the clock, which costs more.
const TURNS: u32 = 16;

/// Commands that must have come together while others ran, for that to have paid. A single one has waited for nothing.
const BATCH: usize = 2;

/// Something that is done where it has paid lately, and tried now and then where it has not.
#[derive(Debug)]
struct Habit {
    /// Up when it paid, down when it did not.
    score: u32,
    /// Chances since the last try.
    skipped: u32,
    /// Chances from one try to the next; doubles with each try that fails.
    interval: u32,
    /// The most that becomes.
    longest: u32,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Paid,
    /// It neither helped nor harmed, but took a system call.
    Vain,
    Harmed,
}

impl Habit {
    const BEST: u32 = 16;
    /// From this score on it is done at every chance.
    const PAYS: u32 = 8;
    const SHORTEST: u32 = 16;

    fn new(longest: u32) -> Self {
        Self { score: 0, skipped: 0, interval: Self::SHORTEST, longest }
    }

    fn is_worth_it(&mut self) -> bool {
        self.skipped += 1;
        if self.score < Self::PAYS && self.skipped < self.interval {
            return false;
        }
        self.skipped = 0;
        true
    }

    fn learn(&mut self, outcome: Outcome) {
        self.score = match outcome {
            Outcome::Paid => (self.score + 2).min(Self::BEST),
            Outcome::Vain => self.score.saturating_sub(1),
            Outcome::Harmed => self.score.saturating_sub(4),
        };
        self.interval = match outcome {
            Outcome::Paid => 1,
            Outcome::Vain | Outcome::Harmed => (self.interval * 2).clamp(Self::SHORTEST, self.longest),
        };
    }
}

/// Where an idle time has got to.
#[derive(Debug, Clone, Copy)]
enum Idle {
    /// There was work a moment ago.
    Fresh,
    /// Others were let run, and took longer than [`LONG`] or not.
    Yielded { long: bool },
    /// Looking again and again since then.
    ///
    /// The clock is read for the first time after some turns: mostly there is work before.
    Polling { since: Option<Instant>, turns: u32 },
    /// All that could be done before a sleep was done.
    Over,
}

/// Learns from what happens after the work has run out.
///
/// A poll that finds work within its budget has saved a wake-up; one that does not has cost the budget for nothing. Letting
/// others run helps where a guest's CPU waits for this very core with more commands to come: they then come in a batch. An idle
/// disk is asleep after one budget at most, and stays so.
///
/// There is one for each thread that drives devices: what polling costs, and what a wake-up would have cost, is that thread's.
///
/// ```
/// # use shadowbell_pci::{Pace, Pacer, PollMode};
/// # let (mut work, mut slept) = (vec![0, 0, 3], false);
/// # let mut poll_devices = || work.pop().unwrap_or(0);
/// let mut pacer = Pacer::new(PollMode::Auto);
/// # while !slept {
/// match poll_devices() {
///     0 if pacer.next(true) == Pace::Rest => { /* arm, and sleep */
/// #       slept = true;
///     }
///     0 => {}
///     done => pacer.worked(done),
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Pacer {
    mode: PollMode,
    idle: Idle,
    polling: Habit,
    yielding: Habit,
}

impl Pacer {
    /// How long a poll may wait for work. A wake-up costs both sides about this much: the guest leaves for the register
    /// write, and a sleeping thread takes 17 us to run again (measured on two cores; an eventfd's round trip takes 27 to
    /// 34 us).
    pub const BUDGET: Duration = Duration::from_micros(50);

    /// One that has learned nothing yet.
    pub fn new(mode: PollMode) -> Self {
        let mut yielding = Habit::new(YIELD_TRIES);
        // It costs next to nothing where nobody wants the core, so it is done until it has proved wrong.
        yielding.score = Habit::PAYS;
        Self { mode, idle: Idle::Over, polling: Habit::new(POLL_TRIES), yielding }
    }

    /// The mode that it was made with.
    pub fn mode(&self) -> PollMode {
        self.mode
    }

    /// There was work: so many things were done ([`crate::PciFunction::poll`]).
    #[inline]
    pub fn worked(&mut self, things: usize) {
        match self.idle {
            Idle::Fresh | Idle::Over => {}
            Idle::Yielded { long: false } => self.yielding.learn(Outcome::Vain),
            Idle::Yielded { long: true } if things >= BATCH => self.yielding.learn(Outcome::Paid),
            Idle::Yielded { long: true } => self.yielding.learn(Outcome::Harmed),
            Idle::Polling { .. } => self.polling.learn(Outcome::Paid),
        }
        self.idle = Idle::Fresh;
    }

    /// There is no work: what to do next. Only with `may_yield` are others let run: nobody may be kept waiting by that.
    #[inline]
    pub fn next(&mut self, may_yield: bool) -> Pace {
        if self.mode == PollMode::Always {
            return Pace::Poll;
        }
        match self.idle {
            Idle::Over => Pace::Rest,
            Idle::Fresh if may_yield && self.yielding.is_worth_it() => {
                let before = Instant::now();
                std::thread::yield_now();
                self.idle = Idle::Yielded { long: before.elapsed() >= LONG };
                Pace::Yielded
            }
            Idle::Fresh => self.begin_poll(),
            Idle::Yielded { long } => {
                self.yielding.learn(if long { Outcome::Harmed } else { Outcome::Vain });
                self.begin_poll()
            }
            Idle::Polling { since, turns } => {
                let mut since = since;
                if (turns + 1).is_multiple_of(TURNS) && since.get_or_insert_with(Instant::now).elapsed() >= Self::BUDGET
                {
                    self.polling.learn(Outcome::Harmed);
                    self.idle = Idle::Over;
                    return Pace::Rest;
                }
                self.idle = Idle::Polling { since, turns: turns.wrapping_add(1) };
                Pace::Poll
            }
        }
    }

    fn begin_poll(&mut self) -> Pace {
        if self.mode == PollMode::Auto && self.polling.is_worth_it() {
            self.idle = Idle::Polling { since: None, turns: 0 };
            return Pace::Poll;
        }
        self.idle = Idle::Over;
        Pace::Rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs out of work once. `polled` and `yielded` say how many commands are found in each case. Returns whether it polled
    /// and whether it yielded.
    fn idle(pacer: &mut Pacer, polled: usize, yielded: usize) -> (bool, bool) {
        let mut did = (false, false);
        while pacer.next(true) != Pace::Rest {
            let found = match pacer.idle {
                Idle::Polling { .. } => {
                    did.0 = true;
                    polled
                }
                Idle::Yielded { .. } => {
                    pacer.idle = Idle::Yielded { long: true };
                    did.1 = true;
                    yielded
                }
                Idle::Fresh | Idle::Over => 0,
            };
            if found > 0 {
                pacer.worked(found);
                return did;
            }
        }
        pacer.worked(1);
        did
    }

    #[test]
    fn polling_is_tried_learned_and_given_up() {
        let mut pacer = Pacer::new(PollMode::Auto);
        pacer.worked(1);
        let polled = (0..200).filter(|_| idle(&mut pacer, 1, 0).0).count();
        assert!(polled > 150, "it has learned that polling pays: {polled}");
        let polled = (0..5000).filter(|_| idle(&mut pacer, 0, 0).0).count();
        assert!(polled < 20, "it has learned that it does not: {polled}");
    }

    #[test]
    fn others_are_let_run_where_commands_then_come_in_batches() {
        let mut pacer = Pacer::new(PollMode::Never);
        pacer.worked(1);
        let yielded = (0..200).filter(|_| idle(&mut pacer, 0, 32).1).count();
        assert!(yielded > 150, "it has learned that it pays: {yielded}");
        let yielded = (0..5000).filter(|_| idle(&mut pacer, 0, 1).1).count();
        assert!(yielded < 100, "one command at a time is none: {yielded}");
    }

    #[test]
    fn nobody_is_let_run_for_long_where_nobody_wants_to() {
        let mut pacer = Pacer::new(PollMode::Auto);
        pacer.polling.score = Habit::BEST;
        pacer.worked(1);
        let mut yielded = 0;
        for _ in 0..6400 {
            if pacer.next(true) == Pace::Yielded {
                yielded += 1;
                pacer.idle = Idle::Yielded { long: false };
            }
            // Commands come in batches, but not because others were let run.
            pacer.worked(32);
        }
        assert!((100..150).contains(&yielded), "a try now and then: {yielded}");
    }

    #[test]
    fn once_over_it_stays_over_until_there_was_work() {
        let mut pacer = Pacer::new(PollMode::Auto);
        pacer.polling.score = Habit::BEST;
        pacer.yielding.score = Habit::BEST;
        pacer.worked(1);
        assert_eq!(pacer.next(true), Pace::Yielded);
        while pacer.next(true) != Pace::Rest {}
        assert_eq!(pacer.next(true), Pace::Rest, "a look by the clock is no reason to poll");
    }

    #[test]
    fn always_and_never_mean_it() {
        assert_eq!(Pacer::new(PollMode::Always).next(true), Pace::Poll);
        let mut never = Pacer::new(PollMode::Never);
        never.polling.score = Habit::BEST;
        never.worked(1);
        assert!((0..100).all(|_| !idle(&mut never, 1, 0).0));
    }

    #[test]
    fn nobody_is_let_run_where_that_keeps_another_waiting() {
        let mut pacer = Pacer::new(PollMode::Auto);
        for _ in 0..100 {
            pacer.worked(32);
            while pacer.next(false) != Pace::Rest {
                assert!(!matches!(pacer.idle, Idle::Yielded { .. }));
            }
        }
    }
}
