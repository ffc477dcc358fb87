//! The data half of a controller: queues, commands in flight, namespaces. It knows nothing of registers and of the admin set.

mod mapped;
mod requests;

use std::sync::Arc;

use block::{Completion, Operation, Request};
use dma::{Access, MemoryMap, Segments};
use doorbell::{Armed, Permit};
use nvme::{
    CompletionQueueEntry, Status, SubmissionQueueEntry, command,
    shadow::{cq_slot, sq_slot},
};
use zerocopy::{FromZeros, little_endian::U16, little_endian::U32};

pub(crate) use mapped::DoorbellPage;

use crate::{
    namespace::Namespace,
    queue::{CompletionQueue, SubmissionQueue},
    stats::Counters,
};

/// How many entries ahead of the one that is carried out the next is asked for: their lines come from another processor.
pub(crate) const PREFETCH: u16 = 8;

/// CAP.DSTRD: doorbells are 4 bytes apart.
pub(crate) const DSTRD: u8 = 0;

/// The doorbell pages of Doorbell Buffer Config.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShadowPages {
    /// Guest address of the shadow doorbells (the host writes).
    pub(crate) shadow: u64,
    /// Guest address of the EventIdx values (the controller writes).
    pub(crate) event: u64,
    /// Size of each in bytes: one host page.
    pub(crate) bytes: usize,
}

/// Whose command it is.
#[derive(Debug)]
enum Owner {
    /// The slot is free.
    Nobody,
    /// A host's, from this queue.
    Host { sqid: u16, cid: u16, permit: Permit },
    /// Ours: it brings the caches to stable storage.
    Internal,
    /// Of a host before the last reset. Its memory may not be let go before the backend is done with it.
    Orphan,
}

#[derive(Debug)]
struct Command {
    owner: Owner,
    /// Requests at backends.
    parts: u32,
    status: Status,
    nsid: u32,
    lba: u64,
    /// [`Engine::epoch`] when it was opened.
    epoch: u64,
}

/// A command that ended with an error, for the error log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) sqid: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    pub(crate) nsid: u32,
    pub(crate) lba: u64,
}

/// An SQE that was fetched, with the right to complete it.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) sqe: SubmissionQueueEntry,
    pub(crate) permit: Permit,
}

/// What [`Engine::fetch`] found.
#[derive(Debug)]
pub(crate) enum Fetch {
    Command(Fetched),
    /// Nothing to fetch, or no room to complete it.
    Nothing,
    /// The host's CQ head is no position.
    InvalidDoorbell,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) memory: Arc<MemoryMap>,
    /// Counts the maps that there were before `memory`.
    epoch: u64,
    /// The function may write to guest memory of its own accord (Bus Master Enable).
    pub(crate) bus_master: bool,
    /// Host page size in bytes (CC.MPS).
    pub(crate) page: u64,
    pub(crate) sqs: Vec<Option<SubmissionQueue>>,
    pub(crate) cqs: Vec<Option<CompletionQueue>>,
    /// Ids of the SQs that exist, the admin queue first.
    pub(crate) active: Vec<u16>,
    pub(crate) shadow: Option<ShadowPages>,
    /// Mapped doorbells. Never together with `shadow`.
    pub(crate) doorbell_page: Option<DoorbellPage>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) counters: Counters,
    /// The host's wish (feature 06h): completed writes may wait in a cache.
    pub(crate) write_cache: bool,
    commands: Vec<Command>,
    free: Vec<u32>,
    /// The request that is made up now; its list stays for the next one unless the backend takes it along.
    pub(crate) request: Request,
    /// Lists that came back from backends.
    lists: Vec<Segments>,
    /// For reading PRP lists.
    scratch: Segments,
    done: Vec<Completion>,
    /// CQs that owe an interrupt.
    pub(crate) raise: Vec<u16>,
    /// Errors that were not recorded yet; bounded by the admin side, which takes them each turn.
    pub(crate) failures: Vec<Failure>,
    /// Delete I/O SQ commands whose queue has run dry: (command id, permit).
    pub(crate) deleted: Vec<(u16, u16, Permit)>,
    /// Some namespace has a backlog.
    congested: bool,
    /// Flushes of our own that are not done.
    flushing: u32,
    /// Read and write commands that succeeded.
    reads: u64,
    writes: u64,
}

impl Engine {
    pub(crate) fn new(namespaces: Vec<Namespace>, queues: usize) -> Self {
        Self {
            memory: Arc::default(),
            epoch: 0,
            bus_master: false,
            page: 4096,
            sqs: std::iter::repeat_with(|| None).take(queues).collect(),
            cqs: std::iter::repeat_with(|| None).take(queues).collect(),
            active: Vec::new(),
            shadow: None,
            doorbell_page: None,
            namespaces,
            counters: Counters::new(queues),
            write_cache: true,
            commands: Vec::new(),
            free: Vec::new(),
            request: Request { tag: 0, operation: Operation::Flush, offset: 0, len: 0, segments: Segments::default() },
            lists: Vec::new(),
            scratch: Segments::default(),
            done: Vec::new(),
            raise: Vec::new(),
            failures: Vec::new(),
            deleted: Vec::new(),
            congested: false,
            flushing: 0,
            reads: 0,
            writes: 0,
        }
    }

    pub(crate) fn sq(&mut self, qid: u16) -> Option<&mut SubmissionQueue> {
        self.sqs.get_mut(usize::from(qid))?.as_mut()
    }

    pub(crate) fn cq(&mut self, qid: u16) -> Option<&mut CompletionQueue> {
        self.cqs.get_mut(usize::from(qid))?.as_mut()
    }

    /// Commands whose requests are at a backend.
    pub(crate) fn in_flight(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    // ---- queues -----------------------------------------------------------------------------------------------------

    /// Puts a new SQ in its place. Its slots are attached before the host learns that it exists.
    pub(crate) fn add_sq(&mut self, qid: u16, mut queue: SubmissionQueue) {
        if let Some(register) = self.mapped_register(sq_slot(qid, DSTRD)) {
            queue.consumer.doorbell().map(register);
        }
        if let Some(cq) = self.cq(queue.cqid) {
            cq.users += 1;
        }
        self.sqs[usize::from(qid)] = Some(queue);
        self.active.push(qid);
        self.attach(qid);
    }

    pub(crate) fn add_cq(&mut self, qid: u16, mut queue: CompletionQueue) {
        if let Some(register) = self.mapped_register(cq_slot(qid, DSTRD)) {
            queue.producer.doorbell().map(register);
        }
        self.cqs[usize::from(qid)] = Some(queue);
        self.attach(qid);
    }

    /// Takes an SQ away; no command of it is in flight.
    pub(crate) fn remove_sq(&mut self, qid: u16) {
        if let Some(queue) = self.sqs.get_mut(usize::from(qid)).and_then(Option::take) {
            self.active.retain(|id| *id != qid);
            if let Some(cq) = self.cq(queue.cqid) {
                cq.users -= 1;
            }
        }
    }

    /// Whether any I/O queue exists.
    pub(crate) fn has_io_queues(&self) -> bool {
        self.sqs.iter().skip(1).any(Option::is_some) || self.cqs.iter().skip(1).any(Option::is_some)
    }

    /// Whether no queue has anything to fetch, by a look at each tail and at nothing else.
    #[inline]
    pub(crate) fn tails_are_still(&self) -> bool {
        self.active.iter().all(|qid| match self.sqs.get(usize::from(*qid)) {
            Some(Some(sq)) => sq.consumer.is_still() || !sq.ring.is_mapped() || sq.deleting.is_some(),
            _ => true,
        })
    }

    /// Arms a queue's wake-up before a sleep: the SQ's tail, or the CQ's head where the SQ waits for room there. `None` for a
    /// queue that no ring can make runnable.
    pub(crate) fn arm(&mut self, qid: u16) -> Option<Armed> {
        let sq = self.sqs.get_mut(usize::from(qid))?.as_mut()?;
        if !sq.ring.is_mapped() || sq.deleting.is_some() {
            return None;
        }
        let counters = self.counters.queue(qid);
        if sq.consumer.waiting() == 0 {
            let armed = sq.consumer.arm();
            if sq.consumer.doorbell().has_shadow() {
                match armed {
                    // Queues that have slept on are armed already.
                    Armed::Idle if std::mem::take(&mut sq.busy) => {
                        counters.arms_won += 1;
                        probes::arm_won(qid);
                    }
                    Armed::Idle => {}
                    Armed::MoreWork => {
                        counters.arms_lost += 1;
                        probes::arm_lost(qid);
                    }
                    Armed::Invalid(_) | Armed::ByClock => {}
                }
            }
            return Some(armed);
        }
        if self.congested && qid != 0 {
            // The backend's descriptor ends the sleep.
            return None;
        }
        let cqid = sq.cqid;
        let armed = self.arm_room(cqid);
        if matches!(armed, Some(Armed::Idle | Armed::ByClock)) {
            self.counters.queue(qid).parked += 1;
            probes::queue_parked(qid, cqid);
            if let Some(sq) = self.sq(qid) {
                sq.parked = true;
            }
        }
        armed
    }

    /// Arms a CQ's wake-up for the moment when the host makes room in it.
    pub(crate) fn arm_room(&mut self, cqid: u16) -> Option<Armed> {
        let cq = self.cq(cqid)?;
        match cq.producer.arm() {
            Armed::Idle | Armed::ByClock if cq.producer.has_room() => Some(Armed::MoreWork),
            other => Some(other),
        }
    }

    /// Lets the next I/O queue go first in the next turn: whoever comes first gets the room that there is, in a CQ or at a
    /// backend.
    pub(crate) fn rotate(&mut self) {
        if let Some(io) = self.active.get_mut(1..)
            && io.len() > 1
        {
            io.rotate_left(1);
        }
    }

    /// Read and write commands of the host, for the SMART log.
    pub(crate) fn io_commands(&self) -> (u64, u64) {
        (self.reads, self.writes)
    }

    /// Takes all queues away and gives up what is in flight. Commands at a backend become orphans; see
    /// [`Engine::in_flight`].
    pub(crate) fn reset(&mut self) {
        // Back to registers first: nothing may look at the slots of a controller that was reset.
        self.shadow = None;
        if let Some(page) = &self.doorbell_page {
            page.zero();
        }
        self.active.clear();
        self.sqs.iter_mut().for_each(|q| *q = None);
        self.cqs.iter_mut().for_each(|q| *q = None);
        self.raise.clear();
        self.deleted.clear();
        self.failures.clear();
        self.write_cache = true;
        self.abandon();
    }

    // ---- shadow doorbells -------------------------------------------------------------------------------------------

    /// Uses these pages from now on, on every queue.
    pub(crate) fn set_shadow(&mut self, pages: ShadowPages) {
        self.shadow = Some(pages);
        for queue in self.sqs.iter_mut().flatten() {
            queue.consumer.doorbell().detach();
        }
        for queue in self.cqs.iter_mut().flatten() {
            queue.producer.doorbell().detach();
        }
        for qid in 0..=u16::try_from(self.sqs.len().saturating_sub(1)).unwrap_or(u16::MAX) {
            self.attach(qid);
        }
    }

    /// Attaches, or takes up again, the slots of both queues of this id.
    fn attach(&mut self, qid: u16) {
        let Some(pages) = self.shadow else { return };
        let cells = |offset: usize| {
            // Slots past the page do not exist: such a queue goes on by register.
            let at = u64::try_from(offset).ok().filter(|_| offset + 4 <= pages.bytes)?;
            let slot = self.memory.window(pages.shadow.wrapping_add(at), 4, Access::Read).ok()?.cell32(0).ok()?;
            let event = self.memory.window(pages.event.wrapping_add(at), 4, Access::Write).ok()?.cell32(0).ok()?;
            Some((slot, event))
        };
        let (sq, cq) = (cells(sq_slot(qid, DSTRD)), cells(cq_slot(qid, DSTRD)));
        if let Some(queue) = self.sqs.get_mut(usize::from(qid)).and_then(Option::as_mut) {
            attach(queue.consumer.doorbell(), sq);
            queue.busy = true;
        }
        if let Some(queue) = self.cqs.get_mut(usize::from(qid)).and_then(Option::as_mut) {
            attach(queue.producer.doorbell(), cq);
            // Nobody waits for room yet: the host need not ring for the head.
            queue.producer.suppress();
        }
    }

    /// The function may, or may no longer, write to guest memory of its own accord.
    pub(crate) fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
        self.post_deferred();
    }

    fn post_deferred(&mut self) {
        for (qid, queue) in (0u16..).zip(&mut self.cqs) {
            if let Some(queue) = queue {
                let owed = queue.owes_interrupt;
                queue.post_deferred(self.bus_master);
                if queue.owes_interrupt && !owed {
                    self.raise.push(qid);
                }
            }
        }
    }

    /// Guest memory is elsewhere now: looks up everything that was resolved before.
    pub(crate) fn set_memory(&mut self, memory: Arc<MemoryMap>) {
        self.memory = memory;
        self.epoch += 1;
        for queue in self.sqs.iter_mut().flatten() {
            queue.ring.remap(&self.memory);
        }
        for queue in self.cqs.iter_mut().flatten() {
            queue.ring.remap(&self.memory);
        }
        self.post_deferred();
        for qid in 0..=u16::try_from(self.sqs.len().saturating_sub(1)).unwrap_or(u16::MAX) {
            self.attach(qid);
        }
        for list in self.lists.iter_mut().chain([&mut self.scratch, &mut self.request.segments]) {
            list.release();
        }
    }

    // ---- commands ---------------------------------------------------------------------------------------------------

    /// Takes the next command of a queue, if there is one and its completion will find room.
    #[inline]
    pub(crate) fn fetch(&mut self, qid: u16) -> Fetch {
        let Some(sq) = self.sqs.get_mut(usize::from(qid)).and_then(Option::as_mut) else { return Fetch::Nothing };
        let Some(window) = sq.ring.window() else { return Fetch::Nothing };
        if sq.deleting.is_some() || self.congested && qid != 0 || sq.consumer.waiting() == 0 {
            return Fetch::Nothing;
        }
        let Some(cq) = self.cqs.get_mut(usize::from(sq.cqid)).and_then(Option::as_mut) else { return Fetch::Nothing };
        let permit = match cq.producer.reserve() {
            Ok(Some(permit)) => permit,
            Ok(None) => return Fetch::Nothing,
            Err(_) => {
                self.counters.queue(sq.cqid).invalid_doorbells += 1;
                return Fetch::InvalidDoorbell;
            }
        };
        let Some(index) = sq.consumer.take() else {
            cq.producer.give_back(permit);
            return Fetch::Nothing;
        };
        sq.prefetch(PREFETCH..PREFETCH + 1);
        // Copied once; the tail that made it valid was loaded with Acquire.
        let Ok(words) = window.load_words(usize::from(index) * command::SQE_BYTES) else {
            // Not reached: the ring was checked when it was mapped, and the index is inside it.
            cq.producer.give_back(permit);
            return Fetch::Nothing;
        };
        if std::mem::take(&mut sq.parked) {
            probes::queue_unparked(qid, sq.cqid);
        }
        sq.outstanding += 1;
        self.counters.queue(qid).commands += 1;
        Fetch::Command(Fetched { sqe: SubmissionQueueEntry::from_words(words), permit })
    }

    /// Completes a command that was fetched from `sqid` and is with no backend.
    #[inline]
    pub(crate) fn complete(&mut self, sqid: u16, cid: u16, permit: Permit, status: Status, dw0: u32) {
        let Some(sq) = self.sqs.get_mut(usize::from(sqid)).and_then(Option::as_mut) else { return };
        sq.outstanding = sq.outstanding.saturating_sub(1);
        if !status.is_success() {
            self.counters.queue(sqid).errors += 1;
        }
        probes::command_completed(sqid, cid, status.0);
        let entry = CompletionQueueEntry {
            dw0: U32::new(dw0),
            sqhd: U16::new(sq.consumer.head()),
            sqid: U16::new(sqid),
            cid: U16::new(cid),
            ..CompletionQueueEntry::new_zeroed()
        };
        let cqid = sq.cqid;
        if sq.outstanding == 0
            && let Some((cid, permit)) = sq.deleting.take()
        {
            self.deleted.push((sqid, cid, permit));
        }
        if let Some(cq) = self.cqs.get_mut(usize::from(cqid)).and_then(Option::as_mut) {
            let owed = cq.owes_interrupt;
            cq.post(permit, entry.with_status(status), self.bus_master);
            if cq.owes_interrupt && !owed {
                self.raise.push(cqid);
            }
        }
    }
}

/// Attaches a doorbell's words, takes them up again, or lets them go where there are none.
fn attach(doorbell: &mut doorbell::Doorbell<dma::Cell32>, words: Option<(dma::Cell32, dma::Cell32)>) {
    match words {
        Some((slot, event)) if doorbell.has_shadow() => doorbell.resume(slot, event),
        Some((slot, event)) => doorbell.attach(slot, event),
        None => doorbell.suspend(),
    }
}
