//! What 63 idle disks cost a busy one in the same worker: reads of 4 KiB from a null disk, alone and in company, in turn.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::{
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use block::NullDevice;
use controller::{Config, NvmeFunction};
use pci::PollMode;
use rustix::event::{EventfdFlags, eventfd};
use shadowbell_driver::{Device, Options, QueueOptions, QueuePair, VfioUser};
use vfio_user::{ClientOptions, Control, Server, ServerOptions, Worker};

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_millis(700);

/// Commands in a second.
fn measure((device, queue): &mut (Device, QueuePair), depth: u16) -> f64 {
    let disk = device.namespaces()[0];
    let buffer = device.allocate(4096).unwrap();
    let (start, mut done, mut lba) = (Instant::now(), 0usize, 0u64);
    while start.elapsed() < TIME {
        for _ in 0..64 {
            while queue.in_flight() < depth {
                queue.read(&disk, lba, &buffer, lba).unwrap();
                lba = (lba + 7919) % disk.blocks();
            }
            queue.ring().unwrap();
            done += queue.poll(&mut |_| {}).unwrap();
        }
    }
    while queue.in_flight() > 0 {
        queue.wait(Duration::from_secs(5), &mut |_| {}).unwrap();
    }
    done as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).unwrap();
    let worker = |name: &str, disks: usize| {
        let mut worker = Worker::new(PollMode::Auto);
        let paths: Vec<_> = (0..disks).map(|i| directory.path().join(format!("{name}{i}"))).collect();
        for path in &paths {
            let disk = Arc::new(NullDevice::new(1 << 40, 4096, false).unwrap());
            let function = NvmeFunction::new(Config::new("many", vec![disk])).unwrap();
            worker.add(Server::bind(path, ServerOptions::default()).unwrap(), function);
        }
        (worker, paths)
    };
    let ((mut alone, alone_paths), (mut group, group_paths)) = (worker("a", 1), worker("g", 64));
    std::thread::scope(|scope| {
        scope.spawn(|| alone.run(&[stop.as_fd()], &mut |_, _| Control::Stop).unwrap());
        scope.spawn(|| group.run(&[stop.as_fd()], &mut |_, _| Control::Stop).unwrap());
        let open = |path| {
            let transport = VfioUser::connect(path, ClientOptions::default()).unwrap();
            let mut device = Device::open(Arc::new(transport), Options::default()).unwrap();
            let queue = device.create_queue_pair(QueueOptions::default()).unwrap();
            (device, queue)
        };
        let mut single = open(&alone_paths[0]);
        let mut disks: Vec<_> = group_paths.iter().map(open).collect();
        for depth in [1, 8, 64] {
            let mut ratios = Vec::new();
            for _ in 0..ROUNDS {
                let (one, many) = (measure(&mut single, depth), measure(&mut disks[31], depth));
                println!("depth {depth:2}: alone {one:>9.0} IOPS, with 63 idle disks {many:>9.0}, {:.3}", many / one);
                ratios.push(many / one);
            }
            ratios.sort_by(f64::total_cmp);
            println!("depth {depth:2}: median {:.3}", ratios[ROUNDS / 2]);
        }
        drop((single, disks));
        rustix::io::write(&stop, &2u64.to_ne_bytes()).unwrap();
    });
}
