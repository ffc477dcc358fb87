//! One client's socket: takes what has come, in bounded portions, and sends the answers.

use std::os::fd::{AsFd, OwnedFd};

use pci::PciFunction;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{
    codec::wire::{Header, command},
    framing::{Incoming, Outgoing, Received},
    session::{Expelled, Session},
    statistics::Statistics,
};

/// Answers are sent when this much has come together, also in the middle of a batch of messages, in bytes.
const FLUSH_AT: usize = 256 << 10;

/// What one client may cost in one turn, so that one that floods leaves the others of its worker their share: 1 for each
/// message, 1 for each 4 KiB that go in or out, and [`HEAVY`] for what changes the guest's memory or its interrupts.
const TURN: usize = 64;
const HEAVY: usize = 16;

/// Why a client is no longer served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Gone {
    #[error("the client closed the connection")]
    End,
    #[error("connection: {0}")]
    Socket(Errno),
    #[error("a message of {0} bytes was announced")]
    Size(u32),
    #[error(transparent)]
    Expelled(#[from] Expelled),
    #[error("the client does not read its answers")]
    Backlog,
    #[error("guest memory was cut short behind our back")]
    Torn,
    #[error("its socket cannot be watched: {0}")]
    Watch(Errno),
}

impl From<Errno> for Gone {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::End,
            errno => Self::Socket(errno),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    incoming: Incoming,
    outgoing: Outgoing,
    pub(crate) session: Session,
    /// Whole messages may be here that had to wait for the next turn.
    pub(crate) has_more: bool,
    /// What the poller watches: readable, writable.
    interest: (bool, bool),
    /// What the statistics know of already.
    surplus_fds: u64,
    /// That others were refused on its account was logged.
    pub(crate) refusal_logged: bool,
}

impl Connection {
    pub(crate) fn new<F: PciFunction>(socket: OwnedFd, function: &F) -> Self {
        Self {
            socket,
            incoming: Incoming::new(),
            outgoing: Outgoing::default(),
            session: Session::new(function),
            has_more: false,
            interest: (true, false),
            surplus_fds: 0,
            refusal_logged: false,
        }
    }

    /// Follows up on an event of the socket. `gone` says that the connection is dead in both directions.
    ///
    /// # Errors
    /// The client must go.
    pub(crate) fn serve<F: PciFunction>(
        &mut self,
        gone: bool,
        function: &mut F,
        max_backlog: usize,
        stats: &mut Statistics,
    ) -> Result<(), Gone> {
        if self.outgoing.backlog() > 0 {
            self.outgoing.flush(self.socket.as_fd())?;
        }
        if self.session.is_waiting() {
            // Its next messages have to wait. A dead connection needs no answer, either.
            return if gone { Err(Gone::End) } else { Ok(()) };
        }
        // What has come before it counts, also on a dead connection, which then is named again until its end was read.
        if self.has_more {
            return Ok(());
        }
        match self.incoming.receive(self.socket.as_fd())? {
            Received::Bytes => self.execute(function, max_backlog, stats),
            Received::Nothing => Ok(()),
            Received::End => Err(Gone::End),
        }
    }

    /// Executes the messages that are here, up to one whose answer must wait or to the end of the turn, and sends the answers.
    ///
    /// # Errors
    /// The client must go.
    pub(crate) fn execute<F: PciFunction>(
        &mut self,
        function: &mut F,
        max_backlog: usize,
        stats: &mut Statistics,
    ) -> Result<(), Gone> {
        let mut result = Ok(());
        let mut left = TURN;
        self.has_more = false;
        while result.is_ok() && self.session.settle(function, &mut self.outgoing) {
            if left == 0 {
                self.has_more = true;
                break;
            }
            match self.incoming.next() {
                Ok(Some(message)) => {
                    let (before, bytes) = (self.outgoing.backlog(), message.bytes.len());
                    let heavy = Header::split(message.bytes).is_some_and(|(header, _)| is_heavy(header.command));
                    let handled = self.session.handle(message, function, &mut self.outgoing, stats);
                    result = handled.map_err(Gone::Expelled);
                    let bytes = bytes + self.outgoing.backlog().saturating_sub(before);
                    left = left.saturating_sub(1 + bytes / 4096 + if heavy { HEAVY } else { 0 });
                }
                Ok(None) => break,
                Err(size) => result = Err(Gone::Size(size)),
            }
            if self.outgoing.backlog() > FLUSH_AT {
                self.outgoing.flush(self.socket.as_fd())?;
                if self.outgoing.backlog() > max_backlog {
                    result = Err(Gone::Backlog);
                }
            }
        }
        stats.surplus_fds +=
            self.incoming.surplus_fds - std::mem::replace(&mut self.surplus_fds, self.incoming.surplus_fds);
        self.outgoing.flush(self.socket.as_fd())?;
        result
    }

    /// Gives an answer that was outstanding, if it can be given now, and goes on with what waited behind it.
    ///
    /// # Errors
    /// The client must go.
    pub(crate) fn go_on<F: PciFunction>(
        &mut self,
        function: &mut F,
        max_backlog: usize,
        stats: &mut Statistics,
    ) -> Result<(), Gone> {
        if self.has_more || (self.session.is_waiting() && self.session.settle(function, &mut self.outgoing)) {
            return self.execute(function, max_backlog, stats);
        }
        Ok(())
    }

    /// What the poller should watch, when that is something else than at the last call: readable, writable.
    pub(crate) fn changed_interest(&mut self) -> Option<(bool, bool)> {
        let interest = (!self.session.is_waiting(), self.outgoing.backlog() > 0);
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// There is something to go on with, or may be soon.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.has_more || self.session.is_waiting()
    }

    /// The other end is closed, whatever is still to be read.
    pub(crate) fn is_dead(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0) && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

fn is_heavy(number: u16) -> bool {
    matches!(number, command::DMA_MAP | command::DMA_UNMAP | command::DEVICE_SET_IRQS | command::DEVICE_RESET)
}
