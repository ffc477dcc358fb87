//! A bound socket, and how its device is served.

use std::{path::Path, time::Duration};

use crate::listener::{BindError, Listener};

/// How a device is served.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Permissions of the socket file.
    pub mode: u32,
    /// A client that leaves more than this unread is disconnected, in bytes.
    pub max_backlog: usize,
    /// How long a stop waits for requests in flight.
    pub stop_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { mode: 0o600, max_backlog: 8 << 20, stop_timeout: Duration::from_secs(30) }
    }
}

/// A listening socket for a [`crate::Worker`] to serve a device on. Its socket file goes with it.
#[derive(Debug)]
pub struct Server {
    pub(crate) listener: Listener,
    pub(crate) options: ServerOptions,
}

impl Server {
    /// Opens the socket. A socket file that nobody listens to any more is replaced.
    ///
    /// # Errors
    /// [`BindError`], for one when a server is there already.
    pub fn bind(path: impl AsRef<Path>, options: ServerOptions) -> Result<Self, BindError> {
        let listener = Listener::bind(path.as_ref(), options.mode)?;
        Ok(Self { listener, options })
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }
}
