//! A worker that serves I/O allocates nothing for it, neither while it polls nor around its sleeps.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use block::NullDevice;
use controller::{Config, NvmeFunction};
use pci::PollMode;
use rustix::event::{EventfdFlags, eventfd};
use shadowbell_driver::{Device, Options, QueueOptions, VfioUser};
use vfio_user::{ClientOptions, Control, Server, ServerOptions, Worker};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a worker of two devices allocates from its start to its end, around so many reads at each of these depths.
fn allocations(reads: u64, mode: PollMode) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| directory.path().join(name));
    let mut worker = Worker::new(mode);
    for path in &paths {
        let disk = Arc::new(NullDevice::new(1 << 30, 4096, false).unwrap());
        let function = NvmeFunction::new(Config::new("allocations", vec![disk])).unwrap();
        worker.add(Server::bind(path, ServerOptions::default()).unwrap(), function);
    }
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let run = || worker.run(&[stop.as_fd()], &mut |_, _| Control::Stop).unwrap();
            allocation_counter::measure(run).count_total
        });
        let mut opened = paths.each_ref().map(|path| {
            let transport = VfioUser::connect(path, ClientOptions::default().timeout(PATIENCE)).unwrap();
            let mut device = Device::open(Arc::new(transport), Options::default()).unwrap();
            let queue = device.create_queue_pair(QueueOptions::default()).unwrap();
            (device, queue)
        });
        for depth in [1, 32] {
            for _ in 0..reads / depth {
                for (device, queue) in &mut opened {
                    let (disk, buffer) = (device.namespaces()[0], device.allocate(4096).unwrap());
                    for lba in 0..depth {
                        queue.read(&disk, lba, &buffer, lba).unwrap();
                    }
                    queue.ring().unwrap();
                }
                for (_, queue) in &mut opened {
                    while queue.in_flight() > 0 {
                        queue.wait(PATIENCE, &mut |completion| assert_eq!(completion.ok(), Ok(()))).unwrap();
                    }
                }
            }
        }
        drop(opened);
        rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap()
    })
}

#[test]
fn io_through_a_worker_allocates_nothing() {
    for mode in [PollMode::Auto, PollMode::Always, PollMode::Never] {
        let (few, many) = (allocations(320, mode), allocations(9600, mode));
        assert!(few > 0, "the counter counts");
        // Buffers of the driver come and go in memory that is mapped once; tables grow once, with the depth.
        assert!(many < few + 100, "{mode:?}: {few} allocations with few reads, {many} with many");
    }
}
