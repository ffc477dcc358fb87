//! One device, one thread, one client at a time.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use pci::{PciFunction, Wait};
use rustix::io::Errno;

use crate::{
    framing::{Incoming, Outgoing, Received},
    listener::{BindError, Listener},
    poller::{Poller, Ready, Source},
    session::{Draining, Expelled, Session},
    statistics::Statistics,
};

/// While the function is busy, the sockets are looked at this often: soon after a look that found a message, since one
/// doorbell follows another, and less and less often while there is none. A look is one system call of less than 1 us.
const LOOK_INTERVAL: RangeInclusive<Duration> = Duration::from_micros(5)..=Duration::from_micros(40);
/// Answers are sent when this much has come together, also in the middle of a batch of messages, in bytes.
const FLUSH_AT: usize = 256 << 10;
/// While something must become quiet, it is looked at this often at least.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);
/// How long no connection is accepted after accepting one failed, say for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How a server behaves.
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

/// What the owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Finish what is in flight, disconnect the client and return.
    Stop,
}

/// Why a server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The event loop itself failed.
    #[error("cannot {what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
    /// Requests in flight did not end in time after a stop.
    #[error("requests were still in flight after {0:?}")]
    StillBusy(Duration),
}

fn failed(what: &'static str) -> impl Fn(Errno) -> ServerError {
    move |errno| ServerError::Io { what, error: errno.into() }
}

/// A vfio-user server. Its socket file goes with it.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    options: ServerOptions,
    stats: Statistics,
}

impl Server {
    /// Opens the socket. A socket file that nobody listens to any more is replaced.
    ///
    /// # Errors
    /// [`BindError`], for one when a server is there already.
    pub fn bind(path: impl AsRef<Path>, options: ServerOptions) -> Result<Self, BindError> {
        let listener = Listener::bind(path.as_ref(), options.mode)?;
        Ok(Self { listener, options, stats: Statistics::default() })
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// What was seen so far.
    pub fn statistics(&self) -> &Statistics {
        &self.stats
    }

    /// Serves `function` until the owner says stop.
    ///
    /// `control` is called whenever one of `wake` is readable; it makes it unreadable again, and may look at the function
    /// and at the statistics. With no client, or with a client that is gone, the function is in the state after a reset.
    ///
    /// # Errors
    /// [`ServerError`]. Nothing that a client does is an error here.
    pub fn run<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        wake: &[BorrowedFd<'_>],
        control: &mut dyn FnMut(&mut F, &Statistics) -> Control,
    ) -> Result<(), ServerError> {
        let poller = Poller::new().map_err(failed("create an epoll set"))?;
        for fd in wake {
            poller.add(fd, Source::Owner).map_err(failed("watch the owner's descriptors"))?;
        }
        poller.add(&self.listener, Source::Listener).map_err(failed("watch the listening socket"))?;
        let Self { listener, options, stats } = self;
        let state = State::Free;
        Loop { listener, options, stats, poller, state, listening: true, accept_again: None, stopping: None }
            .run(function, control)
    }
}

#[derive(Debug)]
enum State {
    /// Waiting for a client.
    Free,
    /// Serving one. Boxed: the other states are small, and there is one per client.
    Connected(Box<Client>),
    /// Waiting for the function to let go of what a client left behind. At a stop, its connection is closed after that.
    Draining(Draining, #[expect(dead_code, reason = "only held")] Option<OwnedFd>),
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    incoming: Incoming,
    outgoing: Outgoing,
    session: Session,
    /// What the poller watches: readable, writable.
    interest: (bool, bool),
    /// What the statistics know of already.
    surplus_fds: u64,
    /// That others were refused on its account was logged.
    refusal_logged: bool,
}

/// Why a client is no longer served.
#[derive(Debug, thiserror::Error)]
enum Gone {
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
}

impl Gone {
    fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::End,
            errno => Self::Socket(errno),
        }
    }
}

impl Client {
    fn new<F: PciFunction + ?Sized>(socket: OwnedFd, function: &F) -> Self {
        Self {
            socket,
            incoming: Incoming::new(),
            outgoing: Outgoing::default(),
            session: Session::new(function),
            interest: (true, false),
            surplus_fds: 0,
            refusal_logged: false,
        }
    }

    /// Follows up on an event of the socket. `gone` says that the connection is dead in both directions.
    fn serve<F: PciFunction + ?Sized>(
        &mut self,
        gone: bool,
        function: &mut F,
        max_backlog: usize,
        stats: &mut Statistics,
    ) -> Result<(), Gone> {
        if self.outgoing.backlog() > 0 {
            self.outgoing.flush(self.socket.as_fd()).map_err(Gone::from_errno)?;
        }
        if self.session.is_waiting() {
            // Its next messages have to wait. A dead connection needs no answer, either.
            return if gone { Err(Gone::End) } else { Ok(()) };
        }
        self.receive(function, max_backlog, stats)?;
        // What it said last counts, but nobody must take the corpse for a client.
        while gone && !self.session.is_waiting() {
            self.receive(function, max_backlog, stats)?;
        }
        Ok(())
    }

    /// Takes what has come, with one system call, and executes it.
    fn receive<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        max_backlog: usize,
        stats: &mut Statistics,
    ) -> Result<(), Gone> {
        match self.incoming.receive(self.socket.as_fd()).map_err(Gone::from_errno)? {
            Received::Bytes => self.execute(function, max_backlog, stats),
            Received::Nothing => Ok(()),
            Received::End => Err(Gone::End),
        }
    }

    /// Executes the messages that are there, up to one whose answer must wait, and sends the answers.
    fn execute<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        max_backlog: usize,
        stats: &mut Statistics,
    ) -> Result<(), Gone> {
        let mut result = Ok(());
        while result.is_ok() && self.session.settle(function, &mut self.outgoing) {
            match self.incoming.next() {
                Ok(Some(message)) => {
                    let handled = self.session.handle(message, function, &mut self.outgoing, stats);
                    result = handled.map_err(Gone::Expelled);
                }
                Ok(None) => break,
                Err(size) => result = Err(Gone::Size(size)),
            }
            if self.outgoing.backlog() > FLUSH_AT {
                self.outgoing.flush(self.socket.as_fd()).map_err(Gone::from_errno)?;
                if self.outgoing.backlog() > max_backlog {
                    result = Err(Gone::Backlog);
                }
            }
        }
        stats.surplus_fds +=
            self.incoming.surplus_fds - std::mem::replace(&mut self.surplus_fds, self.incoming.surplus_fds);
        self.outgoing.flush(self.socket.as_fd()).map_err(Gone::from_errno)?;
        result
    }
}

struct Loop<'a> {
    listener: &'a Listener,
    options: &'a ServerOptions,
    stats: &'a mut Statistics,
    poller: Poller,
    state: State,
    /// The poller watches the listening socket.
    listening: bool,
    /// Accepting failed; not before then again.
    accept_again: Option<Instant>,
    /// The owner has said stop; the latest time to return.
    stopping: Option<Instant>,
}

impl Loop<'_> {
    fn run<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        control: &mut dyn FnMut(&mut F, &Statistics) -> Control,
    ) -> Result<(), ServerError> {
        let mut looked = Instant::now();
        let mut interval = *LOOK_INTERVAL.start();
        loop {
            let busy = function.poll();
            self.settle(function)?;
            if let Some(deadline) = self.stopping {
                if matches!(self.state, State::Free) {
                    return Ok(());
                }
                if Instant::now() >= deadline {
                    return Err(ServerError::StillBusy(self.options.stop_timeout));
                }
            }
            let sleep = if busy { Wait::Busy } else { function.prepare_wait() };
            let timeout = match sleep {
                Wait::Busy if looked.elapsed() < interval => continue,
                Wait::Busy => Some(Duration::ZERO),
                Wait::Until(time) => {
                    self.poller.watch_function(function).map_err(failed("watch the device's descriptors"))?;
                    self.stats.sleeps += 1;
                    self.timeout(time)
                }
            };
            let ready = self.poller.wait(timeout).map_err(failed("wait for events"))?;
            looked = Instant::now();
            interval = if ready.client { *LOOK_INTERVAL.start() } else { (2 * interval).min(*LOOK_INTERVAL.end()) };
            self.deliver(ready, function)?;
            if ready.owner && control(function, self.stats) == Control::Stop && self.stopping.is_none() {
                tracing::debug!("stop");
                self.stopping = Some(Instant::now() + self.options.stop_timeout);
                self.disconnect(function, true);
            }
        }
    }

    /// How long to sleep, given how long the function can.
    fn timeout(&self, until: Option<Instant>) -> Option<Duration> {
        let mut until = until;
        let mut at_most = |time: Instant| until = Some(until.map_or(time, |u| u.min(time)));
        let settling = match &self.state {
            State::Free => false,
            State::Connected(client) => client.session.is_waiting(),
            State::Draining(..) => true,
        };
        if settling {
            at_most(Instant::now() + SETTLE_INTERVAL);
        }
        if let Some(time) = self.accept_again {
            at_most(time);
        }
        until.map(|time| time.saturating_duration_since(Instant::now()))
    }

    /// Handles what the sockets brought.
    fn deliver<F: PciFunction + ?Sized>(&mut self, ready: Ready, function: &mut F) -> Result<(), ServerError> {
        if let State::Connected(client) = &mut self.state {
            if ready.unmask {
                client.session.irqs.unmask_event(function);
            }
            if ready.client {
                let result = client.serve(ready.client_gone, function, self.options.max_backlog, self.stats);
                self.after(result, function)?;
            }
        }
        // What a gone client left must be cleared first; then the poller names the listener again.
        if ready.listener && !matches!(self.state, State::Draining(..)) {
            self.accept(function)?;
        }
        Ok(())
    }

    /// Gives outstanding answers that can be given, and takes the next client when the last one's traces are gone.
    #[inline]
    fn settle<F: PciFunction + ?Sized>(&mut self, function: &mut F) -> Result<(), ServerError> {
        match &mut self.state {
            State::Connected(client) => {
                if client.session.is_torn() {
                    return self.after(Err(Gone::Torn), function);
                }
                if client.session.is_waiting() && client.session.settle(function, &mut client.outgoing) {
                    let result = client.execute(function, self.options.max_backlog, self.stats);
                    return self.after(result, function);
                }
            }
            State::Draining(draining, _) if draining.is_done(function) => {
                self.state = State::Free;
                if self.stopping.is_none() {
                    tracing::info!("ready for the next client");
                }
            }
            State::Free | State::Draining(..) => {}
        }
        let listen = !matches!(self.state, State::Draining(..))
            && self.stopping.is_none()
            && self.accept_again.is_none_or(|time| Instant::now() >= time);
        if listen != self.listening {
            self.listening = listen;
            if listen {
                self.accept_again = None;
                self.poller.add(self.listener, Source::Listener).map_err(failed("watch the listening socket"))?;
            } else {
                self.poller.remove(self.listener);
            }
        }
        Ok(())
    }

    /// Follows up on what a client's messages have led to.
    fn after<F: PciFunction + ?Sized>(
        &mut self,
        result: Result<(), Gone>,
        function: &mut F,
    ) -> Result<(), ServerError> {
        let State::Connected(client) = &mut self.state else { return Ok(()) };
        match result {
            Ok(()) => {
                if let Some(fd) = client.session.irqs.changed_unmask() {
                    self.poller.watch_unmask(fd.map(AsFd::as_fd)).map_err(failed("watch an eventfd"))?;
                }
                let interest = (!client.session.is_waiting(), client.outgoing.backlog() > 0);
                if interest != client.interest {
                    client.interest = interest;
                    self.poller
                        .set_interest(&client.socket, Source::Client, interest.0, interest.1)
                        .map_err(failed("watch the client"))?;
                }
            }
            Err(gone) => {
                if matches!(gone, Gone::End) {
                    tracing::info!("client disconnected");
                } else {
                    self.stats.expelled_clients += 1;
                    tracing::warn!(reason = %gone, "client expelled");
                }
                self.disconnect(function, false);
            }
        }
        Ok(())
    }

    /// Takes the function away from the client, if there is one.
    fn disconnect<F: PciFunction + ?Sized>(&mut self, function: &mut F, keep_open: bool) {
        match std::mem::replace(&mut self.state, State::Free) {
            State::Connected(client) => {
                let Client { socket, session, .. } = *client;
                self.poller.remove(&socket);
                // Nothing is added, so this does not fail.
                let _ = self.poller.watch_unmask(None);
                self.state = State::Draining(session.end(function), keep_open.then_some(socket));
            }
            other => self.state = other,
        }
    }

    /// Takes a connection; not called while draining.
    fn accept<F: PciFunction + ?Sized>(&mut self, function: &F) -> Result<(), ServerError> {
        let socket = match self.listener.accept() {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(errno) => {
                tracing::warn!(%errno, "cannot accept a connection");
                self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                return Ok(());
            }
        };
        if let State::Connected(client) = &mut self.state {
            self.stats.refused_clients += 1;
            if !std::mem::replace(&mut client.refusal_logged, true) {
                tracing::warn!("a second client was refused; one is connected (later ones are not logged)");
            }
            return Ok(());
        }
        self.poller.add(&socket, Source::Client).map_err(failed("watch the client"))?;
        self.stats.clients += 1;
        tracing::info!("client connected");
        self.state = State::Connected(Box::new(Client::new(socket, function)));
        Ok(())
    }
}
