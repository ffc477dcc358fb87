//! Which command comes next, where content does not matter.

use driver::{Buffer, Completion, Namespace};

use crate::workload::Workload;

/// What a job shall submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) write: bool,
    pub(crate) lba: u64,
}

/// The content of a job: which commands, and what becomes of their data. A slot is one command in flight with
/// `offset..offset + block_bytes` of the job's buffer.
pub(crate) trait Work {
    /// The next command for a free slot; `None` when there is none now. Once the time is over (`ending`) and this says `None` with
    /// nothing in flight, the job is done.
    fn next(&mut self, slot: u16, data: &Buffer, offset: usize, ending: bool) -> Option<Command>;

    /// A slot's command is complete.
    fn done(&mut self, slot: u16, data: &Buffer, offset: usize, completion: &Completion);
}

/// A generator of random numbers: splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, without a bias that matters here.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        #[allow(clippy::cast_possible_truncation)] // The upper half of a product of 128 bits.
        let high = ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64;
        high
    }
}

#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Addresses from a generator; content is left as it is.
#[derive(Debug)]
pub(crate) struct Plain {
    random: bool,
    read_percent: u64,
    /// Commands that fit into the range.
    units: u64,
    blocks_per_unit: u64,
    position: u64,
    rng: Random,
}

impl Plain {
    /// The work of job `index` of `jobs`. Sequential jobs start at equal distances and go round the whole range.
    pub(crate) fn new(workload: &Workload, namespace: &Namespace, units: u64, index: u16, jobs: u16) -> Self {
        Self {
            random: workload.rw.is_random(),
            read_percent: workload.rw.read_percent(workload.read_percent).into(),
            units,
            blocks_per_unit: (workload.block_bytes / namespace.block_bytes()) as u64,
            position: units / u64::from(jobs) * u64::from(index),
            rng: Random::new(mix(u64::from(index) + 1)),
        }
    }
}

impl Work for Plain {
    #[inline]
    fn next(&mut self, _: u16, _: &Buffer, _: usize, ending: bool) -> Option<Command> {
        if ending {
            return None;
        }
        Some(self.command())
    }

    #[inline]
    fn done(&mut self, _: u16, _: &Buffer, _: usize, _: &Completion) {}
}

impl Plain {
    #[inline]
    fn command(&mut self) -> Command {
        let write = match self.read_percent {
            100 => false,
            0 => true,
            percent => self.rng.below(100) >= percent,
        };
        let unit = if self.random {
            self.rng.below(self.units)
        } else {
            let unit = self.position;
            self.position = if unit + 1 >= self.units { 0 } else { unit + 1 };
            unit
        };
        Command { write, lba: unit * self.blocks_per_unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(random: bool, read_percent: u64, units: u64) -> Plain {
        Plain { random, read_percent, units, blocks_per_unit: 8, position: 0, rng: Random::new(1) }
    }

    #[test]
    fn sequential_addresses_follow_each_other_and_go_round() {
        let mut work = plain(false, 100, 3);
        let lbas: Vec<_> = (0..7).map(|_| work.command().lba).collect();
        assert_eq!(lbas, [0, 8, 16, 0, 8, 16, 0]);
    }

    #[test]
    fn random_addresses_reach_every_unit_and_none_beyond() {
        let mut work = plain(true, 100, 50);
        let mut seen = [0; 50];
        for _ in 0..50_000 {
            let lba = work.command().lba;
            assert_eq!(lba % 8, 0);
            seen[usize::try_from(lba / 8).unwrap()] += 1;
        }
        assert!(seen.iter().all(|n| (700..1300).contains(n)), "{seen:?}");
    }

    #[test]
    fn the_mix_is_the_one_asked_for() {
        for (percent, expected) in [(0, 0..=0), (30, 2800..=3200), (100, 10_000..=10_000)] {
            let mut work = plain(true, percent, 1000);
            let reads = (0..10_000).filter(|_| !work.command().write).count();
            assert!(expected.contains(&reads), "{percent}: {reads}");
        }
    }
}
