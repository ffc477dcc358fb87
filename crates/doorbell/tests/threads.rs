//! Both halves on two real CPUs and in real shared memory, with a device that sleeps whenever it may.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, Instant},
};

use shadowbell_doorbell::{Armed, CompletionProducer, Depth, DriverDoorbell, SubmissionConsumer};

/// A doorbell register behind an eventfd: it counts, and it loses the values.
#[derive(Default)]
struct Kick(Mutex<u64>, Condvar);

impl Kick {
    fn ring(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }

    /// Waits for a ring, and says whether there was one in time.
    fn wait(&self) -> bool {
        let guard = self.0.lock().unwrap();
        let (mut rings, timeout) =
            self.1.wait_timeout_while(guard, Duration::from_secs(20), |rings| *rings == 0).unwrap();
        *rings = 0;
        !timeout.timed_out()
    }
}

/// `total` commands through a pair of rings, `burst` in flight at most. The device never polls: it sleeps as soon as it has
/// nothing to do. The host polls the phase.
fn run(sq_entries: u32, cq_entries: u32, burst: u16, total: u32) {
    let (sq_depth, cq_depth) = (Depth::new(sq_entries).unwrap(), Depth::new(cq_entries).unwrap());
    let (ram, _fd) = dma::Mapping::new_shared("doorbells", 4096).unwrap();
    let cell = |at| ram.window().cell32(at).unwrap();
    let kick = Arc::new(Kick::default());
    // Entry n of a ring holds n's revolution, in place of a phase, and the command's number.
    let ring = |entries: u32| -> Arc<Vec<AtomicU32>> { Arc::new((0..entries).map(|_| AtomicU32::new(0)).collect()) };
    let (sqes, cqes) = (ring(sq_entries), ring(cq_entries));
    let freed = Arc::new(AtomicU32::new(0));

    let mut tail = DriverDoorbell::new(sq_depth);
    tail.attach(cell(0), cell(64));
    let mut head = DriverDoorbell::new(cq_depth);
    head.attach(cell(128), cell(192));
    let mut sq = SubmissionConsumer::new(sq_depth);
    sq.doorbell().attach(cell(0), cell(64));
    let mut cq = CompletionProducer::new(cq_depth);
    cq.doorbell().attach(cell(128), cell(192));
    cq.suppress();

    let device = {
        let (kick, sqes, cqes, freed) = (kick.clone(), sqes.clone(), cqes.clone(), freed.clone());
        std::thread::spawn(move || {
            let (mut done, mut sleeps) = (0, 0u32);
            while done < total {
                if sq.look().unwrap() > 0 {
                    sq.suppress();
                }
                while sq.waiting() > 0
                    && let Some(permit) = cq.reserve().unwrap()
                {
                    let at = sq.take().unwrap();
                    done += 1;
                    assert_eq!(sqes[usize::from(at)].load(Acquire), done, "stale or doubled");
                    freed.store(done, Release);
                    let posted = cq.post(permit);
                    cqes[usize::from(posted.index)].store(done, Release);
                }
                if done == total {
                    break;
                }
                let armed = if sq.waiting() == 0 { sq.arm() } else { cq.arm() };
                match armed {
                    Armed::Idle => {
                        sleeps += 1;
                        assert!(kick.wait(), "lost wake-up after {done} commands and {sleeps} sleeps");
                    }
                    Armed::MoreWork => {}
                    Armed::Invalid(invalid) => panic!("{invalid:?}"),
                    Armed::ByClock => panic!("nothing is mapped here"),
                }
            }
            sleeps
        })
    };

    let (mut submitted, mut reaped, started) = (0u32, 0u32, Instant::now());
    while reaped < total {
        let in_ring = submitted - freed.load(Acquire);
        if submitted < total && submitted - reaped < burst.into() && in_ring < sq_depth.capacity().into() {
            let at = tail.position();
            submitted += 1;
            sqes[usize::from(at)].store(submitted, Release);
            if tail.advance(sq_depth.next(at)) {
                kick.ring();
            }
        }
        let at = head.position();
        if cqes[usize::from(at)].load(Acquire) == reaped + 1 {
            reaped += 1;
            if head.advance(cq_depth.next(at)) {
                kick.ring();
            }
        } else if submitted == total || submitted - reaped >= burst.into() {
            std::thread::yield_now();
        }
        assert!(started.elapsed() < Duration::from_secs(60), "stuck: {submitted} submitted, {reaped} done");
    }
    device.join().unwrap();
}

#[test]
fn a_device_that_sleeps_at_every_chance_misses_nothing() {
    for (sq, cq, burst) in [(2, 2, 1), (8, 8, 4), (64, 64, 32)] {
        run(sq, cq, burst, 20_000);
    }
}

#[test]
fn a_device_that_parks_on_a_tiny_completion_queue_misses_nothing() {
    for (sq, cq, burst) in [(16, 2, 8), (16, 3, 8), (64, 4, 32)] {
        run(sq, cq, burst, 20_000);
    }
}
