//! The bytes of a pool: its head and the objects of its log, and the words of the index in memory.
//! See `docs/formats/store.md`.
//!
//! Pure: slices in, values out. What is read may be anything; what does not verify is not there.

mod note;

use std::ops::Range;

use crc_fast::CrcAlgorithm::Crc32IsoHdlc;

use crate::injected_faults::{InjectedFault, is_injected};

pub use note::Secret;
pub(crate) use note::{KEYED_AT, Keyed, NOTED_BYTES, Notes};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Bytes of the pool's head.
pub(crate) const HEAD_BYTES: u64 = 4096;
/// Most places of the index.
pub const ENTRY_COUNT_MAX: u64 = 1 << 30;
/// Sequences are below this: a flag has 48 bits for its version's.
pub(crate) const SEQUENCE_END: u64 = 1 << 48;
/// Sequences that may be given out before the medium hears of it.
pub(crate) const LEASE: u64 = 1 << 20;
/// Cleanings and records are counted up to this, which no pool lives to see.
const COUNT_END: u64 = 1 << 62;
/// Bytes of an object before its key.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Where in the object its durability flag is: a word of its own.
pub(crate) const FLAG_AT: u64 = 56;
/// Where in the object its sequence is.
pub(crate) const SEQUENCE_AT: u64 = 16;

/// The flag of a durable version. Each has one of its own: what an earlier object left at the same place is
/// not the flag of this one.
pub(crate) fn flag(sequence: u64, epoch: u64) -> u64 {
    match is_injected(InjectedFault::AnyFlagCounts) {
        true => 1,
        false => (sequence << 16) | ((epoch & 0x7fff) << 1) | 1,
    }
}

/// Objects begin at multiples of this, and index words count in it.
pub(crate) const GRAIN_BYTES: u64 = 16;
/// Bytes of the smallest object: a key of a few bytes, and no value.
const OBJECT_BYTES_MIN: u64 = (HEADER_BYTES + 8).next_multiple_of(GRAIN_BYTES);
/// Largest pool: 31 bits of grains.
pub const POOL_BYTES_MAX: u64 = (1 << 31) * GRAIN_BYTES;

const MAGIC: [u8; 8] = *b"cenopool";
const FORMAT: u32 = 3;
/// What an object begins with.
pub(crate) const OBJECT_MAGIC: u32 = 0x6a62_6f63;

/// CRC-32 of the parts, one after the other.
pub(crate) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(Crc32IsoHdlc);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The first page: what the pool is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Head {
    /// Of hashes of keys.
    pub seed: u64,
    /// Places of the index, a power of two.
    pub entry_count: u64,
    /// Bytes of the pool.
    pub len: u64,
    /// Which one of its store it is, and of how many; 0 of 0: nobody said so.
    pub shard: (u16, u16),
}

/// Why a head is none.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HeadError {
    /// Something else, or nothing.
    #[error("this is no pool")]
    Foreign,
    /// Another version.
    #[error("this pool has format {0}; this program knows format {FORMAT}")]
    Format(u32),
    /// Its checksum is wrong, or what it says is not possible.
    #[error("the pool's head is damaged: {0}")]
    Damaged(
        /// The field, and what is wrong with it.
        &'static str,
    ),
    /// A number of it is beyond what a pool may have.
    #[error("the pool's head is damaged: {field} is {told}, and may be {most} at most")]
    Beyond {
        /// The field.
        field: &'static str,
        /// What it says.
        told: u64,
        /// What is possible.
        most: u64,
    },
    /// The file is shorter or longer than the pool.
    #[error("the pool was made with {told} bytes and has {found}")]
    Length {
        /// What its head says.
        told: u64,
        /// What is there.
        found: u64,
    },
}

fn at_most(field: &'static str, told: u64, most: u64) -> Result<(), HeadError> {
    match told <= most {
        true => Ok(()),
        false => Err(HeadError::Beyond { field, told, most }),
    }
}

impl Head {
    pub fn encode(self) -> [u8; 48] {
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.shard.0.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.shard.1.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.seed.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.entry_count.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        let sum = checksum(&[&bytes[..40]]);
        bytes[40..44].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Of the first [`HEAD_BYTES`] of a pool that has `len` bytes.
    pub fn decode(bytes: &[u8], len: u64) -> Result<Self, HeadError> {
        if bytes.len() < HEAD_BYTES as usize || bytes[..8] != MAGIC {
            return Err(HeadError::Foreign);
        }
        let format = u32_at(bytes, 8);
        if format != FORMAT {
            return Err(HeadError::Format(format));
        }
        let head = Self {
            seed: u64_at(bytes, 16),
            entry_count: u64_at(bytes, 24),
            len: u64_at(bytes, 32),
            shard: (u16_at(bytes, 12), u16_at(bytes, 14)),
        };
        if checksum(&[&bytes[..40]]) != u32_at(bytes, 40) {
            return Err(HeadError::Damaged("its checksum"));
        }
        if head.len != len {
            return Err(HeadError::Length {
                told: head.len,
                found: len,
            });
        }
        head.check()?;
        Ok(head)
    }

    /// Whether a pool may be so.
    pub fn check(self) -> Result<(), HeadError> {
        at_most("bytes of the pool", self.len, POOL_BYTES_MAX)?;
        at_most("places of the index", self.entry_count, ENTRY_COUNT_MAX)?;
        if !self.entry_count.is_power_of_two() {
            return Err(HeadError::Damaged("places of the index: no power of two"));
        }
        if self.half_bytes() == 0 {
            return Err(HeadError::Damaged("bytes of the pool: no room for a log"));
        }
        Ok(())
    }

    /// Places that the index is made with: no more than twice the keys that the log can hold, whatever
    /// the head says. The index is in memory, and who wrote the head may not choose how much that is.
    pub fn useful_entry_count(self) -> u64 {
        let keys_max = 2 * self.half_bytes() / OBJECT_BYTES_MIN;
        self.entry_count
            .min((2 * (keys_max + 1)).next_power_of_two())
    }

    /// Bytes of each of the two halves of the log.
    pub fn half_bytes(self) -> u64 {
        self.len.saturating_sub(HEAD_BYTES) / 2 / 4096 * 4096
    }

    /// One of the two halves of the log.
    pub fn half(self, half: u8) -> Range<u64> {
        let start = HEAD_BYTES + u64::from(half) * self.half_bytes();
        start..start + self.half_bytes()
    }

    /// Which half a place is in.
    pub fn half_of(self, at: u64) -> Option<u8> {
        [0, 1]
            .into_iter()
            .find(|half| self.half(*half).contains(&at))
    }
}

/// Which half of the log is in use, and what was given out: two records in the head, of which the newer
/// one that is whole counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Space {
    /// Counts records.
    pub serial: u64,
    /// Counts cleanings. Objects of another epoch are not there.
    pub epoch: u64,
    /// The half that new objects go to.
    pub active: u8,
    /// What is in the other half is of the epoch before, and is being copied.
    pub is_cleaning: bool,
    /// Counts openings: objects of an earlier one do not follow those of a later one.
    pub incarnation: u32,
    /// No sequence from here on was ever given.
    pub ceiling: u64,
    /// Headers are told from bytes of values by a secret: see [`Keyed`].
    pub is_keyed: bool,
    /// How far the half in use goes.
    pub reach: Reach,
    /// The same of the half that is being copied, when that began.
    pub left: Left,
}

/// How far the durable headers of a half go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Reach {
    /// All headers before this place were durable when the record was written; 0: not known.
    pub to: u64,
    /// A crash tore some stretches before that place: the headers in them were never durable.
    pub has_torn: bool,
    /// The log ends at that place: the pool was closed in order.
    pub is_end: bool,
}

/// What a cleaning knew of the half that it copies when it began.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Left {
    pub reach: Reach,
    /// The life that began it, and wrote what is behind that place.
    pub incarnation: u32,
}

impl Left {
    /// Of a record's bytes but for their own checksum: with that it would be the same for all.
    fn sum(bytes: &[u8]) -> u32 {
        checksum(&[&bytes[..36], &bytes[LEFT_AT..48]])
    }

    /// Of a record's bytes.
    fn decode(bytes: &[u8]) -> Self {
        if Self::sum(bytes) != u32_at(bytes, 48) {
            return Self::default();
        }
        let grains = u32_at(bytes, LEFT_AT);
        let reach = Reach {
            to: u64::from(grains & !HAS_TORN) * GRAIN_BYTES,
            has_torn: grains & HAS_TORN != 0,
            is_end: false,
        };
        Self {
            reach,
            incarnation: u32_at(bytes, 44),
        }
    }
}

/// Where the two records are: in sectors of their own.
const SPACE_AT: [usize; 2] = [512, 1024];
/// Bytes of a record.
pub(crate) const SPACE_BYTES: usize = LEFT_AT + 12;
/// Where in it the half that is being copied is. It has a checksum of its own: earlier versions of
/// the program write what is before it alone.
const LEFT_AT: usize = 40;
/// Beside a place / 16, which has 31 bits: a crash left torn stretches before it.
const HAS_TORN: u32 = 1 << 31;

impl Space {
    /// The record that follows this one; it is not written over it.
    pub fn next(self) -> Self {
        Self {
            serial: self.serial + 1,
            reach: Reach {
                is_end: false,
                ..self.reach
            },
            ..self
        }
    }

    /// The same of a log that has durable headers up to `to`.
    pub fn reaching(self, to: u64) -> Self {
        let reach = Reach { to, ..self.reach };
        Self { reach, ..self }
    }

    /// The same, with sequences from `next` on that may be given.
    pub fn leased(self, next: u64) -> Self {
        let ceiling = next.saturating_add(LEASE).min(SEQUENCE_END);
        Self { ceiling, ..self }
    }

    /// Whether another cleaning can be counted.
    pub fn has_epochs(self) -> bool {
        self.epoch < COUNT_END
    }

    /// Where it is written.
    pub fn at(self) -> u64 {
        SPACE_AT[(self.serial % 2) as usize] as u64
    }

    pub fn encode(self) -> [u8; SPACE_BYTES] {
        let mut bytes = [0; SPACE_BYTES];
        bytes[..8].copy_from_slice(&self.serial.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ceiling.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[28] = self.active;
        bytes[29] = u8::from(self.is_cleaning);
        bytes[30] = u8::from(self.reach.has_torn) | u8::from(self.reach.is_end) << 1;
        let reach_grains = (self.reach.to / GRAIN_BYTES) as u32;
        bytes[31] = u8::from(self.is_keyed);
        bytes[32..36].copy_from_slice(&reach_grains.to_le_bytes());
        let sum = checksum(&[&bytes[..36]]);
        bytes[36..40].copy_from_slice(&sum.to_le_bytes());
        let Left { reach, incarnation } = self.left;
        let torn_bit = if reach.has_torn { HAS_TORN } else { 0 };
        let left_grains = (reach.to / GRAIN_BYTES) as u32 | torn_bit;
        bytes[40..44].copy_from_slice(&left_grains.to_le_bytes());
        bytes[44..48].copy_from_slice(&incarnation.to_le_bytes());
        let sum = Left::sum(&bytes);
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The newer record of a pool's head.
    pub fn decode(head: &[u8]) -> Result<Self, HeadError> {
        let records = SPACE_AT.iter().filter_map(|&at| {
            let bytes = head.get(at..at + SPACE_BYTES)?;
            let space = Self {
                serial: u64_at(bytes, 0),
                epoch: u64_at(bytes, 8),
                ceiling: u64_at(bytes, 16),
                incarnation: u32_at(bytes, 24),
                active: bytes[28],
                is_cleaning: bytes[29] == 1,
                is_keyed: bytes[31] & 1 != 0,
                reach: Reach {
                    to: u64::from(u32_at(bytes, 32)) * GRAIN_BYTES,
                    has_torn: bytes[30] & 1 != 0,
                    is_end: bytes[30] & 2 != 0,
                },
                left: Left::decode(bytes),
            };
            let is_sound = checksum(&[&bytes[..36]]) == u32_at(bytes, 36)
                && bytes[28] <= 1
                && bytes[29] <= 1
                && space.epoch > 0
                && space.at() == at as u64;
            is_sound.then_some(space)
        });
        let newest = records.max_by_key(|space| space.serial);
        let newest = newest.ok_or(HeadError::Damaged("neither of its two records is whole"))?;
        // Not the older one instead: what it says may have been overwritten.
        at_most("serial of its record", newest.serial, COUNT_END)?;
        at_most("epoch of its record", newest.epoch, COUNT_END)?;
        at_most("ceiling of its record", newest.ceiling, SEQUENCE_END)?;
        Ok(newest)
    }

    /// Of what is in a half; `None`: nothing.
    pub fn epoch_of(self, half: u8) -> Option<u64> {
        match half == self.active {
            true => Some(self.epoch),
            false => self.is_cleaning.then(|| self.epoch - 1),
        }
    }

    /// Objects of earlier epochs may be overwritten at any time.
    pub fn oldest_epoch(self) -> u64 {
        self.epoch - u64::from(self.is_cleaning)
    }
}

/// The word of an index entry: where the newest object is, how long it is, and of which epoch. 0 is none.
///
/// It is changed in one store. A reader that has it reads the whole object at once, and can tell whether
/// what it read is that object: the epoch is in the object's checksum.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Word(pub u64);

impl Word {
    pub fn to(at: u64, object_bytes: u64, epoch: u64) -> Self {
        debug_assert!(at.is_multiple_of(GRAIN_BYTES) && at < POOL_BYTES_MAX);
        let grains = object_bytes / GRAIN_BYTES;
        debug_assert!(grains < 1 << 17, "an object of {object_bytes} bytes");
        Self((at / GRAIN_BYTES) | (grains << 31) | ((epoch & 0xffff) << 48))
    }

    /// Where the newest object is.
    pub fn object_at(self) -> Option<u64> {
        let grains = self.0 & ((1 << 31) - 1);
        (grains != 0).then_some(grains * GRAIN_BYTES)
    }

    /// Its bytes.
    pub fn object_bytes(self) -> u64 {
        ((self.0 >> 31) & ((1 << 17) - 1)) * GRAIN_BYTES
    }

    /// The epoch that it was written in, told by its low bits: one that is near `now`.
    pub fn epoch(self, now: u64) -> u64 {
        let age = now.wrapping_sub(self.0 >> 48) & 0xffff;
        now.saturating_sub(age)
    }
}

/// What an object is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Value,
    /// The key was deleted.
    Deletion,
}

/// The first 64 bytes of an object but its flag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub key_bytes: u16,
    pub value_bytes: u32,
    /// Of key and value, as the client says.
    pub checksum: u32,
    /// Larger than that of any older version of the key.
    pub sequence: u64,
    /// The version before, or 0.
    pub previous_at: u64,
    /// Of the key: the way back to its index entry.
    pub hash: u64,
    /// The pool's, when it was written.
    pub incarnation: u32,
}

/// Bytes of a header that its checksum covers, besides the key.
const SUMMED_BYTES: usize = 44;

impl Header {
    /// Encodes all but the flag; `at` is where the object is, `epoch` that of its half.
    pub fn encode(self, at: u64, epoch: u64, key: &[u8]) -> [u8; FLAG_AT as usize] {
        let mut bytes = [0; FLAG_AT as usize];
        bytes[..4].copy_from_slice(&OBJECT_MAGIC.to_le_bytes());
        bytes[4] = match self.kind {
            Kind::Value => 1,
            Kind::Deletion => 2,
        };
        bytes[6..8].copy_from_slice(&self.key_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous_at.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.hash.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.incarnation.to_le_bytes());
        let sum = Self::sum(&bytes, at, epoch, key);
        bytes[44..48].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn sum(bytes: &[u8], at: u64, epoch: u64, key: &[u8]) -> u32 {
        checksum(&[
            &at.to_le_bytes(),
            &epoch.to_le_bytes(),
            &bytes[..SUMMED_BYTES],
            key,
        ])
    }

    /// The header in the first bytes of an object with its key, if it is one that is whole, of this place
    /// and of this epoch. `bytes` may be more, or too few.
    pub fn decode(bytes: &[u8], at: u64, epoch: u64) -> Option<Self> {
        let header = Self::peek(bytes)?;
        let key = bytes
            .get(HEADER_BYTES as usize..)?
            .get(..usize::from(header.key_bytes))?;
        let sum = Self::sum(bytes, at, epoch, key);
        (sum == u32_at(bytes, SUMMED_BYTES)).then_some(header)
    }

    /// What the first bytes say, unverified: within limits, and no more.
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES as usize || u32_at(bytes, 0) != OBJECT_MAGIC {
            return None;
        }
        let header = Self {
            kind: match bytes[4] {
                1 => Kind::Value,
                2 => Kind::Deletion,
                _ => return None,
            },
            key_bytes: u16::from_le_bytes([bytes[6], bytes[7]]),
            value_bytes: u32_at(bytes, 8),
            checksum: u32_at(bytes, 12),
            sequence: u64_at(bytes, 16),
            previous_at: u64_at(bytes, 24),
            hash: u64_at(bytes, 32),
            incarnation: u32_at(bytes, 40),
        };
        let is_small = (1..=KEY_BYTES_MAX).contains(&usize::from(header.key_bytes))
            && header.value_bytes as usize <= VALUE_BYTES_MAX
            && header.sequence < SEQUENCE_END;
        is_small.then_some(header)
    }

    /// Bytes of the object, with what fills it up.
    pub fn object_bytes(self) -> u64 {
        let value_end = self.value_at(0) + u64::from(self.value_bytes);
        value_end.next_multiple_of(GRAIN_BYTES)
    }

    /// Where the value of the object at `at` begins.
    pub fn value_at(self, at: u64) -> u64 {
        at + HEADER_BYTES + u64::from(self.key_bytes).next_multiple_of(8)
    }
}

/// Bytes that hold any header with its key.
pub(crate) const KEYED_BYTES_MAX: usize = HEADER_BYTES as usize + KEY_BYTES_MAX;

#[cfg(test)]
mod tests;
