//! Clients that break the rules.

use std::os::fd::{AsFd, OwnedFd};

use dma::Mapping;
use rustix::io::Errno;
use shadowbell_vfio_user::codec::wire::{DmaMap, Header, SetIrqs, TYPE_COMMAND, command, irq};
use zerocopy::IntoBytes;

use crate::{
    device::RAISE_MSIX,
    rig::{Rig, message, new_eventfd, posted, read_message, signalled, wait_until, write_message},
};

#[test]
fn a_size_that_cannot_be_ends_the_connection_before_anything_is_allocated() {
    let rig = Rig::new();
    for size in [0, 1, 15, (1 << 20) + 33, 1 << 30, u32::MAX] {
        let mut raw = rig.greeted();
        raw.send(Header { message_id: 1, command: command::REGION_WRITE, size, flags: 0, error: 0 }.as_bytes());
        raw.expect_closed();
    }
    assert_eq!(rig.statistics().expelled_clients, 6);
    // What came before it was done.
    let mut raw = rig.greeted();
    let mut bytes = posted(0, 0, &[3]);
    bytes.extend([0xff; 64]);
    raw.send(&bytes);
    raw.expect_closed();
    assert_eq!(rig.device.writes(), [(0, 0, vec![3])]);
}

#[test]
fn payloads_that_lie_about_their_length_are_answered_and_skipped() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let invalid = u32::try_from(Errno::INVAL.raw_os_error()).unwrap();
    let mut sent = 0;
    for number in 1..=15 {
        if matches!(number, command::VERSION | command::DMA_READ | command::DMA_WRITE | command::DIRTY_PAGES) {
            continue;
        }
        for len in 0..16 {
            if number == command::DEVICE_RESET {
                continue;
            }
            raw.send(&message(number, number, TYPE_COMMAND, &vec![0xff; len]));
            assert_eq!(raw.receive_error(number), invalid, "command {number} with {len} bytes");
            sent += 1;
        }
    }
    // Counts that promise more, and less, than there is.
    for count in [3u32, 5, 1 << 20, u32::MAX] {
        let payload = [&[0; 12][..], &count.to_ne_bytes(), &[1; 4]].concat();
        raw.send(&message(8, command::REGION_WRITE, TYPE_COMMAND, &payload));
        assert_eq!(raw.receive_error(8), invalid, "count {count}");
        sent += 1;
    }
    raw.sync();
    assert_eq!(rig.device.writes(), []);
    assert_eq!(rig.statistics().malformed, sent);
}

#[test]
fn descriptors_where_none_belong_are_closed() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    raw.send_fds(&read_message(1, 7, 0, 4), &[one.as_fd(), one.as_fd()]);
    assert_eq!(raw.receive().0.message_id, 1);
    raw.send_fds(&posted(0, 0, &[1]), &[one.as_fd()]);
    raw.send_fds(&message(2, 200, TYPE_COMMAND, &[0; 40]), &[one.as_fd(); 16]);
    assert_ne!(raw.receive_error(2), 0);
    raw.sync();
    assert_eq!(rig.statistics().surplus_fds, 19);
    drop(one);
    other.set_nonblocking(true).unwrap();
    wait_until("all copies closed", || matches!((&other).read_byte(), Some(0)));
}

trait ReadByte {
    /// Bytes read: 0 at the end, `None` when nothing has come yet.
    fn read_byte(&mut self) -> Option<usize>;
}

impl<T: std::io::Read> ReadByte for T {
    fn read_byte(&mut self) -> Option<usize> {
        self.read(&mut [0]).ok()
    }
}

#[test]
fn more_descriptors_than_a_message_may_carry_are_closed() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let event = new_eventfd();
    let set = |count| {
        let flags = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
        let set = SetIrqs { argsz: 20, flags, index: irq::MSIX, start: 0, count };
        message(3, command::DEVICE_SET_IRQS, TYPE_COMMAND, set.as_bytes())
    };
    raw.send_fds(&set(40), &[event.as_fd(); 40]);
    assert_ne!(raw.receive_error(3), 0, "only 16 arrive, which is not what it promises");
    raw.send_fds(&set(17), &[event.as_fd(); 17]);
    assert_ne!(raw.receive_error(3), 0);
    raw.send_fds(&set(16), &[event.as_fd(); 16]);
    assert_eq!(raw.receive_error(3), 0);
    // Spread over the bytes of one message: the first 16 count.
    let map = message(4, command::DMA_MAP, TYPE_COMMAND, DmaMap::default().as_bytes());
    for byte in map {
        raw.send_fds(&[byte], &[event.as_fd(); 16]);
    }
    assert_ne!(raw.receive_error(4), 0);
    raw.sync();
    assert!(rig.statistics().surplus_fds > 2);
}

#[test]
fn descriptors_stay_with_their_message_however_the_stream_is_cut() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let (_ram, fd) = Mapping::new_shared("ram", 1 << 20).unwrap();
    let events: Vec<OwnedFd> = (0..3).map(|_| new_eventfd()).collect();
    let map = |address| {
        let map = DmaMap { argsz: 32, flags: 3, offset: 0, address, size: 0x1000 };
        message(1, command::DMA_MAP, TYPE_COMMAND, map.as_bytes())
    };
    let set = |start| {
        let flags = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
        let set = SetIrqs { argsz: 20, flags, index: irq::MSIX, start, count: 1 };
        message(2, command::DEVICE_SET_IRQS, TYPE_COMMAND, set.as_bytes())
    };
    // A long write keeps the server's buffer from ending at a message, in each round elsewhere.
    for round in 0..300usize {
        let address = (round as u64) << 20;
        raw.send(&posted(4, 0, &vec![0; 1 + round * 13 % 4000]));
        raw.send(&map(address));
        raw.send_fds(&map(address + 0x1000), &[fd.as_fd()]);
        raw.send(&map(address + 0x2000));
        let vector = round % 3;
        let bytes = set(u32::try_from(vector).unwrap());
        raw.send_fds(&bytes[..5], &[events[vector].as_fd()]);
        raw.send(&bytes[5..]);
        raw.send(&posted(0, RAISE_MSIX, &[u8::try_from(vector).unwrap()]));
        raw.send_fds(&map(address + 0x3000), &[fd.as_fd()]);
        for id in [1, 1, 1, 2, 1] {
            assert_eq!(raw.receive_error(id), 0, "round {round}");
        }
        raw.sync();
        assert!(signalled(&events[vector]), "round {round}");
        // 1 and 3 have a descriptor, 0 and 2 have none.
        for (page, expected) in [(0u64, 0), (1, 1), (2, 0), (3, 1)] {
            raw.send(&posted(0, crate::device::DMA, &(address + page * 0x1000).to_le_bytes()));
            raw.send(&read_message(5, 0, crate::device::DMA, 1));
            assert_eq!(raw.receive().1[16], expected, "round {round}, page {page}");
        }
    }
}

#[test]
fn random_bytes_after_the_greeting_harm_nobody() {
    let rig = Rig::new();
    // xorshift: the same bytes each time.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..300 {
        let mut raw = rig.greeted();
        for _ in 0..20 {
            let payload: Vec<u8> =
                (0..next() % 64).map(|_| if next() % 3 == 0 { 0xff } else { next().to_le_bytes()[0] % 8 }).collect();
            let number = u16::try_from(next() % 20).unwrap();
            let flags = if next() % 2 == 0 { 0x10 } else { 0 };
            raw.try_send(&message(1, number, flags, &payload));
        }
        let bytes: Vec<u8> = (0..256).flat_map(|_| next().to_le_bytes()).collect();
        raw.try_send(&bytes);
    }
    rig.device.release();
    rig.client().device_info().unwrap();
}

#[test]
fn a_write_to_the_whole_of_a_region_in_one_message_is_one_access() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    raw.send(&write_message(1, TYPE_COMMAND, 4, 0, &[7; 8192]));
    assert_eq!(raw.receive_error(1), 0);
    assert_eq!(rig.device.writes(), [(4, 0, vec![7; 8192])]);
}
