//! Bit-field extraction and insertion, in one place so that no other file needs a truncating cast.

/// Bits `shift..shift + width` of `word`.
pub(crate) const fn get(word: u64, shift: u32, width: u32) -> u64 {
    (word >> shift) & mask(width)
}

/// [`get`] for a field of at most 8 bits.
#[expect(clippy::cast_possible_truncation, reason = "width is asserted to be at most 8")]
pub(crate) const fn get8(word: u64, shift: u32, width: u32) -> u8 {
    assert!(width <= 8);
    get(word, shift, width) as u8
}

/// [`get`] for a field of at most 16 bits.
#[expect(clippy::cast_possible_truncation, reason = "width is asserted to be at most 16")]
pub(crate) const fn get16(word: u64, shift: u32, width: u32) -> u16 {
    assert!(width <= 16);
    get(word, shift, width) as u16
}

/// [`get`] for a field of at most 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "width is asserted to be at most 32")]
pub(crate) const fn get32(word: u64, shift: u32, width: u32) -> u32 {
    assert!(width <= 32);
    get(word, shift, width) as u32
}

/// Bit `bit` of `word`.
pub(crate) const fn flag(word: u64, bit: u32) -> bool {
    get(word, bit, 1) != 0
}

/// `word` with bits `shift..shift + width` replaced by the low `width` bits of `value`.
pub(crate) const fn put(word: u64, shift: u32, width: u32, value: u64) -> u64 {
    (word & !(mask(width) << shift)) | ((value & mask(width)) << shift)
}

/// [`put`] into a 32-bit word.
pub(crate) const fn put32(word: u32, shift: u32, width: u32, value: u32) -> u32 {
    assert!(shift + width <= 32);
    get32(put(word as u64, shift, width, value as u64), 0, 32)
}

/// A mask of `width` low bits.
const fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_replaces_only_its_field_and_drops_what_does_not_fit() {
        assert_eq!(put(u64::MAX, 4, 4, 0), 0xffff_ffff_ffff_ff0f);
        assert_eq!(put(0, 4, 4, 0x1f), 0xf0);
        assert_eq!(put(0, 0, 64, u64::MAX), u64::MAX);
        assert_eq!(put32(0, 16, 16, 0x1_2345), 0x2345_0000);
    }

    #[test]
    fn get_reads_the_top_bit() {
        assert!(flag(1 << 63, 63));
        assert_eq!(get8(0xab << 56, 56, 8), 0xab);
    }
}
