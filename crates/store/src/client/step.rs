//! Steps of a command.

use crate::format::Word;

/// What comes next, or is awaited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// A call is to be made.
    Call,
    /// Its answer is awaited.
    Called,
    /// A value is to be written to a place.
    Write {
        sequence: u64,
        shard: u16,
        offset: u64,
    },
    /// It is on its way; perhaps the server has said already whether it is durable. Its memory is in use
    /// until its verbs have ended, whatever the server says.
    Written {
        sequence: u64,
        shard: u16,
        is_durable: Option<bool>,
    },
    /// It is there, and the server's word is awaited.
    Acknowledged {
        sequence: u64,
        shard: u16,
        is_durable: Option<bool>,
    },
    /// The server is to be asked to make it durable.
    Settle { sequence: u64, shard: u16 },
    /// The entry is to be read.
    Entry,
    /// It is on its way.
    EntryRead,
    /// An object is to be read; the server named it if `is_told`.
    Object { word: Word, is_told: bool },
    /// It is on its way.
    ObjectRead { word: Word, is_told: bool },
}

impl Step {
    /// After the server's word.
    pub fn acknowledged(self, is_durable: bool) -> Self {
        match self {
            Self::Written {
                sequence, shard, ..
            } => Self::Written {
                sequence,
                shard,
                is_durable: Some(is_durable),
            },
            Self::Acknowledged {
                sequence, shard, ..
            } => Self::Acknowledged {
                sequence,
                shard,
                is_durable: Some(is_durable),
            },
            other => other,
        }
    }
}
