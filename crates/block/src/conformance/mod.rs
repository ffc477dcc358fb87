//! What every backend must pass, as functions over a way to make devices.
//!
//! For tests, here and in crates with backends of their own: [`conformance_tests!`](crate::conformance_tests) makes one
//! `#[test]` of each function. They panic on the first thing that is wrong, and wait for conditions, never for time.

mod bench;
mod data;
mod model;
mod queues;

use std::sync::Arc;

use crate::BlockDevice;

pub use bench::Guest;
pub use data::*;
pub use model::*;
pub use queues::*;

/// Bytes that a device must have for this suite.
pub const MIN_SIZE: u64 = 8 << 20;

/// How to make devices of one kind.
pub struct Backend {
    /// A new device of at least [`MIN_SIZE`] bytes that nobody else uses, with any content.
    pub make: Box<dyn Fn() -> Arc<dyn BlockDevice>>,
    /// A read-only one, if the backend has that.
    pub make_read_only: Option<Box<dyn Fn() -> Arc<dyn BlockDevice>>>,
    /// What was written can be read back. Only a null device does not.
    pub keeps_data: bool,
}

/// One `#[test]` for each function of [`conformance`](crate::conformance), in a module of the given name.
///
/// `$backend` is an expression of type `Option<Backend>`; `None` skips with a message, for what the machine does not have.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $backend:expr) => {
        $crate::conformance_tests!($name, $backend,
            patterns_read_back_through_odd_segments, the_last_block_is_there_and_nothing_after_it,
            impossible_ranges_are_refused, nothing_is_a_request_too, read_only_devices_refuse_changes,
            flush_and_fua_complete, zeroed_ranges_read_as_zeros_and_spare_their_neighbours,
            discard_spares_its_neighbours, random_requests_agree_with_a_model, a_full_queue_gives_the_request_back,
            in_flight_counts_what_is_owed, cancel_hands_everything_back, dropping_a_queue_frees_its_memory,
            queues_see_each_others_writes, threads_share_a_device, a_queue_moves_between_threads,
            wait_fd_wakes_a_sleeper, poll_starts_what_was_not_kicked);
    };
    ($name:ident, $backend:expr, $($test:ident),*) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $test() {
                    match $backend {
                        Some(backend) => $crate::conformance::$test(&backend),
                        None => eprintln!("skipped: {} is not possible on this machine", stringify!($name)),
                    }
                }
            )*
        }
    };
}
