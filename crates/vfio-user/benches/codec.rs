//! What it costs to understand a message. `cargo bench -p shadowbell-vfio-user`.

#![allow(clippy::unwrap_used, missing_docs)]

use divan::{Bencher, black_box};
use shadowbell_vfio_user::codec::decode;

/// A posted doorbell write as QEMU sends it.
const DOORBELL: [u8; 36] = [
    5, 0, 10, 0, 36, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0,
    0,
];

#[divan::bench(sample_size = 1000)]
fn doorbell_write(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| decode(black_box(&DOORBELL)).is_ok());
}

fn main() {
    divan::main();
}
