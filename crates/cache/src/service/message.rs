//! What a client of a cache and its manager say to each other.
//!
//! One message is at most [`MESSAGE_BYTES_MAX`] bytes. Integers are little-endian. Byte table:
//! `docs/protocols/cache.md`. What comes is hostile: each length is checked before it is believed.

use cenote_fabric::MESSAGE_BYTES_MAX;
use cenote_pool::control::Window;
use cenote_wire::{Field, ListToEnd, Reader, Rest, Taken, Text, Writer, messages};

use crate::configuration::Configuration;
use crate::owner::{Copy, Entry, REGION_BYTES_MAX};

/// Counts versions of these messages. A manager refuses a client of another one by name.
pub const VERSION: u16 = 3;

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

impl From<cenote_wire::Malformed> for Malformed {
    fn from(cenote_wire::Malformed(wrong): cenote_wire::Malformed) -> Self {
        Self(wrong)
    }
}

messages! {
    /// From a client.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum ToManager | "of no known kind" {
        /// It is to be told of every region, from now on.
        1 => Join {
            /// As [`VERSION`].
            version: u16,
        },
        /// It asks for its lease.
        2 => Alive {
            /// Comes back as it is.
            asked_at: u64,
        },
        /// It acts on these generations alone.
        3 => Known(Vec<(u32, u64)> as ListToEnd<0, KNOWN_MAX> | "too many regions"),
        /// A write that it began under this generation may land late, or is in one copy alone. Said before
        /// what it knows.
        7 => Doubt {
            /// Where.
            region: u32,
            /// Under which.
            generation: u64,
        },
        /// A host is other than the table says.
        4 => Trouble {
            /// Its number.
            host: u16,
        },
        /// It ends, with nothing under way.
        5 => Leave,
        /// A question; see [`super::question`].
        6 => Ask {
            /// Comes back with the answer.
            number: u32,
            /// JSON.
            question: Vec<u8> as Rest<QUESTION_BYTES_MAX>,
        },
    }

    /// From the manager.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum ToClient | "of no known kind" {
        /// What the cache is. First of all to one that joined.
        1 => Welcome(Welcome),
        /// A host of the cache, in the order of their numbers.
        2 => Host {
            /// As regions' entries name it.
            number: u16,
            /// For people.
            name: String as Text<u8, TEXT_BYTES_MAX>,
            /// As the fabric writes it.
            address: String as Text<u8, TEXT_BYTES_MAX>,
            /// Hosts that fail together have the same.
            domain: String as Text<u8, TEXT_BYTES_MAX>,
        },
        /// What holds for a region.
        3 => Entry(Entry),
        /// The lease that was asked for then.
        4 => Lease {
            /// As asked.
            asked_at: u64,
        },
        /// Its lease is over, and it is forgotten: it may join again.
        5 => Unknown,
        /// A part of an answer.
        6 => Answer {
            /// Of the question.
            number: u32,
            /// Nothing of it follows.
            is_last: bool,
            /// JSON, or a piece of it.
            part: Vec<u8> as Rest<{ usize::MAX }>,
        },
        /// The manager does not take it.
        7 => Refused(Refusal),
    }

    /// What a cache is, as its clients have to know.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Welcome checked by Welcome::check {
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

    for Configuration { c, s, b, q }

    /// Why a manager does not take a client.
    #[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
    #[repr(u8)]
    pub enum Refusal | "refused for no known reason" {
        /// As many are there as may be.
        #[error("the cache has as many clients as it may have")]
        1 => Full,
        /// It speaks another version.
        #[error("the manager speaks another version of the protocol")]
        2 => Version,
        /// The cache is being deleted.
        #[error("the cache is being deleted")]
        3 => Ending,
        /// Another manager took over.
        #[error("another manager has taken over")]
        4 => Superseded,
    }
}

impl ToManager {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        Writer::lenient(&mut out).put(self);
        out
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no such message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(Reader::new(bytes).whole()?)
    }
}

impl ToClient {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        Writer::lenient(&mut out).put(self);
        out
    }

    /// What the bytes say, of a cache with slabs of `slab_bytes`.
    ///
    /// # Errors
    /// They are no such message.
    pub fn decode(bytes: &[u8], slab_bytes: u64) -> Result<Self, Malformed> {
        let mut message = Reader::new(bytes).whole()?;
        if let Self::Entry(entry) = &mut message {
            let copies = entry.copies.iter_mut().chain(&mut entry.next);
            for window in copies.flat_map(|copy| &mut copy.windows) {
                window.len_bytes = slab_bytes;
            }
        }
        Ok(message)
    }
}

/// Whether a name, an address or a domain can be sent.
#[must_use]
pub fn is_short(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX
}

impl Welcome {
    fn check(&self) -> Taken<()> {
        let refused = |wrong| Err(cenote_wire::Malformed(wrong));
        let slabs = u64::from(self.slabs_per_region);
        let region = self.slab_bytes.checked_mul(slabs);
        if !region.is_some_and(|bytes| (1..=REGION_BYTES_MAX).contains(&bytes)) {
            return refused("a region of no byte, or too many");
        }
        if usize::from(self.hosts) > HOSTS_MAX {
            return refused("too many hosts");
        }
        let Configuration { c, s, b, q } = self.configuration;
        let is_within = |value: u32| (1..=4096).contains(&value);
        if ![c, b, q].into_iter().all(is_within) || s > 4096 {
            return refused("no configuration");
        }
        Ok(())
    }
}

/// The rights are those of all its windows, and all are as long as the cache's slabs: the message does not
/// say how long, so what is read has windows of no byte.
impl<'a> Field<'a> for Copy {
    fn put(&self, out: &mut Writer<'_>) {
        let host = u16::try_from(self.host).expect("at most 4096");
        let slabs = u16::try_from(self.windows.len()).expect("at most 2^16 / 12");
        let rights = self.windows.first().map_or(0, |window| window.rights);
        out.put(&(host, slabs, rights));
        for window in &self.windows {
            out.put(&(window.id, window.generation));
        }
    }

    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        let (host, slabs, rights): (u16, u16, u8) = input.take()?;
        if slabs == 0 {
            return Err(cenote_wire::Malformed("a copy without a slab"));
        }
        let window = |_| {
            let (id, generation) = input.take()?;
            Ok(Window {
                id,
                generation,
                len_bytes: 0,
                rights,
            })
        };
        let windows = (0..slabs).map(window).collect::<Result<_, _>>()?;
        Ok(Self::new(usize::from(host), windows))
    }
}

#[cfg(test)]
mod tests;
