//! Latencies.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that is told apart, in ns: a minute.
const LONGEST: u64 = 60_000_000_000;

/// A histogram of latencies with two significant digits, from 1 ns to a minute; what is longer counts as a minute.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// What people ask of a histogram, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct LatencyUs {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99 of 100 are not longer.
    pub p99: f64,
    /// 999 of 1000 are not longer.
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// An empty histogram. It never grows.
    #[must_use]
    pub fn new() -> Self {
        #[allow(clippy::expect_used)] // The bounds are constants.
        Self(Histogram::new_with_bounds(1, LONGEST, 2).expect("bounds that are possible"))
    }

    /// Counts a latency in ns.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        // Equal bounds: nothing can be out of range.
        let _ = self.0.add(&other.0);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean and percentiles; zeros when nothing was counted.
    #[must_use]
    pub fn summary(&self) -> LatencyUs {
        if self.0.is_empty() {
            return LatencyUs::default();
        }
        #[allow(clippy::cast_precision_loss)] // Two digits.
        let us = |ns: u64| ns as f64 / 1000.0;
        LatencyUs {
            mean: self.0.mean() / 1000.0,
            p50: us(self.0.value_at_quantile(0.5)),
            p99: us(self.0.value_at_quantile(0.99)),
            p99_9: us(self.0.value_at_quantile(0.999)),
            max: us(self.0.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, wanted: f64) -> bool {
        (got - wanted).abs() <= wanted * 0.01
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted_within_one_percent() {
        let mut latency = Latency::new();
        for ns in 1..=100_000u64 {
            latency.record(ns * 10);
        }
        let summary = latency.summary();
        assert!(near(summary.mean, 500.0), "{summary:?}");
        assert!(near(summary.p50, 500.0), "{summary:?}");
        assert!(near(summary.p99, 990.0), "{summary:?}");
        assert!(near(summary.p99_9, 999.0), "{summary:?}");
        assert!(near(summary.max, 1000.0), "{summary:?}");
        assert_eq!(latency.count(), 100_000);
    }

    #[test]
    fn a_rare_long_one_shows_in_the_last_percentile_only() {
        let mut latency = Latency::new();
        (0..9980).for_each(|_| latency.record(1_000));
        (0..20).for_each(|_| latency.record(5_000_000));
        let summary = latency.summary();
        assert!(near(summary.p50, 1.0) && near(summary.p99, 1.0) && near(summary.p99_9, 5000.0), "{summary:?}");
        assert!(near(summary.mean, (9980.0 + 20.0 * 5000.0) / 10_000.0), "{summary:?}");
    }

    #[test]
    fn jobs_add_up_and_extremes_are_kept_inside() {
        let (mut one, mut two) = (Latency::new(), Latency::new());
        one.record(0);
        two.record(u64::MAX);
        one.add(&two);
        assert_eq!(one.count(), 2);
        assert!(near(one.summary().max, 60_000_000.0));
        assert_eq!(Latency::new().summary(), LatencyUs::default());
    }
}
