//! A device whose doorbell registers the driver maps.

use std::sync::Arc;

use controller::{Config, DoorbellMode, NvmeFunction};
use shadowbell_driver::{Device, DoorbellPolicy, Doorbells, QueueOptions, Transport};

use crate::rig::{Served, bytes, drain, options, pattern, ram, read, ways, write};

fn mapped() -> NvmeFunction {
    let config = Config::new("driver-tests", vec![ram(1 << 20, 512)]);
    NvmeFunction::new(Config { doorbells: DoorbellMode::Mapped, ..config }).unwrap()
}

/// Reads what it writes, by interrupt and by polling, and returns how often doorbells were written.
fn use_it(device: &mut Device) -> u64 {
    let disk = device.namespaces()[0];
    let buffer = device.allocate(4096).unwrap();
    let mut rung = 0;
    for interrupt in [true, false] {
        let queue_options = QueueOptions::default().with_entries(8).with_interrupt(interrupt);
        let mut queue = device.create_queue_pair(queue_options).unwrap();
        for lba in 0..20 {
            let data = pattern(lba, 4096);
            buffer.write(0, &data).unwrap();
            assert!(write(&mut queue, &disk, lba, &buffer).is_success());
            buffer.zero();
            assert!(read(&mut queue, &disk, lba, &buffer).is_success());
            assert!(bytes(&buffer, 0, 4096) == data);
        }
        for _ in 0..100 {
            for lba in 0..7 {
                queue.read(&disk, lba, &buffer, lba).unwrap();
            }
            assert_eq!(drain(&mut queue), Ok(7));
        }
        let counters = queue.counters();
        assert_eq!((counters.sq_spared, counters.cq_spared), (0, 0), "each move is a store to the register");
        rung += counters.register_writes();
        device.delete_queue_pair(queue).unwrap();
    }
    rung
}

#[test]
fn doorbells_that_are_mapped_are_rung_without_a_message_over_resets_and_by_the_next_client() {
    let mut served = Served::start(mapped());
    for _ in 0..2 {
        let transport = served.connect();
        assert!(transport.has_mapped_doorbells());
        for policy in [DoorbellPolicy::Shadow, DoorbellPolicy::Register] {
            let mut device = Device::open(transport.clone(), options(policy)).unwrap();
            assert_eq!(device.doorbells(), Doorbells::Mapped);
            assert!(use_it(&mut device) > 100);
            device.reset().unwrap();
            assert!(use_it(&mut device) > 100);
            device.reset_function().unwrap();
            assert_eq!(device.doorbells(), Doorbells::Mapped);
            assert!(use_it(&mut device) > 100);
        }
    }
    let report = served.stop().unwrap();
    let writes: u64 = report.queues.iter().map(|q| q.counters.sq_doorbell_writes + q.counters.cq_doorbell_writes).sum();
    assert_eq!((writes, report.device.doorbell_buffer_config), (0, 0));
    assert!(report.totals.counters.commands > 1000);
}

#[test]
fn every_way_to_a_mapped_device_works() {
    for (way, transport, _served) in ways(mapped) {
        assert_eq!(transport.has_mapped_doorbells(), way != "cooperative", "{way}");
        let mut device = Device::open(transport, options(DoorbellPolicy::Shadow)).unwrap();
        assert!(use_it(&mut device) > 100, "{way}");
        device.shutdown().unwrap();
    }
}

#[test]
fn a_device_with_shadow_doorbells_offers_no_mapping() {
    let served = Served::start(crate::rig::nvme(vec![ram(1 << 20, 512)]));
    let transport: Arc<dyn Transport> = served.connect();
    assert!(!transport.has_mapped_doorbells());
}
