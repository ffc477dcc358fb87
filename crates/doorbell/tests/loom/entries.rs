//! Entries are whole when they are seen.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};
use shadowbell_doorbell::{CompletionProducer, DriverDoorbell};

use crate::{rig::*, tail::submission};

#[test]
fn e_without_acquire_on_the_tail_a_stale_entry_is_read() {
    // With it: the models of (a), which check what they read.
    check_fails(STALE, None, || submission::<true, true, false>(4, 1, Care::Full));
}

/// Stores completion entries as `dma` does, two words each with the phase in the second, to a host that polls the phase and a
/// device that polls the head. Each entry must be whole, and none may be overwritten before it was read.
fn completions(entries: u32, total: u16, ordered: bool) {
    let head = Pair::new(0);
    let ring: Arc<Vec<[AtomicU32; 2]>> =
        Arc::new((0..entries).map(|_| [AtomicU32::new(0), AtomicU32::new(0)]).collect());

    let mut doorbell = DriverDoorbell::new(depth(entries));
    let (slot, event) = head.words::<true, true>();
    doorbell.attach(slot, event);
    let mut cq = CompletionProducer::<Word>::new(depth(entries));
    let (slot, event) = head.words::<true, true>();
    cq.doorbell().attach(slot, event);
    cq.suppress();

    let host = {
        let ring = ring.clone();
        thread::spawn(move || {
            let mut phase = 1;
            for n in 0..total {
                let at = doorbell.position();
                let [first, second] = &ring[usize::from(at)];
                while second.load(Acquire) & 1 != phase {
                    thread::yield_now();
                }
                assert_eq!(first.load(Relaxed), u32::from(n) + 1, "{STALE}");
                assert_eq!(second.load(Relaxed) >> 1, u32::from(n) + 1, "{STALE}");
                let to = depth(entries).next(at);
                if to == 0 {
                    phase ^= 1;
                }
                // A ring is of no use to a device that polls.
                let _ = doorbell.advance(to);
            }
        })
    };
    for n in 0..total {
        let permit = loop {
            match cq.reserve().unwrap() {
                Some(permit) => break permit,
                None => thread::yield_now(),
            }
        };
        let posted = cq.post(permit);
        let [first, second] = &ring[usize::from(posted.index)];
        first.store(u32::from(n) + 1, Relaxed);
        second.store((u32::from(n) + 1) << 1 | u32::from(posted.phase), if ordered { Release } else { Relaxed });
    }
    host.join().unwrap();
}

#[test]
fn e_completion_entries_are_whole_and_not_overwritten() {
    check(None, || completions(2, 1, true));
    check(Some(5), || completions(2, 2, true));
    check(Some(5), || completions(2, 3, true));
    check(Some(5), || completions(3, 3, true));
}

#[test]
fn e_without_release_on_the_phase_half_an_entry_is_seen() {
    check_fails(STALE, None, || completions(2, 1, false));
}
