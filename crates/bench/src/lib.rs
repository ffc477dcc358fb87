//! Measures an NVMe controller through the driver: I/O rates, latencies, and what the doorbells cost.
//!
//! A [`Bench`] drives one controller, by whatever [`Transport`](driver::Transport). [`Bench::measure`] takes a [`Workload`]
//! and a [`Point`] (depth, jobs, which doorbells), resets the controller, runs the jobs, and gives a [`Row`]. A [`Report`]
//! is rows with the circumstances, as a table ([`table::render`]), JSON ([`Report::to_json`]) or one HTML file
//! ([`html::render`]).
//!
//! # How it measures
//! - A job is a thread with a queue pair of its own. It submits as many commands as completed, tells the device about each
//!   by itself as fio does, or about several at a time ([`Workload::submit_batch`]), and looks for completions: by polling, or asleep until an interrupt.
//! - The clock (22 to 34 ns a reading) is read **once a turn**, after the commands that replace the completed ones were told
//!   to the device, so that the device does not wait for the clock. A command's latency runs from that reading of the turn
//!   that told it to that of the turn that found it complete. At depth 1 that is every command by itself, and the time
//!   between two commands is part of it.
//! - With polling, the loop neither allocates nor locks nor enters the kernel for an I/O; the driver enters the kernel when a
//!   doorbell register must be written. A job that has found nothing many times in a row gives the processor away, at
//!   once where there are more jobs than processors to run them.
//! - The rate counts completions between the end of the warm-up and the end of the time. Doorbell writes, interrupts and
//!   wake-ups are counted over the whole life of a point, by the device where it can be asked ([`Target::counters`]), else
//!   by the driver, and divided by the commands of the same time.
//! - Latencies are kept with two significant digits ([`Latency`]).
//!
//! # What ends it
//! The stop flag of [`Bench::measure`] ends a point early; what was measured until then is in its row. A device that is gone,
//! says what cannot be, or does not answer, is an error: every wait of the driver ends, and a job that makes no progress
//! has the device looked at.
//!
//! # Not done
//! - One namespace; no flushes, deallocates or writes of zeros in the mix; no rate limits.
//! - Latencies are those of a closed loop: a device that stalls also stalls who would notice.

#![forbid(unsafe_code)]

mod addresses;
mod bench;
pub mod chart;
mod error;
pub mod html;
mod job;
mod latency;
pub mod limit;
mod machine;
mod precondition;
mod report;
pub mod table;
mod verify;
mod verify_work;
mod workload;

pub use bench::{Bench, DeviceCounters, Progress, Target};
pub use error::BenchError;
pub use latency::{Latency, LatencyUs};
pub use machine::Machine;
pub use report::{CountedBy, DriverSide, Report, Row};
pub use verify::{Content, Fault, FaultKind, Verified, check, fill};
pub use workload::{CompletionMode, DoorbellKind, Point, Rw, Workload};
