//! What a store of a row holds for an object: its number, and its bytes or that it was deleted.

use crate::pool::{TOMBSTONE_BYTES_MAX, Version};

/// In front of the bytes: this, whether it is a deletion, and its number.
const MAGIC: [u8; 4] = *b"copy";
pub(super) const HEAD_BYTES: usize = 16;

// A store that is full is emptied by deletions.
const _: () = assert!(HEAD_BYTES <= TOMBSTONE_BYTES_MAX);

/// One copy, as it is in a store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Copy {
    /// Of the object's changes, from 1.
    pub number: u64,
    /// `None`: it was deleted.
    pub value: Option<Vec<u8>>,
}

impl Copy {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.value.as_ref().map_or(0, Vec::len));
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&u32::from(self.value.is_none()).to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(self.value.as_deref().unwrap_or_default());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, value) = bytes.split_at_checked(HEAD_BYTES)?;
        let kind = head.strip_prefix(&MAGIC)?.first_chunk()?;
        let number = u64::from_le_bytes(*head.last_chunk()?);
        let value = match u32::from_le_bytes(*kind) {
            0 => Some(value.to_vec()),
            1 if value.is_empty() => None,
            _ => return None,
        };
        (number > 0).then_some(Self { number, value })
    }

    pub fn into_version(self) -> Option<Version> {
        let sequence = self.number;
        self.value.map(|value| Version { sequence, value })
    }

    pub fn visible(&self) -> Option<u64> {
        self.value.is_some().then_some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn copies_are_what_they_were() {
        for value in [None, Some(Vec::new()), Some(b"bytes".to_vec())] {
            let copy = Copy { number: 7, value };
            assert_eq!(Copy::decode(&copy.encode()), Some(copy));
        }
        let deleted = Copy {
            number: 7,
            value: None,
        };
        // A deletion with bytes, a number that is none, another kind.
        assert_eq!(Copy::decode(&[&deleted.encode()[..], b"x"].concat()), None);
        assert_eq!(Copy::decode(&[&b"copy"[..], &[0; 12]].concat()), None);
        assert_eq!(Copy::decode(&[&b"copy"[..], &[2; 12]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_copy_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(copy) = Copy::decode(&bytes) {
                prop_assert_eq!(copy.encode(), bytes);
            }
        }
    }
}
