//! What the models share: slots, registers that carry writes in order, and how a model is run.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use loom::sync::{
    Arc, Condvar, Mutex,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
};
use shadowbell_doorbell::{Armed, Depth, Slot, SubmissionConsumer};

/// A slot as one side holds it, perhaps a careless side.
#[derive(Debug)]
pub(crate) struct Word<const FENCE: bool = true, const ORDER: bool = true>(pub(crate) Arc<AtomicU32>);

impl<const FENCE: bool, const ORDER: bool> Slot for Word<FENCE, ORDER> {
    fn load(&self) -> u32 {
        self.0.load(if ORDER { Acquire } else { Relaxed })
    }

    fn store(&self, value: u32) {
        self.0.store(value, if ORDER { Release } else { Relaxed });
    }

    fn full_fence() {
        if FENCE {
            fence(std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// Slot and EventIdx.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) slot: Arc<AtomicU32>,
    pub(crate) event: Arc<AtomicU32>,
}

impl Pair {
    pub(crate) fn new(slot: u32) -> Self {
        Self { slot: Arc::new(AtomicU32::new(slot)), event: Arc::new(AtomicU32::new(0)) }
    }

    pub(crate) fn words<const FENCE: bool, const ORDER: bool>(&self) -> (Word<FENCE, ORDER>, Word<FENCE, ORDER>) {
        (Word(self.slot.clone()), Word(self.event.clone()))
    }
}

pub(crate) fn depth(entries: u32) -> Depth {
    Depth::new(entries).unwrap()
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Ring(u32),
    Reset,
    Create,
}

/// Register writes on their way, in order.
#[derive(Default)]
pub(crate) struct Registers {
    state: Mutex<(VecDeque<Message>, bool)>,
    written: Condvar,
}

impl Registers {
    pub(crate) fn write(&self, message: Message) {
        self.state.lock().unwrap().0.push_back(message);
        self.written.notify_one();
    }

    /// Nothing will be written any more.
    pub(crate) fn close(&self) {
        self.state.lock().unwrap().1 = true;
        self.written.notify_one();
    }

    pub(crate) fn poll(&self) -> Option<Message> {
        self.state.lock().unwrap().0.pop_front()
    }

    /// Sleeps until something is written; `None` if nothing will be.
    pub(crate) fn wait(&self) -> Option<Message> {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(message) = state.0.pop_front() {
                return Some(message);
            }
            if state.1 {
                return None;
            }
            state = self.written.wait(state).unwrap();
        }
    }
}

/// A flag that is waited for: the completion of an admin command, or of a reset.
#[derive(Default)]
pub(crate) struct Flag(Mutex<bool>, Condvar);

impl Flag {
    pub(crate) fn set(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    pub(crate) fn wait(&self) {
        let mut set = self.0.lock().unwrap();
        while !*set {
            set = self.1.wait(set).unwrap();
        }
    }
}

pub(crate) const LOST: &str = "lost wake-up";
pub(crate) const STALE: &str = "stale entry";

/// Bounded where a model would take minutes otherwise; `docs/proofs.md` says which.
pub(crate) fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.check(model);
}

/// The model must fail, and for this reason.
pub(crate) fn check_fails(reason: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(preemptions, model))) else {
        panic!("no execution ended with a {reason}")
    };
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    if !said.is_some_and(|s| s.contains(reason)) {
        resume_unwind(panic);
    }
}

/// What a device does wrong, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    Full,
    /// It sleeps after it armed, whatever the look found.
    NoRecheck,
    /// It sleeps without arming.
    NoArm,
}

/// The device's loop: drain, arm, sleep. Returns the indices of what was consumed.
pub(crate) fn drain_and_sleep<const FENCE: bool, const ORDER: bool>(
    sq: &mut SubmissionConsumer<Word<FENCE, ORDER>>,
    registers: &Registers,
    care: Care,
    mut consume: impl FnMut(u16),
) {
    loop {
        if sq.look().unwrap() > 0 {
            sq.suppress();
            while let Some(at) = sq.take() {
                consume(at);
            }
        }
        if care != Care::NoArm && sq.arm() == Armed::MoreWork && care == Care::Full {
            continue;
        }
        match registers.wait() {
            Some(Message::Ring(value)) => sq.ring(value).unwrap(),
            Some(message) => panic!("no {message:?} here"),
            None => return,
        }
    }
}
