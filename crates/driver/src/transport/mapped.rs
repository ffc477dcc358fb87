//! Doorbell registers that are memory of this process.

use std::{os::fd::AsFd, sync::atomic::Ordering};

use dma::{Cell32, Mapping, Protection};
use nvme::registers::offset::DOORBELLS;

/// The longest area that is mapped, in bytes: the doorbells of all queues there can be, at the smallest stride.
const LONGEST: u64 = 2 * 65536 * 4;

/// Doorbells that the device lets be mapped.
#[derive(Debug)]
pub(super) struct MappedDoorbells(Vec<Cell32>);

impl MappedDoorbells {
    /// Maps an area of BAR 0 that holds the first doorbells; `None` for another area, and where it cannot be mapped. Its first
    /// byte is at `start` of the file.
    pub(super) fn new(offset: u64, len: u64, fd: impl AsFd, start: u64) -> Option<Self> {
        if offset != DOORBELLS || len > LONGEST {
            return None;
        }
        let mapped = Mapping::of_file(fd.as_fd(), start, len, Protection::READ_WRITE);
        let window = mapped
            .inspect_err(|errno| tracing::warn!(%errno, "the device's doorbells cannot be mapped: they are messages"))
            .ok()?
            .window();
        let cells = (0..window.len()).step_by(4).map(|at| window.cell32(at));
        cells.collect::<Result<_, _>>().ok().map(Self)
    }

    /// Writes the doorbell at `offset` of BAR 0, if it is mapped. The Release publishes the queue entries that it is about.
    #[inline]
    pub(super) fn ring(&self, offset: u64, value: u32) -> bool {
        let index = offset.checked_sub(DOORBELLS).and_then(|at| usize::try_from(at / 4).ok());
        let cell = index.and_then(|index| self.0.get(index));
        if let Some(cell) = cell {
            cell.store(value, Ordering::Release);
        }
        cell.is_some()
    }
}

#[cfg(test)]
mod tests {
    use dma::SharedPages;

    use super::*;

    #[test]
    fn only_doorbells_are_mapped_and_those_outside_go_another_way() {
        let page = dma::page_size();
        let pages = SharedPages::new("doorbells", page, page).unwrap();
        let map = |offset, len, start| MappedDoorbells::new(offset, len, pages.fd(), start);
        assert!(map(0, page, page).is_none(), "other registers");
        assert!(map(DOORBELLS, 2 * LONGEST, page).is_none());
        assert!(map(DOORBELLS, page, 2 * page).is_none(), "past the end of the file");
        let mapped = map(DOORBELLS, page, page).unwrap();
        assert!(mapped.ring(DOORBELLS + 12, 7) && mapped.ring(DOORBELLS + page - 4, 8));
        assert_eq!(pages.cell32(12).unwrap().load(Ordering::Acquire), 7);
        for offset in [0, DOORBELLS - 4, DOORBELLS + page, u64::MAX] {
            assert!(!mapped.ring(offset, 9), "{offset:#x}");
        }
    }
}
