//! Interrupts that are spared.

use loom::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Release},
        },
    },
    thread,
};
use shadowbell_doorbell::{CompletionProducer, Debt};

use crate::rig::*;

/// What a device does with an interrupt that it owes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Looks at the head while it is awake, and pays before it sleeps.
    Full,
    /// Looks at the head while it is awake, and sleeps with the debt.
    NotPaidBeforeSleep,
    /// Never thinks of it again.
    None,
}

/// Interrupts on their way: how many, and whether none will come any more.
#[derive(Default)]
struct Line(Mutex<(u32, bool)>, Condvar);

impl Line {
    fn raise(&self) {
        self.0.lock().unwrap().0 += 1;
        self.1.notify_one();
    }

    fn close(&self) {
        self.0.lock().unwrap().1 = true;
        self.1.notify_one();
    }

    /// Sleeps until there is an interrupt, takes all that there are, and says whether there was one.
    fn wait(&self) -> bool {
        let mut state = self.0.lock().unwrap();
        loop {
            if state.0 > 0 {
                state.0 = 0;
                return true;
            }
            if state.1 {
                return false;
            }
            state = self.1.wait(state).unwrap();
        }
    }
}

/// A device posts `total` entries, decides about an interrupt after each, and sleeps for good. The host sleeps until an interrupt
/// comes, reads by the phase until it finds nothing, and moves its head. `mapped`: by the register, else by a slot.
fn spared(entries: u32, total: u16, mapped: bool, memory: Memory) {
    let head = Pair::new(0);
    let ring: Arc<Vec<AtomicU32>> = Arc::new((0..entries).map(|_| AtomicU32::new(0)).collect());
    let line = Arc::new(Line::default());
    let mut cq = CompletionProducer::<Word>::new(depth(entries));
    let (slot, event) = head.words::<true, true>();
    if mapped {
        cq.doorbell().map(slot);
    } else {
        // As after earlier I/O: the slot is known to be in use.
        cq.doorbell().attach_live(slot, event);
        cq.suppress();
    }

    let host = {
        let (ring, line, head) = (ring.clone(), line.clone(), head.clone());
        thread::spawn(move || {
            let (mut at, mut phase) = (0u16, 1);
            while line.wait() {
                while ring[usize::from(at)].load(Acquire) == phase {
                    at = depth(entries).next(at);
                    phase ^= u32::from(at == 0);
                }
                head.slot.store(u32::from(at), Release);
            }
            at
        })
    };
    let raise = |cq: &mut CompletionProducer<Word>| {
        cq.raised();
        line.raise();
    };
    for _ in 0..total {
        // There is room for all of them.
        let permit = cq.reserve().unwrap().unwrap();
        let posted = cq.post(permit);
        ring[usize::from(posted.index)].store(u32::from(posted.phase), Release);
        if !cq.spares().unwrap() {
            raise(&mut cq);
        }
        if memory != Memory::None && cq.debt().unwrap() == Debt::Due {
            raise(&mut cq);
        }
    }
    if memory == Memory::Full && cq.debt().unwrap() != Debt::Void {
        raise(&mut cq);
    }
    // Asleep.
    line.close();
    assert_eq!(host.join().unwrap(), total, "{LOST}");
}

#[test]
fn g_no_completion_is_left_unread_though_its_interrupt_was_spared_in_every_execution() {
    for mapped in [false, true] {
        check(None, move || spared(4, 1, mapped, Memory::Full));
        check(None, move || spared(4, 2, mapped, Memory::Full));
    }
    check(Some(5), || spared(8, 3, true, Memory::Full));
    check(Some(3), || spared(8, 4, false, Memory::Full));
}

#[test]
fn g_without_memory_of_the_debt_a_completion_is_left_unread() {
    check_fails(LOST, None, || spared(4, 2, true, Memory::None));
    check_fails(LOST, None, || spared(4, 2, false, Memory::None));
}

#[test]
fn g_a_debt_that_is_not_paid_before_sleep_leaves_a_completion_unread() {
    check_fails(LOST, None, || spared(4, 2, true, Memory::NotPaidBeforeSleep));
    check_fails(LOST, None, || spared(4, 2, false, Memory::NotPaidBeforeSleep));
}
