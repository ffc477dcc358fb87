//! SIGBUS policy: a file that was cut short behind our back costs its owner, not the process.
//!
//! Every [`crate::Mapping`] registers its address range in a fixed table that the signal handler can read without a lock. A
//! fault inside a registered range is answered with a private zero page in the place of the lost one and a mark on the
//! range; the interrupted instruction then goes on. A fault anywhere else gets the default action, as without us.

use std::sync::{
    Once,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// Ranges that can be watched at one time; mappings past that are simply not protected.
const SLOTS: usize = 4096;

struct Slot {
    /// 0 while the slot is free. Written last when a slot is filled and first when it is released.
    start: AtomicUsize,
    len: AtomicUsize,
    taken: AtomicBool,
    torn: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        taken: AtomicBool::new(false),
        torn: AtomicBool::new(false),
    }
}; SLOTS];
static EVENTS: AtomicU64 = AtomicU64::new(0);
/// Slots at and above this index were never used, so the handler need not look at them.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// How many faults were answered since the start of the process. One relaxed load: cheap enough to look at in a loop.
pub fn events() -> u64 {
    EVENTS.load(Ordering::Relaxed)
}

/// A place in the table for one mapping.
#[derive(Debug)]
pub(crate) struct Watch(Option<usize>);

impl Watch {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        for (i, slot) in TABLE.iter().enumerate() {
            if !slot.taken.swap(true, Ordering::Acquire) {
                slot.torn.store(false, Ordering::Relaxed);
                slot.len.store(len, Ordering::Relaxed);
                slot.start.store(start, Ordering::Release);
                HIGH.fetch_max(i + 1, Ordering::AcqRel);
                return Self(Some(i));
            }
        }
        Self(None)
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.0.is_some_and(|i| TABLE[i].torn.load(Ordering::Relaxed))
    }

    /// Must come before the munmap: afterwards the address range may belong to someone else.
    pub(crate) fn release(&self) {
        if let Some(i) = self.0 {
            TABLE[i].start.store(0, Ordering::Release);
            TABLE[i].taken.store(false, Ordering::Release);
        }
    }
}

static ONCE: Once = Once::new();

/// Whether [`install`] was called.
pub fn is_installed() -> bool {
    ONCE.is_completed()
}

/// Installs the handler, once a process. Programs call it at start; libraries leave it to them.
pub fn install() {
    ONCE.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid value of this C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigbus as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is fully initialised and the handler keeps to async-signal-safe operations.
        unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
    });
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &TABLE[..HIGH.load(Ordering::Acquire).min(SLOTS)] {
        let start = slot.start.load(Ordering::Acquire);
        if start == 0 || address < start || address - start >= slot.len.load(Ordering::Relaxed) {
            continue;
        }
        // A huge page is lost as a whole, but it also faults again at its next part: page by page is enough. With huge
        // pages the fixed mapping is refused and the default action below follows.
        let page = address & !(4096 - 1);
        // SAFETY: the page lies in a mapping that a live `Mapping` owns (it is registered), its content is lost already, and
        // mmap is one system call without locks or allocation of ours.
        let got = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if got != libc::MAP_FAILED {
            slot.torn.store(true, Ordering::Relaxed);
            EVENTS.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    // Not ours: restore the default action; returning runs the faulting instruction again, which then ends the process.
    // SAFETY: SIG_DFL is a valid disposition, and signal(2) is async-signal-safe.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use crate::{Mapping, Protection};

    #[test]
    fn a_file_cut_short_reads_as_zeros_and_marks_only_its_own_mapping() {
        super::install();
        let (whole, fd) = Mapping::new_shared("torn", 16384).unwrap();
        let (other, _keep) = Mapping::new_shared("other", 4096).unwrap();
        whole.window().write(8192, &[7; 16]).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let before = super::events();
        let mut bytes = [1; 16];
        whole.window().read(8192, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
        whole.window().write(12288, &[1]).unwrap();
        assert!(whole.is_torn());
        assert!(!other.is_torn());
        assert!(super::events() >= before + 2);
    }

    #[test]
    fn a_slot_is_used_again_without_its_old_mark() {
        super::install();
        let (torn, fd) = Mapping::new_shared("a", 4096).unwrap();
        rustix::fs::ftruncate(&fd, 0).unwrap();
        torn.window().write(0, &[1]).unwrap();
        assert!(torn.is_torn());
        drop(torn);
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let fresh = Mapping::of_file(fd.as_fd(), 0, 4096, Protection::READ_WRITE).unwrap();
        assert!(!fresh.is_torn());
    }

    #[test]
    fn a_list_says_that_its_guest_lost_memory() {
        super::install();
        let (ram, fd) = Mapping::new_shared("ram", 8192).unwrap();
        let mut space = crate::AddressSpace::new();
        space.map(0, 8192, crate::Backing::Mapped(ram), Protection::READ_WRITE).unwrap();
        let mut list = crate::Segments::default();
        assert!(!list.is_torn());
        list.push(&space.snapshot(), 4096, 16, crate::Access::Read).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let mut bytes = [1; 16];
        list.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
        assert!(list.is_torn());
    }
}
