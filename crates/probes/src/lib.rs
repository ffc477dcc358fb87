//! Trace points of the doorbell protocol, as USDT probes of the provider `shadowbell`.
//!
//! A probe is one `nop` and a note in the executable that says where it is and where its arguments are; `bpftrace`, `perf`
//! and `gdb` can stop there. While nobody does, nothing else happens. `readelf -n` lists the probes of a program.
//!
//! Queues are named by their id, and by `is_cq`: 0 for the tail of a submission queue, 1 for the head of a completion queue.
//!
//! Unsafe code: the macro of the `probe` crate is inline assembly (the `nop`, and data in a section that is not loaded); it
//! neither reads nor writes memory.
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the blocks are inside the macro; see above")]

use probe::probe;

macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        $($(#[$doc])*
        #[inline(always)]
        pub fn $name($($argument: $type),*) {
            probe!(shadowbell, $name $(, $argument)*);
        })*
    };
}

probes! {
    /// Device: Doorbell Buffer Config succeeded, with the guest addresses of the two pages.
    buffer_config_accepted(shadow: u64, event: u64);
    /// Device: Doorbell Buffer Config failed; nothing changed.
    buffer_config_refused(shadow: u64, event: u64);
    /// Device: a doorbell register was written.
    ring_received(qid: u16, is_cq: bool, value: u32);
    /// Device: commands were found; the tail as it was seen.
    tail_seen(qid: u16, tail: u16, waiting: u16);
    /// Device: EventIdx was published. `value` is the position that the driver's next move must pass to ring.
    event_idx_written(value: u16);
    /// Device: it armed, and the driver had not moved: it may sleep.
    arm_won(qid: u16);
    /// Device: it armed, and the driver had moved meanwhile: it goes on.
    arm_lost(qid: u16);
    /// Device: a submission queue waits for room in its completion queue.
    queue_parked(qid: u16, cqid: u16);
    /// Device: a submission queue that waited goes on.
    queue_unparked(qid: u16, cqid: u16);
    /// Device: a command was completed.
    command_completed(qid: u16, cid: u16, status: u16);
    /// Driver: a slot was stored, and the register must be written.
    ring_written(qid: u16, is_cq: bool, position: u16);
    /// Driver: a slot was stored, and EventIdx said that nobody needs to be woken.
    ring_spared(qid: u16, is_cq: bool, position: u16);
}
