//! An operation: the one thing by which a partition changes, the same at its owner and at every parity.
//!
//! The owner makes its bytes once; they are sent, kept until the operation is stable, and read
//! where it is applied. It carries its address and its time, so whoever applies it chooses nothing
//! and reads no clock. Layout in `docs/protocols/kv-group.md`.

use bytes::{BufMut, Bytes, BytesMut};

use super::marks::Marks;
use crate::memory::table::Entry;

/// Longest key.
const KEY_BYTES_MAX: usize = 250;
/// Bytes before the key.
const HEADER_BYTES: usize = 36;

/// What an operation does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Stores an item. The value is the change together with what is at its address.
    Put(Entry),
    /// Changes facts of an item, not its value.
    Alter {
        /// Its new expiry time.
        expiry: u32,
        /// Its new marks.
        marks: Marks,
        /// Its new cas number.
        cas: u64,
    },
    /// Removes an item.
    Remove,
    /// Everything with a smaller cas number is gone once the partition's time has come to `at`.
    Flush {
        /// Seconds since 1970.
        at: u32,
        /// That of the operation.
        cas: u64,
    },
    /// The partition's time.
    Tick {
        /// Seconds since 1970.
        now: u32,
        /// That of the operation: what a flush that is due now leaves.
        cas: u64,
    },
}

/// An operation and its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Operation {
    effect: Effect,
    key_bytes: u8,
    bytes: Bytes,
}

/// Bytes that are no operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no operation: {0}")]
pub struct NoOperation(&'static str);

const PUT: u8 = 1;
const ALTER: u8 = 2;
const REMOVE: u8 = 3;
const FLUSH: u8 = 4;
const TICK: u8 = 5;

impl Operation {
    /// Makes one; `change` appends the change of a `Put`'s range, as many bytes as its value has.
    ///
    /// # Panics
    /// If the key is too long, or the change has another length than the value.
    pub fn new(effect: Effect, key: &[u8], change: impl FnOnce(&mut BytesMut)) -> Self {
        let key_bytes = u8::try_from(key.len()).expect("keys have at most 250 bytes");
        let value_bytes = match effect {
            Effect::Put(entry) => entry.value_bytes as usize,
            _ => 0,
        };
        let mut out = BytesMut::with_capacity(HEADER_BYTES + key.len() + value_bytes);
        out.extend_from_slice(&header_of(effect, key_bytes));
        out.extend_from_slice(key);
        change(&mut out);
        assert_eq!(
            out.len(),
            HEADER_BYTES + key.len() + value_bytes,
            "a change as long as its value"
        );
        Self {
            effect,
            key_bytes,
            bytes: out.freeze(),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// Where the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, NoOperation> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(NoOperation("too short"))?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let marks = Marks::from_bits(header[1]).ok_or(NoOperation("unknown marks"))?;
        let key_bytes = header[2];
        let (client_flags, expiry, value_bytes) = (word(4), word(8), word(12));
        let (cas, address) = (long(16), long(24));
        let effect = match header[0] {
            PUT => Effect::Put(Entry {
                client_flags,
                expiry,
                cas,
                address,
                value_bytes,
                marks: marks.bits(),
                ..Entry::default()
            }),
            ALTER => Effect::Alter { expiry, marks, cas },
            REMOVE => Effect::Remove,
            FLUSH => Effect::Flush { at: expiry, cas },
            TICK => Effect::Tick { now: expiry, cas },
            _ => return Err(NoOperation("unknown kind")),
        };
        let has_key = matches!(
            effect,
            Effect::Put(_) | Effect::Alter { .. } | Effect::Remove
        );
        if has_key == (key_bytes == 0) || usize::from(key_bytes) > KEY_BYTES_MAX {
            return Err(NoOperation("length of the key"));
        }
        let change = match effect {
            Effect::Put(entry) => entry.value_bytes as usize,
            _ => 0,
        };
        if bytes.len() != HEADER_BYTES + usize::from(key_bytes) + change {
            return Err(NoOperation("length of the change"));
        }
        if header_of(effect, key_bytes) != *header {
            return Err(NoOperation("a field that its kind does not have"));
        }
        Ok(Self {
            effect,
            key_bytes,
            bytes,
        })
    }

    /// What it does.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// The item that it is about; empty where it is about all.
    pub fn key(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..][..usize::from(self.key_bytes)]
    }

    /// XOR of the value and what was at its address before. Empty but for a `Put`.
    pub fn change(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES + usize::from(self.key_bytes)..]
    }

    /// All of it.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// What stands before the key. Fields that the kind does not have are 0.
fn header_of(effect: Effect, key_bytes: u8) -> [u8; HEADER_BYTES] {
    let (kind, marks, client_flags, expiry, value, cas, address) = match effect {
        Effect::Put(entry) => (
            PUT,
            entry.marks,
            entry.client_flags,
            entry.expiry,
            entry.value_bytes,
            entry.cas,
            entry.address,
        ),
        Effect::Alter { expiry, marks, cas } => (ALTER, marks.bits(), 0, expiry, 0, cas, 0),
        Effect::Remove => (REMOVE, 0, 0, 0, 0, 0, 0),
        Effect::Flush { at, cas } => (FLUSH, 0, 0, at, 0, cas, 0),
        Effect::Tick { now, cas } => (TICK, 0, 0, now, 0, cas, 0),
    };
    let mut header = [0; HEADER_BYTES];
    let mut out = &mut header[..];
    out.put_u8(kind);
    out.put_u8(marks);
    out.put_u8(key_bytes);
    out.put_u8(0);
    out.put_u32_le(client_flags);
    out.put_u32_le(expiry);
    out.put_u32_le(value);
    out.put_u64_le(cas);
    out.put_u64_le(address);
    // Four bytes are zero.
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields of each kind, by their first byte: marks, client's flags, expiry, cas number, place. The
    /// lengths of key and value are held against the bytes that there are.
    #[test]
    fn an_operation_with_a_field_that_its_kind_does_not_have_is_refused() {
        let (marks, cas) = (Marks::STALE, 18);
        let entry = Entry {
            client_flags: 2,
            expiry: 17,
            cas,
            address: 64,
            marks: marks.bits(),
            ..Entry::default()
        };
        let alter = Effect::Alter {
            expiry: 17,
            marks,
            cas,
        };
        let key = &b"key"[..];
        let kinds: [(Effect, &[u8], &[usize]); 5] = [
            (Effect::Put(entry), key, &[1, 4, 8, 16, 24]),
            (alter, key, &[1, 8, 16]),
            (Effect::Remove, key, &[]),
            (Effect::Flush { at: 17, cas }, b"", &[8, 16]),
            (Effect::Tick { now: 17, cas }, b"", &[8, 16]),
        ];
        for (effect, key, fields) in kinds {
            let operation = Operation::new(effect, key, |_| {});
            assert_eq!(
                Operation::decode(operation.bytes().clone()),
                Ok(operation.clone())
            );
            for at in [1, 3, 4, 8, 12, 16, 24, 32, 35] {
                let mut bytes = operation.bytes().to_vec();
                bytes[at] ^= 1;
                let is_taken = Operation::decode(bytes.into()).is_ok();
                assert_eq!(is_taken, fields.contains(&at), "{effect:?}, byte {at}");
            }
        }
    }
}
