//! Physical Region Pages (NVMe Base 2.1 §4.3.1).

use crate::memory::Buffer;

/// PRP1 and PRP2 of `len` bytes at `iova`, which follow each other for the device. A list, if one is needed, is written to the
/// page of `list` that starts at byte `at`. `None` when the list does not fit into it.
#[inline]
pub(crate) fn pointers(page: usize, iova: u64, len: usize, list: Option<(&Buffer, usize)>) -> Option<(u64, u64)> {
    let into_page = usize::try_from(iova % page as u64).ok()?;
    let first = page - into_page;
    if len <= first {
        return Some((iova, 0));
    }
    let (next, rest) = (iova + first as u64, len - first);
    if rest <= page {
        return Some((iova, next));
    }
    let (list, at) = list?;
    let entries = rest.div_ceil(page);
    if entries > page / 8 {
        return None;
    }
    let mut address = next;
    for offset in (at..at + entries * 8).step_by(8) {
        list.window().store_words(offset, [address]).ok()?;
        address += page as u64;
    }
    Some((iova, list.iova() + at as u64))
}

/// The longest transfer, from any offset, whose list fits into one page.
pub(crate) fn longest(page: usize) -> usize {
    page / 8 * page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_two_pages_need_no_list() {
        assert_eq!(pointers(4096, 0x1000, 4096, None), Some((0x1000, 0)));
        assert_eq!(pointers(4096, 0x1ffc, 4, None), Some((0x1ffc, 0)));
        assert_eq!(pointers(4096, 0x1ffc, 8, None), Some((0x1ffc, 0x2000)));
        assert_eq!(pointers(4096, 0x1004, 8188, None), Some((0x1004, 0x2000)));
        assert_eq!(pointers(4096, 0x1004, 8192, None), None);
        assert_eq!(pointers(65536, 0x1_0004, 131_068, None), Some((0x1_0004, 0x2_0000)));
    }
}
