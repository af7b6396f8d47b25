//! What owners of caches say to hosts, and what hosts answer.

use cenote_wire::{List, Reader, Tagged, Text, Writer, messages};

use super::{ADDRESS_MAX, MACHINES_MAX, USERS_MAX, WORD};
use crate::CacheId;
use crate::message::{ANY, NoMessage};

messages! {
    /// What a cache's owner says of it.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Word | "unknown word" {
        /// The cache is there; said again when machines or users are others.
        1 => Open(Opened),
        /// Where slabs are.
        2 => Map {
            /// The cache.
            cache: CacheId,
            /// Until when procedures may write, and read if that ends too ([`Opened::leased`]), by the
            /// clock of the host that is told: its answers say what that clock shows.
            writes_until: u64,
            /// Those of which there is news.
            slabs: Vec<SlabWord> as List<u32, 0, ANY>,
        },
        /// All requests for the cache go to another machine.
        3 => Leave {
            /// The cache.
            cache: CacheId,
            /// Which of its machines.
            successor: u32,
        },
        /// The cache is no more.
        4 => Close {
            /// The cache.
            cache: CacheId,
        },
        /// The owner knows that procedures of this process write to a cache with two copies.
        5 => Write {
            /// The cache.
            cache: CacheId,
        },
        /// The owner has heard of doubts.
        6 => Told {
            /// The cache.
            cache: CacheId,
            /// Which.
            doubts: Vec<Doubt> as List<u32, 0, DOUBTS_MAX> | "too many doubts",
        },
    }

    /// A cache, as far as all of it is alike.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Opened {
        /// The cache.
        pub cache: CacheId,
        /// Bytes of a slab.
        pub slab_bytes: u64,
        /// How many it has.
        pub slabs: u32,
        /// Whether procedures may write, and how.
        pub writing: Writing,
        /// Whether procedures may read only as long as they may write, or might.
        pub leased: bool,
        /// Which of the machines is told.
        pub me: u32,
        /// Addresses of its machines. More may come behind them later.
        pub machines: Vec<String> as List<u32, 0, MACHINES_MAX, Text<u32, ADDRESS_MAX>> | "too many machines",
        /// Clients that may run procedures on it, beside its owner.
        pub users: Vec<u128> as List<u32, 0, USERS_MAX> | "too many users",
    }

    /// Whether procedures may write, and how.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Writing | "unknown way to write" {
        /// They may not.
        0 => Denied,
        /// Slabs have one copy.
        1 => Direct,
        /// Slabs have a second copy, which gets what is stored before the first.
        2 => Replicated,
    }

    /// Where a slab of a cache is.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct SlabWord {
        /// Which.
        pub slab: u32,
        /// Of its region's entry: a higher one replaces a lower.
        pub generation: u64,
        /// Where.
        pub place: SlabPlace,
    }

    /// Where a slab is.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum SlabPlace | "unknown place" {
        /// Nobody has it.
        0 => Nowhere,
        /// Another machine has it.
        1 => At(u32),
        /// In a window of the host that is told.
        2 => Here(Named),
        /// There still, and on the move: it is read, and written nowhere.
        3 => Leaving(Named),
        /// Its first copy is in a window of the host that is told.
        4 => First {
            /// The window.
            named: Named,
            /// The machine that has the second.
            second: u32,
        },
        /// Its second copy is there.
        5 => Second {
            /// The window.
            named: Named,
            /// The machine that has the first.
            first: u32,
        },
    }

    /// How far a host's process is with writing to a cache with two copies. It stores nothing
    /// before its owner knows: what a process had sent that is no more is the owner's to find out.
    #[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
    #[repr(u8)]
    pub enum WriteState | "unknown state of writing" {
        /// No procedure has stored anything.
        #[default]
        0 => Idle,
        /// One is to store something.
        1 => Wants,
        /// They store ([`Word::Write`]).
        2 => Writes,
    }

    /// A slab whose copies may differ: the host does not know what became of a store into the
    /// second.
    #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
    pub struct Doubt {
        /// Which.
        pub slab: u32,
        /// Of its region's entry, by which the store was sent.
        pub generation: u64,
    }

    /// A life of a window.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Named {
        /// The window.
        pub window: u32,
        /// Its generation.
        pub generation: u64,
    }

    /// Why a word is not taken.
    #[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
    #[repr(u8)]
    pub enum WordRefusal | "unknown answer to a word" {
        /// The client does not hold a slab of that cache here, or another one does.
        #[error("the host has lent this client no slab of the cache")]
        1 => NotYours,
        /// The cache was not opened here.
        #[error("the host was not told of the cache")]
        2 => Unknown,
        /// It is not the cache that was opened, or none that can be.
        #[error("the cache is another one than was opened, or cannot be")]
        3 => Shape,
        /// The host has as many caches as it keeps.
        #[error("the host has no room for another cache")]
        4 => Full,
    }
}

/// What becomes of a word.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Heard {
    /// All threads go by it.
    Taken {
        /// What the host's clock shows.
        now: u64,
        /// Slabs that it says are in windows that the host does not have.
        missing: u32,
        /// How far it is with writing.
        state: WriteState,
        /// Slabs that its owner is to make equal, until it says that it heard ([`Word::Told`]). To
        /// be passed on before what the host goes by.
        doubts: Vec<Doubt>,
    },
    /// Nothing was changed.
    Refused(WordRefusal),
}

impl Word {
    /// Appends the call.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(WORD);
        Writer::lenient(out).put(self);
    }

    /// Reads what follows the first byte.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        Ok(Reader::new(bytes).whole()?)
    }
}

impl Heard {
    /// Appends the answer: 0, or 5 where procedures write to two copies, and what it says; or the
    /// number of the refusal.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        match self {
            Self::Taken {
                now,
                missing,
                state: WriteState::Idle,
                doubts,
            } if doubts.is_empty() => out.put(&(0_u8, *now, *missing)),
            Self::Taken {
                now,
                missing,
                state,
                doubts,
            } => {
                out.put(&(WRITING, *now, *missing));
                out.put(state);
                out.put_as::<List<u32, 0, DOUBTS_MAX>, _>(doubts);
            }
            Self::Refused(why) => out.put(why),
        }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        let mut input = Reader::new(bytes);
        let heard = match input.take()? {
            0 => Self::Taken {
                now: input.take()?,
                missing: input.take()?,
                state: WriteState::Idle,
                doubts: Vec::new(),
            },
            WRITING => Self::Taken {
                now: input.take()?,
                missing: input.take()?,
                state: input.take()?,
                doubts: input.take_as::<List<u32, 0, DOUBTS_MAX>, _>()?,
            },
            why => Self::Refused(WordRefusal::take_tagged(why, &mut input)?),
        };
        input.end()?;
        Ok(heard)
    }
}

/// An answer about a cache with two copies. No owner that does not know of it gets one: it lets
/// procedures write to one copy alone.
const WRITING: u8 = 5;
/// Slabs that one answer names. Of more the host answers that it lacks a slab, and loses its lease.
pub const DOUBTS_MAX: usize = 2048;
