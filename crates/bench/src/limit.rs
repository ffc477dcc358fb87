//! The bare protocol between two processors: what a driver and a device can do at most.
//!
//! One thread stores 64-byte SQEs and the tail, fences, and loads EventIdx; the other sees the tail, copies the SQEs, and stores
//! CQEs with the phase tag; the first one sees these and moves the head. Nothing is behind that: no PRPs, no command table,
//! no disk, no statistics, no clock per command. A real driver and device are measured against it on the same processors in
//! the same run, so that what the machine gives just then hits both.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    time::{Duration, Instant},
};

use crate::bench::MIN_ENTRIES;

/// Completions between two looks at the clock.
const STRIDE: u64 = 256;
/// Polls in vain between two looks at the clock.
const PATIENCE: u32 = 4096;
/// Bit of the phase tag in the second word of a CQE.
const PHASE: u64 = 1 << 48;

/// Words that share a cache line with nothing else; two lines, since processors fetch in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Sqe([AtomicU64; 8]);

#[derive(Debug, Default)]
#[repr(align(16))]
struct Cqe([AtomicU64; 2]);

/// What the two share: the rings, and SQ tail and CQ head with their EventIdx as they lie in the doorbell buffers.
#[derive(Debug)]
struct Shared {
    sq: Vec<Sqe>,
    cq: Vec<Cqe>,
    slots: Line<[AtomicU32; 2]>,
    events: Line<[AtomicU32; 2]>,
    stop: Line<AtomicBool>,
    mask: u32,
}

impl Shared {
    fn new(entries: u32) -> Self {
        let entries = entries.max(2).next_power_of_two();
        let mut shared = Self {
            sq: Vec::new(),
            cq: Vec::new(),
            slots: Line::default(),
            events: Line::default(),
            stop: Line::default(),
            mask: entries - 1,
        };
        shared.sq.resize_with(entries as usize, Sqe::default);
        shared.cq.resize_with(entries as usize, Cqe::default);
        // One behind: nobody rings.
        shared.events.0.iter().for_each(|event| event.store(shared.mask, Ordering::Relaxed));
        shared
    }

    /// The device's half, until it is told to stop.
    fn device(&self) {
        let Self { sq, cq, slots, events, stop, mask } = self;
        let (mut head, mut event, mut phase) = (0u32, *mask, PHASE);
        while !stop.0.load(Ordering::Relaxed) {
            let tail = slots.0[0].load(Ordering::Acquire) & mask;
            if tail == head {
                continue;
            }
            if tail.wrapping_sub(event) & mask > mask / 2 {
                event = tail.wrapping_sub(1) & mask;
                events.0[0].store(event, Ordering::Release);
            }
            while head != tail {
                let sqe: [u64; 8] = std::array::from_fn(|i| sq[head as usize].0[i].load(Ordering::Relaxed));
                let [first, second] = &cq[head as usize].0;
                head = (head + 1) & mask;
                first.store(0, Ordering::Relaxed);
                second.store(u64::from(head) | black_box(sqe)[0] >> 16 << 32 | phase, Ordering::Release);
                if head == 0 {
                    phase ^= PHASE;
                }
            }
        }
    }

    /// Stores the head, if it moved, and the tail, and says whether a ring would be due; none ever is.
    #[inline]
    fn tell(&self, head: Option<u32>, old: u32, tail: u32) -> bool {
        if let Some(head) = head {
            self.slots.0[1].store(head, Ordering::Release);
        }
        self.slots.0[0].store(tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = self.events.0[0].load(Ordering::Relaxed);
        let steps = tail.wrapping_sub(old) & self.mask;
        tail.wrapping_sub(event).wrapping_sub(1) & self.mask < steps
    }

    /// The driver's half: commands completed and how long that took.
    fn driver(&self, depth: u32, batch: u32, runtime: Duration, halt: &AtomicBool) -> (u64, Duration) {
        let Self { sq, cq, mask, .. } = self;
        let (mut tail, mut told, mut head, mut told_head, mut phase) = (0u32, 0u32, 0u32, 0u32, PHASE);
        let (mut completed, mut next_look, mut idle) = (0u64, STRIDE, 0u32);
        let mut to_submit = depth;
        let start = Instant::now();
        loop {
            for n in 1..=to_submit {
                let words = [u64::from(tail) << 16 | 2, 1, 0, 0, 0, 0, u64::from(n), 0];
                for (word, value) in sq[tail as usize].0.iter().zip(words) {
                    word.store(value, Ordering::Relaxed);
                }
                tail = (tail + 1) & mask;
                if n % batch == 0 || n == to_submit {
                    black_box(self.tell((told_head != head).then_some(head), told, tail));
                    (told, told_head) = (tail, head);
                }
            }
            let before = head;
            while head.wrapping_sub(before) & mask < depth {
                let [first, second] = &cq[head as usize].0;
                let word = second.load(Ordering::Acquire);
                if word & PHASE != phase {
                    break;
                }
                black_box((word, first.load(Ordering::Relaxed)));
                head = (head + 1) & mask;
                if head == 0 {
                    phase ^= PHASE;
                }
            }
            to_submit = head.wrapping_sub(before) & mask;
            if to_submit == 0 {
                idle += 1;
                if idle < PATIENCE {
                    continue;
                }
            } else {
                completed += u64::from(to_submit);
            }
            idle = 0;
            if completed >= next_look || to_submit == 0 {
                next_look = completed + STRIDE;
                if start.elapsed() >= runtime || halt.load(Ordering::Relaxed) {
                    return (completed, start.elapsed());
                }
            }
        }
    }
}

/// Commands a second of the bare protocol with `depth` in flight, the tail told after each `batch` of them. Two threads run for
/// `runtime`, or until `halt`.
///
/// # Errors
/// What the system says when it gives no thread.
pub fn bare(depth: u16, batch: u16, runtime: Duration, halt: &AtomicBool) -> std::io::Result<f64> {
    let depth = u32::from(depth.max(1));
    let shared = Shared::new((2 * depth).max(MIN_ENTRIES));
    std::thread::scope(|scope| {
        std::thread::Builder::new().name("bare-device".to_owned()).spawn_scoped(scope, || shared.device())?;
        let (completed, time) = shared.driver(depth, u32::from(batch.max(1)), runtime, halt);
        shared.stop.0.store(true, Ordering::Relaxed);
        #[allow(clippy::cast_precision_loss)] // A rate.
        Ok(completed as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_round_and_the_flag_ends_it() {
        let halt = AtomicBool::new(false);
        for (depth, batch) in [(1, 1), (3, 1), (128, 32), (300, 1)] {
            let rate = bare(depth, batch, Duration::from_millis(20), &halt).unwrap();
            assert!(rate > 0.0, "depth {depth}");
        }
        halt.store(true, Ordering::Relaxed);
        let start = Instant::now();
        bare(1, 1, Duration::from_secs(3600), &halt).unwrap();
        assert!(start.elapsed() < Duration::from_secs(600));
    }

    #[test]
    fn a_ring_is_due_only_where_event_idx_is_passed() {
        let shared = Shared::new(8);
        assert!(!shared.tell(None, 0, 7), "one behind: not before the ring is full");
        shared.events.0[0].store(7, Ordering::Relaxed);
        assert!(shared.tell(Some(3), 7, 0), "armed at the old position");
        assert_eq!(shared.slots.0[0].load(Ordering::Relaxed), 0);
        assert_eq!(shared.slots.0[1].load(Ordering::Relaxed), 3);
    }
}
