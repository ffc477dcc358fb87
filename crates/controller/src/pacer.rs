//! What to do when the work has run out: look again, let others run, or sleep.

use std::time::{Duration, Instant};

/// Whether a controller's thread polls or sleeps while it has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollMode {
    /// Poll for a short while where that has paid lately, then sleep.
    #[default]
    Auto,
    /// Never sleep while the controller is enabled: a core is busy for good.
    Always,
    /// Do not poll.
    Never,
}

/// How long a poll may wait for work. A wake-up costs both sides about this much: the guest leaves for the register write,
/// and a sleeping thread takes 17 us to run again (measured on two cores; an eventfd's round trip takes 27 to 34 us).
const BUDGET: Duration = Duration::from_micros(50);

/// Letting others run for longer than this has kept a first command waiting; below, nobody wanted the core.
const LONG: Duration = Duration::from_micros(20);

/// Looks at the queues between two looks at the clock, which costs more.
const TURNS: u32 = 16;

/// Commands that must have come together while others ran, for that to have paid. A single one has waited for nothing.
const BATCH: usize = 2;

/// Something that is done where it has paid lately, and tried now and then where it has not.
#[derive(Debug)]
struct Habit {
    /// Up when it paid, down twice as fast when it did not.
    score: u32,
    /// Chances since the last try.
    skipped: u32,
    /// Chances from one try to the next; doubles with each try that fails.
    interval: u32,
}

impl Habit {
    const BEST: u32 = 16;
    /// From this score on it is done at every chance.
    const PAYS: u32 = 8;
    const SHORTEST: u32 = 16;
    const LONGEST: u32 = 1024;

    fn new() -> Self {
        Self { score: 0, skipped: 0, interval: Self::SHORTEST }
    }

    fn is_worth_it(&mut self) -> bool {
        self.skipped += 1;
        if self.score < Self::PAYS && self.skipped < self.interval {
            return false;
        }
        self.skipped = 0;
        true
    }

    fn learn(&mut self, paid: bool) {
        if paid {
            self.score = (self.score + 2).min(Self::BEST);
            self.interval = 1;
        } else {
            self.score = self.score.saturating_sub(4);
            self.interval = (self.interval * 2).clamp(Self::SHORTEST, Self::LONGEST);
        }
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
    Polling { since: Instant, turns: u32 },
    /// All that could be done before a sleep was done.
    Over,
}

/// Learns from what happens after the work has run out.
///
/// A poll that finds work within its budget has saved a wake-up; one that does not has cost the budget for nothing. Letting
/// others run helps where a guest's CPU waits for this very core with more commands to come: they then come in a batch. An idle
/// disk is asleep after one budget at most, and stays so.
#[derive(Debug)]
pub(crate) struct Pacer {
    mode: PollMode,
    idle: Idle,
    polling: Habit,
    yielding: Habit,
}

impl Pacer {
    pub(crate) fn new(mode: PollMode) -> Self {
        let mut yielding = Habit::new();
        // It costs next to nothing where nobody wants the core, so it is done until it has proved wrong.
        yielding.score = Habit::PAYS;
        Self { mode, idle: Idle::Over, polling: Habit::new(), yielding }
    }

    /// There was work: so many commands were fetched.
    #[inline]
    pub(crate) fn worked(&mut self, commands: usize) {
        match self.idle {
            Idle::Fresh | Idle::Over => {}
            Idle::Yielded { .. } if commands >= BATCH => self.yielding.learn(true),
            Idle::Yielded { long: true } => self.yielding.learn(false),
            Idle::Yielded { long: false } => {}
            Idle::Polling { .. } => self.polling.learn(true),
        }
        self.idle = Idle::Fresh;
    }

    /// There is no work: whether to look again rather than to sleep.
    #[inline]
    pub(crate) fn looks_again(&mut self) -> bool {
        if self.mode == PollMode::Always {
            return true;
        }
        match self.idle {
            Idle::Over => false,
            Idle::Fresh if self.yielding.is_worth_it() => {
                let before = Instant::now();
                std::thread::yield_now();
                self.idle = Idle::Yielded { long: before.elapsed() >= LONG };
                true
            }
            Idle::Fresh => self.begin_poll(),
            Idle::Yielded { long } => {
                if long {
                    self.yielding.learn(false);
                }
                self.begin_poll()
            }
            Idle::Polling { since, turns } => {
                if (turns + 1).is_multiple_of(TURNS) && since.elapsed() >= BUDGET {
                    self.polling.learn(false);
                    self.idle = Idle::Over;
                    return false;
                }
                self.idle = Idle::Polling { since, turns: turns.wrapping_add(1) };
                true
            }
        }
    }

    fn begin_poll(&mut self) -> bool {
        if self.mode == PollMode::Auto && self.polling.is_worth_it() {
            self.idle = Idle::Polling { since: Instant::now(), turns: 0 };
            return true;
        }
        self.idle = Idle::Over;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs out of work once. `polled` and `yielded` say how many commands are found in each case. Returns whether it polled
    /// and whether it yielded.
    fn idle(pacer: &mut Pacer, polled: usize, yielded: usize) -> (bool, bool) {
        let mut did = (false, false);
        while pacer.looks_again() {
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
        assert!(yielded < 20, "one command at a time is none: {yielded}");
    }

    #[test]
    fn once_over_it_stays_over_until_there_was_work() {
        let mut pacer = Pacer::new(PollMode::Auto);
        pacer.polling.score = Habit::BEST;
        pacer.yielding.score = Habit::BEST;
        pacer.worked(1);
        assert!(pacer.looks_again());
        while pacer.looks_again() {}
        assert!(!pacer.looks_again(), "a look by the clock is no reason to poll");
    }

    #[test]
    fn always_and_never_mean_it() {
        assert!(Pacer::new(PollMode::Always).looks_again());
        let mut never = Pacer::new(PollMode::Never);
        never.polling.score = Habit::BEST;
        never.worked(1);
        assert!((0..100).all(|_| !idle(&mut never, 1, 0).0));
    }
}
