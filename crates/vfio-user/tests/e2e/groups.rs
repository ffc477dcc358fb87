//! Several devices in one worker: what one does costs the others nothing.

use std::{
    io::Write,
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use dma::{Mapping, Protection};
use pci::PollMode;
use shadowbell_vfio_user::{
    Client, ClientOptions, Control, Device as Served, Server, ServerOptions, Statistics, Worker, WorkerError,
    WorkerStatistics, codec::wire::irq,
};

use crate::{
    device::{DMA, Device, RAISE_MSIX, SPIN, START, Shared},
    rig::{LIMIT, Raw, new_eventfd, posted, read_message, signalled, wait_until, write_message},
};

type Seen = Option<(Vec<Statistics>, WorkerStatistics)>;

/// A running worker.
struct Group {
    devices: Vec<Arc<Shared>>,
    paths: Vec<PathBuf>,
    wake: OwnedFd,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<Result<(), WorkerError>>>,
    _dir: tempfile::TempDir,
}

impl Group {
    fn new(devices: usize) -> Self {
        Self::with(devices, &ServerOptions::default())
    }

    fn with(devices: usize, options: &ServerOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..devices).map(|i| dir.path().join(format!("{i}.sock"))).collect();
        let mut worker = Worker::new(PollMode::Auto);
        for path in &paths {
            worker.add(Server::bind(path, options.clone()).unwrap(), Device::new());
        }
        let devices = worker.devices().iter().map(|device| device.function().shared.clone()).collect();
        let wake = new_eventfd();
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let thread = {
            let (wake, stop, seen) = (wake.try_clone().unwrap(), stop.clone(), seen.clone());
            std::thread::spawn(move || {
                worker.run(&[wake.as_fd()], &mut |devices: &mut [Served<Device>], stats| {
                    rustix::io::read(&wake, &mut [0u8; 8]).unwrap();
                    let all = devices.iter().map(|device| *device.statistics()).collect();
                    *seen.lock().unwrap() = Some((all, *stats));
                    if stop.load(Ordering::SeqCst) { Control::Stop } else { Control::Continue }
                })
            })
        };
        Self { devices, paths, wake, stop, seen, thread: Some(thread), _dir: dir }
    }

    fn client(&self, device: usize) -> Client {
        Client::connect(&self.paths[device], ClientOptions::default().timeout(LIMIT)).unwrap()
    }

    fn raw(&self, device: usize) -> Raw {
        let stream = UnixStream::connect(&self.paths[device]).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Raw { stream }
    }

    fn greeted(&self, device: usize) -> Raw {
        let mut raw = self.raw(device);
        raw.greet();
        raw
    }

    fn wake(&self) {
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
    }

    fn statistics(&self) -> (Vec<Statistics>, WorkerStatistics) {
        *self.seen.lock().unwrap() = None;
        self.wake();
        let mut seen = None;
        wait_until("statistics", || {
            seen = self.seen.lock().unwrap().take();
            seen.is_some()
        });
        seen.unwrap()
    }

    fn polls(&self, device: usize) -> u64 {
        self.devices[device].polls.load(Ordering::Relaxed)
    }

    fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn join(&mut self) -> Result<(), WorkerError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for device in &self.devices {
            device.release();
        }
        self.ask_to_stop();
        if !std::thread::panicking() && self.thread.is_some() {
            self.join().unwrap();
        }
    }
}

#[test]
fn devices_of_one_worker_have_clients_memory_and_interrupts_of_their_own() {
    let group = Group::new(3);
    let (ram, fds): (Vec<_>, Vec<_>) = (0..3).map(|_| Mapping::new_shared("ram", 4096).unwrap()).unzip();
    let events: Vec<_> = (0..3).map(|_| new_eventfd()).collect();
    let mut clients: Vec<_> = (0..3).map(|i| group.client(i)).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.dma_map(0, 4096, Protection::READ_WRITE, Some((fds[i].as_fd(), 0))).unwrap();
        client.connect_irqs(irq::MSIX, 5, &[events[i].as_fd()]).unwrap();
        client.region_write(0, 0, &[u8::try_from(i).unwrap() + 1]).unwrap();
    }
    // Only the middle one does anything.
    clients[1].region_write(0, RAISE_MSIX, &[5]).unwrap();
    clients[1].region_write(0, DMA, &16u64.to_le_bytes()).unwrap();
    for (i, client) in clients.iter_mut().enumerate() {
        let mut byte = [0];
        client.region_read(0, 0, &mut byte).unwrap();
        assert_eq!(usize::from(byte[0]), i + 1);
        let mut bytes = [0; 4];
        ram[i].window().read(16, &mut bytes).unwrap();
        assert_eq!((&bytes == b"DMA!", signalled(&events[i])), (i == 1, i == 1), "device {i}");
    }
    // One leaves, another one is second: the rest notices nothing.
    drop(clients.remove(1));
    wait_until("reset", || group.devices[1].resets.load(Ordering::SeqCst) == 1);
    group.raw(2).expect_closed();
    for client in &mut clients {
        client.device_info().unwrap();
    }
    group.client(1).device_info().unwrap();
    let (devices, _) = group.statistics();
    let clients: Vec<_> = devices.iter().map(|device| (device.clients, device.refused_clients)).collect();
    assert_eq!(clients, [(1, 0), (2, 0), (1, 1)]);
    assert_eq!(group.devices[0].resets.load(Ordering::SeqCst), 0);
}

#[test]
fn clients_that_flood_talk_nonsense_or_vanish_starve_nobody() {
    let group = Group::new(4);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Posted writes, and reads of a whole megabyte, the costliest answer. Who reads too slowly is expelled, and comes again.
        scope.spawn(|| {
            let flood = [posted(7, 0x40, &[1; 4]).repeat(1000), read_message(1, 0, 1 << 40, 1 << 20)].concat();
            while !done.load(Ordering::SeqCst) {
                let mut raw = group.greeted(0);
                let mut answers = raw.stream.try_clone().unwrap();
                let reader = std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
                while raw.stream.write_all(&flood).is_ok() {
                    if done.load(Ordering::SeqCst) {
                        break;
                    }
                }
                let _ = raw.stream.shutdown(Shutdown::Both);
                let _ = reader.join().unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let mut raw = group.raw(1);
                raw.try_send(&[0xff; 4096]);
                raw.expect_closed();
            }
        });
        scope.spawn(|| {
            let half = write_message(1, 0, 0, 0, &[1; 64]);
            while !done.load(Ordering::SeqCst) {
                group.greeted(2).send(&half[..40]);
            }
        });
        let mut client = group.client(3);
        for n in 0..1000u32 {
            let mut bytes = [0; 4];
            client.region_write(0, 64, &n.to_le_bytes()).unwrap();
            client.region_read(0, 64, &mut bytes).unwrap();
            assert_eq!(u32::from_le_bytes(bytes), n);
        }
        done.store(true, Ordering::SeqCst);
    });
    let (devices, _) = group.statistics();
    assert!(devices[0].posted > 0 && devices[1].expelled_clients > 0 && devices[2].clients > 0, "{devices:?}");
    assert_eq!((devices[3].clients, devices[3].expelled_clients), (1, 0));
}

#[test]
fn what_did_not_fit_into_a_turn_is_done_in_the_next_in_order_also_behind_a_dead_connection() {
    let group = Group::new(2);
    let mut raw = group.greeted(0);
    let polls = group.polls(0);
    let flood: Vec<u8> = (0..1000u32).flat_map(|n| posted(0, 0x100, &n.to_le_bytes())).collect();
    raw.send(&flood);
    drop(raw);
    wait_until("reset", || group.devices[0].resets.load(Ordering::SeqCst) == 1);
    let writes = group.devices[0].writes();
    assert_eq!(writes.len(), 1000);
    for (n, (_, _, data)) in (0..1000u32).zip(writes) {
        assert_eq!(data, n.to_le_bytes());
    }
    assert!(group.polls(0) - polls >= 1000 / 64, "in portions");
    // The connection is free again.
    group.client(0).device_info().unwrap();
}

#[test]
fn a_device_without_work_rests_while_another_is_busy_and_is_woken() {
    let group = Group::new(3);
    let mut busy = group.client(0);
    let mut resting = group.client(1);
    busy.region_write(0, SPIN, &[1]).unwrap();
    resting.region_read(0, 0, &mut [0]).unwrap();
    let spin = || {
        let before = group.polls(0);
        wait_until("the busy one goes on", || group.polls(0) > before + 100_000);
    };
    spin();
    let before = [group.polls(1), group.polls(2)];
    spin();
    assert_eq!([group.polls(1), group.polls(2)], before, "they rest");
    // By a message, by a descriptor, and by a new client.
    resting.region_write(0, 8, &[7]).unwrap();
    wait_until("woken by its socket", || group.polls(1) > before[0]);
    resting.region_write(0, START, &[1]).unwrap();
    spin();
    group.devices[1].release();
    wait_until("woken by its descriptor", || group.devices[1].in_flight.load(Ordering::SeqCst) == 0);
    group.client(2).device_info().unwrap();
    let (devices, worker) = group.statistics();
    assert!(worker.looks > 0 && devices[1].rests > 0, "{worker:?}");
    // Another one rests; the thread does not.
    let sleeps = worker.sleeps;
    spin();
    assert_eq!(group.statistics().1.sleeps, sleeps);
    busy.region_write(0, SPIN, &[0]).unwrap();
    wait_until("all rest", || group.statistics().1.sleeps > sleeps);
}

#[test]
fn deadlines_are_kept_whether_another_device_is_busy_or_the_thread_sleeps() {
    let group = Group::new(2);
    let mut busy = group.client(0);
    for spinning in [1, 0] {
        busy.region_write(0, SPIN, &[spinning]).unwrap();
        for deadline in [Duration::from_micros(100), Duration::from_millis(1), Duration::from_micros(6500)] {
            let device = &group.devices[1];
            device.deadline.store(u64::try_from(deadline.as_nanos()).unwrap(), Ordering::SeqCst);
            // It has to hear of it.
            device.release();
            let seen = device.late.lock().unwrap().len();
            wait_until("woken again and again", || device.late.lock().unwrap().len() >= seen + 50);
            // The machine may be busy; but not each time.
            let best = device.late.lock().unwrap()[seen..].iter().min().copied();
            assert!(best < Some(Duration::from_micros(400)), "{deadline:?}, busy {spinning}: {best:?} late");
            device.deadline.store(0, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_worker_without_work_sleeps() {
    let group = Group::new(64);
    let mut clients: Vec<_> = (0..64).map(|i| group.client(i)).collect();
    for client in &mut clients {
        client.device_info().unwrap();
    }
    let (_, before) = group.statistics();
    let polls: u64 = (0..64).map(|i| group.polls(i)).sum();
    for _ in 0..50 {
        group.statistics();
    }
    let (_, after) = group.statistics();
    // Each of these questions wakes it once.
    assert!(after.sleeps - before.sleeps <= 51 && after.looks - before.looks <= 51, "{before:?}, {after:?}");
    assert!((0..64).map(|i| group.polls(i)).sum::<u64>() - polls <= 52 * 64 * 2);
}

#[test]
fn a_stop_waits_for_each_device_and_closes_all() {
    let mut group = Group::new(3);
    let mut clients: Vec<_> = (0..3).map(|i| group.client(i)).collect();
    clients[0].region_write(0, START, &[1]).unwrap();
    clients[2].region_write(0, SPIN, &[1]).unwrap();
    group.ask_to_stop();
    wait_until("resets", || group.devices.iter().all(|device| device.resets.load(Ordering::SeqCst) == 1));
    group.statistics();
    assert!(!group.thread.as_ref().unwrap().is_finished(), "a request is in flight");
    group.devices[0].release();
    group.join().unwrap();
    for (client, path) in clients.iter_mut().zip(&group.paths) {
        client.device_info().unwrap_err();
        assert!(!path.exists());
    }
}

#[test]
fn a_stop_ends_in_time_and_names_the_devices_that_did_not() {
    let mut options = ServerOptions::default();
    options.stop_timeout = Duration::from_millis(20);
    let mut group = Group::with(2, &options);
    group.client(1).device_info().unwrap();
    let mut client = group.client(0);
    client.region_write(0, START, &[1]).unwrap();
    group.ask_to_stop();
    let error = group.join().unwrap_err().to_string();
    assert!(error.contains("0.sock") && !error.contains("1.sock"), "{error}");
}
