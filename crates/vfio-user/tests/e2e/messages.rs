//! What each message is answered with.

use rustix::io::Errno;
use shadowbell_vfio_user::codec::wire::{
    DeviceInfo, FLAG_ERROR, FLAG_NO_REPLY, Header, MultiWrite, RegionAccess, RegionInfo, RegionIoFds, TYPE_COMMAND,
    command, region,
};
use zerocopy::IntoBytes;

use crate::rig::{Rig, message, posted, read_message, write_message};

fn errno(errno: Errno) -> u32 {
    u32::try_from(errno.raw_os_error()).unwrap()
}

#[test]
fn our_own_client_sees_the_whole_device() {
    let rig = Rig::new();
    let mut client = rig.client();
    assert_eq!(client.capabilities().max_msg_fds, 16);
    assert!(client.capabilities().write_multiple);
    let info = client.device_info().unwrap();
    assert_eq!((info.flags, info.regions, info.irqs), (3, 9, 5));
    let sizes: Vec<_> = (0..9).map(|i| client.region_info(i).unwrap()).map(|r| (r.size, r.flags)).collect();
    assert_eq!(
        sizes,
        [(16384, 3), (0, 0), (0, 0), (0, 0), (8192, 3), (0, 0), (0, 0), (4096, 3), (0, 0)],
        "no region may be mapped, or QEMU stops posting writes"
    );
    let irqs: Vec<_> = (0..5).map(|i| client.irq_info(i).unwrap()).map(|i| (i.count, i.flags)).collect();
    assert_eq!(irqs, [(1, 7), (0, 0), (40, 1), (1, 1), (0, 0)]);
    client.region_write(0, 16, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    client.region_write_posted(0, 20, &[0xaa]).unwrap();
    client.region_write_multi_posted(&[(0, 16, &[0xbb]), (0, 22, &[0xcc, 0xdd])]).unwrap();
    let mut data = [0; 8];
    client.region_read(0, 16, &mut data).unwrap();
    assert_eq!(data, [0xbb, 2, 3, 4, 0xaa, 6, 0xcc, 0xdd]);
    client.reset().unwrap();
    client.region_read(0, 16, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    let stats = rig.statistics();
    assert_eq!((stats.posted, stats.malformed, stats.errors, stats.stray_accesses), (2, 0, 0, 0));
    assert!(stats.by_command().any(|(name, n)| name == "DEVICE_GET_REGION_INFO" && n == 9));
}

#[test]
fn posted_writes_are_never_answered_not_even_bad_ones() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    raw.send(&posted(0, 8, &[1, 2, 3, 4]));
    raw.send(&posted(0, 16384, &[1]));
    raw.send(&posted(9, 0, &[1]));
    raw.send(&posted(0, u64::MAX, &[1, 2]));
    let no_reply = TYPE_COMMAND | FLAG_NO_REPLY;
    for number in (0..30).filter(|&number| number != command::DEVICE_RESET) {
        raw.send(&message(1, number, no_reply, &[]));
        raw.send(&message(1, number, no_reply, &[0xff; 64]));
    }
    raw.send(&message(1, command::DEVICE_RESET, no_reply, &[]));
    raw.sync();
    assert_eq!(rig.device.writes(), [(0, 8, vec![1, 2, 3, 4])]);
    assert_eq!(rig.statistics().errors, 0);
}

#[test]
fn a_header_may_come_byte_by_byte() {
    let rig = Rig::new();
    let mut raw = rig.raw();
    let version = message(1, command::VERSION, TYPE_COMMAND, b"\0\0\0\0{\"capabilities\":{}}\0");
    for byte in version {
        raw.send(&[byte]);
    }
    assert_eq!(raw.receive_error(1), 0);
    for byte in write_message(2, TYPE_COMMAND, 0, 40, &[9, 8, 7]) {
        raw.send(&[byte]);
    }
    assert_eq!(raw.receive_error(2), 0);
    assert_eq!(rig.device.writes(), [(0, 40, vec![9, 8, 7])]);
}

#[test]
fn many_messages_may_come_at_once() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let mut bytes = Vec::new();
    for i in 0..5000u32 {
        bytes.extend(posted(0, u64::from(i % 512) * 8, &i.to_le_bytes()));
    }
    // Half a message at the end, which is completed later.
    let last = read_message(7, 0, 0, 4);
    bytes.extend(&last[..10]);
    raw.send(&bytes);
    raw.send(&last[10..]);
    let (header, payload) = raw.receive();
    assert_eq!(header.message_id, 7);
    assert_eq!(payload[16..], 4608u32.to_le_bytes());
    assert_eq!(rig.device.writes().len(), 5000);
}

#[test]
fn transfers_up_to_a_mebibyte_are_taken_and_longer_ones_refused() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    // Larger than the region: dropped, and read as ones.
    raw.send(&write_message(1, TYPE_COMMAND, 0, 0, &vec![1; 1 << 20]));
    assert_eq!(raw.receive_error(1), 0);
    raw.send(&read_message(2, 0, 0, 1 << 20));
    let (header, payload) = raw.receive();
    assert_eq!((header.message_id, payload.len()), (2, 16 + (1 << 20)));
    assert!(payload[16..].iter().all(|&b| b == 0xff));
    raw.send(&read_message(3, 0, 0, (1 << 20) + 1));
    assert_eq!(raw.receive_error(3), errno(Errno::INVAL));
    raw.send(&read_message(4, 0, 0, 16384));
    let (header, payload) = raw.receive();
    assert_eq!((header.message_id, payload.len()), (4, 16 + 16384));
    raw.sync();
}

#[test]
fn reads_outside_of_a_region_give_ones_and_are_counted() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let bad = [(0, 16384, 1), (0, 16380, 8), (1, 0, 4), (6, 0, 4), (7, 4096, 1), (7, 4095, 2), (8, 0, 1), (9, 0, 1)];
    for (region, offset, count) in bad.into_iter().chain([(u32::MAX, 0, 4), (0, u64::MAX, 4), (7, u64::MAX - 3, 4)]) {
        raw.send(&read_message(1, region, offset, count));
        let (header, payload) = raw.receive();
        assert_eq!(header.flags & FLAG_ERROR, 0, "region {region} offset {offset:#x}");
        assert_eq!(payload[..16], *RegionAccess { offset, region, count }.as_bytes());
        assert_eq!(payload[16..], vec![0xff; usize::try_from(count).unwrap()]);
    }
    raw.send(&write_message(2, TYPE_COMMAND, 7, 4094, &[0; 4]));
    assert_eq!(raw.receive_error(2), 0);
    raw.sync();
    assert_eq!(rig.statistics().stray_accesses, 12);
}

#[test]
fn the_last_byte_of_each_region_is_in_reach_and_an_empty_access_is_none() {
    let rig = Rig::new();
    let mut client = rig.client();
    for (region, last) in [(0, 16383), (4, 8191), (7, 4095)] {
        client.region_write(region, last, &[0x77]).unwrap();
        client.region_read(region, last, &mut [0]).unwrap();
        client.region_read(region, last + 1, &mut []).unwrap();
        client.region_write(region, 0, &[]).unwrap();
    }
    assert_eq!(rig.device.writes(), [(0, 16383, vec![0x77]), (4, 8191, vec![0x77])]);
    assert_eq!(rig.statistics().stray_accesses, 0);
}

#[test]
fn region_info_needs_room_for_its_answer_and_a_known_index() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let ask = |index, argsz| RegionInfo { argsz, index, ..Default::default() };
    for (index, argsz, error) in
        [(0, 32, 0), (0, 4096, 0), (0, 31, errno(Errno::INVAL)), (9, 32, errno(Errno::INVAL)), (u32::MAX, 32, 22)]
    {
        raw.send(&message(3, command::DEVICE_GET_REGION_INFO, TYPE_COMMAND, ask(index, argsz).as_bytes()));
        assert_eq!(raw.receive_error(3), error, "index {index}, argsz {argsz}");
    }
    let ask = DeviceInfo { argsz: 15, ..Default::default() };
    raw.send(&message(4, command::DEVICE_GET_INFO, TYPE_COMMAND, ask.as_bytes()));
    assert_eq!(raw.receive_error(4), errno(Errno::INVAL));
    let ask = RegionIoFds { argsz: 16, index: region::BAR_LAST, ..Default::default() };
    raw.send(&message(5, command::DEVICE_GET_REGION_IO_FDS, TYPE_COMMAND, ask.as_bytes()));
    let (_, payload) = raw.receive();
    assert_eq!(payload, ask.as_bytes(), "no descriptors to offer");
}

#[test]
fn unknown_commands_and_the_servers_own_are_refused_with_their_payload_skipped() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    // The payload looks like a write.
    let trap = write_message(9, TYPE_COMMAND, 0, 0, &[0xee; 4]);
    let unsupported = [command::DMA_READ, command::DMA_WRITE, command::DIRTY_PAGES, command::DEVICE_FEATURE];
    for number in unsupported.into_iter().chain([0, 17, 18, 19, 255, 0x8000, u16::MAX]) {
        raw.send(&message(5, number, TYPE_COMMAND, &trap));
        assert_eq!(raw.receive_error(5), errno(Errno::NOTSUP), "command {number}");
    }
    raw.sync();
    assert_eq!(rig.device.writes(), []);
}

#[test]
fn several_writes_in_one_message_are_done_in_order() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let write = |offset: u64, count: u32, byte| MultiWrite {
        offset: offset.into(),
        region: 0.into(),
        count: count.into(),
        data: [byte; 8],
    };
    let send = |raw: &mut crate::rig::Raw, count: u64, writes: &[MultiWrite]| {
        let payload = [count.as_bytes(), writes.as_bytes()].concat();
        raw.send(&message(6, command::REGION_WRITE_MULTI, TYPE_COMMAND, &payload));
    };
    send(&mut raw, 3, &[write(0, 4, 1), write(16384, 4, 2), write(2, 8, 3)]);
    let (header, payload) = raw.receive();
    assert_eq!((header.flags & FLAG_ERROR, payload), (0, 3u64.to_ne_bytes().to_vec()));
    for (count, writes) in [(2, vec![write(0, 4, 4)]), (1, vec![write(0, 9, 4)]), (u64::MAX, vec![]), (1 << 61, vec![])]
    {
        send(&mut raw, count, &writes);
        assert_eq!(raw.receive_error(6), errno(Errno::INVAL));
    }
    send(&mut raw, 0, &[]);
    assert_eq!(raw.receive_error(6), 0);
    assert_eq!(rig.device.writes(), [(0, 0, vec![1; 4]), (0, 2, vec![3; 8])]);
}

#[test]
fn version_works_without_data_and_in_every_harmless_form() {
    let rig = Rig::new();
    let forms: [&[u8]; 7] = [
        b"",
        b"\0",
        b"{}",
        b"{}\0",
        b"{\"capabilities\":{\"max_msg_fds\":8,\"new\":[1,{}]},\"other\":null}",
        b"{\"capabilities\":{\"max_data_xfer_size\":1048576,\"migration\":{\"pgsize\":4096}}}\0trailing",
        b" \n",
    ];
    for form in forms {
        let mut raw = rig.raw();
        raw.send(&message(1, command::VERSION, TYPE_COMMAND, &[&[0, 0, 9, 0], form].concat()));
        let (header, payload) = raw.receive();
        assert_eq!(header.flags & FLAG_ERROR, 0, "{form:?}");
        assert_eq!(payload[..4], [0, 0, 1, 0], "the older minor version of both");
        assert_eq!(payload.last(), Some(&0));
        raw.sync();
        drop(raw);
        // The next one is not refused.
        rig.client();
    }
}

#[test]
fn a_version_of_another_major_or_no_version_at_all_ends_the_connection() {
    let rig = Rig::new();
    for bytes in [
        message(1, command::VERSION, TYPE_COMMAND, &[1, 0, 0, 0]),
        message(1, command::VERSION, TYPE_COMMAND, &[0, 0]),
        message(1, command::VERSION, TYPE_COMMAND, b"\0\0\0\0{\"capabilities\":[]}\0"),
        message(1, command::VERSION, TYPE_COMMAND, b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":\"many\"}}\0"),
        message(1, command::VERSION, TYPE_COMMAND, b"\0\0\0\0nonsense\0"),
        write_message(1, TYPE_COMMAND, 0, 0, &[1]),
        message(1, command::DEVICE_RESET, TYPE_COMMAND, &[]),
        message(1, 77, TYPE_COMMAND, &[]),
    ] {
        let mut raw = rig.raw();
        raw.send(&bytes);
        assert_eq!(raw.receive_error(1), errno(Errno::INVAL));
        raw.expect_closed();
    }
    let mut raw = rig.greeted();
    raw.send(&message(2, command::VERSION, TYPE_COMMAND, &[0; 4]));
    assert_eq!(raw.receive_error(2), errno(Errno::INVAL), "VERSION is said once");
    raw.sync();
    assert_eq!(rig.device.writes(), []);
}

#[test]
fn an_answer_that_nobody_asked_for_is_ignored() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    let write = write_message(0, 1, 0, 0, &[1]);
    raw.send(&write);
    raw.sync();
    assert_eq!(rig.device.writes(), []);
    assert_eq!(rig.statistics().malformed, 1);
    // Two of the four bits of the type mean nothing yet.
    let (header, _) = Header::split(&write).unwrap();
    raw.send(Header { flags: 2, ..header }.as_bytes());
    raw.send(&write[16..]);
    assert_eq!(raw.receive_error(0), errno(Errno::INVAL));
    raw.sync();
}
