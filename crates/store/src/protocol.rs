//! What clients and servers of a store say to each other. See `docs/protocols/store.md`.
//!
//! Calls and their answers, the greeting on the control connection, and notices of values that were
//! written. Whatever comes may be anything: what is no message is refused, and nothing is allocated for
//! what it only says.

use cenote_fabric::WindowDescriptor;
use cenote_wire::{
    Bytes, Field, Layout, ListToEnd, Reader, Rest, Tagged, Taken, Text, Writer, messages,
};

use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::pool::{Condition, StoreError};
use crate::server::Figures;

/// Longest value that travels in a call.
pub const INLINE_BYTES_MAX: usize = 32 * 1024;
/// Most shards of a store.
pub const SHARD_COUNT_MAX: usize = 64;
/// Keys of one answer take about so many bytes.
pub(crate) const LIST_BYTES: usize = 16 * 1024;

/// Not a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a message of a store: {0}")]
pub struct Malformed(pub(crate) &'static str);

impl From<cenote_wire::Malformed> for Malformed {
    fn from(cenote_wire::Malformed(wrong): cenote_wire::Malformed) -> Self {
        Self(wrong)
    }
}

messages! {
    /// What a client asks for.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) enum Request<'a> | "an unknown request" {
        /// Space for a value that the client writes.
        1 => Space {
            condition: Condition,
            value_bytes: u32,
            checksum: u32,
            key: &'a [u8] as Rest<KEY_BYTES_MAX>,
        },
        /// A value, here; answered at once, or when it is durable: then its number is 3.
        2 => Put {
            condition: Condition,
            is_durable: bool as InTheNumber,
            key: &'a [u8] as Bytes<u8, 255>,
            value: &'a [u8] as Rest<INLINE_BYTES_MAX>,
        },
        /// Where the newest version is.
        4 => Locate {
            key: &'a [u8] as Rest<KEY_BYTES_MAX>,
        },
        /// Answered when a version that was written is durable.
        5 => Settle {
            shard: u16,
            sequence: u64,
        },
        6 => Delete {
            condition: Condition,
            key: &'a [u8] as Rest<KEY_BYTES_MAX>,
        },
        /// Answered when nothing of this client waits any more in a shard.
        7 => Sync {
            shard: u16,
        },
        /// Keys from a place of the index on.
        8 => List {
            shard: u16,
            slot: u64,
            prefix: &'a [u8] as Rest<KEY_BYTES_MAX>,
        },
        /// Has a shard cleaned.
        9 => Clean {
            shard: u16,
        },
        /// How much a shard holds and has done.
        10 => Figures {
            shard: u16,
        },
        /// The newest version's value, if it is short and durable; otherwise as for `Locate`.
        11 => Get {
            key: &'a [u8] as Rest<KEY_BYTES_MAX>,
        },
    }

    /// What a server says.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub(crate) enum Answer | "an unknown answer" {
        1 => Space {
            sequence: u64,
            shard: u16,
            /// In the client's landing, or in the log.
            offset: u64,
        },
        2 => Done {
            sequence: u64,
        },
        3 => Place {
            sequence: u64,
            word: u64,
        },
        4 => Absent,
        5 => Synced {
            /// Versions of this client that were given up, since it is in the books.
            lost: u64,
        },
        6 => Keys {
            next_slot: Option<u64> as OrEnd,
            keys: Vec<Vec<u8>> as ListToEnd<0, { usize::MAX }, Bytes<u8, 255>>,
        },
        7 => Refused(Refusal),
        8 => Figures(Figures),
        9 => Value {
            sequence: u64,
            value: Vec<u8> as Rest<INLINE_BYTES_MAX>,
        },
    }

    for Figures { backlog, log_bytes, put_bytes, written_bytes, is_cleaning }

    /// What a client learns when it comes.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub(crate) struct Greeting {
        pub scheme: String as Text<u8, 255>,
        pub seed: u64,
        /// Its own, where values land.
        pub landing: WindowDescriptor,
        pub shards: Vec<ShardView> as ListToEnd<1, SHARD_COUNT_MAX> | "no shards, or too many",
    }

    /// What a client may read of a shard.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) struct ShardView checked by ShardView::check {
        pub entry_count: u64,
        pub index: WindowDescriptor,
        pub log: WindowDescriptor,
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The store has no room for it.
    Full,
    /// It has too much to do: later.
    Busy,
    /// The key has another version, if any.
    Condition(Option<u64>),
    /// Keys have 1 to 250 bytes.
    Key,
    /// Values have 1 MiB at most, and fit into the client's landing.
    Value,
    /// The value is not what was announced.
    Incomplete,
    /// The medium failed.
    Broken,
    /// Not for this store's scheme.
    Scheme,
}

/// What a client is told of an error.
impl From<&StoreError> for Refusal {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Key(_) => Self::Key,
            StoreError::Value(_) => Self::Value,
            StoreError::Full => Self::Full,
            StoreError::Backlog(_) => Self::Busy,
            StoreError::Condition(newest) => Self::Condition(*newest),
            StoreError::Incomplete => Self::Incomplete,
            _ => Self::Broken,
        }
    }
}

/// First byte of messages on the control connection.
pub(crate) const GREET: u8 = 1;
pub(crate) const WRITTEN: u8 = 2;
pub(crate) const ACK: u8 = 3;

/// The numbers of a PUT.
const PUT: u8 = 2;
const DURABLE_PUT: u8 = 3;

impl<'a> Request<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        Writer::lenient(out).put(self);
        if let Self::Put {
            is_durable: true, ..
        } = self
        {
            out[0] = DURABLE_PUT;
        }
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        let request = match input.take()? {
            DURABLE_PUT => {
                let mut put = Self::take_tagged(PUT, &mut input)?;
                if let Self::Put { is_durable, .. } = &mut put {
                    *is_durable = true;
                }
                put
            }
            number => Self::take_tagged(number, &mut input)?,
        };
        input.end()?;
        Ok(request)
    }
}

impl Answer {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        Writer::lenient(out).put(self);
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(Reader::new(bytes).whole()?)
    }
}

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![GREET];
        Writer::lenient(&mut out).put(self);
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        match bytes {
            [GREET, greeting @ ..] => Ok(Reader::new(greeting).whole()?),
            _ => Err(Malformed("no greeting")),
        }
    }
}

impl ShardView {
    fn check(&self) -> Taken<()> {
        let is_possible = self.entry_count.is_power_of_two()
            && self.entry_count <= crate::format::ENTRY_COUNT_MAX
            && self.index.len_bytes >= crate::index::index_bytes(self.entry_count);
        match is_possible {
            true => Ok(()),
            false => Err(cenote_wire::Malformed("an index of no possible size")),
        }
    }
}

/// A message about a version on a control connection: that its value was written, or what became of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Notice {
    pub kind: u8,
    pub shard: u16,
    pub sequence: u64,
    /// Of an acknowledgement: whether it is durable.
    pub is_durable: bool,
}

impl Notice {
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12);
        let mut writer = Writer::new(&mut out);
        writer.put(&(self.kind, self.shard, self.sequence));
        writer.put(&self.is_durable);
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let ((kind, shard, sequence), is_durable) = Reader::new(bytes).whole()?;
        match (kind, is_durable) {
            (WRITTEN, false) | (ACK, _) => Ok(Self {
                kind,
                shard,
                sequence,
                is_durable,
            }),
            _ => Err(Malformed("an unknown notice")),
        }
    }
}

/// A truth that the request's number says.
struct InTheNumber;

impl<'a> Layout<'a, bool> for InTheNumber {
    fn put(_: &bool, _: &mut Writer<'_>) {}

    fn take(_: &mut Reader<'a>) -> Taken<bool> {
        Ok(false)
    }
}

/// A place of the index; all ones are its end.
struct OrEnd;

impl<'a> Layout<'a, Option<u64>> for OrEnd {
    fn put(value: &Option<u64>, out: &mut Writer<'_>) {
        out.put(&value.unwrap_or(u64::MAX));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Option<u64>> {
        Ok(Some(input.take()?).filter(|slot| *slot != u64::MAX))
    }
}

/// Its number, and the version that the key has, if that is why; 0: none.
impl<'a> Field<'a> for Refusal {
    fn put(&self, out: &mut Writer<'_>) {
        let number: u8 = match self {
            Self::Full => 1,
            Self::Busy => 2,
            Self::Condition(newest) => return out.put(&(3_u8, newest.unwrap_or(0))),
            Self::Key => 4,
            Self::Value => 5,
            Self::Incomplete => 6,
            Self::Broken => 7,
            Self::Scheme => 8,
        };
        out.put(&(number, 0_u64));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        let (number, newest): (u8, u64) = input.take()?;
        match number {
            1 => Ok(Self::Full),
            2 => Ok(Self::Busy),
            3 => Ok(Self::Condition(Some(newest).filter(|newest| *newest != 0))),
            4 => Ok(Self::Key),
            5 => Ok(Self::Value),
            6 => Ok(Self::Incomplete),
            7 => Ok(Self::Broken),
            8 => Ok(Self::Scheme),
            _ => Err(cenote_wire::Malformed("an unknown refusal")),
        }
    }
}

/// Its number, and the version that the key is to have; 0 where it is to have no certain one.
impl<'a> Field<'a> for Condition {
    fn put(&self, out: &mut Writer<'_>) {
        out.put(&match self {
            Self::Always => (0_u8, 0),
            Self::Absent => (1, 0),
            Self::Sequence(sequence) => (2, *sequence),
        });
    }

    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        match input.take::<(u8, u64)>()? {
            (0, 0) => Ok(Self::Always),
            (1, 0) => Ok(Self::Absent),
            (2, sequence) => Ok(Self::Sequence(sequence)),
            _ => Err(cenote_wire::Malformed("an unknown condition")),
        }
    }
}

/// Whether a value of so many bytes is possible at all.
pub(crate) fn is_possible_value(value_bytes: u32) -> bool {
    value_bytes as usize <= VALUE_BYTES_MAX
}

#[cfg(test)]
mod tests;
