//! A server that runs out of file descriptors. In a process of its own, since the limit holds for all of it.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests")]

#[path = "e2e/device.rs"]
mod device;
#[path = "e2e/rig.rs"]
mod rig;

use std::{os::fd::AsFd, sync::atomic::Ordering};

use dma::{Mapping, Protection};
use rig::{LIMIT, Rig, new_eventfd, wait_until};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use shadowbell_vfio_user::{Client, ClientError, ClientOptions, codec::wire::irq};

fn refused(result: Result<(), ClientError>) -> Option<Errno> {
    match result {
        Err(ClientError::Refused { error, .. }) => Errno::from_io_error(&error),
        _ => None,
    }
}

#[test]
fn a_server_without_descriptors_says_so_and_recovers() {
    let limit = Rlimit { current: Some(128), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let rig = Rig::new();
    let mut client = rig.client();
    let (_ram, ram) = Mapping::new_shared("ram", 4096).unwrap();
    let event = new_eventfd();
    let late = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let fill = || -> Vec<_> { std::iter::from_fn(|| eventfd(0, EventfdFlags::CLOEXEC).ok()).collect() };

    // Memory must not look as if it had come without a descriptor.
    let hog = fill();
    let map = |client: &mut Client| client.dma_map(0, 4096, Protection::READ_WRITE, Some((ram.as_fd(), 0)));
    assert_eq!(refused(map(&mut client)), Some(Errno::MFILE));
    assert_eq!(refused(client.connect_irqs(irq::MSIX, 0, &[event.as_fd()])), Some(Errno::MFILE));
    client.region_write(0, 0, &[1]).unwrap();
    drop(hog);
    map(&mut client).unwrap();
    client.connect_irqs(irq::MSIX, 0, &[event.as_fd()]).unwrap();

    drop(client);
    // The old client's descriptors are closed before new ones are taken: one more turn of the loop is over then.
    wait_until("gone", || rig.device.resets.load(Ordering::SeqCst) == 1);
    rig.statistics();
    let hog = fill();
    connect(&late, &SocketAddrUnix::new(&rig.path).unwrap()).unwrap();
    let rests = rig.statistics().rests;
    assert_eq!(rig.statistics().clients, 1);
    assert!(rig.statistics().rests - rests < 1000, "it does not spin");
    drop(hog);
    let mut client = Client::over(late, ClientOptions::default().timeout(LIMIT)).unwrap();
    client.device_info().unwrap();
}
