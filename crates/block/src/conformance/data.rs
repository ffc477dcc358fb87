//! What is written is read back, and nothing else changes.

use dma::Segments;

use super::{
    Backend, Guest, MIN_SIZE,
    bench::{Bench, RAM_LEN, Random, collect, gather, pattern, request, scatter, spread},
};
use crate::{BlockError, Operation, Submitted};

/// Every shape of guest memory carries the same bytes: aligned, at any byte, in many pieces, in more pieces than a call takes.
pub fn patterns_read_back_through_odd_segments(backend: &Backend) {
    let mut bench = Bench::new((backend.make)());
    let shapes: [(u64, usize, &[usize]); 8] = [
        (0, 4096, &[1 << 20]),
        (4, 8192, &[1 << 20]),
        (4092, 4096, &[4, 4092]),
        (3, 12288, &[1, 4095, 7, 513, 4096]),
        (512, 65536, &[512]),
        (2048, 257 * 4096 - 2048 - 2048, &[2048, 4096]),
        (16, 1100 * 512 - 512 + 3584, &[500]),
        (12, 2 << 20, &[4096, 12, 60000]),
    ];
    for (i, &(at, len, cuts)) in shapes.iter().enumerate() {
        let len = len - len % 4096;
        let bytes = Random(i as u64 + 1).bytes(len);
        for (j, &(other, _, others)) in shapes.iter().enumerate() {
            let offset = (i as u64 * 3 + j as u64) * 4096;
            let from = scatter(at, len, cuts);
            spread(&bench.guest, &from, &bytes);
            assert_eq!(
                bench.run(Operation::Write { fua: false }, offset, len as u64, &from),
                Ok(()),
                "write, shape {i}"
            );
            let there = RAM_LEN / 2 + other;
            let to = scatter(there, len, others);
            let span = to.last().map_or(0, |&(last, n)| usize::try_from(last - there).unwrap_or(0) + n + 8);
            bench.guest.write(there, &vec![0xee; span]);
            assert_eq!(bench.run(Operation::Read, offset, len as u64, &to), Ok(()), "read, shape {j}");
            if backend.keeps_data {
                assert!(gather(&bench.guest, &to) == bytes, "shape {i} read back through shape {j}");
            }
            for &(piece, n) in &to {
                let after = bench.guest.read(piece + n as u64, 8);
                assert!(after.iter().all(|&byte| byte == 0xee), "the gap after a piece is touched, shape {j}");
            }
        }
    }
}

/// The last block is a block like every other, and nothing reaches over it.
pub fn the_last_block_is_there_and_nothing_after_it(backend: &Backend) {
    let mut bench = Bench::new((backend.make)());
    let (block, last) = (bench.block, bench.caps.size - bench.block);
    let bytes = pattern(block, 1, 3);
    bench.write(last, &bytes);
    let back = bench.read(last, bytes.len());
    assert!(!backend.keeps_data || back == bytes);
    let two = usize::try_from(block * 2).unwrap_or(0);
    for operation in [Operation::Read, Operation::Write { fua: true }] {
        assert_eq!(bench.run(operation, last, block * 2, &[(0, two)]), Err(BlockError::OutOfRange));
    }
    for operation in [Operation::Discard, Operation::WriteZeroes { may_unmap: true, fua: false }] {
        assert_eq!(bench.run(operation, last, block * 2, &[]), Err(BlockError::OutOfRange));
    }
    let back = bench.read(last, bytes.len());
    assert!(!backend.keeps_data || back == bytes, "a refused request changes nothing");
}

/// Overflowing, misaligned and mismatched ranges are refused at once and touch neither memory nor device.
pub fn impossible_ranges_are_refused(backend: &Backend) {
    let mut bench = Bench::new((backend.make)());
    let (block, size) = (bench.block, bench.caps.size);
    let one = usize::try_from(block).unwrap_or(0);
    bench.guest.write(0, &vec![0x5a; one * 2]);
    let ranges = [
        (size, block),
        (u64::MAX - block + 1, block),
        (u64::MAX - block + 1, u64::MAX - block + 1),
        (size - block, u64::MAX - block + 1),
        (1 << 63, block),
        (1, block),
        (block / 2, block),
        (0, block / 2),
        (0, block + 1),
        (size - block / 2, block),
    ];
    for (offset, len) in ranges {
        for operation in [Operation::Discard, Operation::WriteZeroes { may_unmap: false, fua: false }] {
            assert_eq!(
                bench.run(operation, offset, len, &[]),
                Err(BlockError::OutOfRange),
                "{operation:?} {offset}+{len}"
            );
        }
        let pieces = [(0, usize::try_from(len).unwrap_or(one).min(one * 2))];
        for operation in [Operation::Read, Operation::Write { fua: false }] {
            assert_eq!(
                bench.run(operation, offset, len, &pieces),
                Err(BlockError::OutOfRange),
                "{operation:?} {offset}+{len}"
            );
        }
    }
    for pieces in [&[(0, one / 2)][..], &[(0, one * 2)], &[]] {
        assert_eq!(
            bench.run(Operation::Read, 0, block, pieces),
            Err(BlockError::OutOfRange),
            "memory of another length"
        );
    }
    assert_eq!(bench.guest.read(0, one * 2), vec![0x5a; one * 2]);
    assert_eq!(bench.queue.in_flight(), 0);
}

/// A request for no bytes succeeds.
pub fn nothing_is_a_request_too(backend: &Backend) {
    let mut bench = Bench::new((backend.make)());
    let zeroes = Operation::WriteZeroes { may_unmap: true, fua: true };
    for operation in [Operation::Read, Operation::Write { fua: true }, zeroes, Operation::Discard] {
        let expect =
            if operation == Operation::Discard && !bench.caps.discard { Err(BlockError::Unsupported) } else { Ok(()) };
        assert_eq!(bench.run(operation, 0, 0, &[]), expect, "{operation:?}");
        assert_eq!(bench.run(operation, bench.caps.size, 0, &[]), expect, "{operation:?}");
    }
}

/// All that changes a read-only device is refused, all else works.
pub fn read_only_devices_refuse_changes(backend: &Backend) {
    let Some(make) = &backend.make_read_only else { return };
    let mut bench = Bench::new(make());
    assert!(bench.caps.read_only && !bench.caps.volatile_cache);
    let block = bench.block;
    let one = usize::try_from(block).unwrap_or(0);
    let before = bench.read(0, one);
    assert_eq!(bench.run(Operation::Write { fua: false }, 0, block, &[(0, one)]), Err(BlockError::ReadOnly));
    for operation in [Operation::Discard, Operation::WriteZeroes { may_unmap: true, fua: false }] {
        assert_eq!(bench.run(operation, 0, block, &[]), Err(BlockError::ReadOnly));
    }
    assert_eq!(bench.run(Operation::Flush, 0, 0, &[]), Ok(()));
    assert_eq!(bench.read(0, one), before);
}

/// Flushes between writes, forced writes, both at once.
pub fn flush_and_fua_complete(backend: &Backend) {
    let mut bench = Bench::new((backend.make)());
    assert_eq!(bench.run(Operation::Flush, 0, 0, &[]), Ok(()), "a flush with nothing to flush");
    let bytes = pattern(4096, 2, 5);
    bench.guest.write(0, &bytes);
    assert_eq!(bench.run(Operation::Write { fua: true }, 4096, 8192, &[(0, 8192)]), Ok(()));
    bench.write(16384, &bytes);
    assert_eq!(bench.run(Operation::Flush, 0, 0, &[]), Ok(()));
    for offset in [4096, 16384] {
        let back = bench.read(offset, 8192);
        assert!(!backend.keeps_data || back == bytes);
    }
    // A flush among writes in flight.
    let guest = Guest::new();
    let mut queued = 0;
    for i in 0..16u64 {
        let write =
            request(i, Operation::Write { fua: i % 3 == 0 }, i * 4096, 4096, guest.segments(&[(i * 4096, 4096)]));
        for mut request in [write, request(100 + i, Operation::Flush, 0, 0, Segments::default())] {
            match bench.queue.submit(&mut request) {
                Submitted::Done(result) => assert_eq!(result, Ok(())),
                Submitted::Queued => queued += 1,
                Submitted::Full => panic!("32 requests fit"),
            }
        }
    }
    for completion in collect(&mut *bench.queue, queued) {
        assert_eq!(completion.result, Ok(()), "tag {}", completion.request.tag);
    }
}

/// Write zeroes, both kinds, with and without FUA, over whole and partial pages.
pub fn zeroed_ranges_read_as_zeros_and_spare_their_neighbours(backend: &Backend) {
    for may_unmap in [false, true] {
        for fua in [false, true] {
            spares_neighbours(backend, Operation::WriteZeroes { may_unmap, fua }, true);
        }
    }
}

/// Discard leaves everything outside its range alone; inside it keeps what the capabilities promise.
pub fn discard_spares_its_neighbours(backend: &Backend) {
    let device = (backend.make)();
    let caps = device.capabilities();
    if !caps.discard {
        let mut bench = Bench::new(device);
        let block = bench.block;
        assert_eq!(bench.run(Operation::Discard, 0, block, &[]), Err(BlockError::Unsupported));
        return;
    }
    drop(device);
    spares_neighbours(backend, Operation::Discard, caps.discard_zeroes);
}

fn spares_neighbours(backend: &Backend, operation: Operation, zeroes: bool) {
    let mut bench = Bench::new((backend.make)());
    let block = bench.block;
    let total = (1 << 20) / block;
    let mut model = pattern(block, total, 11);
    bench.write(0, &model);
    // In blocks: inside a page, over a border, a whole page, many pages with ragged ends, up to the end of what was written.
    for (first, n) in [(1, 1), (7, 2), (16, 8), (33, 77), (120, 1), (total - 3, 3)] {
        assert_eq!(bench.run(operation, first * block, n * block, &[]), Ok(()), "{operation:?} of blocks {first}+{n}");
        let range = usize::try_from(first * block).unwrap_or(0)..usize::try_from((first + n) * block).unwrap_or(0);
        if zeroes {
            model[range.clone()].fill(0);
        }
        let mut back = bench.read(0, model.len());
        if !zeroes {
            model[range.clone()].fill(0);
            back[range].fill(0);
        }
        assert!(!backend.keeps_data || back == model, "{operation:?} of blocks {first}+{n}");
    }
    // More than one write of zeros takes, over data, and never-written space.
    assert_eq!(bench.run(operation, 0, MIN_SIZE, &[]), Ok(()));
    if zeroes && backend.keeps_data {
        assert!(bench.read(0, 1 << 20).iter().all(|&byte| byte == 0));
    }
    bench.write(block, &pattern(block, 3, 12));
    let back = bench.read(block, usize::try_from(block * 3).unwrap_or(0));
    assert!(!backend.keeps_data || back == pattern(block, 3, 12), "the range takes writes again");
}
