//! A busy queue allocates nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::panic)]

use shadowbell_block::{
    BlockDevice, BlockQueue, Completion, NullDevice, Operation, RamDevice, Request, Submitted,
    conformance::Guest,
    file::{Direct, Engine, FileDevice, FileOptions},
};

const DEPTH: u64 = 32;

/// Sends each request round and round, `rounds` times all of them.
fn churn(queue: &mut dyn BlockQueue, requests: &mut Vec<Request>, done: &mut Vec<Completion>, rounds: u64) {
    for _ in 0..rounds {
        for mut request in requests.drain(..) {
            match queue.submit(&mut request) {
                Submitted::Done(result) => done.push(Completion { request, result }),
                Submitted::Queued => {}
                Submitted::Full => panic!("full"),
            }
        }
        queue.kick();
        while queue.in_flight() > 0 {
            queue.poll(&mut |completion| done.push(completion));
        }
        for completion in done.drain(..) {
            assert_eq!(completion.result, Ok(()));
            requests.push(completion.request);
        }
    }
}

fn allocates_nothing(device: &dyn BlockDevice) {
    let guest = Guest::new();
    let mut queue = device.open_queue(usize::try_from(DEPTH).unwrap()).unwrap();
    let (mut requests, mut done) = (Vec::with_capacity(64), Vec::with_capacity(64));
    let request = |tag, operation, segments| Request { tag, operation, offset: tag * 4096, len: 4096, segments };
    // Fill the queue once with requests that are not aligned for direct I/O: each of its places gets its buffers.
    requests.extend((0..DEPTH).map(|i| request(i, Operation::Read, guest.segments(&[(i * 8192 + 4, 4096)]))));
    churn(&mut *queue, &mut requests, &mut done, 2);
    requests.clear();
    for i in 0..DEPTH {
        let operation = match i % 4 {
            0 | 1 => Operation::Read,
            2 => Operation::Write { fua: false },
            _ => Operation::WriteZeroes { may_unmap: i % 8 == 3, fua: false },
        };
        let at = i * 8192 + if i % 3 == 0 { 4 } else { 0 };
        let segments = if i % 4 == 3 { dma::Segments::default() } else { guest.segments(&[(at, 4096)]) };
        requests.push(request(i, operation, segments));
    }
    churn(&mut *queue, &mut requests, &mut done, 10);
    let counted = allocation_counter::measure(|| churn(&mut *queue, &mut requests, &mut done, 50));
    assert_eq!(counted.count_total, 0, "{}: {counted:?}", device.name());
}

#[test]
fn null_and_ram_allocate_nothing() {
    allocates_nothing(&NullDevice::new(1 << 30, 512, true).unwrap());
    allocates_nothing(&RamDevice::new(1 << 20, 512).unwrap());
}

#[test]
fn io_uring_allocates_nothing() {
    for direct in [Direct::Auto, Direct::Off] {
        let directory = tempfile::tempdir().unwrap();
        let options = FileOptions { create: Some(1 << 20), engine: Engine::Uring, direct, ..FileOptions::default() };
        let device = FileDevice::open(directory.path().join("disk"), options).unwrap();
        if let Err(error) = device.open_queue(1) {
            eprintln!("skipped: {error}");
            return;
        }
        allocates_nothing(&device);
    }
}
