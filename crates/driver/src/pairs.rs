//! I/O queue pairs: created, deleted, recovered; and their shadow doorbells.

use doorbell::Depth;
use nvme::{
    AdminOpcode, Status,
    admin::{CreateCq, CreateSq, DeleteQueue, DoorbellBufferConfig, QueuePriority},
    identify::oacs,
};

use crate::{
    device::{Device, Doorbells, ShadowState},
    error::Error,
    options::QueueOptions,
    queue::QueuePair,
    ring::{Ring, ShadowPages},
};

/// The PCI vendor whose controllers have Doorbell Buffer Config as a command of their own.
const GOOGLE: u16 = 0x1ae0;

impl Device {
    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`Error::NoQueue`] when all are in use, [`Error::Argument`] for a size that is not possible, and the controller's.
    pub fn create_queue_pair(&mut self, options: QueueOptions) -> Result<QueuePair, Error> {
        if self.admin.is_none() {
            return Err(Error::NotEnabled);
        }
        self.reap()?;
        let qid = (1..=self.io_queue_pairs)
            .find(|qid| self.taken.get(usize::from(*qid)) == Some(&false))
            .ok_or(Error::NoQueue(self.io_queue_pairs))?;
        let depth = Depth::new(options.entries)
            .ok()
            .filter(|_| options.entries <= self.limits.entries)
            .ok_or(Error::Argument("a queue has 2 to CAP.MQES + 1 entries"))?;
        let mut ring = Ring::new(&self.shared.pool, qid, depth, self.shared.dstrd)?;
        ring.set_head_batch(options.head_batch);
        let vector = if options.interrupt { self.connect(qid)? } else { None };
        let limit = self.options.command_timeout;
        let mut pair = QueuePair::new(self.shared.clone(), ring, vector, self.max_transfer, limit)?;
        self.taken[usize::from(qid)] = true;
        match self.introduce(&mut pair) {
            Ok(()) => Ok(pair),
            Err(error) => {
                if self.admin.is_some() {
                    // The controller has said no, and has no queue of this id.
                    pair.release();
                    self.free_qid(qid);
                }
                Err(error)
            }
        }
    }

    /// Deletes a queue pair. Commands in flight are given up; whoever wants their results polls for them before.
    ///
    /// # Errors
    /// [`Error`]. The pair is gone in any case; its memory is used again only after the controller has let go of it.
    pub fn delete_queue_pair(&mut self, pair: QueuePair) -> Result<(), Error> {
        if !pair.belongs_to(&self.shared) {
            return Err(Error::Argument("the queue pair belongs to another device"));
        }
        if pair.epoch() == self.shared.epoch() {
            self.delete(pair.qid())?;
        }
        // Else the queues went with the reset, which was complete before anybody could call this.
        self.free_qid(pair.qid());
        if self.admin.is_some() {
            pair.release();
        }
        Ok(())
    }

    /// Makes a queue pair from before a reset usable again, empty, and returns the tags of the commands that were in flight, in
    /// the order of submission. Whether the controller has carried out any of them nobody knows.
    ///
    /// # Errors
    /// [`Error`]; the pair can be handed in again after another reset.
    pub fn recover(&mut self, pair: &mut QueuePair) -> Result<Vec<u64>, Error> {
        if !pair.belongs_to(&self.shared) {
            return Err(Error::Argument("the queue pair belongs to another device"));
        }
        if self.admin.is_none() {
            return Err(Error::NotEnabled);
        }
        if pair.epoch() == self.shared.epoch() {
            return Err(Error::Argument("the queue pair is not from before a reset"));
        }
        if pair.qid() > self.io_queue_pairs {
            return Err(Error::NoQueue(self.io_queue_pairs));
        }
        if let (_, Some(vector)) = pair.parts() {
            let number = vector.number();
            self.connect(number)?;
        }
        let lost = pair.restart();
        match self.introduce(pair) {
            Ok(()) => Ok(lost),
            Err(error) => {
                pair.set_broken(error.clone());
                Err(error)
            }
        }
    }

    /// Tells the controller about a new, empty queue pair.
    fn introduce(&mut self, pair: &mut QueuePair) -> Result<(), Error> {
        let dstrd = self.shared.dstrd;
        let (ring, vector) = pair.parts();
        if let (ShadowState::On(_), Some(pages)) = (self.shadow, &self.pages) {
            // Before the queue exists: its slots are zero by then.
            ring.attach(pages, dstrd);
        }
        let (qid, size_z) = (ring.qid(), ring.depth().capacity());
        let cq = CreateCq {
            qid,
            size_z,
            pc: true,
            ien: vector.is_some(),
            iv: vector.map_or(0, crate::interrupt::Vector::number),
            prp1: ring.cq_memory().iova(),
        };
        let sq = CreateSq {
            qid,
            size_z,
            pc: true,
            qprio: QueuePriority::URGENT,
            cqid: qid,
            nvmsetid: 0,
            prp1: ring.sq_memory().iova(),
        };
        self.admin(cq.encode(), None)?;
        if let Err(error) = self.admin(sq.encode(), None) {
            if self.admin.is_some() {
                self.admin(DeleteQueue { qid }.encode(AdminOpcode::DELETE_CQ), None)?;
            }
            return Err(error);
        }
        if self.shadow == ShadowState::VendorPending {
            self.send_doorbells(Doorbells::VendorShadow)?;
            if let (ShadowState::On(_), Some(pages)) = (self.shadow, &self.pages) {
                // No I/O has gone by this pair, and there is no other.
                ring.attach(pages, dstrd);
            }
        }
        Ok(())
    }

    fn delete(&mut self, qid: u16) -> Result<(), Error> {
        for opcode in [AdminOpcode::DELETE_SQ, AdminOpcode::DELETE_CQ] {
            match self.admin(DeleteQueue { qid }.encode(opcode), None) {
                // Its creation had failed half way.
                Err(Error::Command { status, .. }) if status.code() == Status::INVALID_QUEUE_ID => {}
                other => {
                    other?;
                }
            }
        }
        Ok(())
    }

    /// Deletes the queue pairs that were dropped. One that the controller does not delete stays as it is.
    fn reap(&mut self) -> Result<(), Error> {
        let mut orphans = self.shared.take_orphans().into_iter();
        while let Some(orphan) = orphans.next() {
            // Those from before a reset have no queues any more.
            let exists = orphan.epoch == self.shared.epoch();
            match if exists { self.delete(orphan.qid) } else { Ok(()) } {
                Ok(()) => self.free_qid(orphan.qid),
                Err(error @ Error::Command { .. }) => {
                    tracing::warn!(%error, qid = orphan.qid, "a queue pair was not deleted");
                    self.shared.leave(orphan);
                }
                Err(error) => {
                    self.shared.leave(orphan);
                    orphans.for_each(|orphan| self.shared.leave(orphan));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    // ---- shadow doorbells -------------------------------------------------------------------------------------------

    /// Sets up shadow doorbells before the first I/O queue exists, or notes that they come later.
    pub(crate) fn prepare_doorbells(&mut self) -> Result<(), Error> {
        self.shadow = ShadowState::Off;
        if !self.wants_shadow() || nvme::shadow::max_qid(self.shared.page, self.shared.dstrd) == 0 {
            return Ok(());
        }
        if self.identify.oacs.get() & oacs::DOORBELL_BUFFER_CONFIG != 0 {
            return self.send_doorbells(Doorbells::Shadow);
        }
        if self.shared.transport.pci_id().vendor == GOOGLE {
            self.shadow = ShadowState::VendorPending;
        }
        Ok(())
    }

    /// Sends Doorbell Buffer Config, in one form or the other. If it fails, registers are used for good until the next reset.
    fn send_doorbells(&mut self, form: Doorbells) -> Result<(), Error> {
        self.shadow = ShadowState::Off;
        let page = self.shared.page;
        let pages = match &self.pages {
            Some(pages) => pages.clone(),
            None => ShadowPages { shadow: self.allocate(page)?, event: self.allocate(page)? },
        };
        pages.shadow.zero();
        pages.event.zero();
        let command = DoorbellBufferConfig { shadow: pages.shadow.iova(), event_idx: pages.event.iova() };
        self.pages = Some(pages);
        let opcode = match form {
            Doorbells::Register | Doorbells::Mapped => return Ok(()),
            Doorbells::Shadow => AdminOpcode::DOORBELL_BUFFER_CONFIG,
            Doorbells::VendorShadow => AdminOpcode::GOOGLE_DOORBELL_BUFFER_CONFIG,
        };
        let (status, _) = self.admin_raw(command.encode(opcode), None)?;
        if status.is_success() {
            self.shadow = ShadowState::On(form);
        } else {
            tracing::warn!(%status, "the controller refuses shadow doorbells: registers are used");
        }
        Ok(())
    }
}
