//! A stream socket as a sequence of messages with file descriptors, and back. Nothing here blocks.

use std::{
    collections::VecDeque,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, send, sendmsg,
    },
};
use zerocopy::IntoBytes;

use crate::codec::{
    message_size,
    wire::{FLAG_ERROR, Header, MAX_MESSAGE_FDS, TYPE_REPLY},
};

/// Room for many small messages; grows for a large one.
const BUFFER: usize = 64 << 10;

/// What a look at the socket brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes.
    Bytes,
    /// Nothing at the moment.
    Nothing,
    /// The peer has closed its end.
    End,
}

/// One whole message as it came.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) bytes: &'a [u8],
    /// The descriptors that came with it, at most [`MAX_MESSAGE_FDS`].
    pub(crate) fds: &'a mut Vec<OwnedFd>,
    /// Some were lost on the way, since this process has too many open.
    pub(crate) fds_lost: bool,
}

/// Bytes on their way in.
///
/// File descriptors: the kernel hands over those of one `sendmsg` together with its first byte, and ends a read behind
/// the piece that carried them (`unix_stream_read_generic`); pieces before it without descriptors may be in the same read.
/// So the descriptors of a read belong to the message that holds the read's last byte.
#[derive(Debug)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Position in the stream of `buffer[start]`.
    position: u64,
    /// Descriptors and the stream position of the byte that they came with, in order.
    fds: VecDeque<(u64, OwnedFd)>,
    message_fds: Vec<OwnedFd>,
    /// Stream position of the last byte whose descriptors were lost.
    lost_at: Option<u64>,
    /// Descriptors that nobody wanted.
    pub(crate) surplus_fds: u64,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            position: 0,
            fds: VecDeque::new(),
            message_fds: Vec::new(),
            lost_at: None,
            surplus_fds: 0,
        }
    }

    /// One `recvmsg`.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Received, Errno> {
        self.make_room();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(socket, &mut iov, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(errno) => return Err(errno),
        };
        if got.bytes == 0 {
            return Ok(Received::End);
        }
        self.end += got.bytes;
        let last = self.position + (self.end - self.start) as u64 - 1;
        let mut count = 0;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    count += 1;
                    // There may be those of a message that is not whole yet, and these. Only a peer that spreads one message
                    // over many sends gets past that.
                    if self.fds.len() < 2 * MAX_MESSAGE_FDS {
                        self.fds.push_back((last, fd));
                    } else {
                        self.surplus_fds += 1;
                    }
                }
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            // Either there were more than anyone may send, or the kernel could not give us even these.
            if count < MAX_MESSAGE_FDS {
                self.lost_at = Some(last);
            } else {
                self.surplus_fds += 1;
            }
        }
        Ok(Received::Bytes)
    }

    /// Makes sure that the message that has begun fits, and that there is room for one byte at least. Sizes that cannot be
    /// are left to [`Incoming::next`].
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let wanted = match message_size(&self.buffer[self.start..self.end]) {
            Ok(Some(size)) => size,
            Ok(None) => Header::SIZE,
            Err(_) => 0,
        };
        if self.start + wanted > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if wanted > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.resize(wanted.max(self.end + BUFFER), 0);
        }
    }

    /// The next whole message and its descriptors. What is left of the descriptors is closed by the next call.
    ///
    /// # Errors
    /// The size that a header names, when there is no such message. The stream cannot be read on.
    pub(crate) fn next(&mut self) -> Result<Option<Message<'_>>, u32> {
        self.message_fds.clear();
        let Some(size) = message_size(&self.buffer[self.start..self.end])? else { return Ok(None) };
        if self.end - self.start < size {
            return Ok(None);
        }
        let message = self.start..self.start + size;
        self.start += size;
        self.position += size as u64;
        while self.fds.front().is_some_and(|(at, _)| *at < self.position) {
            match self.fds.pop_front() {
                Some((_, fd)) if self.message_fds.len() < MAX_MESSAGE_FDS => self.message_fds.push(fd),
                _ => self.surplus_fds += 1,
            }
        }
        let fds_lost = self.lost_at.take_if(|at| *at < self.position).is_some();
        Ok(Some(Message { bytes: &self.buffer[message], fds: &mut self.message_fds, fds_lost }))
    }
}

/// Bytes on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    buffer: Vec<u8>,
    sent: usize,
    /// Descriptors, in order, each with the range in `buffer` of its message.
    fds: VecDeque<(Range<usize>, Arc<OwnedFd>)>,
}

impl Outgoing {
    /// Bytes that the peer has not taken yet.
    pub(crate) fn backlog(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Appends an answer with `payload` and `data` more bytes, zeroed, which are returned.
    pub(crate) fn reply(&mut self, request: &Header, payload: &[u8], data: usize) -> &mut [u8] {
        let size = Header::SIZE + payload.len() + data;
        let header = Header { size: size_u32(size), flags: TYPE_REPLY, error: 0, ..*request };
        self.buffer.extend_from_slice(header.as_bytes());
        self.buffer.extend_from_slice(payload);
        let start = self.buffer.len();
        self.buffer.resize(start + data, 0);
        &mut self.buffer[start..]
    }

    /// Appends an answer that carries a descriptor.
    pub(crate) fn reply_with_fd(&mut self, request: &Header, payload: &[u8], fd: Arc<OwnedFd>) {
        let start = self.buffer.len();
        self.reply(request, payload, 0);
        self.fds.push_back((start..self.buffer.len(), fd));
    }

    /// Appends an answer that says what failed.
    pub(crate) fn error(&mut self, request: &Header, errno: Errno) {
        let error = u32::try_from(errno.raw_os_error()).unwrap_or_default();
        let header = Header { size: size_u32(Header::SIZE), flags: TYPE_REPLY | FLAG_ERROR, error, ..*request };
        self.buffer.extend_from_slice(header.as_bytes());
    }

    /// Sends as much as the peer takes.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.sent < self.buffer.len() {
            match self.send(socket) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => {
                    // Keeps the buffer from growing at its front.
                    self.buffer.drain(..self.sent);
                    for (range, _) in &mut self.fds {
                        *range = range.start - self.sent..range.end - self.sent;
                    }
                    self.sent = 0;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.buffer.clear();
        self.buffer.shrink_to(4 * BUFFER);
        self.sent = 0;
        Ok(())
    }

    /// One system call. A message with a descriptor goes by itself: the reader is given the descriptor together with the first
    /// byte of what was sent at a time, and must take it for that message's.
    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        match self.fds.front() {
            Some((range, fd)) if range.start == self.sent => {
                let sent = send_with_fds(socket, &[IoSlice::new(&self.buffer[range.clone()])], &[fd.as_fd()])?;
                // The rest of the message, if any is left, needs no descriptor.
                self.fds.pop_front();
                Ok(sent)
            }
            next => {
                let end = next.map_or(self.buffer.len(), |(range, _)| range.start);
                send(socket, &self.buffer[self.sent..end], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
        }
    }
}

fn size_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Sends the start of a message, with descriptors, and says how many bytes went out.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;
    use crate::codec::wire::MAX_MESSAGE;

    fn message(id: u16, len: usize) -> Vec<u8> {
        let header = Header { message_id: id, command: 9, size: size_u32(len), flags: 0, error: 0 };
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(len, id.to_le_bytes()[0]);
        bytes
    }

    fn send_fd(socket: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) {
        assert_eq!(send_with_fds(socket.as_fd(), &[IoSlice::new(bytes)], &[fd]), Ok(bytes.len()));
    }

    /// All messages that are there: id, length, descriptors.
    fn drain(incoming: &mut Incoming, socket: &UnixStream) -> Vec<(u16, usize, usize)> {
        let mut all = Vec::new();
        loop {
            while let Some(Message { bytes, fds, fds_lost: false }) = incoming.next().unwrap() {
                let (header, rest) = Header::split(bytes).unwrap();
                assert!(rest.iter().all(|&b| b == header.message_id.to_le_bytes()[0]));
                all.push((header.message_id, bytes.len(), fds.len()));
            }
            if incoming.receive(socket.as_fd()).unwrap() != Received::Bytes {
                return all;
            }
        }
    }

    #[test]
    fn messages_of_all_sizes_come_out_as_they_went_in() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new();
        assert_eq!(drain(&mut incoming, &far), []);
        let lens = [16, 17, 36, 4096, BUFFER - 1, BUFFER, BUFFER + 1, 16, MAX_MESSAGE, 36, 20];
        let writer = std::thread::spawn(move || {
            for (id, len) in (0..).zip(lens) {
                near.write_all(&message(id, len)).unwrap();
            }
        });
        let mut all = Vec::new();
        while all.len() < lens.len() {
            all.extend(drain(&mut incoming, &far));
            std::thread::yield_now();
        }
        writer.join().unwrap();
        assert_eq!(all, (0..).zip(lens).map(|(id, len)| (id, len, 0)).collect::<Vec<_>>());
        assert_eq!(incoming.receive(far.as_fd()), Ok(Received::End));
    }

    #[test]
    fn descriptors_go_to_the_last_message_of_their_read() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let (fd, _other) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new();
        near.write_all(&message(1, 36)).unwrap();
        near.write_all(&message(2, 48)).unwrap();
        send_fd(&near, &message(3, 48), fd.as_fd());
        near.write_all(&message(4, 48)).unwrap();
        send_fd(&near, &message(5, 36)[..7], fd.as_fd());
        near.write_all(&message(5, 36)[7..]).unwrap();
        send_fd(&near, &message(6, 36), fd.as_fd());
        let expected = [(1, 36, 0), (2, 48, 0), (3, 48, 1), (4, 48, 0), (5, 36, 1), (6, 36, 1)];
        assert_eq!(drain(&mut incoming, &far), expected);
        assert_eq!(incoming.surplus_fds, 0);
    }

    #[test]
    fn a_long_message_does_not_cost_the_next_one_its_descriptor() {
        let (near, far) = UnixStream::pair().unwrap();
        let (fd, _other) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new();
        let mut all = Vec::new();
        for round in 0..200u16 {
            let (long, short) = (message(1, 16 + usize::from(round) * 331), message(2, 48));
            (&near).write_all(&long).unwrap();
            send_fd(&near, &short, fd.as_fd());
            if round % 3 == 0 {
                all.extend(drain(&mut incoming, &far));
            }
        }
        all.extend(drain(&mut incoming, &far));
        assert_eq!(all.len(), 400);
        assert!(all.iter().all(|&(id, _, fds)| fds == usize::from(id == 2)));
    }

    #[test]
    fn answers_wait_for_a_reader() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let request = Header { message_id: 3, command: 9, size: 32, flags: 0, error: 0 };
        let mut out = Outgoing::default();
        for _ in 0..100 {
            out.reply(&request, &[1; 16], 20000).fill(7);
        }
        out.error(&request, Errno::INVAL);
        let total = out.backlog();
        assert_eq!(total, 100 * 20032 + 16);
        let mut got = vec![0; total];
        let mut read = 0;
        while read < total {
            out.flush(near.as_fd()).unwrap();
            read += far.read(&mut got[read..]).unwrap();
        }
        assert_eq!(out.backlog(), 0);
        assert_eq!(got[..8], [3, 0, 9, 0, 0x40, 0x4e, 0, 0]);
        assert_eq!(got[total - 16..], [3, 0, 9, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
        drop(far);
        out.error(&request, Errno::INVAL);
        assert_eq!(out.flush(near.as_fd()), Err(Errno::PIPE), "and no SIGPIPE");
    }

    #[test]
    fn answers_take_their_descriptors_with_them_also_past_a_reader_who_is_slow() {
        let (near, far) = UnixStream::pair().unwrap();
        let fd: Arc<OwnedFd> = Arc::new(UnixStream::pair().unwrap().0.into());
        let mut out = Outgoing::default();
        let mut expected = Vec::new();
        for id in 0..300u16 {
            let request = Header { message_id: id, command: 9, size: 32, flags: 0, error: 0 };
            let low = id.to_le_bytes()[0];
            match id % 5 {
                0 => out.reply(&request, &[], 20000).fill(low),
                1 | 2 => out.reply_with_fd(&request, &[low; 48], fd.clone()),
                _ => out.reply(&request, &[low; 8], 0).fill(low),
            }
            let len = [20016, 64, 64, 24, 24][usize::from(id % 5)];
            expected.push((id, len, usize::from(matches!(id % 5, 1 | 2))));
        }
        let (mut incoming, mut got) = (Incoming::new(), Vec::new());
        while out.backlog() > 0 {
            out.flush(near.as_fd()).unwrap();
            got.extend(drain(&mut incoming, &far));
        }
        got.extend(drain(&mut incoming, &far));
        assert_eq!(got, expected);
        assert_eq!((Arc::strong_count(&fd), incoming.surplus_fds), (1, 0), "none is kept");
    }
}
