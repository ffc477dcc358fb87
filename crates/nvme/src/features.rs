//! Features: identifiers, and the dwords and structures in which their values are exchanged.
//!
//! NVMe Base 2.1 §5.1.25 (Set Features) and §5.1.11 (Get Features); NVM Command Set 1.0 §4.1.3.

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{flag, get8, get16, put32};
use crate::command::halves;
use crate::open_enum::open_enum;

open_enum! {
    /// Feature Identifier, FID (NVMe Base 2.1 §5.1.25; NVM Command Set 1.0 §4.1.3).
    FeatureId {
        /// Arbitration: [`Arbitration`].
        ARBITRATION = 0x01, "Arbitration";
        /// Power Management: [`PowerManagement`].
        POWER_MANAGEMENT = 0x02, "Power Management";
        /// LBA Range Type.
        LBA_RANGE = 0x03, "LBA Range Type";
        /// Temperature Threshold: [`TemperatureThreshold`].
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        /// Error Recovery: [`ErrorRecovery`].
        ERROR_RECOVERY = 0x05, "Error Recovery";
        /// Volatile Write Cache: bit 0, WCE.
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        /// Number of Queues: [`NumberOfQueues`].
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        /// Interrupt Coalescing: [`InterruptCoalescing`].
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        /// Interrupt Vector Configuration: [`InterruptVectorConfig`].
        INTERRUPT_VECTOR_CONFIG = 0x09, "Interrupt Vector Configuration";
        /// Write Atomicity Normal: bit 0, DN (Disable Normal).
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        /// Asynchronous Event Configuration: bits of [`async_event_config`].
        ASYNC_EVENT_CONFIG = 0x0b, "Asynchronous Event Configuration";
        /// Autonomous Power State Transition.
        APST = 0x0c, "Autonomous Power State Transition";
        /// Host Memory Buffer.
        HMB = 0x0d, "Host Memory Buffer";
        /// Timestamp: [`Timestamp`].
        TIMESTAMP = 0x0e, "Timestamp";
        /// Keep Alive Timer: the timeout in milliseconds, 0 for none.
        KEEP_ALIVE = 0x0f, "Keep Alive Timer";
        /// Host Controlled Thermal Management.
        HOST_THERMAL_MANAGEMENT = 0x10, "Host Controlled Thermal Management";
        /// Non-Operational Power State Config.
        NON_OPERATIONAL_POWER_STATE = 0x11, "Non-Operational Power State Config";
        /// Read Recovery Level Config.
        READ_RECOVERY_LEVEL = 0x12, "Read Recovery Level Config";
        /// Predictable Latency Mode Config.
        PREDICTABLE_LATENCY_CONFIG = 0x13, "Predictable Latency Mode Config";
        /// Predictable Latency Mode Window.
        PREDICTABLE_LATENCY_WINDOW = 0x14, "Predictable Latency Mode Window";
        /// LBA Status Information Report Interval.
        LBA_STATUS_INTERVAL = 0x15, "LBA Status Information Report Interval";
        /// Host Behavior Support: [`HostBehavior`].
        HOST_BEHAVIOR = 0x16, "Host Behavior Support";
        /// Sanitize Config.
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        /// Endurance Group Event Configuration.
        ENDURANCE_GROUP_EVENT_CONFIG = 0x18, "Endurance Group Event Configuration";
        /// I/O Command Set Profile: the index of a vector of Identify CNS 1Ch, in 8:0.
        IO_COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        /// Spinup Control.
        SPINUP_CONTROL = 0x1a, "Spinup Control";
        /// Enhanced Controller Metadata.
        ENHANCED_CONTROLLER_METADATA = 0x7d, "Enhanced Controller Metadata";
        /// Controller Metadata.
        CONTROLLER_METADATA = 0x7e, "Controller Metadata";
        /// Namespace Metadata.
        NAMESPACE_METADATA = 0x7f, "Namespace Metadata";
        /// Software Progress Marker: the pre-boot software load count in 7:0.
        SOFTWARE_PROGRESS = 0x80, "Software Progress Marker";
        /// Host Identifier.
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        /// Reservation Notification Mask.
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        /// Reservation Persistence.
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        /// Namespace Write Protection Config: the state in 2:0.
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

open_enum! {
    /// Select, SEL, of Get Features (NVMe Base 2.1 §5.1.11).
    Select {
        /// The value in effect.
        CURRENT = 0, "current";
        /// The default value.
        DEFAULT = 1, "default";
        /// The saved value.
        SAVED = 2, "saved";
        /// What the feature can do: bits of [`capability`] in DW0.
        SUPPORTED = 3, "supported capabilities";
    }
}

/// DW0 of a Get Features that selects [`Select::SUPPORTED`] (NVMe Base 2.1 §5.1.11).
pub mod capability {
    /// The feature can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// The feature is one of a namespace.
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    /// The feature can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Feature Asynchronous Event Configuration, DW11 (NVMe Base 2.1 §5.1.25.1.5).
pub mod async_event_config {
    /// Bits 7:0: an event for each bit of [`critical_warning`](crate::logs::critical_warning).
    pub const CRITICAL_WARNING_MASK: u32 = 0xff;
    /// Namespace Attribute Notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware Activation Notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Telemetry Log Notices.
    pub const TELEMETRY_LOG: u32 = 1 << 10;
    /// Asymmetric Namespace Access Change Notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub const PREDICTABLE_LATENCY: u32 = 1 << 12;
    /// LBA Status Information Notices.
    pub const LBA_STATUS: u32 = 1 << 13;
    /// Endurance Group Event Aggregate Log Change Notices.
    pub const ENDURANCE_GROUP: u32 = 1 << 14;
    /// Normal NVM Subsystem Shutdown.
    pub const NORMAL_SUBSYSTEM_SHUTDOWN: u32 = 1 << 15;
}

/// Feature Volatile Write Cache, DW11 (NVMe Base 2.1 §5.1.25.1.4).
pub mod volatile_write_cache {
    /// WCE: the cache is enabled.
    pub const ENABLE: u32 = 1 << 0;
}

/// Feature Write Atomicity Normal, DW11 (NVM Command Set 1.0 §4.1.3).
pub mod write_atomicity {
    /// DN: the host needs AWUPF and not AWUN.
    pub const DISABLE_NORMAL: u32 = 1 << 0;
}

/// A value of feature Arbitration (NVMe Base 2.1 §5.1.25.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arbitration {
    /// AB: burst, `1 << AB` commands; 7 for no limit. 3 bits.
    pub burst: u8,
    /// LPW: weight of low priority, 0's based.
    pub low_z: u8,
    /// MPW: weight of medium priority, 0's based.
    pub medium_z: u8,
    /// HPW: weight of high priority, 0's based.
    pub high_z: u8,
}

impl Arbitration {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let word = dword as u64;
        Self {
            burst: get8(word, 0, 3),
            low_z: get8(word, 8, 8),
            medium_z: get8(word, 16, 8),
            high_z: get8(word, 24, 8),
        }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        u32::from_le_bytes([self.burst & 7, self.low_z, self.medium_z, self.high_z])
    }
}

/// A value of feature Power Management (NVMe Base 2.1 §5.1.25.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PowerManagement {
    /// PS: the power state. 5 bits.
    pub ps: u8,
    /// WH: workload hint. 3 bits.
    pub wh: u8,
}

impl PowerManagement {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { ps: get8(dword as u64, 0, 5), wh: get8(dword as u64, 5, 3) }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        put32(put32(0, 0, 5, self.ps as u32), 5, 3, self.wh as u32)
    }
}

/// A value of feature Temperature Threshold (NVMe Base 2.1 §5.1.25.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TemperatureThreshold {
    /// TMPTH: the threshold, K.
    pub tmpth: u16,
    /// TMPSEL: 0 composite, 1 to 8 a sensor, Fh all (Set Features only). 4 bits.
    pub tmpsel: u8,
    /// THSEL: 0 over, 1 under. 2 bits.
    pub thsel: u8,
}

impl TemperatureThreshold {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let word = dword as u64;
        Self { tmpth: get16(word, 0, 16), tmpsel: get8(word, 16, 4), thsel: get8(word, 20, 2) }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        let dword = put32(self.tmpth as u32, 16, 4, self.tmpsel as u32);
        put32(dword, 20, 2, self.thsel as u32)
    }
}

/// A value of feature Error Recovery (NVM Command Set 1.0 §4.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorRecovery {
    /// TLER: time limited error recovery, 100 ms; 0 for no limit.
    pub tler: u16,
    /// DULBE: reading a deallocated or unwritten block is an error.
    pub dulbe: bool,
}

impl ErrorRecovery {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { tler: get16(dword as u64, 0, 16), dulbe: flag(dword as u64, 16) }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        put32(self.tler as u32, 16, 1, self.dulbe as u32)
    }
}

/// A value of feature Number of Queues: requested in DW11 of Set Features, allocated in DW0 of the
/// completion (NVMe Base 2.1 §5.1.25.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NumberOfQueues {
    /// NSQR or NSQA: I/O submission queues, 0's based. FFFFh is not valid in a request.
    pub nsq_z: u16,
    /// NCQR or NCQA: I/O completion queues, 0's based. FFFFh is not valid in a request.
    pub ncq_z: u16,
}

impl NumberOfQueues {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let (nsq_z, ncq_z) = halves(dword);
        Self { nsq_z, ncq_z }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        ((self.ncq_z as u32) << 16) | self.nsq_z as u32
    }
}

/// A value of feature Interrupt Coalescing (NVMe Base 2.1 §5.1.25.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterruptCoalescing {
    /// THR: completions to gather before an interrupt, 0's based.
    pub threshold_z: u8,
    /// TIME: the longest delay of an interrupt, 100 µs; 0 for none.
    pub time_100us: u8,
}

impl InterruptCoalescing {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { threshold_z: get8(dword as u64, 0, 8), time_100us: get8(dword as u64, 8, 8) }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        ((self.time_100us as u32) << 8) | self.threshold_z as u32
    }
}

/// A value of feature Interrupt Vector Configuration (NVMe Base 2.1 §5.1.25.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterruptVectorConfig {
    /// IV: the vector.
    pub iv: u16,
    /// CD: coalescing is disabled for the vector.
    pub cd: bool,
}

impl InterruptVectorConfig {
    /// From the feature's dword.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { iv: get16(dword as u64, 0, 16), cd: flag(dword as u64, 16) }
    }

    /// The feature's dword.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        put32(self.iv as u32, 16, 1, self.cd as u32)
    }
}

/// The data structure of feature Timestamp, 8 bytes (NVMe Base 2.1 §5.1.25.1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Timestamp {
    /// 48 bits, little-endian: ms since 1970-01-01 00:00 UTC, or since the last reset by the origin.
    pub milliseconds: [u8; 6],
    /// Bit 0: counting may have stopped. Bits 3:1: origin, 0 cleared by a reset, 1 Set Features.
    pub attributes: u8,
    /// Reserved.
    pub reserved: u8,
}

const _: () = assert!(size_of::<Timestamp>() == 8);

impl Timestamp {
    /// Bit 0 of the attributes: the controller may have stopped counting at some time.
    pub const MAY_HAVE_STOPPED: u8 = 1 << 0;
    /// Bits 3:1 of the attributes: the time was set by Set Features.
    pub const ORIGIN_SET_FEATURES: u8 = 0b001 << 1;

    /// The structure with this time (48 bits count) and attributes.
    #[must_use]
    pub const fn new(milliseconds: u64, attributes: u8) -> Self {
        let [a, b, c, d, e, f, _, _] = milliseconds.to_le_bytes();
        Self { milliseconds: [a, b, c, d, e, f], attributes, reserved: 0 }
    }

    /// The time in ms.
    #[must_use]
    pub const fn milliseconds(&self) -> u64 {
        let [a, b, c, d, e, f] = self.milliseconds;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

/// The data structure of feature Host Behavior Support, 512 bytes (NVMe Base 2.1 §5.1.25.1.14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostBehavior {
    /// ACRE: 1 if the host knows Command Interrupted and the retry delays.
    pub acre: u8,
    /// ETDAS: 1 if the host knows Telemetry Data Area 4.
    pub etdas: u8,
    /// LBAFEE: 1 if the host knows extended LBA formats.
    pub lbafee: u8,
    /// Reserved.
    pub reserved_3: u8,
    /// CDFE: copy descriptor formats that the host enables (NVMe Base 2.1); reserved in 2.0.
    pub cdfe: U16,
    /// Reserved.
    pub reserved_6: [u8; 506],
}

const _: () = {
    assert!(size_of::<HostBehavior>() == 512);
    assert!(offset_of!(HostBehavior, cdfe) == 4);
};

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn number_of_queues_has_submission_queues_below() {
        // NVMe Base 2.1 §5.1.25.2.1: NSQR in 15:0, NCQR in 31:16, both 0's based.
        let queues = NumberOfQueues { nsq_z: 7, ncq_z: 3 };
        assert_eq!(queues.to_dword(), 0x0003_0007);
        assert_eq!(NumberOfQueues::from_dword(0x0003_0007), queues);
    }

    #[test]
    fn each_field_is_at_its_bits() {
        assert_eq!(Arbitration { burst: 0xff, low_z: 1, medium_z: 2, high_z: 3 }.to_dword(), 0x0302_0107);
        assert_eq!(PowerManagement { ps: 0xff, wh: 0 }.to_dword(), 0x1f);
        assert_eq!(PowerManagement { ps: 0, wh: 0xff }.to_dword(), 0xe0);
        assert_eq!(TemperatureThreshold { tmpth: 0x1234, tmpsel: 0xff, thsel: 0 }.to_dword(), 0x000f_1234);
        assert_eq!(TemperatureThreshold { tmpth: 0, tmpsel: 0, thsel: 0xff }.to_dword(), 0x0030_0000);
        assert_eq!(ErrorRecovery { tler: 0x1234, dulbe: true }.to_dword(), 0x0001_1234);
        assert_eq!(InterruptCoalescing { threshold_z: 9, time_100us: 1 }.to_dword(), 0x0000_0109);
        assert_eq!(InterruptVectorConfig { iv: 0x1234, cd: true }.to_dword(), 0x0001_1234);
    }

    #[test]
    fn every_dword_keeps_its_defined_bits() {
        for dword in [0, u32::MAX, 0x5555_5555, 0xaaaa_aaaa] {
            assert_eq!(Arbitration::from_dword(dword).to_dword(), dword & 0xffff_ff07);
            assert_eq!(PowerManagement::from_dword(dword).to_dword(), dword & 0xff);
            assert_eq!(TemperatureThreshold::from_dword(dword).to_dword(), dword & 0x003f_ffff);
            assert_eq!(ErrorRecovery::from_dword(dword).to_dword(), dword & 0x0001_ffff);
            assert_eq!(NumberOfQueues::from_dword(dword).to_dword(), dword);
            assert_eq!(InterruptCoalescing::from_dword(dword).to_dword(), dword & 0xffff);
            assert_eq!(InterruptVectorConfig::from_dword(dword).to_dword(), dword & 0x0001_ffff);
        }
    }

    #[test]
    fn a_timestamp_has_48_bits_of_milliseconds() {
        // NVMe Base 2.1 §5.1.25.1.7.
        let timestamp = Timestamp::new(0xffff_0605_0403_0201, Timestamp::ORIGIN_SET_FEATURES);
        assert_eq!(timestamp.as_bytes(), [1, 2, 3, 4, 5, 6, 0b10, 0]);
        assert_eq!(timestamp.milliseconds(), 0x0605_0403_0201);
    }

    #[test]
    fn event_configuration_and_support_bits_are_the_same() {
        use crate::identify::oaes;
        assert_eq!(async_event_config::NAMESPACE_ATTRIBUTE, oaes::NAMESPACE_ATTRIBUTE);
        assert_eq!(async_event_config::FIRMWARE_ACTIVATION, oaes::FIRMWARE_ACTIVATION);
        assert_eq!(async_event_config::ANA_CHANGE, oaes::ANA_CHANGE);
        assert_eq!(async_event_config::NORMAL_SUBSYSTEM_SHUTDOWN, oaes::NORMAL_SUBSYSTEM_SHUTDOWN);
    }

    #[test]
    fn feature_ids_have_the_names_of_the_specification() {
        assert_eq!(format!("{}", FeatureId(0x07)), "Number of Queues");
        assert_eq!(format!("{}", FeatureId(0x80)), "Software Progress Marker");
        assert_eq!(FeatureId(0xc0).name(), None);
    }
}
