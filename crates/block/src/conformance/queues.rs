//! Queues: depth, order, waking, cancelling, dropping, threads.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use dma::Segments;

use super::{
    Backend, Guest,
    bench::{Bench, LIMIT, collect, open, pattern, request, rings, run},
};
use crate::{BlockError, BlockQueue, Operation, Submitted};

/// Submits up to `n` reads; (queued, complete at once, refused).
fn burst(queue: &mut dyn BlockQueue, guest: &Guest, n: u64) -> (usize, usize, usize) {
    let (mut queued, mut complete, mut full) = (0, 0, 0);
    for i in 0..n {
        let mut request = request(i, Operation::Read, i * 4096, 4096, guest.segments(&[(i * 4096, 4096)]));
        let submitted = queue.submit(&mut request);
        if submitted != Submitted::Queued {
            assert_eq!((request.tag, request.segments.bytes()), (i, 4096), "what is not taken stays whole");
        }
        match submitted {
            Submitted::Queued => queued += 1,
            Submitted::Done(result) => {
                assert_eq!(result, Ok(()));
                complete += 1;
            }
            Submitted::Full => full += 1,
        }
    }
    (queued, complete, full)
}

/// A queue takes its depth, refuses more, and takes more after a poll.
pub fn a_full_queue_gives_the_request_back(backend: &Backend) {
    let device = (backend.make)();
    let guest = Guest::new();
    for depth in [1, 2, 5, 64] {
        let mut queue = open(&device, depth);
        for _ in 0..3 {
            let (queued, complete, full) = burst(&mut *queue, &guest, depth as u64 + 3);
            assert_eq!(queued + complete + full, depth + 3);
            assert!(full == 0 || queued == depth, "full at depth {depth} with {queued} in flight");
            assert!(queued <= depth);
            assert_eq!(queue.in_flight(), queued);
            for completion in collect(&mut *queue, queued) {
                assert_eq!(completion.result, Ok(()));
            }
        }
    }
}

/// `in_flight` is what `poll` still owes, whatever the kernel has done meanwhile.
pub fn in_flight_counts_what_is_owed(backend: &Backend) {
    let device = (backend.make)();
    let guest = Guest::new();
    let mut queue = open(&device, 32);
    assert_eq!(queue.in_flight(), 0);
    let (queued, ..) = burst(&mut *queue, &guest, 20);
    assert_eq!(queue.in_flight(), queued);
    queue.kick();
    assert_eq!(queue.in_flight(), queued, "a kick hands nothing back");
    let mut owed = queued;
    while owed > 0 {
        rings(&*queue, LIMIT);
        owed -= queue.poll(&mut |_| {});
        assert_eq!(queue.in_flight(), owed);
    }
    assert_eq!(queue.poll(&mut |_| panic!("nothing is owed")), 0);
}

/// After `cancel`, every request comes back, carried out or cancelled, and the queue works on.
pub fn cancel_hands_everything_back(backend: &Backend) {
    let device = (backend.make)();
    let guest = Guest::new();
    let mut queue = open(&device, 64);
    queue.cancel();
    for kicked in [false, true] {
        let (queued, ..) = burst(&mut *queue, &guest, 50);
        let mut flushes = 0;
        for i in 0..8 {
            let mut flush = request(1000 + i, Operation::Flush, 0, 0, Segments::default());
            flushes += usize::from(queue.submit(&mut flush) == Submitted::Queued);
        }
        if kicked {
            queue.kick();
        }
        queue.cancel();
        queue.cancel();
        for completion in collect(&mut *queue, queued + flushes) {
            assert!(matches!(completion.result, Ok(()) | Err(BlockError::Cancelled)), "{:?}", completion.result);
        }
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(run(&mut *queue, request(1, Operation::Read, 0, 4096, guest.segments(&[(0, 4096)]))), Ok(()));
    }
    assert!(guest.is_idle());
}

/// Dropping a queue waits until nothing holds or writes the memory of its requests.
pub fn dropping_a_queue_frees_its_memory(backend: &Backend) {
    let device = (backend.make)();
    for kicked in [false, true] {
        for _ in 0..20 {
            let guest = Guest::new();
            let mut queue = open(&device, 64);
            burst(&mut *queue, &guest, 64);
            if kicked {
                queue.kick();
            }
            drop(queue);
            assert!(guest.is_idle(), "a request holds guest memory after its queue is gone");
            guest.write(0, &[0x77; 64 * 4096]);
            assert!(guest.read(0, 64 * 4096).iter().all(|&byte| byte == 0x77));
        }
    }
    let guest = Guest::new();
    assert_eq!(run(&mut *open(&device, 1), request(1, Operation::Read, 0, 4096, guest.segments(&[(0, 4096)]))), Ok(()));
}

/// What one queue wrote, another reads, and a flush of any covers both.
pub fn queues_see_each_others_writes(backend: &Backend) {
    let mut one = Bench::new((backend.make)());
    let mut two = open(&one.device, 4);
    for i in 0..16u64 {
        let bytes = pattern(4096, 1, i);
        one.write(i * 4096, &bytes);
        assert_eq!(run(&mut *two, request(1, Operation::Flush, 0, 0, Segments::default())), Ok(()));
        let segments = one.guest.segments(&[(8192, 4096)]);
        assert_eq!(run(&mut *two, request(2, Operation::Read, i * 4096, 4096, segments)), Ok(()));
        assert!(!backend.keeps_data || one.guest.read(8192, 4096) == bytes);
    }
}

/// Several threads, each with a queue, on parts of one device, with zeroing among the writes.
pub fn threads_share_a_device(backend: &Backend) {
    let device = (backend.make)();
    let keeps_data = backend.keeps_data;
    thread::scope(|scope| {
        for part in 0..4u64 {
            let device = device.clone();
            scope.spawn(move || {
                let mut bench = Bench::new(device);
                let block = bench.block;
                // Interleaved: neighbours in a page belong to different threads when blocks are small.
                for round in 0..40u64 {
                    let offset = (round * 4 + part) * block;
                    let bytes = pattern(block, 1, round * 4 + part);
                    bench.write(offset, &bytes);
                    let back = bench.read(offset, bytes.len());
                    assert!(!keeps_data || back == bytes, "part {part}, round {round}");
                    if round % 3 == 0 {
                        let zeroes = Operation::WriteZeroes { may_unmap: round % 2 == 0, fua: false };
                        assert_eq!(bench.run(zeroes, offset, block, &[]), Ok(()));
                        let back = bench.read(offset, bytes.len());
                        assert!(!keeps_data || back.iter().all(|&byte| byte == 0), "part {part}, round {round}");
                    }
                }
            });
        }
    });
}

/// A queue opened here may be used there and come back; with requests in flight it may lose them, but neither itself nor the
/// memory.
pub fn a_queue_moves_between_threads(backend: &Backend) {
    let device = (backend.make)();
    let guest = Guest::new();
    let mut queue = open(&device, 64);
    for _ in 0..3 {
        queue = thread::scope(|scope| {
            let there = scope.spawn(|| {
                let mut queue = queue;
                let (queued, ..) = burst(&mut *queue, &guest, 32);
                assert_eq!(collect(&mut *queue, queued).len(), queued);
                queue
            });
            there.join().unwrap_or_else(|_| panic!("the other thread failed"))
        });
        let (queued, ..) = burst(&mut *queue, &guest, 32);
        assert_eq!(collect(&mut *queue, queued).len(), queued);
    }
    drop(queue);
    // Taken away with requests in flight, from a thread that ended or one that lives on.
    for (ended, dropped) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut queue = open(&device, 64);
        thread::scope(|scope| {
            let (give, take) = mpsc::channel();
            let (end, wait) = mpsc::channel::<()>();
            let guest = &guest;
            let there = scope.spawn(move || {
                let (queued, ..) = burst(&mut *queue, guest, 64);
                queue.kick();
                assert!(give.send((queue, queued)).is_ok());
                let _ = wait.recv();
            });
            let Ok((mut queue, queued)) = take.recv() else { panic!("the other thread failed") };
            if ended {
                drop(end);
                assert!(there.join().is_ok());
            }
            if !dropped {
                for completion in collect(&mut *queue, queued) {
                    assert!(
                        matches!(completion.result, Ok(()) | Err(BlockError::Cancelled)),
                        "{:?}",
                        completion.result
                    );
                }
                assert_eq!(
                    run(&mut *queue, request(1, Operation::Read, 0, 4096, guest.segments(&[(0, 4096)]))),
                    Ok(())
                );
            }
            drop(queue);
            assert!(guest.is_idle(), "ended: {ended}, dropped: {dropped}");
        });
    }
}

/// `wait_fd` is quiet on an idle queue, becomes readable while nobody polls, stays so, and is quiet again when all is said.
pub fn wait_fd_wakes_a_sleeper(backend: &Backend) {
    let device = (backend.make)();
    let guest = Guest::new();
    let mut queue = open(&device, 64);
    if queue.wait_fd().is_none() {
        let (queued, ..) = burst(&mut *queue, &guest, 8);
        assert_eq!(queued, 0, "without wait_fd everything completes at once");
        return;
    }
    for round in 0..50u64 {
        // The kernel may ring once more, a moment after the entry was collected.
        silence(&mut *queue);
        let operation = if round % 5 == 4 { Operation::Flush } else { Operation::Read };
        let (len, pieces) = if operation == Operation::Flush { (0, vec![]) } else { (4096, vec![(0, 4096)]) };
        let mut request = request(round, operation, 0, len, guest.segments(&pieces));
        match queue.submit(&mut request) {
            Submitted::Queued => {}
            // What needs no waiting; flushes do.
            Submitted::Done(result) if operation == Operation::Read => {
                assert_eq!(result, Ok(()));
                continue;
            }
            other => panic!("{operation:?}: {other:?}"),
        }
        queue.kick();
        assert!(rings(&*queue, LIMIT), "wait_fd must become readable while nobody polls (round {round})");
        assert!(rings(&*queue, Duration::ZERO), "and stay so");
        assert_eq!(collect(&mut *queue, 1).len(), 1);
    }
    silence(&mut *queue);
}

/// Polls an idle queue until its descriptor is quiet.
fn silence(queue: &mut dyn BlockQueue) {
    let deadline = Instant::now() + LIMIT;
    while rings(queue, Duration::ZERO) {
        assert_eq!(queue.poll(&mut |_| panic!("nothing is owed")), 0);
        assert!(Instant::now() < deadline, "polls of an idle queue must silence wait_fd");
    }
}

/// `poll` alone starts requests too.
pub fn poll_starts_what_was_not_kicked(backend: &Backend) {
    let device = (backend.make)();
    let guest = Guest::new();
    let mut queue = open(&device, 8);
    let (queued, ..) = burst(&mut *queue, &guest, 8);
    let deadline = Instant::now() + LIMIT;
    let mut owed = queued;
    while owed > 0 {
        owed -= queue.poll(&mut |completion| assert_eq!(completion.result, Ok(())));
        assert!(Instant::now() < deadline, "{owed} of {queued} requests");
        thread::yield_now();
    }
}
