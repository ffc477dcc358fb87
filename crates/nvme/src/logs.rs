//! Log pages and asynchronous events.
//!
//! NVMe Base 2.1 §5.1.12 (Get Log Page) and §5.1.2 (Asynchronous Event Request).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::get8;
use crate::open_enum::open_enum;

open_enum! {
    /// Log Page Identifier, LID (NVMe Base 2.1 §5.1.12.1).
    LogId {
        /// [`SupportedLogPages`].
        SUPPORTED_LOG_PAGES = 0x00, "Supported Log Pages";
        /// [`ErrorLogEntry`]s, the newest first.
        ERROR = 0x01, "Error Information";
        /// [`SmartLog`].
        SMART = 0x02, "SMART / Health Information";
        /// [`FirmwareSlotLog`].
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        /// Up to 1024 NSIDs whose attributes changed, ascending; FFFFFFFFh alone for more.
        CHANGED_NAMESPACES = 0x04, "Changed Attached Namespace List";
        /// [`CommandEffectsLog`].
        COMMAND_EFFECTS = 0x05, "Commands Supported and Effects";
        /// Device Self-test.
        DEVICE_SELF_TEST = 0x06, "Device Self-test";
        /// Telemetry, Host-Initiated.
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        /// Telemetry, Controller-Initiated.
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        /// Endurance Group Information.
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        /// Predictable Latency Per NVM Set.
        PREDICTABLE_LATENCY_PER_SET = 0x0a, "Predictable Latency Per NVM Set";
        /// Predictable Latency Event Aggregate.
        PREDICTABLE_LATENCY_AGGREGATE = 0x0b, "Predictable Latency Event Aggregate";
        /// Asymmetric Namespace Access.
        ANA = 0x0c, "Asymmetric Namespace Access";
        /// Persistent Event.
        PERSISTENT_EVENT = 0x0d, "Persistent Event";
        /// LBA Status Information.
        LBA_STATUS = 0x0e, "LBA Status Information";
        /// Endurance Group Event Aggregate.
        ENDURANCE_GROUP_AGGREGATE = 0x0f, "Endurance Group Event Aggregate";
        /// Media Unit Status.
        MEDIA_UNIT_STATUS = 0x10, "Media Unit Status";
        /// Supported Capacity Configuration List.
        CAPACITY_CONFIGURATIONS = 0x11, "Supported Capacity Configuration List";
        /// Feature Identifiers Supported and Effects.
        FEATURE_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        /// NVMe-MI Commands Supported and Effects.
        NVME_MI_EFFECTS = 0x13, "NVMe-MI Commands Supported and Effects";
        /// Command and Feature Lockdown.
        LOCKDOWN = 0x14, "Command and Feature Lockdown";
        /// Boot Partition.
        BOOT_PARTITION = 0x15, "Boot Partition";
        /// Rotational Media Information.
        ROTATIONAL_MEDIA = 0x16, "Rotational Media Information";
        /// Discovery.
        DISCOVERY = 0x70, "Discovery";
        /// Reservation Notification.
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        /// Sanitize Status.
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

/// Supported Log Pages, LID 00h, 1024 bytes (NVMe Base 2.1 §5.1.12.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SupportedLogPages {
    /// One descriptor for each LID; bits of [`supported_log`].
    pub lids: [U32; 256],
}

const _: () = assert!(size_of::<SupportedLogPages>() == 1024);

/// Bits of a [`SupportedLogPages`] descriptor; 31:16 are specific to the log.
pub mod supported_log {
    /// LSUPP: the log is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// IOS: an index offset (Get Log Page OT) is supported.
    pub const INDEX_OFFSET: u32 = 1 << 1;
}

/// An entry of the Error Information log, LID 01h, 64 bytes (NVMe Base 2.1 §5.1.12.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Error Count: a unique number, ascending from 1; 0 for an entry that is not valid.
    pub error_count: U64,
    /// Submission Queue ID; FFFFh if not specific to a command.
    pub sqid: U16,
    /// Command ID; FFFFh if not specific to a command.
    pub cid: U16,
    /// Status Field: the phase tag in bit 0, the [`crate::Status`] in 15:1.
    pub status_phase: U16,
    /// Parameter Error Location: byte of the command in 7:0, bit in 10:8; FFFFh for none.
    pub parameter_error_location: U16,
    /// LBA: the first that had the error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor Specific Information Available: a LID, or 0.
    pub vendor_log: u8,
    /// TRTYPE: transport type; 0 for PCIe.
    pub trtype: u8,
    /// Reserved.
    pub reserved_30: [u8; 2],
    /// Command Specific Information.
    pub command_specific: U64,
    /// Transport Type Specific Information.
    pub transport_specific: U16,
    /// Reserved.
    pub reserved_42: [u8; 22],
}

const _: () = {
    assert!(size_of::<ErrorLogEntry>() == 64);
    assert!(offset_of!(ErrorLogEntry, lba) == 16);
    assert!(offset_of!(ErrorLogEntry, command_specific) == 32);
    assert!(offset_of!(ErrorLogEntry, transport_specific) == 40);
};

impl ErrorLogEntry {
    /// [`Self::parameter_error_location`] when no parameter is at fault.
    pub const NO_PARAMETER: u16 = 0xffff;

    /// The value of [`Self::parameter_error_location`] for bit `bit` (0 to 7) of byte `byte` of the
    /// submission queue entry.
    #[must_use]
    pub const fn parameter(byte: u8, bit: u8) -> u16 {
        (((bit & 7) as u16) << 8) | byte as u16
    }
}

/// Critical Warning of [`SmartLog`] (NVMe Base 2.1 §5.1.12.1.3).
pub mod critical_warning {
    /// Available spare is below its threshold.
    pub const SPARE_BELOW_THRESHOLD: u8 = 1 << 0;
    /// A temperature passed a threshold.
    pub const TEMPERATURE: u8 = 1 << 1;
    /// Reliability is degraded.
    pub const RELIABILITY_DEGRADED: u8 = 1 << 2;
    /// All media is read only.
    pub const READ_ONLY: u8 = 1 << 3;
    /// The backup of volatile memory failed.
    pub const VOLATILE_BACKUP_FAILED: u8 = 1 << 4;
    /// The Persistent Memory Region is read only or unreliable.
    pub const PMR_UNRELIABLE: u8 = 1 << 5;
}

/// SMART / Health Information, LID 02h, 512 bytes (NVMe Base 2.1 §5.1.12.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning: bits of [`critical_warning`].
    pub critical_warning: u8,
    /// Composite Temperature, K.
    pub composite_temperature: U16,
    /// Available Spare, percent.
    pub available_spare: u8,
    /// Available Spare Threshold, percent.
    pub available_spare_threshold: u8,
    /// Percentage Used; may pass 100.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    /// Reserved.
    pub reserved_7: [u8; 25],
    /// Data Units Read: thousands of 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written: thousands of 512 bytes, rounded up.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time, minutes.
    pub busy_minutes: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries, over the life of the controller.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time, minutes.
    pub warning_temperature_minutes: U32,
    /// Critical Composite Temperature Time, minutes.
    pub critical_temperature_minutes: U32,
    /// Temperature Sensors 1 to 8, K; 0 for none.
    pub temperature_sensors: [U16; 8],
    /// Thermal Management Temperature 1 Transition Count.
    pub tmt1_transitions: U32,
    /// Thermal Management Temperature 2 Transition Count.
    pub tmt2_transitions: U32,
    /// Total Time For Thermal Management Temperature 1, s.
    pub tmt1_seconds: U32,
    /// Total Time For Thermal Management Temperature 2, s.
    pub tmt2_seconds: U32,
    /// Reserved.
    pub reserved_232: [u8; 280],
}

const _: () = {
    assert!(size_of::<SmartLog>() == 512);
    assert!(offset_of!(SmartLog, composite_temperature) == 1);
    assert!(offset_of!(SmartLog, data_units_read) == 32);
    assert!(offset_of!(SmartLog, error_log_entries) == 176);
    assert!(offset_of!(SmartLog, temperature_sensors) == 200);
    assert!(offset_of!(SmartLog, tmt1_transitions) == 216);
};

/// Firmware Slot Information, LID 03h, 512 bytes (NVMe Base 2.1 §5.1.12.1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// AFI: the active slot in 2:0, that after the next reset in 6:4 (0: unchanged).
    pub afi: u8,
    /// Reserved.
    pub reserved_1: [u8; 7],
    /// FRS1 to FRS7: the revision in each slot, ASCII; zeros for an empty slot.
    pub frs: [[u8; 8]; 7],
    /// Reserved.
    pub reserved_64: [u8; 448],
}

const _: () = {
    assert!(size_of::<FirmwareSlotLog>() == 512);
    assert!(offset_of!(FirmwareSlotLog, frs) == 8);
};

/// Commands Supported and Effects, LID 05h, 4096 bytes (NVMe Base 2.1 §5.1.12.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandEffectsLog {
    /// ACS: one word for each Admin opcode; bits of [`effects`].
    pub acs: [U32; 256],
    /// IOCS: one word for each I/O opcode; bits of [`effects`].
    pub iocs: [U32; 256],
    /// Reserved.
    pub reserved_2048: [u8; 2048],
}

const _: () = {
    assert!(size_of::<CommandEffectsLog>() == 4096);
    assert!(offset_of!(CommandEffectsLog, iocs) == 1024);
};

/// Bits of a [`CommandEffectsLog`] word (NVMe Base 2.1 §5.1.12.1.6).
pub mod effects {
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// LBCC: it may change logical block content.
    pub const BLOCK_CONTENT_CHANGE: u32 = 1 << 1;
    /// NCC: it may change capabilities of a namespace.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;
    /// NIC: it may change the inventory of namespaces.
    pub const NAMESPACE_INVENTORY_CHANGE: u32 = 1 << 3;
    /// CCC: it may change capabilities of the controller.
    pub const CONTROLLER_CAPABILITY_CHANGE: u32 = 1 << 4;
    /// CSE, 18:16 = 001b: no other command to the same namespace meanwhile.
    pub const EXCLUSIVE_NAMESPACE: u32 = 0b001 << 16;
    /// CSE, 18:16 = 010b: no other command to any namespace meanwhile.
    pub const EXCLUSIVE_ALL: u32 = 0b010 << 16;
    /// USS: the UUID Index field is supported.
    pub const UUID_SELECTION: u32 = 1 << 19;
    /// CSP: it acts on a namespace.
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// CSP: it acts on a controller.
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
    /// CSP: it acts on an NVM Set.
    pub const SCOPE_NVM_SET: u32 = 1 << 22;
    /// CSP: it acts on an Endurance Group.
    pub const SCOPE_ENDURANCE_GROUP: u32 = 1 << 23;
    /// CSP: it acts on a domain.
    pub const SCOPE_DOMAIN: u32 = 1 << 24;
    /// CSP: it acts on the NVM subsystem.
    pub const SCOPE_SUBSYSTEM: u32 = 1 << 25;
}

open_enum! {
    /// Asynchronous Event Type, AET (NVMe Base 2.1 §5.1.2.1).
    AsyncEventType {
        /// Error status; information in [`async_error`].
        ERROR = 0, "error status";
        /// SMART / health status; information in [`async_smart`].
        SMART = 1, "SMART / health status";
        /// Notice; information in [`async_notice`].
        NOTICE = 2, "notice";
        /// Immediate; information 00h is Normal NVM Subsystem Shutdown.
        IMMEDIATE = 3, "immediate";
        /// I/O command specific status; information in
        /// [`async_io_command`].
        IO_COMMAND_SPECIFIC = 6, "I/O command specific status";
        /// Vendor specific.
        VENDOR = 7, "vendor specific";
    }
}

/// Asynchronous Event Information of [`AsyncEventType::ERROR`].
pub mod async_error {
    /// A write to the doorbell of a queue that does not exist.
    pub const INVALID_DOORBELL_REGISTER: u8 = 0x00;
    /// A doorbell value that is out of range or moves past what is there.
    pub const INVALID_DOORBELL_VALUE: u8 = 0x01;
    /// Diagnostic failure.
    pub const DIAGNOSTIC_FAILURE: u8 = 0x02;
    /// Persistent internal error.
    pub const PERSISTENT_INTERNAL_ERROR: u8 = 0x03;
    /// Transient internal error.
    pub const TRANSIENT_INTERNAL_ERROR: u8 = 0x04;
    /// Firmware image load error.
    pub const FIRMWARE_LOAD_ERROR: u8 = 0x05;
}

/// Asynchronous Event Information of [`AsyncEventType::SMART`].
pub mod async_smart {
    /// NVM subsystem reliability is compromised.
    pub const RELIABILITY: u8 = 0x00;
    /// A temperature passed a threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x01;
    /// Available spare fell below its threshold.
    pub const SPARE_BELOW_THRESHOLD: u8 = 0x02;
}

/// Asynchronous Event Information of [`AsyncEventType::NOTICE`].
pub mod async_notice {
    /// Identify Namespace data or the list of namespaces changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: u8 = 0x00;
    /// Firmware activation starts.
    pub const FIRMWARE_ACTIVATION_STARTING: u8 = 0x01;
    /// The controller-initiated telemetry log changed.
    pub const TELEMETRY_LOG_CHANGED: u8 = 0x02;
    /// The Asymmetric Namespace Access log changed.
    pub const ANA_CHANGE: u8 = 0x03;
    /// The Predictable Latency Event Aggregate log changed.
    pub const PREDICTABLE_LATENCY_CHANGE: u8 = 0x04;
    /// LBA Status Information alert.
    pub const LBA_STATUS_ALERT: u8 = 0x05;
    /// The Endurance Group Event Aggregate log changed.
    pub const ENDURANCE_GROUP_CHANGE: u8 = 0x06;
}

/// Asynchronous Event Information of [`AsyncEventType::IO_COMMAND_SPECIFIC`].
pub mod async_io_command {
    /// A Reservation Notification log page is available.
    pub const RESERVATION_LOG_AVAILABLE: u8 = 0x00;
    /// A sanitize operation completed.
    pub const SANITIZE_COMPLETED: u8 = 0x01;
    /// A sanitize operation completed with unexpected deallocation.
    pub const SANITIZE_UNEXPECTED_DEALLOCATION: u8 = 0x02;
}

/// An asynchronous event as DW0 of its completion tells it (NVMe Base 2.1 §5.1.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// AET, DW0 2:0.
    pub kind: AsyncEventType,
    /// AEI, DW0 15:8: what happened, by kind.
    pub info: u8,
    /// LID, DW0 23:16: the log whose reading clears the event.
    pub log: LogId,
}

impl AsyncEvent {
    /// Namespace Attribute Changed, cleared by the Changed Attached Namespace List.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self = Self {
        kind: AsyncEventType::NOTICE,
        info: async_notice::NAMESPACE_ATTRIBUTE_CHANGED,
        log: LogId::CHANGED_NAMESPACES,
    };
    /// Write to Invalid Doorbell Register, cleared by the Error Information log.
    pub const INVALID_DOORBELL_REGISTER: Self =
        Self { kind: AsyncEventType::ERROR, info: async_error::INVALID_DOORBELL_REGISTER, log: LogId::ERROR };
    /// Invalid Doorbell Write Value, cleared by the Error Information log.
    pub const INVALID_DOORBELL_VALUE: Self =
        Self { kind: AsyncEventType::ERROR, info: async_error::INVALID_DOORBELL_VALUE, log: LogId::ERROR };

    /// DW0 of the completion.
    #[must_use]
    pub const fn to_dw0(self) -> u32 {
        u32::from_le_bytes([self.kind.0 & 7, self.info, self.log.0, 0])
    }

    /// From DW0 of the completion.
    #[must_use]
    pub const fn from_dw0(dw0: u32) -> Self {
        let word = dw0 as u64;
        Self { kind: AsyncEventType(get8(word, 0, 3)), info: get8(word, 8, 8), log: LogId(get8(word, 16, 8)) }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    use super::*;

    #[test]
    fn an_async_event_is_type_information_and_log() {
        // NVMe Base 2.1 §5.1.2.1: AET 2:0, AEI 15:8, LID 23:16.
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.to_dw0(), 0x0004_0002);
        assert_eq!(AsyncEvent::INVALID_DOORBELL_REGISTER.to_dw0(), 0x0001_0000);
        assert_eq!(AsyncEvent::INVALID_DOORBELL_VALUE.to_dw0(), 0x0001_0100);
        let event =
            AsyncEvent { kind: AsyncEventType::SMART, info: async_smart::TEMPERATURE_THRESHOLD, log: LogId::SMART };
        assert_eq!(event.to_dw0(), 0x0002_0101);
        assert_eq!(AsyncEvent::from_dw0(0x0002_0101), event);
    }

    #[test]
    fn from_dw0_ignores_reserved_bits() {
        assert_eq!(AsyncEvent::from_dw0(0xff00_00f8).to_dw0(), 0);
    }

    #[test]
    fn smart_fields_are_at_their_bytes() {
        // NVMe Base 2.1 §5.1.12.1.3.
        let mut bytes = [0; 512];
        bytes[1..3].copy_from_slice(&300_u16.to_le_bytes());
        bytes[3] = 100;
        bytes[5] = 7;
        bytes[32] = 1;
        bytes[48] = 2;
        bytes[64] = 3;
        bytes[80] = 4;
        bytes[112] = 5;
        bytes[128] = 6;
        bytes[144] = 7;
        bytes[160] = 8;
        bytes[192] = 9;
        let smart = SmartLog::read_from_bytes(&bytes).unwrap();
        assert_eq!(smart.composite_temperature.get(), 300);
        assert_eq!((smart.available_spare, smart.percentage_used), (100, 7));
        assert_eq!((smart.data_units_read.get(), smart.data_units_written.get()), (1, 2));
        assert_eq!((smart.host_reads.get(), smart.host_writes.get()), (3, 4));
        assert_eq!((smart.power_cycles.get(), smart.power_on_hours.get()), (5, 6));
        assert_eq!((smart.unsafe_shutdowns.get(), smart.media_errors.get()), (7, 8));
        assert_eq!(smart.warning_temperature_minutes.get(), 9);
        assert_eq!(smart.as_bytes(), bytes);
    }

    #[test]
    fn error_entry_fields_are_at_their_bytes() {
        // NVMe Base 2.1 §5.1.12.1.2.
        assert_eq!(offset_of!(ErrorLogEntry, sqid), 8);
        assert_eq!(offset_of!(ErrorLogEntry, cid), 10);
        assert_eq!(offset_of!(ErrorLogEntry, status_phase), 12);
        assert_eq!(offset_of!(ErrorLogEntry, parameter_error_location), 14);
        assert_eq!(offset_of!(ErrorLogEntry, nsid), 24);
        assert_eq!(offset_of!(ErrorLogEntry, vendor_log), 28);
        // Byte 40 (CDW10), bit 3: 7:0 the byte, 10:8 the bit.
        assert_eq!(ErrorLogEntry::parameter(40, 3), 0x0328);
    }

    #[test]
    fn effects_are_indexed_by_opcode() {
        // NVMe Base 2.1 §5.1.12.1.6: four bytes an opcode, Admin first, I/O from 1024.
        let mut log = CommandEffectsLog::new_zeroed();
        log.acs[0x7c] = effects::SUPPORTED.into();
        log.iocs[0x01] = (effects::SUPPORTED | effects::BLOCK_CONTENT_CHANGE).into();
        assert_eq!(log.as_bytes()[0x7c * 4], 0x01);
        assert_eq!(log.as_bytes()[1024 + 4], 0x03);
        assert_eq!(effects::EXCLUSIVE_NAMESPACE, 0x0001_0000);
        assert_eq!(effects::EXCLUSIVE_ALL, 0x0002_0000);
        assert_eq!(effects::SCOPE_NAMESPACE, 0x0010_0000);
    }

    #[test]
    fn the_firmware_log_has_slot_1_at_byte_8() {
        let mut log = FirmwareSlotLog::new_zeroed();
        log.afi = 0x01;
        log.frs[0] = *b"1.0     ";
        assert_eq!(log.as_bytes()[0], 1);
        assert_eq!(log.as_bytes()[8..16], *b"1.0     ");
    }
}
