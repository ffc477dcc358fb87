//! What can go wrong, and how the kernel's error numbers become it.

/// All that can go wrong with a request. Closed on purpose: whoever maps it to a protocol's status maps all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The device does not take writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The range is not on the device, or not aligned to its blocks.
    #[error("the range is not on the device")]
    OutOfRange,
    /// The device has no space left for a write (sparse file on a full disk, quota).
    #[error("no space left on the device")]
    NoSpace,
    /// The data could not be read.
    #[error("the data could not be read")]
    ReadFault,
    /// The data could not be stored.
    #[error("the data could not be stored")]
    WriteFault,
    /// The operation is not supported by this device.
    #[error("the device does not support this operation")]
    Unsupported,
    /// The submitter's memory is gone (a file behind guest RAM that was cut short).
    #[error("the memory of the request is gone")]
    Memory,
    /// The request was given up on the submitter's wish; it may have been carried out.
    #[error("the request was cancelled")]
    Cancelled,
}

/// Which way a failed request moved data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device; flushes, discards and write zeroes too.
    Write,
}

impl BlockError {
    /// The kind that an error number of a system call stands for. Total: what is not listed is a fault of the medium.
    pub fn from_errno(errno: i32, direction: Direction) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::EFAULT => Self::Memory,
            libc::ECANCELED => Self::Cancelled,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            libc::EROFS | libc::EPERM | libc::EACCES if direction == Direction::Write => Self::ReadOnly,
            _ if direction == Direction::Write => Self::WriteFault,
            _ => Self::ReadFault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_number_has_a_kind() {
        use Direction::{Read, Write};
        for (errno, read, write) in [
            (libc::ENOSPC, BlockError::NoSpace, BlockError::NoSpace),
            (libc::EDQUOT, BlockError::NoSpace, BlockError::NoSpace),
            (libc::EROFS, BlockError::ReadFault, BlockError::ReadOnly),
            (libc::EFAULT, BlockError::Memory, BlockError::Memory),
            (libc::EOPNOTSUPP, BlockError::Unsupported, BlockError::Unsupported),
            (libc::ECANCELED, BlockError::Cancelled, BlockError::Cancelled),
            (libc::EIO, BlockError::ReadFault, BlockError::WriteFault),
            (i32::MAX, BlockError::ReadFault, BlockError::WriteFault),
            (0, BlockError::ReadFault, BlockError::WriteFault),
        ] {
            assert_eq!(BlockError::from_errno(errno, Read), read, "{errno}");
            assert_eq!(BlockError::from_errno(errno, Write), write, "{errno}");
        }
    }
}
