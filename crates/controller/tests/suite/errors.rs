//! What a disk says and what the host is told; disks that are full, slow or unfair.

use block::BlockError;
use nvme::{Status, logs::LogId};

use crate::host::{Bells, Machine, Setup, commands, config, disk::GatedDisk, random::Random};

#[test]
fn every_error_of_a_disk_has_its_status() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    for (error, status) in [
        (BlockError::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED.with_dnr()),
        (BlockError::OutOfRange, Status::LBA_OUT_OF_RANGE.with_dnr()),
        (BlockError::NoSpace, Status::CAPACITY_EXCEEDED.with_dnr()),
        // A retry may help.
        (BlockError::ReadFault, Status::UNRECOVERED_READ_ERROR),
        (BlockError::WriteFault, Status::WRITE_FAULT),
        (BlockError::Unsupported, Status::INVALID_FIELD.with_dnr()),
        (BlockError::Memory, Status::DATA_TRANSFER_ERROR.with_dnr()),
        (BlockError::Cancelled, Status::ABORTED_BY_REQUEST),
    ] {
        let cid = m.submit(1, commands::write_zeroes(77, 1));
        m.settle();
        disk.fail(0, error);
        assert_eq!(m.wait(1, cid).status(), status, "{error:?}");
    }
    // Each one is in the error log, newest first, with its LBA; two of them are the medium's fault.
    let log = m.fetch(64 * 8, |prps| commands::get_log(LogId::ERROR, 0, 64 * 8, prps));
    let lbas: Vec<u8> = log.as_chunks::<64>().0.iter().map(|entry| entry[16]).collect();
    assert_eq!(lbas, [77; 8]);
    let smart = m.fetch(512, |prps| commands::get_log(LogId::SMART, 0, 512, prps));
    assert_eq!((smart[160], smart[176]), (2, 8));
    assert_eq!(m.counters(1).errors, 8);
}

#[test]
fn one_failed_part_fails_the_whole_command_after_the_last_part() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    let (buffer, prps) = m.data(4096);
    for i in 0..3u64 {
        m.memory.write_u64s(buffer + 16 * i, &[1 << 32, 8 * i]);
    }
    disk.close_gate();
    let cid = m.submit(1, commands::deallocate(3, prps));
    m.settle();
    assert_eq!(disk.held_offsets(), [0, 4096, 8192]);
    disk.fail(1, BlockError::NoSpace);
    disk.fail(0, BlockError::WriteFault);
    m.settle_and_serve();
    assert!(m.take(1, cid).is_none());
    disk.release_all();
    // The first failure counts.
    assert_eq!(m.wait(1, cid).status(), Status::CAPACITY_EXCEEDED.with_dnr());
}

#[test]
fn a_full_disk_queue_holds_commands_back_and_loses_none() {
    for room in [1, 2, 7] {
        let disk = GatedDisk::new(512);
        disk.limit(room);
        disk.close_gate();
        let mut m = Machine::with_queue(disk.clone());
        let mut random = Random::new(room as u64);
        let mut sent = 0;
        while sent < 300 || m.outstanding(1) > 0 {
            while sent < 300 && m.sqs[&1].room() > 0 && !random.one_in(5) {
                m.push(1, commands::write_zeroes(sent, 1));
                sent += 1;
            }
            m.ring(1);
            m.settle_and_serve();
            assert!(disk.held() <= room);
            disk.release_randomly(&mut random);
            m.settle_and_serve();
        }
    }
}

/// 256 ranges for a disk that takes one at a time, and the next command's turn comes.
#[test]
fn a_command_of_many_parts_goes_through_a_narrow_disk() {
    let disk = GatedDisk::new(512);
    disk.limit(1);
    let mut m = Machine::with_queue(disk.clone());
    let (buffer, prps) = m.data(4096);
    for i in 0..256u64 {
        m.memory.write_u64s(buffer + 16 * i, &[1 << 32, i]);
    }
    disk.close_gate();
    let many = m.submit(1, commands::deallocate(256, prps));
    let after = m.submit(1, commands::write_zeroes(9, 1));
    for _ in 0..256 {
        m.settle_and_serve();
        assert!(m.take(1, many).is_none());
        assert_eq!(disk.held(), 1);
        disk.release_all();
    }
    assert_eq!(m.wait(1, many).status(), Status::SUCCESS);
    m.settle();
    disk.release_all();
    assert_eq!(m.wait(1, after).status(), Status::SUCCESS);
}

/// The admin queue does not wait for a disk.
#[test]
fn admin_commands_go_on_while_a_disk_is_full() {
    let disk = GatedDisk::new(512);
    disk.limit(1);
    disk.close_gate();
    let mut m = Machine::with_queue(disk.clone());
    for lba in 0..5 {
        m.submit(1, commands::write_zeroes(lba, 1));
    }
    m.settle();
    m.create_pair(2, 16, Bells::Register);
    m.fetch(4096, |prps| commands::identify(nvme::identify::Cns::CONTROLLER, 0, prps));
    while m.outstanding(1) > 0 {
        disk.release_all();
        m.settle_and_serve();
    }
}

#[test]
fn a_busy_queue_does_not_keep_another_one_from_a_full_disk() {
    let disk = GatedDisk::new(512);
    disk.limit(1);
    disk.close_gate();
    let mut m = Machine::boot(config(disk.clone()), Setup::default());
    m.create_pair(1, 64, Bells::Register);
    m.create_pair(2, 64, Bells::Register);
    let last = m.push(2, commands::write_zeroes(0, 1));
    for _ in 0..200 {
        while m.sqs[&1].room() > 0 {
            m.push(1, commands::write_zeroes(1, 1));
        }
        m.ring(1);
        m.ring(2);
        m.settle_and_serve();
        disk.release_all();
        if m.take(2, last).is_some() {
            return;
        }
    }
    panic!("queue 2 never got its turn; queue 1 had {} commands", m.counters(1).commands);
}

/// A disk's descriptor stays readable until a poll finds nothing: the controller has to make that poll before it sleeps, or
/// its owner never does.
#[test]
fn the_function_sleeps_after_the_last_completion() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    let cid = m.submit(1, commands::write_zeroes(0, 1));
    m.settle();
    disk.release_all();
    m.wait(1, cid);
    // Panics when it is woken again and again.
    m.settle();
    assert!(m.is_asleep());
}
