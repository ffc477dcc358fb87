use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::{
    wire::{DmaMap, DmaUnmap, FLAG_NO_REPLY},
    *,
};

fn message(command: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(Header::SIZE + payload.len()).unwrap();
    let header = Header { message_id: 0x1234, command, size, flags: TYPE_COMMAND | FLAG_NO_REPLY, error: 0 };
    [header.as_bytes(), payload].concat()
}

/// One good message of each kind, and the payload bytes that it cannot do without.
fn good() -> Vec<(Vec<u8>, usize)> {
    let access = RegionAccess { offset: 0x1008, region: 0, count: 4 };
    let write = MultiWrite { offset: 8.into(), region: 0.into(), count: 8.into(), data: [7; 8] };
    let bools =
        SetIrqs { argsz: 23, flags: wire::irq::DATA_BOOL | wire::irq::ACTION_MASK, index: 2, start: 0, count: 3 };
    let none = SetIrqs { flags: wire::irq::DATA_NONE | wire::irq::ACTION_TRIGGER, count: u32::MAX, ..bools };
    vec![
        (message(command::VERSION, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0"), 4),
        (message(command::DMA_MAP, DmaMap { size: 4096, ..Default::default() }.as_bytes()), 32),
        (message(command::DMA_UNMAP, DmaUnmap { size: 4096, ..Default::default() }.as_bytes()), 24),
        (message(command::DEVICE_GET_INFO, DeviceInfo { argsz: 16, ..Default::default() }.as_bytes()), 16),
        (message(command::DEVICE_GET_REGION_INFO, RegionInfo { argsz: 32, ..Default::default() }.as_bytes()), 32),
        (message(command::DEVICE_GET_REGION_IO_FDS, RegionIoFds { argsz: 16, ..Default::default() }.as_bytes()), 16),
        (message(command::DEVICE_GET_IRQ_INFO, IrqInfo { argsz: 16, ..Default::default() }.as_bytes()), 16),
        (message(command::DEVICE_SET_IRQS, &[bools.as_bytes(), &[1, 0, 1]].concat()), 23),
        (message(command::DEVICE_SET_IRQS, none.as_bytes()), 20),
        (message(command::REGION_READ, access.as_bytes()), 16),
        (message(command::REGION_WRITE, &[access.as_bytes(), &[1, 2, 3, 4]].concat()), 20),
        (message(command::REGION_WRITE_MULTI, &[1u64.as_bytes(), write.as_bytes()].concat()), 32),
        (message(command::DEVICE_RESET, &[]), 0),
        (message(command::DIRTY_PAGES, &[1; 40]), 0),
    ]
}

#[test]
fn each_message_is_decoded_to_what_it_says() {
    let messages = good();
    let decoded: Vec<_> = messages.iter().map(|(bytes, _)| decode(bytes).unwrap()).collect();
    assert!(matches!(&decoded[0], Request::Version { version: Version { major: 0, minor: 1 }, capabilities }
        if capabilities.max_msg_fds == 8 && capabilities.max_dma_maps == 65535));
    assert!(matches!(decoded[1], Request::DmaMap(DmaMap { size: 4096, .. })));
    assert!(matches!(decoded[2], Request::DmaUnmap(DmaUnmap { size: 4096, .. })));
    assert!(matches!(decoded[7], Request::SetIrqs(SetIrqs { count: 3, .. }, [1, 0, 1])));
    assert!(matches!(decoded[8], Request::SetIrqs(SetIrqs { count: u32::MAX, .. }, [])));
    assert!(matches!(decoded[10], Request::RegionWrite(RegionAccess { offset: 0x1008, .. }, [1, 2, 3, 4])));
    assert!(matches!(decoded[11], Request::RegionWriteMulti([write]) if write.bytes() == Some(&[7; 8])));
    assert!(matches!(decoded[12], Request::DeviceReset));
    assert!(matches!(decoded[13], Request::Unsupported(command::DIRTY_PAGES)));
    // A posted doorbell as QEMU sends it, byte for byte.
    let doorbell = [
        5, 0, 10, 0, 36, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 9,
        0, 0, 0,
    ];
    let expected = RegionAccess { offset: 0x1008, region: 0, count: 4 };
    assert_eq!(decode(&doorbell), Ok(Request::RegionWrite(expected, &[9, 0, 0, 0])));
}

#[test]
fn a_message_cut_at_any_byte_is_refused() {
    for (bytes, needed) in good() {
        for len in 0..bytes.len() {
            // Once as a broken frame, once with a header that tells the truth about what is there.
            assert!(matches!(decode(&bytes[..len]), Err(DecodeError::Size { have, .. }) if have == len));
            let Some(payload) = bytes[..len].get(Header::SIZE..) else { continue };
            let (header, _) = Header::split(&bytes).unwrap();
            let cut = message(header.command, payload);
            if payload.len() < needed {
                assert!(decode(&cut).is_err(), "command {} with {} bytes", header.command, payload.len());
            }
        }
    }
}

#[test]
fn bytes_behind_a_structure_are_skipped_but_counts_must_match() {
    for (bytes, _) in good() {
        let (header, payload) = Header::split(&bytes).unwrap();
        let longer = message(header.command, &[payload, &[0; 3]].concat());
        let strict = matches!(header.command, command::REGION_WRITE | command::REGION_WRITE_MULTI);
        assert_eq!(decode(&longer).is_err(), strict, "command {}", header.command);
    }
}

#[test]
fn sizes_are_checked_before_anything_else() {
    let header = |size| Header { message_id: 1, command: 10, size, flags: 0, error: 0 };
    let largest = u32::try_from(MAX_MESSAGE).unwrap();
    for size in [16, 17, largest] {
        assert_eq!(message_size(header(size).as_bytes()), Ok(Some(usize::try_from(size).unwrap())));
    }
    for size in [0, 15, largest + 1, 1 << 30, u32::MAX] {
        assert_eq!(message_size(header(size).as_bytes()), Err(size));
    }
    for len in 0..16 {
        assert_eq!(message_size(&header(u32::MAX).as_bytes()[..len]), Ok(None), "no header yet");
    }
}

#[test]
fn transfers_are_limited_and_answers_are_no_requests() {
    let access = |count| RegionAccess { offset: 0, region: 0, count };
    let limit = u32::try_from(MAX_DATA_XFER).unwrap();
    assert!(decode(&message(command::REGION_READ, access(limit).as_bytes())).is_ok());
    for count in [limit + 1, u32::MAX] {
        let error = DecodeError::Count { command: command::REGION_READ, count: count.into() };
        assert_eq!(decode(&message(command::REGION_READ, access(count).as_bytes())), Err(error));
    }
    let mut reply = message(command::DEVICE_RESET, &[]);
    reply[8] = 1;
    assert_eq!(decode(&reply), Err(DecodeError::Type(1)));
}

#[test]
fn capabilities_survive_their_own_json() {
    let ours = Capabilities::ours();
    assert_eq!(Capabilities::parse(&ours.to_json()), Ok(ours));
    let defaults = Capabilities::default();
    assert_eq!(Capabilities::parse(&defaults.to_json()), Ok(defaults));
    assert!(!defaults.to_json().windows(14).any(|w| w == b"write_multiple"), "only what was offered is taken up");
}

#[test]
fn version_data_of_any_kind_is_judged_and_never_fatal() {
    for json in ["", "\0", "{}", "{\"a\":1}", "{\"capabilities\":{}}\0x", "{\"capabilities\":{\"pgsizes\":null}}"] {
        assert_eq!(Capabilities::parse(json.as_bytes()), Ok(Capabilities::default()), "{json}");
    }
    for json in ["x", "[]", "1", "{", "{}{}", "{\"capabilities\":null}", "{\"capabilities\":7}", "\u{feff}{}"] {
        assert_eq!(Capabilities::parse(json.as_bytes()), Err(VersionError::Json), "{json}");
    }
    for (value, name) in [("-1", "pgsizes"), ("1.5", "max_dma_maps"), ("\"1\"", "max_msg_fds"), ("1e30", "pgsizes")] {
        let json = format!("{{\"capabilities\":{{\"{name}\":{value}}}}}");
        assert_eq!(Capabilities::parse(json.as_bytes()), Err(VersionError::Capability(name)), "{json}");
    }
    let json = b"{\"capabilities\":{\"write_multiple\":1}}";
    assert_eq!(Capabilities::parse(json), Err(VersionError::Capability("write_multiple")));
    assert_eq!(Capabilities::parse(&vec![b' '; 20000]), Err(VersionError::TooLong(20000)));
    assert_eq!(Capabilities::parse("[".repeat(10000).as_bytes()), Err(VersionError::Json), "no stack overflow");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = message_size(&bytes);
        let _ = decode(&bytes);
        let _ = Capabilities::parse(&bytes);
    }

    #[test]
    fn random_payloads_never_panic_and_keep_their_promises(
        number in 0u16..24,
        payload in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xff), 0u8..9], 0..120),
    ) {
        match decode(&message(number, &payload)) {
            Ok(Request::RegionWrite(access, data)) => prop_assert_eq!(data.len(), usize::try_from(access.count).unwrap()),
            Ok(Request::RegionRead(access)) => prop_assert!(usize::try_from(access.count).unwrap() <= MAX_DATA_XFER),
            Ok(Request::RegionWriteMulti(writes)) => prop_assert!(writes.iter().all(|w| w.bytes().is_some())),
            Ok(Request::SetIrqs(set, bools)) => {
                let wanted = if set.flags & wire::irq::DATA_BOOL != 0 { set.count } else { 0 };
                prop_assert_eq!(bools.len(), usize::try_from(wanted).unwrap());
            }
            _ => {}
        }
    }

    #[test]
    fn good_messages_with_flipped_bits_never_panic(which in 0usize..14, at in 0usize..500, bit in 0u8..8) {
        let (mut bytes, _) = good().swap_remove(which);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let _ = decode(&bytes);
    }
}
