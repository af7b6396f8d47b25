//! What owners of caches say to hosts, and what hosts answer.

use super::{ADDRESS_MAX, MACHINES_MAX, USERS_MAX, WORD};
use crate::CacheId;
use crate::message::{Input, NoMessage, count, put_bytes, put_u32, put_u64, put_u128};

/// What a cache's owner says of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Word {
    /// The cache is there; said again when machines or users are others.
    Open(Opened),
    /// Where slabs are.
    Map {
        /// The cache.
        cache: CacheId,
        /// Until when procedures may write, and read if that ends too ([`Opened::leased`]), by the
        /// clock of the host that is told: its answers say what that clock shows.
        writes_until: u64,
        /// Those of which there is news.
        slabs: Vec<SlabWord>,
    },
    /// All requests for the cache go to another machine.
    Leave {
        /// The cache.
        cache: CacheId,
        /// Which of its machines.
        successor: u32,
    },
    /// The cache is no more.
    Close {
        /// The cache.
        cache: CacheId,
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
    /// Whether procedures may write.
    pub writable: bool,
    /// Whether procedures may read only as long as they may write, or might.
    pub leased: bool,
    /// Which of the machines is told.
    pub me: u32,
    /// Addresses of its machines. More may come behind them later.
    pub machines: Vec<String>,
    /// Clients that may run procedures on it, beside its owner.
    pub users: Vec<u128>,
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
pub enum SlabPlace {
    /// Nobody has it.
    Nowhere,
    /// Another machine has it.
    At(u32),
    /// In a window of the host that is told.
    Here(Named),
    /// There still, and on the move: it is read, and written nowhere.
    Leaving(Named),
}

/// A life of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Named {
    /// The window.
    pub window: u32,
    /// Its generation.
    pub generation: u64,
}

/// What becomes of a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// All threads go by it.
    Taken {
        /// What the host's clock shows.
        now: u64,
        /// Slabs that it says are in windows that the host does not have.
        missing: u32,
    },
    /// Nothing was changed.
    Refused(WordRefusal),
}

/// Why a word is not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[repr(u8)]
pub enum WordRefusal {
    /// The client does not hold a slab of that cache here, or another one does.
    #[error("the host has lent this client no slab of the cache")]
    NotYours = 1,
    /// The cache was not opened here.
    #[error("the host was not told of the cache")]
    Unknown = 2,
    /// It is not the cache that was opened, or none that can be.
    #[error("the cache is another one than was opened, or cannot be")]
    Shape = 3,
    /// The host has as many caches as it keeps.
    #[error("the host has no room for another cache")]
    Full = 4,
}

impl Word {
    /// Appends the call.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(WORD);
        match self {
            Self::Open(opened) => {
                out.push(1);
                put_u128(out, opened.cache.0);
                put_u64(out, opened.slab_bytes);
                put_u32(out, opened.slabs);
                out.push(u8::from(opened.writable));
                out.push(u8::from(opened.leased));
                put_u32(out, opened.me);
                put_u32(out, count(opened.machines.len()));
                for address in &opened.machines {
                    put_bytes(out, address.as_bytes());
                }
                put_u32(out, count(opened.users.len()));
                opened.users.iter().for_each(|user| put_u128(out, *user));
            }
            Self::Map {
                cache,
                writes_until,
                slabs,
            } => {
                out.push(2);
                put_u128(out, cache.0);
                put_u64(out, *writes_until);
                put_u32(out, count(slabs.len()));
                slabs.iter().for_each(|slab| put_slab(out, slab));
            }
            Self::Leave { cache, successor } => {
                out.push(3);
                put_u128(out, cache.0);
                put_u32(out, *successor);
            }
            Self::Close { cache } => {
                out.push(4);
                put_u128(out, cache.0);
            }
        }
    }

    /// Reads what follows the first byte.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        let mut input = Input(bytes);
        let kind = input.u8()?;
        let cache = CacheId(input.u128()?);
        let word = match kind {
            1 => Self::Open(opened(cache, &mut input)?),
            2 => {
                let writes_until = input.u64()?;
                let len = input.u32()? as usize;
                let slabs = input.list(len, SLAB_BYTES, slab)?;
                Self::Map {
                    cache,
                    writes_until,
                    slabs,
                }
            }
            3 => Self::Leave {
                cache,
                successor: input.u32()?,
            },
            4 => Self::Close { cache },
            _ => return Err(NoMessage("unknown word")),
        };
        input.end()?;
        Ok(word)
    }
}

fn opened(cache: CacheId, input: &mut Input<'_>) -> Result<Opened, NoMessage> {
    let (slab_bytes, slabs) = (input.u64()?, input.u32()?);
    let (writable, leased) = (input.bool()?, input.bool()?);
    let me = input.u32()?;
    let machines = input.u32()? as usize;
    if machines > MACHINES_MAX {
        return Err(NoMessage("too many machines"));
    }
    let machines = input.list(machines, 4, |input| input.text(ADDRESS_MAX))?;
    let users = input.u32()? as usize;
    if users > USERS_MAX {
        return Err(NoMessage("too many users"));
    }
    let users = input.list(users, 16, Input::u128)?;
    Ok(Opened {
        cache,
        slab_bytes,
        slabs,
        writable,
        leased,
        me,
        machines,
        users,
    })
}

fn put_slab(out: &mut Vec<u8>, word: &SlabWord) {
    put_u32(out, word.slab);
    put_u64(out, word.generation);
    let named = |out: &mut Vec<u8>, kind, named: &Named| {
        out.push(kind);
        put_u32(out, named.window);
        put_u64(out, named.generation);
    };
    match &word.place {
        SlabPlace::Nowhere => out.push(0),
        SlabPlace::At(machine) => {
            out.push(1);
            put_u32(out, *machine);
        }
        SlabPlace::Here(window) => named(out, 2, window),
        SlabPlace::Leaving(window) => named(out, 3, window),
    }
}

fn slab(input: &mut Input<'_>) -> Result<SlabWord, NoMessage> {
    let (slab, generation) = (input.u32()?, input.u64()?);
    let named = |input: &mut Input<'_>| {
        Ok(Named {
            window: input.u32()?,
            generation: input.u64()?,
        })
    };
    let place = match input.u8()? {
        0 => SlabPlace::Nowhere,
        1 => SlabPlace::At(input.u32()?),
        2 => SlabPlace::Here(named(input)?),
        3 => SlabPlace::Leaving(named(input)?),
        _ => return Err(NoMessage("unknown place")),
    };
    Ok(SlabWord {
        slab,
        generation,
        place,
    })
}

impl Heard {
    /// Appends the answer.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Taken { now, missing } => {
                out.push(0);
                put_u64(out, *now);
                put_u32(out, *missing);
            }
            Self::Refused(why) => out.push(*why as u8),
        }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        let mut input = Input(bytes);
        let heard = match input.u8()? {
            0 => Self::Taken {
                now: input.u64()?,
                missing: input.u32()?,
            },
            1 => Self::Refused(WordRefusal::NotYours),
            2 => Self::Refused(WordRefusal::Unknown),
            3 => Self::Refused(WordRefusal::Shape),
            4 => Self::Refused(WordRefusal::Full),
            _ => return Err(NoMessage("unknown answer to a word")),
        };
        input.end()?;
        Ok(heard)
    }
}

/// The shortest word about a slab.
const SLAB_BYTES: usize = 4 + 8 + 1;
