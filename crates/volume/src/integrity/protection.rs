//! How a volume's pages are protected against what happens to them in other machines' memory.

use std::fmt;
use std::str::FromStr;

/// What the client keeps of every page, so that other bytes are never taken for it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Protection {
    /// Nothing.
    #[default]
    None,
    /// A checksum: bytes that changed are noticed, and put right where enough splits are left.
    Checksum,
    /// Pages leave this process encrypted, and are believed only with the tag that is kept here: who
    /// holds them can neither read nor change them, nor put an older page in a page's place.
    Sealed(SealKey),
}

/// The key of a sealed volume. It never leaves the client.
#[derive(Clone, Eq, PartialEq)]
pub struct SealKey([u8; Self::BYTES]);

/// Text that is no key.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits")]
pub struct SealKeyError;

impl Protection {
    /// As a volume's description names it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Checksum => "checksum",
            Self::Sealed(_) => "sealed",
        }
    }

    /// Words of a tag; 0 without one.
    pub(crate) fn tag_words(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Checksum => 1,
            Self::Sealed(_) => 3,
        }
    }
}

impl SealKey {
    /// Length of a key in bytes.
    pub const BYTES: usize = 32;

    /// The key that these bytes are.
    #[must_use]
    pub fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for SealKey {
    type Err = SealKeyError;

    fn from_str(text: &str) -> Result<Self, SealKeyError> {
        let mut bytes = [0; Self::BYTES];
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() != 2 * Self::BYTES || !is_hex {
            return Err(SealKeyError);
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = &text[2 * index..][..2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| SealKeyError)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for SealKey {
    /// Not the key: this text goes to logs.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SealKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_and_not_shown() {
        let text = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eFF";
        let key: SealKey = text.parse().unwrap();
        assert_eq!((key.0[1], key.0[31]), (1, 255));
        assert!(!format!("{key:?}").contains("1e"));
        for wrong in ["", "00", &text[1..], &text.replace("00", "+1")] {
            assert!(wrong.parse::<SealKey>().is_err(), "{wrong:?}");
        }
    }
}
