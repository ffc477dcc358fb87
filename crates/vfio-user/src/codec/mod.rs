//! Messages as bytes and as types; no I/O.
//!
//! [`decode`] looks at one whole message and checks every length in it, so that nobody behind it does.

mod version;
pub mod wire;

use zerocopy::FromBytes;

pub use version::{Capabilities, MAJOR, MINOR, VersionError};
use wire::{
    DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, MAX_DATA_XFER, MAX_MESSAGE, MultiWrite, RegionAccess, RegionInfo,
    RegionIoFds, SetIrqs, TYPE_COMMAND, TYPE_MASK, Version, command,
};

/// A request as it came, with every length checked.
#[derive(Debug, PartialEq)]
pub enum Request<'a> {
    /// VERSION.
    Version {
        /// What the peer proposes.
        version: Version,
        /// Its capabilities.
        capabilities: Capabilities,
    },
    /// DMA_MAP.
    DmaMap(DmaMap),
    /// DMA_UNMAP.
    DmaUnmap(DmaUnmap),
    /// DEVICE_GET_INFO.
    DeviceInfo(DeviceInfo),
    /// DEVICE_GET_REGION_INFO.
    RegionInfo(RegionInfo),
    /// DEVICE_GET_REGION_IO_FDS.
    RegionIoFds(RegionIoFds),
    /// DEVICE_GET_IRQ_INFO.
    IrqInfo(IrqInfo),
    /// DEVICE_SET_IRQS with `count` booleans if its flags say so, else none.
    SetIrqs(SetIrqs, &'a [u8]),
    /// REGION_READ of at most [`MAX_DATA_XFER`] bytes.
    RegionRead(RegionAccess),
    /// REGION_WRITE with `count` bytes of data.
    RegionWrite(RegionAccess, &'a [u8]),
    /// REGION_WRITE_MULTI; each write has at most 8 bytes.
    RegionWriteMulti(&'a [MultiWrite]),
    /// DEVICE_RESET.
    DeviceReset,
    /// A command that we do not have, or that goes the other way.
    Unsupported(u16),
}

/// Why a message is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a header, or not as long as its header says.
    #[error("message of {have} bytes, its header says {said}")]
    Size {
        /// Bytes that are there.
        have: usize,
        /// Bytes that should be there; 16 when there is not even a header.
        said: usize,
    },
    /// The type is not "command".
    #[error("message type {0} where a command was expected")]
    Type(u32),
    /// The payload is too short for its command, or longer or shorter than a count in it says.
    #[error("{} with a payload of {have} bytes, expected {expected}", command::name(*.command))]
    Payload {
        /// The command.
        command: u16,
        /// Bytes that are there.
        have: usize,
        /// Bytes that the command needs.
        expected: u64,
    },
    /// A transfer of more bytes than were negotiated.
    #[error("{} of {count} bytes, at most {MAX_DATA_XFER} are allowed", command::name(*.command))]
    Count {
        /// The command.
        command: u16,
        /// The refused count.
        count: u64,
    },
    /// The capabilities of a VERSION message.
    #[error("VERSION: {0}")]
    Version(VersionError),
}

/// Reads the size of the message that starts with `bytes`, once its header is there.
///
/// # Errors
/// The size that the header names, when it is less than a header or more than [`MAX_MESSAGE`].
pub fn message_size(bytes: &[u8]) -> Result<Option<usize>, u32> {
    let Some((header, _)) = Header::split(bytes) else { return Ok(None) };
    match usize::try_from(header.size) {
        Ok(size) if (Header::SIZE..=MAX_MESSAGE).contains(&size) => Ok(Some(size)),
        _ => Err(header.size),
    }
}

/// Takes one whole message apart.
///
/// Payloads of a fixed size may be followed by bytes that we do not know; counts in a message must match its size.
///
/// # Errors
/// [`DecodeError`]; the message can be answered with an error (`EINVAL`) and skipped.
pub fn decode(message: &[u8]) -> Result<Request<'_>, DecodeError> {
    let have = message.len();
    let (header, payload) = Header::split(message).ok_or(DecodeError::Size { have, said: Header::SIZE })?;
    if usize::try_from(header.size) != Ok(have) {
        return Err(DecodeError::Size { have, said: usize::try_from(header.size).unwrap_or(usize::MAX) });
    }
    if header.flags & TYPE_MASK != TYPE_COMMAND {
        return Err(DecodeError::Type(header.flags & TYPE_MASK));
    }
    let command = header.command;
    let wrong = |expected: u64| DecodeError::Payload { command, have: payload.len(), expected };
    macro_rules! take {
        ($type:ty) => {
            <$type>::split(payload).ok_or_else(|| wrong(<$type>::SIZE as u64))?
        };
    }
    Ok(match command {
        command::VERSION => {
            let (version, json) = take!(Version);
            let capabilities = Capabilities::parse(json).map_err(DecodeError::Version)?;
            Request::Version { version, capabilities }
        }
        command::DMA_MAP => Request::DmaMap(take!(DmaMap).0),
        command::DMA_UNMAP => Request::DmaUnmap(take!(DmaUnmap).0),
        command::DEVICE_GET_INFO => Request::DeviceInfo(take!(DeviceInfo).0),
        command::DEVICE_GET_REGION_INFO => Request::RegionInfo(take!(RegionInfo).0),
        command::DEVICE_GET_REGION_IO_FDS => Request::RegionIoFds(take!(RegionIoFds).0),
        command::DEVICE_GET_IRQ_INFO => Request::IrqInfo(take!(IrqInfo).0),
        command::DEVICE_SET_IRQS => {
            let (set, data) = take!(SetIrqs);
            let wanted = if set.flags & wire::irq::DATA_BOOL != 0 { set.count } else { 0 };
            let bools = usize::try_from(wanted).ok().and_then(|n| data.get(..n));
            Request::SetIrqs(set, bools.ok_or_else(|| wrong(SetIrqs::SIZE as u64 + u64::from(wanted)))?)
        }
        command::REGION_READ => {
            let (access, _) = take!(RegionAccess);
            check_count(command, access.count)?;
            Request::RegionRead(access)
        }
        command::REGION_WRITE => {
            let (access, data) = take!(RegionAccess);
            check_count(command, access.count)?;
            if data.len() as u64 != u64::from(access.count) {
                return Err(wrong(RegionAccess::SIZE as u64 + u64::from(access.count)));
            }
            Request::RegionWrite(access, data)
        }
        command::REGION_WRITE_MULTI => Request::RegionWriteMulti(multi_writes(payload).map_err(wrong)?),
        command::DEVICE_RESET => Request::DeviceReset,
        other => Request::Unsupported(other),
    })
}

fn check_count(command: u16, count: u32) -> Result<(), DecodeError> {
    match usize::try_from(count) {
        Ok(n) if n <= MAX_DATA_XFER => Ok(()),
        _ => Err(DecodeError::Count { command, count: count.into() }),
    }
}

/// The writes of a REGION_WRITE_MULTI, or the size that the payload should have.
fn multi_writes(payload: &[u8]) -> Result<&[MultiWrite], u64> {
    let (count, writes) = u64::read_from_prefix(payload).map_err(|_| 8u64)?;
    let expected = count.checked_mul(MultiWrite::SIZE as u64).and_then(|n| n.checked_add(8)).unwrap_or(u64::MAX);
    if payload.len() as u64 != expected {
        return Err(expected);
    }
    let writes = <[MultiWrite]>::ref_from_bytes(writes).map_err(|_| expected)?;
    if writes.iter().any(|w| w.bytes().is_none()) {
        return Err(expected);
    }
    Ok(writes)
}

#[cfg(test)]
mod tests;
