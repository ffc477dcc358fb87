//! Physical Region Pages: where a command's data is (NVMe Base 2.1 §4.3.1).

use std::sync::Arc;

use dma::{Access, MemoryMap, Segments};
use nvme::Status;

/// Entries of a list that are read at a time.
const CHUNK: usize = 64;

/// Appends the `len` bytes that PRP1 and PRP2 describe to `out`. `page` is the host's page size in bytes, a power of two.
///
/// PRP1 may have any dword offset in its page; PRP2 is a page, or a list that starts at any qword; list entries are whole
/// pages; the last entry of a list page points to the next list when more than one page is still to come.
///
/// Lists are read through `scratch`, which keeps its allocation.
///
/// # Errors
/// Invalid PRP Offset, or Data Transfer Error for memory that is not there. `out` then holds a part.
#[inline]
pub(crate) fn map(
    memory: &Arc<MemoryMap>,
    page: u64,
    (prp1, prp2): (u64, u64),
    len: usize,
    access: Access,
    out: &mut Segments,
    scratch: &mut Segments,
) -> Result<(), Status> {
    if prp1 & 3 != 0 {
        return Err(Status::INVALID_PRP_OFFSET.with_dnr());
    }
    let first = usize::try_from(page - (prp1 & (page - 1))).map_or(len, |n| n.min(len));
    out.push(memory, prp1, first, access).map_err(fault)?;
    let left = len - first;
    if left == 0 {
        return Ok(());
    }
    if left as u64 > page {
        return list(memory, page, prp2, left, access, out, scratch);
    }
    if prp2 & (page - 1) != 0 {
        return Err(Status::INVALID_PRP_OFFSET.with_dnr());
    }
    out.push(memory, prp2, left, access).map_err(fault)
}

fn list(
    memory: &Arc<MemoryMap>,
    page: u64,
    mut at: u64,
    mut left: usize,
    access: Access,
    out: &mut Segments,
    scratch: &mut Segments,
) -> Result<(), Status> {
    let mut read = |at: u64, raw: &mut [u8]| {
        scratch.clear();
        scratch.push(memory, at, raw.len(), Access::Read).and_then(|()| scratch.read(0, raw)).map_err(fault)
    };
    if at & 7 != 0 {
        return Err(Status::INVALID_PRP_OFFSET.with_dnr());
    }
    let step = usize::try_from(page).map_err(|_| Status::INTERNAL_ERROR)?;
    loop {
        // Entries from here to the end of the list's page, and those that the data needs. Only the first list may start
        // inside a page, even at its last qword; every later one is a whole page and uses up data, so the loop ends.
        let in_page = usize::try_from((page - (at & (page - 1))) / 8).map_err(|_| Status::INTERNAL_ERROR)?;
        let needed = left.div_ceil(step);
        let chained = needed > in_page;
        let data = if chained { in_page - 1 } else { needed };
        let mut done = 0;
        while done < data {
            let n = (data - done).min(CHUNK);
            let mut raw = [0; CHUNK * 8];
            let raw = &mut raw[..n * 8];
            read(at.wrapping_add(done as u64 * 8), raw)?;
            for entry in raw.as_chunks::<8>().0 {
                let entry = u64::from_le_bytes(*entry);
                if entry & (page - 1) != 0 {
                    return Err(Status::INVALID_PRP_OFFSET.with_dnr());
                }
                let bytes = left.min(step);
                out.push(memory, entry, bytes, access).map_err(fault)?;
                left -= bytes;
            }
            done += n;
        }
        if !chained {
            return Ok(());
        }
        let mut raw = [0; 8];
        read(at.wrapping_add(data as u64 * 8), &mut raw)?;
        at = u64::from_le_bytes(raw);
        if at & (page - 1) != 0 {
            return Err(Status::INVALID_PRP_OFFSET.with_dnr());
        }
    }
}

fn fault(_: dma::Fault) -> Status {
    Status::DATA_TRANSFER_ERROR.with_dnr()
}
