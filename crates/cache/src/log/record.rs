//! A record: two words of header, the key, the value, both filled up to whole words.
//!
//! ```text
//! word 0   bits 0..48 address of the one before in its chain | 48 valid | 49 deleted | 50 void
//! word 1   bits 0..32 in memory: lock and version; on a tier: CRC-32C
//!          bits 32..42 bytes of the key | 42..64 bytes of the value
//! ```
//!
//! Words are little-endian. The checksum covers the store's number, the address, and all bytes of
//! the record but its own. Who parses bytes of a tier believes nothing: see [`parse`].

use super::injected_faults::{InjectedFault, is_injected};

/// Bytes of the two header words.
pub const HEADER_BYTES: usize = 16;
/// Longest key.
pub const KEY_BYTES_MAX: usize = (1 << 10) - 1;
/// Longest value; a page may hold less.
pub const VALUE_BYTES_MAX: usize = (1 << 22) - 1;
/// Addresses are below this.
pub const ADDRESS_END: u64 = 1 << 48;

const VALID: u64 = 1 << 48;
const DELETED: u64 = 1 << 49;
const VOID: u64 = 1 << 50;
const KNOWN: u64 = (ADDRESS_END - 1) | VALID | DELETED | VOID;

/// Word 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Link(pub u64);

impl Link {
    /// Of a record whose chain goes on at `previous`; 0 ends it.
    #[must_use]
    pub fn new(previous: u64, is_deleted: bool) -> Self {
        debug_assert!(previous < ADDRESS_END);
        Self(previous | VALID | if is_deleted { DELETED } else { 0 })
    }

    /// The address before it in the chain, or 0.
    #[must_use]
    pub fn previous(self) -> u64 {
        self.0 & (ADDRESS_END - 1)
    }

    /// Whether there is a record at all.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// Whether the record says that its key is gone.
    #[must_use]
    pub fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }

    /// Whether the record never came into its chain.
    #[must_use]
    pub fn is_void(self) -> bool {
        self.0 & VOID != 0
    }

    /// The same, deleted or not.
    #[must_use]
    pub fn with_deleted(self, is_deleted: bool) -> Self {
        Self(self.0 & !DELETED | if is_deleted { DELETED } else { 0 })
    }

    /// The same, of a record that never came into its chain.
    #[must_use]
    pub fn voided(self) -> Self {
        Self(self.0 | VOID)
    }
}

/// Lengths of a record, as they stand in the high half of word 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Bytes of the key, 1 to [`KEY_BYTES_MAX`].
    pub key_bytes: usize,
    /// Bytes of the value, 0 to [`VALUE_BYTES_MAX`].
    pub value_bytes: usize,
}

impl Shape {
    /// Of a record with this key and this value.
    #[must_use]
    pub fn of(key: &[u8], value: &[u8]) -> Self {
        Self {
            key_bytes: key.len(),
            value_bytes: value.len(),
        }
    }

    /// From word 1.
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        Self {
            key_bytes: (word >> 32) as usize & KEY_BYTES_MAX,
            value_bytes: (word >> 42) as usize,
        }
    }

    /// Word 1 with its low half zero.
    #[must_use]
    pub fn word(self) -> u64 {
        debug_assert!(self.key_bytes <= KEY_BYTES_MAX && self.value_bytes <= VALUE_BYTES_MAX);
        (self.key_bytes as u64) << 32 | (self.value_bytes as u64) << 42
    }

    /// Bytes of the whole record, a multiple of 8.
    #[must_use]
    pub fn record_bytes(self) -> usize {
        self.value_offset() + self.value_bytes.next_multiple_of(8)
    }

    /// Where the value begins, from the record's first byte.
    #[must_use]
    pub fn value_offset(self) -> usize {
        HEADER_BYTES + self.key_bytes.next_multiple_of(8)
    }
}

/// A record as a tier returned it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record<'a> {
    /// Flags and the address before it.
    pub link: Link,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Bytes that the record takes in the log.
    pub len_bytes: usize,
}

/// What bytes of a tier turn out to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parsed<'a> {
    /// A whole record with the right checksum.
    Whole(Record<'a>),
    /// The record is this long and `bytes` are fewer. The length is not proven yet.
    Longer(usize),
    /// No record of this store at this address.
    Wrong,
}

/// Parses the record that begins with `bytes` and that the log has at `address`.
#[must_use]
pub fn parse(bytes: &[u8], address: u64, store: u64) -> Parsed<'_> {
    if bytes.len() < HEADER_BYTES {
        return Parsed::Longer(HEADER_BYTES);
    }
    let (link, word) = (Link(word_at(bytes, 0)), word_at(bytes, 8));
    let shape = Shape::of_word(word);
    let is_sane = link.is_valid() && link.0 & !KNOWN == 0 && shape.key_bytes > 0;
    if !is_sane || link.previous() >= address {
        return Parsed::Wrong;
    }
    let len_bytes = shape.record_bytes();
    let Some(bytes) = bytes.get(..len_bytes) else {
        return Parsed::Longer(len_bytes);
    };
    if checksum(bytes, address, store) != word as u32 && !is_injected(InjectedFault::SkipChecksum) {
        return Parsed::Wrong;
    }
    let value = shape.value_offset();
    Parsed::Whole(Record {
        link,
        key: &bytes[HEADER_BYTES..][..shape.key_bytes],
        value: &bytes[value..][..shape.value_bytes],
        len_bytes,
    })
}

/// Puts the checksum into a record that is on its way to a tier, in place of lock and version.
pub fn seal(bytes: &mut [u8], address: u64, store: u64) {
    let sum = checksum(bytes, address, store);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// CRC-32C of a record at `address`, without the four bytes where it stands itself.
fn checksum(bytes: &[u8], address: u64, store: u64) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut head = [0; 28];
    head[..8].copy_from_slice(&store.to_le_bytes());
    head[8..16].copy_from_slice(&address.to_le_bytes());
    head[16..24].copy_from_slice(&bytes[..8]);
    head[24..].copy_from_slice(&bytes[12..16]);
    digest.update(&head);
    digest.update(&bytes[HEADER_BYTES..]);
    digest.finalize() as u32
}

/// The little-endian word at byte `offset`.
pub(super) fn word_at(bytes: &[u8], offset: usize) -> u64 {
    let word = bytes[offset..offset + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A record's bytes as a tier has them.
    fn image(link: Link, key: &[u8], value: &[u8], address: u64, store: u64) -> Vec<u8> {
        let shape = Shape {
            key_bytes: key.len(),
            value_bytes: value.len(),
        };
        let mut bytes = vec![0; shape.record_bytes()];
        bytes[..8].copy_from_slice(&link.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&shape.word().to_le_bytes());
        bytes[HEADER_BYTES..][..key.len()].copy_from_slice(key);
        bytes[shape.value_offset()..][..value.len()].copy_from_slice(value);
        seal(&mut bytes, address, store);
        bytes
    }

    proptest! {
        #[test]
        fn what_was_written_is_parsed_and_any_flipped_bit_is_found(
            key in proptest::collection::vec(any::<u8>(), 1..40),
            value in proptest::collection::vec(any::<u8>(), 0..80),
            address in 100u64..ADDRESS_END,
            bit in any::<proptest::sample::Index>(),
        ) {
            let link = Link::new(address - 50, false);
            let mut bytes = image(link, &key, &value, address, 9);
            let len_bytes = bytes.len();
            prop_assert_eq!(
                parse(&bytes, address, 9),
                Parsed::Whole(Record { link, key: &key, value: &value, len_bytes })
            );
            prop_assert_eq!(parse(&bytes, address, 8), Parsed::Wrong);
            let elsewhere = if address > 200 { address - 8 } else { address + 8 };
            prop_assert_eq!(parse(&bytes, elsewhere, 9), Parsed::Wrong);
            let bit = bit.index(len_bytes * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(parse(&bytes, address, 9), Parsed::Whole(_)));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            address in any::<u64>(),
        ) {
            match parse(&bytes, address, 0) {
                Parsed::Longer(len) => prop_assert!(len > bytes.len()),
                Parsed::Whole(record) => prop_assert!(record.len_bytes <= bytes.len()),
                Parsed::Wrong => {}
            }
        }

        #[test]
        fn bytes_of_a_real_record_cut_short_ask_for_the_rest(
            value in proptest::collection::vec(any::<u8>(), 1..80),
            cut in any::<proptest::sample::Index>(),
        ) {
            let bytes = image(Link::new(0, true), b"key", &value, 64, 1);
            let cut = cut.index(bytes.len());
            let wanted = if cut < HEADER_BYTES { HEADER_BYTES } else { bytes.len() };
            prop_assert_eq!(parse(&bytes[..cut], 64, 1), Parsed::Longer(wanted));
        }
    }
}
