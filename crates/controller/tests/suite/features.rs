//! Get Features and Set Features (NVMe Base 2.1 §5.1.11, §5.1.25): set, get, select, refuse, and the defaults after a reset.

use nvme::{
    NSID_BROADCAST, Status, SubmissionQueueEntry,
    features::{FeatureId, Select, capability},
};
use pci::PciFunction;

use crate::host::{Bells, Machine, Setup, commands, config, disk::GatedDisk, ram};

fn current(m: &mut Machine, fid: FeatureId, cdw11: u32) -> u32 {
    m.ok(0, commands::get_feature(fid, Select::CURRENT, cdw11))
}

fn on_namespace(nsid: u32, sqe: SubmissionQueueEntry) -> SubmissionQueueEntry {
    SubmissionQueueEntry { nsid: nsid.into(), ..sqe }
}

fn with_cache() -> Machine {
    Machine::boot(config(GatedDisk::with(512, |c| c.volatile_cache = true)), Setup::default())
}

/// (feature, NSID, dword 11 of Get, default, a value to set)
const SETTABLE: [(FeatureId, u32, u32, u32, u32); 9] = [
    (FeatureId::ARBITRATION, 0, 0, 7, 0x0102_0303),
    (FeatureId::TEMPERATURE_THRESHOLD, 0, 0, 343, 320),
    (FeatureId::TEMPERATURE_THRESHOLD, 0, 1 << 20, 1 << 20, 1 << 20 | 200),
    (FeatureId::ERROR_RECOVERY, 1, 0, 0, 5),
    (FeatureId::VOLATILE_WRITE_CACHE, 0, 0, 1, 0),
    (FeatureId::INTERRUPT_COALESCING, 0, 0, 0, 0x0107),
    (FeatureId::INTERRUPT_VECTOR_CONFIG, 0, 3, 3, 3 | 1 << 16),
    (FeatureId::WRITE_ATOMICITY, 0, 0, 0, 1),
    (FeatureId::ASYNC_EVENT_CONFIG, 0, 0, 0, 0x0102),
];

#[test]
fn values_are_kept_until_a_reset_brings_the_defaults() {
    let mut m = with_cache();
    for round in 0..3 {
        for (fid, nsid, cdw11, default, value) in SETTABLE {
            assert_eq!(current_on(&mut m, nsid, fid, cdw11), default, "{fid} after reset {round}");
            m.ok(0, on_namespace(nsid, commands::set_feature(fid, value)));
            assert_eq!(current_on(&mut m, nsid, fid, cdw11), value, "{fid}");
            for select in [Select::DEFAULT, Select::SAVED] {
                let get = on_namespace(nsid, commands::get_feature(fid, select, cdw11));
                assert_eq!(m.ok(0, get), default, "{fid}, {select}");
            }
            let get = on_namespace(nsid, commands::get_feature(fid, Select::SUPPORTED, cdw11));
            let abilities = m.ok(0, get);
            assert!(abilities & capability::CHANGEABLE != 0 && abilities & capability::SAVEABLE == 0);
            assert_eq!(abilities & capability::NAMESPACE_SPECIFIC != 0, nsid != 0);
        }
        if round == 0 {
            m.disable();
        } else {
            m.function.reset();
            m.wake();
            m.settle();
            m.forget();
            m.set_up_pci();
        }
        m.enable();
    }
}

fn current_on(m: &mut Machine, nsid: u32, fid: FeatureId, cdw11: u32) -> u32 {
    m.ok(0, on_namespace(nsid, commands::get_feature(fid, Select::CURRENT, cdw11)))
}

#[test]
fn fixed_values_take_what_they_are_and_nothing_else() {
    let mut m = with_cache();
    for fid in [FeatureId::POWER_MANAGEMENT, FeatureId::IO_COMMAND_SET_PROFILE] {
        m.ok(0, commands::set_feature(fid, 0));
        assert_eq!(m.status(0, commands::set_feature(fid, 1)), Status::INVALID_FIELD.with_dnr());
        assert_eq!(current(&mut m, fid, 0), 0);
    }
}

#[test]
fn features_that_do_not_exist_are_refused() {
    let mut m = with_cache();
    let known = [0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x19];
    for fid in 0..=255 {
        let status = m.status(0, on_namespace(1, commands::get_feature(FeatureId(fid), Select::CURRENT, 0)));
        let expected = if known.contains(&fid) { Status::SUCCESS } else { Status::INVALID_FIELD.with_dnr() };
        assert_eq!(status, expected, "get {fid:#x}");
        if !known.contains(&fid) {
            assert_eq!(m.status(0, commands::set_feature(FeatureId(fid), 0)), Status::INVALID_FIELD.with_dnr());
        }
    }
    let mut plain = Machine::boot(config(ram(512)), Setup::default());
    let get = commands::get_feature(FeatureId::VOLATILE_WRITE_CACHE, Select::CURRENT, 0);
    assert_eq!(plain.status(0, get), Status::INVALID_FIELD.with_dnr(), "no cache, no feature");
}

#[test]
fn selects_and_fields_out_of_range_are_refused() {
    let mut m = with_cache();
    let invalid = Status::INVALID_FIELD.with_dnr();
    for select in 4..8 {
        assert_eq!(m.status(0, commands::get_feature(FeatureId::ARBITRATION, Select(select), 0)), invalid);
    }
    let vectors = u32::from(m.function.msix_vectors());
    for (fid, value) in [
        (FeatureId::INTERRUPT_VECTOR_CONFIG, vectors),
        (FeatureId::INTERRUPT_VECTOR_CONFIG, 0xffff),
        (FeatureId::TEMPERATURE_THRESHOLD, 1 << 16),
        (FeatureId::TEMPERATURE_THRESHOLD, 2 << 20),
    ] {
        assert_eq!(m.status(0, commands::set_feature(fid, value)), invalid, "{fid} {value:#x}");
        assert_eq!(m.status(0, commands::get_feature(fid, Select::CURRENT, value)), invalid, "{fid} {value:#x}");
    }
    let last = commands::set_feature(FeatureId::INTERRUPT_VECTOR_CONFIG, vectors - 1);
    m.ok(0, last);
}

/// NVMe Base 2.1 §5.1.25: Feature Identifier Not Saveable; Feature Not Namespace Specific.
#[test]
fn saving_and_naming_a_namespace_are_refused_where_they_mean_nothing() {
    let mut m = with_cache();
    let mut save = commands::set_feature(FeatureId::ARBITRATION, 1);
    save.cdw10 = (save.cdw10.get() | 1 << 31).into();
    assert_eq!(m.status(0, save), Status::FEATURE_NOT_SAVEABLE.with_dnr());
    let set = commands::set_feature(FeatureId::ARBITRATION, 1);
    assert_eq!(m.status(0, on_namespace(1, set)), Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
    assert_eq!(m.status(0, on_namespace(9, set)), Status::INVALID_NAMESPACE.with_dnr());
    assert_eq!(current(&mut m, FeatureId::ARBITRATION, 0), 7, "nothing has changed");
    m.ok(0, on_namespace(NSID_BROADCAST, set));
    assert_eq!(current(&mut m, FeatureId::ARBITRATION, 0), 1);
}

#[test]
fn error_recovery_is_by_namespace() {
    let mut c = config(ram(512));
    c.namespaces.push(std::sync::Arc::new(ram(512)));
    let mut m = Machine::boot(c, Setup::default());
    let fid = FeatureId::ERROR_RECOVERY;
    m.ok(0, on_namespace(2, commands::set_feature(fid, 9)));
    assert_eq!((current_on(&mut m, 1, fid, 0), current_on(&mut m, 2, fid, 0)), (0, 9));
    m.ok(0, on_namespace(NSID_BROADCAST, commands::set_feature(fid, 4)));
    assert_eq!((current_on(&mut m, 1, fid, 0), current_on(&mut m, 2, fid, 0)), (4, 4));
    for nsid in [0, 3] {
        let invalid = Status::INVALID_NAMESPACE.with_dnr();
        assert_eq!(m.status(0, on_namespace(nsid, commands::set_feature(fid, 1))), invalid);
        assert_eq!(m.status(0, on_namespace(nsid, commands::get_feature(fid, Select::CURRENT, 0))), invalid);
    }
}

#[test]
fn number_of_queues_answers_what_there_is() {
    let mut c = config(ram(512));
    c.io_queues = 5;
    let mut m = Machine::boot(c, Setup::default());
    let fid = FeatureId::NUMBER_OF_QUEUES;
    for wanted in [0, 0x0003_0003, 0xfffe_fffe] {
        assert_eq!(m.ok(0, commands::set_feature(fid, wanted)), 0x0004_0004);
    }
    assert_eq!(current(&mut m, fid, 0), 0x0004_0004);
    for wanted in [0xffff_0000, 0x0000_ffff] {
        assert_eq!(m.status(0, commands::set_feature(fid, wanted)), Status::INVALID_FIELD.with_dnr());
    }
    m.create_pair(5, 4, Bells::Register);
    let late = m.status(0, commands::set_feature(fid, 0));
    assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), "queues exist");
}

/// What was cached when the cache is turned off is on stable storage when the command completes.
#[test]
fn turning_the_write_cache_off_waits_for_the_flush() {
    let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.create_pair(1, 8, Bells::Register);
    disk.close_gate();
    let cid = m.submit(0, commands::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0));
    m.settle_and_serve();
    assert!(m.take(0, cid).is_none(), "the flush is at the disk");
    disk.open_gate();
    assert_eq!(m.wait(0, cid).status(), Status::SUCCESS);
    assert_eq!(disk.seen(), [block::Operation::Flush]);
    // From now on, each write is on stable storage when it completes.
    m.write_blocks(1, 0, &[1; 512], 512);
    m.ok(1, commands::write_zeroes(0, 1));
    assert_eq!(
        disk.seen()[1..],
        [block::Operation::Write { fua: true }, block::Operation::WriteZeroes { may_unmap: false, fua: true }]
    );
    // Turned off once more, it has nothing to flush.
    m.ok(0, commands::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0));
    assert_eq!(disk.seen().len(), 3);
    m.ok(0, commands::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 1));
    m.write_blocks(1, 0, &[1; 512], 512);
    assert_eq!(disk.seen()[3], block::Operation::Write { fua: false });
}

#[test]
fn a_flush_that_fails_is_told_to_who_turned_the_cache_off() {
    let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    disk.close_gate();
    let cid = m.submit(0, commands::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0));
    m.settle();
    disk.fail(0, block::BlockError::WriteFault);
    assert_eq!(m.wait(0, cid).status(), Status::WRITE_FAULT);
}
