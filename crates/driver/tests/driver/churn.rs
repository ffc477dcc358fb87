//! Queue pairs come and go.

use shadowbell_driver::{Device, DoorbellPolicy, Doorbells, QueueOptions, Transport};

use crate::rig::{Served, bytes, cooperative, nvme, open, options, pattern, ram, read, write};

/// Creates a pair, writes, reads back, and lets the pair go; by turns deleted and dropped.
fn cycles(device: &mut Device, count: u64) {
    assert_eq!(device.doorbells(), Doorbells::Shadow);
    let disk = device.namespaces()[0];
    let buffer = device.allocate(8192).unwrap();
    for cycle in 0..count {
        // Other sizes each time, and some rounds of the ring, so that a slot of an earlier life would show.
        let entries = 2 + u32::try_from(cycle % 7).unwrap();
        let mut queue = device.create_queue_pair(QueueOptions::default().with_entries(entries)).unwrap();
        assert_eq!(queue.qid(), 1, "its id is used again");
        for round in 0..cycle % 5 {
            let (lba, data) = (cycle % 100 + round, pattern(cycle * 8 + round, 8192));
            buffer.write(0, &data).unwrap();
            assert!(write(&mut queue, &disk, lba, &buffer).is_success());
            buffer.zero();
            assert!(read(&mut queue, &disk, lba, &buffer).is_success());
            assert!(bytes(&buffer, 0, 8192) == data, "cycle {cycle}, round {round}");
        }
        if cycle % 3 == 0 {
            drop(queue);
        } else {
            device.delete_queue_pair(queue).unwrap();
        }
    }
}

#[test]
fn ten_thousand_cycles_of_one_queue_pair_keep_every_byte() {
    let transport = cooperative(nvme(vec![ram(1 << 20, 4096)]));
    let mut device = open(&transport, options(DoorbellPolicy::Shadow));
    cycles(&mut device, 10_000);
    transport.with(|function| {
        let report = function.report();
        assert_eq!(report.device.doorbell_buffer_config, 1);
        assert_eq!(report.totals.counters.invalid_doorbells, 0);
        assert_eq!(report.totals.counters.errors, 0);
    });
}

#[test]
fn cycles_over_a_socket_keep_every_byte() {
    let served = Served::start(nvme(vec![ram(1 << 20, 4096)]));
    let transport = served.connect();
    assert!(!transport.is_cooperative());
    cycles(&mut open(&transport, options(DoorbellPolicy::Shadow)), 1000);
}

#[test]
fn pairs_that_are_dropped_with_commands_in_flight_hurt_nobody() {
    let transport = cooperative(nvme(vec![ram(1 << 20, 4096)]));
    let mut device = open(&transport, options(DoorbellPolicy::Shadow));
    let disk = device.namespaces()[0];
    for cycle in 0..200u64 {
        let mut queue = device.create_queue_pair(QueueOptions::default().with_entries(16)).unwrap();
        for tag in 0..10 {
            let buffer = device.allocate(4096).unwrap();
            buffer.write(0, &pattern(cycle * 100 + tag, 4096)).unwrap();
            queue.write(&disk, tag, &buffer, tag).unwrap();
        }
        // Not rung, rung but not seen, complete but not looked at.
        if cycle % 3 > 0 {
            queue.ring().unwrap();
        }
        if cycle % 3 > 1 {
            transport.drive();
        }
    }
    let mut queue = device.create_queue_pair(QueueOptions::default()).unwrap();
    let buffer = device.allocate(4096).unwrap();
    for lba in 0..10 {
        assert!(read(&mut queue, &disk, lba, &buffer).is_success());
        let data = bytes(&buffer, 0, 4096);
        assert!((0..200).any(|cycle| data == pattern(cycle * 100 + lba, 4096)), "block {lba} is of one write");
    }
}
