//! Configuration space, as a driver reads and writes it.

use super::PciId;
use crate::error::TransportError;

/// Offsets in the header (PCIe Base §7.5.1).
const COMMAND: u16 = 0x04;
const STATUS: u16 = 0x06;
const CAPABILITIES: u16 = 0x34;
/// Memory Space Enable, Bus Master Enable, Interrupt Disable.
const COMMAND_ON: u16 = 1 << 1 | 1 << 2 | 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;
/// Capabilities of 4 bytes that fit between the header and the end of the first 256 bytes: a list that is longer has a loop.
const MAX_CAPABILITIES: usize = 48;

/// Reads and writes configuration space.
pub(super) trait ConfigAccess {
    fn read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), TransportError>;
    fn write(&mut self, offset: u16, data: &[u8]) -> Result<(), TransportError>;
}

fn read16(config: &mut dyn ConfigAccess, offset: u16) -> Result<u16, TransportError> {
    let mut data = [0; 2];
    config.read(offset, &mut data)?;
    Ok(u16::from_le_bytes(data))
}

/// Vendor and device id.
pub(super) fn identity(config: &mut dyn ConfigAccess) -> Result<PciId, TransportError> {
    let id = PciId { vendor: read16(config, 0)?, device: read16(config, 2)? };
    if id.vendor == 0xffff { Err(TransportError::Gone) } else { Ok(id) }
}

/// Offset of the MSI-X capability and the number of vectors.
pub(super) fn msix(config: &mut dyn ConfigAccess) -> Result<Option<(u16, u16)>, TransportError> {
    if read16(config, STATUS)? & STATUS_CAPABILITIES == 0 {
        return Ok(None);
    }
    let mut pointer = [0];
    config.read(CAPABILITIES, &mut pointer)?;
    for _ in 0..MAX_CAPABILITIES {
        let at = u16::from(pointer[0] & !3);
        if at < 0x40 {
            break;
        }
        let mut header = [0; 4];
        config.read(at, &mut header)?;
        let [id, next, low, high] = header;
        if id == MSIX {
            // Table Size, 0's based, in 11 bits.
            return Ok(Some((at, (u16::from_le_bytes([low, high]) & 0x7ff) + 1)));
        }
        pointer = [next];
    }
    Ok(None)
}

/// Switches on memory space, bus mastering and MSI-X.
pub(super) fn enable(config: &mut dyn ConfigAccess) -> Result<(), TransportError> {
    identity(config)?;
    let command = read16(config, COMMAND)? | COMMAND_ON;
    config.write(COMMAND, &command.to_le_bytes())?;
    if let Some((at, _)) = msix(config)? {
        let control = read16(config, at + 2)? & !MSIX_FUNCTION_MASK | MSIX_ENABLE;
        config.write(at + 2, &control.to_le_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Space([u8; 256]);

    impl ConfigAccess for Space {
        fn read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), TransportError> {
            for (i, byte) in data.iter_mut().enumerate() {
                *byte = self.0.get(usize::from(offset) + i).copied().unwrap_or(0xff);
            }
            Ok(())
        }

        fn write(&mut self, offset: u16, data: &[u8]) -> Result<(), TransportError> {
            self.0[usize::from(offset)..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    fn space() -> Space {
        let mut space = Space([0; 256]);
        space.0[..8].copy_from_slice(&[0x34, 0x12, 0xdb, 0xdb, 0, 0, 0x10, 0]);
        space.0[0x34] = 0x42;
        space.0[0x40..0x44].copy_from_slice(&[1, 0x50, 0, 0]);
        space.0[0x50..0x54].copy_from_slice(&[0x11, 0, 0x03, 0x40]);
        space
    }

    #[test]
    fn msix_is_found_and_switched_on() {
        let mut space = space();
        assert_eq!(msix(&mut space), Ok(Some((0x50, 4))));
        enable(&mut space).unwrap();
        assert_eq!(space.0[0x52..0x54], [0x03, 0x80]);
        assert_eq!(space.0[4..6], [0x06, 0x04]);
    }

    #[test]
    fn a_list_that_never_ends_ends() {
        let mut space = space();
        space.0[0x50] = 9;
        space.0[0x51] = 0x40;
        assert_eq!(msix(&mut space), Ok(None));
        space.0[0x51] = 0xff;
        assert_eq!(msix(&mut space), Ok(None));
        space.0[0x34] = 4;
        assert_eq!(msix(&mut space), Ok(None));
    }

    #[test]
    fn all_ones_are_a_device_that_is_gone() {
        assert_eq!(enable(&mut Space([0xff; 256])), Err(TransportError::Gone));
    }
}
