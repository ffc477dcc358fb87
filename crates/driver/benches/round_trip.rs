//! Both halves of a command on one processor: the driver's work and the device's, without the way between two processors.
//!
//! `cargo bench -p shadowbell-driver`. A figure is the time for `depth` commands that are submitted, each rung for by itself,
//! carried out and completed; `items/s` is commands.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{sync::Arc, time::Duration};

use block::{BlockDevice, NullDevice, RamDevice};
use controller::{Config, NvmeFunction};
use divan::{Bencher, counter::ItemsCount};
use shadowbell_driver::{Buffer, Cooperative, Device, DoorbellPolicy, Namespace, Options, QueueOptions, QueuePair};

const DEPTHS: [u16; 4] = [1, 8, 32, 128];

struct Rig {
    queue: QueuePair,
    disk: Namespace,
    buffer: Buffer,
    _device: Device,
}

fn rig(disk: Arc<dyn BlockDevice>, bytes: usize) -> Rig {
    let function = NvmeFunction::new(Config::new("bench", vec![disk])).unwrap();
    let transport = Arc::new(Cooperative::new(function).unwrap());
    let options = Options { doorbells: DoorbellPolicy::Shadow, ..Options::default() };
    let mut device = Device::open(transport, options).unwrap();
    let queue = device.create_queue_pair(QueueOptions { entries: 256, ..QueueOptions::default() }).unwrap();
    let buffer = device.allocate(bytes).unwrap();
    Rig { queue, disk: device.namespaces()[0], buffer, _device: device }
}

fn round(rig: &mut Rig, depth: u16, lba: &mut u64) {
    for _ in 0..depth {
        rig.queue.read(&rig.disk, *lba, &rig.buffer, 0).unwrap();
        *lba = (*lba + 7919) % (rig.disk.blocks() - 2048);
        rig.queue.ring().unwrap();
    }
    let mut done = 0;
    while done < usize::from(depth) {
        done += rig.queue.poll(&mut |_| {}).unwrap();
    }
}

fn run(bencher: Bencher<'_, '_>, depth: u16, disk: Arc<dyn BlockDevice>, bytes: usize) {
    let (mut rig, mut lba) = (rig(disk, bytes), 0);
    bencher.counter(ItemsCount::new(depth)).bench_local(|| round(&mut rig, depth, &mut lba));
}

#[divan::bench(args = DEPTHS)]
fn null_4k(bencher: Bencher<'_, '_>, depth: u16) {
    run(bencher, depth, Arc::new(NullDevice::new(1 << 40, 4096, false).unwrap()), 4096);
}

/// 128 KiB: a PRP list of 31 entries.
#[divan::bench(args = [1, 32])]
fn null_128k(bencher: Bencher<'_, '_>, depth: u16) {
    run(bencher, depth, Arc::new(NullDevice::new(1 << 40, 4096, false).unwrap()), 128 << 10);
}

#[divan::bench(args = DEPTHS)]
fn ram_4k(bencher: Bencher<'_, '_>, depth: u16) {
    // Pages that were never written are all the same page of zeros; 64 MiB are more than what caches hold.
    let disk: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(64 << 20, 4096).unwrap());
    let mut rig = rig(disk, 128 << 10);
    for lba in (0..rig.disk.blocks()).step_by(32) {
        rig.queue.write(&rig.disk, lba, &rig.buffer, 0).unwrap();
        while rig.queue.wait(Duration::from_secs(60), &mut |_| {}).unwrap() == 0 {}
    }
    rig.buffer = rig.queue.allocate(4096).unwrap();
    let mut lba = 0;
    bencher.counter(ItemsCount::new(depth)).bench_local(|| round(&mut rig, depth, &mut lba));
}

fn main() {
    divan::main();
}
