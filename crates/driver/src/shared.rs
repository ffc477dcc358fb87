//! What a device and its queue pairs have in common.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use nvme::registers::{Csts, offset};

use crate::{
    error::Error,
    memory::{Buffer, Pool},
    transport::Transport,
};

/// What is left of a queue pair that was dropped while the device may still use it.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) qid: u16,
    /// The controller's life that it was created in.
    pub(crate) epoch: u64,
    /// Its rings, its lists and the data of its commands in flight.
    #[expect(dead_code, reason = "only held")]
    pub(crate) memory: Vec<Buffer>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) pool: Arc<Pool>,
    /// CAP.DSTRD.
    pub(crate) dstrd: u8,
    /// The controller's memory page, in bytes.
    pub(crate) page: usize,
    /// Counts the lives of the controller; a queue pair belongs to one of them. It changes before the controller is disabled,
    /// so that no queue pair works on a controller that was reset.
    epoch: AtomicU64,
    orphans: Mutex<Vec<Orphan>>,
}

impl Shared {
    pub(crate) fn new(transport: Arc<dyn Transport>, pool: Arc<Pool>, dstrd: u8, page: usize) -> Self {
        Self { transport, pool, dstrd, page, epoch: AtomicU64::new(0), orphans: Mutex::default() }
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self, orphan: Orphan) {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push(orphan);
    }

    pub(crate) fn take_orphans(&self) -> Vec<Orphan> {
        std::mem::take(&mut self.orphans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// CSTS, if the device is there.
    pub(crate) fn status(&self) -> Result<Csts, Error> {
        match self.transport.read32(offset::CSTS)? {
            u32::MAX => Err(Error::DeviceGone),
            csts => Ok(Csts(csts)),
        }
    }

    /// Whether the device is there and well.
    pub(crate) fn check_health(&self) -> Result<(), Error> {
        if self.status()?.cfs() { Err(Error::FatalStatus) } else { Ok(()) }
    }
}
