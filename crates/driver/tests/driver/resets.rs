//! Resets and other ends, under load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use shadowbell_driver::{
    Device, DoorbellPolicy, Doorbells, Error, InProcess, Namespace, QueueOptions, QueuePair, SubmitError,
    TransportError,
};

use crate::rig::{
    PATIENCE, Served, bytes, cooperative, drain, error, nvme, open, options, pattern, ram, read, ways, write,
};

/// A pair on its way to the device's owner, and how it comes back.
type Hospital = Sender<(QueuePair, Sender<QueuePair>)>;

/// Blocks that one worker has for itself.
const BLOCKS: u64 = 64;

/// Writes and reads back blocks of its own until told to stop; hands the pair in whenever the controller was reset.
fn work(mut queue: QueuePair, disk: Namespace, hospital: &Hospital, stop: &AtomicBool, done: &AtomicU64) -> QueuePair {
    let base = u64::from(queue.qid() - 1) * BLOCKS;
    let buffers: Vec<_> = (0..8).map(|_| queue.allocate(4096).unwrap()).collect();
    let mut turn = 0u64;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        match round(&mut queue, &disk, base, turn, &buffers) {
            Ok(()) => {
                done.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::Reset) => {
                let (sender, receiver) = channel();
                hospital.send((queue, sender)).unwrap();
                queue = receiver.recv_timeout(PATIENCE).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    queue
}

/// Eight writes at a time, then eight reads, and a look at every byte.
fn round(
    queue: &mut QueuePair,
    disk: &Namespace,
    base: u64,
    turn: u64,
    buffers: &[shadowbell_driver::Buffer],
) -> Result<(), Error> {
    let into_error = |error| match error {
        SubmitError::Queue(error) => error,
        other => panic!("{other}"),
    };
    let lba = |i: usize| base + (turn * 8 + i as u64) % BLOCKS;
    for (i, buffer) in buffers.iter().enumerate() {
        buffer.write(0, &pattern(base + turn * 8 + i as u64, 4096)).unwrap();
        queue.write(disk, lba(i), buffer, i as u64).map_err(into_error)?;
    }
    queue.ring()?;
    drain(queue)?;
    for (i, buffer) in buffers.iter().enumerate() {
        buffer.zero();
        queue.read(disk, lba(i), buffer, i as u64).map_err(into_error)?;
    }
    queue.ring()?;
    drain(queue)?;
    for (i, buffer) in buffers.iter().enumerate() {
        assert!(bytes(buffer, 0, 4096) == pattern(base + turn * 8 + i as u64, 4096), "turn {turn}, block {}", lba(i));
    }
    Ok(())
}

fn treat(device: &mut Device, patients: &Receiver<(QueuePair, Sender<QueuePair>)>, wait: Duration) -> bool {
    let Ok((mut queue, back)) = patients.recv_timeout(wait) else { return false };
    let in_flight = queue.in_flight();
    let lost = device.recover(&mut queue).unwrap();
    assert_eq!(lost.len(), usize::from(in_flight));
    assert_eq!(queue.in_flight(), 0);
    back.send(queue).unwrap();
    true
}

#[test]
fn fifty_resets_under_load_lose_no_block_and_shadow_doorbells_come_back() {
    for interrupt in [false, true] {
        for (way, transport, _served) in ways(|| nvme(vec![ram(4 << 20, 4096)])) {
            if transport.is_cooperative() {
                continue;
            }
            let mut device = Device::open(transport, options(DoorbellPolicy::Shadow)).unwrap();
            let disk = device.namespaces()[0];
            let pairs: Vec<_> = (0..2)
                .map(|_| {
                    let queue_options = QueueOptions::default().with_entries(12).with_interrupt(interrupt);
                    device.create_queue_pair(queue_options).unwrap()
                })
                .collect();
            let (hospital, patients) = channel();
            let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let workers: Vec<_> = pairs
                    .into_iter()
                    .map(|queue| {
                        let (hospital, stop, done) = (hospital.clone(), &stop, &done);
                        scope.spawn(move || work(queue, disk, &hospital, stop, done))
                    })
                    .collect();
                for reset in 0..25 {
                    // Some work first.
                    let before = done.load(Ordering::Relaxed);
                    while done.load(Ordering::Relaxed) < before + 3 {
                        std::thread::yield_now();
                    }
                    if reset % 5 == 4 {
                        device.reset_function().unwrap()
                    } else {
                        device.reset().unwrap()
                    }
                    assert_eq!(device.doorbells(), Doorbells::Shadow, "{way}");
                    for _ in 0..2 {
                        assert!(treat(&mut device, &patients, PATIENCE), "{way}: reset {reset}");
                    }
                }
                stop.store(true, Ordering::Relaxed);
                for worker in workers {
                    device.delete_queue_pair(worker.join().unwrap()).unwrap();
                }
            });
            device.shutdown().unwrap();
        }
    }
}

#[test]
fn what_was_in_flight_at_a_reset_is_told_in_order_and_its_memory_is_kept_until_then() {
    let transport = cooperative(nvme(vec![ram(1 << 20, 4096)]));
    let mut device = open(&transport, options(DoorbellPolicy::Shadow));
    let disk = device.namespaces()[0];
    let mut queue = device.create_queue_pair(QueueOptions::default().with_entries(16)).unwrap();
    let mut dropped = device.create_queue_pair(QueueOptions::default().with_entries(16)).unwrap();
    for tag in [5, 3, 9, 1] {
        let buffer = device.allocate(4096).unwrap();
        queue.read(&disk, 0, &buffer, tag).unwrap();
        dropped.read(&disk, 0, &buffer, tag).unwrap();
    }
    assert_eq!(error(device.recover(&mut queue)), Error::Argument("the queue pair is not from before a reset"));
    device.reset().unwrap();
    drop(dropped);
    assert_eq!(queue.poll(&mut |_| {}), Err(Error::Reset));
    assert_eq!(queue.flush(&disk, 0), Err(SubmitError::Queue(Error::Reset)));
    assert_eq!(device.recover(&mut queue), Ok(vec![5, 3, 9, 1]));
    let buffer = device.allocate(4096).unwrap();
    assert!(read(&mut queue, &disk, 0, &buffer).is_success());
    // The id of the one that was dropped is free again.
    assert_eq!(device.create_queue_pair(QueueOptions::default()).unwrap().qid(), 2);
}

#[test]
fn pairs_of_before_two_resets_are_recovered_and_deleted_alike() {
    let transport = cooperative(nvme(vec![ram(1 << 20, 4096)]));
    let mut device = open(&transport, options(DoorbellPolicy::Shadow));
    let disk = device.namespaces()[0];
    let mut queue = device.create_queue_pair(QueueOptions::default()).unwrap();
    let old = device.create_queue_pair(QueueOptions::default()).unwrap();
    device.reset().unwrap();
    device.reset_function().unwrap();
    device.delete_queue_pair(old).unwrap();
    device.recover(&mut queue).unwrap();
    let buffer = device.allocate(4096).unwrap();
    assert!(write(&mut queue, &disk, 0, &buffer).is_success());
    transport.with(|function| {
        let report = function.report();
        assert_eq!(report.device.doorbell_buffer_config, 3);
        assert!(report.device.shadow_doorbells);
        assert_eq!(report.totals.counters.invalid_doorbells, 0);
    });
    let stranger = open(&cooperative(nvme(Vec::new())), options(DoorbellPolicy::Shadow));
    drop(device);
    assert_eq!(queue.poll(&mut |_| {}), Err(Error::Reset));
    let mut stranger = stranger;
    assert!(matches!(stranger.recover(&mut queue), Err(Error::Argument(_))));
    assert!(matches!(stranger.delete_queue_pair(queue), Err(Error::Argument(_))));
}

#[test]
fn a_server_that_goes_away_under_load_is_an_error_and_the_next_one_is_as_good() {
    let disk = ram(4 << 20, 4096);
    for interrupt in [true, false] {
        let mut served = Served::start(nvme(vec![disk.clone()]));
        let mut device = Device::open(served.connect(), options(DoorbellPolicy::Shadow)).unwrap();
        let namespace = device.namespaces()[0];
        let mut queue = device.create_queue_pair(QueueOptions::default().with_interrupt(interrupt)).unwrap();
        let buffer = device.allocate(4096).unwrap();
        buffer.write(0, &pattern(1, 4096)).unwrap();
        assert!(write(&mut queue, &namespace, 9, &buffer).is_success());
        served.stop();
        let mut result = Ok(());
        while result.is_ok() {
            result = match queue.read(&namespace, 9, &buffer, 1) {
                Ok(_) | Err(SubmitError::Full) => queue.wait(PATIENCE, &mut |_| {}).map(drop),
                Err(SubmitError::Queue(error)) => Err(error),
                Err(other) => panic!("{other}"),
            };
        }
        assert!(matches!(result, Err(Error::Transport(_))), "{result:?}");
        assert!(matches!(device.reset(), Err(Error::Transport(TransportError::Gone))));
        drop((device, queue));

        let served = Served::start(nvme(vec![disk.clone()]));
        let mut device = Device::open(served.connect(), options(DoorbellPolicy::Shadow)).unwrap();
        let mut queue = device.create_queue_pair(QueueOptions::default().with_interrupt(interrupt)).unwrap();
        let buffer = device.allocate(4096).unwrap();
        assert!(read(&mut queue, &namespace, 9, &buffer).is_success());
        assert!(bytes(&buffer, 0, 4096) == pattern(1, 4096));
    }
}

#[test]
fn a_driver_that_goes_away_at_any_moment_leaves_the_device_to_the_next() {
    let served = Served::start(nvme(vec![ram(4 << 20, 4096)]));
    for life in 0..40u64 {
        // The connection ends without a word, as when the process is killed.
        let (transport, kill) = served.connect_to_kill();
        let mut device = Device::open(transport, options(DoorbellPolicy::Shadow)).unwrap();
        let disk = device.namespaces()[0];
        let mut queue = device.create_queue_pair(QueueOptions::default()).unwrap();
        for tag in 0..life {
            let buffer = device.allocate(4096).unwrap();
            buffer.write(0, &pattern(tag, 4096)).unwrap();
            queue.write(&disk, tag, &buffer, tag).unwrap();
        }
        queue.ring().unwrap();
        if life % 3 == 0 {
            drain(&mut queue).unwrap();
        }
        kill.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(device.reset().is_err());
    }
    let mut device = Device::open(served.connect(), options(DoorbellPolicy::Shadow)).unwrap();
    let disk = device.namespaces()[0];
    let mut queue = device.create_queue_pair(QueueOptions::default()).unwrap();
    let buffer = device.allocate(4096).unwrap();
    for lba in 0..38 {
        assert!(read(&mut queue, &disk, lba, &buffer).is_success());
        assert!(bytes(&buffer, 0, 4096) == pattern(lba, 4096), "block {lba}");
    }
}

#[test]
fn a_device_outlives_its_drivers_in_one_process() {
    let transport = Arc::new(InProcess::spawn(nvme(vec![ram(1 << 20, 4096)])).unwrap());
    for life in 1..=20 {
        let mut device = open(&transport, options(DoorbellPolicy::Shadow));
        let disk = device.namespaces()[0];
        let mut queue = device.create_queue_pair(QueueOptions::default()).unwrap();
        let buffer = device.allocate(4096).unwrap();
        assert!(write(&mut queue, &disk, 0, &buffer).is_success());
        if life % 2 == 0 {
            device.shutdown().unwrap();
        }
    }
    assert_eq!(transport.with(|function| function.report().device.doorbell_buffer_config), Ok(20));
}
