//! Signals as readable descriptors.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR1},
    flag,
    low_level::pipe,
};

/// A descriptor that becomes readable when one of its signals came.
#[derive(Debug)]
pub(crate) struct Signal(UnixStream);

impl Signal {
    fn new(signals: &[i32]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        for signal in signals {
            pipe::register(*signal, theirs.try_clone()?)?;
        }
        Ok(Self(ours))
    }

    /// What to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether a signal came since the last call.
    pub(crate) fn take(&self) -> bool {
        let mut came = false;
        let mut bytes = [0; 64];
        while matches!((&self.0).read(&mut bytes), Ok(n) if n > 0) {
            came = true;
        }
        came
    }
}

/// The signals that a server listens to.
#[derive(Debug)]
pub(crate) struct Signals {
    /// SIGTERM and SIGINT.
    pub(crate) stop: Signal,
    /// SIGUSR1.
    pub(crate) report: Signal,
    impatient: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to listen.
    pub(crate) fn new() -> io::Result<Self> {
        let impatient = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Before the pipes, so that the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, 128 + signal, impatient.clone())?;
        }
        Ok(Self { stop: Signal::new(&[SIGTERM, SIGINT])?, report: Signal::new(&[SIGUSR1])?, impatient })
    }

    /// From now on the next SIGTERM or SIGINT ends the process at once.
    pub(crate) fn end_at_the_next(&self) {
        self.impatient.store(true, Ordering::Relaxed);
    }
}
