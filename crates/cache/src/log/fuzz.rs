//! What a log store reads of tiers and of its checkpoint; see [`crate::fuzz`].

use super::checkpoint::Image;
use super::page::{self, Page};
use super::record::{self, HEADER_BYTES, Link, Parsed, Shape, word_at};

const STORE: u64 = 9;

/// A record, with the checksum that came and with the right one. The first eight bytes are its
/// address.
pub fn record(bytes: &[u8]) {
    let Some((address, bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let address = u64::from_le_bytes(*address);
    check_record(bytes, address);
    if bytes.len() >= HEADER_BYTES {
        let len_bytes = Shape::of_word(word_at(bytes, 8)).record_bytes();
        if len_bytes <= bytes.len() {
            let mut bytes = bytes.to_vec();
            record::seal(&mut bytes[..len_bytes], address, STORE);
            check_record(&bytes, address);
        }
    }
}

fn check_record(bytes: &[u8], address: u64) {
    match record::parse(bytes, address, STORE) {
        Parsed::Longer(len_bytes) => assert!(len_bytes > bytes.len(), "it is all there"),
        Parsed::Whole(record) => {
            assert!(record.len_bytes <= bytes.len(), "longer than what there is");
            assert!(record.link.previous() < address, "a chain that goes on");
            let again = record::parse(&bytes[..record.len_bytes], address, STORE);
            assert_eq!(again, Parsed::Whole(record));
        }
        Parsed::Wrong => {}
    }
}

/// A page, with the checksums that came and with the right ones where its records lie in it. The
/// first byte says where it is, and whether a prefix ends with it.
pub fn page(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else {
        return;
    };
    let address = u64::from(first >> 1) << 12;
    check_page(bytes, address);
    if bytes.len() >= page::HEADER_BYTES && records_lie_in(bytes) {
        let mut bytes = bytes.to_vec();
        let used = page::seal(&mut bytes, address, STORE, first & 1 == 1);
        assert!(used <= bytes.len(), "more is used than there is");
        let page = Page::parse(&bytes, address, STORE).expect("it was sealed");
        assert_eq!(page.is_cut, first & 1 == 1);
        check_page(&bytes, address);
    }
}

fn records_lie_in(bytes: &[u8]) -> bool {
    let mut at = page::HEADER_BYTES;
    while at + HEADER_BYTES <= bytes.len() && Link(word_at(bytes, at)).is_valid() {
        at += Shape::of_word(word_at(bytes, at + 8)).record_bytes();
    }
    at <= bytes.len()
}

fn check_page(bytes: &[u8], address: u64) {
    let Some(page) = Page::parse(bytes, address, STORE) else {
        return;
    };
    let mut end = address + page::HEADER_BYTES as u64;
    for found in page.records() {
        let Some((at, record)) = found else {
            break;
        };
        assert!(at >= end, "records lie over each other");
        end = at + record.len_bytes as u64;
        assert!(end <= address + bytes.len() as u64, "beyond the page");
    }
}

/// The file of a checkpoint, with the checksum that came and with the right one.
pub fn image(bytes: &[u8]) {
    check_image(bytes);
    let mut sealed = bytes.to_vec();
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
    sealed.extend(sum.to_le_bytes());
    check_image(&sealed);
}

fn check_image(bytes: &[u8]) {
    if let Ok(image) = Image::parse(bytes) {
        assert_eq!(Image::parse(&image.to_bytes()), Ok(image));
    }
}
