//! Storage for an MSI-X table and a view of the pending bits, for the BAR that holds them.
//!
//! A VMM that traps table accesses itself (QEMU and Cloud Hypervisor do) never reads or writes here. A VMM that embeds the
//! function finds in [`MsixTable::entry`] what its guest programmed.

/// One vector as software programmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MsixEntry {
    /// Address of the message write.
    pub address: u64,
    /// Its data.
    pub data: u32,
    /// The vector is masked.
    pub masked: bool,
}

/// Bytes of one table entry.
const ENTRY: usize = 16;
/// Message Address (whole dwords only), Upper Address, Data, Vector Control (PCIe Base §7.7.2.5 to 7.7.2.8).
const WRITABLE: [u8; ENTRY] = [0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 0, 0];
const DEFAULT: [u8; ENTRY] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

/// An MSI-X table. Software uses 4- and 8-byte accesses (PCIe Base §7.7.2); other widths work as well.
#[derive(Debug, Clone)]
pub struct MsixTable {
    entries: Vec<[u8; ENTRY]>,
}

impl MsixTable {
    /// A table of `vectors` entries, all of them masked.
    pub fn new(vectors: u16) -> Self {
        Self { entries: vec![DEFAULT; usize::from(vectors)] }
    }

    /// Number of vectors.
    pub fn vectors(&self) -> u16 {
        u16::try_from(self.entries.len()).unwrap_or(u16::MAX)
    }

    /// Size of the table in bytes.
    pub fn table_len(&self) -> u64 {
        u64::from(self.vectors()) * 16
    }

    /// Size of the pending bit array in bytes.
    pub fn pba_len(&self) -> u64 {
        u64::from(self.vectors()).div_ceil(64) * 8
    }

    /// Reads table bytes, `offset` from the table's start; past its end they are zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let bytes = self.entries.as_flattened();
        for (at, byte) in positions(offset).zip(data) {
            *byte = at.and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes table bytes, `offset` from the table's start; past its end they are dropped.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let bytes = self.entries.as_flattened_mut();
        for (at, new) in positions(offset).zip(data) {
            let Some((at, byte)) = at.and_then(|at| Some((at, bytes.get_mut(at)?))) else { break };
            let mask = WRITABLE[at % ENTRY];
            *byte = *byte & !mask | new & mask;
        }
    }

    /// Reads pending bits, `offset` from the array's start; `pending` tells one vector's bit. Writes to the array have no
    /// effect.
    pub fn read_pba(&self, offset: u64, data: &mut [u8], pending: impl Fn(u16) -> bool) {
        for (at, byte) in positions(offset).zip(data) {
            *byte = 0;
            for bit in 0..8 {
                let vector = at.and_then(|at| u16::try_from(at.checked_mul(8)? + bit).ok());
                if vector.is_some_and(|v| v < self.vectors() && pending(v)) {
                    *byte |= 1 << bit;
                }
            }
        }
    }

    /// What software programmed for a vector.
    pub fn entry(&self, vector: u16) -> Option<MsixEntry> {
        let [a0, a1, a2, a3, a4, a5, a6, a7, d0, d1, d2, d3, control, ..] = *self.entries.get(usize::from(vector))?;
        Some(MsixEntry {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            data: u32::from_le_bytes([d0, d1, d2, d3]),
            masked: control & 1 != 0,
        })
    }

    /// Masks and clears all entries.
    pub fn reset(&mut self) {
        self.entries.fill(DEFAULT);
    }
}

/// Byte positions from `offset` on; `None` where they cannot be held.
fn positions(offset: u64) -> impl Iterator<Item = Option<usize>> {
    (0u64..).map(move |i| usize::try_from(offset.checked_add(i)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_stored_by_dwords_and_qwords() {
        let mut table = MsixTable::new(3);
        assert!(table.entry(1).unwrap().masked);
        table.write(16, &0x1_fee0_0007u64.to_le_bytes());
        table.write(24, &0x41u32.to_le_bytes());
        table.write(28, &0xffff_fffeu32.to_le_bytes());
        assert_eq!(table.entry(1), Some(MsixEntry { address: 0x1_fee0_0004, data: 0x41, masked: false }));
        let mut data = [0xff; 8];
        table.read(24, &mut data);
        assert_eq!(data, [0x41, 0, 0, 0, 0, 0, 0, 0], "reserved bits of Vector Control stay zero");
        assert_eq!(table.entry(0), MsixTable::new(1).entry(0));
        assert_eq!(table.entry(3), None);
        table.reset();
        assert_eq!(table.entry(1), table.entry(0));
    }

    #[test]
    fn pending_bits_are_asked_for_vector_by_vector() {
        let table = MsixTable::new(70);
        assert_eq!((table.table_len(), table.pba_len()), (1120, 16));
        let pending = |v| v == 1 || v >= 65;
        let mut data = [0xff; 16];
        table.read_pba(0, &mut data, pending);
        assert_eq!(data, [2, 0, 0, 0, 0, 0, 0, 0, 0x3e, 0, 0, 0, 0, 0, 0, 0]);
        table.read_pba(8, &mut data[..4], |_| true);
        assert_eq!(data[..4], [0x3f, 0, 0, 0]);
    }

    #[test]
    fn every_offset_and_width_is_harmless() {
        let mut table = MsixTable::new(2);
        for offset in (0..40).chain([u64::MAX - 3, u64::MAX, u64::MAX / 8, u64::MAX / 8 + 1]) {
            for len in 0..20 {
                let mut data = [0xff; 20];
                table.write(offset, &data[..len]);
                table.read(offset, &mut data[..len]);
                table.read_pba(offset, &mut data[..len], |_| true);
            }
        }
        let mut data = [0xff; 2];
        table.read(31, &mut data);
        assert_eq!(data, [0, 0]);
    }
}
