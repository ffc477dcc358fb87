//! Interrupts: eventfds that may come late.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

/// An eventfd that carries one interrupt to the VMM. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<OwnedFd>);

impl Interrupt {
    /// Takes the eventfd and makes it non-blocking.
    ///
    /// # Errors
    /// `EINVAL` when the descriptor is no eventfd; else what fcntl says.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
        if link.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(Errno::INVAL);
        }
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Raises the interrupt. Never blocks: the flag that makes the eventfd non-blocking is shared with the peer, who may
    /// clear it and fill the counter, so room is asked for first. A full counter means that a signal is under way already.
    pub fn signal(&self) {
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        if matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(n) if n > 0) {
            // Nothing to do about an error: the peer owns the other end.
            let _ = rustix::io::write(self.0.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

#[derive(Debug, Default)]
struct Vector {
    interrupt: Option<Interrupt>,
    pending: bool,
}

/// The interrupt wires of a function: MSI-X vectors and the legacy line. A vector that nobody listens to remembers that it
/// was raised, and is delivered when it is connected.
#[derive(Debug)]
pub struct Interrupts {
    vectors: Vec<Vector>,
    intx: Option<Interrupt>,
}

impl Interrupts {
    /// `vectors` MSI-X vectors, none of them connected.
    pub fn new(vectors: u16) -> Self {
        Self { vectors: (0..vectors).map(|_| Vector::default()).collect(), intx: None }
    }

    /// Number of MSI-X vectors.
    pub fn vectors(&self) -> u16 {
        u16::try_from(self.vectors.len()).unwrap_or(u16::MAX)
    }

    /// See [`crate::PciFunction::connect_msix`].
    pub fn connect_msix(&mut self, vector: u16, interrupt: Option<Interrupt>) {
        if let Some(slot) = self.vectors.get_mut(usize::from(vector)) {
            if let Some(interrupt) = &interrupt
                && std::mem::take(&mut slot.pending)
            {
                interrupt.signal();
            }
            slot.interrupt = interrupt;
        }
    }

    /// See [`crate::PciFunction::connect_intx`].
    pub fn connect_intx(&mut self, interrupt: Option<Interrupt>) {
        self.intx = interrupt;
    }

    /// Raises an MSI-X vector; out of range is ignored.
    #[inline]
    pub fn signal_msix(&mut self, vector: u16) {
        if let Some(slot) = self.vectors.get_mut(usize::from(vector)) {
            match &slot.interrupt {
                Some(interrupt) => interrupt.signal(),
                None => slot.pending = true,
            }
        }
    }

    /// Raises the legacy line; the VMM masks it until [`crate::PciFunction::intx_unmasked`].
    pub fn signal_intx(&self) {
        if let Some(interrupt) = &self.intx {
            interrupt.signal();
        }
    }

    /// Whether a vector waits for a listener (its PBA bit).
    pub fn is_pending(&self, vector: u16) -> bool {
        self.vectors.get(usize::from(vector)).is_some_and(|v| v.pending)
    }

    /// Forgets what is pending; connections stay.
    pub fn clear_pending(&mut self) {
        for vector in &mut self.vectors {
            vector.pending = false;
        }
    }
}
