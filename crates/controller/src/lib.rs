//! A virtual NVMe controller: what a command means.
//!
//! [`NvmeFunction`] is a complete NVMe 2.0 controller behind PCI, driven through [`pci::PciFunction`] by a vfio-user server, or
//! by any VMM that links this crate. It owns the register file, the admin command set and the NVM command set, and moves
//! data between guest memory ([`dma`]) and disks ([`block`]) without a copy of its own.
//!
//! # The way of one read
//! The host stores an SQE and moves the tail (register or shadow doorbell). [`pci::PciFunction::poll`] looks at the tail,
//! reserves a place in the CQ for each command, copies the SQE out once, checks it, turns its PRPs into
//! [`dma::Segments`] and submits a [`block::Request`]. When the request comes back, the CQE is stored and one
//! interrupt a turn is raised for each CQ. With nothing left to do, [`pci::PciFunction::prepare_wait`] arms the doorbells.
//!
//! # Files
//! `controller` is the CC/CSTS machine and the turn of the loop; `engine` the queues and the commands in flight; `io` the NVM
//! command set; `admin` the admin set; `support` the one table behind dispatch and discovery.
//!
//! # Not done
//! - SGLs, metadata and protection information, fused commands, Compare, Verify, Copy.
//! - Namespace management, Format, Sanitize, firmware update, self-test, telemetry.
//! - Keep Alive (optional for PCIe at this version) and the Timestamp feature.
//! - Export and import of state; fault hooks; more than one thread for one controller.
#![forbid(unsafe_code)]

mod admin;
mod clock;
mod config;
mod controller;
mod engine;
mod function;
mod io;
mod namespace;
mod prp;
mod queue;
mod registers;
mod signals;
mod stats;
mod support;

pub use config::{Config, ConfigError, DoorbellCommand, DoorbellMode, PciId};
pub use controller::CreateError;
pub use function::NvmeFunction;
pub use stats::{DeviceCounters, QueueCounters, QueueReport, Report};
