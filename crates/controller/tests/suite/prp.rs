//! Physical Region Pages (NVMe Base 2.1 §4.3.1).

use std::sync::Arc;

use nvme::Status;
use shadowbell_controller::Config;

use crate::host::{
    Bells, Machine, Setup, commands,
    memory::{Layout, Prps},
    ram,
    random::Random,
};

fn machine(mps: u8, layout: Layout) -> Machine {
    let mut m = Machine::boot(Config::new("X", vec![Arc::new(ram(512))]), Setup { layout, mps, ..Setup::default() });
    m.create_pair(1, 16, Bells::Register);
    m
}

/// Writes `len` bytes from where `prps` says and checks what the disk got.
fn check_write(m: &mut Machine, prps: Prps, expected: &[u8], what: &str) {
    let n = u32::try_from(expected.len()).unwrap() / 512;
    m.ok(1, commands::write_zeroes(0, n));
    m.ok(1, commands::write(0, n, prps));
    assert!(m.read_blocks(1, 0, n, 512) == expected, "{what}");
}

#[test]
fn any_dword_offset_and_any_length() {
    for (mps, layout) in [(0, Layout::High), (0, Layout::Pieces), (4, Layout::Low)] {
        let mut m = machine(mps, layout);
        let page = m.page;
        let buffer = m.buffer(8 * page);
        let data = Random::new(9).bytes(usize::try_from(8 * page).unwrap());
        m.memory.write(buffer, &data);
        for offset in [0, 4, 512, page / 2 + 4, page - 512, page - 4] {
            for len in [512, 1024, page - 512, page, page + 512, 2 * page, 3 * page, 4 * page + 1024] {
                let prps = m.memory.prps(page, buffer + offset, len);
                let from = usize::try_from(offset).unwrap();
                let expected = &data[from..from + usize::try_from(len).unwrap()];
                check_write(&mut m, prps, expected, &format!("{layout:?}, page {page}, {offset:#x}+{len:#x}"));
            }
        }
    }
}

/// Pages in any order, the same one twice.
#[test]
fn pages_need_not_follow_each_other() {
    let mut m = machine(0, Layout::High);
    let pages: Vec<u64> = (0..8).map(|_| m.buffer(4096)).collect();
    for (i, page) in (0u8..).zip(&pages) {
        m.memory.write(*page, &[i; 4096]);
    }
    let order = [7u8, 0, 3, 3, 6, 1, 7, 2];
    let entries: Vec<u64> = order[1..].iter().map(|i| pages[usize::from(*i)]).collect();
    let prps = Prps { prp1: pages[7], prp2: m.memory.list(4096, &entries, 0) };
    let expected: Vec<u8> = order.iter().flat_map(|i| [*i; 4096]).collect();
    check_write(&mut m, prps, &expected, "scattered");
}

/// The list may start at any qword, the very last one of its page included; then that entry points to the next list.
#[test]
fn lists_start_anywhere_and_chain() {
    for layout in [Layout::High, Layout::Pieces] {
        let mut m = machine(0, layout);
        let len = 40 * 4096;
        let buffer = m.buffer(len);
        let data = Random::new(2).bytes(usize::try_from(len).unwrap());
        m.memory.write(buffer, &data);
        // Room for 39 entries, for one less, for two, for one.
        for list_offset in [0, 8, 4096 - 39 * 8, 4096 - 38 * 8, 4096 - 2 * 8, 4096 - 8] {
            let prps = m.memory.prps_with_list_at(4096, buffer, len, list_offset);
            assert_eq!(prps.prp2 % 4096, list_offset);
            check_write(&mut m, prps, &data, &format!("list at {list_offset:#x}"));
        }
    }
}

#[test]
fn a_list_that_just_fits_has_no_chain() {
    let mut m = machine(0, Layout::High);
    let buffer = m.buffer(256 * 4096);
    // Two entries at the end of a page: three pages of data. What follows is no list.
    let prps = m.memory.prps_with_list_at(4096, buffer, 3 * 4096, 4096 - 16);
    m.ok(1, commands::write(0, 24, prps));
    // One page more, and the last entry is the pointer to the next list.
    let entries = [buffer + 4096, m.memory.nowhere()];
    let at = m.buffer(4096) + 4096 - 16;
    m.memory.write_u64s(at, &entries);
    let sqe = commands::write(0, 32, Prps { prp1: buffer, prp2: at });
    assert_eq!(m.status(1, sqe), Status::DATA_TRANSFER_ERROR.with_dnr());
}

#[test]
fn transfers_of_a_mebibyte_chain_with_small_pages_only() {
    for mps in [0, 2, 4] {
        let mut m = machine(mps, Layout::High);
        let page = m.page;
        let buffer = m.buffer((1 << 20) + page);
        let data = Random::new(4).bytes(1 << 20);
        m.memory.write(buffer + 4, &data);
        for list_offset in [0, page - 8, page - 24] {
            let prps = m.memory.prps_with_list_at(page, buffer + 4, 1 << 20, list_offset);
            check_write(&mut m, prps, &data, &format!("page {page}, list at {list_offset:#x}"));
        }
    }
}

#[test]
fn offsets_that_may_not_be_are_refused() {
    for mps in [0, 4] {
        let mut m = machine(mps, Layout::High);
        let page = m.page;
        let buffer = m.buffer(8 * page);
        let good = m.memory.prps(page, buffer, 4 * page);
        let blocks = |pages: u64| u32::try_from(pages * page / 512).unwrap();
        let bad = Status::INVALID_PRP_OFFSET.with_dnr();
        for offset in [1, 2, 3] {
            let sqe = commands::read(0, 1, Prps { prp1: buffer + offset, prp2: 0 });
            assert_eq!(m.status(1, sqe), bad, "PRP1 is a dword address");
        }
        for offset in [4, 512, page / 2] {
            let sqe = commands::read(0, blocks(2), Prps { prp1: buffer, prp2: buffer + offset });
            assert_eq!(m.status(1, sqe), bad, "PRP2 is a page");
        }
        for offset in [1, 2, 4] {
            // Good entries, but for where they are.
            m.memory.write_u64s(good.prp2 + offset, &[buffer + page, buffer + 2 * page, buffer + 3 * page]);
            let sqe = commands::read(0, blocks(4), Prps { prp1: buffer, prp2: good.prp2 + offset });
            assert_eq!(m.status(1, sqe), bad, "a list is a qword address");
        }
        for position in [0, 1, 2] {
            let mut entries = [buffer + page, buffer + 2 * page, buffer + 3 * page];
            entries[position] += 8;
            let prps = Prps { prp1: buffer, prp2: m.memory.list(page, &entries, 0) };
            assert_eq!(m.status(1, commands::read(0, blocks(4), prps)), bad, "entry {position} is a page");
        }
        // The pointer to the next list is a page too.
        let next = m.memory.list(page, &[buffer + 2 * page, buffer + 3 * page], 8);
        let at = m.buffer(page) + page - 16;
        m.memory.write_u64s(at, &[buffer + page, next]);
        let sqe = commands::read(0, blocks(4), Prps { prp1: buffer, prp2: at });
        assert_eq!(m.status(1, sqe), bad, "later lists start at a page");
        // A page of 4 KiB is none of 64 KiB.
        if mps == 4 {
            let sqe = commands::read(0, blocks(2), Prps { prp1: buffer, prp2: buffer + 4096 });
            assert_eq!(m.status(1, sqe), bad);
        }
        assert!(m.memory.read(buffer, 4096).iter().all(|b| *b == 0));
    }
}

/// CVE-2021-3929: a pointer to the device's own BAR is a pointer to nothing; see also the other bad addresses.
#[test]
fn pointers_to_nothing_are_transfer_errors() {
    let mut m = machine(0, Layout::High);
    let (buffer, nowhere) = (m.buffer(4 * 4096), m.memory.nowhere());
    // Where a guest may have put BAR0.
    m.config_write(0x10, &0xfe00_0000u32.to_le_bytes());
    let dte = Status::DATA_TRANSFER_ERROR.with_dnr();
    for bad in [nowhere, 0, 0xfe00_0000, 0xfe00_1000, 1 << 63, u64::MAX - 0xfff] {
        let list = m.memory.list(4096, &[buffer, bad, buffer], 0);
        for (what, blocks, prps) in [
            ("PRP1", 8, Prps { prp1: bad, prp2: 0 }),
            ("PRP2", 16, Prps { prp1: buffer, prp2: bad }),
            ("the list", 32, Prps { prp1: buffer, prp2: bad }),
            ("an entry", 32, Prps { prp1: buffer, prp2: list }),
        ] {
            assert_eq!(m.status(1, commands::write(0, blocks, prps)), dte, "{what} at {bad:#x}");
            assert_eq!(m.status(1, commands::read(0, blocks, prps)), dte, "{what} at {bad:#x}");
        }
    }
    let sqe = commands::read(0, 1, Prps { prp1: u64::MAX - 3, prp2: 0 });
    assert_eq!(m.status(1, sqe), dte, "wraps around");
    // A list whose last entry lies behind the end of memory.
    let at = nowhere - 16;
    m.memory.write_u64s(at, &[buffer, buffer]);
    m.ok(1, commands::read(0, 24, Prps { prp1: buffer, prp2: at }));
    m.memory.write_u64s(at, &[buffer, nowhere]);
    assert_eq!(m.status(1, commands::read(0, 32, Prps { prp1: buffer, prp2: at })), dte);
}

/// A list that points to itself ends when the data does.
#[test]
fn a_list_that_chains_to_itself_ends() {
    let mut m = machine(0, Layout::High);
    let (buffer, list) = (m.buffer(4096), m.buffer(4096));
    m.memory.write(list, &vec![0; 4096]);
    let entries: Vec<u64> = std::iter::repeat_n(buffer, 511).chain([list]).collect();
    m.memory.write_u64s(list, &entries);
    m.ok(1, commands::read(0, 2048, Prps { prp1: buffer, prp2: list + 4096 - 8 }));
    // Every entry is the list itself.
    m.memory.write_u64s(list, &[list; 512]);
    m.ok(1, commands::write(0, 2048, Prps { prp1: buffer, prp2: list }));
}

/// Address 0 is a legal address.
#[test]
fn address_0_is_memory_where_there_is_memory() {
    let mut m = machine(0, Layout::Low);
    let old = m.memory.read(0, 4096);
    m.memory.write(0, &[8; 512]);
    m.ok(1, commands::write(0, 1, Prps { prp1: 0, prp2: 0 }));
    m.memory.write(0, &old);
    assert_eq!(m.read_blocks(1, 0, 1, 512), [8; 512]);
}
