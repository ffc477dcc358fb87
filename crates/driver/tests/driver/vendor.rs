//! Which form of Doorbell Buffer Config is sent, when, and what becomes of a refusal.

use std::sync::Arc;

use controller::{Config, DoorbellCommand, NvmeFunction, PciId};
use shadowbell_driver::{
    Cooperative, Device, DoorbellPolicy, Doorbells, QueueOptions, QueuePair,
    nvme::{Status, identify::oacs},
};

use crate::{
    fake::Fake,
    rig::{Served, one, open as open_device, options, ram},
};

const GOOGLE: u16 = 0x1ae0;
const CREATE_SQ: u16 = 0x01;
const IO: u16 = 0x1000;

fn open(policy: DoorbellPolicy, change: impl FnOnce(&mut Fake)) -> (Arc<Cooperative<Fake>>, Device) {
    let mut fake = Fake::new();
    change(&mut fake);
    let transport = Arc::new(Cooperative::new(fake).unwrap());
    let device = Device::open(transport.clone(), options(policy)).unwrap();
    (transport, device)
}

fn create(device: &mut Device) -> QueuePair {
    device.create_queue_pair(QueueOptions::default().with_entries(4)).unwrap()
}

/// More than one round of the ring.
fn io(device: &Device, queue: &mut QueuePair) {
    for tag in 0..10 {
        queue.flush(&device.namespaces()[0], tag).unwrap();
        assert!(one(queue, tag).status.is_success());
    }
}

/// Places of the doorbell command, of the first creation of an SQ, and of the first I/O.
fn order(transport: &Cooperative<Fake>, doorbells: u16) -> (Option<usize>, Option<usize>, Option<usize>) {
    transport.with(|fake| {
        let place = |opcode| fake.log.iter().position(|o| *o == opcode);
        (place(doorbells), place(CREATE_SQ), place(IO))
    })
}

fn rings(transport: &Cooperative<Fake>) -> u32 {
    transport.with(|fake| std::mem::take(&mut fake.register_rings))
}

#[test]
fn the_standard_form_is_sent_before_the_first_queue_at_every_life_and_slots_are_zeroed() {
    for vendor in [0x1234, GOOGLE] {
        let (transport, mut device) = open(DoorbellPolicy::Shadow, |fake| {
            fake.vendor = vendor;
            fake.oacs = oacs::DOORBELL_BUFFER_CONFIG;
        });
        let mut queue = create(&mut device);
        for _ in 0..3 {
            assert_eq!(device.doorbells(), Doorbells::Shadow);
            io(&device, &mut queue);
            assert_eq!(rings(&transport), 1, "the first move, whose EventIdx is zero");
            let (doorbells, create_sq, io) = order(&transport, 0x7c);
            assert!(doorbells < create_sq && create_sq < io && doorbells.is_some(), "{doorbells:?}");
            assert_eq!(order(&transport, 0xc0).0, None);
            device.reset().unwrap();
            device.recover(&mut queue).unwrap();
        }
        assert_eq!(transport.with(|fake| fake.dirty_slots), 0);
    }
}

#[test]
fn the_vendor_form_is_sent_to_its_vendor_alone_once_the_first_queues_exist() {
    let (transport, mut device) = open(DoorbellPolicy::Shadow, |fake| fake.vendor = GOOGLE);
    assert_eq!(device.doorbells(), Doorbells::Register);
    let mut first = create(&mut device);
    assert_eq!(device.doorbells(), Doorbells::VendorShadow);
    let mut second = create(&mut device);
    for _ in 0..3 {
        io(&device, &mut first);
        io(&device, &mut second);
        assert_eq!(rings(&transport), 2);
        let (doorbells, create_sq, io) = order(&transport, 0xc0);
        assert!(create_sq < doorbells && doorbells < io && create_sq.is_some(), "{doorbells:?}");
        assert_eq!(transport.with(|fake| fake.log.iter().filter(|o| **o == 0xc0).count()), 1);
        assert_eq!(order(&transport, 0x7c).0, None);
        device.reset().unwrap();
        // In another order.
        device.recover(&mut second).unwrap();
        device.recover(&mut first).unwrap();
        assert_eq!(device.doorbells(), Doorbells::VendorShadow);
    }
    assert_eq!(transport.with(|fake| fake.dirty_slots), 0);

    let (transport, mut device) = open(DoorbellPolicy::Shadow, |_| {});
    let mut queue = create(&mut device);
    io(&device, &mut queue);
    assert_eq!((order(&transport, 0x7c).0, order(&transport, 0xc0).0), (None, None));
    assert_eq!(rings(&transport), 10);
}

#[test]
fn a_refusal_leaves_registers_everywhere_until_the_next_reset() {
    for (vendor, oacs, status) in [
        (0x1234, oacs::DOORBELL_BUFFER_CONFIG, Status::INVALID_FIELD.with_dnr()),
        (0x1234, oacs::DOORBELL_BUFFER_CONFIG, Status::INVALID_OPCODE),
        // Doorbell memory invalid, of the vendor form.
        (GOOGLE, 0, Status::new(1, 0xc0)),
        (GOOGLE, 0, Status::INVALID_OPCODE.with_dnr()),
    ] {
        let (transport, mut device) = open(DoorbellPolicy::Shadow, |fake| {
            (fake.vendor, fake.oacs, fake.doorbell_status) = (vendor, oacs, status);
        });
        let mut pairs = [create(&mut device), create(&mut device)];
        assert_eq!(device.doorbells(), Doorbells::Register, "{status:?}");
        for queue in &mut pairs {
            io(&device, queue);
            let counters = queue.counters();
            assert_eq!((counters.sq_rings, counters.sq_spared, counters.cq_spared), (10, 0, 0));
        }
        let sent = transport.with(|fake| fake.log.iter().filter(|o| matches!(**o, 0x7c | 0xc0)).count());
        assert_eq!(sent, 1, "it is not tried again");
        assert_eq!(rings(&transport), 20);
        transport.with(|fake| fake.doorbell_status = Status::SUCCESS);
        device.reset().unwrap();
        for queue in &mut pairs {
            device.recover(queue).unwrap();
            io(&device, queue);
        }
        assert_ne!(device.doorbells(), Doorbells::Register);
        assert_eq!(rings(&transport), 2);
    }
}

#[test]
fn a_caller_who_wants_registers_gets_them() {
    for vendor in [0x1234, GOOGLE] {
        let (transport, mut device) = open(DoorbellPolicy::Register, |fake| {
            (fake.vendor, fake.oacs) = (vendor, oacs::DOORBELL_BUFFER_CONFIG);
        });
        let mut queue = create(&mut device);
        io(&device, &mut queue);
        assert_eq!((order(&transport, 0x7c).0, order(&transport, 0xc0).0), (None, None));
        assert_eq!(rings(&transport), 10);
    }
}

#[test]
fn our_own_device_with_that_identity_is_driven_by_the_vendor_form_over_a_socket() {
    let mut config = Config::new("vendor", vec![ram(1 << 20, 512)]);
    config.pci_id = PciId::GOOGLE;
    config.doorbell_command = DoorbellCommand::Vendor;
    let mut served = Served::start(NvmeFunction::new(config).unwrap());
    let mut device = open_device(&served.connect(), options(DoorbellPolicy::Shadow));
    let mut queue = create(&mut device);
    assert_eq!(device.doorbells(), Doorbells::VendorShadow);
    let disk = device.namespaces()[0];
    let buffer = device.allocate(disk.block_bytes()).unwrap();
    for round in 0..50u64 {
        buffer.write(0, &round.to_le_bytes()).unwrap();
        queue.write(&disk, round, &buffer, round).unwrap();
        assert!(one(&mut queue, round).status.is_success());
    }
    for round in 0..50u64 {
        queue.read(&disk, round, &buffer, round).unwrap();
        assert!(one(&mut queue, round).status.is_success());
        let mut back = [0; 8];
        buffer.read(0, &mut back).unwrap();
        assert_eq!(u64::from_le_bytes(back), round);
    }
    let report = served.stop().unwrap();
    assert_eq!(report.device.doorbell_buffer_config, 1);
    // By register it would be one for each of the 100 commands. A few are possible: in a ring of four EventIdx moves often, and
    // a move between the driver's store and its load can make it ring in vain.
    assert!(report.totals.counters.cq_doorbell_writes < 20, "{report:?}");
}
