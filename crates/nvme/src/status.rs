//! Completion status.
//!
//! NVMe Base 2.1 §4.2.3; command-set specific values from NVM Command Set 1.0 §3.1.

use crate::bits::{get8, get16};
use crate::open_enum::open_enum;

open_enum! {
    /// Status Code Type, SCT (NVMe Base 2.1 §4.2.3).
    StatusCodeType {
        /// Generic command status.
        GENERIC = 0, "generic";
        /// Command specific status.
        COMMAND_SPECIFIC = 1, "command specific";
        /// Media and data integrity errors.
        MEDIA = 2, "media and data integrity";
        /// Path related status.
        PATH = 3, "path related";
        /// Vendor specific.
        VENDOR = 7, "vendor specific";
    }
}

/// The Status field of a completion without its phase tag, 15 bits: SC in 7:0, SCT in 10:8, CRD in
/// 12:11, M (More) in 13 and DNR (Do Not Retry) in 14 (NVMe Base 2.1 §4.2.3).
///
/// In a completion queue entry it stands one bit higher, above the phase tag; see
/// [`crate::command::CompletionQueueEntry`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[must_use]
pub struct Status(pub u16);

impl Status {
    const CODE_MASK: u16 = 0x7ff;
    const MORE: u16 = 1 << 13;
    const DNR: u16 = 1 << 14;

    /// The status of type `sct` (3 bits) and code `sc`, with CRD, More and DNR clear.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((((sct & 7) as u16) << 8) | sc as u16)
    }

    /// SC: the status code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        get8(self.0 as u64, 0, 8)
    }

    /// SCT: the status code type.
    #[must_use]
    pub const fn sct(self) -> StatusCodeType {
        StatusCodeType(get8(self.0 as u64, 8, 3))
    }

    /// CRD: which of Identify Controller's CRDT1 to CRDT3 to wait before a retry; 0 for none.
    #[must_use]
    pub const fn crd(self) -> u8 {
        get8(self.0 as u64, 11, 2)
    }

    /// M: there is more about this command in the Error Information log.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// DNR: the same command would fail again.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// With CRD (2 bits).
    pub const fn with_crd(self, crd: u8) -> Self {
        Self((self.0 & !(3 << 11)) | (((crd & 3) as u16) << 11))
    }

    /// With More set.
    pub const fn with_more(self) -> Self {
        Self(self.0 | Self::MORE)
    }

    /// With Do Not Retry set.
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// Only SCT and SC, for comparison with the constants here.
    pub const fn code(self) -> Self {
        Self(self.0 & Self::CODE_MASK)
    }

    /// Whether the command succeeded: SCT and SC are both 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & Self::CODE_MASK == 0
    }

    /// The status in bits 15:1 of a completion's last half-dword, whose bit 0 is the phase tag.
    pub const fn from_status_phase(status_phase: u16) -> Self {
        Self(status_phase >> 1)
    }

    /// The last half-dword of a completion with this status and phase tag.
    #[must_use]
    pub const fn to_status_phase(self, phase: bool) -> u16 {
        (get16(self.0 as u64, 0, 15) << 1) | phase as u16
    }
}

macro_rules! statuses {
    ($( $(#[$meta:meta])* $constant:ident = $sct:literal, $sc:literal, $label:literal; )*) => {
        impl Status {
            $( $(#[$meta])* pub const $constant: Self = Self::new($sct, $sc); )*

            /// The name that the specification gives to SCT and SC, if they are known here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match (self.sct().0, self.sc()) {
                    $( ($sct, $sc) => Some($label), )*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The command completed without error.
    SUCCESS = 0, 0x00, "Successful Completion";
    /// The opcode is not valid, or reserved.
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    /// A reserved or unsupported value in a defined field.
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    /// The command identifier is already in use.
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    /// Moving data or metadata failed.
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    /// Aborted because power is about to be lost.
    ABORTED_POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    /// An error inside the controller.
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    /// Aborted by an Abort command.
    ABORTED_BY_REQUEST = 0, 0x07, "Command Abort Requested";
    /// Aborted because its submission queue was deleted.
    ABORTED_SQ_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    /// Aborted because the other command of a fused pair failed.
    ABORTED_FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    /// Aborted because the other command of a fused pair is missing.
    ABORTED_MISSING_FUSED = 0, 0x0a, "Command Aborted due to Missing Fused Command";
    /// The namespace or its format is not valid.
    INVALID_NAMESPACE = 0, 0x0b, "Invalid Namespace or Format";
    /// The command came out of sequence.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "Command Sequence Error";
    /// An SGL segment descriptor is not valid.
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0, 0x0d, "Invalid SGL Segment Descriptor";
    /// The number of SGL descriptors in a segment is not valid.
    INVALID_SGL_DESCRIPTOR_COUNT = 0, 0x0e, "Invalid Number of SGL Descriptors";
    /// The length of a data SGL does not fit.
    INVALID_SGL_DATA_LENGTH = 0, 0x0f, "Data SGL Length Invalid";
    /// The length of a metadata SGL does not fit.
    INVALID_SGL_METADATA_LENGTH = 0, 0x10, "Metadata SGL Length Invalid";
    /// The type of an SGL descriptor is not supported.
    INVALID_SGL_DESCRIPTOR_TYPE = 0, 0x11, "SGL Descriptor Type Invalid";
    /// A Controller Memory Buffer address is used in a way it may not be.
    INVALID_CMB_USE = 0, 0x12, "Invalid Use of Controller Memory Buffer";
    /// The offset of a PRP entry is not valid.
    INVALID_PRP_OFFSET = 0, 0x13, "PRP Offset Invalid";
    /// The length is above the atomic write unit.
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "Atomic Write Unit Exceeded";
    /// The host lacks the right to the operation.
    OPERATION_DENIED = 0, 0x15, "Operation Denied";
    /// The offset in an SGL descriptor is not valid.
    INVALID_SGL_OFFSET = 0, 0x16, "SGL Offset Invalid";
    /// Host Identifiers of different formats meet in the subsystem.
    HOST_ID_INCONSISTENT_FORMAT = 0, 0x18, "Host Identifier Inconsistent Format";
    /// The Keep Alive Timer expired.
    KEEP_ALIVE_EXPIRED = 0, 0x19, "Keep Alive Timer Expired";
    /// The Keep Alive Timeout is not valid.
    KEEP_ALIVE_INVALID = 0, 0x1a, "Keep Alive Timeout Invalid";
    /// Aborted by a Reservation Acquire with Preempt and Abort.
    ABORTED_PREEMPT = 0, 0x1b, "Command Aborted due to Preempt and Abort";
    /// The last sanitize operation failed.
    SANITIZE_FAILED = 0, 0x1c, "Sanitize Failed";
    /// A sanitize operation is in progress.
    SANITIZE_IN_PROGRESS = 0, 0x1d, "Sanitize In Progress";
    /// The address or length of a Data Block SGL has not the granularity required.
    INVALID_SGL_GRANULARITY = 0, 0x1e, "SGL Data Block Granularity Invalid";
    /// The command may not come from a queue in the Controller Memory Buffer.
    COMMAND_NOT_SUPPORTED_IN_CMB_QUEUE = 0, 0x1f, "Command Not Supported for Queue in CMB";
    /// The namespace is write protected.
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    /// The command was interrupted; retry it.
    COMMAND_INTERRUPTED = 0, 0x21, "Command Interrupted";
    /// A transient error of the transport; retry it.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    /// A lockdown prohibits the command.
    PROHIBITED_BY_LOCKDOWN = 0, 0x23, "Command Prohibited by Command and Feature Lockdown";
    /// An Admin command needs media that is not ready.
    ADMIN_MEDIA_NOT_READY = 0, 0x24, "Admin Command Media Not Ready";
    /// The range reaches past the size of the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    /// The namespace's capacity would be exceeded.
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    /// Another host's reservation forbids the command.
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    /// A format operation is in progress.
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";

    /// Create I/O SQ: the completion queue does not exist.
    CQ_INVALID = 1, 0x00, "Completion Queue Invalid";
    /// The queue id is 0, in use, out of range or does not exist.
    INVALID_QUEUE_ID = 1, 0x01, "Invalid Queue Identifier";
    /// The queue size is 0 (0's based) or above CAP.MQES.
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    /// More Abort commands are outstanding than ACL allows.
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "Abort Command Limit Exceeded";
    /// More Asynchronous Event Requests are outstanding than AERL allows.
    AER_LIMIT_EXCEEDED = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    /// The firmware slot is not valid or read only.
    INVALID_FIRMWARE_SLOT = 1, 0x06, "Invalid Firmware Slot";
    /// The firmware image is not valid.
    INVALID_FIRMWARE_IMAGE = 1, 0x07, "Invalid Firmware Image";
    /// The interrupt vector does not exist.
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    /// The log page is not supported.
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    /// The LBA format or its options are not supported.
    INVALID_FORMAT = 1, 0x0a, "Invalid Format";
    /// The firmware is activated by a conventional reset.
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 1, 0x0b,
        "Firmware Activation Requires Conventional Reset";
    /// Delete I/O CQ while a submission queue uses it.
    INVALID_QUEUE_DELETION = 1, 0x0c, "Invalid Queue Deletion";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "Feature Identifier Not Saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "Feature Not Changeable";
    /// The feature is not one of a namespace.
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, "Feature Not Namespace Specific";
    /// The firmware is activated by an NVM Subsystem Reset.
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 1, 0x10,
        "Firmware Activation Requires NVM Subsystem Reset";
    /// The firmware is activated by a Controller Level Reset.
    FIRMWARE_NEEDS_CONTROLLER_RESET = 1, 0x11,
        "Firmware Activation Requires Controller Level Reset";
    /// Activation at once would take longer than MTFA.
    FIRMWARE_MAXIMUM_TIME_VIOLATION = 1, 0x12,
        "Firmware Activation Requires Maximum Time Violation";
    /// The image may not be activated.
    FIRMWARE_ACTIVATION_PROHIBITED = 1, 0x13, "Firmware Activation Prohibited";
    /// Firmware or boot partition ranges overlap.
    OVERLAPPING_RANGE = 1, 0x14, "Overlapping Range";
    /// Not enough capacity for the namespace.
    NAMESPACE_INSUFFICIENT_CAPACITY = 1, 0x15, "Namespace Insufficient Capacity";
    /// No namespace id is left.
    NAMESPACE_ID_UNAVAILABLE = 1, 0x16, "Namespace Identifier Unavailable";
    /// The namespace is attached to the controller already.
    NAMESPACE_ALREADY_ATTACHED = 1, 0x18, "Namespace Already Attached";
    /// The namespace is private to another controller.
    NAMESPACE_IS_PRIVATE = 1, 0x19, "Namespace Is Private";
    /// The namespace is not attached.
    NAMESPACE_NOT_ATTACHED = 1, 0x1a, "Namespace Not Attached";
    /// Thin provisioning is not supported.
    THIN_PROVISIONING_NOT_SUPPORTED = 1, 0x1b, "Thin Provisioning Not Supported";
    /// The controller list is not valid.
    CONTROLLER_LIST_INVALID = 1, 0x1c, "Controller List Invalid";
    /// A device self-test is in progress.
    SELF_TEST_IN_PROGRESS = 1, 0x1d, "Device Self-test In Progress";
    /// The boot partition is locked.
    BOOT_PARTITION_WRITE_PROHIBITED = 1, 0x1e, "Boot Partition Write Prohibited";
    /// The controller id is not valid.
    INVALID_CONTROLLER_ID = 1, 0x1f, "Invalid Controller Identifier";
    /// The state of the secondary controller does not allow it.
    INVALID_SECONDARY_CONTROLLER_STATE = 1, 0x20, "Invalid Secondary Controller State";
    /// The number of controller resources is not valid.
    INVALID_RESOURCE_COUNT = 1, 0x21, "Invalid Number of Controller Resources";
    /// The resource id is not valid.
    INVALID_RESOURCE_ID = 1, 0x22, "Invalid Resource Identifier";
    /// Sanitize may not run while a Persistent Memory Region is enabled.
    SANITIZE_PROHIBITED_PMR = 1, 0x23,
        "Sanitize Prohibited While Persistent Memory Region is Enabled";
    /// The ANA group id is not valid.
    ANA_GROUP_ID_INVALID = 1, 0x24, "ANA Group Identifier Invalid";
    /// The ANA state does not allow the attachment.
    ANA_ATTACH_FAILED = 1, 0x25, "ANA Attach Failed";
    /// Not enough capacity.
    INSUFFICIENT_CAPACITY = 1, 0x26, "Insufficient Capacity";
    /// More namespaces would be attached than allowed.
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 1, 0x27, "Namespace Attachment Limit Exceeded";
    /// Lockdown of this command is not supported.
    LOCKDOWN_NOT_SUPPORTED = 1, 0x28, "Prohibition of Command Execution Not Supported";
    /// The I/O command set is not supported.
    IO_COMMAND_SET_NOT_SUPPORTED = 1, 0x29, "I/O Command Set Not Supported";
    /// The I/O command set is not enabled.
    IO_COMMAND_SET_NOT_ENABLED = 1, 0x2a, "I/O Command Set Not Enabled";
    /// The combination of I/O command sets is rejected.
    IO_COMMAND_SET_COMBINATION_REJECTED = 1, 0x2b, "I/O Command Set Combination Rejected";
    /// The I/O command set is not valid.
    INVALID_IO_COMMAND_SET = 1, 0x2c, "Invalid I/O Command Set";
    /// No identifier is left for what is to be created.
    IDENTIFIER_UNAVAILABLE = 1, 0x2d, "Identifier Unavailable";
    /// NVM command set: attributes of the command contradict each other.
    CONFLICTING_ATTRIBUTES = 1, 0x80, "Conflicting Attributes";
    /// NVM command set: the protection information settings are not valid.
    INVALID_PROTECTION_INFORMATION = 1, 0x81, "Invalid Protection Information";
    /// NVM command set: a write to a read-only range.
    ATTEMPTED_WRITE_TO_READ_ONLY = 1, 0x82, "Attempted Write to Read Only Range";
    /// NVM command set: a limit on the size of the command is exceeded.
    COMMAND_SIZE_LIMIT_EXCEEDED = 1, 0x83, "Command Size Limit Exceeded";
    /// Vendor specific, and answered by controllers that have Doorbell Buffer Config as the vendor
    /// command C0h: a doorbell buffer address is not valid.
    VENDOR_DOORBELL_MEMORY_INVALID = 1, 0xc0, "Doorbell Memory Invalid (vendor)";

    /// The data could not be written to the media.
    WRITE_FAULT = 2, 0x80, "Write Fault";
    /// The data could not be read from the media.
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    /// The guard of the protection information does not match.
    GUARD_CHECK_ERROR = 2, 0x82, "End-to-end Guard Check Error";
    /// The application tag of the protection information does not match.
    APPLICATION_TAG_CHECK_ERROR = 2, 0x83, "End-to-end Application Tag Check Error";
    /// The reference tag of the protection information does not match.
    REFERENCE_TAG_CHECK_ERROR = 2, 0x84, "End-to-end Reference Tag Check Error";
    /// Compare found a difference.
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    /// Access to the range is denied.
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    /// A read of a deallocated or unwritten block while DULBE is set.
    DEALLOCATED_OR_UNWRITTEN_BLOCK = 2, 0x87, "Deallocated or Unwritten Logical Block";
    /// The storage tag of the protection information does not match.
    STORAGE_TAG_CHECK_ERROR = 2, 0x88, "End-to-End Storage Tag Check Error";

    /// The path failed for a reason inside the controller.
    INTERNAL_PATH_ERROR = 3, 0x00, "Internal Path Error";
    /// ANA: persistent loss.
    ANA_PERSISTENT_LOSS = 3, 0x01, "Asymmetric Access Persistent Loss";
    /// ANA: inaccessible.
    ANA_INACCESSIBLE = 3, 0x02, "Asymmetric Access Inaccessible";
    /// ANA: transition.
    ANA_TRANSITION = 3, 0x03, "Asymmetric Access Transition";
    /// The controller detected a pathing error.
    CONTROLLER_PATHING_ERROR = 3, 0x60, "Controller Pathing Error";
    /// The host detected a pathing error.
    HOST_PATHING_ERROR = 3, 0x70, "Host Pathing Error";
    /// The host aborted the command.
    ABORTED_BY_HOST = 3, 0x71, "Command Aborted By Host";
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}")?,
            None => write!(f, "unknown status")?,
        }
        write!(f, " (SCT {:X}h SC {:02X}h", self.sct().0, self.sc())?;
        if self.more() {
            write!(f, ", more")?;
        }
        if self.dnr() {
            write!(f, ", do not retry")?;
        }
        write!(f, ")")
    }
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Status({:#06x}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_at_its_bits() {
        // NVMe Base 2.1 §4.2.3: of DW3, SC is 24:17, SCT 27:25, CRD 29:28, M 30, DNR 31; here 17 lower.
        assert_eq!(Status::new(0, 0xff).0, 0x00ff);
        assert_eq!(Status::new(0xff, 0).0, 0x0700);
        assert_eq!(Status::SUCCESS.with_crd(0xff).0, 0x1800);
        assert_eq!(Status::SUCCESS.with_more().0, 0x2000);
        assert_eq!(Status::SUCCESS.with_dnr().0, 0x4000);
        let status = Status(0x6a82);
        assert_eq!((status.sct(), status.sc(), status.crd()), (StatusCodeType::MEDIA, 0x82, 1));
        assert!(status.more() && status.dnr());
        assert_eq!(status.code(), Status::GUARD_CHECK_ERROR);
    }

    #[test]
    fn linux_knows_the_codes_by_these_numbers() {
        // The values of NVME_SC_* in include/linux/nvme.h, which are (SCT << 8) | SC.
        for (status, number) in [
            (Status::SUCCESS, 0x0),
            (Status::INVALID_OPCODE, 0x1),
            (Status::INVALID_FIELD, 0x2),
            (Status::COMMAND_ID_CONFLICT, 0x3),
            (Status::DATA_TRANSFER_ERROR, 0x4),
            (Status::ABORTED_POWER_LOSS, 0x5),
            (Status::INTERNAL_ERROR, 0x6),
            (Status::ABORTED_BY_REQUEST, 0x7),
            (Status::ABORTED_SQ_DELETION, 0x8),
            (Status::INVALID_NAMESPACE, 0xb),
            (Status::COMMAND_SEQUENCE_ERROR, 0xc),
            (Status::INVALID_PRP_OFFSET, 0x13),
            (Status::NAMESPACE_WRITE_PROTECTED, 0x20),
            (Status::COMMAND_INTERRUPTED, 0x21),
            (Status::LBA_OUT_OF_RANGE, 0x80),
            (Status::CAPACITY_EXCEEDED, 0x81),
            (Status::NAMESPACE_NOT_READY, 0x82),
            (Status::CQ_INVALID, 0x100),
            (Status::INVALID_QUEUE_ID, 0x101),
            (Status::INVALID_QUEUE_SIZE, 0x102),
            (Status::ABORT_LIMIT_EXCEEDED, 0x103),
            (Status::AER_LIMIT_EXCEEDED, 0x105),
            (Status::INVALID_FIRMWARE_SLOT, 0x106),
            (Status::INVALID_INTERRUPT_VECTOR, 0x108),
            (Status::INVALID_LOG_PAGE, 0x109),
            (Status::INVALID_FORMAT, 0x10a),
            (Status::INVALID_QUEUE_DELETION, 0x10c),
            (Status::FEATURE_NOT_SAVEABLE, 0x10d),
            (Status::FEATURE_NOT_CHANGEABLE, 0x10e),
            (Status::FEATURE_NOT_NAMESPACE_SPECIFIC, 0x10f),
            (Status::ATTEMPTED_WRITE_TO_READ_ONLY, 0x182),
            (Status::VENDOR_DOORBELL_MEMORY_INVALID, 0x1c0),
            (Status::WRITE_FAULT, 0x280),
            (Status::UNRECOVERED_READ_ERROR, 0x281),
            (Status::COMPARE_FAILURE, 0x285),
            (Status::ACCESS_DENIED, 0x286),
            (Status::DEALLOCATED_OR_UNWRITTEN_BLOCK, 0x287),
        ] {
            assert_eq!(status.0, number, "{status}");
        }
    }

    #[test]
    fn only_sct_and_sc_decide_success() {
        assert!(Status::SUCCESS.with_more().is_success());
        assert!(!Status::new(1, 0).is_success());
        assert!(!Status::INVALID_FIELD.with_dnr().is_success());
    }

    #[test]
    fn the_phase_tag_is_below_the_status() {
        assert_eq!(Status::INVALID_FIELD.with_dnr().to_status_phase(true), 0x8005);
        assert_eq!(Status::from_status_phase(0x8005), Status::INVALID_FIELD.with_dnr());
        // A 16th bit, which the field does not have, is dropped.
        assert_eq!(Status(0x8000).to_status_phase(false), 0);
    }

    #[test]
    fn display_names_the_status_and_its_flags() {
        assert_eq!(
            format!("{}", Status::LBA_OUT_OF_RANGE.with_dnr()),
            "LBA Out of Range (SCT 0h SC 80h, do not retry)"
        );
        assert_eq!(format!("{}", Status::new(7, 0x11)), "unknown status (SCT 7h SC 11h)");
    }
}
