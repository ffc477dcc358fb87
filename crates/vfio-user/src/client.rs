//! The VMM's side: for drivers, tools and tests. Calls block, for a limited time.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use dma::Protection;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};
use zerocopy::{IntoBytes, native_endian};

use crate::{
    codec::{
        Capabilities, MAJOR, MINOR, VersionError,
        wire::{
            self, CapHeader, DeviceInfo, DmaMap, DmaUnmap, FLAG_ERROR, FLAG_NO_REPLY, Header, IrqInfo, MAX_MESSAGE_FDS,
            MultiWrite, RegionAccess, RegionInfo, SetIrqs, SparseArea, SparseMmap, TYPE_COMMAND, Version, command, irq,
            region,
        },
    },
    framing::{Incoming, Outgoing, Received, send_with_fds},
};

/// How a client behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How long one call may take.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5) }
    }
}

impl ClientOptions {
    /// Sets how long one call may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// Why a call failed. After any but [`ClientError::Refused`] and [`ClientError::Argument`] the connection is of no more use,
/// and every further call gives [`ClientError::Closed`].
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("{}: cannot connect: {error}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What came of it.
        error: io::Error,
    },
    /// The connection failed.
    #[error("connection: {0}")]
    Io(#[source] io::Error),
    /// The server has closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// No answer came in time.
    #[error("{0}: no answer in time")]
    TimedOut(&'static str),
    /// The server says no.
    #[error("{command} refused: {error}")]
    Refused {
        /// The request.
        command: &'static str,
        /// Its reason.
        error: io::Error,
    },
    /// The server speaks another version.
    #[error("the server speaks protocol version {0}.{1}, this client {MAJOR}.0 to {MAJOR}.{MINOR}")]
    Version(u16, u16),
    /// The server's capabilities make no sense.
    #[error("VERSION: {0}")]
    Capabilities(VersionError),
    /// The server breaks the protocol.
    #[error("{command}: bad answer: {what}")]
    Protocol {
        /// The request.
        command: &'static str,
        /// What is wrong with the answer.
        what: &'static str,
    },
    /// The caller asks for what cannot be sent.
    #[error("{0}")]
    Argument(&'static str),
}

impl ClientError {
    fn is_fatal(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Argument(_))
    }
}

/// The longest description of a region that is asked for, in bytes.
const MAX_REGION_INFO: u32 = 64 << 10;

/// A region and what of it can be mapped.
#[derive(Debug)]
pub struct MappableRegion {
    /// The region.
    pub info: RegionInfo,
    /// The areas, inside the region; none when nothing can be mapped, one of the region's size when all can.
    pub areas: Vec<SparseArea>,
    /// The file. An area starts in it at [`RegionInfo::offset`] and its own offset.
    pub fd: Option<OwnedFd>,
}

/// A connection to a vfio-user server.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    incoming: Incoming,
    options: ClientOptions,
    next_id: u16,
    theirs: Capabilities,
    broken: bool,
}

impl Client {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(path: impl AsRef<Path>, options: ClientOptions) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let failed = |errno: Errno| ClientError::Connect { path: path.into(), error: errno.into() };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
        connect(&socket, &address).map_err(failed)?;
        Self::over(socket, options)
    }

    /// Negotiates over a stream socket that is connected already.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn over(socket: OwnedFd, options: ClientOptions) -> Result<Self, ClientError> {
        let incoming = Incoming::new();
        let mut this = Self { socket, incoming, options, next_id: 0, theirs: Capabilities::default(), broken: false };
        let version = Version { major: MAJOR, minor: MINOR };
        let json = Capabilities::ours().to_json();
        let (version, theirs) = this.call(command::VERSION, &[version.as_bytes(), &json], &[], |payload| {
            let (version, json) = Version::split(payload).ok_or(TOO_SHORT)?;
            Ok((version, Capabilities::parse(json)))
        })?;
        if version.major != MAJOR || version.minor > MINOR {
            return Err(ClientError::Version(version.major, version.minor));
        }
        this.theirs = theirs.map_err(ClientError::Capabilities)?;
        Ok(this)
    }

    /// What the server can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.theirs
    }

    /// DEVICE_GET_INFO.
    ///
    /// # Errors
    /// [`ClientError`]; so for all calls.
    pub fn device_info(&mut self) -> Result<DeviceInfo, ClientError> {
        let request = DeviceInfo { argsz: 16, ..DeviceInfo::default() };
        self.call(command::DEVICE_GET_INFO, &[request.as_bytes()], &[], first(DeviceInfo::split))
    }

    /// DEVICE_GET_REGION_INFO. Capabilities of the region are not asked for.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_info(&mut self, index: u32) -> Result<RegionInfo, ClientError> {
        let request = RegionInfo { argsz: 32, index, ..RegionInfo::default() };
        self.call(command::DEVICE_GET_REGION_INFO, &[request.as_bytes()], &[], |payload| {
            let (info, _) = RegionInfo::split(payload).ok_or(TOO_SHORT)?;
            if info.index == index { Ok(info) } else { Err(OTHER) }
        })
    }

    /// DEVICE_GET_REGION_INFO with the areas of the region that can be mapped.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn mappable_region(&mut self, index: u32) -> Result<MappableRegion, ClientError> {
        let mut argsz = 32;
        // Once to learn how much there is, and once with room for it.
        loop {
            let request = RegionInfo { argsz, index, ..RegionInfo::default() };
            let (region, wanted) =
                self.call_with_fds(command::DEVICE_GET_REGION_INFO, &[request.as_bytes()], &[], |payload, fds| {
                    let (info, _) = RegionInfo::split(payload).ok_or(TOO_SHORT)?;
                    if info.index != index {
                        return Err(OTHER);
                    }
                    if info.argsz > argsz && argsz == 32 {
                        return Ok((MappableRegion { info, areas: Vec::new(), fd: None }, Some(info.argsz)));
                    }
                    let areas = if info.flags & region::FLAG_MMAP == 0 { Vec::new() } else { areas(&info, payload)? };
                    Ok((MappableRegion { info, areas, fd: fds.drain(..).next() }, None))
                })?;
            match wanted {
                Some(wanted) if wanted <= MAX_REGION_INFO => argsz = wanted,
                _ => return Ok(region),
            }
        }
    }

    /// DEVICE_GET_IRQ_INFO.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let request = IrqInfo { argsz: 16, index, ..IrqInfo::default() };
        self.call(command::DEVICE_GET_IRQ_INFO, &[request.as_bytes()], &[], |payload| {
            let (info, _) = IrqInfo::split(payload).ok_or(TOO_SHORT)?;
            if info.index == index { Ok(info) } else { Err(OTHER) }
        })
    }

    /// Reads from a region.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let request = self.access(region, offset, data.len())?;
        self.call(command::REGION_READ, &[request.as_bytes()], &[], |payload| {
            let (answer, bytes) = RegionAccess::split(payload).ok_or(TOO_SHORT)?;
            if answer != request {
                return Err(OTHER);
            }
            if bytes.len() != data.len() {
                return Err("not as many bytes as were asked for");
            }
            data.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Writes to a region and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let request = self.access(region, offset, data.len())?;
        self.call(command::REGION_WRITE, &[request.as_bytes(), data], &[], |payload| {
            let (answer, _) = RegionAccess::split(payload).ok_or(TOO_SHORT)?;
            if answer == request { Ok(()) } else { Err(OTHER) }
        })
    }

    /// Writes to a region; no answer is asked for.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_write_posted(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let request = self.access(region, offset, data.len())?;
        self.guarded(|this| {
            let deadline = Instant::now() + this.options.timeout;
            this.send(command::REGION_WRITE, FLAG_NO_REPLY, &[request.as_bytes(), data], &[], deadline).map(drop)
        })
    }

    /// Sends several writes, of at most 8 bytes each, in one message without an answer.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Argument`] when the server cannot do it or a write is too long.
    pub fn region_write_multi_posted(&mut self, writes: &[(u32, u64, &[u8])]) -> Result<(), ClientError> {
        if !self.theirs.write_multiple {
            return Err(ClientError::Argument("the server does not take several writes in one message"));
        }
        let mut payload = (writes.len() as u64).as_bytes().to_vec();
        for (region, offset, bytes) in writes {
            let mut write = MultiWrite {
                offset: (*offset).into(),
                region: (*region).into(),
                count: native_endian::U32::new(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
                data: [0; 8],
            };
            let data = write.data.get_mut(..bytes.len()).ok_or(ClientError::Argument("more than 8 bytes"))?;
            data.copy_from_slice(bytes);
            payload.extend_from_slice(write.as_bytes());
        }
        self.guarded(|this| {
            let deadline = Instant::now() + this.options.timeout;
            this.send(command::REGION_WRITE_MULTI, FLAG_NO_REPLY, &[&payload], &[], deadline).map(drop)
        })
    }

    /// Gives the device `size` bytes of memory at guest address `address`: of a file from an offset, or such that it
    /// cannot reach.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_map(
        &mut self,
        address: u64,
        size: u64,
        protection: Protection,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), ClientError> {
        let flags = if protection.read { wire::MAP_FLAG_READ } else { 0 }
            | if protection.write { wire::MAP_FLAG_WRITE } else { 0 };
        let offset = file.map_or(0, |(_, offset)| offset);
        let request = DmaMap { argsz: 32, flags, offset, address, size };
        let fds: Vec<_> = file.map(|(fd, _)| fd).into_iter().collect();
        self.call(command::DMA_MAP, &[request.as_bytes()], &fds, |_| Ok(()))
    }

    /// Takes memory back and says how many bytes the server let go. The answer comes when no request uses it any more.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_unmap(&mut self, address: u64, size: u64) -> Result<u64, ClientError> {
        self.unmap(DmaUnmap { argsz: 24, flags: 0, address, size })
    }

    /// Takes all memory back.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_unmap_all(&mut self) -> Result<(), ClientError> {
        self.unmap(DmaUnmap { argsz: 24, flags: wire::UNMAP_FLAG_ALL, address: 0, size: 0 }).map(drop)
    }

    fn unmap(&mut self, request: DmaUnmap) -> Result<u64, ClientError> {
        self.call(command::DMA_UNMAP, &[request.as_bytes()], &[], |payload| {
            let (answer, _) = DmaUnmap::split(payload).ok_or(TOO_SHORT)?;
            if answer.address == request.address { Ok(answer.size) } else { Err(OTHER) }
        })
    }

    /// Binds eventfds to the interrupts of an index from `start` on, in as many messages as the server needs.
    ///
    /// # Errors
    /// [`ClientError`]. Messages before the one that failed have taken effect.
    pub fn connect_irqs(&mut self, index: u32, start: u32, eventfds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let limit = usize::try_from(self.theirs.max_msg_fds).unwrap_or(usize::MAX).clamp(1, MAX_MESSAGE_FDS);
        let mut start = start;
        for fds in eventfds.chunks(limit) {
            let count = u32::try_from(fds.len()).unwrap_or(u32::MAX);
            self.set_irqs(index, irq::DATA_EVENTFD | irq::ACTION_TRIGGER, start, count, &[], fds)?;
            start = start.saturating_add(count);
        }
        Ok(())
    }

    /// Unbinds all interrupts of an index.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn disable_irqs(&mut self, index: u32) -> Result<(), ClientError> {
        self.set_irqs(index, irq::DATA_NONE | irq::ACTION_TRIGGER, 0, 0, &[], &[])
    }

    /// DEVICE_SET_IRQS as it is: one data flag and one action flag of [`wire::irq`], the range, and what belongs to them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        bools: &[u8],
        eventfds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let argsz =
            u32::try_from(SetIrqs::SIZE + bools.len()).map_err(|_| ClientError::Argument("too many booleans"))?;
        let request = SetIrqs { argsz, flags, index, start, count };
        self.call(command::DEVICE_SET_IRQS, &[request.as_bytes(), bools], eventfds, |_| Ok(()))
    }

    /// Resets the device. The answer comes when that is done.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.call(command::DEVICE_RESET, &[], &[], |_| Ok(()))
    }

    fn access(&self, region: u32, offset: u64, len: usize) -> Result<RegionAccess, ClientError> {
        match u32::try_from(len) {
            Ok(count) if u64::from(count) <= self.theirs.max_data_xfer_size && len <= wire::MAX_DATA_XFER => {
                Ok(RegionAccess { offset, region, count })
            }
            _ => Err(ClientError::Argument("more bytes than the server takes at one time")),
        }
    }

    /// Sends a request and hands the payload of its answer to `parse`.
    fn call<T>(
        &mut self,
        command: u16,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        parse: impl FnOnce(&[u8]) -> Result<T, &'static str>,
    ) -> Result<T, ClientError> {
        self.call_with_fds(command, parts, fds, |payload, _| parse(payload))
    }

    /// As [`Client::call`]; `parse` also gets the descriptors of the answer.
    fn call_with_fds<T>(
        &mut self,
        command: u16,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        parse: impl FnOnce(&[u8], &mut Vec<OwnedFd>) -> Result<T, &'static str>,
    ) -> Result<T, ClientError> {
        self.guarded(|this| {
            let deadline = Instant::now() + this.options.timeout;
            let id = this.send(command, 0, parts, fds, deadline)?;
            this.answer(id, command, parse, deadline)
        })
    }

    /// Runs a call, unless an earlier one has spoilt the connection.
    fn guarded<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, ClientError>) -> Result<T, ClientError> {
        if self.broken {
            return Err(ClientError::Closed);
        }
        let result = call(self);
        self.broken = matches!(&result, Err(error) if error.is_fatal());
        result
    }

    fn send(
        &mut self,
        command: u16,
        flags: u32,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<u16, ClientError> {
        if fds.len() > MAX_MESSAGE_FDS {
            return Err(ClientError::Argument("more than 16 file descriptors in one message"));
        }
        let size = Header::SIZE + parts.iter().map(|part| part.len()).sum::<usize>();
        let size = u32::try_from(size).map_err(|_| ClientError::Argument("message too long"))?;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let header = Header { message_id: id, command, size, flags: TYPE_COMMAND | flags, error: 0 };
        let mut slices = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(header.as_bytes()));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let (mut rest, mut fds) = (&mut slices[..], fds);
        while rest.iter().any(|slice| !slice.is_empty()) {
            match send_with_fds(self.socket.as_fd(), rest, fds) {
                Ok(sent) => {
                    fds = &[];
                    IoSlice::advance_slices(&mut rest, sent);
                }
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, command, deadline)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ClientError::Closed),
                Err(errno) => return Err(ClientError::Io(errno.into())),
            }
        }
        Ok(id)
    }

    fn answer<T>(
        &mut self,
        id: u16,
        command: u16,
        parse: impl FnOnce(&[u8], &mut Vec<OwnedFd>) -> Result<T, &'static str>,
        deadline: Instant,
    ) -> Result<T, ClientError> {
        let name = command::name(command);
        let bad = |what| ClientError::Protocol { command: name, what };
        loop {
            while let Some(message) = self.incoming.next().map_err(|_| bad("size of the message"))? {
                let (header, payload) = Header::split(message.bytes).ok_or_else(|| bad(TOO_SHORT))?;
                if header.flags & wire::TYPE_MASK == TYPE_COMMAND {
                    // A request of the server; we have nothing for it.
                    if !header.no_reply() {
                        let mut out = Outgoing::default();
                        out.error(&header, Errno::NOTSUP);
                        out.flush(self.socket.as_fd()).map_err(|errno| ClientError::Io(errno.into()))?;
                    }
                    continue;
                }
                if (header.message_id, header.command) != (id, command) || !header.is_reply() {
                    return Err(bad(OTHER));
                }
                if header.flags & FLAG_ERROR != 0 {
                    let error = io::Error::from_raw_os_error(i32::try_from(header.error).unwrap_or(0));
                    return Err(ClientError::Refused { command: name, error });
                }
                return parse(payload, message.fds).map_err(bad);
            }
            match self.incoming.receive(self.socket.as_fd()) {
                Ok(Received::Bytes) => {}
                Ok(Received::Nothing) => self.wait(PollFlags::IN, command, deadline)?,
                Ok(Received::End) | Err(Errno::CONNRESET) => return Err(ClientError::Closed),
                Err(errno) => return Err(ClientError::Io(errno.into())),
            }
        }
    }

    fn wait(&self, flags: PollFlags, command: u16, deadline: Instant) -> Result<(), ClientError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::TimedOut(command::name(command)));
        }
        let left =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&left)) {
            // Whether the time is over is seen at the next call.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(ClientError::Io(errno.into())),
        }
    }
}

/// The areas that an answer names for a region with the mmap flag.
fn areas(info: &RegionInfo, payload: &[u8]) -> Result<Vec<SparseArea>, &'static str> {
    let mut at = if info.flags & region::FLAG_CAPS != 0 { info.cap_offset } else { 0 };
    while at != 0 {
        let capability = usize::try_from(at).ok().and_then(|at| payload.get(at..)).ok_or(TOO_SHORT)?;
        let (header, body) = CapHeader::split(capability).ok_or(TOO_SHORT)?;
        if header.id == region::CAP_SPARSE_MMAP {
            let (sparse, mut rest) = SparseMmap::split(body).ok_or(TOO_SHORT)?;
            let mut areas = Vec::new();
            for _ in 0..sparse.count {
                let (area, behind) = SparseArea::split(rest).ok_or(TOO_SHORT)?;
                if area.offset.checked_add(area.size).is_none_or(|end| end > info.size) {
                    return Err("an area outside of its region");
                }
                areas.push(area);
                rest = behind;
            }
            return Ok(areas);
        }
        if header.next <= at && header.next != 0 {
            return Err("capabilities that go backwards");
        }
        at = header.next;
    }
    Ok(vec![SparseArea { offset: 0, size: info.size }])
}

const TOO_SHORT: &str = "too short";
const OTHER: &str = "it belongs to something else";

/// A parser that takes the structure at the front.
fn first<T>(split: impl FnOnce(&[u8]) -> Option<(T, &[u8])>) -> impl FnOnce(&[u8]) -> Result<T, &'static str> {
    |payload| split(payload).map(|(first, _)| first).ok_or(TOO_SHORT)
}
