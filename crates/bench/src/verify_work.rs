//! The work of a job that checks what it reads: fill its range, mix, and read everything back.

use driver::{Buffer, Completion, Namespace};

use crate::{
    addresses::{Command, Random, Work, mix},
    verify::{Content, POISON, Verified, check, fill},
    workload::Workload,
};

/// Attempts to find a unit that is not in flight.
const TRIES: usize = 8;

#[derive(Debug, Clone, Copy)]
struct InFlight {
    unit: u32,
    write: bool,
}

/// A unit is what one command moves; each job has a range of units of its own, and one command at a time for each.
#[derive(Debug)]
pub(crate) struct VerifyWork {
    seed: u64,
    first_lba: u64,
    blocks_per_unit: u64,
    block_bytes: usize,
    /// Version of each unit; 0 before it is written.
    versions: Vec<u32>,
    busy: Vec<bool>,
    slots: Vec<Option<InFlight>>,
    /// Units that were filled, then those that were read at the end.
    filled: u32,
    last_read: u32,
    random: bool,
    read_percent: u64,
    position: u32,
    rng: Random,
    scratch: Vec<u8>,
    verified: Verified,
}

impl VerifyWork {
    pub(crate) fn new(
        workload: &Workload,
        namespace: &Namespace,
        units: u64,
        index: u16,
        jobs: u16,
        depth: u16,
        seed: u64,
    ) -> Self {
        let share = units / u64::from(jobs);
        let blocks_per_unit = (workload.block_bytes / namespace.block_bytes()) as u64;
        // More could not be kept in mind.
        let count = usize::try_from(share.min(1 << 30)).unwrap_or(1 << 30);
        Self {
            seed,
            first_lba: share * u64::from(index) * blocks_per_unit,
            blocks_per_unit,
            block_bytes: namespace.block_bytes(),
            versions: vec![0; count],
            busy: vec![false; count],
            slots: vec![None; usize::from(depth)],
            filled: 0,
            last_read: 0,
            random: workload.rw.is_random(),
            read_percent: workload.rw.read_percent(workload.read_percent).into(),
            position: 0,
            rng: Random::new(mix(seed ^ u64::from(index))),
            scratch: vec![0; workload.block_bytes],
            verified: Verified::default(),
        }
    }

    pub(crate) fn verified(self) -> Verified {
        self.verified
    }

    fn units(&self) -> u32 {
        u32::try_from(self.versions.len()).unwrap_or(u32::MAX)
    }

    /// The next unit in order, unless a command for it is in flight.
    fn in_order(&self, position: u32) -> Option<u32> {
        let free = !self.busy.get(position as usize).copied()?;
        free.then_some(position)
    }

    fn choose(&mut self) -> Option<u32> {
        let units = self.units();
        if self.random {
            for _ in 0..TRIES {
                let unit = u32::try_from(self.rng.below(units.into())).unwrap_or(0);
                if let Some(unit) = self.in_order(unit) {
                    return Some(unit);
                }
            }
            return None;
        }
        let unit = self.in_order(self.position)?;
        self.position = if unit + 1 >= units { 0 } else { unit + 1 };
        Some(unit)
    }

    fn start(&mut self, slot: u16, unit: u32, write: bool, data: &Buffer, offset: usize) -> Option<Command> {
        let lba = self.first_lba + u64::from(unit) * self.blocks_per_unit;
        let mut scratch = std::mem::take(&mut self.scratch);
        if write {
            let version = self.versions.get(unit as usize)? + 1;
            self.versions[unit as usize] = version;
            for (lba, block) in (lba..).zip(scratch.chunks_mut(self.block_bytes)) {
                fill(block, Content { seed: self.seed, lba, version });
            }
        } else {
            scratch.fill(POISON);
        }
        // Inside: the buffer has a part for each slot.
        let _ = data.write(offset, &scratch);
        self.scratch = scratch;
        self.busy[unit as usize] = true;
        *self.slots.get_mut(usize::from(slot))? = Some(InFlight { unit, write });
        Some(Command { write, lba })
    }
}

impl Work for VerifyWork {
    fn next(&mut self, slot: u16, data: &Buffer, offset: usize, ending: bool) -> Option<Command> {
        if self.filled < self.units() {
            let unit = self.filled;
            self.filled += 1;
            return self.start(slot, unit, true, data, offset);
        }
        if ending {
            let unit = self.in_order(self.last_read)?;
            self.last_read += 1;
            return self.start(slot, unit, false, data, offset);
        }
        let unit = self.choose()?;
        let write = self.rng.below(100) >= self.read_percent;
        self.start(slot, unit, write, data, offset)
    }

    fn done(&mut self, slot: u16, data: &Buffer, offset: usize, completion: &Completion) {
        let Some(InFlight { unit, write }) = self.slots.get_mut(usize::from(slot)).and_then(Option::take) else {
            return;
        };
        self.busy[unit as usize] = false;
        if !completion.status.is_success() {
            // Counted as an error by the job; what the blocks hold now is nobody's promise, but for reads.
            return;
        }
        let lba = self.first_lba + u64::from(unit) * self.blocks_per_unit;
        if write {
            self.verified.written += self.blocks_per_unit;
            return;
        }
        let version = self.versions[unit as usize];
        if data.read(offset, &mut self.scratch).is_err() {
            return;
        }
        for (lba, block) in (lba..).zip(self.scratch.chunks(self.block_bytes)) {
            self.verified.checked += 1;
            if let Err(fault) = check(block, Content { seed: self.seed, lba, version }) {
                self.verified.fault(fault);
            }
        }
    }
}
