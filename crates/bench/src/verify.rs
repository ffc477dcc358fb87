//! Content that says where it belongs and when it was written, and what is wrong with content that does not.

use std::fmt;

use serde::Serialize;

use crate::addresses::mix;

const MAGIC: u64 = 0x5348_4457_424c_4c31;
/// Words before the payload: magic, seed, LBA, version, checksum.
const HEADER: usize = 5;
/// A buffer that a read shall fill holds this before.
pub(crate) const POISON: u8 = 0xa5;
/// Versions before the expected one, and from the first one on, that a torn block is compared with.
const HISTORY: u32 = 64;
/// Faults that are kept in full.
const KEPT: usize = 16;

/// What a block shall hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Content {
    /// The run that wrote it.
    pub seed: u64,
    /// Where.
    pub lba: u64,
    /// How many times that block had been written, this time included.
    pub version: u32,
}

impl Content {
    fn word(&self, index: usize) -> u64 {
        mix(self.seed ^ self.lba.rotate_left(20) ^ (u64::from(self.version) << 44) ^ (index as u64))
    }
}

/// Fills a block, whose length is a multiple of 8 and at least 64.
pub fn fill(block: &mut [u8], content: Content) {
    let (words, _) = block.as_chunks_mut::<8>();
    for (index, word) in words.iter_mut().enumerate().skip(HEADER) {
        *word = content.word(index).to_le_bytes();
    }
    let header = [MAGIC, content.seed, content.lba, content.version.into(), 0];
    for (word, value) in words.iter_mut().zip(header) {
        *word = value.to_le_bytes();
    }
    let sum = checksum(block);
    let (words, _) = block.as_chunks_mut::<8>();
    if let Some(word) = words.get_mut(HEADER - 1) {
        *word = sum.to_le_bytes();
    }
}

/// Of all words but its own.
fn checksum(block: &[u8]) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let mut sum = 0u64;
    for (index, word) in words.iter().enumerate() {
        if index != HEADER - 1 {
            sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }
    mix(sum)
}

/// What is wrong with a block, and what it holds instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum FaultKind {
    /// An older content of the same block.
    Stale {
        /// Its version; 0 for zeros, as if it had never been written.
        found_version: u32,
        /// It is from an earlier run.
        earlier_run: bool,
    },
    /// The beginning of one version, and the rest of another.
    Torn {
        /// Where the other begins, in bytes.
        at: usize,
        /// Version up to there; 0 for zeros.
        before: u32,
        /// Version from there on; 0 for zeros.
        after: u32,
    },
    /// The sound content of another block.
    Misplaced {
        /// The block it belongs to.
        found_lba: u64,
        /// Its version.
        found_version: u32,
    },
    /// Nothing: the read said that it succeeded, and the buffer holds what it held before.
    Missing,
    /// Something else.
    Corrupt {
        /// The first byte that differs.
        at: usize,
        /// The eight bytes from the word of it on.
        found: u64,
    },
}

/// A block that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Where.
    pub lba: u64,
    /// What should be there.
    pub expected_version: u32,
    /// What is.
    #[serde(flatten)]
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lba, expected_version, kind } = self;
        let version = |n: u32| if n == 0 { "zeros".to_owned() } else { format!("version {n}") };
        match kind {
            FaultKind::Stale { earlier_run: true, found_version } => {
                write!(
                    f,
                    "LBA {lba}: stale: wanted version {expected_version}, found version {found_version} of an earlier run"
                )
            }
            FaultKind::Stale { found_version, .. } => {
                write!(f, "LBA {lba}: stale: wanted version {expected_version}, found {}", version(*found_version))
            }
            FaultKind::Torn { at, before, after } => write!(
                f,
                "LBA {lba}: torn: wanted version {expected_version}, found {} up to byte {at} and {} from there on",
                version(*before),
                version(*after)
            ),
            FaultKind::Misplaced { found_lba, found_version } => write!(
                f,
                "LBA {lba}: misplaced: wanted version {expected_version}, found LBA {found_lba} version {found_version}"
            ),
            FaultKind::Missing => {
                write!(f, "LBA {lba}: missing: wanted version {expected_version}, the read has transferred nothing")
            }
            FaultKind::Corrupt { at, found } => write!(
                f,
                "LBA {lba}: corrupt: wanted version {expected_version}, from byte {at} on it is something else \
                 (the word there is {found:#018x})"
            ),
        }
    }
}

/// Compares a block that was read with what it shall hold.
///
/// # Errors
/// What is wrong with it.
pub fn check(block: &[u8], expected: Content) -> Result<(), Fault> {
    let (words, _) = block.as_chunks::<8>();
    let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
    let sound = word(0) == MAGIC && word(HEADER - 1) == checksum(block);
    let found_version = u32::try_from(word(3)).unwrap_or(u32::MAX);
    if sound && word(1) == expected.seed && word(2) == expected.lba && found_version == expected.version {
        return Ok(());
    }
    let kind = if sound && word(2) != expected.lba {
        FaultKind::Misplaced { found_lba: word(2), found_version }
    } else if sound {
        FaultKind::Stale { found_version, earlier_run: word(1) != expected.seed }
    } else if block.iter().all(|byte| *byte == 0) {
        FaultKind::Stale { found_version: 0, earlier_run: false }
    } else if block.iter().all(|byte| *byte == POISON) {
        FaultKind::Missing
    } else {
        explain(block, expected, found_version)
    };
    Err(Fault { lba: expected.lba, expected_version: expected.version, kind })
}

/// Looks for two versions that make up an unsound block.
fn explain(block: &[u8], expected: Content, header_version: u32) -> FaultKind {
    let history = (0..=HISTORY).map(|age| expected.version.saturating_sub(age));
    let mut candidate = vec![0; block.len()];
    let (mut prefix, mut suffix) = ((0, 0), (0, 0));
    for version in history.chain(1..=HISTORY).chain([header_version, 0]) {
        candidate.fill(0);
        if version > 0 {
            fill(&mut candidate, Content { version, ..expected });
        }
        let pairs = || block.iter().zip(&candidate);
        let head = pairs().take_while(|(a, b)| a == b).count();
        let tail = pairs().rev().take_while(|(a, b)| a == b).count();
        if head > prefix.0 {
            prefix = (head, version);
        }
        if tail > suffix.0 {
            suffix = (tail, version);
        }
    }
    // The header's first words are the same in every version: they alone prove nothing.
    if prefix.1 != suffix.1 && prefix.0 + suffix.0 >= block.len() {
        // Bytes that both have in common belong to either.
        return FaultKind::Torn { at: prefix.0, before: prefix.1, after: suffix.1 };
    }
    let mut wanted = vec![0; block.len()];
    fill(&mut wanted, expected);
    let at = block.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    let (words, _) = block.as_chunks::<8>();
    FaultKind::Corrupt { at, found: words.get(at / 8).map_or(0, |word| u64::from_le_bytes(*word)) }
}

/// What became of content that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Verified {
    /// Blocks written.
    pub written: u64,
    /// Blocks read and compared.
    pub checked: u64,
    /// Blocks that were not what they should be.
    pub faults: u64,
    /// The first of them.
    pub first: Vec<Fault>,
}

impl Verified {
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.faults += 1;
        if self.first.len() < KEPT {
            self.first.push(fault);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.written += other.written;
        self.checked += other.checked;
        self.faults += other.faults;
        self.first.extend(other.first);
        self.first.truncate(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Content = Content { seed: 7, lba: 1234, version: 5 };

    fn block(content: Content) -> [u8; 512] {
        let mut block = [0; 512];
        fill(&mut block, content);
        block
    }

    fn kind(block: &[u8]) -> FaultKind {
        let fault = check(block, HERE).unwrap_err();
        assert_eq!((fault.lba, fault.expected_version), (1234, 5));
        assert!(fault.to_string().starts_with("LBA 1234: "), "{fault}");
        fault.kind
    }

    #[test]
    fn what_was_written_is_sound() {
        assert_eq!(check(&block(HERE), HERE), Ok(()));
    }

    #[test]
    fn older_content_is_stale() {
        let stale = |found_version, earlier_run| FaultKind::Stale { found_version, earlier_run };
        assert_eq!(kind(&block(Content { version: 4, ..HERE })), stale(4, false));
        assert_eq!(kind(&[0; 512]), stale(0, false));
        assert_eq!(kind(&block(Content { seed: 8, ..HERE })), stale(5, true));
    }

    #[test]
    fn the_content_of_another_block_is_misplaced() {
        let there = Content { lba: 99, version: 3, ..HERE };
        assert_eq!(kind(&block(there)), FaultKind::Misplaced { found_lba: 99, found_version: 3 });
    }

    #[test]
    fn two_versions_in_one_block_are_torn_wherever_the_cut_is() {
        let (new, old) = (block(HERE), block(Content { version: 4, ..HERE }));
        for cut in (64..512).step_by(8) {
            let torn = [&new[..cut], &old[cut..]].concat();
            let FaultKind::Torn { at, before: 5, after: 4 } = kind(&torn) else { panic!("{:?}", kind(&torn)) };
            assert!((cut..cut + 2).contains(&at), "{at} for {cut}");
            let torn = [&old[..cut], &new[cut..]].concat();
            assert!(matches!(kind(&torn), FaultKind::Torn { before: 4, after: 5, .. }), "{:?}", kind(&torn));
            let torn = [&new[..cut], &[0; 512][cut..]].concat();
            assert!(matches!(kind(&torn), FaultKind::Torn { before: 5, after: 0, .. }), "{:?}", kind(&torn));
        }
    }

    #[test]
    fn any_flipped_bit_is_found() {
        for at in 0..512 {
            let mut corrupt = block(HERE);
            corrupt[at] ^= 0x10;
            let fault = check(&corrupt, HERE).unwrap_err();
            assert_eq!(fault.lba, 1234, "byte {at}");
        }
        let mut corrupt = block(HERE);
        corrupt[100] ^= 1;
        assert!(matches!(kind(&corrupt), FaultKind::Corrupt { at: 100, .. }), "{:?}", kind(&corrupt));
    }

    #[test]
    fn a_buffer_that_was_not_filled_is_missing() {
        assert_eq!(kind(&[POISON; 512]), FaultKind::Missing);
    }
}
