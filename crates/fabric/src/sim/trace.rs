//! A fingerprint of everything that happened: two runs are equal exactly when theirs are, but for
//! odds of 2^-64.

use super::random::mix;
use crate::Time;

/// What happened; the numbers enter the fingerprint.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    ToHost = 1,
    ToClient = 2,
    Stray = 3,
    Connected = 4,
    ClientEnd = 5,
    HostEnd = 6,
    Fault = 7,
}

/// The running fingerprint.
#[derive(Debug, Default)]
pub(super) struct Trace(u64);

impl Trace {
    /// Adds one event: when, what, where, and two numbers that say more.
    #[inline]
    pub(super) fn note(&mut self, now: Time, kind: Kind, node: u32, first: u64, second: u64) {
        let what = (kind as u64) << 32 | u64::from(node);
        self.0 = mix(self.0 ^ now.0);
        self.0 = mix(self.0 ^ what);
        self.0 = mix(self.0 ^ first);
        self.0 = mix(self.0 ^ second);
    }

    pub(super) fn hash(&self) -> u64 {
        self.0
    }
}

/// A checksum of bytes: four lanes of multiplications, little-endian words.
#[inline]
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x9E37_79B1_85EB_CA87;
    let mut lanes = [1_u64, 2, 3, 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word))
                .wrapping_mul(PRIME)
                .rotate_left(29);
        }
    }
    let mut sum = bytes.len() as u64;
    for &byte in rest {
        sum = (sum ^ u64::from(byte)).wrapping_mul(PRIME).rotate_left(29);
    }
    lanes.iter().fold(sum, |sum, lane| mix(sum ^ lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_sees_every_byte_and_its_place() {
        for len_bytes in [1, 8, 31, 32, 33, 64, 100] {
            let zeros = vec![0; len_bytes];
            let mut seen = std::collections::BTreeSet::from([checksum(&zeros)]);
            for at in 0..len_bytes {
                let mut changed = zeros.clone();
                changed[at] = 1;
                assert!(seen.insert(checksum(&changed)), "{at} of {len_bytes}");
            }
        }
        assert_ne!(checksum(&[]), checksum(&[0]));
    }
}
