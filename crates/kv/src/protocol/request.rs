//! A request, as the store is asked it. Keys and values lie in the caller's buffer.

use super::binary::Message;
use super::exptime::Exptime;
use super::key::MetaKey;
use super::meta::{MetaArithmetic, MetaDelete, MetaGet, MetaSet};
use super::words::Words;

/// One whole request.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Retrieval<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// What to delete.
        key: &'a [u8],
        /// Nothing is answered.
        noreply: bool,
    },
    /// `incr`, `decr`.
    Arithmetic {
        /// What to count.
        key: &'a [u8],
        /// Up or down.
        direction: Direction,
        /// By how much.
        delta: u64,
        /// Nothing is answered.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// What to give a new expiry time.
        key: &'a [u8],
        /// Which.
        exptime: Exptime,
        /// Nothing is answered.
        noreply: bool,
    },
    /// `flush_all`: all that is stored before [`Exptime::flush_at`] is gone then.
    FlushAll {
        /// When; 0 where nothing is said.
        exptime: Exptime,
        /// Nothing is answered.
        noreply: bool,
    },
    /// `verbosity`.
    Verbosity {
        /// How much is to be logged.
        level: u32,
        /// Nothing is answered.
        noreply: bool,
    },
    /// `stats` and the words after it.
    Stats(Words<'a>),
    /// `lru_crawler` and the words after it.
    Crawler(Words<'a>),
    /// `cache_memlimit`, `slabs`, `lru` or `debugtime`, and the words after it.
    Tune {
        /// Which.
        tuning: Tuning,
        /// What follows it.
        words: Words<'a>,
        /// Nothing is answered.
        noreply: bool,
    },
    /// `watch` and the words after it.
    Watch(Words<'a>),
    /// `version`.
    Version,
    /// `quit`: what has been answered is sent, then the connection is closed.
    Quit,
    /// `mg`.
    MetaGet(MetaGet<'a>),
    /// `ms`.
    MetaSet(MetaSet<'a>),
    /// `md`.
    MetaDelete(MetaDelete<'a>),
    /// `ma`.
    MetaArithmetic(MetaArithmetic<'a>),
    /// `me`.
    MetaDebug(MetaKey<'a>),
    /// `mn`: what has been answered is sent at once.
    MetaNoop,
    /// A message of the binary protocol about one item.
    Binary(Message<'a>),
}

impl Request<'_> {
    /// Whether it is about one item and nothing is answered, not even an error: clients read no reply.
    pub fn is_noreply(&self) -> bool {
        match self {
            Self::Store(store) => store.noreply,
            Self::Delete { noreply, .. }
            | Self::Arithmetic { noreply, .. }
            | Self::Touch { noreply, .. } => *noreply,
            _ => false,
        }
    }
}

/// Items to show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retrieval<'a> {
    /// Their keys, in the order of the answer; none after `gat` and a time alone.
    pub keys: Words<'a>,
    /// Whether their cas numbers are shown.
    pub with_cas: bool,
    /// The expiry time that they get.
    pub touch: Option<Exptime>,
}

/// An item to store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Store<'a> {
    /// On what condition, and where.
    pub mode: StoreMode,
    /// Its key.
    pub key: &'a [u8],
    /// Its client flags; `append` and `prepend` leave them.
    pub client_flags: u32,
    /// Its expiry time; `append` and `prepend` leave it.
    pub exptime: Exptime,
    /// The cas number that the item must have, of `cas`; otherwise 0.
    pub cas: u64,
    /// Its value, or a part of it.
    pub value: &'a [u8],
    /// Nothing is answered.
    pub noreply: bool,
}

/// What storing does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreMode {
    /// Store it.
    Set,
    /// Store it if there is none.
    Add,
    /// Store it if there is one.
    Replace,
    /// Add it behind what there is.
    Append,
    /// Add it before what there is.
    Prepend,
    /// Store it if there is one with a given cas number. No item has the number 0.
    Cas,
}

/// A command about memory, or about time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tuning {
    /// `cache_memlimit`.
    MemoryLimit,
    /// `slabs`.
    Slabs,
    /// `lru`.
    Lru,
    /// `debugtime`.
    Time,
}

/// Up or down.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// Up, past the greatest number on to 0.
    Up,
    /// Down to 0, and no further.
    Down,
}
