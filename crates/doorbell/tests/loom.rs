//! The protocol under a model checker: every interleaving, and every value that the memory model lets a load return.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p shadowbell-doorbell --test loom --release`
//!
//! Sleep is modelled without a loophole: a device that sleeps gets to run again by a register write and by nothing else, and
//! when the driver is done a sleeping device is not woken to look a last time. What was not consumed then is lost.
//!
//! The negative tests run the same models with one part of the protocol taken out, and must fail with a lost wake-up (or a stale
//! entry, where that is the matter).
#![cfg(loom)]
#![allow(missing_docs, clippy::cast_possible_truncation, clippy::unwrap_used)]

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use loom::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    },
    thread,
};
use shadowbell_doorbell::{Armed, CompletionProducer, Debt, Depth, DriverDoorbell, Slot, SubmissionConsumer};

// ---- the shared words -----------------------------------------------------------------------------------------------------

/// A slot as one side holds it, perhaps a careless side.
#[derive(Debug)]
struct Word<const FENCE: bool = true, const ORDER: bool = true>(Arc<AtomicU32>);

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
struct Pair {
    slot: Arc<AtomicU32>,
    event: Arc<AtomicU32>,
}

impl Pair {
    fn new(slot: u32) -> Self {
        Self { slot: Arc::new(AtomicU32::new(slot)), event: Arc::new(AtomicU32::new(0)) }
    }

    fn words<const FENCE: bool, const ORDER: bool>(&self) -> (Word<FENCE, ORDER>, Word<FENCE, ORDER>) {
        (Word(self.slot.clone()), Word(self.event.clone()))
    }
}

fn depth(entries: u32) -> Depth {
    Depth::new(entries).unwrap()
}

// ---- the register ---------------------------------------------------------------------------------------------------------

#[derive(Debug, PartialEq, Eq)]
enum Message {
    Ring(u32),
    Reset,
    Create,
}

/// Register writes on their way, in order.
#[derive(Default)]
struct Registers {
    state: Mutex<(VecDeque<Message>, bool)>,
    written: Condvar,
}

impl Registers {
    fn write(&self, message: Message) {
        self.state.lock().unwrap().0.push_back(message);
        self.written.notify_one();
    }

    /// Nothing will be written any more.
    fn close(&self) {
        self.state.lock().unwrap().1 = true;
        self.written.notify_one();
    }

    fn poll(&self) -> Option<Message> {
        self.state.lock().unwrap().0.pop_front()
    }

    /// Sleeps until something is written; `None` if nothing will be.
    fn wait(&self) -> Option<Message> {
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
struct Flag(Mutex<bool>, Condvar);

impl Flag {
    fn set(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut set = self.0.lock().unwrap();
        while !*set {
            set = self.1.wait(set).unwrap();
        }
    }
}

// ---- running models -------------------------------------------------------------------------------------------------------

const LOST: &str = "lost wake-up";
const STALE: &str = "stale entry";

/// Bounded where a model would take minutes otherwise; `docs/proofs.md` says which.
fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.check(model);
}

/// The model must fail, and for this reason.
fn check_fails(reason: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(preemptions, model))) else {
        panic!("no execution ended with a {reason}")
    };
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    if !said.is_some_and(|s| s.contains(reason)) {
        resume_unwind(panic);
    }
}

// ---- (a) a submission queue's tail ----------------------------------------------------------------------------------------

/// What a device does wrong, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Care {
    Full,
    /// It sleeps after it armed, whatever the look found.
    NoRecheck,
    /// It sleeps without arming.
    NoArm,
}

/// The device's loop: drain, arm, sleep. Returns the indices of what was consumed.
fn drain_and_sleep<const FENCE: bool, const ORDER: bool>(
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

/// A driver submits `moves` entries one by one while the device drains and sleeps. Checks that each entry is consumed once and
/// is what the driver wrote.
fn submission<const DRIVER: bool, const DEVICE: bool, const ORDER: bool>(entries: u32, moves: u16, care: Care) {
    let tail = Pair::new(0);
    let sqes: Arc<Vec<AtomicU32>> = Arc::new((0..entries).map(|_| AtomicU32::new(0)).collect());
    let registers = Arc::new(Registers::default());

    let driver = {
        let (tail, sqes, registers) = (tail.clone(), sqes.clone(), registers.clone());
        let mut doorbell = DriverDoorbell::new(depth(entries));
        let (slot, event) = tail.words::<DRIVER, true>();
        doorbell.attach(slot, event);
        move || {
            for n in 0..moves {
                sqes[usize::from(n) % entries as usize].store(u32::from(n) + 1, Relaxed);
                let to = depth(entries).advance(0, n + 1);
                if doorbell.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            }
            registers.close();
        }
    };
    let mut sq = SubmissionConsumer::new(depth(entries));
    let (slot, event) = tail.words::<DEVICE, ORDER>();
    sq.doorbell().attach(slot, event);

    let driver = thread::spawn(driver);
    let mut consumed = 0;
    drain_and_sleep(&mut sq, &registers, care, |at| {
        consumed += 1;
        assert_eq!(sqes[usize::from(at)].load(Relaxed), consumed, "{STALE}");
    });
    driver.join().unwrap();
    assert_eq!(consumed, u32::from(moves), "{LOST}");
}

/// Moves one by one and returns the value of the last register write.
fn move_on<const FENCE: bool>(doorbell: &mut DriverDoorbell<Word<FENCE>>, moves: u16) -> Option<u16> {
    (1..=moves).fold(None, |rung, to| if doorbell.advance(to) { Some(to) } else { rung })
}

/// The core of it, small enough for every execution: the driver makes its moves while the device drains and arms once and
/// sleeps. It wakes if the driver rang, whenever that was.
fn arm_once<const DRIVER: bool, const DEVICE: bool>(moves: u16, awake: bool, care: Care) {
    let tail = Pair::new(0);
    let mut sq = SubmissionConsumer::new(depth(4));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    if awake {
        sq.suppress();
    }
    let mut doorbell = DriverDoorbell::new(depth(4));
    let (slot, event) = tail.words::<DRIVER, true>();
    doorbell.attach(slot, event);
    let driver = thread::spawn(move || move_on(&mut doorbell, moves));
    let mut consumed = 0;
    let mut drain = |sq: &mut SubmissionConsumer<_>| {
        while sq.take().is_some() {
            consumed += 1;
        }
    };
    let _ = sq.look().unwrap();
    drain(&mut sq);
    while sq.arm() == Armed::MoreWork && care == Care::Full {
        drain(&mut sq);
    }
    // Asleep.
    if let Some(rung) = driver.join().unwrap() {
        sq.ring(rung.into()).unwrap();
        drain(&mut sq);
    }
    assert_eq!(consumed, moves, "{LOST}");
}

#[test]
fn a_arming_once_against_a_driver_in_every_execution() {
    for awake in [false, true] {
        check(None, move || arm_once::<true, true>(1, awake, Care::Full));
        check(None, move || arm_once::<true, true>(2, awake, Care::Full));
        check(None, move || arm_once::<true, true>(3, awake, Care::Full));
    }
}

#[test]
fn a_arming_once_fails_without_either_fence_and_without_the_second_look() {
    check_fails(LOST, None, || arm_once::<false, true>(1, true, Care::Full));
    check_fails(LOST, None, || arm_once::<true, false>(1, true, Care::Full));
    check_fails(LOST, None, || arm_once::<true, true>(1, true, Care::NoRecheck));
}

#[test]
fn a_no_submission_is_lost_between_arming_and_sleep() {
    check(Some(5), || submission::<true, true, true>(4, 1, Care::Full));
    check(Some(5), || submission::<true, true, true>(4, 2, Care::Full));
    check(Some(5), || submission::<true, true, true>(4, 3, Care::Full));
}

#[test]
fn a_without_the_drivers_fence_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<false, true, true>(4, 2, Care::Full));
}

#[test]
fn a_without_the_devices_fence_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<true, false, true>(4, 2, Care::Full));
}

#[test]
fn a_without_the_second_look_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<true, true, true>(4, 2, Care::NoRecheck));
}

#[test]
fn a_without_arming_a_wake_up_is_lost() {
    check_fails(LOST, None, || submission::<true, true, true>(4, 2, Care::NoArm));
}

// ---- (b) a completion queue that is full ----------------------------------------------------------------------------------

/// `waiting` completions wait for room in a full CQ while the host consumes `moves` entries one by one.
fn parked<const DRIVER: bool, const DEVICE: bool>(entries: u32, waiting: u16, moves: u16, care: Care) {
    let head = Pair::new(0);
    let registers = Arc::new(Registers::default());

    let mut host = DriverDoorbell::new(depth(entries));
    let (slot, event) = head.words::<DRIVER, true>();
    host.attach(slot, event);
    let mut cq = CompletionProducer::new(depth(entries));
    let (slot, event) = head.words::<DEVICE, true>();
    cq.doorbell().attach(slot, event);
    cq.suppress();
    while let Some(permit) = cq.reserve().unwrap() {
        let _ = cq.post(permit);
    }

    let host = {
        let registers = registers.clone();
        thread::spawn(move || {
            for n in 1..=moves {
                let to = depth(entries).advance(0, n);
                if host.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            }
            registers.close();
        })
    };
    let mut posted = 0;
    'awake: loop {
        while posted < waiting
            && let Some(permit) = cq.reserve().unwrap()
        {
            let _ = cq.post(permit);
            posted += 1;
        }
        if posted < waiting && care != Care::NoArm {
            match cq.arm() {
                Armed::MoreWork if care == Care::Full => continue 'awake,
                Armed::Invalid(invalid) => panic!("{invalid:?}"),
                _ => {}
            }
        }
        match registers.wait() {
            Some(Message::Ring(value)) => cq.ring(value).unwrap(),
            Some(message) => panic!("no {message:?} here"),
            None => break,
        }
    }
    host.join().unwrap();
    assert_eq!(posted, waiting.min(moves), "{LOST}");
}

/// The core of it: the host consumes a full CQ of three in `moves` while the device parks once.
fn park_once<const DRIVER: bool, const DEVICE: bool>(moves: u16, care: Care) {
    let head = Pair::new(0);
    let mut cq = CompletionProducer::new(depth(4));
    let (slot, event) = head.words::<DEVICE, true>();
    cq.doorbell().attach(slot, event);
    cq.suppress();
    while let Some(permit) = cq.reserve().unwrap() {
        let _ = cq.post(permit);
    }
    let mut host = DriverDoorbell::new(depth(4));
    let (slot, event) = head.words::<DRIVER, true>();
    host.attach(slot, event);
    let host = thread::spawn(move || move_on(&mut host, moves));
    let mut has_room = cq.reserve().unwrap().map(|permit| cq.give_back(permit)).is_some();
    if !has_room {
        has_room = cq.arm() == Armed::MoreWork && care == Care::Full;
    }
    // Asleep, unless there is room.
    if let Some(rung) = host.join().unwrap() {
        cq.ring(rung.into()).unwrap();
        has_room |= cq.has_room();
    }
    assert!(has_room, "{LOST}");
}

#[test]
fn b_parking_once_against_a_host_in_every_execution() {
    for moves in 1..=3 {
        check(None, move || park_once::<true, true>(moves, Care::Full));
    }
}

#[test]
fn b_parking_once_fails_without_either_fence_and_without_the_second_look() {
    check_fails(LOST, None, || park_once::<false, true>(1, Care::Full));
    check_fails(LOST, None, || park_once::<true, false>(1, Care::Full));
    check_fails(LOST, None, || park_once::<true, true>(1, Care::NoRecheck));
}

#[test]
fn b_no_room_in_a_full_completion_queue_goes_unnoticed() {
    check(Some(5), || parked::<true, true>(2, 1, 1, Care::Full));
    check(Some(5), || parked::<true, true>(3, 2, 2, Care::Full));
    check(Some(5), || parked::<true, true>(4, 3, 2, Care::Full));
    check(Some(5), || parked::<true, true>(4, 3, 3, Care::Full));
}

#[test]
fn b_without_the_hosts_fence_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<false, true>(3, 2, 2, Care::Full));
}

#[test]
fn b_without_the_devices_fence_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<true, false>(3, 2, 2, Care::Full));
}

#[test]
fn b_without_the_second_look_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<true, true>(3, 2, 2, Care::NoRecheck));
}

#[test]
fn b_without_arming_room_goes_unnoticed() {
    check_fails(LOST, None, || parked::<true, true>(2, 1, 1, Care::NoArm));
}

// ---- (c) Doorbell Buffer Config on a queue that is running ----------------------------------------------------------------

/// The driver has moved by register once, moves on while the command is on its way, and then by slot; it waits for room where
/// the ring is full. `leftover` is in the slot when the device takes it.
fn switch_over<const DRIVER: bool, const DEVICE: bool>(entries: u32, leftover: u32, by_slot: u16) {
    let tail = Pair::new(leftover);
    // What completions tell the driver: how many entries were taken.
    let taken = Arc::new(AtomicU32::new(0));
    let registers = Arc::new(Registers::default());
    let completed = Arc::new(Flag::default());

    let mut doorbell = DriverDoorbell::new(depth(entries));
    assert!(doorbell.advance(1));
    registers.write(Message::Ring(1));
    let driver = {
        let (tail, registers, completed) = (tail.clone(), registers.clone(), completed.clone());
        let taken = taken.clone();
        thread::spawn(move || {
            let mut submitted = 1;
            let mut step = |doorbell: &mut DriverDoorbell<_>| {
                while submitted + 1 >= entries && submitted - taken.load(Acquire) == entries - 1 {
                    thread::yield_now();
                }
                submitted += 1;
                let to = depth(entries).next(doorbell.position());
                if doorbell.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            };
            step(&mut doorbell);
            completed.wait();
            let (slot, event) = tail.words::<DRIVER, true>();
            doorbell.attach(slot, event);
            for _ in 0..by_slot {
                step(&mut doorbell);
            }
            registers.close();
        })
    };
    let mut sq = SubmissionConsumer::<Word<DEVICE>>::new(depth(entries));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    completed.set();
    let mut consumed = 0;
    drain_and_sleep(&mut sq, &registers, Care::Full, |_| {
        consumed += 1;
        taken.store(consumed, Release);
    });
    driver.join().unwrap();
    assert_eq!(consumed, 2 + u32::from(by_slot), "{LOST}");
}

#[test]
fn c_a_running_queue_goes_over_to_its_slot_and_loses_nothing() {
    for leftover in [0, 2, 3, 4] {
        check(Some(3), move || switch_over::<true, true>(8, leftover, 1));
        check(Some(3), move || switch_over::<true, true>(8, leftover, 2));
    }
    // Round a tiny ring, past whatever was left over.
    for leftover in [0, 1, 2] {
        check(Some(3), move || switch_over::<true, true>(3, leftover, 2));
    }
}

/// A queue that never moved, and a driver that trusts EventIdx from its first move on (Linux).
fn switch_over_idle<const DRIVER: bool, const DEVICE: bool>(moves: u16) {
    let tail = Pair::new(0);
    let registers = Arc::new(Registers::default());
    let completed = Arc::new(Flag::default());
    let driver = {
        let (tail, registers, completed) = (tail.clone(), registers.clone(), completed.clone());
        thread::spawn(move || {
            completed.wait();
            let mut doorbell = DriverDoorbell::new(depth(4));
            let (slot, event) = tail.words::<DRIVER, true>();
            doorbell.attach(slot, event);
            for to in 1..=moves {
                if doorbell.advance(to) {
                    registers.write(Message::Ring(to.into()));
                }
            }
            registers.close();
        })
    };
    let mut sq = SubmissionConsumer::<Word<DEVICE>>::new(depth(4));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    completed.set();
    // Awake for a moment.
    sq.suppress();
    let mut consumed = 0;
    drain_and_sleep(&mut sq, &registers, Care::Full, |_| consumed += 1);
    driver.join().unwrap();
    assert_eq!(consumed, moves, "{LOST}");
}

#[test]
fn c_an_idle_queue_goes_over_to_its_slot_and_loses_nothing() {
    check(None, || switch_over_idle::<true, true>(1));
    check(Some(5), || switch_over_idle::<true, true>(2));
}

#[test]
fn c_without_the_devices_fence_the_first_move_is_lost() {
    check_fails(LOST, None, || switch_over_idle::<true, false>(1));
}

#[test]
fn c_without_the_drivers_fence_the_first_move_is_lost() {
    check_fails(LOST, None, || switch_over_idle::<false, true>(1));
}

// ---- (d) reset against a ring that is late --------------------------------------------------------------------------------

/// One CPU submits while another resets the controller; then the queue is made again with the same slots, from zero. `detach`
/// off: the device keeps the slot over the reset.
fn reset_against_ring(detach: bool) {
    let tail = Pair::new(0);
    let registers = Arc::new(Registers::default());
    let (ready, created) = (Arc::new(Flag::default()), Arc::new(Flag::default()));

    let words = tail.words::<true, true>();
    let submitter = {
        let registers = registers.clone();
        let mut doorbell = DriverDoorbell::new(depth(4));
        let (slot, event) = tail.words::<true, true>();
        doorbell.attach(slot, event);
        thread::spawn(move || {
            if doorbell.advance(2) {
                registers.write(Message::Ring(2));
            }
        })
    };
    let driver = {
        let (tail, registers, ready, created) = (tail.clone(), registers.clone(), ready.clone(), created.clone());
        thread::spawn(move || {
            registers.write(Message::Reset);
            ready.wait();
            // The other CPU's register write is out by now, and may have come after the reset.
            submitter.join().unwrap();
            let mut doorbell = DriverDoorbell::new(depth(4));
            let (slot, event) = tail.words::<true, true>();
            doorbell.attach(slot, event);
            registers.write(Message::Create);
            created.wait();
            if doorbell.advance(1) {
                registers.write(Message::Ring(1));
            }
            registers.close();
        })
    };

    let mut sq = SubmissionConsumer::<Word>::new(depth(4));
    let (slot, event) = words;
    sq.doorbell().attach(slot, event);
    let mut queue = Some(sq);
    let mut lives = vec![0];
    loop {
        let mut message = None;
        if let Some(sq) = &mut queue {
            if sq.look().unwrap() > 0 {
                sq.suppress();
                while sq.take().is_some() {
                    *lives.last_mut().unwrap() += 1;
                }
            }
            message = registers.poll();
            if message.is_none() && sq.arm() == Armed::MoreWork {
                continue;
            }
        }
        match message.or_else(|| registers.wait()) {
            Some(Message::Ring(value)) => {
                if let Some(sq) = &mut queue {
                    sq.ring(value).unwrap();
                }
            }
            Some(Message::Reset) => {
                if detach {
                    queue = None;
                }
                lives.push(0);
                ready.set();
            }
            Some(Message::Create) => {
                if detach {
                    let mut sq = SubmissionConsumer::new(depth(4));
                    let (slot, event) = tail.words::<true, true>();
                    sq.doorbell().attach(slot, event);
                    queue = Some(sq);
                }
                created.set();
            }
            None => break,
        }
    }
    driver.join().unwrap();
    assert!(lives[0] == 0 || lives[0] == 2, "half a move: {lives:?}");
    assert!(lives[1] <= 1, "{STALE}: {lives:?}");
    assert_eq!(lives[1], 1, "{LOST}: {lives:?}");
}

#[test]
fn d_a_ring_that_is_later_than_the_reset_does_nothing() {
    check(Some(3), || reset_against_ring(true));
}

#[test]
fn d_a_device_that_keeps_the_slot_over_the_reset_is_found_out() {
    check_fails(STALE, Some(2), || reset_against_ring(false));
}

// ---- (e) entries are whole when they are seen -----------------------------------------------------------------------------

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

// ---- (f) head and tail told with one fence --------------------------------------------------------------------------------

/// The driver tells a CQ head and an SQ tail with one barrier while the device, which waits for both, arms both and sleeps:
/// each of the two either rings or is seen.
fn both_once<const DRIVER: bool, const DEVICE: bool>() {
    let (tail, head) = (Pair::new(0), Pair::new(0));
    let mut sq = SubmissionConsumer::new(depth(4));
    let (slot, event) = tail.words::<DEVICE, true>();
    sq.doorbell().attach(slot, event);
    let mut cq = CompletionProducer::restore(depth(4), 0, 3, true);
    let (slot, event) = head.words::<DEVICE, true>();
    cq.doorbell().attach(slot, event);
    sq.suppress();
    cq.suppress();
    let driver = thread::spawn(move || {
        let (mut sq, mut cq) = (DriverDoorbell::new(depth(4)), DriverDoorbell::new(depth(4)));
        let (slot, event) = tail.words::<DRIVER, true>();
        sq.attach(slot, event);
        let (slot, event) = head.words::<DRIVER, true>();
        cq.attach(slot, event);
        DriverDoorbell::advance_both((&mut cq, 2), (&mut sq, 1))
    });
    let seen = (cq.arm() == Armed::MoreWork, sq.arm() == Armed::MoreWork);
    let due = driver.join().unwrap();
    assert!((due.0 || seen.0) && (due.1 || seen.1), "{LOST}");
}

#[test]
fn f_one_fence_serves_head_and_tail_in_every_execution() {
    check(None, both_once::<true, true>);
}

#[test]
fn f_one_fence_is_needed_on_either_side() {
    check_fails(LOST, None, both_once::<false, true>);
    check_fails(LOST, None, both_once::<true, false>);
}

// ---- (g) interrupts that are spared ---------------------------------------------------------------------------------------

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
