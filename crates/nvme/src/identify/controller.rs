//! Identify Controller and its parts.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_BYTES;

/// CMIC: Controller Multi-Path I/O and Namespace Sharing Capabilities.
pub mod cmic {
    /// The NVM subsystem may have more than one port.
    pub const MULTIPLE_PORTS: u8 = 1 << 0;
    /// The NVM subsystem may have more than one controller.
    pub const MULTIPLE_CONTROLLERS: u8 = 1 << 1;
    /// The controller is that of an SR-IOV virtual function.
    pub const VIRTUAL_FUNCTION: u8 = 1 << 2;
    /// Asymmetric Namespace Access reporting.
    pub const ANA_REPORTING: u8 = 1 << 3;
}

/// OAES: Optional Asynchronous Events Supported. Bits 8 and up stand where those of feature
/// [`crate::features::async_event_config`] do.
pub mod oaes {
    /// Namespace Attribute Changed notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware Activation notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric Namespace Access Change notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Predictable Latency Event Aggregate Log Change notices.
    pub const PREDICTABLE_LATENCY: u32 = 1 << 12;
    /// LBA Status Information Alert notices.
    pub const LBA_STATUS: u32 = 1 << 13;
    /// Endurance Group Event Aggregate Log Page Change notices.
    pub const ENDURANCE_GROUP: u32 = 1 << 14;
    /// Normal NVM Subsystem Shutdown events.
    pub const NORMAL_SUBSYSTEM_SHUTDOWN: u32 = 1 << 15;
    /// Zone Descriptor Changed notices.
    pub const ZONE_DESCRIPTOR: u32 = 1 << 27;
    /// Discovery Log Page Change notices.
    pub const DISCOVERY_LOG: u32 = 1 << 31;
}

/// CTRATT: Controller Attributes.
pub mod ctratt {
    /// 128-bit Host Identifier.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Non-Operational Power State Permissive Mode.
    pub const NON_OPERATIONAL_PERMISSIVE: u32 = 1 << 1;
    /// NVM Sets.
    pub const NVM_SETS: u32 = 1 << 2;
    /// Read Recovery Levels.
    pub const READ_RECOVERY_LEVELS: u32 = 1 << 3;
    /// Endurance Groups.
    pub const ENDURANCE_GROUPS: u32 = 1 << 4;
    /// Predictable Latency Mode.
    pub const PREDICTABLE_LATENCY: u32 = 1 << 5;
    /// Traffic Based Keep Alive.
    pub const TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
    /// Namespace Granularity list.
    pub const NAMESPACE_GRANULARITY: u32 = 1 << 7;
    /// Submission queues may be associated with NVM Sets.
    pub const SQ_ASSOCIATIONS: u32 = 1 << 8;
    /// UUID list.
    pub const UUID_LIST: u32 = 1 << 9;
    /// Multi-Domain Subsystem.
    pub const MULTI_DOMAIN: u32 = 1 << 10;
    /// Fixed Capacity Management.
    pub const FIXED_CAPACITY: u32 = 1 << 11;
    /// Variable Capacity Management.
    pub const VARIABLE_CAPACITY: u32 = 1 << 12;
    /// Delete Endurance Group.
    pub const DELETE_ENDURANCE_GROUP: u32 = 1 << 13;
    /// Delete NVM Set.
    pub const DELETE_NVM_SET: u32 = 1 << 14;
    /// Extended LBA Formats.
    pub const EXTENDED_LBA_FORMATS: u32 = 1 << 15;
}

impl IdentifyController {
    /// CNTRLTYPE: an I/O controller.
    pub const CNTRLTYPE_IO: u8 = 1;
    /// CNTRLTYPE: a discovery controller.
    pub const CNTRLTYPE_DISCOVERY: u8 = 2;
    /// CNTRLTYPE: an administrative controller.
    pub const CNTRLTYPE_ADMINISTRATIVE: u8 = 3;
}

/// NVMSR: NVM Subsystem Report.
pub mod nvmsr {
    /// The subsystem is part of an NVMe Storage Device.
    pub const STORAGE_DEVICE: u8 = 1 << 0;
    /// The subsystem is part of an NVMe Enclosure.
    pub const ENCLOSURE: u8 = 1 << 1;
}

/// OACS: Optional Admin Command Support.
pub mod oacs {
    /// Security Send and Security Receive.
    pub const SECURITY: u16 = 1 << 0;
    /// Format NVM.
    pub const FORMAT_NVM: u16 = 1 << 1;
    /// Firmware Commit and Firmware Image Download.
    pub const FIRMWARE: u16 = 1 << 2;
    /// Namespace Management and Namespace Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// Device Self-test.
    pub const DEVICE_SELF_TEST: u16 = 1 << 4;
    /// Directive Send and Directive Receive.
    pub const DIRECTIVES: u16 = 1 << 5;
    /// NVMe-MI Send and NVMe-MI Receive.
    pub const NVME_MI: u16 = 1 << 6;
    /// Virtualization Management.
    pub const VIRTUALIZATION_MANAGEMENT: u16 = 1 << 7;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER_CONFIG: u16 = 1 << 8;
    /// Get LBA Status.
    pub const GET_LBA_STATUS: u16 = 1 << 9;
    /// Command and Feature Lockdown.
    pub const LOCKDOWN: u16 = 1 << 10;
}

/// FRMW: Firmware Updates.
pub mod frmw {
    /// Slot 1 is read only.
    pub const SLOT_1_READ_ONLY: u8 = 1 << 0;
    /// Activation without a reset.
    pub const ACTIVATION_WITHOUT_RESET: u8 = 1 << 4;
    /// Overlapping ranges in images are detected.
    pub const OVERLAP_DETECTION: u8 = 1 << 5;

    /// Bits 3:1: the number of slots, 1 to 7.
    #[must_use]
    pub const fn slots(count: u8) -> u8 {
        (count & 7) << 1
    }
}

/// LPA: Log Page Attributes.
pub mod lpa {
    /// The SMART log may be read per namespace.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// The Commands Supported and Effects log.
    pub const COMMAND_EFFECTS: u8 = 1 << 1;
    /// Extended data for Get Log Page: 32-bit NUMD and the offset.
    pub const EXTENDED_DATA: u8 = 1 << 2;
    /// Telemetry logs and notices.
    pub const TELEMETRY: u8 = 1 << 3;
    /// The Persistent Event log.
    pub const PERSISTENT_EVENT: u8 = 1 << 4;
    /// The logs Supported Log Pages, Feature Identifiers Supported and Effects, and NVMe-MI
    /// Commands Supported and Effects; and the scopes in the Commands Supported and Effects log.
    pub const SUPPORTED_LOG_PAGES: u8 = 1 << 5;
    /// Telemetry Data Area 4.
    pub const TELEMETRY_DATA_AREA_4: u8 = 1 << 6;
}

/// ONCS: Optional NVM Command Support.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// The Save field of Set Features and the Select field of Get Features.
    pub const FEATURE_SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// The Timestamp feature.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// FNA: Format NVM Attributes.
pub mod fna {
    /// A format applies to all namespaces.
    pub const FORMAT_ALL: u8 = 1 << 0;
    /// A secure erase applies to all namespaces.
    pub const ERASE_ALL: u8 = 1 << 1;
    /// Cryptographic erase.
    pub const CRYPTO_ERASE: u8 = 1 << 2;
    /// Format with NSID FFFFFFFFh is *not* supported.
    pub const BROADCAST_NOT_SUPPORTED: u8 = 1 << 3;
}

/// VWC: Volatile Write Cache.
pub mod vwc {
    /// A volatile write cache is present.
    pub const PRESENT: u8 = 1 << 0;
    /// Bits 2:1 = 10b: Flush with NSID FFFFFFFFh fails with Invalid Namespace or Format.
    pub const FLUSH_BROADCAST_NOT_SUPPORTED: u8 = 0b10 << 1;
    /// Bits 2:1 = 11b: Flush with NSID FFFFFFFFh flushes all namespaces.
    pub const FLUSH_BROADCAST_SUPPORTED: u8 = 0b11 << 1;
}

/// NWPC: Namespace Write Protection Capabilities.
pub mod nwpc {
    /// No Write Protect and Write Protect.
    pub const WRITE_PROTECT: u8 = 1 << 0;
    /// Write Protect Until Power Cycle.
    pub const UNTIL_POWER_CYCLE: u8 = 1 << 1;
    /// Permanent Write Protect.
    pub const PERMANENT: u8 = 1 << 2;
}

/// SGLS: SGL Support.
pub mod sgls {
    /// Bits 1:0 = 01b: SGLs, without alignment or granularity requirement.
    pub const SUPPORTED: u32 = 0b01;
    /// Bits 1:0 = 10b: SGLs, data blocks dword aligned and a multiple of dwords long.
    pub const SUPPORTED_DWORD_ALIGNED: u32 = 0b10;
    /// Keyed SGL Data Block descriptor.
    pub const KEYED: u32 = 1 << 2;
    /// SGL Bit Bucket descriptor.
    pub const BIT_BUCKET: u32 = 1 << 16;
    /// A byte aligned contiguous metadata buffer.
    pub const METADATA_BYTE_ALIGNED: u32 = 1 << 17;
    /// An SGL may be longer than the data.
    pub const LONGER_THAN_DATA: u32 = 1 << 18;
    /// MPTR may hold the address of an SGL segment with one descriptor.
    pub const METADATA_SGL: u32 = 1 << 19;
    /// Addresses may be offsets.
    pub const ADDRESS_AS_OFFSET: u32 = 1 << 20;
    /// Transport SGL Data Block descriptor.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// The value of SQES and CQES: the smallest and largest entry, each the power of two of bytes.
#[must_use]
pub const fn entry_sizes(minimum_log2: u8, maximum_log2: u8) -> u8 {
    ((maximum_log2 & 0xf) << 4) | (minimum_log2 & 0xf)
}

/// Bits of [`PowerStateDescriptor::flags`].
pub mod psd_flags {
    /// MXPS: maximum power is in units of 0.0001 W, not 0.01 W.
    pub const MAX_POWER_SCALE: u8 = 1 << 0;
    /// NOPS: a non-operational state, in which no I/O is processed.
    pub const NON_OPERATIONAL: u8 = 1 << 1;
}

/// A Power State Descriptor, 32 bytes (NVMe Base 2.1 §5.1.13.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerStateDescriptor {
    /// MP: maximum power, in 0.01 W or by MXPS in 0.0001 W.
    pub mp: U16,
    /// Reserved.
    pub reserved_2: u8,
    /// MXPS and NOPS; bits of [`psd_flags`].
    pub flags: u8,
    /// ENLAT: entry latency, µs.
    pub enlat: U32,
    /// EXLAT: exit latency, µs.
    pub exlat: U32,
    /// RRT: relative read throughput, 4:0; lower is better.
    pub rrt: u8,
    /// RRL: relative read latency, 4:0.
    pub rrl: u8,
    /// RWT: relative write throughput, 4:0.
    pub rwt: u8,
    /// RWL: relative write latency, 4:0.
    pub rwl: u8,
    /// IDLP: idle power, in the scale of `ips`.
    pub idlp: U16,
    /// IPS in 7:6: the scale of idle power (1: 0.0001 W, 2: 0.01 W).
    pub ips: u8,
    /// Reserved.
    pub reserved_19: u8,
    /// ACTP: active power, in the scale of `apws`.
    pub actp: U16,
    /// APW in 2:0, APS (the scale) in 7:6.
    pub apws: u8,
    /// Reserved.
    pub reserved_23: [u8; 9],
}

/// Identify Controller, CNS 01h, 4096 bytes (NVMe Base 2.1 §5.1.13.2.1, as of 2.0).
///
/// Strings are ASCII, padded on the right with spaces, not terminated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor id.
    pub vid: U16,
    /// SSVID: PCI subsystem vendor id.
    pub ssvid: U16,
    /// SN: serial number, ASCII.
    pub sn: [u8; 20],
    /// MN: model number, ASCII.
    pub mn: [u8; 40],
    /// FR: firmware revision, ASCII.
    pub fr: [u8; 8],
    /// RAB: recommended arbitration burst, `1 << RAB` commands.
    pub rab: u8,
    /// IEEE: OUI of the vendor, little-endian.
    pub ieee: [u8; 3],
    /// CMIC: bits of [`cmic`].
    pub cmic: u8,
    /// MDTS: the largest data transfer is `1 << MDTS` pages of CAP.MPSMIN; 0 for no limit.
    pub mdts: u8,
    /// CNTLID: controller id, unique in the subsystem.
    pub cntlid: U16,
    /// VER: as [`crate::registers::Version`].
    pub ver: U32,
    /// RTD3R: typical latency of resuming from D3cold, µs; 0 not reported.
    pub rtd3r: U32,
    /// RTD3E: typical latency of entering D3cold, µs; 0 not reported.
    pub rtd3e: U32,
    /// OAES: bits of [`oaes`].
    pub oaes: U32,
    /// CTRATT: bits of [`ctratt`].
    pub ctratt: U32,
    /// RRLS: Read Recovery Levels supported, one bit each.
    pub rrls: U16,
    /// Reserved.
    pub reserved_102: [u8; 9],
    /// CNTRLTYPE: [`Self::CNTRLTYPE_IO`], ...; 0 not reported.
    pub cntrltype: u8,
    /// FGUID: FRU GUID, big endian; 0 none.
    pub fguid: [u8; 16],
    /// CRDT1: Command Retry Delay Time 1, 100 ms.
    pub crdt1: U16,
    /// CRDT2: Command Retry Delay Time 2, 100 ms.
    pub crdt2: U16,
    /// CRDT3: Command Retry Delay Time 3, 100 ms.
    pub crdt3: U16,
    /// Reserved.
    pub reserved_134: [u8; 106],
    /// Reserved for NVMe-MI.
    pub reserved_mi: [u8; 13],
    /// NVMSR: bits of [`nvmsr`].
    pub nvmsr: u8,
    /// VWCI: VPD Write Cycle Information; remaining cycles in 6:0, valid in 7.
    pub vwci: u8,
    /// MEC: Management Endpoint Capabilities; SMBus in bit 0, PCIe in bit 1.
    pub mec: u8,
    /// OACS: bits of [`oacs`].
    pub oacs: U16,
    /// ACL: the most outstanding Abort commands, 0's based.
    pub acl_z: u8,
    /// AERL: the most outstanding Asynchronous Event Requests, 0's based.
    pub aerl_z: u8,
    /// FRMW: bits of [`frmw`].
    pub frmw: u8,
    /// LPA: bits of [`lpa`].
    pub lpa: u8,
    /// ELPE: entries of the Error Information log, 0's based.
    pub elpe_z: u8,
    /// NPSS: power states, 0's based.
    pub npss_z: u8,
    /// AVSCC: bit 0: Admin vendor commands have the standard format.
    pub avscc: u8,
    /// APSTA: bit 0: Autonomous Power State Transitions are supported.
    pub apsta: u8,
    /// WCTEMP: warning composite temperature, K.
    pub wctemp: U16,
    /// CCTEMP: critical composite temperature, K.
    pub cctemp: U16,
    /// MTFA: the longest time of a firmware activation without reset, 100 ms; 0 undefined.
    pub mtfa: U16,
    /// HMPRE: preferred Host Memory Buffer, 4 KiB units; 0 not supported.
    pub hmpre: U32,
    /// HMMIN: minimum Host Memory Buffer, 4 KiB units.
    pub hmmin: U32,
    /// TNVMCAP: total NVM capacity, bytes.
    pub tnvmcap: U128,
    /// UNVMCAP: unallocated NVM capacity, bytes.
    pub unvmcap: U128,
    /// RPMBS: Replay Protected Memory Block support.
    pub rpmbs: U32,
    /// EDSTT: time of an extended device self-test, minutes.
    pub edstt: U16,
    /// DSTO: device self-test options; bit 0: one at a time in the subsystem.
    pub dsto: u8,
    /// FWUG: firmware update granularity, 4 KiB units; 0 none given, FFh none.
    pub fwug: u8,
    /// KAS: granularity of the Keep Alive Timer, 100 ms; 0 not supported.
    pub kas: U16,
    /// HCTMA: bit 0: Host Controlled Thermal Management.
    pub hctma: U16,
    /// MNTMT: minimum thermal management temperature, K.
    pub mntmt: U16,
    /// MXTMT: maximum thermal management temperature, K.
    pub mxtmt: U16,
    /// SANICAP: sanitize capabilities; crypto erase 0, block erase 1, overwrite 2, NDI 29,
    /// NODMMAS 31:30.
    pub sanicap: U32,
    /// HMMINDS: smallest Host Memory Buffer descriptor, 4 KiB units.
    pub hmminds: U32,
    /// HMMAXD: most Host Memory Buffer descriptors.
    pub hmmaxd: U16,
    /// NSETIDMAX: greatest NVM Set id.
    pub nsetidmax: U16,
    /// ENDGIDMAX: greatest Endurance Group id.
    pub endgidmax: U16,
    /// ANATT: longest ANA transition, s.
    pub anatt: u8,
    /// ANACAP: ANA capabilities.
    pub anacap: u8,
    /// ANAGRPMAX: greatest ANA group id.
    pub anagrpmax: U32,
    /// NANAGRPID: ANA groups.
    pub nanagrpid: U32,
    /// PELS: size of the Persistent Event log, 64 KiB units.
    pub pels: U32,
    /// Domain Identifier.
    pub domain_id: U16,
    /// Reserved.
    pub reserved_358: [u8; 10],
    /// MEGCAP: capacity of the largest Endurance Group that can be made, bytes.
    pub megcap: U128,
    /// Reserved.
    pub reserved_384: [u8; 128],
    /// SQES: see [`entry_sizes`]; the minimum is 6 (64 bytes).
    pub sqes: u8,
    /// CQES: see [`entry_sizes`]; the minimum is 4 (16 bytes).
    pub cqes: u8,
    /// MAXCMD: the most commands to have outstanding in one queue; 0 not reported.
    pub maxcmd: U16,
    /// NN: the greatest valid NSID.
    pub nn: U32,
    /// ONCS: bits of [`oncs`].
    pub oncs: U16,
    /// FUSES: bit 0: fused Compare and Write.
    pub fuses: U16,
    /// FNA: bits of [`fna`].
    pub fna: u8,
    /// VWC: bits of [`vwc`].
    pub vwc: u8,
    /// AWUN: atomic write unit normal, blocks, 0's based.
    pub awun_z: U16,
    /// AWUPF: atomic write unit power fail, blocks, 0's based.
    pub awupf_z: U16,
    /// ICSVSCC: bit 0: I/O vendor commands have the standard format.
    pub icsvscc: u8,
    /// NWPC: bits of [`nwpc`].
    pub nwpc: u8,
    /// ACWU: atomic compare and write unit, blocks, 0's based.
    pub acwu_z: U16,
    /// OCFS: Optional Copy Formats Supported, bit *n* for source range format *n*.
    pub ocfs: U16,
    /// SGLS: bits of [`sgls`].
    pub sgls: U32,
    /// MNAN: most namespaces allowed; 0 means NN.
    pub mnan: U32,
    /// MAXDNA: most namespace attachments in the domain; 0 no limit given.
    pub maxdna: U128,
    /// MAXCNA: most namespace attachments of an I/O controller; 0 no limit given.
    pub maxcna: U32,
    /// OAQD: Optimal Aggregated Queue Depth; 0 not reported.
    pub oaqd: U32,
    /// Reserved.
    pub reserved_568: [u8; 200],
    /// SUBNQN: NVMe Qualified Name of the subsystem, UTF-8, null terminated.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved_1024: [u8; 768],
    /// Reserved for NVMe over Fabrics.
    pub reserved_fabrics: [u8; 256],
    /// PSD: power state descriptors, `npss_z + 1` of them valid.
    pub psd: [PowerStateDescriptor; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}

const _: () = {
    assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);
    assert!(size_of::<PowerStateDescriptor>() == 32);
    assert!(offset_of!(IdentifyController, cntlid) == 78);
    assert!(offset_of!(IdentifyController, ctratt) == 96);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, nvmsr) == 253);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, tnvmcap) == 280);
    assert!(offset_of!(IdentifyController, kas) == 320);
    assert!(offset_of!(IdentifyController, pels) == 352);
    assert!(offset_of!(IdentifyController, megcap) == 368);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, oncs) == 520);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, psd) == 2048);
    assert!(offset_of!(IdentifyController, vendor) == 3072);
};

/// Identify Controller of the NVM command set, CNS 06h with CSI 00h, 4096 bytes (NVM Command Set
/// 1.0 §4.1.5). A size limit is `1 << value` pages of CAP.MPSMIN; 0 for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNvmController {
    /// VSL: Verify Size Limit.
    pub vsl: u8,
    /// WZSL: Write Zeroes Size Limit.
    pub wzsl: u8,
    /// WUSL: Write Uncorrectable Size Limit.
    pub wusl: u8,
    /// DMRL: most ranges of a Dataset Management; 0 for no limit given.
    pub dmrl: u8,
    /// DMRSL: most blocks in one range of a Dataset Management; 0 for no limit given.
    pub dmrsl: U32,
    /// DMSL: most blocks in all ranges of a Dataset Management; 0 for no limit given.
    pub dmsl: U64,
    /// Reserved.
    pub reserved_16: [u8; 4080],
}

const _: () = {
    assert!(size_of::<IdentifyNvmController>() == IDENTIFY_BYTES);
    assert!(offset_of!(IdentifyNvmController, dmsl) == 8);
};

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn every_field_is_at_its_byte() {
        // NVMe Base 2.1 §5.1.13.2.1, Figure 312.
        macro_rules! at {
            ($($field:ident $offset:literal),* $(,)?) => {
                $( assert_eq!(offset_of!(IdentifyController, $field), $offset, stringify!($field)); )*
            };
        }
        at!(vid 0, ssvid 2, sn 4, mn 24, fr 64, rab 72, ieee 73, cmic 76, mdts 77, cntlid 78, ver 80);
        at!(rtd3r 84, rtd3e 88, oaes 92, ctratt 96, rrls 100, cntrltype 111, fguid 112);
        at!(crdt1 128, crdt2 130, crdt3 132, nvmsr 253, vwci 254, mec 255, oacs 256, acl_z 258, aerl_z 259);
        at!(frmw 260, lpa 261, elpe_z 262, npss_z 263, avscc 264, apsta 265, wctemp 266, cctemp 268);
        at!(mtfa 270, hmpre 272, hmmin 276, tnvmcap 280, unvmcap 296, rpmbs 312, edstt 316, dsto 318);
        at!(fwug 319, kas 320, hctma 322, mntmt 324, mxtmt 326, sanicap 328, hmminds 332, hmmaxd 336);
        at!(nsetidmax 338, endgidmax 340, anatt 342, anacap 343, anagrpmax 344, nanagrpid 348, pels 352);
        at!(domain_id 356, megcap 368, sqes 512, cqes 513, maxcmd 514, nn 516, oncs 520, fuses 522);
        at!(fna 524, vwc 525, awun_z 526, awupf_z 528, icsvscc 530, nwpc 531, acwu_z 532, ocfs 534);
        at!(sgls 536, mnan 540, maxdna 544, maxcna 560, oaqd 564, subnqn 768, psd 2048, vendor 3072);
    }

    #[test]
    fn power_state_fields_are_at_their_bytes() {
        // NVMe Base 2.1 §5.1.13.2.1, Figure 313.
        assert_eq!(offset_of!(PowerStateDescriptor, flags), 3);
        assert_eq!(offset_of!(PowerStateDescriptor, enlat), 4);
        assert_eq!(offset_of!(PowerStateDescriptor, exlat), 8);
        assert_eq!(offset_of!(PowerStateDescriptor, rrt), 12);
        assert_eq!(offset_of!(PowerStateDescriptor, idlp), 16);
        assert_eq!(offset_of!(PowerStateDescriptor, actp), 20);
        assert_eq!(offset_of!(PowerStateDescriptor, apws), 22);
    }

    #[test]
    fn nvm_controller_fields_are_at_their_bytes() {
        // NVM Command Set 1.0 §4.1.5.
        assert_eq!(offset_of!(IdentifyNvmController, wzsl), 1);
        assert_eq!(offset_of!(IdentifyNvmController, wusl), 2);
        assert_eq!(offset_of!(IdentifyNvmController, dmrl), 3);
        assert_eq!(offset_of!(IdentifyNvmController, dmrsl), 4);
    }

    #[test]
    fn a_controller_reads_back_from_its_bytes() {
        let mut identify = IdentifyController::new_zeroed();
        identify.oacs = oacs::DOORBELL_BUFFER_CONFIG.into();
        identify.sqes = entry_sizes(6, 6);
        identify.cqes = entry_sizes(4, 4);
        identify.tnvmcap = (1 << 40).into();
        let bytes = identify.as_bytes();
        assert_eq!(bytes[256..258], [0x00, 0x01]);
        assert_eq!(bytes[512..514], [0x66, 0x44]);
        assert_eq!(bytes[285], 1);
        assert_eq!(IdentifyController::read_from_bytes(bytes).unwrap(), identify);
    }

    #[test]
    fn sizes_firmware_and_cache_are_encoded_by_clause() {
        assert_eq!(entry_sizes(6, 8), 0x86);
        assert_eq!(frmw::slots(1) | frmw::SLOT_1_READ_ONLY, 0b0000_0011);
        assert_eq!(frmw::slots(7), 0b0000_1110);
        assert_eq!(vwc::PRESENT | vwc::FLUSH_BROADCAST_SUPPORTED, 0b0000_0111);
        assert_eq!(vwc::FLUSH_BROADCAST_NOT_SUPPORTED, 0b0000_0100);
    }
}
