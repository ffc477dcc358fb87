//! Why nothing could be measured.

use driver::{Error, SubmitError, TransportError};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The driver could not go on.
    #[error("{what}: {error}")]
    Driver {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        #[source]
        error: Error,
    },
    /// The workload does not fit the device.
    #[error("{0}")]
    Workload(String),
    /// The device that is measured is gone, or says nothing of itself.
    #[error("{0}")]
    Target(String),
    /// The system gives no thread.
    #[error("cannot start a job: {0}")]
    Thread(#[source] std::io::Error),
    /// A job came to an end that it should not have.
    #[error("job {0} ended without a result; this is a fault of the program")]
    Lost(u16),
}

impl BenchError {
    /// The driver's error, with what was tried.
    pub(crate) fn driver(what: &'static str) -> impl Fn(Error) -> Self {
        move |error| Self::Driver { what, error }
    }

    pub(crate) fn submit(error: SubmitError) -> Self {
        match error {
            SubmitError::Queue(error) => Self::Driver { what: "submitting a command", error },
            other => Self::Workload(format!("a command cannot be submitted: {other}")),
        }
    }

    /// Whether it says no more than that the device is gone; why it is gone, others may know better.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Driver { error: Error::DeviceGone | Error::Transport(TransportError::Gone), .. } | Self::Target(_)
        )
    }
}
