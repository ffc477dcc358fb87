//! The NVM command set: what an I/O command means for a block device (NVM Command Set 1.0 §3).

use std::ops::Range;

use block::Operation;
use dma::Access;
use doorbell::Permit;
use nvme::{
    NSID_BROADCAST, NvmOpcode, Status, SubmissionQueueEntry,
    nvm::{DatasetManagement, DsmRange, ReadWrite, WriteZeroes},
};
use zerocopy::{FromZeros, IntoBytes};

use crate::{
    engine::{Engine, Failure, Fetched},
    support::{self, IoHandler},
};

/// Largest data transfer of one command: 2^MDTS pages of 4 KiB, 1 MiB.
pub(crate) const MDTS: u8 = 8;
pub(crate) const MAX_TRANSFER: usize = 4096 << MDTS;

/// A status that goes to the host at once, with the LBA that it is about.
pub(crate) struct Refused {
    status: Status,
    lba: u64,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { status, lba: 0 }
    }
}

/// What a handler made of a command.
pub(crate) enum Started {
    /// Nothing is left to do.
    Done,
    /// The whole command is with the engine.
    Submitted,
}

impl Engine {
    /// Carries out one I/O command.
    #[inline]
    pub(crate) fn execute(&mut self, sqid: u16, fetched: Fetched) {
        let Fetched { sqe, permit } = fetched;
        let mut permit = Some(permit);
        let result = match support::io(NvmOpcode(sqe.opcode)) {
            None => Err(Status::INVALID_OPCODE.with_dnr().into()),
            // Fused commands and SGLs are not on offer.
            Some(_) if sqe.flags != 0 => Err(Status::INVALID_FIELD.with_dnr().into()),
            Some(IoHandler(handler)) => handler(self, sqid, &sqe, &mut permit),
        };
        let (status, lba) = match result {
            Ok(Started::Submitted) => return,
            Ok(Started::Done) => (Status::SUCCESS, 0),
            Err(Refused { status, lba }) => (status, lba),
        };
        let cid = sqe.cid.get();
        if !status.is_success() {
            self.failures.push(Failure { sqid, cid, status, nsid: sqe.nsid.get(), lba });
        }
        if let Some(permit) = permit {
            self.complete(sqid, cid, permit, status, 0);
        }
    }

    /// The namespace that a command names.
    fn namespace_index(&self, nsid: u32) -> Result<usize, Status> {
        let index = usize::try_from(nsid).ok().and_then(|n| n.checked_sub(1)).filter(|i| *i < self.namespaces.len());
        index.ok_or(Status::INVALID_NAMESPACE.with_dnr())
    }

    /// Byte offset and length of a range of blocks.
    fn range(&self, index: usize, slba: u64, blocks: u64) -> Result<(u64, u64), Refused> {
        let namespace = &self.namespaces[index];
        match slba.checked_add(blocks) {
            Some(end) if end <= namespace.blocks => Ok((slba << namespace.lba_shift, blocks << namespace.lba_shift)),
            _ => Err(Refused { status: Status::LBA_OUT_OF_RANGE.with_dnr(), lba: slba }),
        }
    }

    fn check_writable(&self, index: usize) -> Result<(), Refused> {
        if self.namespaces[index].capabilities.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr().into());
        }
        Ok(())
    }

    /// Whether a write must be on stable storage when it completes.
    fn durable(&self, fua: bool) -> bool {
        fua || !self.write_cache
    }
}

/// What every handler gets: the engine, the queue, the command, and its permit, which it takes when the command is open.
pub(crate) type Permits = Option<Permit>;

pub(crate) fn read(
    e: &mut Engine,
    q: u16,
    sqe: &SubmissionQueueEntry,
    permit: &mut Permits,
) -> Result<Started, Refused> {
    transfer(e, q, sqe, permit, Access::Write)
}

pub(crate) fn write(
    e: &mut Engine,
    q: u16,
    sqe: &SubmissionQueueEntry,
    permit: &mut Permits,
) -> Result<Started, Refused> {
    transfer(e, q, sqe, permit, Access::Read)
}

/// Read and Write; `access` is what happens to guest memory.
#[inline]
fn transfer(
    e: &mut Engine,
    sqid: u16,
    sqe: &SubmissionQueueEntry,
    permit: &mut Permits,
    access: Access,
) -> Result<Started, Refused> {
    let index = e.namespace_index(sqe.nsid.get())?;
    let rw = ReadWrite::from(sqe);
    let (offset, len) = e.range(index, rw.slba, rw.blocks().into())?;
    let bytes = usize::try_from(len).ok().filter(|n| *n <= MAX_TRANSFER);
    let bytes = bytes.ok_or(Status::INVALID_FIELD.with_dnr())?;
    // Protection information needs a format with metadata; there is none.
    if rw.prinfo.0 != 0 {
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    let operation = match access {
        Access::Write => Operation::Read,
        Access::Read => {
            e.check_writable(index)?;
            Operation::Write { fua: e.durable(rw.fua) }
        }
    };
    e.map(sqe, bytes, access).map_err(|status| Refused { status, lba: rw.slba })?;
    let Some(permit) = permit.take() else { return Ok(Started::Done) };
    e.start(index, (sqid, sqe, permit), rw.slba, operation, (offset, len));
    Ok(Started::Submitted)
}

pub(crate) fn flush(
    e: &mut Engine,
    sqid: u16,
    sqe: &SubmissionQueueEntry,
    permit: &mut Permits,
) -> Result<Started, Refused> {
    let nsid = sqe.nsid.get();
    let all = if nsid == NSID_BROADCAST {
        0..e.namespaces.len()
    } else {
        let index = e.namespace_index(nsid)?;
        index..index + 1
    };
    let Some(permit) = permit.take() else { return Ok(Started::Done) };
    e.flush(sqid, sqe, permit, all);
    Ok(Started::Submitted)
}

impl Engine {
    /// Completes a command once the caches of these namespaces are on stable storage.
    pub(crate) fn flush(&mut self, sqid: u16, sqe: &SubmissionQueueEntry, permit: Permit, all: Range<usize>) {
        let is_cached = |e: &Self, i: usize| e.namespaces[i].capabilities.volatile_cache;
        let cached = all.clone().filter(|i| is_cached(self, *i)).count();
        if cached == 0 {
            // Where nothing is cached there is nothing to do, and that succeeds.
            self.complete(sqid, sqe.cid.get(), permit, Status::SUCCESS, 0);
            return;
        }
        let parts = u32::try_from(cached).unwrap_or(u32::MAX);
        let tag = self.open(sqid, sqe, permit, 0, parts);
        let mut part = 0;
        for index in all {
            if is_cached(self, index) {
                self.submit(index, (tag, part), Operation::Flush, (0, 0));
                part += 1;
            }
        }
    }
}

pub(crate) fn write_zeroes(
    e: &mut Engine,
    sqid: u16,
    sqe: &SubmissionQueueEntry,
    permit: &mut Permits,
) -> Result<Started, Refused> {
    let index = e.namespace_index(sqe.nsid.get())?;
    let zeroes = WriteZeroes::from(sqe);
    let range = e.range(index, zeroes.slba, zeroes.blocks().into())?;
    if zeroes.prinfo.0 != 0 {
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    e.check_writable(index)?;
    let operation = Operation::WriteZeroes { may_unmap: zeroes.deac, fua: e.durable(zeroes.fua) };
    let Some(permit) = permit.take() else { return Ok(Started::Done) };
    e.start(index, (sqid, sqe, permit), zeroes.slba, operation, range);
    Ok(Started::Submitted)
}

pub(crate) fn dataset_management(
    e: &mut Engine,
    sqid: u16,
    sqe: &SubmissionQueueEntry,
    permit: &mut Permits,
) -> Result<Started, Refused> {
    let index = e.namespace_index(sqe.nsid.get())?;
    let command = DatasetManagement::from(sqe);
    // Integral read and write are advice that no backend here has a use for.
    if !command.ad {
        return Ok(Started::Done);
    }
    e.check_writable(index)?;
    let mut ranges = [DsmRange::new_zeroed(); DatasetManagement::MAX_RANGES];
    let ranges = &mut ranges[..command.ranges()];
    let bytes = ranges.as_mut_bytes();
    e.map(sqe, bytes.len(), Access::Read)?;
    e.request.segments.read(0, bytes).map_err(|_| Status::DATA_TRANSFER_ERROR.with_dnr())?;
    // All ranges are checked before the first is given up.
    let mut parts = 0;
    for range in ranges.iter() {
        e.range(index, range.slba.get(), range.length.get().into())?;
        parts += u32::from(range.length.get() > 0);
    }
    if parts == 0 || !e.namespaces[index].capabilities.discard {
        return Ok(Started::Done);
    }
    let Some(permit) = permit.take() else { return Ok(Started::Done) };
    let tag = e.open(sqid, sqe, permit, ranges[0].slba.get(), parts);
    let mut part = 0;
    for range in ranges.iter().filter(|r| r.length.get() > 0) {
        if let Ok(bytes) = e.range(index, range.slba.get(), range.length.get().into()) {
            e.submit(index, (tag, part), Operation::Discard, bytes);
            part += 1;
        }
    }
    Ok(Started::Submitted)
}
