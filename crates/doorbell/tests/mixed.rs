//! Drivers of every kind against one device, at random, compared with a plain model: nothing lost, doubled or invented.
//!
//! Time passes in steps, and any step of one side can fall between two steps of the other: a driver stores its slot in one
//! step and reads EventIdx in a later one; a register write arrives later than it was made, though in order. (What a CPU may
//! reorder inside a step is for `loom`.) A device that sleeps is woken by a register write, by its backend, by a command or by
//! memory that comes back, and by nothing else: no timer.
#![allow(missing_docs, clippy::cast_possible_truncation, clippy::unwrap_used)]

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, atomic::AtomicU32},
};

use proptest::prelude::*;
use shadowbell_doorbell::{
    Armed, CompletionProducer, Depth, DriverDoorbell, Permit, Slot, SubmissionConsumer, needs_event_annex_b,
    needs_event_linux,
};

type Word = Arc<AtomicU32>;

const SQS: usize = 4;
const CQS: usize = 3;

/// The slots and EventIdx values of one pair of pages.
#[derive(Clone)]
struct Page {
    sq: Vec<(Word, Word)>,
    cq: Vec<(Word, Word)>,
}

impl Page {
    fn new(leftover: u32) -> Self {
        let words = |n: usize| -> Vec<(Word, Word)> {
            (0..n as u32).map(|i| (Word::new((leftover * i).into()), Word::new((leftover * 3).into()))).collect()
        };
        Self { sq: words(SQS), cq: words(CQS) }
    }
}

// ---- the host -------------------------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Never uses a slot.
    Register,
    /// By slot, with Linux's test; the old position is what the slot holds.
    Linux,
    /// By slot, with the specification's test.
    AnnexB,
    /// By slot and by register each time.
    Both,
    /// By slot with Linux's test; by slot and register each time while Doorbell Buffer Config is on its way, and never still.
    Restless,
    /// This crate's own half.
    Own,
}

const KINDS: [Kind; 6] = [Kind::Register, Kind::Linux, Kind::AnnexB, Kind::Both, Kind::Restless, Kind::Own];

/// One doorbell as the host rings it.
struct Bell {
    kind: Kind,
    depth: Depth,
    at: u16,
    /// The slots in use; the last pair is the one whose EventIdx counts.
    words: Vec<(Word, Word)>,
    /// Doorbell Buffer Config was sent and has not completed.
    in_doubt: bool,
    own: DriverDoorbell<Word>,
    own_attached: bool,
    /// A move whose EventIdx was not read yet: (old, new).
    open: Option<(u16, u16)>,
}

impl Bell {
    /// A new queue's, whose slots come from `page`, if there is one.
    fn new(kind: Kind, depth: Depth, words: Option<&(Word, Word)>) -> Self {
        let mut bell = Self {
            kind,
            depth,
            at: 0,
            words: Vec::new(),
            in_doubt: false,
            own: DriverDoorbell::new(depth),
            own_attached: false,
            open: None,
        };
        if let Some(words) = words {
            if kind != Kind::Register {
                words.0.store(0);
            }
            bell.prepare(words);
            bell.settle(words);
        }
        bell
    }

    /// Doorbell Buffer Config is about to be sent: what a driver of this kind sees to before.
    fn prepare(&mut self, words: &(Word, Word)) {
        if !matches!(self.kind, Kind::Register | Kind::Own) {
            words.0.store(self.at.into());
            self.words.push(words.clone());
        }
        self.in_doubt = true;
    }

    /// It has completed.
    fn settle(&mut self, words: &(Word, Word)) {
        self.in_doubt = false;
        if self.words.len() > 1 {
            self.words.drain(..self.words.len() - 1);
        }
        if self.kind == Kind::Own {
            self.own.attach(words.0.clone(), words.1.clone());
            self.own_attached = true;
        }
    }

    fn may_move(&self) -> bool {
        let holds_still = match self.kind {
            Kind::Register | Kind::Restless => false,
            Kind::Own => self.own_attached,
            Kind::Linux | Kind::AnnexB | Kind::Both => true,
        };
        self.open.is_none() && !(self.in_doubt && holds_still)
    }

    /// The first half of a move, and whether the register must be written already.
    fn begin(&mut self, new: u16) -> bool {
        let old = std::mem::replace(&mut self.at, new);
        if self.kind == Kind::Own {
            return self.own.advance(new);
        }
        for (slot, _) in &self.words {
            slot.store(new.into());
        }
        if self.words.is_empty() || self.in_doubt || self.kind == Kind::Both {
            return old != new;
        }
        self.open = Some((old, new));
        false
    }

    /// The second half: the value to write to the register, if any.
    fn finish(&mut self) -> Option<u16> {
        let (old, new) = self.open.take()?;
        let event = self.words.last()?.1.load() as u16;
        let needed = match self.kind {
            Kind::AnnexB => needs_event_annex_b(self.depth, event, new, old),
            _ => needs_event_linux(event, new, old),
        };
        needed.then_some(new)
    }

    /// A slot that a hostile value can be put into for a while, and what is in it.
    fn scribble(&self) -> Option<&Word> {
        let used = !self.in_doubt && self.open.is_none() && (self.kind != Kind::Own || self.own_attached);
        if self.kind == Kind::Own { None } else { self.words.last().map(|w| &w.0).filter(|_| used) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// Sent to the device, or not; the host does nothing with it before it is there.
    Absent,
    Coming,
    Here,
}

struct HostSq {
    life: Life,
    bell: Bell,
    /// Where the device's head is, by the last completion.
    head: u16,
    /// Submission order of the ids, and how far the device has taken them.
    submitted: Vec<u64>,
    completed: usize,
}

struct HostCq {
    life: Life,
    bell: Bell,
    phase: bool,
}

/// A register write, or an admin command, on its way.
enum Message {
    SqTail(usize, u32),
    CqHead(usize, u32),
    Buffers(Page),
    CreateSq(usize, Depth, usize),
    CreateCq(usize, Depth),
    DeleteSq(usize),
    Reset,
}

// ---- the device -----------------------------------------------------------------------------------------------------------

struct DeviceSq {
    consumer: SubmissionConsumer<Word>,
    cq: usize,
    taken: usize,
}

#[derive(Default)]
struct Device {
    sqs: [Option<DeviceSq>; SQS],
    cqs: [Option<CompletionProducer<Word>>; CQS],
    page: Option<Page>,
    away: bool,
    asleep: bool,
    /// At the backend: id, SQ, its CQ.
    flying: Vec<(u64, usize, usize, Permit)>,
    invalid: usize,
}

/// What both sides share, and what ties them together.
struct World {
    host_sqs: Vec<HostSq>,
    host_cqs: Vec<HostCq>,
    sq_ring: Vec<Vec<u64>>,
    /// (id, SQ, SQHD, phase)
    cq_ring: Vec<Vec<(u64, usize, u16, bool)>>,
    messages: VecDeque<Message>,
    /// The pages in use, by the host's knowledge, and those of a command on its way.
    page: Option<Page>,
    sent: Option<Page>,
    buffers_done: bool,
    resetting: bool,
    device: Device,
    next_id: u64,
    /// Ids whose queue was deleted before they completed.
    forgotten: HashSet<u64>,
    hostile: usize,
}

#[derive(Debug, Clone)]
enum Op {
    Submit(usize, u16),
    Finish(usize),
    Reap(usize, u16),
    Deliver(usize),
    Turn(usize, usize),
    Complete(usize, usize),
    Sleep,
    Buffers(u32),
    Notice,
    Create(usize, usize, Kind, Kind, u32, u32),
    Delete(usize),
    Reset,
    Away,
    Back,
    Rest,
    HostileRegister(usize, u32),
    HostileSlot(usize, u32),
}

impl World {
    fn new() -> Self {
        let depth = Depth::new(2).unwrap();
        Self {
            host_sqs: (0..SQS)
                .map(|_| HostSq {
                    life: Life::Absent,
                    bell: Bell::new(Kind::Register, depth, None),
                    head: 0,
                    submitted: Vec::new(),
                    completed: 0,
                })
                .collect(),
            host_cqs: (0..CQS)
                .map(|_| HostCq { life: Life::Absent, bell: Bell::new(Kind::Register, depth, None), phase: true })
                .collect(),
            sq_ring: vec![Vec::new(); SQS],
            cq_ring: vec![Vec::new(); CQS],
            messages: VecDeque::new(),
            page: None,
            sent: None,
            buffers_done: false,
            resetting: false,
            device: Device::default(),
            next_id: 1,
            forgotten: HashSet::new(),
            hostile: 0,
        }
    }

    // ---- steps of the host ------------------------------------------------------------------------------------------------

    fn submit(&mut self, q: usize, n: u16) {
        let sq = &mut self.host_sqs[q];
        if sq.life != Life::Here || !sq.bell.may_move() {
            return;
        }
        let depth = sq.bell.depth;
        let n = n.min(depth.capacity() - depth.distance(sq.head, sq.bell.at));
        if n == 0 {
            return;
        }
        let mut at = sq.bell.at;
        for _ in 0..n {
            self.sq_ring[q][usize::from(at)] = self.next_id;
            sq.submitted.push(self.next_id);
            self.next_id += 1;
            at = depth.next(at);
        }
        if sq.bell.begin(at) {
            self.messages.push_back(Message::SqTail(q, at.into()));
        }
    }

    /// The second half of a move of the SQ or the CQ with this number.
    fn finish(&mut self, n: usize) {
        if n < SQS {
            if let Some(at) = self.host_sqs[n].bell.finish() {
                self.messages.push_back(Message::SqTail(n, at.into()));
            }
        } else if let Some(at) = self.host_cqs[n - SQS].bell.finish() {
            self.messages.push_back(Message::CqHead(n - SQS, at.into()));
        }
    }

    fn reap(&mut self, c: usize, n: u16) {
        let cq = &mut self.host_cqs[c];
        if cq.life != Life::Here || !cq.bell.may_move() {
            return;
        }
        let mut at = cq.bell.at;
        for _ in 0..n {
            let (id, q, sqhd, phase) = self.cq_ring[c][usize::from(at)];
            if phase != cq.phase {
                break;
            }
            at = cq.bell.depth.next(at);
            if at == 0 {
                cq.phase = !cq.phase;
            }
            if !self.forgotten.remove(&id) {
                let sq = &mut self.host_sqs[q];
                assert!(sq.submitted.contains(&id), "completion of {id}, which SQ {q} has not");
                sq.submitted.retain(|i| *i != id);
                sq.completed += 1;
                // Completions come in any order; SQHD only goes forward along what was submitted.
                if sq.bell.depth.distance(sq.head, sqhd) <= sq.bell.depth.distance(sq.head, sq.bell.at) {
                    sq.head = sqhd;
                }
            }
        }
        // The commands are free before the head is told.
        if at != cq.bell.at && cq.bell.begin(at) {
            self.messages.push_back(Message::CqHead(c, at.into()));
        }
    }

    fn finish_all(&mut self) {
        (0..SQS + CQS).for_each(|n| self.finish(n));
    }

    /// Doorbell Buffer Config, whatever is going on.
    fn send_buffers(&mut self, leftover: u32) {
        if self.sent.is_some() || self.resetting || self.device.away {
            return;
        }
        // Whoever has to hold still does so between two moves.
        self.finish_all();
        let page = Page::new(leftover);
        for (sq, words) in self.host_sqs.iter_mut().zip(&page.sq) {
            if sq.life != Life::Absent {
                sq.bell.prepare(words);
            }
        }
        for (cq, words) in self.host_cqs.iter_mut().zip(&page.cq) {
            if cq.life != Life::Absent {
                cq.bell.prepare(words);
            }
        }
        self.messages.push_back(Message::Buffers(page.clone()));
        self.sent = Some(page);
        self.buffers_done = false;
    }

    fn notice_buffers(&mut self) {
        if !std::mem::take(&mut self.buffers_done) || self.resetting {
            return;
        }
        let Some(page) = self.sent.take() else { return };
        for (sq, words) in self.host_sqs.iter_mut().zip(&page.sq) {
            if sq.life != Life::Absent {
                sq.bell.settle(words);
            }
        }
        for (cq, words) in self.host_cqs.iter_mut().zip(&page.cq) {
            if cq.life != Life::Absent {
                cq.bell.settle(words);
            }
        }
        self.page = Some(page);
    }

    fn create(&mut self, q: usize, c: usize, kinds: (Kind, Kind), depths: (u32, u32)) {
        if self.sent.is_some() || self.resetting || self.device.away {
            return;
        }
        if self.host_cqs[c].life == Life::Absent {
            let depth = Depth::new(depths.1).unwrap();
            let words = self.page.as_ref().map(|p| &p.cq[c]);
            self.host_cqs[c] = HostCq { life: Life::Coming, bell: Bell::new(kinds.1, depth, words), phase: true };
            self.cq_ring[c] = vec![(0, 0, 0, false); depths.1 as usize];
            self.messages.push_back(Message::CreateCq(c, depth));
        }
        if self.host_sqs[q].life == Life::Absent {
            let depth = Depth::new(depths.0).unwrap();
            let words = self.page.as_ref().map(|p| &p.sq[q]);
            self.host_sqs[q] = HostSq {
                life: Life::Coming,
                bell: Bell::new(kinds.0, depth, words),
                head: 0,
                submitted: Vec::new(),
                completed: 0,
            };
            self.sq_ring[q] = vec![0; depths.0 as usize];
            self.messages.push_back(Message::CreateSq(q, depth, c));
        }
    }

    fn delete(&mut self, q: usize) {
        if self.host_sqs[q].life != Life::Here || self.sent.is_some() {
            return;
        }
        self.finish(q);
        self.host_sqs[q].life = Life::Coming;
        self.messages.push_back(Message::DeleteSq(q));
    }

    fn reset(&mut self) {
        if self.resetting {
            return;
        }
        self.resetting = true;
        self.messages.push_back(Message::Reset);
        // Another CPU was in the middle of a move.
        self.finish_all();
    }

    // ---- steps of the device ----------------------------------------------------------------------------------------------

    fn deliver(&mut self, n: usize) {
        for _ in 0..n {
            let Some(message) = self.messages.pop_front() else { return };
            let device = &mut self.device;
            device.asleep = false;
            match message {
                Message::SqTail(q, value) => {
                    if let Some(sq) = &mut device.sqs[q] {
                        device.invalid += usize::from(sq.consumer.ring(value).is_err());
                    }
                }
                Message::CqHead(c, value) => {
                    if let Some(cq) = &mut device.cqs[c] {
                        device.invalid += usize::from(cq.ring(value).is_err());
                    }
                }
                Message::Buffers(page) => {
                    if device.away {
                        device.resume();
                    }
                    device.page = Some(page);
                    (0..SQS).for_each(|q| device.attach_sq(q));
                    (0..CQS).for_each(|c| device.attach_cq(c));
                    self.buffers_done = true;
                }
                Message::CreateCq(c, depth) => {
                    device.cqs[c] = Some(CompletionProducer::new(depth));
                    device.attach_cq(c);
                    self.host_cqs[c].life = Life::Here;
                }
                Message::CreateSq(q, depth, cq) => {
                    device.sqs[q] = Some(DeviceSq { consumer: SubmissionConsumer::new(depth), cq, taken: 0 });
                    device.attach_sq(q);
                    self.host_sqs[q].life = Life::Here;
                }
                Message::DeleteSq(q) => {
                    device.sqs[q] = None;
                    let (gone, stay) = std::mem::take(&mut device.flying).into_iter().partition(|f| f.1 == q);
                    device.flying = stay;
                    let gone: Vec<(u64, usize, usize, Permit)> = gone;
                    for (_, _, c, permit) in gone {
                        device.cqs[c].as_mut().unwrap().give_back(permit);
                    }
                    self.forgotten.extend(self.host_sqs[q].submitted.drain(..));
                    self.host_sqs[q].life = Life::Absent;
                }
                Message::Reset => {
                    let away = device.away;
                    *device = Device { invalid: device.invalid, away, ..Device::default() };
                    self.host_sqs.iter_mut().for_each(|sq| sq.life = Life::Absent);
                    self.host_cqs.iter_mut().for_each(|cq| cq.life = Life::Absent);
                    (self.page, self.sent, self.resetting) = (None, None, false);
                    self.forgotten.clear();
                }
            }
        }
    }

    /// Looks at all queues, this one first, and takes up to a budget of entries from each.
    fn turn(&mut self, first: usize, budget: usize) {
        let device = &mut self.device;
        if device.asleep {
            return;
        }
        for q in (0..SQS).map(|i| (first + i) % SQS) {
            let Some(sq) = &mut device.sqs[q] else { continue };
            // Nothing moves between the two. A tail that is not still need not have moved: its slot may be new.
            let (still, before) = (sq.consumer.is_still(), sq.consumer.tail());
            let looked = sq.consumer.look();
            assert!(!still || looked == Ok(0) && sq.consumer.tail() == before, "a still tail has moved");
            device.invalid += usize::from(looked.is_err());
            if sq.consumer.waiting() > 0 {
                sq.consumer.suppress();
            }
            let cq = device.cqs[sq.cq].as_mut().unwrap();
            for _ in 0..budget {
                if sq.consumer.waiting() == 0 {
                    break;
                }
                let permit = match cq.reserve() {
                    Ok(Some(permit)) => permit,
                    Ok(None) => break,
                    Err(_) => {
                        device.invalid += 1;
                        break;
                    }
                };
                let at = sq.consumer.take().unwrap();
                let id = self.sq_ring[q][usize::from(at)];
                if self.host_sqs[q].life == Life::Here {
                    let host = &self.host_sqs[q];
                    let flying = device.flying.iter().filter(|f| f.1 == q).count();
                    assert!(host.submitted.contains(&id), "SQ {q} gave {id}, which was not submitted or is done");
                    assert!(!device.flying.iter().any(|f| f.0 == id), "SQ {q} gave {id} twice");
                    assert!(flying < host.submitted.len(), "SQ {q}: more in flight than submitted");
                }
                sq.taken += 1;
                device.flying.push((id, q, sq.cq, permit));
            }
        }
    }

    /// The backend is done with one.
    fn complete(&mut self, which: usize, n: usize) {
        let device = &mut self.device;
        for _ in 0..n.min(device.flying.len()) {
            let (id, q, c, permit) = device.flying.remove(which % device.flying.len());
            device.asleep = false;
            let sqhd = device.sqs[q].as_ref().unwrap().consumer.head();
            let posted = device.cqs[c].as_mut().unwrap().post(permit);
            let entry = &mut self.cq_ring[c][usize::from(posted.index)];
            assert_ne!(entry.3, posted.phase, "the entry is old");
            *entry = (id, q, sqhd, posted.phase);
        }
    }

    // ---- the end ----------------------------------------------------------------------------------------------------------

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Submit(q, n) => self.submit(q, n),
            Op::Finish(n) => self.finish(n),
            Op::Reap(c, n) => self.reap(c, n),
            Op::Deliver(n) => self.deliver(n),
            Op::Turn(q, n) => self.turn(q, n),
            Op::Complete(i, n) => self.complete(i, n),
            Op::Sleep => self.device.sleep(),
            Op::Buffers(leftover) => self.send_buffers(leftover),
            Op::Notice => self.notice_buffers(),
            Op::Create(q, c, sq, cq, sqd, cqd) => self.create(q, c, (sq, cq), (sqd, cqd)),
            Op::Delete(q) => self.delete(q),
            Op::Reset => self.reset(),
            Op::Away => self.device.suspend(),
            Op::Back if self.device.away => self.device.resume(),
            Op::Back => {}
            Op::Rest => self.rest(),
            Op::HostileRegister(n, value) => {
                // Never a position of any queue here.
                let value = value | 0x40;
                self.hostile += 1;
                let message = if n < SQS { Message::SqTail(n, value) } else { Message::CqHead(n - SQS, value) };
                self.messages.push_back(message);
            }
            Op::HostileSlot(n, value) => {
                let bell = if n < SQS { &self.host_sqs[n].bell } else { &self.host_cqs[n - SQS].bell };
                let life = if n < SQS { self.host_sqs[n].life } else { self.host_cqs[n - SQS].life };
                if let Some(slot) = bell.scribble().filter(|_| life == Life::Here && !self.resetting).cloned() {
                    self.hostile += 2;
                    let good = slot.load();
                    slot.store(value | 0x40);
                    self.turn(n % SQS, 1);
                    self.device.sleep();
                    slot.store(good);
                    // Whoever puts it right rings, as for every store to a slot: the device may sleep on what it found.
                    self.messages.push_back(if n < SQS {
                        Message::SqTail(n, good)
                    } else {
                        Message::CqHead(n - SQS, good)
                    });
                }
            }
        }
    }

    /// Lets everything come to rest: the host finishes what it began and reaps, nothing new is submitted, and a device that
    /// sleeps is left asleep. Then all must be done.
    fn rest(&mut self) {
        if self.device.away {
            self.device.resume();
        }
        for round in 0.. {
            assert!(round < 2000, "never comes to rest");
            self.finish_all();
            self.deliver(usize::MAX);
            self.notice_buffers();
            self.turn(round, 3);
            self.complete(0, usize::MAX);
            (0..CQS).for_each(|c| self.reap(c, u16::MAX));
            self.finish_all();
            self.device.sleep();
            if self.device.asleep && self.messages.is_empty() {
                break;
            }
        }
        for (q, sq) in self.host_sqs.iter().enumerate() {
            if sq.life == Life::Here {
                let device = self.device.sqs[q].as_ref().unwrap();
                assert!(sq.submitted.is_empty(), "lost: SQ {q} ({:?}) waits for {:?}", sq.bell.kind, sq.submitted);
                assert_eq!(device.taken, sq.completed, "SQ {q}");
            }
        }
        for cq in self.device.cqs.iter().flatten() {
            assert_eq!(cq.reserved(), 0);
        }
        assert!(self.device.invalid <= self.hostile, "a good position was refused");
    }
}

impl Device {
    fn attach_sq(&mut self, q: usize) {
        if let (Some(page), Some(sq)) = (&self.page, &mut self.sqs[q]) {
            let (slot, event) = page.sq[q].clone();
            sq.consumer.doorbell().attach(slot, event);
        }
    }

    fn attach_cq(&mut self, c: usize) {
        if let (Some(page), Some(cq)) = (&self.page, &mut self.cqs[c]) {
            let (slot, event) = page.cq[c].clone();
            cq.doorbell().attach(slot, event);
            cq.suppress();
        }
    }

    fn suspend(&mut self) {
        self.away = true;
        self.sqs.iter_mut().flatten().for_each(|sq| sq.consumer.doorbell().suspend());
        self.cqs.iter_mut().flatten().for_each(|cq| cq.doorbell().suspend());
    }

    fn resume(&mut self) {
        self.away = false;
        self.asleep = false;
        let Some(page) = &self.page else { return };
        for (sq, (slot, event)) in self.sqs.iter_mut().zip(&page.sq) {
            if let Some(sq) = sq {
                sq.consumer.doorbell().resume(slot.clone(), event.clone());
            }
        }
        for (cq, (slot, event)) in self.cqs.iter_mut().zip(&page.cq) {
            if let Some(cq) = cq {
                cq.doorbell().resume(slot.clone(), event.clone());
                cq.suppress();
            }
        }
    }

    /// Arms everything, and sleeps if nothing has come meanwhile.
    fn sleep(&mut self) {
        for sq in self.sqs.iter_mut().flatten() {
            let cq = self.cqs[sq.cq].as_mut().unwrap();
            let armed = if sq.consumer.waiting() == 0 {
                sq.consumer.arm()
            } else if cq.has_room() {
                return;
            } else {
                cq.arm()
            };
            match armed {
                Armed::Idle => {}
                Armed::ByClock => panic!("nothing is mapped here"),
                Armed::MoreWork => return,
                Armed::Invalid(_) => {
                    self.invalid += 1;
                    return;
                }
            }
        }
        self.asleep = true;
    }
}

// ---- the properties -------------------------------------------------------------------------------------------------------

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(KINDS.to_vec())
}

fn entries() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![2, 2, 3, 3, 4, 5, 8, 16, 64])
}

fn create() -> impl Strategy<Value = Op> {
    (0..SQS, 0..CQS, kind(), kind(), entries(), entries())
        .prop_map(|(q, c, sq, cq, sqd, cqd)| Op::Create(q, c, sq, cq, sqd, cqd))
}

fn op() -> impl Strategy<Value = Op> {
    let few = || prop_oneof![3 => Just(1u16), 1 => 2..5u16, 1 => Just(u16::MAX)];
    prop_oneof![
        30 => (0..SQS, few()).prop_map(|(q, n)| Op::Submit(q, n)),
        25 => (0..SQS + CQS).prop_map(Op::Finish),
        20 => (0..CQS, few()).prop_map(|(c, n)| Op::Reap(c, n)),
        15 => (1..4usize).prop_map(Op::Deliver),
        20 => (0..SQS, 1..4usize).prop_map(|(q, n)| Op::Turn(q, n)),
        20 => (0..8usize, 1..4usize).prop_map(|(i, n)| Op::Complete(i, n)),
        15 => Just(Op::Sleep),
        2 => (0..4u32).prop_map(Op::Buffers),
        4 => Just(Op::Notice),
        6 => create(),
        2 => (0..SQS).prop_map(Op::Delete),
        1 => Just(Op::Reset),
        1 => Just(Op::Away),
        2 => Just(Op::Back),
        2 => Just(Op::Rest),
        1 => (0..SQS + CQS, any::<u32>()).prop_map(|(n, v)| Op::HostileRegister(n, v)),
        1 => (0..SQS + CQS, any::<u32>()).prop_map(|(n, v)| Op::HostileSlot(n, v)),
    ]
}

/// `PROPTEST_CASES` for a longer search.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 50_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// From nothing, with everything at random.
    #[test]
    fn nothing_is_lost_doubled_or_invented(
        first in prop::collection::vec(create(), 1..4),
        early in any::<bool>(),
        ops in prop::collection::vec(op(), 0..250),
    ) {
        let mut world = World::new();
        if early {
            world.step(&Op::Buffers(0));
            world.deliver(1);
            world.notice_buffers();
        }
        first.iter().for_each(|op| world.step(op));
        world.deliver(usize::MAX);
        for op in &ops {
            world.step(op);
        }
        // A device that sleeps must hear of the next command too, whatever went before.
        for _ in 0..3 {
            world.rest();
            (0..SQS).for_each(|q| world.submit(q, 1));
        }
        world.rest();
    }
}
