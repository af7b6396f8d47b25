//! What a parser accepts at most, and which version's meta flags it knows.

use crate::memory::classes::item_bytes;

/// Whose meta commands are spoken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Dialect {
    /// memcached 1.6.18, byte by byte.
    #[default]
    V1_6_18,
    /// What came after it, from its documentation: `x` on `md`, `N` on an `ms` that appends, the size that
    /// `s` asks `ms` for, and a quiet `md` or `ma` that hides a miss. Not `E`, by which clients choose
    /// cas numbers: what `flush_all` has removed is known by them here.
    Later,
}

/// Limits of one connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Largest item, memcached's overhead of 59 bytes included, as its option `-I` counts.
    pub item_bytes_max: u64,
    /// Longest command line without its end, other than a retrieval's. memcached closes a connection
    /// that has sent more without a line end; a longer line that comes in one piece it takes, up to the
    /// size of its read buffer. At least 110, which tell what command it is.
    pub line_bytes_max: usize,
    /// Longest line of a `get`, `gets`, `gat` or `gats`. memcached has no limit for the first two, and
    /// takes the others where they come in one piece; 1 MiB is 4000 keys of the longest kind.
    pub multiget_bytes_max: usize,
    /// Whose meta commands are spoken.
    pub dialect: Dialect,
    /// Whether clients are shown cas numbers.
    pub has_cas: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            item_bytes_max: 1 << 20,
            line_bytes_max: 2 << 10,
            multiget_bytes_max: 1 << 20,
            dialect: Dialect::default(),
            has_cas: true,
        }
    }
}

impl Limits {
    /// Whether an item is small enough. A store asks for what an append would make, too.
    pub fn fits(&self, key_bytes: usize, client_flags: u32, value_bytes: usize) -> bool {
        item_bytes(key_bytes, client_flags, value_bytes) <= self.item_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_counts_with_its_overhead() {
        let limits = Limits::default();
        assert!(limits.fits(1, 0, (1 << 20) - 60));
        assert!(!limits.fits(1, 0, (1 << 20) - 59));
        assert!(!limits.fits(1, 7, (1 << 20) - 60));
        assert!(limits.fits(1, 7, (1 << 20) - 64));
    }
}
