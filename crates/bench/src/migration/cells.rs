//! What the bytes of a cell have to be: each word says which cell it is of, and which version.

/// Bytes that are read and written as one.
pub const CELL_BYTES: usize = 1024;
/// A cell of which nothing is known: a write of it failed, or its region was lost.
pub const UNKNOWN: u32 = u32::MAX;

/// The bytes of a cell's version.
pub fn put_cell(cell: u64, version: u32, room: &mut [u8]) {
    for (at, word) in room.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_of(cell, version, at).to_ne_bytes());
    }
}

fn word_of(cell: u64, version: u32, at: usize) -> u64 {
    if version == 0 {
        return 0;
    }
    let name = cell << 32 | u64::from(version);
    (name ^ (at as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Bytes that differ from what they have to be. Cells that were lost meanwhile are left aside.
pub fn wrong_bytes(
    first: u64,
    expected: &[u32],
    buffer: &[u8],
    is_lost: impl Fn(u64) -> bool,
) -> u64 {
    if buffer.len() != expected.len() * CELL_BYTES {
        return (expected.len() * CELL_BYTES) as u64;
    }
    let mut wrong = 0;
    for ((cell, &version), bytes) in (first..).zip(expected).zip(buffer.chunks_exact(CELL_BYTES)) {
        if version == UNKNOWN || is_lost(cell) {
            continue;
        }
        for (at, word) in bytes.chunks_exact(8).enumerate() {
            let right = word_of(cell, version, at).to_ne_bytes();
            wrong += word.iter().zip(right).filter(|(a, b)| **a != *b).count() as u64;
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_that_is_not_of_the_expected_version_is_counted() {
        let mut bytes = vec![0; 2 * CELL_BYTES];
        put_cell(7, 3, &mut bytes[..CELL_BYTES]);
        put_cell(8, 1, &mut bytes[CELL_BYTES..]);
        let none = |_| false;
        assert_eq!(wrong_bytes(7, &[3, 1], &bytes, none), 0);
        bytes[CELL_BYTES + 5] ^= 1;
        assert_eq!(wrong_bytes(7, &[3, 1], &bytes, none), 1);
        let of = |first, expected: &[u32]| wrong_bytes(first, expected, &bytes, none);
        assert!(of(7, &[2, 1]) > 900, "a stale cell");
        assert!(of(6, &[3, 1]) > 900, "another's cell");
        assert_eq!(of(7, &[3]), 1024, "another length");
        assert_eq!(wrong_bytes(7, &[2, 1], &bytes, |cell| cell == 7), 1);
    }
}
