//! What clients and servers of a store say to each other. See `docs/protocols/store.md`.
//!
//! Calls and their answers, the greeting on the control connection, and notices of values that were
//! written. Whatever comes may be anything: what is no message is refused, and nothing is allocated for
//! what it only says.

use cenote_fabric::{Generation, Rights, WindowDescriptor, WindowId};

use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::pool::Condition;
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

/// What a client asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Request<'a> {
    /// Space for a value that the client writes.
    Space {
        condition: Condition,
        value_bytes: u32,
        checksum: u32,
        key: &'a [u8],
    },
    /// A value, here; answered at once, or when it is durable.
    Put {
        condition: Condition,
        is_durable: bool,
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Where the newest version is.
    Locate {
        key: &'a [u8],
    },
    /// Answered when a version that was written is durable.
    Settle {
        shard: u16,
        sequence: u64,
    },
    Delete {
        condition: Condition,
        key: &'a [u8],
    },
    /// Answered when nothing of this client waits any more in a shard.
    Sync {
        shard: u16,
    },
    /// Keys from a place of the index on.
    List {
        shard: u16,
        slot: u64,
        prefix: &'a [u8],
    },
    /// Has a shard cleaned.
    Clean {
        shard: u16,
    },
    /// How much a shard holds and has done.
    Figures {
        shard: u16,
    },
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

/// What a server says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Space {
        sequence: u64,
        shard: u16,
        /// In the client's landing, or in the log.
        offset: u64,
    },
    Done {
        sequence: u64,
    },
    Place {
        sequence: u64,
        word: u64,
    },
    Absent,
    Synced {
        /// Versions of this client that were given up.
        lost: u64,
    },
    Keys {
        next_slot: Option<u64>,
        keys: Vec<Vec<u8>>,
    },
    Refused(Refusal),
    Figures(Figures),
}

/// What a client learns when it comes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Greeting {
    pub scheme: String,
    pub seed: u64,
    /// Its own, where values land.
    pub landing: WindowDescriptor,
    pub shards: Vec<ShardView>,
}

/// What a client may read of a shard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ShardView {
    pub entry_count: u64,
    pub index: WindowDescriptor,
    pub log: WindowDescriptor,
}

/// First byte of messages on the control connection.
pub(crate) const GREET: u8 = 1;
pub(crate) const WRITTEN: u8 = 2;
pub(crate) const ACK: u8 = 3;

impl<'a> Request<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Space {
                condition,
                value_bytes,
                checksum,
                key,
            } => {
                out.push(1);
                put_condition(out, *condition);
                out.extend(value_bytes.to_le_bytes());
                out.extend(checksum.to_le_bytes());
                out.extend(*key);
            }
            Self::Put {
                condition,
                is_durable,
                key,
                value,
            } => {
                out.push(2 + u8::from(*is_durable));
                put_condition(out, *condition);
                out.push(key.len().min(255) as u8);
                out.extend(*key);
                out.extend(*value);
            }
            Self::Locate { key } => {
                out.push(4);
                out.extend(*key);
            }
            Self::Settle { shard, sequence } => {
                out.push(5);
                out.extend(shard.to_le_bytes());
                out.extend(sequence.to_le_bytes());
            }
            Self::Delete { condition, key } => {
                out.push(6);
                put_condition(out, *condition);
                out.extend(*key);
            }
            Self::Sync { shard } => {
                out.push(7);
                out.extend(shard.to_le_bytes());
            }
            Self::List {
                shard,
                slot,
                prefix,
            } => {
                out.push(8);
                out.extend(shard.to_le_bytes());
                out.extend(slot.to_le_bytes());
                out.extend(*prefix);
            }
            Self::Clean { shard } => {
                out.push(9);
                out.extend(shard.to_le_bytes());
            }
            Self::Figures { shard } => {
                out.push(10);
                out.extend(shard.to_le_bytes());
            }
        }
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let request = match reader.byte()? {
            1 => Self::Space {
                condition: reader.condition()?,
                value_bytes: reader.u32()?,
                checksum: reader.u32()?,
                key: reader.rest(KEY_BYTES_MAX)?,
            },
            kind @ (2 | 3) => {
                let condition = reader.condition()?;
                let key_bytes = usize::from(reader.byte()?);
                Self::Put {
                    condition,
                    is_durable: kind == 3,
                    key: reader.take(key_bytes)?,
                    value: reader.rest(INLINE_BYTES_MAX)?,
                }
            }
            4 => Self::Locate {
                key: reader.rest(KEY_BYTES_MAX)?,
            },
            5 => Self::Settle {
                shard: reader.u16()?,
                sequence: reader.u64()?,
            },
            6 => Self::Delete {
                condition: reader.condition()?,
                key: reader.rest(KEY_BYTES_MAX)?,
            },
            7 => Self::Sync {
                shard: reader.u16()?,
            },
            8 => Self::List {
                shard: reader.u16()?,
                slot: reader.u64()?,
                prefix: reader.rest(KEY_BYTES_MAX)?,
            },
            9 => Self::Clean {
                shard: reader.u16()?,
            },
            10 => Self::Figures {
                shard: reader.u16()?,
            },
            _ => return Err(Malformed("an unknown request")),
        };
        reader.end().map(|()| request)
    }
}

impl Answer {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Space {
                sequence,
                shard,
                offset,
            } => {
                out.push(1);
                out.extend(sequence.to_le_bytes());
                out.extend(shard.to_le_bytes());
                out.extend(offset.to_le_bytes());
            }
            Self::Done { sequence } => {
                out.push(2);
                out.extend(sequence.to_le_bytes());
            }
            Self::Place { sequence, word } => {
                out.push(3);
                out.extend(sequence.to_le_bytes());
                out.extend(word.to_le_bytes());
            }
            Self::Absent => out.push(4),
            Self::Synced { lost } => {
                out.push(5);
                out.extend(lost.to_le_bytes());
            }
            Self::Keys { next_slot, keys } => {
                out.push(6);
                out.extend(next_slot.unwrap_or(u64::MAX).to_le_bytes());
                for key in keys {
                    out.push(key.len() as u8);
                    out.extend(key);
                }
            }
            Self::Refused(refusal) => {
                out.push(7);
                let (code, newest) = match refusal {
                    Refusal::Full => (1, None),
                    Refusal::Busy => (2, None),
                    Refusal::Condition(newest) => (3, *newest),
                    Refusal::Key => (4, None),
                    Refusal::Value => (5, None),
                    Refusal::Incomplete => (6, None),
                    Refusal::Broken => (7, None),
                    Refusal::Scheme => (8, None),
                };
                out.push(code);
                out.extend(newest.unwrap_or(0).to_le_bytes());
            }
            Self::Figures(figures) => {
                out.push(8);
                let (used, room) = figures.log_bytes;
                let done = [figures.put_bytes, figures.written_bytes];
                for number in [figures.backlog, used, room].into_iter().chain(done) {
                    out.extend(number.to_le_bytes());
                }
                out.push(u8::from(figures.is_cleaning));
            }
        }
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let answer = match reader.byte()? {
            1 => Self::Space {
                sequence: reader.u64()?,
                shard: reader.u16()?,
                offset: reader.u64()?,
            },
            2 => Self::Done {
                sequence: reader.u64()?,
            },
            3 => Self::Place {
                sequence: reader.u64()?,
                word: reader.u64()?,
            },
            4 => Self::Absent,
            5 => Self::Synced {
                lost: reader.u64()?,
            },
            6 => {
                let next_slot = Some(reader.u64()?).filter(|slot| *slot != u64::MAX);
                let mut keys = Vec::new();
                while !reader.0.is_empty() {
                    let len = usize::from(reader.byte()?);
                    keys.push(reader.take(len)?.to_vec());
                }
                Self::Keys { next_slot, keys }
            }
            7 => {
                let code = reader.byte()?;
                let newest = Some(reader.u64()?).filter(|newest| *newest != 0);
                Self::Refused(match code {
                    1 => Refusal::Full,
                    2 => Refusal::Busy,
                    3 => Refusal::Condition(newest),
                    4 => Refusal::Key,
                    5 => Refusal::Value,
                    6 => Refusal::Incomplete,
                    7 => Refusal::Broken,
                    8 => Refusal::Scheme,
                    _ => return Err(Malformed("an unknown refusal")),
                })
            }
            8 => Self::Figures(Figures {
                backlog: reader.u64()?,
                log_bytes: (reader.u64()?, reader.u64()?),
                put_bytes: reader.u64()?,
                written_bytes: reader.u64()?,
                is_cleaning: match reader.byte()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed("neither yes nor no")),
                },
            }),
            _ => return Err(Malformed("an unknown answer")),
        };
        reader.end().map(|()| answer)
    }
}

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![GREET, self.scheme.len() as u8];
        out.extend(self.scheme.as_bytes());
        out.extend(self.seed.to_le_bytes());
        put_window(&mut out, self.landing);
        for shard in &self.shards {
            out.extend(shard.entry_count.to_le_bytes());
            put_window(&mut out, shard.index);
            put_window(&mut out, shard.log);
        }
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.byte()? != GREET {
            return Err(Malformed("no greeting"));
        }
        let len = usize::from(reader.byte()?);
        let scheme = std::str::from_utf8(reader.take(len)?);
        let scheme = scheme.map_err(|_| Malformed("a scheme's name"))?.to_owned();
        let seed = reader.u64()?;
        let landing = reader.window()?;
        let mut shards = Vec::new();
        while !reader.0.is_empty() {
            if shards.len() == SHARD_COUNT_MAX {
                return Err(Malformed("too many shards"));
            }
            let entry_count = reader.u64()?;
            let (index, log) = (reader.window()?, reader.window()?);
            let is_possible = entry_count.is_power_of_two()
                && entry_count <= crate::format::ENTRY_COUNT_MAX
                && index.len_bytes >= crate::index::index_bytes(entry_count);
            if !is_possible {
                return Err(Malformed("an index of no possible size"));
            }
            shards.push(ShardView {
                entry_count,
                index,
                log,
            });
        }
        if shards.is_empty() {
            return Err(Malformed("no shards"));
        }
        Ok(Self {
            scheme,
            seed,
            landing,
            shards,
        })
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
        let mut out = vec![self.kind];
        out.extend(self.shard.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.push(u8::from(self.is_durable));
        out
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let notice = Self {
            kind: reader.byte()?,
            shard: reader.u16()?,
            sequence: reader.u64()?,
            is_durable: reader.byte()? == 1,
        };
        match notice.kind {
            WRITTEN | ACK => reader.end().map(|()| notice),
            _ => Err(Malformed("an unknown notice")),
        }
    }
}

fn put_condition(out: &mut Vec<u8>, condition: Condition) {
    let (kind, sequence) = match condition {
        Condition::Always => (0, 0),
        Condition::Absent => (1, 0),
        Condition::Sequence(sequence) => (2, sequence),
    };
    out.push(kind);
    out.extend(sequence.to_le_bytes());
}

fn put_window(out: &mut Vec<u8>, window: WindowDescriptor) {
    out.extend(window.id.0.to_le_bytes());
    out.extend(window.generation.0.to_le_bytes());
    out.extend(window.len_bytes.to_le_bytes());
    out.push(window.rights.0);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn rest(&mut self, len_max: usize) -> Result<&'a [u8], Malformed> {
        match self.0.len() <= len_max {
            true => self.take(self.0.len()),
            false => Err(Malformed("too long")),
        }
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("so many were taken"))
    }

    fn condition(&mut self) -> Result<Condition, Malformed> {
        let kind = self.byte()?;
        let sequence = self.u64()?;
        match kind {
            0 => Ok(Condition::Always),
            1 => Ok(Condition::Absent),
            2 => Ok(Condition::Sequence(sequence)),
            _ => Err(Malformed("an unknown condition")),
        }
    }

    fn window(&mut self) -> Result<WindowDescriptor, Malformed> {
        Ok(WindowDescriptor {
            id: WindowId(self.u32()?),
            generation: Generation(self.u64()?),
            len_bytes: self.u64()?,
            rights: Rights(self.byte()?),
        })
    }

    fn end(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed("bytes behind its end")),
        }
    }
}

/// Whether a value of so many bytes is possible at all.
pub(crate) fn is_possible_value(value_bytes: u32) -> bool {
    value_bytes as usize <= VALUE_BYTES_MAX
}

#[cfg(test)]
mod tests;
