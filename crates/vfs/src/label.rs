//! The first block of a volume: that there is a file system, how it is laid out, and how long its
//! metadata is.
//!
//! One JSON object, padded with zeros to a block, which a medium writes as a whole. The layout is
//! chosen once; `metadata_len` follows redb's file.

use serde::{Deserialize, Serialize};

use crate::medium::{BLOCK_BYTES, Medium, MediumError};

/// What the first block says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of the metadata's area, which begins at the second block; data follows.
    pub metadata_bytes: u64,
    /// Bytes of the database in it.
    pub metadata_len: u64,
    /// Whether the root directory is there; if not, making the file system was cut short.
    pub is_whole: bool,
}

/// What a volume holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// Nothing at all.
    Blank,
    /// A file system.
    Files(Label),
    /// Something else.
    Other,
}

/// What every label says of itself.
pub const FORMAT: &str = "cenote files";
/// Changes when older programs would misread what is there.
pub const VERSION: u32 = 1;
/// Least bytes of a file system; arbitrary, room for some metadata and some data.
pub const SIZE_BYTES_MIN: u64 = 4 << 20;

/// Of a volume, the part for metadata: one in so many bytes. See decision 121.
const METADATA_SHARE: u64 = 16;
const METADATA_BYTES_MIN: u64 = 1 << 20;
/// How far beyond twice the area redb's file may be said to reach: some of its regions of 4 GiB, by which it
/// grows in the end. Memory for a map of its pages is taken by what is said.
const AHEAD_BYTES: u64 = 16 << 30;

impl Label {
    /// Of a new file system on `size_bytes`.
    #[must_use]
    pub fn of_size(size_bytes: u64) -> Self {
        let share = (size_bytes / METADATA_SHARE).max(METADATA_BYTES_MIN);
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            metadata_bytes: share / BLOCK_BYTES * BLOCK_BYTES,
            metadata_len: 0,
            is_whole: false,
        }
    }

    /// First byte of the metadata's area.
    #[must_use]
    pub fn metadata_offset(&self) -> u64 {
        BLOCK_BYTES
    }

    /// First byte of the data.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.metadata_offset() + self.metadata_bytes
    }

    /// Writes it.
    pub fn write(&self, medium: &dyn Medium) -> Result<(), MediumError> {
        let mut block = serde_json::to_vec(self).expect("a label is plain data");
        assert!(block.len() <= BLOCK_BYTES as usize, "a label is short");
        block.resize(BLOCK_BYTES as usize, 0);
        medium.write(0, &block)?;
        medium.sync()
    }

    /// Looks at what `medium` holds.
    ///
    /// # Errors
    /// `Io` when the first block cannot be read.
    pub fn find(medium: &dyn Medium) -> Result<Found, MediumError> {
        let mut block = vec![0; BLOCK_BYTES as usize];
        medium.read(0, &mut block)?;
        let end = block.iter().position(|byte| *byte == 0);
        let text = &block[..end.unwrap_or(block.len())];
        if text.is_empty() {
            let size_bytes = medium.size_bytes();
            let is_held = block.iter().any(|byte| *byte != 0);
            return Ok(match medium.allocation(BLOCK_BYTES, size_bytes) {
                (false, end) if end == size_bytes && !is_held => Found::Blank,
                _ => Found::Other,
            });
        }
        let label = serde_json::from_slice::<Self>(text).ok();
        let size_bytes = medium.size_bytes();
        Ok(match label.filter(|label| label.makes_sense(size_bytes)) {
            Some(label) => Found::Files(label),
            None => Found::Other,
        })
    }

    fn makes_sense(&self, size_bytes: u64) -> bool {
        self.format == FORMAT
            && self.version == VERSION
            && self.metadata_bytes.is_multiple_of(BLOCK_BYTES)
            && self
                .metadata_bytes
                .checked_add(2 * BLOCK_BYTES)
                .is_some_and(|end| end <= size_bytes)
            && self.metadata_len <= 2 * self.metadata_bytes + AHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_whose_database_is_longer_than_one_grows_is_none() {
        let size_bytes = 16 << 20;
        let label = Label::of_size(size_bytes);
        for (metadata_len, makes_sense) in [
            (label.metadata_bytes * 2, true),
            (1 << 40, false),
            (u64::MAX, false),
        ] {
            let label = Label {
                metadata_len,
                ..label.clone()
            };
            assert_eq!(label.makes_sense(size_bytes), makes_sense, "{metadata_len}");
        }
        let metadata_bytes = u64::MAX / BLOCK_BYTES * BLOCK_BYTES;
        let label = Label {
            metadata_bytes,
            ..label
        };
        assert!(!label.makes_sense(size_bytes));
    }
}
