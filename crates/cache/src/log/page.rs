//! A page of the log as tiers hold it: a header, records one after the other, zeroes.
//!
//! ```text
//! byte 0   magic "CELP" | 4 flags (bit 0: cut) | 8 address | 16 store's number
//!      24  bytes used, header included | 28 CRC-32C of the page without this field
//! ```
//!
//! A page is written once and whole. One whose flag `cut` is set ends a consistent prefix: what
//! stands in the log up to its end is what a recovery may come back to.

use std::ops::Range;

use super::record::{self, Link, Parsed, Record, Shape, word_at};

/// Bytes in front of a page's first record.
pub const HEADER_BYTES: usize = 32;

const MAGIC: &[u8; 4] = b"CELP";
const CUT: u32 = 1;
const SUM: Range<usize> = 28..32;

/// Makes a page that was copied from memory ready for tiers: its header, and a checksum for each
/// record. Returns how many bytes are in use.
pub fn seal(bytes: &mut [u8], address: u64, store: u64, is_cut: bool) -> usize {
    let mut used = HEADER_BYTES;
    while used + record::HEADER_BYTES <= bytes.len() {
        if !Link(word_at(bytes, used)).is_valid() {
            break;
        }
        let len = Shape::of_word(word_at(bytes, used + 8)).record_bytes();
        record::seal(&mut bytes[used..used + len], address + used as u64, store);
        used += len;
    }
    let flags = if is_cut { CUT } else { 0 };
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    bytes[8..16].copy_from_slice(&address.to_le_bytes());
    bytes[16..24].copy_from_slice(&store.to_le_bytes());
    bytes[24..28].copy_from_slice(&(used as u32).to_le_bytes());
    let sum = checksum(bytes);
    bytes[SUM].copy_from_slice(&sum.to_le_bytes());
    used
}

/// A page from a tier whose checksum is right.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    bytes: &'a [u8],
    address: u64,
    store: u64,
    /// What stands up to the end of this page is a consistent prefix.
    pub is_cut: bool,
}

impl<'a> Page<'a> {
    /// Parses the page at `address`. `None` if it is none of this store, or torn.
    #[must_use]
    pub fn parse(bytes: &'a [u8], address: u64, store: u64) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || &bytes[..4] != MAGIC {
            return None;
        }
        let flags = word_at(bytes, 0) >> 32;
        let (sum, used) = (word_at(bytes, 24) >> 32, word_at(bytes, 24) as u32 as usize);
        let is_right = sum == u64::from(checksum(bytes));
        let is_ours = word_at(bytes, 8) == address && word_at(bytes, 16) == store;
        if !is_right
            || !is_ours
            || flags > u64::from(CUT)
            || !(HEADER_BYTES..=bytes.len()).contains(&used)
        {
            return None;
        }
        Some(Self {
            bytes: &bytes[..used],
            address,
            store,
            is_cut: flags == u64::from(CUT),
        })
    }

    /// The records and their addresses, in order; void ones are left out. It ends early, with
    /// `None`, at bytes that are no record.
    pub fn records(self) -> impl Iterator<Item = Option<(u64, Record<'a>)>> {
        let mut at = HEADER_BYTES;
        let mut is_over = false;
        std::iter::from_fn(move || {
            while !is_over && at < self.bytes.len() {
                let address = self.address + at as u64;
                let Parsed::Whole(record) = record::parse(&self.bytes[at..], address, self.store)
                else {
                    is_over = true;
                    return Some(None);
                };
                at += record.len_bytes;
                if !record.link.is_void() {
                    return Some(Some((address, record)));
                }
            }
            None
        })
    }
}

/// CRC-32C of a page, without the bytes where it stands itself.
fn checksum(bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..SUM.start]);
    digest.update(&bytes[SUM.end..]);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A page with one record for each value, as memory has it.
    fn page(values: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        let mut at = HEADER_BYTES;
        for value in values {
            let shape = Shape {
                key_bytes: 3,
                value_bytes: value.len(),
            };
            bytes[at..at + 8].copy_from_slice(&Link::new(0, false).0.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&(shape.word() | 12).to_le_bytes());
            bytes[at + 16..at + 19].copy_from_slice(b"key");
            bytes[at + shape.value_offset()..][..value.len()].copy_from_slice(value);
            at += shape.record_bytes();
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_page_gives_its_records_back_and_is_refused_with_any_part_missing(
            values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..9),
            is_cut in any::<bool>(),
            cut in 1usize..1024,
        ) {
            let mut bytes = page(&values);
            seal(&mut bytes, 2048, 7, is_cut);
            let parsed = Page::parse(&bytes, 2048, 7).expect("a whole page");
            prop_assert_eq!(parsed.is_cut, is_cut);
            let found: Vec<_> = parsed.records().map(|it| it.expect("a record").1.value.to_vec()).collect();
            prop_assert_eq!(&found, &values);
            prop_assert!(Page::parse(&bytes, 1024, 7).is_none());
            prop_assert!(Page::parse(&bytes, 2048, 6).is_none());
            // Torn: what stands behind `cut` did not arrive.
            let mut torn = bytes.clone();
            torn[cut..].fill(0);
            prop_assert_eq!(Page::parse(&torn, 2048, 7).is_some(), torn == bytes);
        }

        #[test]
        fn any_bytes_are_a_page_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), aim in 0..3) {
            // Half the way by chance is never reached: some get their magic, or their checksum.
            if aim > 0 && bytes.len() >= HEADER_BYTES {
                bytes[..8].copy_from_slice(b"CELP\0\0\0\0");
                bytes[8..24].fill(0);
                bytes[26..28].fill(0);
                if aim > 1 {
                    let sum = checksum(&bytes);
                    bytes[SUM].copy_from_slice(&sum.to_le_bytes());
                }
            }
            if let Some(page) = Page::parse(&bytes, 0, 0) {
                prop_assert!(page.records().count() < 20);
            }
        }
    }
}
