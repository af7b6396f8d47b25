//! Doors for the fuzz targets (`fuzz/` at the repository's root): bytes in, a panic where an
//! invariant breaks. No part of the interface; what users get is built without it.

use std::io::Cursor;

use crate::checkpoint::format::{self, Reader};
use crate::market::Catalogue;
use crate::service::message::{ToClient, ToManager};
use crate::tuner::Model;

pub use crate::log::fuzz::{image as log_image, page as log_page, record as log_record};
pub use crate::service::journal::fuzz::journal;

/// Messages between a cache's manager and a client: what is read is written the same.
pub fn message(bytes: &[u8]) {
    if let Ok(message) = ToManager::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
    if let Ok(message) = ToClient::decode(bytes, 1 << 20) {
        let again = message.encode();
        assert_eq!(ToClient::decode(&again, 1 << 20), Ok(message));
    }
}

/// The file of machine types: what is read has each name once.
pub fn catalogue(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if let Ok(catalogue) = text.parse::<Catalogue>() {
        let mut names: Vec<&str> = catalogue.types().iter().map(|one| &*one.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name twice");
    }
}

/// The file of a model: what is read is written so that it is read the same.
pub fn model(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if let Ok(model) = text.parse::<Model>() {
        assert_eq!(model.to_text().parse::<Model>().as_ref(), Ok(&model));
    }
}

/// The file of a checkpoint, with the checksums that came and with the right ones: what it gives
/// out is in order and within a region.
pub fn checkpoint(bytes: &[u8]) {
    check_checkpoint(bytes);
    let mut sealed = bytes.to_vec();
    if format::seal(&mut sealed).is_some() {
        check_checkpoint(&sealed);
    }
}

fn check_checkpoint(bytes: &[u8]) {
    let Ok(mut reader) = Reader::open(Cursor::new(bytes)) else {
        return;
    };
    let region_bytes = reader.header().region_bytes;
    for saved in reader.saved().to_vec() {
        let mut end = 0;
        let whole = reader.region(saved.region, |at, chunk| {
            assert_eq!(at, end, "chunks follow each other");
            end += chunk.len() as u64;
            Ok(())
        });
        assert!(end <= region_bytes, "more than a region");
        assert_eq!(
            whole.is_ok(),
            end == region_bytes,
            "a whole region or an error"
        );
    }
}
