//! Areas of a BAR that the client maps (sparse mmap).

use std::os::fd::AsFd;

use dma::{Mapping, Protection, Window};
use rustix::io::Errno;
use shadowbell_vfio_user::{
    Client,
    codec::wire::{CapHeader, FLAG_NO_REPLY, RegionInfo, SparseArea, SparseMmap, TYPE_COMMAND, command, region},
};
use zerocopy::IntoBytes;

use crate::{
    device::AREA,
    rig::{Raw, Rig, message},
};

const READ_WRITE: u32 = region::FLAG_READ | region::FLAG_WRITE;

fn ask(raw: &mut Raw, index: u32, argsz: u32) {
    let ask = RegionInfo { argsz, index, ..Default::default() };
    raw.send(&message(3, command::DEVICE_GET_REGION_INFO, TYPE_COMMAND, ask.as_bytes()));
}

fn map(client: &mut Client) -> Window {
    let region = client.mappable_region(0).unwrap();
    assert_eq!(region.areas, [SparseArea { offset: AREA.0, size: AREA.1 }]);
    let at = region.info.offset + AREA.0;
    Mapping::of_file(region.fd.unwrap().as_fd(), at, AREA.1, Protection::READ_WRITE).unwrap().window()
}

/// As QEMU asks: with room for the structure, then with as much as the first answer named. Both answers carry the descriptor.
#[test]
fn the_area_is_described_to_who_has_room_and_its_size_to_who_has_not() {
    let rig = Rig::with_area(AREA.0, AREA.1);
    let mut raw = rig.greeted();
    for (argsz, room) in [(32, false), (33, false), (63, false), (64, true), (65, true), (4096, true), (u32::MAX, true)]
    {
        ask(&mut raw, 0, argsz);
        let (header, payload, fds) = raw.receive_with_fds();
        assert_eq!((header.message_id, header.error, fds.len()), (3, 0, 1), "argsz {argsz}");
        let (info, rest) = RegionInfo::split(&payload).unwrap();
        let expected = RegionInfo {
            argsz: 64,
            flags: READ_WRITE | region::FLAG_MMAP | region::FLAG_CAPS,
            index: 0,
            cap_offset: 32,
            size: 16384,
            offset: 0,
        };
        assert_eq!(info, expected, "argsz {argsz}");
        if room {
            let (header, rest) = CapHeader::split(rest).unwrap();
            let (sparse, rest) = SparseMmap::split(rest).unwrap();
            let (area, rest) = SparseArea::split(rest).unwrap();
            assert_eq!(header, CapHeader { id: 1, version: 1, next: 0 });
            assert_eq!((sparse.count, area, rest), (1, SparseArea { offset: AREA.0, size: AREA.1 }, &[][..]));
        } else {
            assert!(rest.is_empty());
        }
    }
    for argsz in [0, 31] {
        ask(&mut raw, 0, argsz);
        assert_eq!(raw.receive_error(3), u32::try_from(Errno::INVAL.raw_os_error()).unwrap());
    }
    // Other regions have none, and no descriptor.
    for index in 1..9 {
        ask(&mut raw, index, 4096);
        let (_, payload, fds) = raw.receive_with_fds();
        let (info, rest) = RegionInfo::split(&payload).unwrap();
        assert_eq!((info.argsz, info.flags & !READ_WRITE, fds.len(), rest.len()), (32, 0, 0, 0), "region {index}");
    }
    let quiet = RegionInfo { argsz: 64, ..Default::default() };
    raw.send(&message(4, command::DEVICE_GET_REGION_INFO, TYPE_COMMAND | FLAG_NO_REPLY, quiet.as_bytes()));
    raw.sync();
}

#[test]
fn what_a_client_stores_there_is_no_message_and_trapped_accesses_still_work() {
    let rig = Rig::with_area(AREA.0, AREA.1);
    let mut client = rig.client();
    let window = map(&mut client);
    window.write(8, &[1, 2, 3, 4]).unwrap();
    client.region_write(0, AREA.0 + 16, &[5]).unwrap();
    assert_eq!(rig.device.writes(), [(0, AREA.0 + 16, vec![5])]);
    // A reset keeps the memory: the client goes on with its mapping.
    client.reset().unwrap();
    let again = map(&mut client);
    let mut bytes = [0; 4];
    again.read(8, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4], "one memory");
    assert_eq!(client.mappable_region(4).unwrap().areas, []);
}

#[test]
fn the_next_client_gets_memory_that_the_last_one_cannot_reach() {
    let rig = Rig::with_area(AREA.0, AREA.1);
    let mut client = rig.client();
    let old = map(&mut client);
    drop(client);
    let new = map(&mut rig.client());
    old.write(0, &[7; 64]).unwrap();
    let mut bytes = [1; 64];
    new.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

/// A page of this host may be larger than the area, or the area be anywhere.
#[test]
fn an_area_that_is_not_made_of_pages_of_its_bar_is_not_offered() {
    for (offset, len) in
        [(0x2000, 0x800), (0x1800, 0x1000), (0x2000, 0), (0x4000, 0x1000), (0x3000, 0x2000), (u64::MAX - 0xfff, 0x2000)]
    {
        let rig = Rig::with_area(offset, len);
        let region = rig.client().mappable_region(0).unwrap();
        assert_eq!((region.info.argsz, region.info.flags), (32, READ_WRITE), "{offset:#x} {len:#x}");
        assert!(region.areas.is_empty() && region.fd.is_none());
    }
}
