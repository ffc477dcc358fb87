//! The error of a task: one message for the person who ran it.

use std::fmt;

/// What went wrong, in words; each layer puts its own in front.
#[derive(Debug)]
pub(crate) struct Fault(String);

/// Result of a task step.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Puts what was being done in front of an error.
pub(crate) trait Context<T> {
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Fault(format!("{what}: {error}")))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Fault(what.to_string()))
    }
}

/// Returns early with a formatted [`Fault`].
macro_rules! bail {
    ($($arg:tt)*) => { return Err($crate::fault::Fault::new(format!($($arg)*))) };
}

/// Returns early with a formatted [`Fault`] unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => {{
        let holds: bool = $cond;
        if !holds {
            $crate::fault::bail!($($arg)*);
        }
    }};
}

pub(crate) use {bail, ensure};
