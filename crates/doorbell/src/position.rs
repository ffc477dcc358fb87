//! Arithmetic on ring positions.

use std::fmt;

/// Number of entries of a queue, 2 to 65536 (NVMe Base 2.1 §3.3.3.1). One entry stays free, so that full and empty differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth(u32);

/// The depth is not in 2..=65536.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidDepth(pub u32);

impl fmt::Display for InvalidDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a queue has 2 to 65536 entries, not {}", self.0)
    }
}

impl std::error::Error for InvalidDepth {}

// Positions are below the depth, which is at most 65536, so that the casts lose nothing.
#[allow(clippy::cast_possible_truncation)]
impl Depth {
    /// Checks the number of entries.
    ///
    /// # Errors
    /// [`InvalidDepth`] outside 2..=65536.
    pub const fn new(entries: u32) -> Result<Self, InvalidDepth> {
        if entries >= 2 && entries <= 65536 { Ok(Self(entries)) } else { Err(InvalidDepth(entries)) }
    }

    /// From a 0's-based size field.
    ///
    /// # Errors
    /// [`InvalidDepth`] for 0, which would mean one entry.
    pub const fn from_size_z(size_z: u16) -> Result<Self, InvalidDepth> {
        Self::new(size_z as u32 + 1)
    }

    /// Number of entries.
    pub const fn entries(self) -> u32 {
        self.0
    }

    /// How many entries can be occupied at a time.
    pub const fn capacity(self) -> u16 {
        (self.0 - 1) as u16
    }

    /// A word from the host as a position, if it is one.
    pub const fn position(self, value: u32) -> Option<u16> {
        if value < self.0 { Some(value as u16) } else { None }
    }

    /// The position after `at`.
    #[inline]
    pub const fn next(self, at: u16) -> u16 {
        if at as u32 + 1 == self.0 { 0 } else { at + 1 }
    }

    /// The position before `at`.
    #[inline]
    pub const fn previous(self, at: u16) -> u16 {
        if at == 0 { (self.0 - 1) as u16 } else { at - 1 }
    }

    /// Steps from `from` to `to`, going forward.
    #[inline]
    pub const fn distance(self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { (self.0 - from as u32 + to as u32) as u16 }
    }

    /// The position `steps` after `at`; `steps` at most the capacity.
    #[inline]
    pub const fn advance(self, at: u16, steps: u16) -> u16 {
        let sum = at as u32 + steps as u32;
        (if sum >= self.0 { sum - self.0 } else { sum }) as u16
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_2_to_65536_entries() {
        assert!(Depth::new(1).is_err());
        assert!(Depth::new(65537).is_err());
        assert!(Depth::from_size_z(0).is_err());
        assert_eq!(Depth::from_size_z(0xffff).unwrap().entries(), 65536);
        assert_eq!(Depth::from_size_z(0xffff).unwrap().capacity(), 65535);
    }

    #[test]
    fn arithmetic_agrees_with_counting_at_every_depth() {
        for entries in (2..=257).chain([1024, 4095, 4096, 65535, 65536]) {
            let depth = Depth::new(entries).unwrap();
            // All starts of small rings; the corners of large ones.
            let starts: Vec<u32> =
                if entries < 300 { (0..entries).collect() } else { vec![0, 1, entries / 2, entries - 2, entries - 1] };
            for from in starts {
                let from = from as u16;
                assert_eq!(depth.previous(depth.next(from)), from);
                let (mut at, mut steps) = (from, 0u32);
                loop {
                    assert_eq!(u32::from(depth.distance(from, at)), steps);
                    assert_eq!(depth.advance(from, steps as u16), at);
                    assert!(depth.position(u32::from(at)).is_some());
                    if steps + 1 == entries {
                        break;
                    }
                    at = depth.next(at);
                    steps += 1;
                }
            }
            assert!(depth.position(entries).is_none());
        }
    }

    #[test]
    fn arithmetic_agrees_with_division_at_the_corners_of_every_depth_there_is() {
        for entries in 2..=65536u32 {
            let depth = Depth::new(entries).unwrap();
            let corners = [0, 1, entries / 2, entries - 2, entries - 1].map(|at| at as u16);
            for from in corners {
                assert_eq!(u32::from(depth.next(from)), (u32::from(from) + 1) % entries);
                assert_eq!(depth.previous(depth.next(from)), from);
                for steps in corners {
                    let to = depth.advance(from, steps);
                    assert_eq!(u32::from(to), (u32::from(from) + u32::from(steps)) % entries);
                    assert_eq!(depth.distance(from, to), steps);
                }
            }
            assert_eq!(depth.position(entries), None);
            assert_eq!(depth.position(entries - 1), Some((entries - 1) as u16));
        }
    }
}
