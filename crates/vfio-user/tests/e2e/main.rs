//! The server over a real socket, with a small device behind it. Each test is a story of one or two clients.

mod clients;
mod device;
mod hostile;
mod independent;
mod interrupts;
mod memory;
mod messages;
mod rig;
