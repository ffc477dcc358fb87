//! Submission and completion queue entries, and the opcodes.
//!
//! NVMe Base 2.1 §4.1 and §4.2; opcodes §5 and NVM Command Set 1.0 §3.2.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{get8, get16};
use crate::open_enum::open_enum;
use crate::status::Status;

/// Bytes of a [`SubmissionQueueEntry`].
pub const SQE_BYTES: usize = 64;

/// Bytes of a [`CompletionQueueEntry`].
pub const CQE_BYTES: usize = 16;

/// A submission queue entry, 64 bytes (NVMe Base 2.1 §4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubmissionQueueEntry {
    /// OPC, CDW0 7:0: an [`AdminOpcode`] or an [`NvmOpcode`], by the queue it comes from.
    pub opcode: u8,
    /// CDW0 15:8: FUSE in 1:0 and PSDT in 7:6 of this byte.
    pub flags: u8,
    /// CID, the command identifier: unique among the commands outstanding in its SQ.
    pub cid: U16,
    /// NSID.
    pub nsid: U32,
    /// CDW2.
    pub cdw2: U32,
    /// CDW3.
    pub cdw3: U32,
    /// MPTR, the metadata pointer: an address.
    pub mptr: U64,
    /// DPTR, first half: PRP entry 1, or the first half of SGL entry 1.
    pub prp1: U64,
    /// DPTR, second half: PRP entry 2, or the second half of SGL entry 1.
    pub prp2: U64,
    /// CDW10.
    pub cdw10: U32,
    /// CDW11.
    pub cdw11: U32,
    /// CDW12.
    pub cdw12: U32,
    /// CDW13.
    pub cdw13: U32,
    /// CDW14.
    pub cdw14: U32,
    /// CDW15.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<SubmissionQueueEntry>() == SQE_BYTES);

impl SubmissionQueueEntry {
    /// The entry in eight 64-bit words, word 0 first. A word is the *value* of a little-endian
    /// 64-bit load: the opcode is `words[0] & 0xff` on every machine.
    #[must_use]
    pub fn from_words(words: [u64; 8]) -> Self {
        zerocopy::transmute!(words.map(U64::new))
    }

    /// The inverse of [`Self::from_words`].
    #[must_use]
    pub fn to_words(self) -> [u64; 8] {
        let words: [U64; 8] = zerocopy::transmute!(self);
        words.map(U64::get)
    }

    /// PSDT: how DPTR and MPTR are to be read.
    #[must_use]
    pub const fn psdt(&self) -> Psdt {
        Psdt(get8(self.flags as u64, 6, 2))
    }

    /// FUSE: the part of this command in a fused operation.
    #[must_use]
    pub const fn fuse(&self) -> Fuse {
        Fuse(get8(self.flags as u64, 0, 2))
    }
}

open_enum! {
    /// PRP or SGL for Data Transfer, PSDT (NVMe Base 2.1 §4.1.1).
    Psdt {
        /// PRPs for data; MPTR is a contiguous buffer.
        PRP = 0, "PRP";
        /// SGLs for data; MPTR is a contiguous buffer.
        SGL_MPTR_CONTIGUOUS = 1, "SGL, contiguous metadata";
        /// SGLs for data; MPTR is an SGL segment with one descriptor.
        SGL_MPTR_SGL = 2, "SGL, SGL metadata";
    }
}

open_enum! {
    /// Fused Operation, FUSE (NVMe Base 2.1 §4.1.1).
    Fuse {
        /// Not fused.
        NORMAL = 0, "normal";
        /// The first command of a fused pair.
        FIRST = 1, "fused, first";
        /// The second command of a fused pair.
        SECOND = 2, "fused, second";
    }
}

/// A completion queue entry, 16 bytes (NVMe Base 2.1 §4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CompletionQueueEntry {
    /// DW0: command specific.
    pub dw0: U32,
    /// DW1: command specific.
    pub dw1: U32,
    /// SQHD: the head of the submission queue when this entry was made, an index.
    pub sqhd: U16,
    /// SQID: the submission queue of the command.
    pub sqid: U16,
    /// CID: the identifier of the command.
    pub cid: U16,
    /// The phase tag in bit 0, the [`Status`] in bits 15:1.
    pub status_phase: U16,
}

const _: () = assert!(size_of::<CompletionQueueEntry>() == CQE_BYTES);

impl CompletionQueueEntry {
    /// The entry in two 64-bit words, word 0 first; values of little-endian 64-bit loads, so that
    /// the phase tag is bit 48 of `words[1]`.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Self {
        zerocopy::transmute!(words.map(U64::new))
    }

    /// The inverse of [`Self::from_words`]. Whoever publishes the entry stores word 0 first and
    /// word 1, which has the phase tag, last.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let words: [U64; 2] = zerocopy::transmute!(self);
        words.map(U64::get)
    }

    /// The status, without the phase tag.
    pub fn status(&self) -> Status {
        Status::from_status_phase(self.status_phase.get())
    }

    /// P, the phase tag.
    #[must_use]
    pub fn phase(&self) -> bool {
        self.status_phase.get() & 1 != 0
    }

    /// With this status; the phase tag stays.
    #[must_use]
    pub fn with_status(self, status: Status) -> Self {
        Self { status_phase: U16::new(status.to_status_phase(self.phase())), ..self }
    }

    /// With this phase tag; the status stays.
    #[must_use]
    pub fn with_phase(self, phase: bool) -> Self {
        Self { status_phase: U16::new(self.status().to_status_phase(phase)), ..self }
    }
}

open_enum! {
    /// An opcode of the Admin command set (NVMe Base 2.1 §5).
    AdminOpcode {
        /// Delete I/O Submission Queue.
        DELETE_SQ = 0x00, "Delete I/O Submission Queue";
        /// Create I/O Submission Queue.
        CREATE_SQ = 0x01, "Create I/O Submission Queue";
        /// Get Log Page.
        GET_LOG_PAGE = 0x02, "Get Log Page";
        /// Delete I/O Completion Queue.
        DELETE_CQ = 0x04, "Delete I/O Completion Queue";
        /// Create I/O Completion Queue.
        CREATE_CQ = 0x05, "Create I/O Completion Queue";
        /// Identify.
        IDENTIFY = 0x06, "Identify";
        /// Abort.
        ABORT = 0x08, "Abort";
        /// Set Features.
        SET_FEATURES = 0x09, "Set Features";
        /// Get Features.
        GET_FEATURES = 0x0a, "Get Features";
        /// Asynchronous Event Request.
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        /// Namespace Management.
        NAMESPACE_MANAGEMENT = 0x0d, "Namespace Management";
        /// Firmware Commit.
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        /// Firmware Image Download.
        FIRMWARE_IMAGE_DOWNLOAD = 0x11, "Firmware Image Download";
        /// Device Self-test.
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        /// Namespace Attachment.
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        /// Keep Alive.
        KEEP_ALIVE = 0x18, "Keep Alive";
        /// Directive Send.
        DIRECTIVE_SEND = 0x19, "Directive Send";
        /// Directive Receive.
        DIRECTIVE_RECEIVE = 0x1a, "Directive Receive";
        /// Virtualization Management.
        VIRTUALIZATION_MANAGEMENT = 0x1c, "Virtualization Management";
        /// NVMe-MI Send.
        NVME_MI_SEND = 0x1d, "NVMe-MI Send";
        /// NVMe-MI Receive.
        NVME_MI_RECEIVE = 0x1e, "NVMe-MI Receive";
        /// Capacity Management.
        CAPACITY_MANAGEMENT = 0x20, "Capacity Management";
        /// Lockdown.
        LOCKDOWN = 0x24, "Lockdown";
        /// Doorbell Buffer Config (NVMe Base 2.1 §5.2.5).
        DOORBELL_BUFFER_CONFIG = 0x7c, "Doorbell Buffer Config";
        /// Fabrics commands.
        FABRICS = 0x7f, "Fabrics";
        /// Format NVM.
        FORMAT_NVM = 0x80, "Format NVM";
        /// Security Send.
        SECURITY_SEND = 0x81, "Security Send";
        /// Security Receive.
        SECURITY_RECEIVE = 0x82, "Security Receive";
        /// Sanitize.
        SANITIZE = 0x84, "Sanitize";
        /// Get LBA Status (NVM Command Set 1.0 §4.2.1).
        GET_LBA_STATUS = 0x86, "Get LBA Status";
        /// The first vendor specific opcode, by which Google's controllers had Doorbell Buffer
        /// Config before NVMe 1.3 did. No specification.
        GOOGLE_DOORBELL_BUFFER_CONFIG = 0xc0, "Doorbell Buffer Config (vendor)";
    }
}

open_enum! {
    /// An opcode of the NVM command set (NVM Command Set 1.0 §3.2; those common to all I/O command
    /// sets NVMe Base 2.1 §7).
    NvmOpcode {
        /// Flush.
        FLUSH = 0x00, "Flush";
        /// Write.
        WRITE = 0x01, "Write";
        /// Read.
        READ = 0x02, "Read";
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        /// Compare.
        COMPARE = 0x05, "Compare";
        /// Write Zeroes.
        WRITE_ZEROES = 0x08, "Write Zeroes";
        /// Dataset Management.
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        /// Verify.
        VERIFY = 0x0c, "Verify";
        /// Reservation Register.
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        /// Reservation Report.
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        /// Reservation Acquire.
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        /// I/O Management Receive (NVMe Base 2.1).
        IO_MANAGEMENT_RECEIVE = 0x12, "I/O Management Receive";
        /// Reservation Release.
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        /// Cancel (NVMe Base 2.1).
        CANCEL = 0x18, "Cancel";
        /// Copy.
        COPY = 0x19, "Copy";
        /// I/O Management Send (NVMe Base 2.1).
        IO_MANAGEMENT_SEND = 0x1d, "I/O Management Send";
    }
}

/// Which way data goes for an opcode: its bits 1:0 (NVMe Base 2.1 §4.1.1 and §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: host to controller.
    HostToController,
    /// 10b: controller to host.
    ControllerToHost,
    /// 11b: both.
    Bidirectional,
}

impl DataDirection {
    /// The direction in bits 1:0 of `opcode`. It does not hold for Fabrics commands.
    #[must_use]
    pub const fn of_opcode(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}

/// The low and the high half-dword of a command dword.
pub(crate) const fn halves(dword: u32) -> (u16, u16) {
    (get16(dword as u64, 0, 16), get16(dword as u64, 16, 16))
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn sqe_fields_are_at_their_bytes() {
        // NVMe Base 2.1 §4.1.1, Common Command Format.
        assert_eq!(offset_of!(SubmissionQueueEntry, opcode), 0);
        assert_eq!(offset_of!(SubmissionQueueEntry, cid), 2);
        assert_eq!(offset_of!(SubmissionQueueEntry, nsid), 4);
        assert_eq!(offset_of!(SubmissionQueueEntry, mptr), 16);
        assert_eq!(offset_of!(SubmissionQueueEntry, prp1), 24);
        assert_eq!(offset_of!(SubmissionQueueEntry, prp2), 32);
        assert_eq!(offset_of!(SubmissionQueueEntry, cdw10), 40);
        assert_eq!(offset_of!(SubmissionQueueEntry, cdw15), 60);
    }

    #[test]
    fn sqe_words_are_values_not_bytes() {
        let sqe = SubmissionQueueEntry::from_words([
            0x1122_3344_5566_8102,
            0x0000_0003_0000_0002,
            0x10,
            0x1000,
            0x2000,
            0x0000_000b_0000_000a,
            0x0000_000d_0000_000c,
            0x0000_000f_0000_000e,
        ]);
        assert_eq!((sqe.opcode, sqe.cid.get(), sqe.nsid.get()), (0x02, 0x5566, 0x1122_3344));
        assert_eq!((sqe.cdw2.get(), sqe.cdw3.get(), sqe.mptr.get()), (2, 3, 0x10));
        assert_eq!((sqe.prp1.get(), sqe.prp2.get()), (0x1000, 0x2000));
        assert_eq!([sqe.cdw10, sqe.cdw11, sqe.cdw12].map(U32::get), [0xa, 0xb, 0xc]);
        assert_eq!([sqe.cdw13, sqe.cdw14, sqe.cdw15].map(U32::get), [0xd, 0xe, 0xf]);
        assert_eq!((sqe.psdt(), sqe.fuse()), (Psdt::SGL_MPTR_SGL, Fuse::FIRST));
        assert_eq!(sqe.as_bytes()[..8], [0x02, 0x81, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(SubmissionQueueEntry::from_words(sqe.to_words()), sqe);
    }

    #[test]
    fn psdt_is_cdw0_15_14_and_fuse_9_8() {
        let sqe = |flags| SubmissionQueueEntry { flags, ..Default::default() };
        assert_eq!((sqe(0x40).psdt(), sqe(0x40).fuse()), (Psdt::SGL_MPTR_CONTIGUOUS, Fuse::NORMAL));
        assert_eq!((sqe(0x02).psdt(), sqe(0x02).fuse()), (Psdt::PRP, Fuse::SECOND));
        // The reserved bits between them belong to neither.
        assert_eq!((sqe(0x3c).psdt(), sqe(0x3c).fuse()), (Psdt::PRP, Fuse::NORMAL));
        assert_eq!(sqe(0xc0).psdt(), Psdt(3));
    }

    #[test]
    fn cqe_fields_are_at_their_bytes() {
        // NVMe Base 2.1 §4.2.1.
        let cqe = CompletionQueueEntry {
            dw0: 0x0403_0201.into(),
            dw1: 0x0807_0605.into(),
            sqhd: 0x0a09.into(),
            sqid: 0x0c0b.into(),
            cid: 0x0e0d.into(),
            status_phase: 0x100f.into(),
        };
        assert_eq!(cqe.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(cqe.to_words(), [0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09]);
        assert_eq!(CompletionQueueEntry::from_words(cqe.to_words()), cqe);
    }

    #[test]
    fn the_phase_tag_is_bit_16_of_dw3_and_so_bit_48_of_word_1() {
        let cqe = CompletionQueueEntry::default().with_phase(true);
        assert_eq!(cqe.to_words(), [0, 1 << 48]);
        assert!(cqe.phase());
        assert_eq!(cqe.with_phase(false).to_words(), [0, 0]);
    }

    #[test]
    fn phase_and_status_do_not_disturb_each_other() {
        let status = Status::INVALID_FIELD.with_dnr();
        let cqe = CompletionQueueEntry::default().with_phase(true).with_status(status);
        assert_eq!(cqe.status_phase.get(), 0x8005);
        assert_eq!((cqe.status(), cqe.phase()), (status, true));
        assert_eq!((cqe.with_phase(false).status(), cqe.with_phase(false).phase()), (status, false));
    }

    #[test]
    fn bits_1_0_of_an_opcode_tell_where_data_goes() {
        for (opcode, direction) in [
            (NvmOpcode::FLUSH.0, DataDirection::None),
            (NvmOpcode::WRITE.0, DataDirection::HostToController),
            (NvmOpcode::READ.0, DataDirection::ControllerToHost),
            (NvmOpcode::WRITE_ZEROES.0, DataDirection::None),
            (NvmOpcode::DATASET_MANAGEMENT.0, DataDirection::HostToController),
            (AdminOpcode::IDENTIFY.0, DataDirection::ControllerToHost),
            (AdminOpcode::SET_FEATURES.0, DataDirection::HostToController),
            (AdminOpcode::ASYNC_EVENT_REQUEST.0, DataDirection::None),
            (AdminOpcode::DOORBELL_BUFFER_CONFIG.0, DataDirection::None),
        ] {
            assert_eq!(DataDirection::of_opcode(opcode), direction, "{opcode:02x}h");
        }
        assert_eq!(DataDirection::of_opcode(0xff), DataDirection::Bidirectional);
    }

    #[test]
    fn opcodes_have_the_names_of_the_specification() {
        assert_eq!(format!("{}", AdminOpcode(0x7c)), "Doorbell Buffer Config");
        assert_eq!(format!("{}", NvmOpcode(0x09)), "Dataset Management");
        assert_eq!(format!("{}", NvmOpcode(0x7c)), "unknown (7Ch)");
        assert_eq!(format!("{:?}", AdminOpcode::IDENTIFY), "AdminOpcode(Identify, 06h)");
        assert_eq!(format!("{:>8}|", NvmOpcode::READ), "    Read|");
    }
}
