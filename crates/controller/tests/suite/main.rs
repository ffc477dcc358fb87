//! The controller driven by a host in the same process. One file for each topic; a test is named after what must hold.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

#[path = "../host/mod.rs"]
mod host;

mod coalescing;
mod errors;
mod events;
mod features;
mod hostile;
mod identify;
mod interrupts;
mod io;
mod lifecycle;
mod logs;
mod mapped;
mod memory;
mod mixed;
mod prp;
mod queues;
mod resets;
mod shadow;
mod sparing;
mod wakeups;
