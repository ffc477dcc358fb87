//! Eventfds that the device signals.

use std::{
    io::IoSliceMut,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, ReadWriteFlags, preadv2},
};

use crate::error::Error;

/// The eventfd of one MSI-X vector. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Vector {
    number: u16,
    fd: Arc<OwnedFd>,
}

impl Vector {
    pub(crate) fn new(number: u16) -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::System { what: "create an eventfd", errno })?;
        Ok(Self { number, fd: Arc::new(fd) })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sleeps until the device signals or the time is over, and returns the number of signals.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<u64, Error> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => Ok(0),
            Ok(_) => Ok(self.drain()),
            Err(errno) => Err(Error::System { what: "wait for an interrupt", errno }),
        }
    }

    /// Takes the signals that are there.
    pub(crate) fn drain(&self) -> u64 {
        let mut count = [0; 8];
        // The device shares the descriptor: it may have cleared O_NONBLOCK and may take the count before us.
        match preadv2(&self.fd, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    #[test]
    fn signals_are_counted_and_none_blocks() {
        let vector = Vector::new(3).unwrap();
        assert_eq!(vector.drain(), 0);
        // What a hostile device can do with its descriptor.
        fcntl_setfl(vector.fd(), OFlags::empty()).unwrap();
        assert_eq!(vector.drain(), 0);
        assert_eq!(vector.wait(Duration::from_millis(1)).unwrap(), 0);
        rustix::io::write(vector.fd(), &2u64.to_ne_bytes()).unwrap();
        rustix::io::write(vector.fd(), &1u64.to_ne_bytes()).unwrap();
        assert_eq!(vector.wait(Duration::from_secs(60)).unwrap(), 3);
        assert_eq!(vector.drain(), 0);
    }
}
