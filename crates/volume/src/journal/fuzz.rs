//! What an owner of a volume reads of the journal that one before it left; see [`crate::fuzz`].

use cenote_durable::journal::batch;

use super::format;

/// A journal: its bytes as they are, and as batches with the right checksums. For the second, each
/// batch is a byte for its length and so many bytes of records. What a journal says, one without a
/// history says the same.
pub fn journal(bytes: &[u8]) {
    check(bytes);
    let mut sealed = format::MAGIC.to_vec();
    let mut rest = bytes;
    while let Some((&len, after)) = rest.split_first() {
        let (records, after) = after.split_at(usize::from(len).min(after.len()));
        sealed.extend(batch(records));
        rest = after;
    }
    check(&sealed);
}

fn check(bytes: &[u8]) {
    if let Ok(Some(image)) = format::parse(bytes) {
        let whole = format::whole(&image);
        let again = format::parse(&whole).expect("what was written is read");
        assert_eq!(again, Some(image));
    }
}
