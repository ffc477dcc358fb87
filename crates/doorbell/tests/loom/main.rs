//! The protocol under a model checker: every interleaving, and every value that the memory model lets a load return.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p shadowbell-doorbell --test loom --release`
//!
//! Sleep is modelled without a loophole: a device that sleeps gets to run again by a register write and by nothing else, and
//! when the driver is done a sleeping device is not woken to look a last time. What was not consumed then is lost.
//!
//! The negative tests run the same models with one part of the protocol taken out, and must fail with a lost wake-up (or a stale
//! entry, where that is the matter).
#![cfg(loom)]
#![allow(missing_docs, clippy::cast_possible_truncation, clippy::unwrap_used)]

mod entries;
mod one_fence;
mod parking;
mod reset;
mod rig;
mod sparing;
mod switch_over;
mod tail;
