//! The one place where a worker sleeps.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use pci::PciFunction;
use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    io::{Errno, fcntl_dupfd_cloexec},
};

/// `epoll_wait` counts in milliseconds; below this, they are too coarse.
const COARSE: Duration = Duration::from_millis(4);

/// Whom a descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The worker's owner.
    Owner,
    /// A device's listening socket.
    Listener,
    /// Its client.
    Client,
    /// Its function.
    Function,
    /// The eventfd by which its client unmasks the legacy line.
    Unmask,
}

impl Source {
    const ALL: [Self; 5] = [Self::Owner, Self::Listener, Self::Client, Self::Function, Self::Unmask];
    /// Low bits of an event's data that hold the source; the device's index is above.
    const BITS: u32 = 3;
}

/// Something happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Index of the device; 0 for the owner.
    pub(crate) device: usize,
    pub(crate) source: Source,
    /// The connection is dead in both directions.
    pub(crate) gone: bool,
}

/// The descriptors of a worker and of all its devices.
pub(crate) struct Poller {
    epoll: OwnedFd,
    /// What the last wait brought. Never grows.
    events: Vec<epoll::Event>,
}

fn data(source: Source, device: usize) -> epoll::EventData {
    epoll::EventData::new_u64((device as u64) << Source::BITS | source as u64)
}

impl Poller {
    /// One with room for the events of so many devices. What does not fit into one wait comes with the next; the kernel
    /// sees to it that nobody is left out.
    pub(crate) fn new(devices: usize) -> Result<Self, Errno> {
        let events = Vec::with_capacity(16 + 4 * devices);
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, events })
    }

    pub(crate) fn add(&self, fd: impl AsFd, source: Source, device: usize) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, data(source, device), epoll::EventFlags::IN)
    }

    /// Of a client's socket, which is there.
    pub(crate) fn set_interest(&self, fd: impl AsFd, device: usize, read: bool, write: bool) -> Result<(), Errno> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        epoll::modify(&self.epoll, fd, data(Source::Client, device), flags)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) {
        // An error says that it is not there.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until something happens or the time is over, and says how many events there are; `None` is for ever. A long
    /// sleep may end early, by less than a millisecond.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Errno> {
        self.events.clear();
        let timeout = match timeout {
            // The sleep counts in nanoseconds here, on kernels without epoll_pwait2 as well.
            Some(time) if !time.is_zero() && time < COARSE => {
                match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timespec(time))) {
                    Ok(0) | Err(Errno::INTR) => return Ok(0),
                    Ok(_) => Some(Duration::ZERO),
                    Err(errno) => return Err(errno),
                }
            }
            // Whole milliseconds, not rounded up: the rest is a short sleep of its own.
            Some(time) => Some(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(1 << 30))),
            None => None,
        };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.map(timespec).as_ref()) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// One of the last wait's events.
    pub(crate) fn event(&self, index: usize) -> Option<Event> {
        let event = self.events.get(index)?;
        let (flags, data) = (event.flags, event.data.u64());
        let source = *Source::ALL.get(usize::try_from(data & ((1 << Source::BITS) - 1)).ok()?)?;
        Some(Event {
            device: usize::try_from(data >> Source::BITS).ok()?,
            source,
            gone: flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR),
        })
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// Duplicates of descriptors that belong to someone else, registered. Duplicates, because a descriptor that its owner has
/// closed cannot be taken out of an epoll set any more.
#[derive(Debug, Default)]
pub(crate) struct Watched(Vec<OwnedFd>);

impl Watched {
    pub(crate) fn add(
        &mut self,
        poller: &Poller,
        fd: BorrowedFd<'_>,
        source: Source,
        device: usize,
    ) -> Result<(), Errno> {
        let fd = fcntl_dupfd_cloexec(fd, 0)?;
        poller.add(&fd, source, device)?;
        self.0.push(fd);
        Ok(())
    }

    pub(crate) fn clear(&mut self, poller: &Poller) {
        for fd in self.0.drain(..) {
            poller.remove(&fd);
        }
    }
}

/// The descriptors by which a function wants to be woken.
#[derive(Debug, Default)]
pub(crate) struct FunctionFds {
    watched: Watched,
    /// What the function named when `watched` was filled.
    named: Vec<RawFd>,
    generation: Option<u64>,
}

impl FunctionFds {
    /// Brings what is watched up to what the function names. No system call when that is as before.
    pub(crate) fn update<F: PciFunction>(&mut self, poller: &Poller, function: &F, device: usize) -> Result<(), Errno> {
        let generation = Some(function.wait_fds_generation());
        let (mut count, mut same) = (0, self.generation == generation);
        function.wait_fds(&mut |fd| {
            same &= self.named.get(count) == Some(&fd.as_raw_fd());
            count += 1;
        });
        if same && count == self.named.len() {
            return Ok(());
        }
        self.watched.clear(poller);
        self.named.clear();
        let mut result = Ok(());
        function.wait_fds(&mut |fd| {
            self.named.push(fd.as_raw_fd());
            result = result.and_then(|()| self.watched.add(poller, fd, Source::Function, device));
        });
        // After an error, the next call tries again.
        self.generation = result.ok().and(generation);
        result
    }

    pub(crate) fn clear(&mut self, poller: &Poller) {
        self.watched.clear(poller);
        self.named.clear();
        self.generation = None;
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream, time::Instant};

    use super::*;

    #[test]
    fn sleeps_of_less_than_a_millisecond_are_not_rounded() {
        let mut poller = Poller::new(1).unwrap();
        let shortest = (0..200)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(poller.wait(Some(Duration::from_micros(50))), Ok(0));
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!((50..900).contains(&shortest.as_micros()), "{shortest:?}");
    }

    #[test]
    fn events_say_who_and_what_after_a_sleep_of_any_length() {
        let mut poller = Poller::new(100).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        poller.add(&near, Source::Client, 99).unwrap();
        far.write_all(&[1]).unwrap();
        for timeout in [Some(0), Some(100), Some(3_600_000_000), None] {
            assert_eq!(poller.wait(timeout.map(Duration::from_micros)), Ok(1));
            let event = poller.event(0).unwrap();
            assert_eq!((event.device, event.source, event.gone), (99, Source::Client, false));
            assert!(poller.event(1).is_none());
        }
        drop(far);
        assert_eq!(poller.wait(None), Ok(1));
        assert!(poller.event(0).unwrap().gone);
        poller.remove(&near);
        assert_eq!(poller.wait(Some(Duration::ZERO)), Ok(0));
    }
}
