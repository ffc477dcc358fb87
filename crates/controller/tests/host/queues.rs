//! The host's end of queues: submitting, reaping, doorbells.

use std::sync::atomic::Ordering;

use dma::Cell32;
use doorbell::{Depth, DriverDoorbell};
use nvme::{
    CompletionQueueEntry, Status, SubmissionQueueEntry,
    shadow::{cq_slot, sq_slot},
};

use super::{Machine, Signal, commands, memory::Prps};

/// How a driver tells positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bells {
    /// By register alone, also where slots exist.
    Register,
    /// By slot where Doorbell Buffer Config has given one, and by register when EventIdx asks for it.
    Slot,
    /// By slot, and by register every time.
    Both,
    /// By a register that is mapped: a store, which wakes nobody.
    Mapped,
}

pub struct SubmissionQueue {
    pub cqid: u16,
    pub depth: Depth,
    pub base: u64,
    /// Where the next entry goes; the doorbell may lag behind.
    pub tail: u16,
    /// SQHD of the last completion.
    pub head: u16,
    pub bells: Bells,
    bell: DriverDoorbell<Cell32>,
}

pub struct CompletionQueue {
    pub depth: Depth,
    pub base: u64,
    pub head: u16,
    pub phase: bool,
    /// Interrupts are on, with this vector.
    pub vector: Option<u16>,
    pub bells: Bells,
    bell: DriverDoorbell<Cell32>,
}

impl SubmissionQueue {
    /// Entries that may be written before the ring is full.
    pub fn room(&self) -> u16 {
        self.depth.capacity() - self.depth.distance(self.head, self.tail)
    }
}

impl Machine {
    pub fn add_sq(&mut self, qid: u16, depth: u32, base: u64, cqid: u16, bells: Bells) {
        let depth = Depth::new(depth).unwrap();
        let bell = DriverDoorbell::new(depth);
        self.sqs.insert(qid, SubmissionQueue { cqid, depth, base, tail: 0, head: 0, bells, bell });
        self.attach(qid);
    }

    pub fn add_cq(&mut self, qid: u16, depth: u32, base: u64, vector: Option<u16>, bells: Bells) {
        let depth = Depth::new(depth).unwrap();
        let bell = DriverDoorbell::new(depth);
        let vector = vector.filter(|_| self.setup.signal != Signal::Polled);
        self.cqs.insert(qid, CompletionQueue { depth, base, head: 0, phase: true, vector, bells, bell });
        self.attach(qid);
    }

    /// Creates CQ and SQ `qid` of `depth` entries. With MSI-X, the CQ has vector `qid`.
    pub fn create_pair(&mut self, qid: u16, depth: u32, bells: Bells) {
        self.create_cq(qid, depth, bells);
        self.create_sq(qid, depth, qid, bells);
    }

    pub fn create_cq(&mut self, qid: u16, depth: u32, bells: Bells) {
        let base = self.alloc_ring(depth, 16);
        let vector = match self.setup.signal {
            Signal::Msix => Some(qid),
            Signal::Intx => Some(0),
            Signal::Polled => None,
        };
        if let Some(vector) = vector {
            self.connect(vector);
        }
        // The slots of a queue that is created are zero before the device learns of it.
        self.add_cq(qid, depth, base, vector, bells);
        self.ok(0, commands::create_cq(qid, depth, base, vector));
    }

    pub fn create_sq(&mut self, qid: u16, depth: u32, cqid: u16, bells: Bells) {
        let base = self.alloc_ring(depth, 64);
        self.add_sq(qid, depth, base, cqid, bells);
        self.ok(0, commands::create_sq(qid, depth, base, cqid));
    }

    pub fn delete_pair(&mut self, qid: u16) {
        self.ok(0, commands::delete_sq(qid));
        self.sqs.remove(&qid);
        self.ok(0, commands::delete_cq(qid));
        self.cqs.remove(&qid);
    }

    // ---- shadow doorbells -----------------------------------------------------------------------------------------------

    /// Doorbell Buffer Config with new pages; the queues that want slots use them once it has succeeded.
    pub fn use_shadow_doorbells(&mut self) -> (u64, u64) {
        let (shadow, event) = (self.buffer(self.page), self.buffer(self.page));
        // A queue that uses other slots already does not move while the command is on its way: the device looks at the new
        // ones from some moment on.
        let cid = self.submit(0, commands::doorbell_buffer_config(shadow, event));
        let entry = loop {
            self.reap(0);
            match self.take(0, cid) {
                Some(entry) => break entry,
                None => assert!(self.turn(), "Doorbell Buffer Config never completes"),
            }
        };
        assert_eq!(entry.status(), Status::SUCCESS);
        self.shadow = Some((shadow, event));
        self.attach_all();
        (shadow, event)
    }

    /// Gives every queue that wants one its slots, at their present address.
    pub fn attach_all(&mut self) {
        let ids: Vec<u16> = self.sqs.keys().chain(self.cqs.keys()).copied().collect();
        for qid in ids {
            self.attach(qid);
        }
    }

    fn attach(&mut self, qid: u16) {
        let Some((shadow, event)) = self.shadow else { return };
        let cell = |page: u64, slot: usize| self.memory.window(page + slot as u64, 4).cell32(0).unwrap();
        let sq = (cell(shadow, sq_slot(qid, 0)), cell(event, sq_slot(qid, 0)));
        let cq = (cell(shadow, cq_slot(qid, 0)), cell(event, cq_slot(qid, 0)));
        if let Some(queue) = self.sqs.get_mut(&qid).filter(|q| q.bells != Bells::Register) {
            queue.bell.attach(sq.0, sq.1);
        }
        if let Some(queue) = self.cqs.get_mut(&qid).filter(|q| q.bells != Bells::Register) {
            queue.bell.attach(cq.0, cq.1);
        }
    }

    /// A word of the doorbell pages: the slot itself, or its EventIdx.
    pub fn slot(&self, event_idx: bool, offset: usize) -> Cell32 {
        let (shadow, event) = self.shadow.unwrap();
        self.memory.window(if event_idx { event } else { shadow } + offset as u64, 4).cell32(0).unwrap()
    }

    // ---- submitting -----------------------------------------------------------------------------------------------------

    /// Writes a command with a new id into the ring without telling the device, unless that is what it takes to get room.
    /// Returns the id.
    #[track_caller]
    pub fn push(&mut self, qid: u16, sqe: SubmissionQueueEntry) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        let cid = self.next_cid;
        self.push_as(qid, SubmissionQueueEntry { cid: cid.into(), ..sqe });
        cid
    }

    /// As [`Machine::push`], with the id that the command has.
    #[track_caller]
    pub fn push_as(&mut self, qid: u16, sqe: SubmissionQueueEntry) {
        if self.sqs[&qid].room() == 0 {
            self.ring(qid);
            self.run_until("there is room in the SQ", |m| m.sqs[&qid].room() > 0);
        }
        let sq = self.sqs.get_mut(&qid).unwrap();
        let at = sq.base + u64::from(sq.tail) * 64;
        sq.tail = sq.depth.next(sq.tail);
        self.memory.window(at, 64).store_words(0, sqe.to_words()).unwrap();
        *self.outstanding.entry((qid, sqe.cid.get())).or_default() += 1;
    }

    /// Tells the device about everything that was pushed.
    pub fn ring(&mut self, qid: u16) {
        let sq = self.sqs.get_mut(&qid).unwrap();
        let (tail, both) = (sq.tail, sq.bells == Bells::Both);
        if sq.bells == Bells::Mapped {
            self.mapped_register(0x1000 + 8 * u64::from(qid)).store(tail.into(), Ordering::Release);
        } else if sq.bell.advance(tail) || both {
            self.write_sq_doorbell(qid, tail.into());
        }
    }

    /// Submits one command and returns its id.
    #[track_caller]
    pub fn submit(&mut self, qid: u16, sqe: SubmissionQueueEntry) -> u16 {
        let cid = self.push(qid, sqe);
        self.ring(qid);
        cid
    }

    /// Commands that are outstanding on an SQ.
    pub fn outstanding(&self, qid: u16) -> u32 {
        self.outstanding.iter().filter(|((sqid, _), _)| *sqid == qid).map(|(_, n)| n).sum()
    }

    // ---- completions ----------------------------------------------------------------------------------------------------

    /// Takes the next completion of a CQ without telling the device.
    pub fn pop(&mut self, cqid: u16) -> Option<CompletionQueueEntry> {
        let cq = self.cqs.get_mut(&cqid)?;
        let window = self.memory.window(cq.base + u64::from(cq.head) * 16, 16);
        let second = window.load_acquire(8).unwrap();
        if (second >> 48 & 1 != 0) != cq.phase {
            return None;
        }
        let [first] = window.load_words(0).unwrap();
        let entry = CompletionQueueEntry::from_words([first, second]);
        cq.head = cq.depth.next(cq.head);
        cq.phase ^= cq.head == 0;

        let key = (entry.sqid.get(), entry.cid.get());
        let sq = self.sqs.get_mut(&key.0).unwrap_or_else(|| panic!("a completion for no SQ: {entry:?}"));
        assert_eq!(sq.cqid, cqid, "a completion in another SQ's CQ: {entry:?}");
        let steps = sq.depth.distance(sq.head, entry.sqhd.get());
        assert!(steps <= sq.depth.distance(sq.head, sq.tail), "the SQ's head went backwards: {entry:?}");
        sq.head = entry.sqhd.get();
        let count = self.outstanding.get_mut(&key).unwrap_or_else(|| panic!("a completion of nothing: {entry:?}"));
        *count -= 1;
        if *count == 0 {
            self.outstanding.remove(&key);
        }
        Some(entry)
    }

    /// Tells the device how far a CQ was consumed.
    pub fn ring_cq(&mut self, cqid: u16) {
        let cq = self.cqs.get_mut(&cqid).unwrap();
        let (head, both) = (cq.head, cq.bells == Bells::Both);
        if cq.bells == Bells::Mapped {
            self.mapped_register(0x1004 + 8 * u64::from(cqid)).store(head.into(), Ordering::Release);
        } else if cq.bell.advance(head) || both {
            self.write_cq_doorbell(cqid, head.into());
        }
    }

    /// Takes all completions of a CQ, then tells the device once.
    pub fn reap(&mut self, cqid: u16) -> usize {
        let mut n = 0;
        while let Some(entry) = self.pop(cqid) {
            self.completed.push(entry);
            n += 1;
        }
        if n > 0 {
            self.ring_cq(cqid);
        }
        n
    }

    /// Takes a command's completion out of those that were reaped.
    pub fn take(&mut self, sqid: u16, cid: u16) -> Option<CompletionQueueEntry> {
        let at = self.completed.iter().position(|c| (c.sqid.get(), c.cid.get()) == (sqid, cid))?;
        Some(self.completed.remove(at))
    }

    /// Waits for a command's completion.
    #[track_caller]
    pub fn wait(&mut self, sqid: u16, cid: u16) -> CompletionQueueEntry {
        let mut found = None;
        self.run_until(&format!("command {cid:#x} of SQ {sqid} completes"), |m| {
            found = m.take(sqid, cid);
            found.is_some()
        });
        found.unwrap()
    }

    /// Submits one command and waits for its completion.
    #[track_caller]
    pub fn execute(&mut self, qid: u16, sqe: SubmissionQueueEntry) -> CompletionQueueEntry {
        let cid = self.submit(qid, sqe);
        self.wait(qid, cid)
    }

    /// Executes a command, and returns its status.
    #[track_caller]
    pub fn status(&mut self, qid: u16, sqe: SubmissionQueueEntry) -> Status {
        self.execute(qid, sqe).status()
    }

    /// Executes a command that has to succeed, and returns dword 0 of its completion.
    #[track_caller]
    pub fn ok(&mut self, qid: u16, sqe: SubmissionQueueEntry) -> u32 {
        let entry = self.execute(qid, sqe);
        assert_eq!(entry.status(), Status::SUCCESS, "{sqe:?}");
        entry.dw0.get()
    }

    /// Waits until nothing is outstanding on an SQ.
    #[track_caller]
    pub fn drain(&mut self, qid: u16) {
        self.run_until(&format!("SQ {qid} is empty"), |m| m.outstanding(qid) == 0);
    }

    // ---- data -----------------------------------------------------------------------------------------------------------

    /// A buffer of `bytes` bytes and the PRPs of it.
    pub fn data(&mut self, bytes: u64) -> (u64, Prps) {
        let buffer = self.buffer(bytes);
        (buffer, self.memory.prps(self.page, buffer, bytes))
    }

    /// Reads blocks of namespace 1 through queue `qid`.
    #[track_caller]
    pub fn read_blocks(&mut self, qid: u16, lba: u64, blocks: u32, block: u32) -> Vec<u8> {
        let bytes = u64::from(blocks) * u64::from(block);
        let (buffer, prps) = self.data(bytes);
        self.ok(qid, commands::read(lba, blocks, prps));
        self.memory.read(buffer, usize::try_from(bytes).unwrap())
    }

    /// Writes blocks of namespace 1 through queue `qid`.
    #[track_caller]
    pub fn write_blocks(&mut self, qid: u16, lba: u64, data: &[u8], block: u32) {
        let (buffer, prps) = self.data(data.len() as u64);
        self.memory.write(buffer, data);
        let blocks = u32::try_from(data.len()).unwrap() / block;
        self.ok(qid, commands::write(lba, blocks, prps));
    }

    /// Sends an admin command that fills a buffer of `bytes` bytes, and returns them.
    #[track_caller]
    pub fn fetch(&mut self, bytes: u64, command: impl FnOnce(Prps) -> SubmissionQueueEntry) -> Vec<u8> {
        let (buffer, prps) = self.data(bytes);
        self.ok(0, command(prps));
        self.memory.read(buffer, usize::try_from(bytes).unwrap())
    }
}
