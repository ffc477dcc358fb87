//! A device that lies, stalls or goes cannot crash, hang or fool the driver.

use std::{sync::Arc, time::Duration};

use shadowbell_driver::{
    Cooperative, Device, Error, InProcess, MemoryError, Options, QueueOptions, QueuePair, Violation,
    nvme::{
        AdminOpcode, Status,
        features::FeatureId,
        identify::{Cns, oacs},
        logs::AsyncEvent,
        registers::CapFields,
    },
};

use crate::{
    fake::{Fake, Io, Reply},
    rig::{PATIENCE, error, one, pattern},
};

/// Short enough to be waited for.
fn short() -> Options {
    let time = Duration::from_millis(30);
    Options { admin_timeout: time, command_timeout: time, ..Options::default() }
}

fn open_with(change: impl FnOnce(&mut Fake)) -> Result<(Arc<Cooperative<Fake>>, Device), Error> {
    let mut fake = Fake::new();
    change(&mut fake);
    let transport = Arc::new(Cooperative::new(fake)?);
    let device = Device::open(transport.clone(), short())?;
    Ok((transport, device))
}

fn refused(change: impl FnOnce(&mut Fake)) -> Error {
    open_with(change).map(drop).unwrap_err()
}

/// A queue pair with this many entries on a fake whose I/O goes as told.
fn queue(entries: u32, change: impl FnOnce(&mut Fake)) -> (Arc<Cooperative<Fake>>, Device, QueuePair) {
    let (transport, mut device) = open_with(change).unwrap();
    let queue = device.create_queue_pair(QueueOptions { entries, ..QueueOptions::default() }).unwrap();
    (transport, device, queue)
}

fn flush_once(device: &Device, queue: &mut QueuePair, tag: u64) -> Result<usize, Error> {
    queue.flush(&device.namespaces()[0], tag).unwrap();
    queue.wait(PATIENCE, &mut |completion| assert_eq!(completion.ok(), Ok(())))
}

#[test]
fn registers_of_ones_are_a_device_that_is_gone() {
    let (transport, mut device) = open_with(|_| {}).unwrap();
    let mut queue = device.create_queue_pair(QueueOptions::default().with_entries(8)).unwrap();
    transport.with(|fake| fake.gone = true);
    assert_eq!(error(device.check_health()), Error::DeviceGone);
    assert_eq!(error(flush_once(&device, &mut queue, 1)), Error::DeviceGone);
    assert_eq!(queue.poll(&mut |_| {}), Err(Error::DeviceGone), "and it stays so");
    assert_eq!(error(device.admin_raw(Default::default(), None)), Error::DeviceGone);
    assert_eq!(error(device.reset()), Error::DeviceGone);
    assert_eq!(queue.poll(&mut |_| {}), Err(Error::Reset));
    assert_eq!(error(device.recover(&mut queue)), Error::NotEnabled);
    assert_eq!(error(device.create_queue_pair(QueueOptions::default())), Error::NotEnabled);
    drop(device);
    drop(queue);
}

#[test]
fn a_controller_that_is_gone_before_it_is_opened_is_no_controller() {
    let transport = Arc::new(Cooperative::new(Fake::new()).unwrap());
    transport.with(|fake| fake.gone = true);
    assert!(matches!(Device::open(transport, short()), Err(Error::Transport(_))));
}

#[test]
fn a_controller_that_never_gets_ready_or_is_never_disabled_costs_the_time_that_it_claims() {
    let waited = Duration::from_millis(500);
    assert_eq!(refused(|fake| fake.never_ready = true), Error::NotReady { wanted: true, waited });
    assert_eq!(refused(|fake| fake.fatal = true), Error::FatalStatus);
    let (transport, mut device) = open_with(|_| {}).unwrap();
    transport.with(|fake| fake.never_disabled = true);
    assert_eq!(error(device.reset()), Error::NotReady { wanted: false, waited });
    assert_eq!(transport.with(|fake| fake.resets), 1, "it was tried at function level");
    transport.with(|fake| fake.reset_mends = true);
    device.reset().unwrap();
    assert_eq!(transport.with(|fake| fake.resets), 2);
    device.create_queue_pair(QueueOptions::default().with_entries(4)).unwrap();
}

#[test]
fn capabilities_that_cannot_be_are_refused() {
    let cap = |change: fn(&mut CapFields)| refused(move |fake| change(&mut fake.cap));
    assert!(matches!(cap(|cap| cap.mqes_z = 0), Error::Implausible(_)));
    assert!(matches!(cap(|cap| cap.css = 0), Error::Unsupported(_)));
    assert!(matches!(cap(|cap| cap.mpsmin = 5), Error::Unsupported(_)));
    // A stride that puts the doorbells of queue 0 outside of the BAR.
    assert!(matches!(cap(|cap| cap.dstrd = 15), Error::Implausible(_)));
}

#[test]
fn capabilities_at_their_limits_work() {
    for (mpsmin, dstrd, mqes_z, oacs) in [
        (4, 0, 1, 0),
        (0, 8, 65535, 0),
        (1, 4, 63, oacs::DOORBELL_BUFFER_CONFIG),
        (0, 8, 7, oacs::DOORBELL_BUFFER_CONFIG),
    ] {
        let (_transport, mut device) = open_with(|fake| {
            fake.cap.mpsmin = mpsmin;
            fake.cap.mpsmax = mpsmin;
            fake.cap.dstrd = dstrd;
            fake.cap.mqes_z = mqes_z;
            fake.oacs = oacs;
        })
        .unwrap();
        let mut queue = device.create_queue_pair(QueueOptions::default().with_entries(2)).unwrap();
        for tag in 0..10 {
            assert_eq!(flush_once(&device, &mut queue, tag), Ok(1));
        }
        let longest = device.allocate(device.max_transfer()).unwrap();
        queue.read(&device.namespaces()[0], 0, longest.slice(0, device.max_transfer()), 7).unwrap();
        assert!(one(&mut queue, 7).status.is_success());
    }
}

#[test]
fn capabilities_that_change_at_a_reset_are_noticed() {
    let (transport, mut device) = open_with(|_| {}).unwrap();
    transport.with(|fake| fake.cap.dstrd = 2);
    assert_eq!(error(device.reset()), Error::Implausible("CAP has changed"));
    transport.with(|fake| fake.cap.dstrd = 0);
    device.reset().unwrap();
}

#[test]
fn identify_data_that_cannot_be_is_refused_or_left_out() {
    let identify = |wanted: Cns, byte: u8| {
        open_with(|fake| {
            fake.identify = Some(Box::new(move |cns, _, data| {
                if cns == wanted {
                    data.fill(byte);
                }
            }));
        })
        .map(|(_, device)| device.namespaces().len())
    };
    assert!(matches!(identify(Cns::CONTROLLER, 0xff), Err(Error::Unsupported(_))));
    assert!(matches!(identify(Cns::CONTROLLER, 0), Err(Error::Unsupported(_))));
    assert_eq!(identify(Cns::NAMESPACE, 0xff), Ok(0));
    assert_eq!(identify(Cns::NAMESPACE, 0), Ok(0));
    assert!(matches!(identify(Cns::ACTIVE_NAMESPACE_LIST, 0xff), Err(Error::Implausible(_))));
    assert_eq!(identify(Cns::ACTIVE_NAMESPACE_LIST, 0), Ok(0));
    // The same NSID again and again.
    assert!(matches!(identify(Cns::ACTIVE_NAMESPACE_LIST, 1), Err(Error::Implausible(_))));
}

#[test]
fn a_list_of_namespaces_without_end_ends() {
    let (_transport, device) = open_with(|fake| {
        fake.identify = Some(Box::new(|cns, nsid, data| {
            if cns == Cns::ACTIVE_NAMESPACE_LIST {
                for (i, word) in (1u32..).zip(data.as_chunks_mut::<4>().0) {
                    *word = (nsid + i).to_le_bytes();
                }
            }
        }));
    })
    .unwrap();
    assert_eq!(device.namespaces().len(), 1024);
}

#[test]
fn any_transfer_limit_is_taken_for_what_it_can_be() {
    for mdts in 0..=255 {
        let (_transport, device) = open_with(|fake| {
            fake.identify = Some(Box::new(move |cns, _, data| {
                if cns == Cns::CONTROLLER {
                    data[77] = mdts;
                }
            }));
        })
        .unwrap();
        let expected = if (1..9).contains(&mdts) { 4096 << mdts } else { 2 << 20 };
        assert_eq!(device.max_transfer(), expected, "MDTS {mdts}");
    }
}

#[test]
fn any_number_of_queues_is_taken_for_what_it_can_be() {
    for (dw0, expected) in [(0, 1), (u32::MAX, 64), (0x0001_0005, 2), (0x0005_0001, 2)] {
        let (_transport, device) = open_with(|fake| {
            fake.admin = Some(Box::new(move |sqe| {
                (sqe.opcode == AdminOpcode::SET_FEATURES.0
                    && sqe.cdw10.get() == u32::from(FeatureId::NUMBER_OF_QUEUES.0))
                .then_some(Reply::Status(Status::SUCCESS, dw0))
            }));
        })
        .unwrap();
        assert_eq!(device.io_queue_pairs(), expected, "{dw0:#x}");
    }
}

#[test]
fn admin_commands_that_are_never_completed_cost_their_time_and_a_reset_mends_it() {
    let mut never = true;
    let (transport, mut device) = open_with(|_| {}).unwrap();
    transport.with(move |fake| {
        fake.admin = Some(Box::new(move |sqe| {
            (sqe.opcode == AdminOpcode::GET_LOG_PAGE.0 && std::mem::take(&mut never)).then_some(Reply::Never)
        }));
    });
    assert_eq!(device.smart_log().unwrap_err(), Error::AdminTimedOut(AdminOpcode::GET_LOG_PAGE));
    assert_eq!(device.smart_log().unwrap_err(), Error::NotEnabled);
    assert_eq!(error(device.next_event()), Error::NotEnabled);
    device.reset().unwrap();
    assert!(matches!(device.smart_log(), Err(Error::Command { .. })));
}

#[test]
fn events_in_any_number_are_no_trouble() {
    let (transport, mut device) = open_with(|fake| {
        fake.admin = Some(Box::new(|sqe| {
            (sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0)
                .then_some(Reply::Status(Status::SUCCESS, AsyncEvent::INVALID_DOORBELL_VALUE.to_dw0()))
        }));
    })
    .unwrap();
    for _ in 0..200 {
        assert!(matches!(device.next_event(), Ok(None | Some(AsyncEvent::INVALID_DOORBELL_VALUE))));
    }
    transport.with(|fake| fake.admin = Some(Box::new(|_| Some(Reply::Status(Status::INTERNAL_ERROR, 0)))));
    while let Ok(Some(_)) = device.next_event() {}
    assert_eq!(device.next_event(), Ok(None), "a request that failed is not sent again");
}

#[test]
fn completions_that_cannot_be_are_errors_and_the_queue_stops() {
    let cases = [
        (Io::Twice, Violation::Repeated),
        (Io::OtherCid(0x1f), Violation::UnknownCommand),
        (Io::OtherCid(0xffff), Violation::UnknownCommand),
        (Io::OtherCid(3), Violation::Repeated),
        (Io::OtherQueue(0), Violation::WrongQueue(0)),
        (Io::OtherQueue(2), Violation::WrongQueue(2)),
        (Io::Head(2), Violation::SubmissionHead(2)),
        (Io::Head(30), Violation::SubmissionHead(30)),
        (Io::Head(0xffff), Violation::SubmissionHead(0xffff)),
        (Io::BeforeFetch, Violation::NotFetched),
    ];
    for (io, violation) in cases {
        // 30 entries: 29 slots, so that some identifiers of 5 bits are no slot.
        let (transport, mut device, mut queue) = queue(30, |fake| fake.io = io);
        let mut result = flush_once(&device, &mut queue, 1);
        if result == Ok(1) {
            result = queue.poll(&mut |_| {});
        }
        let Err(Error::Protocol(protocol)) = result else { panic!("{io:?}: {result:?}") };
        assert_eq!((protocol.qid, protocol.violation), (1, violation), "{io:?}");
        let again = error(queue.poll(&mut |_| {}));
        assert_eq!(again, Error::Protocol(protocol));
        assert!(queue.flush(&device.namespaces()[0], 2).is_err());
        // A reset mends it.
        transport.with(|fake| fake.io = Io::Complete);
        device.reset().unwrap();
        device.recover(&mut queue).unwrap();
        for tag in 0..100 {
            assert_eq!(flush_once(&device, &mut queue, tag), Ok(1), "{io:?}");
        }
    }
}

#[test]
fn a_completion_of_an_earlier_command_in_the_same_slot_is_an_error() {
    let (_transport, device, mut queue) = queue(2, |fake| fake.io = Io::Stale);
    assert_eq!(flush_once(&device, &mut queue, 1), Ok(1));
    queue.flush(&device.namespaces()[0], 2).unwrap();
    assert_eq!(queue.wait(PATIENCE, &mut |completion| assert_eq!(completion.tag, 2)), Ok(1));
    let result = queue.poll(&mut |_| {});
    let Err(Error::Protocol(protocol)) = result else { panic!("{result:?}") };
    assert_eq!(protocol.violation, Violation::Repeated);
}

#[test]
fn an_entry_of_the_wrong_phase_is_none_and_its_command_times_out() {
    for io in [Io::WrongPhase, Io::Ignore] {
        let (transport, mut device, mut queue) = queue(8, |fake| fake.io = io);
        let id = queue.flush(&device.namespaces()[0], 5).unwrap();
        assert_eq!(queue.find(5), Some(id));
        assert_eq!(error(queue.wait(PATIENCE, &mut |_| panic!("nothing is complete"))), Error::TimedOut(id));
        // It is still in flight, and told of again; other commands go on.
        assert_eq!(queue.in_flight(), 1);
        assert_eq!(error(queue.wait(PATIENCE, &mut |_| panic!("nothing is complete"))), Error::TimedOut(id));
        assert!(matches!(device.abort(id), Err(Error::Command { command: AdminOpcode::ABORT, .. })));
        transport.with(|fake| fake.io = Io::Complete);
        assert_eq!(flush_once(&device, &mut queue, 6), Ok(1));
        device.reset().unwrap();
        assert_eq!(device.recover(&mut queue), Ok(vec![5]));
    }
}

#[test]
fn noise_in_the_completion_queue_is_an_error_or_nothing() {
    for seed in 0..60 {
        let (transport, device, mut queue) = queue(8, |fake| fake.io = Io::Complete);
        for tag in 0..seed % 20 {
            assert_eq!(flush_once(&device, &mut queue, tag), Ok(1));
        }
        transport.with(|fake| fake.io = Io::Garbage);
        queue.flush(&device.namespaces()[0], 99).unwrap();
        let result = queue.wait(PATIENCE, &mut |_| {});
        assert!(matches!(result, Err(Error::Protocol(_) | Error::TimedOut(_)) | Ok(1)), "{result:?}");
    }
}

#[test]
fn noise_in_admin_completions_is_an_error_and_a_reset_mends_it() {
    let (transport, mut device) = open_with(|_| {}).unwrap();
    for seed in 1..50 {
        // All of the driver's memory, rings and lists and all.
        let range_start = 1u64 << 32;
        transport.with(|fake| fake.scribble(range_start, &pattern(seed, 1 << 16)));
        let _ = device.smart_log();
        let _ = device.next_event();
        transport.with(|fake| fake.log.clear());
        device.reset().unwrap();
        assert!(matches!(device.smart_log(), Err(Error::Command { .. })));
    }
}

#[test]
fn a_shutdown_leaves_the_controller_disabled() {
    let (transport, device) = open_with(|_| {}).unwrap();
    device.shutdown().unwrap();
    assert!(!transport.with(|fake| fake.is_enabled()));
}

#[test]
fn memory_has_a_limit_and_is_used_again() {
    let transport = Arc::new(Cooperative::new(Fake::new()).unwrap());
    let options = Options { memory_chunk: 1 << 20, memory_limit: 3 << 20, ..short() };
    let mut device = Device::open(transport, options).unwrap();
    for _ in 0..100 {
        let large = device.allocate(2 << 20).unwrap();
        let beyond = device.allocate(1 << 20).unwrap_err();
        assert!(matches!(beyond, Error::Memory(MemoryError::Limit { .. })), "{beyond}");
        large.write(0, &[1; 100]).unwrap();
        drop(large);
        let queue = device.create_queue_pair(QueueOptions::default().with_entries(64)).unwrap();
        drop(queue);
    }
    assert!(device.allocate(0).is_err());
    assert!(device.allocate(usize::MAX).is_err());
}

#[test]
fn a_device_whose_thread_dies_is_gone() {
    let transport = Arc::new(InProcess::spawn(Fake::new()).unwrap());
    let mut device = Device::open(transport.clone(), short()).unwrap();
    let mut queue = device.create_queue_pair(QueueOptions::default().with_entries(8)).unwrap();
    assert!(transport.with(|_| panic!("the device dies; this is part of the test")).is_err());
    let result = queue.flush(&device.namespaces()[0], 1).map(drop).map_err(|e| e.to_string());
    result.unwrap();
    assert!(queue.wait(PATIENCE, &mut |_| {}).is_err());
    assert!(device.reset().is_err());
}
