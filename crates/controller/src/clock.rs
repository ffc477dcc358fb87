//! When to look at doorbells that nothing announces.

use std::time::Duration;

/// The pause before the next look at mapped doorbells. It is short after work, and grows by half with each look that finds none:
/// whoever comes back after a while waits for at most about half as long again, and an idle disk costs next to nothing.
#[derive(Debug)]
pub(crate) struct Clock {
    pause: Duration,
}

impl Clock {
    /// About what it takes to put a thread to sleep and to wake it.
    const FIRST: Duration = Duration::from_micros(50);
    /// The longest that the first command after an idle time waits.
    const LAST: Duration = Duration::from_millis(4);

    pub(crate) fn new() -> Self {
        Self { pause: Self::FIRST }
    }

    /// There was work.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.pause = Self::FIRST;
    }

    /// How long to sleep.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause + pause / 2).min(Self::LAST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_are_short_again_after_work() {
        let mut clock = Clock::new();
        let mut idle = Duration::ZERO;
        for _ in 0..20 {
            let pause = clock.pause();
            assert!(pause <= idle / 2 + Clock::FIRST, "half as long as it was idle");
            idle += pause;
        }
        assert_eq!(clock.pause(), Clock::LAST);
        clock.worked();
        assert_eq!(clock.pause(), Clock::FIRST);
    }
}
