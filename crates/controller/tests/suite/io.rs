//! The NVM command set on disks that keep what is written (NVM Command Set 1.0 §3.2).

use std::sync::Arc;

use block::{NullDevice, Operation};
use nvme::{NSID_BROADCAST, Status, SubmissionQueueEntry, nvm::DsmRange, zerocopy::IntoBytes};
use shadowbell_controller::Config;

use crate::host::{
    Bells, Machine, Setup, commands,
    disk::GatedDisk,
    memory::{Layout, Prps},
    ram,
    random::Random,
};

/// Blocks of a test disk.
fn blocks(block: u32) -> u64 {
    (4 << 20) / u64::from(block)
}

fn deallocate(m: &mut Machine, ranges: &[(u64, u32)]) -> Status {
    let (buffer, prps) = m.data(4096);
    let list: Vec<DsmRange> = ranges
        .iter()
        .map(|(slba, n)| DsmRange { slba: (*slba).into(), length: (*n).into(), ..Default::default() })
        .collect();
    m.memory.write(buffer, list.as_bytes());
    m.status(1, commands::deallocate(u32::try_from(ranges.len()).unwrap(), prps))
}

/// Random commands against a plain copy of the disk.
#[test]
fn what_is_written_is_read_back_with_every_block_and_page_size() {
    for (seed, (block, mps)) in (0..).zip([(512, 0), (4096, 0), (512, 1), (4096, 2), (512, 4), (4096, 4)]) {
        let layout = Layout::ALL[usize::try_from(seed % 3).unwrap()];
        let mut m =
            Machine::boot(Config::new("X", vec![Arc::new(ram(block))]), Setup { layout, mps, ..Setup::default() });
        m.create_pair(1, 16, Bells::Register);
        let mut random = Random::new(seed);
        let mut model = vec![0; 4 << 20];
        // One arena for all commands: 512 KiB of data at any dword, and a page of list.
        let arena = m.buffer((512 << 10) + 2 * m.page);
        for _ in 0..120 {
            let most = if random.one_in(8) { (512 << 10) / u64::from(block) } else { 40 };
            let count = 1 + random.below(most);
            let lba = random.below(blocks(block) - count);
            let bytes = count * u64::from(block);
            let (from, len) = (usize::try_from(lba * u64::from(block)).unwrap(), usize::try_from(bytes).unwrap());
            let n = u32::try_from(count).unwrap();
            let buffer = arena + 4 * random.below(m.page / 4);
            match random.below(8) {
                0..3 => {
                    let data = random.bytes(len);
                    m.memory.write(buffer, &data);
                    let prps = m.memory.prps(m.page, buffer, bytes);
                    m.ok(1, commands::write(lba, n, prps));
                    model[from..from + len].copy_from_slice(&data);
                }
                3..6 => {
                    m.memory.write(buffer, &vec![0xaa; len + 8]);
                    let prps = m.memory.prps(m.page, buffer, bytes);
                    m.ok(1, commands::read(lba, n, prps));
                    assert!(m.memory.read(buffer, len) == model[from..from + len], "{block}, MPS {mps}, {lba}+{n}");
                    assert_eq!(m.memory.read(buffer + bytes, 8), [0xaa; 8], "and not a byte more");
                }
                6 => {
                    m.ok(1, commands::write_zeroes(lba, n));
                    model[from..from + len].fill(0);
                }
                _ => {
                    assert_eq!(deallocate(&mut m, &[(lba, n)]), Status::SUCCESS);
                    model[from..from + len].fill(0);
                }
            }
        }
    }
}

#[test]
fn the_last_block_is_there_and_nothing_after_it() {
    for block in [512, 4096] {
        let mut m = Machine::with_queue(ram(block));
        let end = blocks(block);
        m.write_blocks(1, end - 1, &vec![3; block as usize], block);
        assert_eq!(m.read_blocks(1, end - 1, 1, block), vec![3; block as usize]);
        let (_, prps) = m.data(65536);
        let refused = Status::LBA_OUT_OF_RANGE.with_dnr();
        for (lba, n) in
            [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 4), (1 << 63, 1), (1 << 55, 8), (1 << 52, 8)]
        {
            for sqe in [commands::read(lba, n, prps), commands::write(lba, n, prps), commands::write_zeroes(lba, n)] {
                assert_eq!(m.status(1, sqe), refused, "{lba:#x}+{n}, opcode {}", sqe.opcode);
            }
            assert_eq!(deallocate(&mut m, &[(0, 1), (lba, n)]), refused);
        }
        assert_eq!(m.read_blocks(1, end - 1, 1, block), vec![3; block as usize]);
    }
}

/// Identify Controller, MDTS: 2^8 pages of 4 KiB, whatever CC.MPS is.
#[test]
fn transfers_up_to_mdts_are_carried_out_and_longer_ones_are_refused() {
    for (block, mps) in [(512, 0), (4096, 0), (4096, 4)] {
        let disk = ram(block);
        let mut m = Machine::boot(Config::new("X", vec![Arc::new(disk)]), Setup { mps, ..Setup::default() });
        m.create_pair(1, 16, Bells::Register);
        let most = (1 << 20) / block;
        let data = Random::new(1).bytes(1 << 20);
        m.write_blocks(1, 1, &data, block);
        assert!(m.read_blocks(1, 1, most, block) == data);
        let (_, prps) = m.data((1 << 20) + 4096);
        for sqe in [commands::read(0, most + 1, prps), commands::write(0, most + 1, prps)] {
            assert_eq!(m.status(1, sqe), Status::INVALID_FIELD.with_dnr());
        }
        // It is no limit for commands without data.
        m.ok(1, commands::write_zeroes(0, u32::try_from(blocks(block)).unwrap()));
        assert!(m.read_blocks(1, 1, most, block).iter().all(|b| *b == 0));
    }
}

#[test]
fn unknown_namespaces_are_refused_by_every_command() {
    let mut m = Machine::with_queue(ram(512));
    let (_, prps) = m.data(4096);
    for nsid in [0, 2, 0x8000_0001, NSID_BROADCAST - 1, NSID_BROADCAST] {
        for sqe in [
            commands::read(0, 1, prps),
            commands::write(0, 1, prps),
            commands::write_zeroes(0, 1),
            commands::deallocate(1, prps),
            commands::flush(0),
        ] {
            let flush_all = sqe.opcode == 0 && nsid == NSID_BROADCAST;
            let status = m.status(1, SubmissionQueueEntry { nsid: nsid.into(), ..sqe });
            let expected = if flush_all { Status::SUCCESS } else { Status::INVALID_NAMESPACE.with_dnr() };
            assert_eq!(status, expected, "{nsid:#x}, opcode {}", sqe.opcode);
        }
    }
}

#[test]
fn namespaces_are_apart() {
    let mut m = Machine::boot(Config::new("X", vec![Arc::new(ram(512)), Arc::new(ram(4096))]), Setup::default());
    m.create_pair(1, 16, Bells::Register);
    let (buffer, prps) = m.data(4096);
    m.memory.write(buffer, &[9; 4096]);
    m.ok(1, SubmissionQueueEntry { nsid: 2.into(), ..commands::write(0, 1, prps) });
    assert_eq!(m.read_blocks(1, 0, 8, 512), [0; 4096]);
    m.memory.write(buffer, &[0; 4096]);
    m.ok(1, SubmissionQueueEntry { nsid: 2.into(), ..commands::read(0, 1, prps) });
    assert_eq!(m.memory.read(buffer, 4096), [9; 4096]);
}

#[test]
fn a_read_only_namespace_is_only_read() {
    let disk = GatedDisk::with(512, |c| c.read_only = true);
    let mut m = Machine::with_queue(disk.clone());
    m.read_blocks(1, 0, 1, 512);
    let (_, prps) = m.data(4096);
    for sqe in [commands::write(0, 1, prps), commands::write_zeroes(0, 1), commands::deallocate(1, prps)] {
        assert_eq!(m.status(1, sqe), Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
    }
    m.ok(1, commands::flush(1));
    assert_eq!(disk.seen(), [Operation::Read]);
}

#[test]
fn flush_reaches_each_cache_once() {
    let plain = GatedDisk::new(512);
    let (a, b) = (GatedDisk::with(512, |c| c.volatile_cache = true), GatedDisk::with(512, |c| c.volatile_cache = true));
    let disks: Vec<Arc<dyn block::BlockDevice>> =
        vec![Arc::new(a.clone()), Arc::new(plain.clone()), Arc::new(b.clone())];
    let mut m = Machine::boot(Config::new("X", disks), Setup::default());
    m.create_pair(1, 16, Bells::Register);
    m.ok(1, commands::flush(2));
    m.ok(1, commands::flush(1));
    assert_eq!((a.seen().len(), plain.seen().len(), b.seen().len()), (1, 0, 0));
    // NVMe Base 2.1 §7.1: FFFFFFFFh is all of them, and it waits for the last.
    a.close_gate();
    b.close_gate();
    let cid = m.submit(1, commands::flush(NSID_BROADCAST));
    m.settle();
    b.release_all();
    m.settle_and_serve();
    assert!(m.take(1, cid).is_none());
    a.release_all();
    assert_eq!(m.wait(1, cid).status(), Status::SUCCESS);
    assert_eq!((a.seen().len(), plain.seen().len(), b.seen().len()), (2, 0, 1));
}

#[test]
fn force_unit_access_and_deallocate_bits_reach_the_disk() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    let (_, prps) = m.data(512);
    let with =
        |sqe: SubmissionQueueEntry, bits: u32| SubmissionQueueEntry { cdw12: (sqe.cdw12.get() | bits).into(), ..sqe };
    let (fua, deac) = (1 << 30, 1 << 25);
    m.ok(1, with(commands::write(0, 1, prps), fua));
    m.ok(1, with(commands::read(0, 1, prps), fua));
    m.ok(1, with(commands::write_zeroes(0, 1), fua));
    m.ok(1, with(commands::write_zeroes(0, 1), deac));
    assert_eq!(
        disk.seen(),
        [
            Operation::Write { fua: true },
            Operation::Read,
            Operation::WriteZeroes { may_unmap: false, fua: true },
            Operation::WriteZeroes { may_unmap: true, fua: false },
        ]
    );
}

#[test]
fn protection_information_needs_a_format_that_has_it() {
    let mut m = Machine::with_queue(ram(512));
    let (_, prps) = m.data(512);
    for sqe in [commands::read(0, 1, prps), commands::write(0, 1, prps), commands::write_zeroes(0, 1)] {
        for bit in 26..30 {
            let sqe = SubmissionQueueEntry { cdw12: (1 << bit).into(), ..sqe };
            assert_eq!(m.status(1, sqe), Status::INVALID_FIELD.with_dnr(), "opcode {}, bit {bit}", sqe.opcode);
        }
    }
}

#[test]
fn dataset_management_takes_up_to_256_ranges() {
    let mut m = Machine::with_queue(ram(512));
    m.write_blocks(1, 0, &vec![5; 1 << 20], 512);
    // Every other block; one of the ranges is empty.
    let mut ranges: Vec<(u64, u32)> = (0..256).map(|i| (2 * i, 1)).collect();
    ranges[7].1 = 0;
    assert_eq!(deallocate(&mut m, &ranges), Status::SUCCESS);
    let data = m.read_blocks(1, 0, 512, 512);
    for (i, block) in data.as_chunks::<512>().0.iter().enumerate() {
        let gone = i % 2 == 0 && i != 14;
        assert_eq!(block[0], if gone { 0 } else { 5 }, "block {i}");
    }
    // One bad range, and nothing is given up.
    m.write_blocks(1, 0, &[5; 512], 512);
    ranges[255].0 = blocks(512);
    assert_eq!(deallocate(&mut m, &ranges), Status::LBA_OUT_OF_RANGE.with_dnr());
    assert_eq!(m.read_blocks(1, 0, 1, 512), [5; 512]);
}

#[test]
fn dataset_management_is_a_hint_where_the_disk_has_no_use_for_it() {
    let disk = GatedDisk::with(512, |c| c.discard = false);
    let mut m = Machine::with_queue(disk.clone());
    assert_eq!(deallocate(&mut m, &[(0, 8)]), Status::SUCCESS);
    // Integral read and write are hints, and their list is not even read.
    let sqe = SubmissionQueueEntry { cdw11: 3.into(), ..commands::deallocate(4, Prps { prp1: 1, prp2: 1 }) };
    m.ok(1, sqe);
    assert_eq!(disk.seen(), []);
    assert_eq!(
        m.status(1, commands::deallocate(1, Prps { prp1: m.memory.nowhere(), prp2: 0 })),
        Status::DATA_TRANSFER_ERROR.with_dnr()
    );
}

#[test]
fn the_null_disk_leaves_the_buffer_or_zeroes_it() {
    for zeroes in [false, true] {
        let mut m = Machine::with_queue(NullDevice::new(64 << 30, 512, zeroes).unwrap());
        let (buffer, prps) = m.data(8192);
        m.memory.write(buffer, &[6; 8192]);
        m.ok(1, commands::read((64 << 21) - 16, 16, prps));
        assert_eq!(m.memory.read(buffer, 8192), [if zeroes { 0 } else { 6 }; 8192]);
    }
}

#[test]
fn completions_come_in_the_disks_order_with_their_own_ids() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    let mut random = Random::new(3);
    disk.close_gate();
    for _ in 0..50 {
        let cids: Vec<u16> = (0..20).map(|lba| m.submit(1, commands::write_zeroes(lba, 1))).collect();
        while m.outstanding(1) > 0 {
            m.settle();
            disk.release_randomly(&mut random);
            m.settle_and_serve();
        }
        for cid in cids {
            assert_eq!(m.take(1, cid).unwrap().status(), Status::SUCCESS);
        }
    }
}

/// The device has tags of its own: what the host calls its commands is the host's affair.
#[test]
fn duplicate_command_ids_in_flight_are_each_completed() {
    let disk = GatedDisk::new(512);
    let mut m = Machine::with_queue(disk.clone());
    disk.close_gate();
    for lba in 0..10 {
        m.push_as(1, SubmissionQueueEntry { cid: 7.into(), ..commands::write_zeroes(lba, 1) });
    }
    m.ring(1);
    m.settle();
    assert_eq!((disk.held(), m.outstanding(1)), (10, 10));
    disk.release_all();
    m.drain(1);
}
