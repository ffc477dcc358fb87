//! What each step of the protocol costs on one processor. `cargo bench -p shadowbell-doorbell`.

#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, atomic::AtomicU32};

use divan::Bencher;
use shadowbell_doorbell::{Armed, CompletionProducer, Depth, DriverDoorbell, SubmissionConsumer};

type Word = Arc<AtomicU32>;

fn submission() -> (SubmissionConsumer<Word>, DriverDoorbell<Word>) {
    let depth = Depth::new(1024).unwrap();
    let (mut device, mut driver) = (SubmissionConsumer::new(depth), DriverDoorbell::new(depth));
    let (slot, event) = (Word::default(), Word::default());
    driver.attach(slot.clone(), event.clone());
    device.doorbell().attach(slot, event);
    (device, driver)
}

/// The driver moves the tail: store, full fence, EventIdx.
#[divan::bench(sample_size = 1000)]
fn driver_moves_the_tail(bencher: Bencher<'_, '_>) {
    let (mut device, mut driver) = submission();
    device.suppress();
    let depth = device.depth();
    bencher.bench_local(|| driver.advance(depth.next(driver.position())));
}

/// The device looks at a tail that has not moved.
#[divan::bench(sample_size = 1000)]
fn device_looks_in_vain(bencher: Bencher<'_, '_>) {
    let (mut device, _driver) = submission();
    bencher.bench_local(|| device.look().unwrap());
}

/// The device sees one entry, spares the driver its next ring, and takes the entry.
#[divan::bench(sample_size = 1000)]
fn device_takes_an_entry(bencher: Bencher<'_, '_>) {
    let (mut device, mut driver) = submission();
    let depth = device.depth();
    bencher.bench_local(|| {
        let _ = driver.advance(depth.next(driver.position()));
        device.look().unwrap();
        device.suppress();
        device.take()
    });
}

/// The device arms, finds nothing, and would sleep; then it is woken.
#[divan::bench(sample_size = 1000)]
fn device_arms(bencher: Bencher<'_, '_>) {
    let (mut device, _driver) = submission();
    bencher.bench_local(|| {
        device.suppress();
        assert_eq!(device.arm(), Armed::Idle);
    });
}

/// A permit, an entry and, once a round, a look at the head.
#[divan::bench(sample_size = 1000)]
fn device_posts_a_completion(bencher: Bencher<'_, '_>) {
    let depth = Depth::new(1024).unwrap();
    let (mut cq, mut driver) = (CompletionProducer::new(depth), DriverDoorbell::new(depth));
    let (slot, event) = (Word::default(), Word::default());
    driver.attach(slot.clone(), event.clone());
    cq.doorbell().attach(slot, event);
    bencher.bench_local(|| {
        let permit = cq.reserve().unwrap().unwrap();
        let posted = cq.post(permit);
        if posted.index % 512 == 0 {
            let _ = driver.advance(cq.tail());
        }
        posted
    });
}

fn main() {
    divan::main();
}
