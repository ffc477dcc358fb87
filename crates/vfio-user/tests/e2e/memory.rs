//! DMA_MAP, DMA_UNMAP, DEVICE_RESET: who may use the guest's memory, and until when.

use std::{os::fd::AsFd, sync::atomic::Ordering};

use dma::{Mapping, Protection};
use rustix::io::Errno;
use shadowbell_vfio_user::{
    Client, ClientError,
    codec::wire::{DmaMap, DmaUnmap, TYPE_COMMAND, UNMAP_FLAG_ALL, UNMAP_FLAG_DIRTY_BITMAP, command},
};
use zerocopy::IntoBytes;

use crate::{
    device::{DMA, START, SWAP},
    rig::{Rig, message, posted, wait_until},
};

const RW: Protection = Protection::READ_WRITE;

/// Whether the device can write to a guest address.
fn reaches(client: &mut Client, address: u64) -> bool {
    client.region_write(0, DMA, &address.to_le_bytes()).unwrap();
    let mut worked = [0];
    client.region_read(0, DMA, &mut worked).unwrap();
    worked[0] == 1
}

fn refused(result: Result<impl Sized, ClientError>) -> Errno {
    match result.map(drop) {
        Err(ClientError::Refused { error, .. }) => Errno::from_io_error(&error).unwrap(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn memory_is_reached_through_the_descriptor_that_came_with_it() {
    let rig = Rig::new();
    let (ram, fd) = Mapping::new_shared("ram", 1 << 20).unwrap();
    let mut client = rig.client();
    // As QEMU does it: ROM without a descriptor, RAM with one, in two parts of the same file.
    client.dma_map(0xc0000, 0x20000, Protection::READ, None).unwrap();
    client.dma_map(0, 0x80000, RW, Some((fd.as_fd(), 0))).unwrap();
    client.dma_map(0x1_0000_0000, 0x80000, RW, Some((fd.as_fd(), 0x80000))).unwrap();
    assert!(reaches(&mut client, 0x1_0000_0010));
    let mut bytes = [0; 4];
    ram.window().read(0x80010, &mut bytes).unwrap();
    assert_eq!(&bytes, b"DMA!");
    assert!(reaches(&mut client, 0));
    assert!(!reaches(&mut client, 0xc0000), "memory that came without a descriptor");
    assert!(!reaches(&mut client, 0x80000), "nothing is there");
}

#[test]
fn live_memory_can_be_taken_away_split_and_given_again() {
    let rig = Rig::new();
    let (ram, fd) = Mapping::new_shared("ram", 0x40000).unwrap();
    let mut client = rig.client();
    client.dma_map(0, 0x40000, RW, Some((fd.as_fd(), 0))).unwrap();
    for round in 0..50u64 {
        assert!(reaches(&mut client, 0x3000));
        assert_eq!(client.dma_unmap(0, 0x40000).unwrap(), 0x40000);
        assert!(!reaches(&mut client, 0x3000));
        let cut = 0x1000 * (1 + round % 7);
        client.dma_map(0, cut, RW, Some((fd.as_fd(), 0))).unwrap();
        client.dma_map(cut, 0x40000 - cut, RW, Some((fd.as_fd(), cut))).unwrap();
        ram.window().write(0x3000, &[0; 4]).unwrap();
        assert!(reaches(&mut client, 0x3000));
        let mut bytes = [0; 4];
        ram.window().read(0x3000, &mut bytes).unwrap();
        assert_eq!(&bytes, b"DMA!");
        client.dma_unmap(cut, 0x40000 - cut).unwrap();
        client.dma_unmap(0, cut).unwrap();
        client.dma_map(0, 0x40000, RW, Some((fd.as_fd(), 0))).unwrap();
    }
}

#[test]
fn ranges_that_cannot_be_are_refused_and_change_nothing() {
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 0x4000).unwrap();
    let file = |offset| Some((fd.as_fd(), offset));
    let mut client = rig.client();
    client.dma_map(0x10000, 0x4000, RW, file(0)).unwrap();
    assert_eq!(refused(client.dma_map(0x10000, 0x4000, RW, file(0))), Errno::EXIST);
    assert_eq!(refused(client.dma_map(0x13000, 0x4000, RW, None)), Errno::EXIST);
    assert_eq!(refused(client.dma_map(0x20000, 0x5000, RW, file(0))), Errno::INVAL, "longer than the file");
    assert_eq!(refused(client.dma_map(0x20000, 0x1000, RW, file(0x4000))), Errno::INVAL);
    assert_eq!(refused(client.dma_map(0x20000, 0x1000, RW, file(u64::MAX - 0xfff))), Errno::INVAL);
    assert_eq!(refused(client.dma_map(0x20000, 0x800, RW, file(0))), Errno::INVAL);
    assert_eq!(refused(client.dma_map(0x20000, 0, RW, None)), Errno::INVAL);
    assert_eq!(refused(client.dma_map(u64::MAX - 0xfff, 0x2000, RW, None)), Errno::INVAL);
    assert_eq!(refused(client.dma_unmap(0x10000, 0x1000)), Errno::NOENT, "a part");
    assert_eq!(refused(client.dma_unmap(0x80000, 0x1000)), Errno::NOENT);
    assert_eq!(refused(client.dma_unmap(0x10000, 0)), Errno::INVAL);
    assert_eq!(refused(client.dma_unmap(u64::MAX, 2)), Errno::INVAL);
    assert!(reaches(&mut client, 0x10000) && !reaches(&mut client, 0x20000));
    // A descriptor that is no memory is not worth QEMU's abort.
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    client.dma_map(0x30000, 0x1000, RW, Some((socket.as_fd(), 0))).unwrap();
    assert!(!reaches(&mut client, 0x30000));
    client.dma_unmap(0x30000, 0x1000).unwrap();
}

#[test]
fn unmap_flags_are_understood_or_refused() {
    let rig = Rig::new();
    let mut client = rig.client();
    for i in 0..100 {
        client.dma_map(i << 20, 0x1000, RW, None).unwrap();
    }
    client.dma_unmap_all().unwrap();
    client.dma_map(0, 1 << 40, RW, None).unwrap();
    drop(client);

    let mut raw = rig.greeted();
    let unmap = |flags, address, size| {
        message(3, command::DMA_UNMAP, TYPE_COMMAND, DmaUnmap { argsz: 24, flags, address, size }.as_bytes())
    };
    let invalid = u32::try_from(Errno::INVAL.raw_os_error()).unwrap();
    raw.send(&unmap(UNMAP_FLAG_DIRTY_BITMAP, 0, 4096));
    assert_eq!(raw.receive_error(3), u32::try_from(Errno::NOTSUP.raw_os_error()).unwrap());
    raw.send(&unmap(UNMAP_FLAG_ALL, 0x1000, 0));
    assert_eq!(raw.receive_error(3), invalid);
    raw.send(&unmap(1 << 7, 0, 4096));
    assert_eq!(raw.receive_error(3), invalid);
    raw.send(&unmap(UNMAP_FLAG_ALL, 0, 0));
    assert_eq!(raw.receive_error(3), 0, "nothing to do is done at once");
}

#[test]
fn an_unmap_is_answered_when_no_request_uses_the_memory_and_later_messages_wait() {
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 0x2000).unwrap();
    let mut raw = rig.greeted();
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0, size: 0x1000 };
    raw.send_fds(&message(1, command::DMA_MAP, TYPE_COMMAND, map.as_bytes()), &[fd.as_fd()]);
    assert_eq!(raw.receive_error(1), 0);
    raw.send(&posted(0, START, &[1]));
    // Another range in between: the request holds a snapshot that is older than the last one.
    let other = DmaMap { address: 0x1000, ..map };
    raw.send_fds(&message(2, command::DMA_MAP, TYPE_COMMAND, other.as_bytes()), &[fd.as_fd()]);
    assert_eq!(raw.receive_error(2), 0);
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0, size: 0x1000 };
    raw.send(&message(3, command::DMA_UNMAP, TYPE_COMMAND, unmap.as_bytes()));
    raw.send(&posted(0, 8, &[7]));
    wait_until("unmap seen", || rig.statistics().messages[usize::from(command::DMA_UNMAP)] == 1);
    rig.statistics();
    assert_eq!(rig.device.writes().len(), 1, "the write behind the unmap waits");
    let rests = rig.statistics().rests;
    rig.statistics();
    assert!(rig.statistics().rests - rests < 1000, "it does not spin");
    rig.device.release();
    let (header, payload) = raw.receive();
    assert_eq!((header.message_id, header.flags), (3, 1));
    assert_eq!(payload, unmap.as_bytes());
    raw.sync();
    assert_eq!(rig.device.writes().len(), 2);
}

#[test]
fn a_reset_is_answered_when_nothing_is_in_flight() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    raw.send(&posted(0, START, &[1]));
    raw.send(&message(1, command::DEVICE_RESET, TYPE_COMMAND, &[]));
    raw.send(&posted(0, 8, &[7]));
    wait_until("reset", || rig.device.resets.load(Ordering::SeqCst) == 1);
    rig.statistics();
    assert_eq!(rig.device.writes().len(), 1);
    rig.device.release();
    assert_eq!(raw.receive_error(1), 0);
    raw.sync();
    assert_eq!(rig.device.writes().len(), 2);
}

#[test]
fn a_client_may_vanish_while_its_unmap_waits() {
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 0x1000).unwrap();
    let mut raw = rig.greeted();
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0, size: 0x1000 };
    raw.send_fds(&message(1, command::DMA_MAP, TYPE_COMMAND, map.as_bytes()), &[fd.as_fd()]);
    raw.send(&posted(0, START, &[1]));
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0, size: 0x1000 };
    raw.send(&message(3, command::DMA_UNMAP, TYPE_COMMAND, unmap.as_bytes()));
    wait_until("unmap seen", || rig.statistics().messages[usize::from(command::DMA_UNMAP)] == 1);
    drop(raw);
    wait_until("gone", || rig.device.resets.load(Ordering::SeqCst) == 1);
    rig.device.release();
    rig.client().device_info().unwrap();
}

#[test]
fn a_client_that_cuts_its_memory_short_loses_only_its_connection() {
    dma::sigbus::install();
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 0x4000).unwrap();
    let mut client = rig.client();
    client.dma_map(0, 0x4000, RW, Some((fd.as_fd(), 0))).unwrap();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    let _ = client.region_write(0, DMA, &0x2000u64.to_le_bytes());
    wait_until("expelled", || rig.statistics().expelled_clients == 1);
    rig.client().device_info().unwrap();
}

#[test]
fn hundreds_of_ranges_do_not_keep_their_descriptors_open() {
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 0x1000).unwrap();
    let mut client = rig.client();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for i in 0..600 {
        client.dma_map(i * 0x1000, 0x1000, RW, Some((fd.as_fd(), 0))).unwrap();
    }
    // Other tests run in this process, too.
    assert!(open() < before + 500);
    assert!(reaches(&mut client, 599 * 0x1000));
}

#[test]
fn a_descriptor_that_took_over_the_number_of_another_still_wakes_the_server() {
    let rig = Rig::new();
    let mut client = rig.client();
    for _ in 0..20 {
        client.region_write(0, START, &[1]).unwrap();
        client.region_write(0, SWAP, &[1]).unwrap();
        rig.device.release();
        wait_until("woken", || rig.device.in_flight.load(Ordering::SeqCst) == 0);
    }
}
