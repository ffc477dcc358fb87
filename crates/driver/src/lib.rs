//! A user-space NVMe driver: the other half of the shadow doorbell protocol.
//!
//! A [`Device`] is a controller behind a [`Transport`]: in this process ([`InProcess`], [`Cooperative`]), or behind a vfio-user
//! server ([`VfioUser`]). It resets and enables the controller, identifies it and its namespaces, sets up shadow doorbells,
//! and hands out [`QueuePair`]s. A queue pair is an owned value for one thread: it submits commands, rings once for as many as
//! one likes, and polls, or waits for an interrupt.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use block::RamDevice;
//! use controller::{Config, NvmeFunction};
//! use shadowbell_driver::{Device, InProcess, Options, QueueOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Arc::new(RamDevice::new(1 << 20, 4096)?);
//! let function = NvmeFunction::new(Config::new("example", vec![disk]))?;
//! let mut device = Device::open(Arc::new(InProcess::spawn(function)?), Options::default())?;
//! let disk = device.namespaces()[0];
//! let buffer = device.allocate(disk.block_bytes())?;
//! let mut queue = device.create_queue_pair(QueueOptions { interrupt: true, ..QueueOptions::default() })?;
//!
//! buffer.write(0, b"hello")?;
//! queue.write(&disk, 7, &buffer, 1)?;
//! queue.wait(Duration::from_secs(5), &mut |completion| assert!(completion.ok().is_ok()))?;
//! buffer.zero();
//! queue.read(&disk, 7, &buffer, 2)?;
//! queue.wait(Duration::from_secs(5), &mut |completion| assert_eq!(completion.tag, 2))?;
//! let mut back = [0; 5];
//! buffer.read(0, &mut back)?;
//! assert_eq!(&back, b"hello");
//! assert!(queue.counters().interrupts > 0);
//! device.delete_queue_pair(queue)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//! - The device is hostile. Registers that read as ones, values that cannot be, completions that were never asked for, come
//!   twice, or name what the device has not fetched, are errors; every wait ends. The device reaches the driver's own memory
//!   and nothing else, and cannot take that memory away.
//! - While a command is in flight, its data belongs to it ([`Buffer`]). What was in flight when the controller died is given
//!   back only once the controller is reset.
//! - With shadow doorbells and polling, I/O neither allocates nor locks nor enters the kernel, as long as the device does not
//!   ask to be rung.
//!
//! # Files
//! `device` is the life of a controller, `enable` the registers of it, `admin` its commands, `pairs` the I/O queues and their
//! shadow doorbells; `queue` is a queue pair, on top of `ring` and `slots`; `memory` is what the device may reach.
//!
//! # Not done
//! - SGLs, metadata, fused commands, weighted priorities, several submission queues on one completion queue.
//! - Kernel VFIO; plain MSI and the legacy interrupt: without MSI-X a queue pair polls.
//! - Doorbell Buffer Config on queues that are in use already.

#![forbid(unsafe_code)]

mod admin;
mod device;
mod enable;
mod error;
mod interrupt;
mod memory;
mod namespace;
mod options;
mod pairs;
mod prp;
mod queue;
mod ring;
mod shared;
mod slots;
mod transport;

pub use device::{Device, Doorbells};
pub use error::{CommandId, Error, MemoryError, ProtocolError, SubmitError, TransportError, Violation};
pub use memory::{Buffer, Data, DmaRange};
pub use namespace::Namespace;
pub use nvme;
pub use options::{DoorbellPolicy, Options, QueueOptions};
pub use queue::{Completion, QueuePair};
pub use ring::Counters;
pub use transport::{Cooperative, InProcess, PciId, Transport, VfioUser};
