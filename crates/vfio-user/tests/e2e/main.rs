//! The server over a real socket, with a small device behind it. Each test is a story of one or two clients.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod clients;
mod device;
mod groups;
mod hostile;
mod independent;
mod interrupts;
mod mapping;
mod memory;
mod messages;
mod rig;
