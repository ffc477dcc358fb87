//! Clients that come, go, crowd and stop; and the socket's path.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixListener,
    },
    sync::atomic::Ordering,
};

use dma::{Mapping, Protection};
use rustix::fd::AsFd;
use shadowbell_vfio_user::{
    BindError, Client, ClientError, ClientOptions, Server, ServerOptions,
    codec::wire::{DmaMap, DmaUnmap, SetIrqs, TYPE_COMMAND, command, irq},
};
use zerocopy::IntoBytes;

use crate::{
    device::{RAISE_MSIX, START},
    rig::{LIMIT, Rig, message, new_eventfd, posted, read_message, signalled, wait_until, write_message},
};

#[test]
fn a_second_client_is_refused_at_once_and_the_first_does_not_notice() {
    let rig = Rig::new();
    let mut first = rig.client();
    for _ in 0..3 {
        let mut second = rig.raw();
        second.expect_closed();
        let error = Client::connect(&rig.path, ClientOptions::default().timeout(LIMIT)).unwrap_err();
        assert!(matches!(error, ClientError::Closed), "{error}");
        first.region_write(0, 0, &[1]).unwrap();
    }
    assert_eq!((rig.statistics().clients, rig.statistics().refused_clients), (1, 6));
    drop(first);
    rig.client().device_info().unwrap();
}

#[test]
fn the_next_client_finds_a_clean_device() {
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 8192).unwrap();
    let mut client = rig.client();
    client.region_write(0, 0, &[1; 8]).unwrap();
    client.region_write(7, 4, &[6]).unwrap();
    client.dma_map(0, 8192, Protection::READ_WRITE, Some((fd.as_fd(), 0))).unwrap();
    let event = new_eventfd();
    client.connect_irqs(irq::MSIX, 3, &[event.as_fd()]).unwrap();
    client.region_write(0, RAISE_MSIX, &[4]).unwrap();
    drop(client);

    let mut client = rig.client();
    assert_eq!(rig.device.resets.load(Ordering::SeqCst), 1);
    let mut data = [1; 8];
    client.region_read(0, 0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    client.region_read(7, 4, &mut data[..1]).unwrap();
    assert_eq!(data[0], 0);
    client.dma_map(0, 8192, Protection::READ_WRITE, Some((fd.as_fd(), 0))).expect("the old range is gone");
    client.region_write(0, RAISE_MSIX, &[3]).unwrap();
    assert!(!signalled(&event), "an eventfd of the last client");
    let events = [new_eventfd(), new_eventfd()];
    client.connect_irqs(irq::MSIX, 3, &events.each_ref().map(AsFd::as_fd)).unwrap();
    assert!(signalled(&events[0]), "raised before it was bound");
    assert!(!signalled(&events[1]), "the last client's interrupt");
}

#[test]
fn a_client_may_vanish_at_every_step_and_byte() {
    let rig = Rig::new();
    let (_ram, fd) = Mapping::new_shared("ram", 1 << 20).unwrap();
    let map = |address| DmaMap { argsz: 32, flags: 3, offset: 0, address, size: 1 << 20 };
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0, size: 1 << 20 };
    let set =
        SetIrqs { argsz: 20, flags: irq::DATA_EVENTFD | irq::ACTION_TRIGGER, index: irq::MSIX, start: 0, count: 1 };
    let story = [
        (message(0, command::VERSION, TYPE_COMMAND, b"\0\0\x01\0{\"capabilities\":{}}\0"), false),
        (message(1, command::DMA_MAP, TYPE_COMMAND, map(0).as_bytes()), true),
        (message(2, command::DMA_MAP, TYPE_COMMAND, map(1 << 30).as_bytes()), false),
        (message(3, command::DEVICE_GET_INFO, TYPE_COMMAND, &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), false),
        (message(4, command::DEVICE_SET_IRQS, TYPE_COMMAND, set.as_bytes()), false),
        (read_message(5, 7, 0, 256), false),
        (posted(0, 64, &[1, 2, 3, 4]), false),
        (message(6, command::DMA_UNMAP, TYPE_COMMAND, unmap.as_bytes()), false),
        (message(7, command::DEVICE_RESET, TYPE_COMMAND, &[]), false),
        (write_message(8, TYPE_COMMAND, 0, 0, &[5; 100]), false),
    ];
    for (step, (last, _)) in story.iter().enumerate() {
        for cut in [0, 1, 15, 16, 17, last.len() - 1, last.len()] {
            let mut raw = rig.raw();
            for (bytes, with_fd) in &story[..step] {
                if *with_fd {
                    raw.send_fds(bytes, &[fd.as_fd()]);
                } else {
                    raw.send(bytes);
                }
            }
            raw.send(&last[..cut.min(last.len())]);
            // Sometimes with unread answers, sometimes half closed first.
            if cut % 2 == 1 {
                raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
                raw.expect_closed();
            }
        }
    }
    let mut client = rig.client();
    client.dma_map(0, 1 << 20, Protection::READ_WRITE, Some((fd.as_fd(), 0))).unwrap();
    client.device_info().unwrap();
    let stats = rig.statistics();
    assert_eq!((stats.refused_clients, stats.malformed), (0, 0));
}

#[test]
fn a_client_that_sends_half_a_message_stalls_only_itself() {
    let rig = Rig::new();
    let other = Rig::new();
    let mut raw = rig.greeted();
    let write = write_message(1, TYPE_COMMAND, 0, 0, &[1; 64]);
    raw.send(&write[..40]);
    other.client().region_write(0, 0, &[1]).unwrap();
    // The loop goes on: others are refused, the owner is heard.
    rig.raw().expect_closed();
    assert_eq!(rig.statistics().refused_clients, 1);
    raw.send(&write[40..]);
    assert_eq!(raw.receive_error(1), 0);
}

#[test]
fn a_client_that_does_not_read_its_answers_is_disconnected() {
    let mut options = ServerOptions::default();
    options.max_backlog = 1 << 20;
    let rig = Rig::with(options);
    let mut raw = rig.greeted();
    let read = read_message(1, 0, 0, 16384);
    wait_until("disconnected", || {
        raw.try_send(&read.repeat(64));
        rig.statistics().expelled_clients == 1
    });
    rig.client().device_info().unwrap();
}

#[test]
fn a_slow_reader_gets_everything_in_the_end() {
    let rig = Rig::new();
    let mut raw = rig.greeted();
    // More than a socket holds, less than the limit.
    for id in 0..200 {
        raw.send(&read_message(id, 0, 0, 16384));
    }
    for id in 0..200 {
        let (header, payload) = raw.receive();
        assert_eq!((header.message_id, payload.len()), (id, 16 + 16384));
    }
    raw.sync();
}

#[test]
fn the_next_client_waits_for_the_requests_of_a_client_that_is_gone() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.region_write(0, START, &[1]).unwrap();
    drop(client);
    wait_until("reset", || rig.device.resets.load(Ordering::SeqCst) == 1);
    let mut next = rig.raw();
    next.send(&message(1, command::VERSION, TYPE_COMMAND, &[0; 4]));
    rig.statistics();
    assert_eq!(rig.statistics().clients, 1, "not accepted while the memory is in use");
    rig.device.release();
    assert_eq!(next.receive_error(1), 0);
    next.sync();
    assert_eq!(rig.statistics().refused_clients, 0);
}

#[test]
fn a_stop_finishes_what_is_in_flight_and_removes_the_socket() {
    let mut rig = Rig::new();
    let mut client = rig.client();
    client.region_write(0, START, &[1]).unwrap();
    rig.ask_to_stop();
    wait_until("reset", || rig.device.resets.load(Ordering::SeqCst) == 1);
    assert!(rig.is_running());
    rig.device.release();
    rig.join();
    assert!(!rig.path.exists());
    assert!(matches!(client.device_info(), Err(ClientError::Closed)));
    assert!(matches!(client.device_info(), Err(ClientError::Closed)));
}

#[test]
fn a_stop_without_a_client_is_immediate() {
    let mut rig = Rig::new();
    rig.ask_to_stop();
    rig.join();
    assert!(!rig.path.exists());
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = Server::bind(&path, ServerOptions::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    let error = Server::bind(&path, ServerOptions::default()).unwrap_err();
    assert!(matches!(error, BindError::Busy(_)), "{error}");
    drop(server);
    assert!(!path.exists());

    let mut options = ServerOptions::default();
    options.mode = 0o666;
    let server = Server::bind(&path, options).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    // Someone has put another file there.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    drop(server);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let error = Server::bind(&path, ServerOptions::default()).unwrap_err();
    assert!(matches!(error, BindError::NoSocket(_)), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn paths_that_cannot_be_are_said_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let error = Server::bind(dir.path().join("x".repeat(120)), ServerOptions::default()).unwrap_err();
    assert!(matches!(error, BindError::TooLong(_)), "{error}");
    let error = Server::bind(dir.path().join("missing/s"), ServerOptions::default()).unwrap_err();
    assert!(error.to_string().contains("missing/s"), "{error}");
    let error = Client::connect(dir.path().join("nobody"), ClientOptions::default()).unwrap_err();
    assert!(error.to_string().contains("nobody"), "{error}");
}
