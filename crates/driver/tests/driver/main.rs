//! The driver against controllers: the real one, in this process and over a socket, and one that lies.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "helpers of tests")]

mod churn;
mod fake;
mod hostile;
mod io;
mod mapped;
mod peers;
mod resets;
mod rig;
mod vendor;
