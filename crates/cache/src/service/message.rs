//! What a client of a cache and its manager say to each other.
//!
//! One message is at most [`MESSAGE_BYTES_MAX`] bytes. Integers are little-endian. Byte table:
//! `docs/protocols/cache.md`. What comes is hostile: each length is checked before it is believed.

use bytes::Buf;
use cenote_fabric::MESSAGE_BYTES_MAX;
use cenote_pool::control::Window;

use crate::configuration::Configuration;
use crate::owner::{Access, Copy, Entry};

/// Counts versions of these messages. A manager refuses a client of another one by name.
pub const VERSION: u16 = 2;

/// Most pairs of region and generation in one message.
pub const KNOWN_MAX: usize = 1000;

/// Longest question in bytes.
pub const QUESTION_BYTES_MAX: usize = 4096;

/// Bytes of an answer in one message.
pub const ANSWER_PART_BYTES: usize = 12 * 1024;

/// Longest answer of a question in bytes, over all its messages.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Most slabs of a region in all its copies together: an entry fits into a message.
pub const ENTRY_SLABS_MAX: usize = (MESSAGE_BYTES_MAX - 64) / WINDOW_BYTES;

/// Identity and generation of a window.
const WINDOW_BYTES: usize = 12;

/// Most hosts of a cache.
pub const HOSTS_MAX: usize = 4096;

/// Longest name, address or domain in bytes.
const TEXT_BYTES_MAX: usize = 255;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("message between a cache's manager and a client: {0}")]
pub struct Malformed(pub &'static str);

type Result<T> = std::result::Result<T, Malformed>;

/// From a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToManager {
    /// It is to be told of every region, from now on.
    Join {
        /// As [`VERSION`].
        version: u16,
    },
    /// It asks for its lease.
    Alive {
        /// Comes back as it is.
        asked_at: u64,
    },
    /// It acts on these generations alone.
    Known(Vec<(u32, u64)>),
    /// A write that it began under this generation may land late, or is in one copy alone. Said before
    /// what it knows.
    Doubt {
        /// Where.
        region: u32,
        /// Under which.
        generation: u64,
    },
    /// A host is other than the table says.
    Trouble {
        /// Its number.
        host: u16,
    },
    /// It ends, with nothing under way.
    Leave,
    /// A question; see [`super::question`].
    Ask {
        /// Comes back with the answer.
        number: u32,
        /// JSON.
        question: Vec<u8>,
    },
}

/// From the manager.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToClient {
    /// What the cache is. First of all to one that joined.
    Welcome(Welcome),
    /// A host of the cache, in the order of their numbers.
    Host {
        /// As regions' entries name it.
        number: u16,
        /// For people.
        name: String,
        /// As the fabric writes it.
        address: String,
        /// Hosts that fail together have the same.
        domain: String,
    },
    /// What holds for a region.
    Entry(Entry),
    /// The lease that was asked for then.
    Lease {
        /// As asked.
        asked_at: u64,
    },
    /// Its lease is over, and it is forgotten: it may join again.
    Unknown,
    /// A part of an answer.
    Answer {
        /// Of the question.
        number: u32,
        /// Nothing of it follows.
        is_last: bool,
        /// JSON, or a piece of it.
        part: Vec<u8>,
    },
    /// The manager does not take it.
    Refused(Refusal),
}

/// What a cache is, as its clients have to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Welcome {
    /// As [`VERSION`].
    pub version: u16,
    /// Its identity: another one is another cache.
    pub cache: u128,
    /// Counts its managers.
    pub epoch: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Slabs of a region.
    pub slabs_per_region: u32,
    /// How many [`ToClient::Host`] follow.
    pub hosts: u16,
    /// How it is accessed.
    pub configuration: Configuration,
}

/// Why a manager does not take a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// As many are there as may be.
    #[error("the cache has as many clients as it may have")]
    Full = 1,
    /// It speaks another version.
    #[error("the manager speaks another version of the protocol")]
    Version = 2,
    /// The cache is being deleted.
    #[error("the cache is being deleted")]
    Ending = 3,
    /// Another manager took over.
    #[error("another manager has taken over")]
    Superseded = 4,
}

impl ToManager {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Join { version } => {
                out.push(1);
                out.extend(version.to_le_bytes());
            }
            Self::Alive { asked_at } => {
                out.push(2);
                out.extend(asked_at.to_le_bytes());
            }
            Self::Known(known) => {
                out.push(3);
                for (region, generation) in known {
                    out.extend(region.to_le_bytes());
                    out.extend(generation.to_le_bytes());
                }
            }
            Self::Trouble { host } => {
                out.push(4);
                out.extend(host.to_le_bytes());
            }
            Self::Leave => out.push(5),
            Self::Doubt { region, generation } => {
                out.push(7);
                out.extend(region.to_le_bytes());
                out.extend(generation.to_le_bytes());
            }
            Self::Ask { number, question } => {
                out.push(6);
                out.extend(number.to_le_bytes());
                out.extend(question);
            }
        }
        out
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no such message.
    pub fn decode(mut bytes: &[u8]) -> Result<Self> {
        let bytes = &mut bytes;
        let message = match take_u8(bytes)? {
            1 => Self::Join {
                version: take_u16(bytes)?,
            },
            2 => Self::Alive {
                asked_at: take_u64(bytes)?,
            },
            3 => {
                if bytes.len() > KNOWN_MAX * 12 {
                    return Err(Malformed("too many regions"));
                }
                let mut known = Vec::with_capacity(bytes.len() / 12);
                while !bytes.is_empty() {
                    known.push((take_u32(bytes)?, take_u64(bytes)?));
                }
                Self::Known(known)
            }
            4 => Self::Trouble {
                host: take_u16(bytes)?,
            },
            5 => Self::Leave,
            6 => {
                let number = take_u32(bytes)?;
                if bytes.len() > QUESTION_BYTES_MAX {
                    return Err(Malformed("a long question"));
                }
                let question = std::mem::take(bytes).to_vec();
                Self::Ask { number, question }
            }
            7 => Self::Doubt {
                region: take_u32(bytes)?,
                generation: take_u64(bytes)?,
            },
            _ => return Err(Malformed("of no known kind")),
        };
        end(bytes)?;
        Ok(message)
    }
}

impl ToClient {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Welcome(welcome) => {
                out.push(1);
                out.extend(welcome.version.to_le_bytes());
                out.extend(welcome.cache.to_le_bytes());
                out.extend(welcome.epoch.to_le_bytes());
                out.extend(welcome.slab_bytes.to_le_bytes());
                out.extend(welcome.slabs_per_region.to_le_bytes());
                out.extend(welcome.hosts.to_le_bytes());
                let Configuration { c, s, b, q } = welcome.configuration;
                for one in [c, s, b, q] {
                    out.extend(one.to_le_bytes());
                }
            }
            Self::Host {
                number,
                name,
                address,
                domain,
            } => {
                out.push(2);
                out.extend(number.to_le_bytes());
                for text in [name, address, domain] {
                    put_text(&mut out, text);
                }
            }
            Self::Entry(entry) => {
                out.push(3);
                put_entry(&mut out, entry);
            }
            Self::Lease { asked_at } => {
                out.push(4);
                out.extend(asked_at.to_le_bytes());
            }
            Self::Unknown => out.push(5),
            Self::Answer {
                number,
                is_last,
                part,
            } => {
                out.push(6);
                out.extend(number.to_le_bytes());
                out.push(u8::from(*is_last));
                out.extend(part);
            }
            Self::Refused(refusal) => out.extend([7, *refusal as u8]),
        }
        out
    }

    /// What the bytes say, of a cache with slabs of `slab_bytes`.
    ///
    /// # Errors
    /// They are no such message.
    pub fn decode(mut bytes: &[u8], slab_bytes: u64) -> Result<Self> {
        let bytes = &mut bytes;
        let message = match take_u8(bytes)? {
            1 => Self::Welcome(take_welcome(bytes)?),
            2 => Self::Host {
                number: take_u16(bytes)?,
                name: take_text(bytes)?,
                address: take_text(bytes)?,
                domain: take_text(bytes)?,
            },
            3 => Self::Entry(take_entry(bytes, slab_bytes)?),
            4 => Self::Lease {
                asked_at: take_u64(bytes)?,
            },
            5 => Self::Unknown,
            6 => Self::Answer {
                number: take_u32(bytes)?,
                is_last: match take_u8(bytes)? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed("neither the last part nor another")),
                },
                part: std::mem::take(bytes).to_vec(),
            },
            7 => Self::Refused(match take_u8(bytes)? {
                1 => Refusal::Full,
                2 => Refusal::Version,
                3 => Refusal::Ending,
                4 => Refusal::Superseded,
                _ => return Err(Malformed("refused for no known reason")),
            }),
            _ => return Err(Malformed("of no known kind")),
        };
        end(bytes)?;
        Ok(message)
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u8::try_from(text.len()).expect("names and addresses were checked to be short");
    out.push(len);
    out.extend(text.as_bytes());
}

/// Whether a name, an address or a domain can be sent.
#[must_use]
pub fn is_short(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    out.extend(entry.region.to_le_bytes());
    out.extend(entry.generation.to_le_bytes());
    out.extend(entry.losses.to_le_bytes());
    out.extend(entry.fell_back_ms.to_le_bytes());
    out.push(entry.access as u8);
    out.push(u8::try_from(entry.copies.len()).expect("two at most"));
    for copy in &entry.copies {
        let host = u16::try_from(copy.host).expect("at most 4096");
        let slabs = u16::try_from(copy.windows.len()).expect("at most 2^16 / 12");
        out.extend(host.to_le_bytes());
        out.extend(slabs.to_le_bytes());
        out.push(copy.windows.first().map_or(0, |window| window.rights));
        for window in &copy.windows {
            out.extend(window.id.to_le_bytes());
            out.extend(window.generation.to_le_bytes());
        }
    }
}

fn take_welcome(bytes: &mut &[u8]) -> Result<Welcome> {
    let welcome = Welcome {
        version: take_u16(bytes)?,
        cache: bytes.try_get_u128_le().map_err(|_| CUT)?,
        epoch: take_u64(bytes)?,
        slab_bytes: take_u64(bytes)?,
        slabs_per_region: take_u32(bytes)?,
        hosts: take_u16(bytes)?,
        configuration: Configuration {
            c: take_u32(bytes)?,
            s: take_u32(bytes)?,
            b: take_u32(bytes)?,
            q: take_u32(bytes)?,
        },
    };
    let region = welcome
        .slab_bytes
        .checked_mul(u64::from(welcome.slabs_per_region));
    if !region.is_some_and(|bytes| (1..=crate::owner::REGION_BYTES_MAX).contains(&bytes)) {
        return Err(Malformed("a region of no byte, or too many"));
    }
    if usize::from(welcome.hosts) > HOSTS_MAX {
        return Err(Malformed("too many hosts"));
    }
    let Configuration { c, s, b, q } = welcome.configuration;
    let is_within = |value: u32| (1..=4096).contains(&value);
    if ![c, b, q].into_iter().all(is_within) || s > 4096 {
        return Err(Malformed("no configuration"));
    }
    Ok(welcome)
}

fn take_entry(bytes: &mut &[u8], slab_bytes: u64) -> Result<Entry> {
    let region = take_u32(bytes)?;
    let generation = take_u64(bytes)?;
    let losses = take_u32(bytes)?;
    let fell_back_ms = take_u64(bytes)?;
    let access = access_of(take_u8(bytes)?).ok_or(Malformed("no known access"))?;
    let count = take_u8(bytes)?;
    if region >= crate::owner::REGIONS_MAX {
        return Err(Malformed("no such region"));
    }
    if count > 2 || count == 0 && matches!(access, Access::Frozen | Access::Open) {
        return Err(Malformed("a region of no copy, or of too many"));
    }
    let mut copies = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let host = usize::from(take_u16(bytes)?);
        let slabs = usize::from(take_u16(bytes)?);
        let rights = take_u8(bytes)?;
        if slabs == 0 {
            return Err(Malformed("a copy without a slab"));
        }
        if bytes.len() < slabs * WINDOW_BYTES {
            return Err(CUT);
        }
        let mut windows = Vec::with_capacity(slabs);
        for _ in 0..slabs {
            windows.push(Window {
                id: take_u32(bytes)?,
                generation: take_u64(bytes)?,
                len_bytes: slab_bytes,
                rights,
            });
        }
        copies.push(Copy::new(host, windows));
    }
    Ok(Entry {
        region,
        generation,
        access,
        copies,
        losses,
        fell_back_ms,
    })
}

/// What a client may do, by its number.
#[must_use]
pub fn access_of(number: u8) -> Option<Access> {
    [Access::Absent, Access::Frozen, Access::Open, Access::Cut]
        .into_iter()
        .find(|access| *access as u8 == number)
}

const CUT: Malformed = Malformed("cut off");

fn take_u8(bytes: &mut &[u8]) -> Result<u8> {
    bytes.try_get_u8().map_err(|_| CUT)
}

fn take_u16(bytes: &mut &[u8]) -> Result<u16> {
    bytes.try_get_u16_le().map_err(|_| CUT)
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32> {
    bytes.try_get_u32_le().map_err(|_| CUT)
}

fn take_u64(bytes: &mut &[u8]) -> Result<u64> {
    bytes.try_get_u64_le().map_err(|_| CUT)
}

fn take_text(bytes: &mut &[u8]) -> Result<String> {
    let len = usize::from(take_u8(bytes)?);
    let (text, rest) = bytes.split_at_checked(len).ok_or(CUT)?;
    *bytes = rest;
    let text = std::str::from_utf8(text).map_err(|_| Malformed("a name that is no UTF-8"))?;
    Ok(text.to_owned())
}

fn end(bytes: &[u8]) -> Result<()> {
    match bytes.is_empty() {
        true => Ok(()),
        false => Err(Malformed("bytes behind its end")),
    }
}

#[cfg(test)]
mod tests;
