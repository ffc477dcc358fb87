//! How many register writes the protocol costs, exactly: a driver that keeps `n` commands in flight, against a device that
//! polls, and against one that sleeps.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Arc, atomic::AtomicU32};

use shadowbell_doorbell::{Armed, CompletionProducer, Depth, DriverDoorbell, SubmissionConsumer};

type Word = Arc<AtomicU32>;

/// A queue pair with both halves, as they are right after Doorbell Buffer Config.
struct Pair {
    depth: Depth,
    sq: DriverDoorbell<Word>,
    cq: DriverDoorbell<Word>,
    consumer: SubmissionConsumer<Word>,
    producer: CompletionProducer<Word>,
    sq_rings: u64,
    cq_rings: u64,
}

impl Pair {
    fn new(entries: u32) -> Self {
        let depth = Depth::new(entries).unwrap();
        let mut pair = Self {
            depth,
            sq: DriverDoorbell::new(depth),
            cq: DriverDoorbell::new(depth),
            consumer: SubmissionConsumer::new(depth),
            producer: CompletionProducer::new(depth),
            sq_rings: 0,
            cq_rings: 0,
        };
        let (tail, head) = ((Word::default(), Word::default()), (Word::default(), Word::default()));
        pair.sq.attach(tail.0.clone(), tail.1.clone());
        pair.cq.attach(head.0.clone(), head.1.clone());
        pair.consumer.doorbell().attach(tail.0, tail.1);
        pair.producer.doorbell().attach(head.0, head.1);
        pair.producer.suppress();
        pair
    }

    /// The driver submits `n`, one doorbell each or all at once.
    fn submit(&mut self, n: u16, batched: bool) {
        let moves = if batched { 1 } else { n };
        for _ in 0..moves {
            let to = self.depth.advance(self.sq.position(), n / moves);
            if self.sq.advance(to) {
                self.sq_rings += 1;
                self.consumer.ring(to.into()).unwrap();
            }
        }
    }

    /// The device takes all there is and completes it; returns how many.
    fn drain(&mut self) -> u16 {
        if self.consumer.look().unwrap() == 0 {
            return 0;
        }
        self.consumer.suppress();
        let mut n = 0;
        while self.consumer.waiting() > 0 {
            let Some(permit) = self.producer.reserve().unwrap() else { break };
            self.consumer.take().unwrap();
            let _ = self.producer.post(permit);
            n += 1;
        }
        n
    }

    /// The driver consumes `n` completions, one doorbell for all.
    fn reap(&mut self, n: u16) {
        let to = self.depth.advance(self.cq.position(), n);
        if self.cq.advance(to) {
            self.cq_rings += 1;
            self.producer.ring(to.into()).unwrap();
        }
    }
}

const DEPTHS: [u32; 6] = [2, 3, 8, 32, 128, 1024];

/// Queue depths (commands in flight) for a ring.
fn in_flight(entries: u32) -> impl Iterator<Item = u16> {
    let capacity = Depth::new(entries).unwrap().capacity();
    [1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 127, 128, 1023].into_iter().filter(move |n| *n <= capacity)
}

#[test]
fn a_device_that_always_polls_is_never_rung() {
    for entries in DEPTHS {
        for n in in_flight(entries) {
            for batched in [false, true] {
                let mut pair = Pair::new(entries);
                pair.consumer.suppress();
                for turn in 0..300 {
                    pair.submit(n, batched);
                    assert_eq!(pair.drain(), n);
                    pair.reap(n);
                    let rings = (pair.sq_rings, pair.cq_rings);
                    assert_eq!(rings, (0, 0), "{entries} entries, {n} in flight, batched: {batched}, turn {turn}");
                }
            }
        }
    }
}

#[test]
fn a_device_that_sleeps_after_each_drain_is_rung_once_for_each_sleep_and_never_for_the_completion_queue() {
    for entries in DEPTHS {
        for n in in_flight(entries) {
            for batched in [false, true] {
                let mut pair = Pair::new(entries);
                for sleeps in 1..=300 {
                    assert_eq!(pair.consumer.arm(), Armed::Idle);
                    pair.submit(n, batched);
                    assert_eq!(pair.drain(), n);
                    pair.reap(n);
                    let rings = (pair.sq_rings, pair.cq_rings);
                    assert_eq!(rings, (sleeps, 0), "{entries} entries, {n} in flight, batched: {batched}");
                }
            }
        }
    }
}

#[test]
fn a_completion_queue_that_something_waits_for_is_rung_for_once_for_each_time_that_the_device_parks() {
    // The SQ holds more than the CQ has room for: 8 commands wait for a CQ of 4.
    let mut pair = Pair::new(9);
    let small = Depth::new(4).unwrap();
    let head = (Word::default(), Word::default());
    pair.producer = CompletionProducer::new(small);
    pair.cq = DriverDoorbell::new(small);
    pair.cq.attach(head.0.clone(), head.1.clone());
    pair.producer.doorbell().attach(head.0, head.1);
    pair.producer.suppress();
    let (mut parked, mut done) = (0, 0);
    for turn in 0..200 {
        pair.submit(8, true);
        let mut left = pair.consumer.look().unwrap();
        assert_eq!(left, 8);
        while left > 0 {
            let mut n = 0;
            while pair.consumer.waiting() > 0
                && let Some(permit) = pair.producer.reserve().unwrap()
            {
                pair.consumer.take().unwrap();
                let _ = pair.producer.post(permit);
                n += 1;
            }
            left -= n;
            if left > 0 {
                assert_eq!(pair.producer.arm(), Armed::Idle);
                parked += 1;
            }
            // The host consumes one by one, which the first ring of each stands for.
            for _ in 0..n {
                let to = small.next(pair.cq.position());
                if pair.cq.advance(to) {
                    pair.cq_rings += 1;
                    pair.producer.ring(to.into()).unwrap();
                }
                done += 1;
            }
        }
        assert_eq!(pair.cq_rings, parked, "turn {turn}");
    }
    assert_eq!(done, 1600);
}
