//! Reads of 4 KiB from a null disk: what the way to the device costs.

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
use shadowbell_driver::{Device, DoorbellPolicy, InProcess, Options, QueueOptions, Transport, VfioUser};
use vfio_user::{ClientOptions, Control, Server, ServerOptions, Worker};

fn function() -> NvmeFunction {
    let disk = Arc::new(NullDevice::new(1 << 40, 4096, false).unwrap());
    NvmeFunction::new(Config::new("iops", vec![disk])).unwrap()
}

fn measure(way: &str, transport: Arc<dyn Transport>) {
    for doorbells in [DoorbellPolicy::Register, DoorbellPolicy::Shadow] {
        let mut device = Device::open(transport.clone(), Options { doorbells, ..Options::default() }).unwrap();
        for interrupt in [false, true] {
            for depth in [1u16, 4, 32, 128] {
                let entries = u32::from(depth) + 1;
                let mut queue =
                    device.create_queue_pair(QueueOptions { entries, interrupt, ..QueueOptions::default() }).unwrap();
                let disk = device.namespaces()[0];
                let buffer = device.allocate(4096).unwrap();
                let (start, mut done, mut lba) = (Instant::now(), 0usize, 0u64);
                while start.elapsed() < Duration::from_millis(700) {
                    for _ in 0..16 {
                        while queue.in_flight() < depth {
                            queue.read(&disk, lba, &buffer, lba).unwrap();
                            lba = (lba + 7919) % disk.blocks();
                        }
                        queue.ring().unwrap();
                        done += if interrupt {
                            queue.wait(Duration::from_secs(5), &mut |_| {}).unwrap()
                        } else {
                            queue.poll(&mut |_| {}).unwrap()
                        };
                    }
                }
                let rate = done as f64 / start.elapsed().as_secs_f64();
                let counters = queue.counters();
                let writes = counters.register_writes() as f64 / counters.submitted as f64;
                let interrupts = counters.interrupts as f64 / counters.submitted as f64;
                println!(
                    "{way:>10} {doorbells:?} interrupt={interrupt} depth {depth:3}: {rate:>9.0} IOPS, {writes:.4} register writes and {interrupts:.4} interrupts per I/O"
                );
                device.delete_queue_pair(queue).unwrap();
            }
        }
    }
}

fn main() {
    measure("in process", Arc::new(InProcess::spawn(function()).unwrap()));
    let path = std::env::temp_dir().join(format!("iops-{}.sock", std::process::id()));
    let mut worker = Worker::new(PollMode::Auto);
    worker.add(Server::bind(&path, ServerOptions::default()).unwrap(), function());
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| worker.run(&[stop.as_fd()], &mut |_, _| Control::Stop).unwrap());
        measure("socket", Arc::new(VfioUser::connect(&path, ClientOptions::default()).unwrap()));
        rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
    });
}
