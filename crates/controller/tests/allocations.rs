//! A busy controller allocates nothing: every list, ring and table is used again.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod host;

use host::{Bells, Machine, Setup, commands, config, memory::Layout, ram};
use pci::{PciFunction, Wait};

/// One round of a mixed load: small and large transfers, lists that chain, and commands without data.
fn round(m: &mut Machine, prps: &[(u32, host::memory::Prps)]) -> u64 {
    for qid in [1, 2] {
        for (blocks, prps) in prps {
            m.push(qid, commands::write(3, *blocks, *prps));
            m.push(qid, commands::read(3, *blocks, *prps));
        }
        m.push(qid, commands::write_zeroes(0, 8));
        m.push(qid, commands::flush(1));
        m.ring(qid);
    }
    let function = &mut m.function;
    let counted = allocation_counter::measure(|| {
        loop {
            while function.poll() > 0 {}
            if function.prepare_wait() != Wait::Busy {
                break;
            }
        }
    });
    for qid in [1, 2] {
        m.reap(qid);
        assert_eq!(m.outstanding(qid), 0);
    }
    m.completed.clear();
    counted.count_total
}

#[test]
fn steady_io_allocates_nothing() {
    for (layout, bells) in [(Layout::High, Bells::Register), (Layout::High, Bells::Slot), (Layout::Pieces, Bells::Both)]
    {
        let mut m = Machine::boot(config(ram(512)), Setup { layout, ..Setup::default() });
        m.use_shadow_doorbells();
        m.create_pair(1, 64, bells);
        m.create_pair(2, 64, bells);
        let mut prps = Vec::new();
        for pages in [1, 2, 3, 32, 256] {
            let buffer = m.buffer(pages * 4096);
            // The list starts at the last qword of its page, so that long ones chain at once.
            prps.push((
                u32::try_from(pages * 8).unwrap(),
                m.memory.prps_with_list_at(4096, buffer, pages * 4096, 4088),
            ));
        }
        let mut first = 0;
        for _ in 0..5 {
            first += round(&mut m, &prps);
        }
        assert!(first > 0, "the tables had to grow once, so the counter counts");
        for n in 0..50 {
            assert_eq!(round(&mut m, &prps), 0, "{layout:?}, {bells:?}, round {n}");
        }
    }
}
