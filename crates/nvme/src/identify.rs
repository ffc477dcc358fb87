//! Identify: what may be asked (CNS) and the data structures that answer.
//!
//! NVMe Base 2.1 §5.1.13; NVM Command Set 1.0 §4.1.5.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::open_enum::open_enum;

mod controller;
mod namespace;

pub use controller::{
    IdentifyController, IdentifyNvmController, PowerStateDescriptor, cmic, ctratt, entry_sizes, fna, frmw, lpa, nvmsr,
    nwpc, oacs, oaes, oncs, psd_flags, sgls, vwc,
};
pub use namespace::{
    IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNvmNamespace, LbaFormat, dlfeat, dpc, dps, flbas,
    independent_nsfeat, mc, nmic, nsattr, nsfeat, nstat, rescap,
};

/// `text` as an ASCII string of `N` bytes for SN, MN or FR: padded on the right with spaces, cut at `N`
/// bytes, any byte that is not printable ASCII replaced by `?` (NVMe Base 2.1 §5.1.13.2.1).
#[must_use]
pub const fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let text = text.as_bytes();
    let mut i = 0;
    while i < N && i < text.len() {
        field[i] = if matches!(text[i], b' '..=b'~') { text[i] } else { b'?' };
        i += 1;
    }
    field
}

/// Bytes of every Identify data structure (NVMe Base 2.1 §5.1.13.1).
pub const IDENTIFY_BYTES: usize = 4096;

open_enum! {
    /// Controller or Namespace Structure, CNS: what an Identify command asks for (NVMe Base 2.1
    /// §5.1.13.1).
    Cns {
        /// Identify Namespace of an active NSID: [`IdentifyNamespace`].
        NAMESPACE = 0x00, "Identify Namespace";
        /// Identify Controller: [`IdentifyController`].
        CONTROLLER = 0x01, "Identify Controller";
        /// NSIDs above the one given that are active, ascending: 1024 × U32.
        ACTIVE_NAMESPACE_LIST = 0x02, "Active Namespace ID list";
        /// [`NamespaceDescriptor`]s of an active NSID.
        NAMESPACE_DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        /// NVM Set list.
        NVM_SET_LIST = 0x04, "NVM Set List";
        /// I/O command set specific Identify Namespace; for NVM: [`IdentifyNvmNamespace`].
        COMMAND_SET_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
        /// I/O command set specific Identify Controller; for NVM: [`IdentifyNvmController`].
        COMMAND_SET_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
        /// As 02h, of one I/O command set.
        COMMAND_SET_ACTIVE_NAMESPACE_LIST = 0x07,
            "I/O Command Set specific Active Namespace ID list";
        /// I/O command set independent Identify Namespace: [`IdentifyNamespaceIndependent`].
        INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set Independent Identify Namespace";
        /// Identify Namespace for a user data format, not for a namespace.
        FORMAT_NAMESPACE = 0x09, "Identify Namespace for a User Data Format";
        /// I/O command set specific Identify Namespace for a user data format.
        COMMAND_SET_FORMAT_NAMESPACE = 0x0a,
            "I/O Command Set specific Identify Namespace for a User Data Format";
        /// NSIDs above the one given that are allocated, ascending.
        ALLOCATED_NAMESPACE_LIST = 0x10, "Allocated Namespace ID list";
        /// Identify Namespace of an allocated NSID.
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace of an Allocated Namespace ID";
        /// Controllers that the namespace is attached to.
        NAMESPACE_CONTROLLER_LIST = 0x12, "Namespace Attached Controller list";
        /// Controllers of the NVM subsystem.
        CONTROLLER_LIST = 0x13, "Controller list";
        /// Primary Controller Capabilities.
        PRIMARY_CONTROLLER_CAPABILITIES = 0x14, "Primary Controller Capabilities";
        /// Secondary Controller list.
        SECONDARY_CONTROLLER_LIST = 0x15, "Secondary Controller list";
        /// Namespace Granularity list.
        NAMESPACE_GRANULARITY_LIST = 0x16, "Namespace Granularity List";
        /// UUID list.
        UUID_LIST = 0x17, "UUID List";
        /// Domain list.
        DOMAIN_LIST = 0x18, "Domain List";
        /// Endurance Group list.
        ENDURANCE_GROUP_LIST = 0x19, "Endurance Group List";
        /// As 10h, of one I/O command set.
        COMMAND_SET_ALLOCATED_NAMESPACE_LIST = 0x1a,
            "I/O Command Set specific Allocated Namespace ID list";
        /// I/O command set specific Identify Namespace of an allocated NSID.
        COMMAND_SET_ALLOCATED_NAMESPACE = 0x1b,
            "I/O Command Set specific Identify Namespace of an Allocated Namespace ID";
        /// [`IoCommandSetList`].
        IO_COMMAND_SETS = 0x1c, "Identify I/O Command Set";
    }
}

open_enum! {
    /// Command Set Identifier, CSI (NVMe Base 2.1 §5.1.13.1).
    Csi {
        /// NVM command set.
        NVM = 0x00, "NVM";
        /// Key value command set.
        KEY_VALUE = 0x01, "Key Value";
        /// Zoned namespace command set.
        ZONED = 0x02, "Zoned Namespace";
    }
}

open_enum! {
    /// Namespace Identifier Type, NIDT, of a [`NamespaceDescriptor`] (NVMe Base 2.1 §5.1.13.2.3).
    Nidt {
        /// IEEE Extended Unique Identifier, 8 bytes, big endian.
        EUI64 = 1, "EUI64";
        /// Namespace Globally Unique Identifier, 16 bytes, big endian.
        NGUID = 2, "NGUID";
        /// UUID of RFC 9562, 16 bytes, big endian.
        UUID = 3, "UUID";
        /// Command Set Identifier, 1 byte, a [`Csi`].
        CSI = 4, "CSI";
    }
}

impl Nidt {
    /// NIDL: the length in bytes that this type of identifier has, if it is known here.
    #[must_use]
    pub const fn length(self) -> Option<u8> {
        match self {
            Self::EUI64 => Some(8),
            Self::NGUID | Self::UUID => Some(16),
            Self::CSI => Some(1),
            _ => None,
        }
    }
}

/// The head of a Namespace Identification Descriptor, 4 bytes; `nidl` bytes of identifier follow.
/// A head of zeros ends the list (NVMe Base 2.1 §5.1.13.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NamespaceDescriptor {
    /// NIDT: the type, a [`Nidt`].
    pub nidt: u8,
    /// NIDL: bytes of the identifier that follows.
    pub nidl: u8,
    /// Reserved.
    pub reserved: [u8; 2],
}

const _: () = assert!(size_of::<NamespaceDescriptor>() == 4);

impl NamespaceDescriptor {
    /// The head for an identifier of `length` bytes.
    #[must_use]
    pub const fn new(nidt: Nidt, length: u8) -> Self {
        Self { nidt: nidt.0, nidl: length, reserved: [0; 2] }
    }
}

/// Identify I/O Command Set, CNS 1Ch, 4096 bytes (NVMe Base 2.1 §5.1.13.2.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IoCommandSetList {
    /// The combinations that may be enabled at the same time: bit *n* of one is the command set
    /// with [`Csi`] *n*. A zero ends the list.
    pub vectors: [U64; 512],
}

const _: () = assert!(size_of::<IoCommandSetList>() == IDENTIFY_BYTES);

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn ascii_fields_are_padded_cut_and_clean() {
        assert_eq!(ascii::<8>("1.0"), *b"1.0     ");
        assert_eq!(ascii::<4>("shadowbell"), *b"shad");
        assert_eq!(ascii::<4>("a\0\n~"), *b"a??~");
        assert_eq!(ascii::<4>("é"), *b"??  ");
    }

    #[test]
    fn a_descriptor_head_is_type_and_length() {
        // NVMe Base 2.1 §5.1.13.2.3.
        assert_eq!(NamespaceDescriptor::new(Nidt::UUID, 16).as_bytes(), [3, 16, 0, 0]);
        assert_eq!(
            [Nidt::EUI64, Nidt::NGUID, Nidt::UUID, Nidt::CSI].map(Nidt::length),
            [Some(8), Some(16), Some(16), Some(1)]
        );
        assert_eq!(Nidt(0).length(), None);
    }

    #[test]
    fn the_nvm_command_set_is_bit_0_of_a_vector() {
        let mut list = IoCommandSetList::new_zeroed();
        list.vectors[0] = (1 << Csi::NVM.0).into();
        assert_eq!(list.as_bytes()[..16], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn cns_values_are_those_of_the_specification() {
        // NVMe Base 2.1 §5.1.13.1, Figure 310.
        assert_eq!((Cns::NAMESPACE.0, Cns::CONTROLLER.0, Cns::ACTIVE_NAMESPACE_LIST.0), (0, 1, 2));
        assert_eq!((Cns::COMMAND_SET_NAMESPACE.0, Cns::COMMAND_SET_CONTROLLER.0), (5, 6));
        assert_eq!((Cns::INDEPENDENT_NAMESPACE.0, Cns::CONTROLLER_LIST.0, Cns::IO_COMMAND_SETS.0), (8, 0x13, 0x1c));
        assert_eq!(Cns(0x04).name(), Some("NVM Set List"));
    }
}
