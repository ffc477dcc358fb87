//! Layouts and numbers of the protocol (QEMU's `docs/interop/vfio-user.rst` and `linux/vfio.h`).
//!
//! All fields are in the byte order of the host. Offsets in the comments count from the end of the header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, native_endian};

/// Largest `count` of a data transfer, in bytes; what a peer assumes when nothing is negotiated.
pub const MAX_DATA_XFER: usize = 1 << 20;
/// Largest message that is accepted, in bytes: a write of [`MAX_DATA_XFER`].
pub const MAX_MESSAGE: usize = Header::SIZE + RegionAccess::SIZE + MAX_DATA_XFER;
/// File descriptors that one message may carry to us.
pub const MAX_MESSAGE_FDS: usize = 16;

/// Message type in [`Header::flags`]: a request.
pub const TYPE_COMMAND: u32 = 0;
/// Message type in [`Header::flags`]: an answer.
pub const TYPE_REPLY: u32 = 1;
/// The bits of [`Header::flags`] that hold the type.
pub const TYPE_MASK: u32 = 0xf;
/// The sender of a request wants no answer, not even of an error.
pub const FLAG_NO_REPLY: u32 = 1 << 4;
/// The answer is an error.
pub const FLAG_ERROR: u32 = 1 << 5;

/// Command numbers.
pub mod command {
    #![allow(missing_docs)]
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DMA_READ: u16 = 11;
    pub const DMA_WRITE: u16 = 12;
    pub const DEVICE_RESET: u16 = 13;
    pub const DIRTY_PAGES: u16 = 14;
    pub const REGION_WRITE_MULTI: u16 = 15;
    pub const DEVICE_FEATURE: u16 = 16;
    pub const MIG_DATA_READ: u16 = 17;
    pub const MIG_DATA_WRITE: u16 = 18;
    /// One more than the largest number in use.
    pub const COUNT: u16 = 19;

    /// The protocol's name of a command.
    pub fn name(command: u16) -> &'static str {
        const NAMES: [&str; COUNT as usize] = [
            "UNKNOWN",
            "VERSION",
            "DMA_MAP",
            "DMA_UNMAP",
            "DEVICE_GET_INFO",
            "DEVICE_GET_REGION_INFO",
            "DEVICE_GET_REGION_IO_FDS",
            "DEVICE_GET_IRQ_INFO",
            "DEVICE_SET_IRQS",
            "REGION_READ",
            "REGION_WRITE",
            "DMA_READ",
            "DMA_WRITE",
            "DEVICE_RESET",
            "DIRTY_PAGES",
            "REGION_WRITE_MULTI",
            "DEVICE_FEATURE",
            "MIG_DATA_READ",
            "MIG_DATA_WRITE",
        ];
        NAMES.get(usize::from(command)).copied().unwrap_or(NAMES[0])
    }
}

/// Region indexes of a PCI device (`VFIO_PCI_*_REGION_INDEX`).
pub mod region {
    /// The BARs are regions 0 to 5.
    pub const BAR_LAST: u32 = 5;
    /// Expansion ROM.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// VGA.
    pub const VGA: u32 = 8;
    /// Number of regions.
    pub const COUNT: u32 = 9;
    /// `VFIO_REGION_INFO_FLAG_READ`.
    pub const FLAG_READ: u32 = 1 << 0;
    /// `VFIO_REGION_INFO_FLAG_WRITE`.
    pub const FLAG_WRITE: u32 = 1 << 1;
    /// `VFIO_REGION_INFO_FLAG_MMAP`.
    pub const FLAG_MMAP: u32 = 1 << 2;
    /// `VFIO_REGION_INFO_FLAG_CAPS`: a list of capabilities follows, or would.
    pub const FLAG_CAPS: u32 = 1 << 3;
    /// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`: only parts of the region can be mapped.
    pub const CAP_SPARSE_MMAP: u16 = 1;
}

/// Interrupt indexes of a PCI device (`VFIO_PCI_*_IRQ_INDEX`).
pub mod irq {
    /// The legacy line.
    pub const INTX: u32 = 0;
    /// Plain MSI.
    pub const MSI: u32 = 1;
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Device errors.
    pub const ERROR: u32 = 3;
    /// The device asks to be given back.
    pub const REQUEST: u32 = 4;
    /// Number of interrupt indexes.
    pub const COUNT: u32 = 5;

    /// `VFIO_IRQ_INFO_EVENTFD`.
    pub const INFO_EVENTFD: u32 = 1 << 0;
    /// `VFIO_IRQ_INFO_MASKABLE`.
    pub const INFO_MASKABLE: u32 = 1 << 1;
    /// `VFIO_IRQ_INFO_AUTOMASKED`.
    pub const INFO_AUTOMASKED: u32 = 1 << 2;
    /// `VFIO_IRQ_INFO_NORESIZE`.
    pub const INFO_NORESIZE: u32 = 1 << 3;

    /// `VFIO_IRQ_SET_DATA_NONE`.
    pub const DATA_NONE: u32 = 1 << 0;
    /// `VFIO_IRQ_SET_DATA_BOOL`.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// `VFIO_IRQ_SET_DATA_EVENTFD`.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// `VFIO_IRQ_SET_ACTION_MASK`.
    pub const ACTION_MASK: u32 = 1 << 3;
    /// `VFIO_IRQ_SET_ACTION_UNMASK`.
    pub const ACTION_UNMASK: u32 = 1 << 4;
    /// `VFIO_IRQ_SET_ACTION_TRIGGER`.
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}

/// `VFIO_DEVICE_FLAGS_RESET`.
pub const DEVICE_FLAG_RESET: u32 = 1 << 0;
/// `VFIO_DEVICE_FLAGS_PCI`.
pub const DEVICE_FLAG_PCI: u32 = 1 << 1;
/// DMA_MAP: the device may read the range.
pub const MAP_FLAG_READ: u32 = 1 << 0;
/// DMA_MAP: the device may write the range.
pub const MAP_FLAG_WRITE: u32 = 1 << 1;
/// DMA_UNMAP: report dirty pages (`VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP`).
pub const UNMAP_FLAG_DIRTY_BITMAP: u32 = 1 << 0;
/// DMA_UNMAP: take everything away (`VFIO_DMA_UNMAP_FLAG_ALL`).
pub const UNMAP_FLAG_ALL: u32 = 1 << 1;

macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident[$size:literal] { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)* }

        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;

            /// Takes the structure off the front of `bytes`.
            pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
                Self::read_from_prefix(bytes).ok()
            }
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

wire! {
    /// The start of every message.
    pub struct Header[16] {
        /// The sender's name for the request; the answer repeats it.
        message_id: u16,
        /// See [`command`].
        command: u16,
        /// Size of the message in bytes, this header included.
        size: u32,
        /// Type, [`FLAG_NO_REPLY`], [`FLAG_ERROR`].
        flags: u32,
        /// errno of an error.
        error: u32,
    }

    /// VERSION; JSON follows.
    pub struct Version[4] {
        /// Must be alike on both sides.
        major: u16,
        /// The answer's is at most the request's.
        minor: u16,
    }

    /// DMA_MAP.
    pub struct DmaMap[32] {
        /// Size of this structure.
        argsz: u32,
        /// [`MAP_FLAG_READ`], [`MAP_FLAG_WRITE`].
        flags: u32,
        /// Where the range starts in the file, in bytes.
        offset: u64,
        /// Guest address.
        address: u64,
        /// Size in bytes.
        size: u64,
    }

    /// DMA_UNMAP and its answer.
    pub struct DmaUnmap[24] {
        /// Largest answer that is wanted.
        argsz: u32,
        /// [`UNMAP_FLAG_DIRTY_BITMAP`], [`UNMAP_FLAG_ALL`].
        flags: u32,
        /// Guest address.
        address: u64,
        /// Size in bytes.
        size: u64,
    }

    /// DEVICE_GET_INFO and its answer.
    pub struct DeviceInfo[16] {
        /// Largest answer that is wanted; in the answer, its size.
        argsz: u32,
        /// [`DEVICE_FLAG_RESET`], [`DEVICE_FLAG_PCI`].
        flags: u32,
        /// Number of regions.
        regions: u32,
        /// Number of interrupt indexes.
        irqs: u32,
    }

    /// DEVICE_GET_REGION_INFO and its answer.
    pub struct RegionInfo[32] {
        /// Largest answer that is wanted; in the answer, what a full one needs.
        argsz: u32,
        /// See [`region`].
        flags: u32,
        /// The region.
        index: u32,
        /// Start of the list of capabilities, 0 for none.
        cap_offset: u32,
        /// Size of the region in bytes.
        size: u64,
        /// Offset for mmap.
        offset: u64,
    }

    /// The start of each capability of a region.
    pub struct CapHeader[8] {
        /// Which capability it is.
        id: u16,
        /// Its version.
        version: u16,
        /// Where the next one starts, counted from the start of the answer's structure; 0 for none.
        next: u32,
    }

    /// The body of [`region::CAP_SPARSE_MMAP`]; areas follow.
    pub struct SparseMmap[8] {
        /// Number of areas.
        count: u32,
        /// Zero.
        reserved: u32,
    }

    /// One area that can be mapped.
    pub struct SparseArea[16] {
        /// Offset in the region in bytes.
        offset: u64,
        /// Size in bytes.
        size: u64,
    }

    /// DEVICE_GET_REGION_IO_FDS and its answer.
    pub struct RegionIoFds[16] {
        /// Largest answer that is wanted; in the answer, what a full one needs.
        argsz: u32,
        /// Zero.
        flags: u32,
        /// The region.
        index: u32,
        /// Number of sub-regions that follow.
        count: u32,
    }

    /// DEVICE_GET_IRQ_INFO and its answer.
    pub struct IrqInfo[16] {
        /// Largest answer that is wanted; in the answer, its size.
        argsz: u32,
        /// See [`irq`].
        flags: u32,
        /// The interrupt index.
        index: u32,
        /// Number of interrupts.
        count: u32,
    }

    /// DEVICE_SET_IRQS; an array of booleans may follow.
    pub struct SetIrqs[20] {
        /// Size of this structure with its array.
        argsz: u32,
        /// One data flag and one action flag of [`irq`].
        flags: u32,
        /// The interrupt index.
        index: u32,
        /// First interrupt.
        start: u32,
        /// Number of interrupts.
        count: u32,
    }

    /// REGION_READ, REGION_WRITE and their answers; data may follow.
    pub struct RegionAccess[16] {
        /// Offset in the region in bytes.
        offset: u64,
        /// The region.
        region: u32,
        /// Number of bytes.
        count: u32,
    }
}

/// One write of REGION_WRITE_MULTI. The array starts 8 bytes into the payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MultiWrite {
    /// Offset in the region in bytes.
    pub offset: native_endian::U64,
    /// The region.
    pub region: native_endian::U32,
    /// Number of bytes, at most 8.
    pub count: native_endian::U32,
    /// The bytes, from the front.
    pub data: [u8; 8],
}

impl MultiWrite {
    /// Size in bytes.
    pub const SIZE: usize = 24;

    /// The bytes to write; `None` when `count` is more than there are.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.data.get(..usize::try_from(self.count.get()).ok()?)
    }
}

const _: () = assert!(size_of::<MultiWrite>() == MultiWrite::SIZE);

impl Header {
    /// The message is an answer.
    pub fn is_reply(&self) -> bool {
        self.flags & TYPE_MASK == TYPE_REPLY
    }

    /// The sender wants no answer.
    pub fn no_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY != 0
    }
}
