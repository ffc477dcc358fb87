//! The NVMe wire: what the bytes mean that a host and a controller exchange.
//!
//! Registers, submission and completion queue entries, status codes, and the data structures of
//! Identify, Get/Set Features and Get Log Page. Nothing here knows memory, I/O or state; the crate
//! is `no_std`, allocates nothing and has no unsafe code.
//!
//! # Conventions
//!
//! - Structures are laid out as on the wire (`#[repr(C)]`, little-endian, alignment 1) and can be
//!   made from and viewed as bytes with the traits of [`zerocopy`], which is re-exported.
//!   `T::new_zeroed()` ([`zerocopy::FromZeros`]) is the usual start of one.
//! - An enumeration is *open*: a newtype over the integer with a constant for each value known
//!   here. Every value can be held, because the other side may send any.
//! - A field whose name ends in `_z` is 0's based: the value 0 means one.
//! - Bit constants (`identify::oacs`, ...) are masks in the type of their field.
//! - Commands are decoded by `From<&SubmissionQueueEntry>` and encoded by `encode`.
//! - A decoder never fails and never panics: it only separates fields. Whether a value is legal is
//!   the business of the controller.
//!
//! # Specifications
//!
//! The version claimed is NVMe 2.0 ([`registers::Version::NVME_2_0`]). References are to *NVM
//! Express Base Specification 2.1* ("NVMe Base 2.1"), *NVM Command Set Specification 1.0* ("NVM
//! Command Set 1.0") and *NVMe over PCIe Transport Specification 1.0* ("NVMe over PCIe 1.0");
//! what 2.1 adds is left reserved unless its documentation says otherwise.
//!
//! # What is not here
//!
//! Fabrics, zoned and key-value command sets, directives, reservations' data structures,
//! telemetry, and SGL descriptors.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
#[macro_use]
extern crate std;

mod bits;
mod encode;
mod open_enum;

pub mod admin;
pub mod command;
pub mod features;
pub mod identify;
pub mod logs;
pub mod nvm;
pub mod registers;
pub mod shadow;
pub mod status;

pub use zerocopy;

pub use command::{AdminOpcode, CompletionQueueEntry, NvmOpcode, SubmissionQueueEntry};
pub use status::Status;

/// The NSID that addresses all namespaces, FFFFFFFFh (NVMe Base 2.1 §3.2.1.2).
pub const NSID_BROADCAST: u32 = 0xffff_ffff;
