//! One device of a worker: its socket, its function, its client, and whether it is active or rests.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use pci::{PciFunction, Wait};
use rustix::io::Errno;

use crate::{
    connection::{Connection, Gone},
    poller::{Event, FunctionFds, Poller, Source, Watched},
    server::Server,
    session::Draining,
    statistics::Statistics,
};

/// While something must become quiet, or a descriptor cannot be watched, a device rests no longer than this.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);
/// How long no connection is accepted after accepting one failed, say for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A function with its socket, as a [`crate::Worker`] serves it.
#[derive(Debug)]
pub struct Device<F> {
    pub(crate) function: F,
    state: State,
    /// Accepting failed; not before then again.
    accept_again: Option<Instant>,
    pub(crate) stats: Statistics,
    server: Server,
    /// Its place in the worker.
    index: usize,
    fds: FunctionFds,
    unmask: Watched,
    /// The poller watches the listening socket.
    listening: bool,
    /// That descriptors cannot be watched was logged.
    watch_logged: bool,
    /// The owner has said stop; the latest time to be done with it.
    stop_by: Option<Instant>,

    /// It is polled each turn; else it rests: it is armed, and a descriptor or `until` wakes it.
    pub(crate) active: bool,
    /// It has had work since it became active.
    pub(crate) warm: bool,
    /// It has had work since the worker last looked at the clock.
    pub(crate) worked: bool,
    /// It has had no work since then.
    pub(crate) idle_since: Instant,
    /// When its rest ends at the latest; `None` while it is active.
    pub(crate) until: Option<Instant>,
}

#[derive(Debug)]
enum State {
    /// Waiting for a client.
    Free,
    /// Serving one. Boxed: the other states are small, and there is one per client.
    Connected(Box<Connection>),
    /// Waiting for the function to let go of what a client left behind. At a stop, its connection is closed after that.
    Draining(Draining, #[expect(dead_code, reason = "only held")] Option<OwnedFd>),
}

impl<F> Device<F> {
    /// Where its socket is.
    pub fn path(&self) -> &Path {
        self.server.path()
    }

    /// The function.
    pub fn function(&self) -> &F {
        &self.function
    }

    /// The function. With no client, or with a client that is gone, it is in the state after a reset.
    pub fn function_mut(&mut self) -> &mut F {
        &mut self.function
    }

    /// What was seen so far.
    pub fn statistics(&self) -> &Statistics {
        &self.stats
    }
}

impl<F: PciFunction> Device<F> {
    pub(crate) fn new(server: Server, function: F, index: usize) -> Self {
        Self {
            function,
            state: State::Free,
            accept_again: None,
            stats: Statistics::default(),
            server,
            index,
            fds: FunctionFds::default(),
            unmask: Watched::default(),
            listening: false,
            watch_logged: false,
            stop_by: None,
            active: false,
            warm: false,
            worked: false,
            idle_since: Instant::now(),
            until: None,
        }
    }

    /// One bounded turn: the function's work, and what its client waits for. Says how many things the function has done.
    #[inline]
    pub(crate) fn turn(&mut self, poller: &Poller) -> usize {
        let done = self.function.poll();
        match &mut self.state {
            State::Connected(connection) => {
                if connection.session.is_torn() {
                    self.after(Err(Gone::Torn), poller);
                } else if connection.is_unsettled() {
                    let backlog = self.server.options.max_backlog;
                    let result = connection.go_on(&mut self.function, backlog, &mut self.stats);
                    self.after(result, poller);
                }
            }
            State::Draining(draining, _) => {
                if draining.is_done(&self.function) {
                    self.state = State::Free;
                    self.update_listening(poller);
                    if self.stop_by.is_none() {
                        tracing::info!(socket = %self.path().display(), "ready for the next client");
                    }
                }
            }
            State::Free => {}
        }
        if self.accept_again.is_some_and(|time| Instant::now() >= time) {
            self.accept_again = None;
            self.update_listening(poller);
        }
        done
    }

    /// Messages of its client wait for the next turn.
    pub(crate) fn has_more(&self) -> bool {
        matches!(&self.state, State::Connected(connection) if connection.has_more)
    }

    /// Arms the function, and says whether the device rests now.
    pub(crate) fn rest(&mut self, poller: &Poller) -> bool {
        let Wait::Until(mut until) = self.function.prepare_wait() else { return false };
        let mut at_most = |time: Instant| until = Some(until.map_or(time, |u| u.min(time)));
        let mut settling = match &self.state {
            State::Free => false,
            State::Connected(connection) => connection.session.is_waiting(),
            State::Draining(..) => true,
        };
        if let Err(errno) = self.fds.update(poller, &self.function, self.index) {
            settling = true;
            if !std::mem::replace(&mut self.watch_logged, true) {
                tracing::error!(
                    socket = %self.server.path().display(),
                    %errno,
                    "a descriptor of the disk cannot be watched; the clock takes its place (later ones are not logged)"
                );
            }
        }
        if settling {
            at_most(Instant::now() + SETTLE_INTERVAL);
        }
        [self.accept_again, self.stop_by.filter(|_| !self.is_stopped())].into_iter().flatten().for_each(&mut at_most);
        self.until = until;
        self.stats.rests += 1;
        true
    }

    /// Handles what a descriptor brought.
    pub(crate) fn on_event(&mut self, event: Event, poller: &Poller) {
        match (event.source, &mut self.state) {
            // What a gone client left must be cleared first; then the poller names the listener again.
            (Source::Listener, State::Free | State::Connected(_)) => self.accept(poller),
            (Source::Client, State::Connected(connection)) => {
                let backlog = self.server.options.max_backlog;
                let result = connection.serve(event.gone, &mut self.function, backlog, &mut self.stats);
                self.after(result, poller);
            }
            (Source::Unmask, State::Connected(connection)) => {
                connection.session.irqs.unmask_event(&mut self.function);
                self.after(Ok(()), poller);
            }
            _ => {}
        }
    }

    /// Follows up on what a client's messages have led to.
    fn after(&mut self, result: Result<(), Gone>, poller: &Poller) {
        let State::Connected(connection) = &mut self.state else { return };
        let result = result.and_then(|()| {
            if let Some(fd) = connection.session.irqs.changed_unmask() {
                self.unmask.clear(poller);
                if let Some(fd) = fd {
                    self.unmask.add(poller, fd.as_fd(), Source::Unmask, self.index).map_err(Gone::Watch)?;
                }
            }
            match connection.changed_interest() {
                Some((read, write)) => {
                    poller.set_interest(&connection.socket, self.index, read, write).map_err(Gone::Watch)
                }
                None => Ok(()),
            }
        });
        let Err(gone) = result else { return };
        let socket = self.server.path().display();
        if matches!(gone, Gone::End) {
            tracing::info!(%socket, "client disconnected");
        } else {
            self.stats.expelled_clients += 1;
            tracing::warn!(%socket, reason = %gone, "client expelled");
        }
        self.disconnect(poller, false);
    }

    /// Takes the function away from the client, if there is one.
    fn disconnect(&mut self, poller: &Poller, keep_open: bool) {
        match std::mem::replace(&mut self.state, State::Free) {
            State::Connected(connection) => {
                let Connection { socket, session, .. } = *connection;
                poller.remove(&socket);
                self.unmask.clear(poller);
                self.state = State::Draining(session.end(&mut self.function), keep_open.then_some(socket));
                self.update_listening(poller);
            }
            other => self.state = other,
        }
    }

    /// Takes a connection; not called while draining.
    fn accept(&mut self, poller: &Poller) {
        if let State::Connected(connection) = &self.state
            && connection.is_dead()
        {
            // Its own event comes first. Then there may be room for the next client.
            return;
        }
        let accepted = match self.server.listener.accept() {
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            other => other,
        };
        let accepted = accepted.and_then(|socket| {
            if matches!(self.state, State::Free) {
                poller.add(&socket, Source::Client, self.index)?;
            }
            Ok(socket)
        });
        let path = self.server.path().display();
        match (accepted, &mut self.state) {
            (Err(errno), _) => {
                tracing::warn!(socket = %path, %errno, "cannot accept a connection");
                self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                self.update_listening(poller);
            }
            (Ok(_), State::Connected(connection)) => {
                self.stats.refused_clients += 1;
                if !std::mem::replace(&mut connection.refusal_logged, true) {
                    tracing::warn!(
                        socket = %path,
                        "a second client was refused; one is connected (later ones are not logged)"
                    );
                }
            }
            (Ok(socket), _) => {
                self.stats.clients += 1;
                tracing::info!(socket = %path, "client connected");
                self.state = State::Connected(Box::new(Connection::new(socket, &self.function)));
            }
        }
    }

    /// Watches the listening socket or does not, as it should be now.
    pub(crate) fn update_listening(&mut self, poller: &Poller) {
        let listen =
            !matches!(self.state, State::Draining(..)) && self.stop_by.is_none() && self.accept_again.is_none();
        if listen == self.listening {
            return;
        }
        self.listening = listen;
        if !listen {
            poller.remove(&self.server.listener);
        } else if let Err(errno) = poller.add(&self.server.listener, Source::Listener, self.index) {
            tracing::error!(socket = %self.path().display(), %errno, "the listening socket cannot be watched");
            self.listening = false;
            self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Begins to finish what is in flight.
    pub(crate) fn stop(&mut self, poller: &Poller) {
        self.stop_by = Some(Instant::now() + self.server.options.stop_timeout);
        self.disconnect(poller, true);
        self.update_listening(poller);
    }

    /// A stop is done.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop_by.is_some() && matches!(self.state, State::Free)
    }

    /// A stop has not come to its end in time.
    pub(crate) fn is_overdue(&self) -> bool {
        self.stop_by.is_some_and(|time| Instant::now() >= time) && !self.is_stopped()
    }

    /// The worker ends, for whatever reason.
    pub(crate) fn leave(&mut self, poller: &Poller) {
        self.disconnect(poller, false);
        self.state = State::Free;
        self.fds.clear(poller);
        self.stop_by = Some(Instant::now());
        self.update_listening(poller);
        (self.stop_by, self.accept_again, self.active, self.until) = (None, None, false, None);
    }
}
