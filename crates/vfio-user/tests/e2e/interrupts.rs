//! SET_IRQS in all its forms.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering,
};

use rustix::io::Errno;
use shadowbell_vfio_user::{
    Client, ClientError,
    codec::wire::irq::{
        ACTION_MASK, ACTION_TRIGGER, ACTION_UNMASK, DATA_BOOL, DATA_EVENTFD, DATA_NONE, ERROR, INTX, MSI, MSIX, REQUEST,
    },
};

use crate::{
    device::{LEVEL, RAISE_MSIX, VECTORS},
    rig::{Rig, new_eventfd, signalled, wait_until},
};

fn raise(client: &mut Client, vector: u16) {
    client.region_write(0, RAISE_MSIX, &vector.to_le_bytes()).unwrap();
}

fn errno(result: Result<(), ClientError>) -> Option<Errno> {
    match result {
        Ok(()) => None,
        Err(ClientError::Refused { error, .. }) => Some(Errno::from_io_error(&error).unwrap()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn vectors_are_bound_sixteen_at_a_time_late_and_from_scratch() {
    let rig = Rig::new();
    let mut client = rig.client();
    // QEMU's first message: one vector, no descriptor.
    client.set_irqs(MSIX, DATA_EVENTFD | ACTION_TRIGGER, 0, 1, &[], &[]).unwrap();
    raise(&mut client, 39);
    let events: Vec<_> = (0..VECTORS).map(|_| new_eventfd()).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    client.connect_irqs(MSIX, 0, &fds).unwrap();
    assert!(signalled(&events[39]), "what was pending is delivered when it is bound");
    for vector in 0..VECTORS {
        raise(&mut client, vector);
        assert!(signalled(&events[usize::from(vector)]));
    }
    raise(&mut client, VECTORS);
    let again = new_eventfd();
    client.connect_irqs(MSIX, 5, &[again.as_fd()]).unwrap();
    raise(&mut client, 5);
    raise(&mut client, 6);
    assert!(signalled(&again) && signalled(&events[6]) && !signalled(&events[5]));
    assert!(events.iter().all(|fd| !signalled(fd)));
}

#[test]
fn ranges_are_unbound_by_absence_and_all_by_a_count_of_zero() {
    let rig = Rig::new();
    let mut client = rig.client();
    let events: Vec<_> = (0..8).map(|_| new_eventfd()).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    let heard = |client: &mut Client| -> Vec<usize> {
        (0..8).for_each(|vector| raise(client, vector));
        (0..8).filter(|&i| signalled(&events[i])).collect()
    };
    client.connect_irqs(MSIX, 0, &fds).unwrap();
    client.set_irqs(MSIX, DATA_EVENTFD | ACTION_TRIGGER, 2, 3, &[], &[]).unwrap();
    assert_eq!(heard(&mut client), [0, 1, 5, 6, 7]);
    client.disable_irqs(MSIX).unwrap();
    assert!(heard(&mut client).is_empty());
    client.connect_irqs(MSIX, 0, &fds).unwrap();
    assert_eq!(heard(&mut client), [0, 1, 2, 3, 4, 5, 6, 7]);
    client.set_irqs(MSIX, DATA_EVENTFD | ACTION_TRIGGER, 0, 0, &[], &[]).unwrap();
    assert!(heard(&mut client).is_empty());
}

#[test]
fn what_contradicts_itself_is_refused_and_changes_nothing() {
    let rig = Rig::new();
    let mut client = rig.client();
    let events = [new_eventfd(), new_eventfd()];
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    client.connect_irqs(MSIX, 0, &fds).unwrap();
    let bind = DATA_EVENTFD | ACTION_TRIGGER;
    let spare = new_eventfd();
    let spare = [spare.as_fd(); 3];
    let cases: &[(u32, u32, u32, u32, usize, usize, &str)] = &[
        (MSIX, bind, 39, 2, 0, 2, "more vectors than exist"),
        (MSIX, bind, 40, 1, 0, 1, "behind the last one"),
        (MSIX, bind, u32::MAX, 2, 0, 2, "overflow"),
        (MSIX, bind, 0, u32::MAX, 0, 0, "far too many"),
        (MSIX, bind, 0, 2, 0, 1, "too few descriptors"),
        (MSIX, bind, 0, 2, 0, 3, "too many descriptors"),
        (MSIX, bind, 0, 0, 0, 1, "a descriptor for nothing"),
        (MSIX, bind, 1, 0, 0, 0, "nothing from 1 on"),
        (MSIX, DATA_NONE | ACTION_TRIGGER, 0, 1, 0, 1, "a descriptor without the flag"),
        (MSIX, DATA_NONE | ACTION_MASK, 0, 0, 0, 0, "mask nothing"),
        (MSIX, DATA_BOOL | ACTION_TRIGGER, 0, 0, 0, 0, "no booleans"),
        (MSIX, DATA_NONE | DATA_BOOL | ACTION_TRIGGER, 0, 1, 1, 0, "two kinds of data"),
        (MSIX, DATA_NONE | ACTION_MASK | ACTION_TRIGGER, 0, 1, 0, 0, "two actions"),
        (MSIX, ACTION_TRIGGER, 0, 1, 0, 0, "no kind of data"),
        (MSIX, DATA_NONE, 0, 1, 0, 0, "no action"),
        (MSIX, DATA_NONE | ACTION_TRIGGER | 1 << 6, 0, 1, 0, 0, "an unknown flag"),
        (MSI, bind, 0, 1, 0, 1, "there is no MSI"),
        (REQUEST, bind, 0, 1, 0, 1, "there is no such interrupt"),
        (INTX, bind, 0, 2, 0, 2, "there is one line"),
        (5, bind, 0, 1, 0, 1, "an unknown index"),
        (u32::MAX, DATA_NONE | ACTION_TRIGGER, 0, 0, 0, 0, "an unknown index"),
    ];
    for &(index, flags, start, count, bools, fds, why) in cases {
        let result = client.set_irqs(index, flags, start, count, &vec![1; bools], &spare[..fds]);
        assert_eq!(errno(result), Some(Errno::INVAL), "{why}");
    }
    // Too few booleans for the count.
    assert_eq!(errno(client.set_irqs(MSIX, DATA_BOOL | ACTION_TRIGGER, 0, 3, &[1, 1], &[])), Some(Errno::INVAL));
    // A descriptor of another kind spoils the whole message.
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(errno(client.set_irqs(MSIX, bind, 0, 2, &[], &[spare[0], socket.as_fd()])), Some(Errno::INVAL));
    assert_eq!(errno(client.set_irqs(MSIX, DATA_EVENTFD | ACTION_MASK, 0, 1, &[], &[spare[0]])), Some(Errno::NOTTY));
    raise(&mut client, 0);
    raise(&mut client, 1);
    assert!(signalled(&events[0]) && signalled(&events[1]));
}

#[test]
fn a_client_may_trigger_and_mask_vectors_itself() {
    let rig = Rig::new();
    let mut client = rig.client();
    let events: Vec<OwnedFd> = (0..4).map(|_| new_eventfd()).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    client.connect_irqs(MSIX, 0, &fds).unwrap();
    let heard = || -> Vec<usize> { (0..4).filter(|&i| signalled(&events[i])).collect() };
    client.set_irqs(MSIX, DATA_NONE | ACTION_TRIGGER, 1, 2, &[], &[]).unwrap();
    assert_eq!(heard(), [1, 2]);
    client.set_irqs(MSIX, DATA_BOOL | ACTION_TRIGGER, 0, 4, &[1, 0, 0, 1], &[]).unwrap();
    assert_eq!(heard(), [0, 3]);
    client.set_irqs(MSIX, DATA_BOOL | ACTION_MASK, 0, 4, &[0, 1, 1, 0], &[]).unwrap();
    (0..4).for_each(|vector| raise(&mut client, vector));
    assert_eq!(heard(), [0, 3]);
    client.set_irqs(MSIX, DATA_NONE | ACTION_UNMASK, 0, 2, &[], &[]).unwrap();
    assert_eq!(heard(), [1], "was pending");
    client.set_irqs(MSIX, DATA_NONE | ACTION_UNMASK, 0, 4, &[], &[]).unwrap();
    assert_eq!(heard(), [2]);
}

#[test]
fn the_legacy_line_is_level_triggered_and_unmasked_by_message() {
    let rig = Rig::new();
    let mut client = rig.client();
    let event = new_eventfd();
    client.region_write(0, LEVEL, &[1]).unwrap();
    client.connect_irqs(INTX, 0, &[event.as_fd()]).unwrap();
    assert!(signalled(&event), "the level was active already");
    client.region_write(0, LEVEL, &[1]).unwrap();
    assert!(!signalled(&event), "masked by itself");
    client.set_irqs(INTX, DATA_NONE | ACTION_UNMASK, 0, 1, &[], &[]).unwrap();
    assert!(signalled(&event), "the level is still active");
    client.set_irqs(INTX, DATA_NONE | ACTION_MASK, 0, 1, &[], &[]).unwrap();
    client.region_write(0, LEVEL, &[0]).unwrap();
    client.region_write(0, LEVEL, &[1]).unwrap();
    assert!(!signalled(&event));
    client.set_irqs(INTX, DATA_NONE | ACTION_UNMASK, 0, 1, &[], &[]).unwrap();
    assert!(signalled(&event));
    client.region_write(0, LEVEL, &[0]).unwrap();
    client.set_irqs(INTX, DATA_BOOL | ACTION_UNMASK, 0, 1, &[1], &[]).unwrap();
    assert!(!signalled(&event));
    client.disable_irqs(INTX).unwrap();
    client.region_write(0, LEVEL, &[1]).unwrap();
    assert!(!signalled(&event));
}

#[test]
fn the_legacy_line_may_be_unmasked_by_an_eventfd() {
    let rig = Rig::new();
    let mut client = rig.client();
    let (event, unmask) = (new_eventfd(), new_eventfd());
    client.connect_irqs(INTX, 0, &[event.as_fd()]).unwrap();
    client.set_irqs(INTX, DATA_EVENTFD | ACTION_UNMASK, 0, 1, &[], &[unmask.as_fd()]).unwrap();
    client.region_write(0, LEVEL, &[1]).unwrap();
    assert!(signalled(&event));
    rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
    wait_until("signalled again", || signalled(&event));
    client.set_irqs(INTX, DATA_EVENTFD | ACTION_UNMASK, 0, 1, &[], &[]).unwrap();
    let before = rig.device.unmasked.load(Ordering::SeqCst);
    rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
    rig.statistics();
    client.device_info().unwrap();
    assert_eq!(rig.device.unmasked.load(Ordering::SeqCst), before, "no longer watched");
}

#[test]
fn an_error_interrupt_is_taken_and_never_raised() {
    let rig = Rig::new();
    let mut client = rig.client();
    let event = new_eventfd();
    client.connect_irqs(ERROR, 0, &[event.as_fd()]).unwrap();
    client.disable_irqs(ERROR).unwrap();
    client.reset().unwrap();
    assert!(!signalled(&event));
}

#[test]
fn a_full_eventfd_that_its_owner_made_blocking_stalls_nobody() {
    let rig = Rig::new();
    let mut client = rig.client();
    let event = new_eventfd();
    client.connect_irqs(MSIX, 0, &[event.as_fd()]).unwrap();
    rustix::io::ioctl_fionbio(&event, false).unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..10 {
        raise(&mut client, 0);
    }
    client.device_info().unwrap();
}
