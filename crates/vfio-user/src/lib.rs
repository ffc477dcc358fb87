//! vfio-user: a PCI device for a VM in a process of its own.
//!
//! A VMM (the client: QEMU 10.1 or newer, Cloud Hypervisor) connects to a UNIX socket, hands over the guest's memory and
//! eventfds for interrupts as file descriptors, and sends the guest's accesses to the device as messages. The protocol is
//! QEMU's `docs/interop/vfio-user.rst`, version 0.1.
//!
//! From the bottom up:
//! - [`codec`]: messages as bytes and as types, every length checked; no I/O.
//! - framing: a socket as a sequence of messages with descriptors, without blocking.
//! - session: what the messages of one client do to a [`pci::PciFunction`]; knows no socket.
//! - connection: one client's socket, in bounded portions.
//! - [`Server`]: a bound socket; [`Device`]: a function with its socket and its client.
//! - [`Worker`]: the event loop of a thread, for any number of devices.
//! - [`Client`]: the other side.
//!
//! # What a peer can count on
//! - A message that asks for no answer gets none, whatever comes of it.
//! - DMA_UNMAP and DEVICE_RESET are answered when no request in flight uses the memory, or none is left; until then later
//!   messages wait.
//! - An access outside of its region is a bus access to nowhere: reads give ones, writes are dropped. It is counted.
//! - A client that breaks the protocol's framing is disconnected. Whatever it does harms no other client.
//!
//! # Not done
//! - DMA_READ and DMA_WRITE: memory without a descriptor is known but out of the device's reach.
//! - mmap of regions, region I/O descriptors, twin sockets, migration, dirty pages.
//! - Plain MSI and expansion ROMs.

#![forbid(unsafe_code)]

mod client;
pub mod codec;
mod connection;
mod device;
mod framing;
mod irqs;
mod listener;
mod poller;
mod server;
mod session;
mod statistics;
mod worker;

pub use client::{Client, ClientError, ClientOptions, MappableRegion};
pub use device::Device;
pub use listener::BindError;
pub use server::{Server, ServerOptions};
pub use statistics::{Statistics, WorkerStatistics};
pub use worker::{Control, Worker, WorkerError};
