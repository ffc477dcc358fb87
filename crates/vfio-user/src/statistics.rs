//! What a device's server and a worker have seen.

use crate::codec::wire::command;

/// Counters of one device since its server was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages by command number; unknown commands are counted at 0.
    pub messages: [u64; command::COUNT as usize],
    /// Messages that asked for no answer; posted writes are.
    pub posted: u64,
    /// Messages whose size, type or payload was wrong.
    pub malformed: u64,
    /// Answers that were errors.
    pub errors: u64,
    /// Reads and writes outside of their region. Reads were answered with ones, writes dropped, as a bus does it.
    pub stray_accesses: u64,
    /// File descriptors that came where none belong, or too many of them.
    pub surplus_fds: u64,
    /// Clients that were served.
    pub clients: u64,
    /// Connections that were closed at once because a client was there already.
    pub refused_clients: u64,
    /// Clients that were disconnected for what they did.
    pub expelled_clients: u64,
    /// Times that the device was armed and put to rest.
    pub rests: u64,
}

/// Counters of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerStatistics {
    /// Times that its thread slept, since all devices rested.
    pub sleeps: u64,
    /// Looks at the descriptors without a sleep, since some device was active.
    pub looks: u64,
}

impl Statistics {
    /// The commands that came at all, by name, with their numbers of messages.
    pub fn by_command(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let named = (0u16..).zip(self.messages).map(|(number, count)| (command::name(number), count));
        named.filter(|&(_, count)| count > 0)
    }

    pub(crate) fn count(&mut self, number: u16) {
        let slot = usize::from(if number < command::COUNT { number } else { 0 });
        self.messages[slot] += 1;
    }
}
