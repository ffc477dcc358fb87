//! Our client against servers that lie, stall and go.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread::JoinHandle,
    time::Duration,
};

use shadowbell_vfio_user::{
    Client, ClientError, ClientOptions,
    codec::wire::{
        CapHeader, FLAG_ERROR, Header, RegionAccess, RegionInfo, SparseArea, SparseMmap, TYPE_REPLY, command, region,
    },
};
use zerocopy::IntoBytes;

fn read_request(stream: &mut UnixStream) -> Option<(Header, Vec<u8>)> {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).ok()?;
    let (header, _) = Header::split(&bytes)?;
    let mut payload = vec![0; usize::try_from(header.size).unwrap() - 16];
    stream.read_exact(&mut payload).ok()?;
    Some((header, payload))
}

fn reply(request: &Header, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + payload.len()).unwrap();
    let header = Header { size, flags: TYPE_REPLY, ..*request };
    [header.as_bytes(), payload].concat()
}

/// A server that greets as `greeting` says, and answers one request with what `answer` makes of it.
fn server(
    greeting: &'static [u8],
    answer: impl FnOnce(&Header) -> Vec<u8> + Send + 'static,
) -> (Result<Client, ClientError>, JoinHandle<()>) {
    let (near, mut far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let Some((header, _)) = read_request(&mut far) else { return };
        far.write_all(&reply(&header, greeting)).unwrap();
        let Some((header, _)) = read_request(&mut far) else { return };
        let _ = far.write_all(&answer(&header));
    });
    (Client::over(near.into(), ClientOptions::default().timeout(Duration::from_secs(60))), thread)
}

const PLAIN: &[u8] = b"\0\0\0\0{\"capabilities\":{}}\0";

#[test]
fn versions_that_do_not_fit_are_said_clearly() {
    let greet = |greeting| server(greeting, |_| Vec::new()).0.unwrap_err();
    assert!(matches!(greet(b"\x01\0\0\0"), ClientError::Version(1, 0)));
    assert!(matches!(greet(b"\0\0\x09\0"), ClientError::Version(0, 9)));
    assert!(matches!(greet(b"\0\0"), ClientError::Protocol { .. }));
    assert!(matches!(greet(b"\0\0\0\0{\"capabilities\":5}"), ClientError::Capabilities(_)));
    assert_eq!(greet(b"\x01\0\0\0").to_string(), "the server speaks protocol version 1.0, this client 0.0 to 0.1");
}

#[test]
fn answers_that_lie_are_refused_and_end_the_connection() {
    let data =
        |count: u32, len: usize| [RegionAccess { offset: 8, region: 0, count }.as_bytes(), &vec![1; len]].concat();
    type Answer = Box<dyn FnOnce(&Header) -> Vec<u8> + Send>;
    let lies: Vec<(&str, Answer)> = vec![
        ("too little data", Box::new(move |h| reply(h, &data(4, 3)))),
        ("too much data", Box::new(move |h| reply(h, &data(4, 5)))),
        ("another count", Box::new(move |h| reply(h, &data(3, 3)))),
        ("no structure", Box::new(move |h| reply(h, &[0; 15]))),
        ("no payload", Box::new(move |h| reply(h, &[]))),
        ("another id", Box::new(move |h| reply(&Header { message_id: 99, ..*h }, &data(4, 4)))),
        ("another command", Box::new(move |h| reply(&Header { command: command::REGION_WRITE, ..*h }, &data(4, 4)))),
        ("a type that is none", Box::new(move |h| [Header { flags: 5, size: 16, ..*h }.as_bytes(), &[]].concat())),
        ("size 0", Box::new(move |h| Header { flags: TYPE_REPLY, size: 0, ..*h }.as_bytes().to_vec())),
        ("size 1 GiB", Box::new(move |h| Header { flags: TYPE_REPLY, size: 1 << 30, ..*h }.as_bytes().to_vec())),
    ];
    for (lie, answer) in lies {
        let (client, thread) = server(PLAIN, answer);
        let mut client = client.unwrap();
        let error = client.region_read(0, 8, &mut [0; 4]).unwrap_err();
        assert!(matches!(error, ClientError::Protocol { command: "REGION_READ", .. }), "{lie}: {error}");
        assert!(matches!(client.reset(), Err(ClientError::Closed)), "{lie}");
        thread.join().unwrap();
    }
}

#[test]
fn a_refusal_names_its_reason_and_the_connection_lives() {
    let (client, thread) =
        server(PLAIN, |h| Header { flags: TYPE_REPLY | FLAG_ERROR, size: 16, error: 17, ..*h }.as_bytes().to_vec());
    let mut client = client.unwrap();
    let error = client.dma_map(0, 4096, dma::Protection::READ, None).unwrap_err();
    assert!(matches!(&error, ClientError::Refused { command: "DMA_MAP", error } if error.raw_os_error() == Some(17)));
    thread.join().unwrap();
    assert!(matches!(client.reset(), Err(ClientError::Closed)));
}

#[test]
fn a_request_of_the_server_is_turned_down_and_the_answer_still_found() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let (header, _) = read_request(&mut far).unwrap();
        far.write_all(&reply(&header, PLAIN)).unwrap();
        let (header, _) = read_request(&mut far).unwrap();
        let ask = Header { message_id: 500, command: command::DMA_READ, size: 32, flags: 0, error: 0 };
        far.write_all(&[ask.as_bytes(), &[0; 16], &reply(&header, &[])].concat()).unwrap();
        let (answer, _) = read_request(&mut far).unwrap();
        assert_eq!((answer.message_id, answer.flags), (500, TYPE_REPLY | FLAG_ERROR));
    });
    let mut client = Client::over(near.into(), ClientOptions::default().timeout(Duration::from_secs(60))).unwrap();
    client.reset().unwrap();
    thread.join().unwrap();
}

#[test]
fn a_server_that_never_answers_costs_only_the_time_out() {
    let (near, _far) = UnixStream::pair().unwrap();
    let error = Client::over(near.into(), ClientOptions::default().timeout(Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut("VERSION")), "{error}");
}

#[test]
fn a_server_that_does_not_read_costs_only_the_time_out() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let (header, _) = read_request(&mut far).unwrap();
        far.write_all(&reply(&header, PLAIN)).unwrap();
        far
    });
    let mut client = Client::over(near.into(), ClientOptions::default().timeout(Duration::from_millis(200))).unwrap();
    let _far = thread.join().unwrap();
    let error = (0..100).find_map(|_| client.region_write_posted(0, 0, &[0; 1 << 20]).err()).unwrap();
    assert!(matches!(error, ClientError::TimedOut("REGION_WRITE")), "{error}");
}

#[test]
fn what_cannot_be_sent_is_refused_before_it_is() {
    let (client, _thread) = server(b"\0\0\0\0{\"capabilities\":{\"max_data_xfer_size\":64}}\0", |h| reply(h, &[]));
    let mut client = client.unwrap();
    assert!(matches!(client.region_read(0, 0, &mut [0; 65]), Err(ClientError::Argument(_))));
    assert!(matches!(client.region_write_posted(0, 0, &[0; 65]), Err(ClientError::Argument(_))));
    assert!(matches!(client.region_write_multi_posted(&[]), Err(ClientError::Argument(_))));
    client.reset().expect("nothing was sent");
}

#[test]
fn descriptions_of_regions_that_lie_are_refused() {
    const FLAGS: u32 = region::FLAG_MMAP | region::FLAG_CAPS;
    let info = RegionInfo { argsz: 32, flags: FLAGS, index: 0, cap_offset: 32, size: 0x4000, offset: 0 };
    let cap = |id, next| CapHeader { id, version: 1, next }.as_bytes().to_vec();
    let sparse = |count, areas: &[(u64, u64)]| {
        let mut bytes =
            [cap(region::CAP_SPARSE_MMAP, 0), SparseMmap { count, reserved: 0 }.as_bytes().to_vec()].concat();
        areas.iter().for_each(|(offset, size)| {
            bytes.extend_from_slice(SparseArea { offset: *offset, size: *size }.as_bytes());
        });
        bytes
    };
    let lies = [
        ("a list outside of the answer", RegionInfo { cap_offset: 4096, ..info }, Vec::new()),
        ("half a capability", info, vec![0; 7]),
        ("a list that turns round", info, cap(9, 32)),
        ("a list that goes backwards", info, cap(9, 8)),
        ("more areas than there are", info, sparse(2, &[(0, 0x1000)])),
        ("very many areas", info, sparse(u32::MAX, &[(0, 0x1000)])),
        ("an area that is too long", info, sparse(1, &[(0x1000, 0x4000)])),
        ("an area that wraps", info, sparse(1, &[(u64::MAX, 2)])),
        ("another region", RegionInfo { index: 1, ..info }, sparse(1, &[(0, 0x1000)])),
    ];
    for (lie, info, list) in lies {
        let (client, thread) = server(PLAIN, move |h| reply(h, &[info.as_bytes(), &list].concat()));
        let error = client.unwrap().mappable_region(0).unwrap_err();
        assert!(matches!(error, ClientError::Protocol { command: "DEVICE_GET_REGION_INFO", .. }), "{lie}: {error}");
        thread.join().unwrap();
    }
    // Without a list the whole region can be mapped, and one that would be enormous is left alone.
    for (argsz, cap_offset, areas) in [(32, 0, 1), (u32::MAX, 32, 0)] {
        let info = RegionInfo { argsz, cap_offset, ..info };
        let (client, thread) = server(PLAIN, move |h| reply(h, info.as_bytes()));
        let region = client.unwrap().mappable_region(0).unwrap();
        assert_eq!((region.areas.len(), region.fd.is_some()), (areas, false));
        thread.join().unwrap();
    }
}
