//! What each access to guest memory costs. `cargo bench -p shadowbell-dma`.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{hint::black_box, sync::Arc};

use divan::{Bencher, counter::BytesCount};
use shadowbell_dma::{Access, AddressSpace, Backing, Mapping, MemoryMap, Protection, Segments};

/// Guest RAM as QEMU maps it: a few ranges.
fn guest() -> Arc<MemoryMap> {
    let mut space = AddressSpace::new();
    for (iova, len) in [(0, 0xa_0000u64), (0xc_0000, 0x4_0000), (0x10_0000, 64 << 20), (1 << 32, 64 << 20)] {
        let (mapping, _) = Mapping::new_shared("guest", len).unwrap();
        space.map(iova, len, Backing::Mapped(mapping), Protection::READ_WRITE).unwrap();
    }
    space.snapshot()
}

/// An SQE out of its ring.
#[divan::bench(sample_size = 1000)]
fn sqe_copied_out(bencher: Bencher<'_, '_>) {
    let window = guest().window(0x20_0000, 65536, Access::Read).unwrap();
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 64) % 65536;
        window.load_words::<8>(at).unwrap()
    });
}

/// A CQE into its ring.
#[divan::bench(sample_size = 1000)]
fn cqe_stored(bencher: Bencher<'_, '_>) {
    let window = guest().window(0x20_0000, 16384, Access::Write).unwrap();
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 16) % 16384;
        window.store_pair(at, 1, 2).unwrap();
    });
}

/// The pages of a command, resolved to iovecs.
#[divan::bench(sample_size = 100, args = [1, 2, 32])]
fn pages_resolved(bencher: Bencher<'_, '_>, pages: u64) {
    let (map, mut list, mut at) = (guest(), Segments::default(), 0u64);
    bencher.bench_local(|| {
        list.clear();
        for page in 0..pages {
            // Every other page, so that none joins the one before.
            list.push(&map, (1 << 32) + (at + 2 * page * 4096) % (64 << 20), 4096, Access::Write).unwrap();
        }
        at += 8192;
        black_box(list.bytes())
    });
}

/// A copy from a disk in memory to the guest; both fit into the cache.
#[divan::bench(sample_size = 100, args = [512, 4096, 131_072])]
fn copied(bencher: Bencher<'_, '_>, bytes: usize) {
    let (map, mut list) = (guest(), Segments::default());
    list.push(&map, 1 << 32, bytes, Access::Write).unwrap();
    let disk = Mapping::new_private(1 << 20).unwrap().window();
    disk.write(0, &vec![1; 1 << 20]).unwrap();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| list.copy_from(&disk, 0).unwrap());
}

fn main() {
    divan::main();
}
