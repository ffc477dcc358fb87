//! A submission queue and a completion queue: what every queue pair has, the admin queue's too.

use dma::Cell32;
use doorbell::{Depth, DriverDoorbell};
use nvme::{
    CompletionQueueEntry, Status, SubmissionQueueEntry,
    command::{CQE_BYTES, SQE_BYTES},
    registers,
    shadow::{cq_slot, sq_slot},
};

use crate::{
    error::{Error, MemoryError, ProtocolError, TransportError, Violation},
    memory::{Buffer, Pool},
    slots::{Finished, Slots},
    transport::Transport,
};

/// How many entries ahead of the tail the next cache line is asked for.
const PREFETCH: u16 = 4;

/// Bit of the phase tag in the second word of a completion queue entry.
const PHASE: u64 = 1 << 48;

/// What a queue pair has done since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Commands submitted.
    pub submitted: u64,
    /// Commands completed.
    pub completed: u64,
    /// Writes to the SQ tail register.
    pub sq_rings: u64,
    /// Moves of the SQ tail that needed no register write.
    pub sq_spared: u64,
    /// Writes to the CQ head register.
    pub cq_rings: u64,
    /// Moves of the CQ head that needed no register write.
    pub cq_spared: u64,
    /// Interrupts that the device has raised, as far as they were looked at.
    pub interrupts: u64,
    /// Times that the driver went to sleep for an interrupt.
    pub sleeps: u64,
}

impl Counters {
    /// Writes to doorbell registers.
    #[must_use]
    pub fn register_writes(&self) -> u64 {
        self.sq_rings + self.cq_rings
    }
}

/// A completion as the ring gives it: checked, and taken off the list of commands in flight.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) tag: u64,
    pub(crate) status: Status,
    pub(crate) dw0: u32,
}

/// The pages of Doorbell Buffer Config.
#[derive(Debug, Clone)]
pub(crate) struct ShadowPages {
    pub(crate) shadow: Buffer,
    pub(crate) event: Buffer,
}

impl ShadowPages {
    /// The words of one doorbell, zeroed; `None` past the page, where queues go by register.
    fn cells(&self, offset: usize) -> Option<(Cell32, Cell32)> {
        self.shadow.write(offset, &[0; 4]).ok()?;
        self.event.write(offset, &[0; 4]).ok()?;
        Some((self.shadow.window().cell32(offset).ok()?, self.event.window().cell32(offset).ok()?))
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    qid: u16,
    depth: Depth,
    sq_memory: Buffer,
    cq_memory: Buffer,
    /// Tail as the device was told.
    sq: DriverDoorbell<Cell32>,
    /// Tail as entries were written.
    tail: u16,
    /// Head of the SQ by the last SQHD.
    sq_head: u16,
    /// How many entries that is since the start.
    fetched: u64,
    cq: DriverDoorbell<Cell32>,
    head: u16,
    /// The phase tag of new entries; known here, never read back.
    phase: bool,
    /// The head is told to the device once this many entries are consumed.
    head_batch: u16,
    slots: Slots,
    sq_register: u64,
    cq_register: u64,
    pub(crate) counters: Counters,
}

impl Ring {
    pub(crate) fn new(pool: &std::sync::Arc<Pool>, qid: u16, depth: Depth, dstrd: u8) -> Result<Self, MemoryError> {
        let entries = depth.entries() as usize;
        Ok(Self {
            qid,
            depth,
            sq_memory: pool.allocate(entries * SQE_BYTES)?,
            cq_memory: pool.allocate(entries * CQE_BYTES)?,
            sq: DriverDoorbell::new(depth),
            tail: 0,
            sq_head: 0,
            fetched: 0,
            cq: DriverDoorbell::new(depth),
            head: 0,
            phase: true,
            head_batch: 1,
            slots: Slots::new(depth.capacity()),
            sq_register: registers::Doorbell::SqTail(qid).offset(dstrd),
            cq_register: registers::Doorbell::CqHead(qid).offset(dstrd),
            counters: Counters::default(),
        })
    }

    /// As new, but for the counters and the generations of identifiers. Returns the tags of the commands that were in flight.
    pub(crate) fn restart(&mut self) -> Vec<u64> {
        self.cq_memory.zero();
        let Self { depth, sq, tail, sq_head, fetched, cq, head, phase, counters, .. } = self;
        *sq = DriverDoorbell::new(*depth);
        *cq = DriverDoorbell::new(*depth);
        (*tail, *sq_head, *head, *phase) = (0, 0, 0, true);
        // What was submitted before is gone.
        *fetched = counters.submitted;
        self.slots.clear()
    }

    pub(crate) fn qid(&self) -> u16 {
        self.qid
    }

    pub(crate) fn depth(&self) -> Depth {
        self.depth
    }

    pub(crate) fn sq_memory(&self) -> &Buffer {
        &self.sq_memory
    }

    pub(crate) fn cq_memory(&self) -> &Buffer {
        &self.cq_memory
    }

    pub(crate) fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    pub(crate) fn in_flight(&self) -> u16 {
        self.slots.in_flight()
    }

    /// Tells the head once `entries` were consumed, at most half a ring.
    pub(crate) fn set_head_batch(&mut self, entries: u16) {
        // With more than that the device would run out of room while nothing is left to consume.
        self.head_batch = entries.clamp(1, (self.depth.capacity() / 2).max(1));
    }

    /// Uses the slots of these pages from now on: before the queue is created, or right after Doorbell Buffer Config.
    pub(crate) fn attach(&mut self, pages: &ShadowPages, dstrd: u8) {
        let (qid, page) = (self.qid, pages.shadow.len());
        if qid > nvme::shadow::max_qid(page, dstrd) {
            return;
        }
        if let (Some(sq), Some(cq)) = (pages.cells(sq_slot(qid, dstrd)), pages.cells(cq_slot(qid, dstrd))) {
            self.sq.attach(sq.0, sq.1);
            self.cq.attach(cq.0, cq.1);
        }
    }

    /// Writes an entry at the tail; [`Ring::ring`] tells the device. The slot is the one that [`Slots::next`] named.
    #[inline]
    pub(crate) fn push(&mut self, sqe: SubmissionQueueEntry, tag: u64, buffer: Option<Buffer>) -> Option<u16> {
        let cid = self.slots.open(tag, self.counters.submitted, buffer)?;
        let sqe = SubmissionQueueEntry { cid: cid.into(), ..sqe };
        // There is room: as many slots as entries, less the one that stays free.
        let stored = self.sq_memory.window().store_words(usize::from(self.tail) * SQE_BYTES, sqe.to_words());
        debug_assert!(stored.is_ok(), "entry inside its ring");
        // The device has read the entries ahead in the last round, so their lines are shared; the fence of a ring would wait
        // for each to become ours.
        let ahead = self.depth.advance(self.tail, PREFETCH.min(self.depth.capacity()));
        self.sq_memory.window().prefetch_for_store(usize::from(ahead) * SQE_BYTES);
        self.tail = self.depth.next(self.tail);
        self.counters.submitted += 1;
        Some(cid)
    }

    /// Tells the device about all entries that were written.
    #[inline]
    pub(crate) fn ring(&mut self, transport: &dyn Transport) -> Result<(), TransportError> {
        if self.tail == self.sq.position() {
            return Ok(());
        }
        let due = if self.cq.has_shadow() && self.head != self.cq.position() {
            // The head of a look before goes along; see `poll`.
            let (head, tail) = ((&mut self.cq, self.head), (&mut self.sq, self.tail));
            let (cq_due, sq_due) = DriverDoorbell::advance_both(head, tail);
            self.head_moved(cq_due, transport)?;
            sq_due
        } else {
            self.sq.advance(self.tail)
        };
        if due {
            self.counters.sq_rings += 1;
            probes::ring_written(self.qid, false, self.tail);
            transport.ring(self.sq_register, self.tail.into())
        } else {
            self.counters.sq_spared += 1;
            probes::ring_spared(self.qid, false, self.tail);
            Ok(())
        }
    }

    /// The head was moved; `due` says that the device wants to hear of it.
    #[inline]
    fn head_moved(&mut self, due: bool, transport: &dyn Transport) -> Result<(), TransportError> {
        if due {
            self.counters.cq_rings += 1;
            probes::ring_written(self.qid, true, self.head);
            transport.ring(self.cq_register, self.head.into())
        } else {
            self.counters.cq_spared += 1;
            probes::ring_spared(self.qid, true, self.head);
            Ok(())
        }
    }

    /// Takes new completions, at most a whole ring, hands each to `done`, and sees to it that the device hears of the new head.
    #[inline]
    pub(crate) fn poll(&mut self, transport: &dyn Transport, mut done: impl FnMut(Completed)) -> Result<usize, Error> {
        let mut count = 0;
        let limit = usize::from(self.depth.capacity());
        let result = loop {
            if count == limit {
                break Ok(());
            }
            match self.take() {
                Ok(Some(completed)) => done(completed),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            count += 1;
        };
        self.counters.completed += count as u64;
        let moved = self.depth.distance(self.cq.position(), self.head);
        // With shadow doorbells the head waits for the next ring, whose barrier it shares, or for a look that finds nothing:
        // a driver that goes to sleep looks once more before.
        let tell = if self.cq.has_shadow() { count == 0 && moved > 0 } else { count > 0 && moved >= self.head_batch };
        if tell {
            let due = self.cq.advance(self.head);
            self.head_moved(due, transport)?;
        }
        result.map(|()| count)
    }

    /// Takes one completion. Whatever the device wrote there is copied once and checked.
    #[inline]
    fn take(&mut self) -> Result<Option<Completed>, Error> {
        let at = usize::from(self.head) * CQE_BYTES;
        let window = self.cq_memory.window();
        // The entry's other half is stored before this one; the Acquire orders our loads the same way.
        let Ok(second) = window.load_acquire(at + 8) else { return Ok(None) };
        if (second & PHASE != 0) != self.phase {
            return Ok(None);
        }
        let Ok([first]) = window.load_words(at) else { return Ok(None) };
        let entry = CompletionQueueEntry::from_words([first, second]);
        let cid = entry.cid.get();
        let checked = self.check(&entry);
        let Finished { tag } =
            checked.map_err(|violation| ProtocolError { qid: self.qid, index: self.head, cid, violation })?;
        self.head = self.depth.next(self.head);
        self.phase ^= self.head == 0;
        Ok(Some(Completed { tag, status: entry.status(), dw0: entry.dw0.get() }))
    }

    #[inline]
    fn check(&mut self, entry: &CompletionQueueEntry) -> Result<Finished, Violation> {
        if entry.sqid.get() != self.qid {
            return Err(Violation::WrongQueue(entry.sqid.get()));
        }
        let sqhd = entry.sqhd.get();
        let depth = self.depth;
        let steps = depth.position(sqhd.into()).map(|sqhd| depth.distance(self.sq_head, sqhd));
        let steps = steps
            .filter(|steps| *steps <= depth.distance(self.sq_head, self.sq.position()))
            .ok_or(Violation::SubmissionHead(sqhd))?;
        let fetched = self.fetched + u64::from(steps);
        let finished = self.slots.close(entry.cid.get(), fetched)?;
        self.sq_head = sqhd;
        self.fetched = fetched;
        Ok(finished)
    }
}
