//! Random requests against a model.

use std::{collections::HashMap, time::Instant};

use super::{
    Backend,
    bench::{Bench, LIMIT, Random, collect, gather, request, scatter, spread},
};
use crate::{Completion, Operation, Submitted};

/// Slot, operation, first byte in its region, pieces of memory, bytes of a write.
type Busy = (u64, Operation, usize, Vec<(u64, usize)>, Vec<u8>);

/// Many requests in flight, whose order of completion is the device's: what they leave behind is what a model says.
pub fn random_requests_agree_with_a_model(backend: &Backend) {
    const SLOTS: u64 = 24;
    const SLOT_LEN: u64 = 64 << 10;
    let mut bench = Bench::new((backend.make)());
    let block = bench.block;
    // A region of the device for each slot of guest memory, so that requests in flight never overlap; blocks inside a
    // region are written in any order over time.
    let region_blocks = 32u64;
    let mut random = Random(42);
    let region_len = usize::try_from(region_blocks * block).unwrap_or(0);
    let mut models: Vec<Vec<u8>> = (0..SLOTS).map(|_| vec![0; region_len]).collect();
    for slot in 0..SLOTS {
        let zeroes = Operation::WriteZeroes { may_unmap: true, fua: false };
        assert_eq!(bench.run(zeroes, slot * region_blocks * block, region_blocks * block, &[]), Ok(()));
    }
    let mut busy: HashMap<u64, Busy> = HashMap::new();
    let (mut submitted, mut completed, goal) = (0u64, 0u64, 3000u64);
    let deadline = Instant::now() + LIMIT;
    while completed < goal {
        assert!(Instant::now() < deadline, "{completed} of {goal} requests");
        let mut finished = Vec::new();
        let slot = random.below(SLOTS);
        if submitted < goal && !busy.values().any(|entry| entry.0 == slot) {
            let first = random.below(region_blocks);
            let n = 1 + random.below((region_blocks - first).min(8));
            let (start, len) = (usize::try_from(first * block).unwrap_or(0), usize::try_from(n * block).unwrap_or(0));
            let operation = match random.below(10) {
                0..4 => Operation::Read,
                4..7 => Operation::Write { fua: false },
                7 => Operation::Write { fua: true },
                8 => Operation::WriteZeroes { may_unmap: submitted.is_multiple_of(2), fua: false },
                _ => Operation::Flush,
            };
            // Sizes with a common divisor of 4, as PRPs have; sometimes aligned for direct I/O.
            let cuts: &[usize] = if random.below(2) == 0 { &[4096] } else { &[4, 508, 4096, 1000] };
            let base = slot * SLOT_LEN + if cuts.len() == 1 { 0 } else { 4 * random.below(64) };
            let pieces = match operation {
                Operation::Read | Operation::Write { .. } if cuts.len() == 1 => vec![(base, len)],
                Operation::Read | Operation::Write { .. } => scatter(base, len, cuts),
                _ => Vec::new(),
            };
            let bytes = random.bytes(len);
            if let Operation::Write { .. } = operation {
                spread(&bench.guest, &pieces, &bytes);
            }
            let offset = slot * region_blocks * block + first * block;
            let (offset, len) = if operation == Operation::Flush { (0, 0) } else { (offset, n * block) };
            let tag = random.next();
            busy.insert(tag, (slot, operation, start, pieces.clone(), bytes));
            submitted += 1;
            let mut wanted = Some(request(tag, operation, offset, len, bench.guest.segments(&pieces)));
            while let Some(mut request) = wanted.take() {
                match bench.queue.submit(&mut request) {
                    Submitted::Done(result) => finished.push(Completion { request, result }),
                    Submitted::Queued => {}
                    Submitted::Full => {
                        wanted = Some(request);
                        finished.extend(collect(&mut *bench.queue, 1));
                    }
                }
            }
        }
        if random.below(4) == 0 || submitted == goal || busy.len() as u64 == SLOTS {
            bench.queue.poll(&mut |completion| finished.push(completion));
        }
        for completion in finished {
            assert_eq!(completion.result, Ok(()), "{:?}", completion.request);
            let Some((slot, operation, start, pieces, bytes)) = busy.remove(&completion.request.tag) else {
                panic!("tag {} came back twice", completion.request.tag);
            };
            completed += 1;
            let model = &mut models[usize::try_from(slot).unwrap_or(0)];
            let range = start..start + bytes.len();
            match operation {
                Operation::Write { .. } => model[range].copy_from_slice(&bytes),
                Operation::WriteZeroes { .. } => model[range].fill(0),
                Operation::Read if backend.keeps_data => {
                    assert!(gather(&bench.guest, &pieces) == model[range], "region {slot}, byte {start}");
                }
                _ => {}
            }
        }
    }
    assert_eq!(bench.queue.in_flight(), 0);
    for (slot, model) in models.iter().enumerate() {
        let back = bench.read(slot as u64 * region_blocks * block, region_len);
        assert!(!backend.keeps_data || back == *model, "region {slot}");
    }
}
