//! What the messages of one client do to the function. Knows no socket.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Weak},
};

use dma::{AddressSpace, Backing, MapError, MemoryMap, Protection};
use pci::{CONFIG_SPACE_SIZE, MappableArea, PciFunction};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::{
    codec::{
        Capabilities, MAJOR, MINOR, Request, decode,
        wire::{
            self, CapHeader, DeviceInfo, DmaMap, DmaUnmap, Header, MultiWrite, RegionAccess, RegionInfo, RegionIoFds,
            SparseArea, SparseMmap, Version, region,
        },
    },
    framing::{Message, Outgoing},
    irqs::Irqs,
    statistics::Statistics,
};

/// Writable memory of this size without a descriptor is taken for guest RAM, in bytes.
const LOOKS_LIKE_RAM: u64 = 1 << 20;

/// Why a client cannot stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Expelled {
    #[error("{} before VERSION", wire::command::name(*.0))]
    NoVersion(u16),
    #[error("protocol version {0}.{1} proposed, this server speaks {MAJOR}.0 to {MAJOR}.{MINOR}")]
    Version(u16, u16),
    #[error("VERSION was not understood")]
    BadVersion,
}

/// An answer that must wait until the function has let go.
#[derive(Debug)]
enum Pending {
    Unmap { header: Header, reply: DmaUnmap, old: Arc<MemoryMap> },
    Reset { header: Header },
}

/// One client, from VERSION to the end.
#[derive(Debug)]
pub(crate) struct Session {
    negotiated: bool,
    /// Sizes of the BARs in bytes.
    bars: [u64; 6],
    pub(crate) irqs: Irqs,
    space: AddressSpace,
    /// Snapshots that the function had before; some request may still hold one.
    retired: Vec<Weak<MemoryMap>>,
    pending: Option<Pending>,
    /// A writable range with a descriptor has come: so the guest's RAM is shared.
    has_shared_memory: bool,
    warned: bool,
    refusal_logged: bool,
    unmappable_logged: bool,
    sigbus_events: u64,
}

impl Session {
    pub(crate) fn new<F: PciFunction + ?Sized>(function: &F) -> Self {
        Self {
            negotiated: false,
            bars: function.bars().map(|bar| bar.map_or(0, |bar| bar.size)),
            irqs: Irqs::new(function.msix_vectors()),
            space: AddressSpace::new(),
            retired: Vec::new(),
            pending: None,
            has_shared_memory: false,
            warned: false,
            refusal_logged: false,
            unmappable_logged: false,
            sigbus_events: dma::sigbus::events(),
        }
    }

    /// An answer is outstanding: no further message may be handled before [`Session::settle`] says so.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// The client cut a file short that it had given us.
    pub(crate) fn is_torn(&mut self) -> bool {
        let events = dma::sigbus::events();
        events != std::mem::replace(&mut self.sigbus_events, events) && self.space.snapshot().is_torn()
    }

    /// Executes one message.
    ///
    /// # Errors
    /// The client must go. An answer may have been added.
    pub(crate) fn handle<F: PciFunction + ?Sized>(
        &mut self,
        message: Message<'_>,
        function: &mut F,
        out: &mut Outgoing,
        stats: &mut Statistics,
    ) -> Result<(), Expelled> {
        let Message { bytes, fds, fds_lost } = message;
        let Some((header, _)) = Header::split(bytes) else { return Ok(()) };
        stats.count(header.command);
        if header.no_reply() {
            stats.posted += 1;
        }
        let request = match decode(bytes) {
            Ok(request) => request,
            Err(error) => {
                stats.malformed += 1;
                tracing::debug!(%error, "malformed message");
                if !header.is_reply() {
                    self.fail(&header, Errno::INVAL, out, stats);
                }
                return if self.negotiated { Ok(()) } else { Err(Expelled::BadVersion) };
            }
        };
        if !self.negotiated && !matches!(request, Request::Version { .. }) {
            self.fail(&header, Errno::INVAL, out, stats);
            return Err(Expelled::NoVersion(header.command));
        }
        if !matches!(request, Request::DmaMap(_) | Request::SetIrqs(..)) && !fds.is_empty() {
            stats.surplus_fds += fds.len() as u64;
            fds.clear();
        }
        let done = match request {
            Request::DmaMap(_) | Request::SetIrqs(..) if fds_lost => {
                tracing::error!("file descriptors of a message were lost: this process may have too few (ulimit -n)");
                Err(Errno::MFILE)
            }
            Request::RegionWrite(access, data) => {
                self.write(access.region, access.offset, data, function, stats);
                self.reply(&header, access.as_bytes(), out);
                Ok(())
            }
            Request::RegionWriteMulti(writes) => {
                self.write_multi(writes, function, stats);
                self.reply(&header, (writes.len() as u64).as_bytes(), out);
                Ok(())
            }
            Request::RegionRead(access) => {
                if !header.no_reply() {
                    self.read(&header, &access, function, out, stats);
                }
                Ok(())
            }
            Request::Version { version, capabilities } => {
                return self.version(&header, version, &capabilities, out, stats);
            }
            Request::DmaMap(map) => self.dma_map(&map, fds, function).map(|()| self.reply(&header, &[], out)),
            Request::DmaUnmap(unmap) => self.dma_unmap(&header, &unmap, function),
            Request::DeviceInfo(info) => self.device_info(&header, &info, out),
            Request::RegionInfo(info) => self.region_info(&header, &info, function, out),
            Request::RegionIoFds(info) => self.region_io_fds(&header, &info, out),
            Request::IrqInfo(info) => match self.irqs.info(info.index) {
                Some(answer) if info.argsz >= answer.argsz => {
                    self.reply(&header, answer.as_bytes(), out);
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            },
            Request::SetIrqs(set, bools) => {
                self.irqs.set(&set, bools, fds, function).map(|()| self.reply(&header, &[], out))
            }
            Request::DeviceReset => {
                function.reset();
                self.pending = Some(Pending::Reset { header });
                Ok(())
            }
            Request::Unsupported(_) => Err(Errno::NOTSUP),
        };
        if let Err(errno) = done {
            self.fail(&header, errno, out, stats);
        }
        Ok(())
    }

    /// Looks whether the outstanding answer can be given, gives it, and says whether none is outstanding.
    pub(crate) fn settle<F: PciFunction + ?Sized>(&mut self, function: &F, out: &mut Outgoing) -> bool {
        let done = match &self.pending {
            None => return true,
            Some(Pending::Reset { .. }) => function.is_quiet(),
            Some(Pending::Unmap { old, .. }) => AddressSpace::is_idle(old) && self.retired_is_idle(),
        };
        if !done {
            return false;
        }
        match self.pending.take() {
            Some(Pending::Reset { header }) => self.reply(&header, &[], out),
            Some(Pending::Unmap { header, reply, .. }) => self.reply(&header, reply.as_bytes(), out),
            None => {}
        }
        true
    }

    /// The client is gone: takes everything away from the function and starts its reset.
    pub(crate) fn end<F: PciFunction + ?Sized>(mut self, function: &mut F) -> Draining {
        function.reset();
        function.revoke();
        self.irqs.disconnect(function);
        let mut retired = std::mem::take(&mut self.retired);
        retired.push(Arc::downgrade(&self.space.snapshot()));
        if let Some(Pending::Unmap { old, .. }) = &self.pending {
            retired.push(Arc::downgrade(old));
        }
        // The function may hold this one; `self` goes, and with it our own hold on the memory.
        function.set_memory(AddressSpace::new().snapshot());
        Draining { retired }
    }

    fn retired_is_idle(&self) -> bool {
        self.retired.iter().all(|map| map.strong_count() == 0)
    }

    fn reply(&self, header: &Header, payload: &[u8], out: &mut Outgoing) {
        if !header.no_reply() {
            out.reply(header, payload, 0);
        }
    }

    fn fail(&self, header: &Header, errno: Errno, out: &mut Outgoing, stats: &mut Statistics) {
        if !header.no_reply() {
            stats.errors += 1;
            out.error(header, errno);
        }
    }

    fn version(
        &mut self,
        header: &Header,
        version: Version,
        theirs: &Capabilities,
        out: &mut Outgoing,
        stats: &mut Statistics,
    ) -> Result<(), Expelled> {
        if self.negotiated {
            self.fail(header, Errno::INVAL, out, stats);
            return Ok(());
        }
        if version.major != MAJOR {
            self.fail(header, Errno::INVAL, out, stats);
            return Err(Expelled::Version(version.major, version.minor));
        }
        self.negotiated = true;
        let ours = Capabilities { write_multiple: theirs.write_multiple, ..Capabilities::ours() };
        let answer = Version { major: MAJOR, minor: version.minor.min(MINOR) };
        tracing::debug!(major = version.major, minor = version.minor, ?theirs, "version agreed");
        let mut payload = answer.as_bytes().to_vec();
        payload.extend_from_slice(&ours.to_json());
        self.reply(header, &payload, out);
        Ok(())
    }

    fn dma_map<F: PciFunction + ?Sized>(
        &mut self,
        map: &DmaMap,
        fds: &mut Vec<OwnedFd>,
        function: &mut F,
    ) -> Result<(), Errno> {
        if fds.len() > 1 {
            return Err(Errno::INVAL);
        }
        let protection =
            Protection { read: map.flags & wire::MAP_FLAG_READ != 0, write: map.flags & wire::MAP_FLAG_WRITE != 0 };
        let shared = !fds.is_empty();
        let backing = fds.pop().map_or(Backing::None, |fd| Backing::File { fd, offset: map.offset });
        let mut result = self.space_map(map, backing, protection);
        if let Err(MapError::Mmap { errno: Errno::NODEV, .. }) = result {
            // Memory of some device. QEMU would abort on an error, and the guest has no reason to use this for I/O.
            tracing::warn!(address = map.address, size = map.size, "file cannot be mapped; the device cannot reach it");
            result = self.space_map(map, Backing::None, protection);
        }
        if let Err(error) = result {
            if !std::mem::replace(&mut self.refusal_logged, true) {
                tracing::warn!(%error, "DMA_MAP refused; later ones are not logged");
            }
            return Err(match error {
                MapError::BadRange { .. } => Errno::INVAL,
                MapError::Overlap { .. } => Errno::EXIST,
                MapError::TooMany => Errno::NOSPC,
                MapError::NoMatch { .. } => Errno::NOENT,
                MapError::Mmap { errno, .. } => errno,
            });
        }
        tracing::debug!(address = map.address, size = map.size, offset = map.offset, shared, ?protection, "mapped");
        self.has_shared_memory |= shared && protection.write;
        if !shared && protection.write && map.size > LOOKS_LIKE_RAM && !self.has_shared_memory && !self.warned {
            self.warned = true;
            tracing::warn!(
                "guest memory at {:#x} came without a file descriptor, so the device cannot reach it: share the guest's RAM \
                 (QEMU: -object memory-backend-memfd,id=ram0,size=SIZE,share=on -machine memory-backend=ram0; \
                 Cloud Hypervisor: --memory size=SIZE,shared=on)",
                map.address
            );
        }
        function.set_memory(self.space.snapshot());
        Ok(())
    }

    /// Maps, and remembers the snapshot that the function had.
    fn space_map(&mut self, map: &DmaMap, backing: Backing, protection: Protection) -> Result<(), MapError> {
        let old = self.space.snapshot();
        self.space.map(map.address, map.size, backing, protection)?;
        self.retired.retain(|map| map.strong_count() > 0);
        self.retired.push(Arc::downgrade(&old));
        Ok(())
    }

    fn dma_unmap<F: PciFunction + ?Sized>(
        &mut self,
        header: &Header,
        unmap: &DmaUnmap,
        function: &mut F,
    ) -> Result<(), Errno> {
        if unmap.flags & wire::UNMAP_FLAG_DIRTY_BITMAP != 0 {
            return Err(Errno::NOTSUP);
        }
        let old = self.space.snapshot();
        let bytes = match unmap.flags {
            // vfio.h: with this flag, address and size are zero.
            wire::UNMAP_FLAG_ALL if unmap.address == 0 && (unmap.size == 0 || unmap.size == u64::MAX) => {
                self.space.unmap_all();
                unmap.size
            }
            0 => self.space.unmap(unmap.address, unmap.size).map_err(|error| {
                tracing::debug!(%error, "DMA_UNMAP refused");
                match error {
                    MapError::NoMatch { .. } => Errno::NOENT,
                    _ => Errno::INVAL,
                }
            })?,
            _ => return Err(Errno::INVAL),
        };
        tracing::debug!(address = unmap.address, bytes, "unmapped");
        function.set_memory(self.space.snapshot());
        let reply = DmaUnmap { argsz: 24, size: bytes, ..*unmap };
        self.pending = Some(Pending::Unmap { header: *header, reply, old });
        Ok(())
    }

    fn device_info(&self, header: &Header, info: &DeviceInfo, out: &mut Outgoing) -> Result<(), Errno> {
        if info.argsz < 16 {
            return Err(Errno::INVAL);
        }
        let answer = DeviceInfo {
            argsz: 16,
            flags: wire::DEVICE_FLAG_RESET | wire::DEVICE_FLAG_PCI,
            regions: region::COUNT,
            irqs: wire::irq::COUNT,
        };
        self.reply(header, answer.as_bytes(), out);
        Ok(())
    }

    fn region_size(&self, index: u32) -> Option<u64> {
        match index {
            0..=region::BAR_LAST => self.bars.get(usize::try_from(index).ok()?).copied(),
            region::CONFIG => Some(CONFIG_SPACE_SIZE as u64),
            region::ROM | region::VGA => Some(0),
            _ => None,
        }
    }

    fn region_info<F: PciFunction + ?Sized>(
        &mut self,
        header: &Header,
        info: &RegionInfo,
        function: &F,
        out: &mut Outgoing,
    ) -> Result<(), Errno> {
        let size = self.region_size(info.index).ok_or(Errno::INVAL)?;
        if info.argsz < 32 {
            return Err(Errno::INVAL);
        }
        let flags = if size > 0 { region::FLAG_READ | region::FLAG_WRITE } else { 0 };
        let answer = RegionInfo { argsz: 32, flags, index: info.index, cap_offset: 0, size, offset: 0 };
        // One region that can be mapped, and QEMU waits for the answer to every write.
        match self.mappable(info.index, size, function) {
            None => self.reply(header, answer.as_bytes(), out),
            Some(_) if header.no_reply() => {}
            Some(area) => out.reply_with_fd(header, &sparse(answer, info.argsz, &area), area.fd),
        }
        Ok(())
    }

    /// The area of a region that the function lets be mapped, if this host's pages allow it.
    fn mappable<F: PciFunction + ?Sized>(&mut self, index: u32, size: u64, function: &F) -> Option<MappableArea> {
        if index > region::BAR_LAST || size == 0 {
            return None;
        }
        let area = function.mappable(bar_slot(index))?;
        let page = dma::page_size();
        let whole = area.len > 0 && area.offset.is_multiple_of(page) && area.len.is_multiple_of(page);
        if whole && area.offset.checked_add(area.len).is_some_and(|end| end <= size) {
            return Some(area);
        }
        if !std::mem::replace(&mut self.unmappable_logged, true) {
            let MappableArea { offset, len, .. } = area;
            tracing::warn!(
                bar = index,
                offset,
                len,
                page,
                "an area is not made of this host's pages: accesses are trapped"
            );
        }
        None
    }

    fn region_io_fds(&self, header: &Header, info: &RegionIoFds, out: &mut Outgoing) -> Result<(), Errno> {
        self.region_size(info.index).ok_or(Errno::INVAL)?;
        if info.argsz < 16 {
            return Err(Errno::INVAL);
        }
        let answer = RegionIoFds { argsz: 16, flags: 0, index: info.index, count: 0 };
        self.reply(header, answer.as_bytes(), out);
        Ok(())
    }

    /// Whether an access is inside its region.
    #[inline]
    fn fits(&self, index: u32, offset: u64, len: usize) -> bool {
        self.region_size(index).is_some_and(|size| offset.checked_add(len as u64).is_some_and(|end| end <= size))
    }

    fn read<F: PciFunction + ?Sized>(
        &self,
        header: &Header,
        access: &RegionAccess,
        function: &mut F,
        out: &mut Outgoing,
        stats: &mut Statistics,
    ) {
        // decode() limits it to MAX_DATA_XFER.
        let len = usize::try_from(access.count).unwrap_or(0);
        let data = out.reply(header, access.as_bytes(), len);
        if !self.fits(access.region, access.offset, len) {
            // Cloud Hypervisor's client would wait for ever for the data of an error.
            stats.stray_accesses += 1;
            data.fill(0xff);
        } else if len > 0 {
            match (access.region, u16::try_from(access.offset)) {
                (region::CONFIG, Ok(offset)) => function.config_read(offset, data),
                (region::CONFIG, Err(_)) => data.fill(0xff),
                (bar, _) => function.bar_read(bar_slot(bar), access.offset, data),
            }
        }
    }

    #[inline]
    fn write<F: PciFunction + ?Sized>(
        &self,
        index: u32,
        offset: u64,
        data: &[u8],
        function: &mut F,
        stats: &mut Statistics,
    ) {
        if !self.fits(index, offset, data.len()) {
            stats.stray_accesses += 1;
        } else if !data.is_empty() {
            match (index, u16::try_from(offset)) {
                (region::CONFIG, Ok(offset)) => function.config_write(offset, data),
                (region::CONFIG, Err(_)) => {}
                (bar, _) => function.bar_write(bar_slot(bar), offset, data),
            }
        }
    }

    fn write_multi<F: PciFunction + ?Sized>(&self, writes: &[MultiWrite], function: &mut F, stats: &mut Statistics) {
        for write in writes {
            let bytes = write.bytes().unwrap_or_default();
            self.write(write.region.get(), write.offset.get(), bytes, function, stats);
        }
    }
}

/// The answer about a region with an area that can be mapped. Who has no room for the area is told how much it takes. The offset
/// of the list is there all the same: QEMU refuses an answer that has the flag and not the offset.
fn sparse(answer: RegionInfo, argsz: u32, area: &MappableArea) -> Vec<u8> {
    const FULL: usize = RegionInfo::SIZE + CapHeader::SIZE + SparseMmap::SIZE + SparseArea::SIZE;
    let full = u32::try_from(FULL).unwrap_or(u32::MAX);
    let room = argsz >= full;
    let answer = RegionInfo {
        argsz: full,
        flags: answer.flags | region::FLAG_MMAP | region::FLAG_CAPS,
        cap_offset: 32,
        ..answer
    };
    let mut payload = answer.as_bytes().to_vec();
    if room {
        payload.extend_from_slice(CapHeader { id: region::CAP_SPARSE_MMAP, version: 1, next: 0 }.as_bytes());
        payload.extend_from_slice(SparseMmap { count: 1, reserved: 0 }.as_bytes());
        payload.extend_from_slice(SparseArea { offset: area.offset, size: area.len }.as_bytes());
        debug_assert_eq!(payload.len(), FULL);
    }
    payload
}

/// The slot of a region that [`Session::fits`] found to be a BAR with bytes in it.
fn bar_slot(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// A function that a client left behind.
#[derive(Debug)]
pub(crate) struct Draining {
    retired: Vec<Weak<MemoryMap>>,
}

impl Draining {
    /// The function is as good as new, and nothing of the client's memory is in use.
    pub(crate) fn is_done<F: PciFunction + ?Sized>(&self, function: &F) -> bool {
        function.is_quiet() && self.retired.iter().all(|map| map.strong_count() == 0)
    }
}
