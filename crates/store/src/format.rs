//! The bytes of a pool: its head, the index, and the objects of its log. See `docs/formats/store.md`.
//!
//! Pure: slices in, values out. What is read may be anything; what does not verify is not there.

use std::ops::Range;

use crc_fast::CrcAlgorithm::Crc32IsoHdlc;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Bytes of the pool's head.
pub(crate) const HEAD_BYTES: u64 = 4096;
/// Bytes of an index entry: the key's hash, and the word.
pub(crate) const ENTRY_BYTES: u64 = 16;
/// Bytes of an object before its key.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Where in the object its durability flag is: a word of its own.
pub(crate) const FLAG_AT: u64 = 56;
/// Objects begin at multiples of this, and an index word counts in it.
pub(crate) const GRAIN_BYTES: u64 = 16;
/// Largest pool: 31 bits of grains.
pub(crate) const POOL_BYTES_MAX: u64 = (1 << 31) * GRAIN_BYTES;

const MAGIC: [u8; 8] = *b"cenopool";
const FORMAT: u32 = 2;
const OBJECT_MAGIC: u32 = 0x6a62_6f63;

/// CRC-32 of the parts, one after the other.
pub(crate) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(Crc32IsoHdlc);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
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
    /// Index entries, a power of two.
    pub entry_count: u64,
    /// Bytes of the pool.
    pub len: u64,
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
    /// Its checksum or its sizes are wrong.
    #[error("the pool's head is damaged")]
    Damaged,
    /// The file is shorter or longer than the pool.
    #[error("the pool was made with {told} bytes and has {found}")]
    Length {
        /// What its head says.
        told: u64,
        /// What is there.
        found: u64,
    },
}

impl Head {
    pub fn encode(self) -> [u8; 48] {
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.seed.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.entry_count.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        let sum = checksum(&[&bytes[..40]]);
        bytes[40..44].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, HeadError> {
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
        };
        if checksum(&[&bytes[..40]]) != u32_at(bytes, 40) {
            return Err(HeadError::Damaged);
        }
        if head.len != bytes.len() as u64 {
            return Err(HeadError::Length {
                told: head.len,
                found: bytes.len() as u64,
            });
        }
        let fits = head.entry_count.is_power_of_two()
            && head.entry_count <= head.len / ENTRY_BYTES
            && head.half_bytes() > 0
            && head.len <= POOL_BYTES_MAX;
        fits.then_some(head).ok_or(HeadError::Damaged)
    }

    /// Where the log begins.
    pub fn log_at(self) -> u64 {
        (HEAD_BYTES + self.entry_count * ENTRY_BYTES).next_multiple_of(4096)
    }

    /// Bytes of each of the two halves of the log.
    pub fn half_bytes(self) -> u64 {
        self.len.saturating_sub(self.log_at()) / 2 / 4096 * 4096
    }

    /// One of the two halves of the log.
    pub fn half(self, half: u8) -> Range<u64> {
        let start = self.log_at() + u64::from(half) * self.half_bytes();
        start..start + self.half_bytes()
    }

    /// Where an index entry is.
    pub fn entry_at(self, slot: u64) -> u64 {
        HEAD_BYTES + slot * ENTRY_BYTES
    }
}

/// Which half of the log is in use: two records in the head, of which the newer one that is whole counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Space {
    /// Counts cleanings. Objects of another epoch are not there.
    pub epoch: u64,
    /// The half that new objects go to.
    pub active: u8,
    /// What is in the other half is of the epoch before, and is being copied.
    pub is_cleaning: bool,
    /// No sequence below this is given again.
    pub next_sequence: u64,
}

/// Where the two records are: in sectors of their own.
const SPACE_AT: [usize; 2] = [512, 1024];
/// Bytes of a record.
pub(crate) const SPACE_BYTES: usize = 28;

impl Space {
    /// Later ones are larger.
    fn serial(self) -> u64 {
        self.epoch * 2 + u64::from(!self.is_cleaning)
    }

    /// Where it is written: not over the one before.
    pub fn at(self) -> u64 {
        SPACE_AT[(self.serial() % 2) as usize] as u64
    }

    pub fn encode(self) -> [u8; SPACE_BYTES] {
        let mut bytes = [0; SPACE_BYTES];
        bytes[..8].copy_from_slice(&self.serial().to_le_bytes());
        bytes[8..16].copy_from_slice(&u64::from(self.active).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.next_sequence.to_le_bytes());
        let sum = checksum(&[&bytes[..24]]);
        bytes[24..28].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The newer record of a pool's head.
    pub fn decode(pool: &[u8]) -> Result<Self, HeadError> {
        let records = SPACE_AT.iter().filter_map(|&at| {
            let bytes = pool.get(at..at + SPACE_BYTES)?;
            let serial = u64_at(bytes, 0);
            let space = Self {
                epoch: serial / 2,
                active: u8::from(u64_at(bytes, 8) == 1),
                is_cleaning: serial.is_multiple_of(2),
                next_sequence: u64_at(bytes, 16),
            };
            let is_sound = checksum(&[&bytes[..24]]) == u32_at(bytes, 24)
                && u64_at(bytes, 8) <= 1
                && space.epoch > 0
                && space.at() == at as u64;
            is_sound.then_some(space)
        });
        records
            .max_by_key(|space| space.serial())
            .ok_or(HeadError::Damaged)
    }

    /// Of what is in a half; `None`: nothing.
    pub fn epoch_of(self, half: u8) -> Option<u64> {
        match half == self.active {
            true => Some(self.epoch),
            false => self.is_cleaning.then(|| self.epoch - 1),
        }
    }
}

/// An index entry's word: where the newest object is, in grains; 0 is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Word(pub u64);

impl Word {
    pub fn to(object_at: u64) -> Self {
        debug_assert!(object_at.is_multiple_of(GRAIN_BYTES) && object_at < POOL_BYTES_MAX);
        Self(object_at / GRAIN_BYTES)
    }

    /// Where the newest object is.
    pub fn object_at(self) -> Option<u64> {
        let grains = self.0 & ((1 << 31) - 1);
        (self.0 >> 31 == 0 && grains != 0).then_some(grains * GRAIN_BYTES)
    }
}

/// What an object is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Value,
    /// The key was deleted.
    Deletion,
}

/// The first 64 bytes of an object but its flag, as they are durable before anything names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub key_bytes: u16,
    pub value_bytes: u32,
    /// Of key and value, as the client says.
    pub checksum: u32,
    /// Larger than that of any older version in the pool.
    pub sequence: u64,
    /// The version before, or 0.
    pub previous_at: u64,
    /// The index entry that names it.
    pub slot: u64,
}

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
        bytes[32..40].copy_from_slice(&self.slot.to_le_bytes());
        let place = [at.to_le_bytes(), epoch.to_le_bytes()].concat();
        let sum = checksum(&[&place, &bytes[..40], key]);
        bytes[40..44].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The header at a place, if there is one that is whole and of this epoch, and its object fits a pool of
    /// these bytes.
    pub fn decode(pool: &[u8], at: u64, epoch: u64) -> Option<Self> {
        let start = usize::try_from(at).ok()?;
        let bytes = pool.get(start..start.checked_add(HEADER_BYTES as usize)?)?;
        if u32_at(bytes, 0) != OBJECT_MAGIC {
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
            slot: u64_at(bytes, 32),
        };
        let is_small = usize::from(header.key_bytes) <= KEY_BYTES_MAX
            && header.value_bytes as usize <= VALUE_BYTES_MAX;
        if !is_small || at + header.object_bytes() > pool.len() as u64 {
            return None;
        }
        let key = header.key(pool, at);
        let place = [at.to_le_bytes(), epoch.to_le_bytes()].concat();
        let sum = checksum(&[&place, &bytes[..40], key]);
        (sum == u32_at(bytes, 40)).then_some(header)
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

    pub fn key(self, pool: &[u8], at: u64) -> &[u8] {
        &pool[(at + HEADER_BYTES) as usize..][..usize::from(self.key_bytes)]
    }

    pub fn value(self, pool: &[u8], at: u64) -> &[u8] {
        &pool[self.value_at(at) as usize..][..self.value_bytes as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_written_and_nothing_else_is() {
        let head = Head {
            seed: 5,
            entry_count: 16,
            len: 16384,
        };
        let mut pool = vec![0; 16384];
        pool[..48].copy_from_slice(&head.encode());
        assert_eq!(Head::decode(&pool), Ok(head));
        assert_eq!(Head::decode(&[]), Err(HeadError::Foreign));
        let found = 16383;
        let told = 16384;
        assert_eq!(
            Head::decode(&pool[..16383]),
            Err(HeadError::Length { told, found })
        );
        for at in 0..44 {
            let mut damaged = pool.clone();
            damaged[at] ^= 1;
            // Bytes 12 to 16 are filled up with zeros, and are in the checksum.
            assert!(Head::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn any_changed_byte_of_a_header_or_key_is_seen() {
        let key = b"some key";
        let header = Header {
            kind: Kind::Value,
            key_bytes: 8,
            value_bytes: 20,
            checksum: 7,
            sequence: 9,
            previous_at: 0,
            slot: 3,
        };
        let mut pool = vec![0; 256];
        pool[32..88].copy_from_slice(&header.encode(32, 1, key));
        pool[96..104].copy_from_slice(key);
        assert_eq!(Header::decode(&pool, 32, 1), Some(header));
        assert_eq!(header.object_bytes() % GRAIN_BYTES, 0);
        for at in (32..76).chain(96..104) {
            // Byte 5 is filled up, and in the checksum too.
            let mut damaged = pool.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Header::decode(&damaged, 32, 1), None, "byte {at}");
        }
        // Nor are those of another epoch, or the same bytes elsewhere.
        assert_eq!(Header::decode(&pool, 32, 2), None);
        let moved = [vec![0; 16], pool.clone()].concat();
        assert_eq!(Header::decode(&moved, 48, 1), None);
        for at in [250, 256, u64::MAX - 8] {
            assert_eq!(Header::decode(&pool, at, 1), None);
        }
    }

    #[test]
    fn the_newer_record_that_is_whole_counts() {
        let mut pool = vec![0; 4096];
        assert_eq!(Space::decode(&pool), Err(HeadError::Damaged));
        let mut space = Space {
            epoch: 1,
            active: 0,
            is_cleaning: false,
            next_sequence: 1,
        };
        let mut before = None;
        for _ in 0..6 {
            let at = space.at() as usize;
            let kept = pool.clone();
            pool[at..at + SPACE_BYTES].copy_from_slice(&space.encode());
            assert_eq!(Space::decode(&pool), Ok(space));
            for torn in 0..SPACE_BYTES {
                let mut torn_pool = kept.clone();
                torn_pool[at..at + torn].copy_from_slice(&space.encode()[..torn]);
                if let Some(before) = before {
                    assert_eq!(Space::decode(&torn_pool), Ok(before), "{torn} bytes");
                }
            }
            before = Some(space);
            space = match space.is_cleaning {
                true => Space {
                    is_cleaning: false,
                    next_sequence: 9,
                    ..space
                },
                false => Space {
                    epoch: space.epoch + 1,
                    active: 1 - space.active,
                    is_cleaning: true,
                    ..space
                },
            };
        }
    }
}
