//! What a log store is made with.

use super::error::Error;
use super::page;
use super::record::{HEADER_BYTES, KEY_BYTES_MAX, Shape, VALUE_BYTES_MAX};

/// So many bits of a tag may become bits of a bucket's number. Those that are left tell chains
/// apart.
const GROWTH_BITS_MAX: u32 = 10;

/// Sizes of a store. Checked by [`Settings::check`] when a store is opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Bytes of a page, a power of two from 256 to 64 MiB. A record fits into a page. Tiers on a
    /// disk ask for multiples of 4096. Default 1 MiB.
    pub page_bytes: usize,
    /// Pages in memory, a power of two from 4. The memory used is this times `page_bytes`.
    /// Default 64.
    pub pages: usize,
    /// Pages in which records are changed in place, counted back from the tail: 1 to `pages - 2`.
    /// More of them save copies, fewer are evicted with less waiting. Default 56.
    pub mutable_pages: usize,
    /// Buckets that the index begins with, 64 bytes and seven chains each: a power of two. It stays
    /// with the store: a recovery has the same. Default 2^16.
    pub index_buckets: usize,
    /// Buckets that the index grows to, one for every three chains: a power of two, at most 2^10
    /// times `index_buckets`. A third of the keys at least; memory is taken as it grows. Default
    /// 2^22.
    pub index_buckets_max: usize,
    /// Buckets for chains that do not fit into theirs, below 2^32. When they are used up, and the
    /// index cannot grow, a new key is refused. Default 2^19.
    pub overflow_buckets: usize,
    /// Sessions at a time, 1 to 1024. Default 64.
    pub sessions: usize,
    /// Operations of a session that wait for a tier at a time, at least 1. Default 256.
    pub pending_max: usize,
    /// Pages on their way to tiers at a time, at least 1: that many copies are in memory besides.
    /// Default 16.
    pub writes_max: usize,
    /// A page counts as written when all tiers up to this one, of those that hold it, have it. The
    /// fastest is 0. Default 0.
    pub commit_point: usize,
    /// Whether a record that is read from a tier is copied to the tail, where the next read finds it
    /// in memory. It pays where some keys are read far more often than others. Default no.
    pub copies_reads: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            page_bytes: 1 << 20,
            pages: 64,
            mutable_pages: 56,
            index_buckets: 1 << 16,
            index_buckets_max: 1 << 22,
            overflow_buckets: 1 << 19,
            sessions: 64,
            pending_max: 256,
            writes_max: 16,
            commit_point: 0,
            copies_reads: false,
        }
    }
}

impl Settings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Settings`] names what is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        let is_right = [
            (
                self.page_bytes.is_power_of_two() && (256..=1 << 26).contains(&self.page_bytes),
                "page_bytes is a power of two from 256 to 64 MiB",
            ),
            (
                self.pages.is_power_of_two() && (4..=1 << 24).contains(&self.pages),
                "pages is a power of two from 4 to 2^24",
            ),
            (
                (1..=self.pages - self.pages.min(2)).contains(&self.mutable_pages),
                "mutable_pages is from 1 to pages - 2",
            ),
            (
                self.index_buckets.is_power_of_two() && self.index_buckets <= 1 << 32,
                "index_buckets is a power of two up to 2^32",
            ),
            (
                self.index_buckets_max.is_power_of_two()
                    && (self.index_buckets..=self.index_buckets << GROWTH_BITS_MAX)
                        .contains(&self.index_buckets_max)
                    && self.index_buckets_max <= 1 << 32,
                "index_buckets_max is a power of two from index_buckets to 2^10 times that, up to 2^32",
            ),
            (
                self.overflow_buckets < 1 << 32,
                "overflow_buckets is below 2^32",
            ),
            (
                (1..=1024).contains(&self.sessions),
                "sessions is from 1 to 1024",
            ),
            (self.pending_max > 0, "pending_max is at least 1"),
            (self.writes_max > 0, "writes_max is at least 1"),
        ];
        match is_right.into_iter().find(|(is_right, _)| !is_right) {
            Some((_, what)) => Err(Error::Settings(what)),
            None => Ok(()),
        }
    }

    /// Longest key: a record of it with an empty value fits into a page.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        // A multiple of 8, as the key is filled up to.
        let room = self.page_bytes - page::HEADER_BYTES - HEADER_BYTES;
        room.min(KEY_BYTES_MAX)
    }

    /// Longest value that a record with a key of `key_bytes` may have.
    #[must_use]
    pub fn value_bytes_max(&self, key_bytes: usize) -> usize {
        let shape = Shape {
            key_bytes,
            value_bytes: 0,
        };
        let room = self.page_bytes - page::HEADER_BYTES - HEADER_BYTES;
        let room = room.saturating_sub(shape.value_offset() - HEADER_BYTES);
        room.min(VALUE_BYTES_MAX)
    }
}
