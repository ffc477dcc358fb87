//! Every command, over every way, with content verified.

use shadowbell_driver::{
    Device, DoorbellPolicy, Doorbells, Error, QueueOptions, SubmitError,
    nvme::{
        AdminOpcode, NvmOpcode, Status, SubmissionQueueEntry,
        features::{FeatureId, Select},
        identify::oncs,
        logs::{AsyncEvent, ErrorLogEntry, LogId},
        registers::Doorbell,
        zerocopy::FromBytes,
    },
};

use crate::rig::{Served, bytes, cooperative, drain, nvme, one, open, options, pattern, ram, read, ways, write};

const MIB: usize = 1 << 20;

#[test]
fn whatever_is_written_is_read_back_by_every_way_block_size_and_kind_of_doorbell() {
    for block in [512, 4096] {
        for doorbells in [DoorbellPolicy::Shadow, DoorbellPolicy::Register] {
            for interrupt in [true, false] {
                for (way, transport, _served) in ways(|| nvme(vec![ram(8 << 20, block)])) {
                    let mut device = Device::open(transport, options(doorbells)).unwrap();
                    let queue_options = QueueOptions { entries: 8, interrupt, ..QueueOptions::default() };
                    let mut queue = device.create_queue_pair(queue_options).unwrap();
                    every_transfer_size(&mut device, &mut queue, block as usize);
                    let counters = queue.counters();
                    assert_eq!(counters.submitted, counters.completed, "{way}");
                    if doorbells == DoorbellPolicy::Register {
                        assert_eq!(counters.sq_rings, counters.submitted, "{way}");
                        assert_eq!((counters.sq_spared, counters.cq_spared), (0, 0), "{way}");
                    } else {
                        assert!(counters.cq_spared > 0, "{way}: {counters:?}");
                    }
                    assert_eq!(counters.interrupts > 0, interrupt, "{way}: {counters:?}");
                    device.delete_queue_pair(queue).unwrap();
                    device.shutdown().unwrap();
                }
            }
        }
    }
}

fn every_transfer_size(device: &mut Device, queue: &mut shadowbell_driver::QueuePair, block: usize) {
    let disk = device.namespaces()[0];
    assert_eq!((disk.block_bytes(), disk.bytes()), (block, 8 << 20));
    assert_eq!(device.max_transfer(), MIB);
    let buffer = device.allocate(2 * MIB).unwrap();
    // One page, two, a list, the longest; from page borders and from dwords inside of a page.
    for (seed, (blocks, offset)) in
        [(1, 0), (1, 4), (8192 / block, 0), (12288 / block, 4), (MIB / block, 0), (MIB / block, 2052)]
            .into_iter()
            .enumerate()
    {
        let len = blocks * block;
        let data = pattern(seed as u64, len);
        buffer.write(offset, &data).unwrap();
        let lba = 3 + seed as u64;
        assert!(write(queue, &disk, lba, buffer.slice(offset, len)).is_success());
        buffer.zero();
        assert!(read(queue, &disk, lba, buffer.slice(offset, len)).is_success());
        assert!(bytes(&buffer, offset, len) == data, "{blocks} blocks at offset {offset}");
        assert!(bytes(&buffer, offset + len, 64).iter().all(|b| *b == 0), "nothing behind it is touched");
    }
}

#[test]
fn flush_zeroes_and_deallocate_do_what_they_say() {
    let mut device = open(&cooperative(nvme(vec![ram(1 << 20, 4096)])), options(DoorbellPolicy::Shadow));
    assert_ne!(device.identify().oncs.get() & oncs::DATASET_MANAGEMENT, 0);
    let mut queue = device.create_queue_pair(QueueOptions::default()).unwrap();
    let disk = device.namespaces()[0];
    let buffer = device.allocate(1 << 16).unwrap();
    buffer.write(0, &pattern(5, 1 << 16)).unwrap();
    for lba in [0, 16, 32, 48] {
        queue.write_through(&disk, lba, &buffer, lba).unwrap();
    }
    drain(&mut queue).unwrap();
    queue.flush(&disk, 1).unwrap();
    assert!(one(&mut queue, 1).status.is_success());
    queue.write_zeroes(&disk, 2, 3, false, 1).unwrap();
    queue.write_zeroes(&disk, 8, 1, true, 2).unwrap();
    queue.deallocate(&disk, &[(16, 2), (40, 8), (63, 1)], 3).unwrap();
    assert_eq!(drain(&mut queue), Ok(3));
    let all = device.allocate(1 << 18).unwrap();
    assert!(read(&mut queue, &disk, 0, &all).is_success());
    for lba in 0..64usize {
        let zero = matches!(lba, 2..=4 | 8 | 16 | 17 | 40..=47 | 63);
        let expected = if zero { vec![0; 4096] } else { pattern(5, 1 << 16)[lba % 16 * 4096..][..4096].to_vec() };
        assert!(bytes(&all, lba * 4096, 4096) == expected, "block {lba}");
    }
    queue.deallocate(&disk, &[(0, 1); 256], 9).unwrap();
    assert!(one(&mut queue, 9).status.is_success());
}

#[test]
fn what_cannot_be_sent_is_refused_and_what_the_device_refuses_is_a_status() {
    let mut device = open(&cooperative(nvme(vec![ram(1 << 20, 4096)])), options(DoorbellPolicy::Shadow));
    let mut queue = device.create_queue_pair(QueueOptions { entries: 2, ..QueueOptions::default() }).unwrap();
    let disk = device.namespaces()[0];
    let buffer = device.allocate(2 * MIB).unwrap();
    for (offset, len) in [(0, 0), (0, 4095), (2, 4096), (2 * MIB - 4, 4096), (usize::MAX, 4096), (0, MIB + 4096)] {
        assert!(
            matches!(queue.read(&disk, 0, buffer.slice(offset, len), 0), Err(SubmitError::Argument(_))),
            "{offset} {len}"
        );
    }
    assert!(matches!(queue.write_zeroes(&disk, 0, 0, false, 0), Err(SubmitError::Argument(_))));
    assert!(matches!(queue.write_zeroes(&disk, 0, 65537, false, 0), Err(SubmitError::Argument(_))));
    assert!(matches!(queue.deallocate(&disk, &[], 0), Err(SubmitError::Argument(_))));
    assert!(matches!(queue.deallocate(&disk, &[(0, 1); 257], 0), Err(SubmitError::Argument(_))));
    assert_eq!(queue.in_flight(), 0);
    let one_block = buffer.slice(0, 4096);
    assert_eq!(read(&mut queue, &disk, 256, one_block).code(), Status::LBA_OUT_OF_RANGE);
    queue.read(&disk, 0, one_block, 1).unwrap();
    assert_eq!(queue.read(&disk, 0, one_block, 2), Err(SubmitError::Full));
    assert_eq!(queue.deallocate(&disk, &[(0, 1)], 2), Err(SubmitError::Full));
    assert!(one(&mut queue, 1).status.is_success());
    let sqe = SubmissionQueueEntry { opcode: 0x99, nsid: 1.into(), ..SubmissionQueueEntry::default() };
    queue.submit(sqe, None, 3).unwrap();
    assert_eq!(one(&mut queue, 3).ok().unwrap_err().code(), Status::INVALID_OPCODE);
    let unknown =
        SubmissionQueueEntry { opcode: NvmOpcode::FLUSH.0, nsid: 77.into(), ..SubmissionQueueEntry::default() };
    queue.submit(unknown, None, 4).unwrap();
    assert!(!one(&mut queue, 4).status.is_success());
}

#[test]
fn a_batch_is_rung_once() {
    for doorbells in [DoorbellPolicy::Shadow, DoorbellPolicy::Register] {
        let mut device = open(&cooperative(nvme(vec![ram(1 << 20, 4096)])), options(doorbells));
        let mut queue = device.create_queue_pair(QueueOptions { entries: 65, ..QueueOptions::default() }).unwrap();
        let disk = device.namespaces()[0];
        let buffer = device.allocate(4096).unwrap();
        for round in 1..=3 {
            for tag in 0..64 {
                queue.read(&disk, tag, &buffer, tag).unwrap();
            }
            queue.ring().unwrap();
            queue.ring().unwrap();
            assert_eq!(drain(&mut queue), Ok(64));
            let counters = queue.counters();
            assert_eq!(counters.sq_rings + counters.sq_spared, round);
        }
        // Cooperative devices sleep whenever the driver acts, so the tail is rung for each time; the head never is.
        let counters = queue.counters();
        assert_eq!(counters.cq_rings == 0, doorbells == DoorbellPolicy::Shadow, "{counters:?}");
    }
}

#[test]
fn the_head_is_told_as_rarely_as_the_caller_likes() {
    let mut device = open(&cooperative(nvme(vec![ram(1 << 20, 4096)])), options(DoorbellPolicy::Register));
    for (entries, head_batch, expected) in [(17, 1, 160), (17, 8, 20), (17, 1000, 20), (2, 9, 160), (3, 9, 160)] {
        let queue_options = QueueOptions { entries, head_batch, ..QueueOptions::default() };
        let mut queue = device.create_queue_pair(queue_options).unwrap();
        let disk = device.namespaces()[0];
        let buffer = device.allocate(4096).unwrap();
        for _ in 0..160 {
            assert!(read(&mut queue, &disk, 0, &buffer).is_success());
        }
        assert_eq!(queue.counters().cq_rings, expected, "{entries} entries by {head_batch}");
        device.delete_queue_pair(queue).unwrap();
    }
}

#[test]
fn a_busy_device_is_not_rung_over_the_socket() {
    let mut served = Served::start(nvme(vec![ram(1 << 20, 4096)]));
    let mut device = Device::open(served.connect(), options(DoorbellPolicy::Shadow)).unwrap();
    assert_eq!(device.doorbells(), Doorbells::Shadow);
    let mut queue = device.create_queue_pair(QueueOptions { entries: 64, ..QueueOptions::default() }).unwrap();
    let disk = device.namespaces()[0];
    let buffer = device.allocate(4096).unwrap();
    let mut done = 0;
    while done < 20_000 {
        while queue.in_flight() < 32 {
            queue.read(&disk, 0, &buffer, 0).unwrap();
        }
        queue.ring().unwrap();
        done += queue.poll(&mut |completion| assert!(completion.status.is_success())).unwrap();
    }
    drain(&mut queue).unwrap();
    let counters = queue.counters();
    assert!(counters.register_writes() < counters.submitted, "{counters:?}");
    device.delete_queue_pair(queue).unwrap();
    device.shutdown().unwrap();
    let report = served.stop().unwrap();
    assert_eq!(report.device.doorbell_buffer_config, 1);
    let device_side = report.queues.iter().find(|q| q.qid == Some(1)).unwrap();
    assert_eq!(device_side.counters.sq_doorbell_writes, counters.sq_rings);
    assert_eq!(device_side.counters.cq_doorbell_writes, counters.cq_rings);
}

#[test]
fn features_logs_and_identify_work() {
    let mut device =
        open(&cooperative(nvme(vec![ram(1 << 20, 512), ram(1 << 21, 4096)])), options(DoorbellPolicy::Shadow));
    assert_eq!(&device.identify().sn[..12], b"driver-tests");
    assert_eq!(device.version().unwrap().to_string(), "2.0");
    assert_eq!(device.active_namespaces().unwrap(), [1, 2]);
    assert_eq!(device.namespaces().iter().map(|n| n.bytes()).collect::<Vec<_>>(), [1 << 20, 1 << 21]);
    assert_eq!(device.set_feature(FeatureId::ARBITRATION, 0, 3).unwrap(), 0);
    assert_eq!(device.get_feature(FeatureId::ARBITRATION, Select::CURRENT, 0, 0).unwrap() & 7, 3);
    let error = device.get_feature(FeatureId(0xd0), Select::CURRENT, 0, 0).unwrap_err();
    assert!(matches!(error, Error::Command { command: AdminOpcode::GET_FEATURES, .. }), "{error}");
    assert!(device.smart_log().unwrap().composite_temperature.get() > 0);
    // Longer than a page.
    let mut effects = vec![0xff; 4096 + 64];
    let result = device.get_log(LogId::COMMAND_EFFECTS, 0, 0, &mut effects[..4096]);
    result.unwrap();
    assert_eq!(effects[0x06 * 4] & 1, 1, "Identify is supported");
    assert!(device.get_log(LogId::SMART, 0, 0, &mut [0; 3]).is_err());
    let mut part = [0; 4];
    device.get_log(LogId::COMMAND_EFFECTS, 0, 0x06 * 4, &mut part).unwrap();
    assert_eq!(part, effects[0x06 * 4..][..4]);
}

#[test]
fn an_event_comes_once_and_again_after_its_log_was_read() {
    let transport = cooperative(nvme(vec![ram(1 << 20, 512)]));
    let mut device = open(&transport, options(DoorbellPolicy::Shadow));
    assert_eq!(device.next_event(), Ok(None));
    for _ in 0..3 {
        // The doorbell of a queue that does not exist.
        device.transport().ring(Doorbell::SqTail(9).offset(0), 1).unwrap();
        device.transport().drive();
        assert_eq!(device.next_event(), Ok(Some(AsyncEvent::INVALID_DOORBELL_REGISTER)));
        assert_eq!(device.next_event(), Ok(None));
        let mut log = [0; 64];
        device.get_log(LogId::ERROR, 0, 0, &mut log).unwrap();
        ErrorLogEntry::read_from_bytes(&log).unwrap();
    }
}

#[test]
fn queues_have_any_size_that_the_controller_allows() {
    let mut device = open(&cooperative(nvme(vec![ram(1 << 20, 4096)])), options(DoorbellPolicy::Shadow));
    assert_eq!(device.max_entries(), 1024);
    for entries in [0, 1, 1025, 65536, 65537] {
        let result = device.create_queue_pair(QueueOptions { entries, ..QueueOptions::default() });
        assert!(matches!(result, Err(Error::Argument(_))), "{entries}");
    }
    let disk = device.namespaces()[0];
    let buffer = device.allocate(4096).unwrap();
    for entries in [2, 3, 4, 5, 7, 1024] {
        let mut queue = device.create_queue_pair(QueueOptions { entries, ..QueueOptions::default() }).unwrap();
        assert_eq!(u32::from(queue.capacity()), entries - 1);
        for _ in 0..5 {
            for tag in 0..u64::from(queue.capacity()) {
                queue.read(&disk, 0, &buffer, tag).unwrap();
            }
            assert_eq!(queue.read(&disk, 0, &buffer, 0), Err(SubmitError::Full));
            queue.ring().unwrap();
            drain(&mut queue).unwrap();
        }
    }
}

#[test]
fn queue_pairs_run_on_threads_of_their_own_until_there_are_no_more() {
    for (_way, transport, _served) in ways(|| {
        let mut config = controller::Config::new("pairs", vec![ram(4 << 20, 4096)]);
        config.io_queues = 3;
        controller::NvmeFunction::new(config).unwrap()
    }) {
        let mut device = Device::open(transport, options(DoorbellPolicy::Shadow)).unwrap();
        let disk = device.namespaces()[0];
        assert_eq!(device.io_queue_pairs(), 3);
        let interrupt = QueueOptions { interrupt: true, ..QueueOptions::default() };
        let pairs: Vec<_> = (0..3).map(|_| device.create_queue_pair(interrupt).unwrap()).collect();
        assert!(matches!(device.create_queue_pair(interrupt), Err(Error::NoQueue(3))));
        std::thread::scope(|scope| {
            for mut queue in pairs {
                scope.spawn(move || {
                    let buffer = queue.allocate(4096).unwrap();
                    let base = u64::from(queue.qid()) * 256;
                    for lba in base..base + 100 {
                        let data = pattern(lba, 4096);
                        buffer.write(0, &data).unwrap();
                        assert!(write(&mut queue, &disk, lba, &buffer).is_success());
                        buffer.zero();
                        assert!(read(&mut queue, &disk, lba, &buffer).is_success());
                        assert!(bytes(&buffer, 0, 4096) == data);
                    }
                });
            }
        });
        // They were dropped over there; the next one takes their place.
        let queue = device.create_queue_pair(interrupt).unwrap();
        assert_eq!(queue.qid(), 1);
    }
}
