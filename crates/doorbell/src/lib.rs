//! Who is ahead of whom: queue positions, and the doorbells that tell them.
//!
//! An NVMe queue is a ring with two positions. The host moves the tail of a submission queue (SQ) and the head of a
//! completion queue (CQ) and must tell the controller. It does so by a doorbell register, which in a virtual machine
//! leaves the guest, or by **shadow doorbells** (NVMe Base 2.1 §5.2.5 and Annex B.5): the position goes into memory that both
//! sides see, and an *EventIdx* beside it says past which position the controller wants to hear a real ring.
//!
//! This crate holds both halves of that protocol and nothing else. It is generic over [`Slot`], the 32-bit word that both
//! sides share, so that real guest memory and a model checker run the same code.
//!
//! | device | driver |
//! |---|---|
//! | [`SubmissionConsumer`] takes what is between head and tail | [`DriverDoorbell`] moves the tail, says when to ring |
//! | [`CompletionProducer`] hands out permits, posts entries | [`DriverDoorbell`] moves the head, says when to ring |
//!
//! # The rules
//! - The device reads a position from one source at a time ([`Doorbell`]): the register, until the slot is seen to move; from
//!   then on the slot, and a register write is a kick without a value. EventIdx is kept behind only where every move of the
//!   slot can be told from what the slot held before.
//! - A device that is about to sleep **arms**: it stores EventIdx, issues a full fence and looks at the slot again
//!   ([`Doorbell::arm`]). The driver stores the slot, issues a full fence and looks at EventIdx. One of the two sees the other.
//! - A device that is awake **suppresses**: it keeps EventIdx just behind what it has seen ([`Doorbell::suppress`]), so that
//!   neither form of the driver's test fires before the device has looked again.
//! - A **mapped** doorbell ([`Doorbell::map`]) is a register that the host stores to behind our back: the one source of the
//!   position, without EventIdx. It cannot be armed; who sleeps comes back by the clock.
//! - An interrupt can be **spared** while the host has yet to read entries that it was told of
//!   ([`CompletionProducer::spares`]). The device owes it then, and pays when the head says so, before it sleeps, and after a
//!   limited time.
//! - Every position from the host is hostile: range-checked and checked against what the ring can hold.
//!
//! `docs/proofs.md` names what proves this, and what is not covered.
//!
//! # Not done
//! - Clocks: the caller comes back to mapped doorbells, and limits the time for which an interrupt is owed.
//! - A timer for drivers that lack the full fence (Linux before 4.19): the caller looks at its queues now and then.
#![forbid(unsafe_code)]

mod device;
mod doorbell;
mod driver;
mod position;
mod slot;

pub use device::{CompletionProducer, Debt, Permit, Posted, SubmissionConsumer};
pub use doorbell::{Armed, Doorbell, Invalid};
pub use driver::{DriverDoorbell, needs_event_annex_b, needs_event_linux};
pub use position::{Depth, InvalidDepth};
pub use slot::Slot;
