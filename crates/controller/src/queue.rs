//! Queue pairs in guest memory.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use dma::{Access, Cell32, MemoryMap, Window};
use doorbell::{CompletionProducer, Depth, Permit, SubmissionConsumer};
use nvme::{CompletionQueueEntry, command};

use crate::signals::Owed;

/// Where a ring is. The memory behind it can be away for a while: firmware unmaps and remaps RAM while queues are live.
#[derive(Debug)]
pub(crate) struct Ring {
    base: u64,
    bytes: usize,
    access: Access,
    window: Option<Window>,
}

impl Ring {
    pub(crate) fn new(memory: &Arc<MemoryMap>, base: u64, bytes: usize, access: Access) -> Self {
        let mut ring = Self { base, bytes, access, window: None };
        ring.remap(memory);
        ring
    }

    /// Looks the memory up again and says whether it is there.
    pub(crate) fn remap(&mut self, memory: &Arc<MemoryMap>) -> bool {
        self.window = memory.window(self.base, self.bytes, self.access).ok();
        self.is_mapped()
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.window.is_some()
    }

    #[inline]
    pub(crate) fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }
}

/// A submission queue.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) cqid: u16,
    pub(crate) ring: Ring,
    pub(crate) consumer: SubmissionConsumer<Cell32>,
    /// Commands fetched and not completed (parked Asynchronous Event Requests not counted).
    pub(crate) outstanding: u32,
    /// Delete I/O SQ waits for the last of them: its command id and permit.
    pub(crate) deleting: Option<(u16, Permit)>,
    /// Entries were seen since EventIdx was armed last.
    pub(crate) busy: bool,
    /// The device slept while entries waited for room in the CQ.
    pub(crate) parked: bool,
}

impl SubmissionQueue {
    pub(crate) fn new(memory: &Arc<MemoryMap>, base: u64, depth: Depth, cqid: u16) -> Self {
        let bytes = depth.entries() as usize * command::SQE_BYTES;
        Self {
            cqid,
            ring: Ring::new(memory, base, bytes, Access::Read),
            consumer: SubmissionConsumer::new(depth),
            outstanding: 0,
            deleting: None,
            busy: true,
            parked: false,
        }
    }

    /// Asks the processor for those of the entries at these distances from the head that wait. Others are the host's: it may
    /// be about to write them, and would have to take them back.
    #[inline]
    pub(crate) fn prefetch(&self, ahead: Range<u16>) {
        let Some(window) = self.ring.window() else { return };
        for n in ahead.start..ahead.end.min(self.consumer.waiting()) {
            let index = self.consumer.depth().advance(self.consumer.head(), n);
            window.prefetch(usize::from(index) * command::SQE_BYTES);
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) ring: Ring,
    pub(crate) producer: CompletionProducer<Cell32>,
    /// MSI-X vector, if interrupts are enabled.
    pub(crate) vector: Option<u16>,
    /// SQs that complete here.
    pub(crate) users: u16,
    /// Entries were posted for which no interrupt was raised yet.
    pub(crate) owes_interrupt: bool,
    /// An interrupt that was put off.
    pub(crate) owed: Option<Owed>,
    /// Entries that cannot be stored now: the ring's memory is away, or the function is no bus master.
    deferred: VecDeque<(Permit, CompletionQueueEntry)>,
}

impl CompletionQueue {
    pub(crate) fn new(memory: &Arc<MemoryMap>, base: u64, depth: Depth, vector: Option<u16>) -> Self {
        let bytes = depth.entries() as usize * command::CQE_BYTES;
        Self {
            ring: Ring::new(memory, base, bytes, Access::Write),
            producer: CompletionProducer::new(depth),
            vector,
            users: 0,
            owes_interrupt: false,
            owed: None,
            deferred: VecDeque::new(),
        }
    }

    /// Posts an entry, or keeps it for as long as the ring's memory is away or `bus_master` is off.
    #[inline]
    pub(crate) fn post(&mut self, permit: Permit, entry: CompletionQueueEntry, bus_master: bool) {
        match &self.ring.window {
            Some(window) if bus_master && self.deferred.is_empty() => {
                let posted = self.producer.post(permit);
                let [first, second] = entry.with_phase(posted.phase).to_words();
                // The phase is in the second word: a reader that sees it sees the whole entry. The ring was checked when it
                // was mapped, and the index is inside it.
                let stored = window.store_pair(usize::from(posted.index) * command::CQE_BYTES, first, second);
                debug_assert!(stored.is_ok(), "entry inside its ring");
                self.owes_interrupt = self.vector.is_some();
            }
            _ => self.deferred.push_back((permit, entry)),
        }
    }

    /// Posts what has waited, if that is possible now.
    pub(crate) fn post_deferred(&mut self, bus_master: bool) {
        if bus_master && self.ring.is_mapped() {
            for (permit, entry) in std::mem::take(&mut self.deferred) {
                self.post(permit, entry, bus_master);
            }
        }
    }
}
