//! The one place where a server sleeps.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use pci::PciFunction;
use rustix::{
    event::{Timespec, epoll},
    io::{Errno, fcntl_dupfd_cloexec},
};

/// Whom a descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Listener,
    Client,
    Owner,
    Function,
    Unmask,
}

impl Source {
    const ALL: [Self; 5] = [Self::Listener, Self::Client, Self::Owner, Self::Function, Self::Unmask];
}

/// What woke us.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ready {
    pub(crate) listener: bool,
    pub(crate) client: bool,
    /// The client's connection is dead in both directions.
    pub(crate) client_gone: bool,
    pub(crate) owner: bool,
    pub(crate) unmask: bool,
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    function: Watched,
    /// What the function named when `function` was filled.
    named: Vec<RawFd>,
    generation: Option<u64>,
    unmask: Watched,
}

/// Duplicates of descriptors that belong to someone else, registered. Duplicates, because a descriptor that its owner has
/// closed cannot be taken out of an epoll set any more.
#[derive(Debug, Default)]
struct Watched(Vec<OwnedFd>);

impl Watched {
    fn add(&mut self, epoll: &OwnedFd, fd: BorrowedFd<'_>, source: Source) -> Result<(), Errno> {
        let fd = fcntl_dupfd_cloexec(fd, 0)?;
        epoll::add(epoll, &fd, data(source), epoll::EventFlags::IN)?;
        self.0.push(fd);
        Ok(())
    }

    fn clear(&mut self, epoll: &OwnedFd) {
        for fd in self.0.drain(..) {
            // It is registered, so this does not fail.
            let _ = epoll::delete(epoll, &fd);
        }
    }
}

fn data(source: Source) -> epoll::EventData {
    epoll::EventData::new_u64(source as u64)
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            function: Watched::default(),
            named: Vec::new(),
            generation: None,
            unmask: Watched::default(),
        })
    }

    pub(crate) fn add(&self, fd: impl AsFd, source: Source) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, data(source), epoll::EventFlags::IN)
    }

    pub(crate) fn set_interest(&self, fd: impl AsFd, source: Source, read: bool, write: bool) -> Result<(), Errno> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        epoll::modify(&self.epoll, fd, data(source), flags)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) {
        // An error says that it is not there.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Watches the eventfd that unmasks the legacy line, or none.
    pub(crate) fn watch_unmask(&mut self, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        self.unmask.clear(&self.epoll);
        fd.map_or(Ok(()), |fd| self.unmask.add(&self.epoll, fd, Source::Unmask))
    }

    /// Brings what is watched up to what the function names. No system call when that is as before.
    pub(crate) fn watch_function<F: PciFunction + ?Sized>(&mut self, function: &F) -> Result<(), Errno> {
        let generation = Some(function.wait_fds_generation());
        let (mut count, mut same) = (0, self.generation == generation);
        function.wait_fds(&mut |fd| {
            same &= self.named.get(count) == Some(&fd.as_raw_fd());
            count += 1;
        });
        if same && count == self.named.len() {
            return Ok(());
        }
        self.function.clear(&self.epoll);
        self.named.clear();
        let mut result = Ok(());
        function.wait_fds(&mut |fd| {
            self.named.push(fd.as_raw_fd());
            result = result.and_then(|()| self.function.add(&self.epoll, fd, Source::Function));
        });
        // After an error, the next sleep tries again.
        self.generation = result.ok().and(generation);
        result
    }

    /// Sleeps until something happens or the time is over; `None` is for ever.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Ready, Errno> {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut space = [const { MaybeUninit::uninit() }; 64];
        let mut ready = Ready::default();
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(ready),
            Err(errno) => return Err(errno),
        };
        for event in events {
            let flags = event.flags;
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            match Source::ALL.get(index) {
                Some(Source::Listener) => ready.listener = true,
                Some(Source::Client) => {
                    ready.client = true;
                    ready.client_gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
                }
                Some(Source::Owner) => ready.owner = true,
                Some(Source::Unmask) => ready.unmask = true,
                Some(Source::Function) | None => {}
            }
        }
        Ok(ready)
    }
}
