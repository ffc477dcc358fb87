//! A namespace, as far as reads and writes need to know it.

use nvme::identify::{IdentifyNamespace, flbas};

/// An active namespace. A snapshot: sizes can change, and the device has the last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    nsid: u32,
    blocks: u64,
    lba_shift: u8,
}

impl Namespace {
    /// From what the device says of it; `Err` with the reason for one that this driver cannot use.
    ///
    /// # Errors
    /// The reason.
    pub fn new(nsid: u32, identify: &IdentifyNamespace) -> Result<Self, &'static str> {
        let index = usize::from(flbas::index(identify.flbas));
        let format = identify.lbaf.get(index).ok_or("its LBA format does not exist")?;
        if index > usize::from(identify.nlbaf_z) + usize::from(identify.nulbaf) {
            return Err("its LBA format is not among those that it has");
        }
        if format.ms.get() != 0 {
            return Err("its blocks have metadata");
        }
        if !(9..=16).contains(&format.lbads) {
            return Err("its blocks are not of 512 bytes to 64 KiB");
        }
        let blocks = identify.nsze.get();
        if blocks == 0 || blocks.checked_shl(format.lbads.into()).is_none_or(|b| b >> format.lbads != blocks) {
            return Err("its size is 0 or past 2^64 bytes");
        }
        Ok(Self { nsid, blocks, lba_shift: format.lbads })
    }

    /// NSID.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Size in logical blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Size of a logical block in bytes, a power of two.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        1 << self.lba_shift
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks << self.lba_shift
    }

    /// NLB, 0's based, of `bytes` bytes of data.
    pub(crate) fn length_z(&self, bytes: usize) -> Result<u16, &'static str> {
        if bytes == 0 || !bytes.is_multiple_of(self.block_bytes()) {
            return Err("data is not a whole number of blocks above 0");
        }
        u16::try_from((bytes >> self.lba_shift) - 1).map_err(|_| "more than 65536 blocks in one command")
    }
}

#[cfg(test)]
mod tests {
    use nvme::{
        identify::LbaFormat,
        zerocopy::{FromBytes, FromZeros},
    };

    use super::*;

    fn identify(lbads: u8) -> IdentifyNamespace {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.nsze = 100.into();
        identify.lbaf[0] = LbaFormat::new(lbads);
        identify
    }

    #[test]
    fn sizes_follow_from_the_format() {
        let namespace = Namespace::new(1, &identify(12)).unwrap();
        assert_eq!((namespace.block_bytes(), namespace.bytes()), (4096, 409_600));
        assert_eq!(namespace.length_z(8192), Ok(1));
        assert!(namespace.length_z(0).is_err());
        assert!(namespace.length_z(4095).is_err());
        assert!(namespace.length_z(65536 << 12).is_ok());
        assert!(namespace.length_z(65537 << 12).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for lbads in (0..9).chain(17..=255) {
            assert!(Namespace::new(1, &identify(lbads)).is_err(), "LBADS {lbads}");
        }
        let mut empty = identify(9);
        empty.nsze = 0.into();
        assert!(Namespace::new(1, &empty).is_err());
        let mut huge = identify(9);
        huge.nsze = (1 << 56).into();
        assert!(Namespace::new(1, &huge).is_err());
        let mut metadata = identify(9);
        metadata.lbaf[0].ms = 8.into();
        assert!(Namespace::new(1, &metadata).is_err());
        for flbas in 0..=255 {
            let mut other = identify(9);
            other.flbas = flbas;
            assert_eq!(Namespace::new(1, &other).is_ok(), flbas & 0x6f == 0, "FLBAS {flbas:#x}");
        }
        let ones = IdentifyNamespace::read_from_bytes(&[0xff; 4096]).unwrap();
        assert!(Namespace::new(1, &ones).is_err());
    }
}
