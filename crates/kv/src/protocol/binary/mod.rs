//! memcached's binary protocol: bytes in, [`Message`]s out, replies back in by [`reply`].
//!
//! A parser of its own beside the text one; what comes out goes to the same engine as
//! [`Request::Binary`](super::Request::Binary). A connection speaks it if its first byte is
//! [`REQUEST_MAGIC`], and to its end. What is accepted, refused and answered is what memcached 1.6.18
//! does; `docs/protocols/kv.md` has the table and where a server behind this differs.
//! Invariants: how a stream is cut into pieces changes nothing; at most one message is waited for,
//! within [`Limits`](super::Limits), and a body that nobody wants is passed over, not kept.

mod parse;
pub mod reply;
pub mod sasl;

pub use parse::{Parser, Refusal, Step, whole};

use super::exptime::{Expiry, Exptime};
use super::request::{Direction, StoreMode};

/// The first byte of a request.
pub const REQUEST_MAGIC: u8 = 0x80;
/// The first byte of a reply.
pub const REPLY_MAGIC: u8 = 0x81;
/// Bytes of the header that a request and a reply begin with.
pub const HEADER_BYTES: usize = 24;
/// `DeleteQ`: the request for one that nobody waits for.
const DELETE_QUIETLY: u8 = 0x14;

/// What of a request its reply repeats.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Head {
    /// The opcode as it came, quiet or not.
    pub opcode: u8,
    /// The client's, unread.
    pub opaque: u32,
}

/// A request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Message<'a> {
    /// What its reply repeats.
    pub head: Head,
    /// Success, or the miss of a retrieval, is not answered.
    pub is_quiet: bool,
    /// The cas number that the item must have; 0 is any.
    pub cas: u64,
    /// Empty where it is about no item.
    pub key: &'a [u8],
    /// What is to be done.
    pub command: Command<'a>,
}

/// What a message asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command<'a> {
    /// `Get`, `GetK`, `GAT`, `GATK`.
    Get {
        /// The reply has the key, also where there is no item.
        shows_key: bool,
        /// The item's new expiry time.
        touch: Option<Seconds>,
    },
    /// `Touch`: the same without the value.
    Touch(Seconds),
    /// `Set`, `Add`, `Replace`, `Append`, `Prepend`; never [`StoreMode::Cas`].
    Store {
        /// Which.
        mode: StoreMode,
        /// The item's client flags.
        client_flags: u32,
        /// Its expiry time.
        exptime: Seconds,
        /// Its value, or a part of it.
        value: &'a [u8],
    },
    /// `Delete`.
    Delete,
    /// `Increment`, `Decrement`.
    Count {
        /// Up or down.
        direction: Direction,
        /// By how much.
        delta: u64,
        /// The number that is made where there is none.
        initial: u64,
        /// Its expiry time; none: none is made.
        vivify: Option<Seconds>,
    },
    /// `Flush`.
    Flush(Seconds),
    /// `Noop`.
    Noop,
    /// `Quit`.
    Quit,
    /// `Version`.
    Version,
    /// `Verbosity`.
    Verbosity(u32),
    /// `Stat`; its key is what follows `stats` in text.
    Stat,
    /// `SASL list mechs`.
    Mechanisms,
    /// `SASL Auth`: its key is the mechanism, this the first thing said in it.
    Authenticate(&'a [u8]),
    /// `SASL Step`: what is said next.
    AuthenticateFurther(&'a [u8]),
}

/// An expiry time. Other than in text it has no sign: what would be below 0 there is a date after
/// 2038 here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seconds(pub u32);

impl Seconds {
    /// What the number means at `now`, seconds since 1970.
    pub fn expiry(self, now: u64) -> Expiry {
        match i32::try_from(self.0) {
            Ok(seconds) => Exptime(seconds).expiry(now),
            Err(_) => Expiry::At(self.0.into()),
        }
    }

    /// When a flush with this number takes effect, seconds since 1970; 0 is at once.
    pub fn flush_at(self, now: u64) -> u64 {
        match self.expiry(now) {
            Expiry::Never | Expiry::Passed => 0,
            Expiry::At(at) => at,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// As it should.
    Done = 0,
    /// There is no such item.
    NotFound = 1,
    /// There is an item, or its cas number is another.
    Exists = 2,
    /// Above the limit.
    TooLarge = 3,
    /// Lengths that do not go with the opcode.
    Invalid = 4,
    /// Nothing to append to.
    NotStored = 5,
    /// A value that cannot be counted with.
    NonNumeric = 6,
    /// Not known who asks.
    AuthenticationError = 0x20,
    /// No such opcode.
    Unknown = 0x81,
    /// No memory for an item.
    OutOfMemory = 0x82,
    /// What text would say by `SERVER_ERROR`: nodes are missing, an outcome is unknown.
    Internal = 0x84,
}

impl Status {
    /// memcached's words for it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Done => "",
            Self::NotFound => "Not found",
            Self::Exists => "Data exists for key.",
            Self::TooLarge => "Too large.",
            Self::Invalid => "Invalid arguments",
            Self::NotStored => "Not stored.",
            Self::NonNumeric => "Non-numeric server-side value for incr or decr",
            Self::AuthenticationError => "Auth failure.",
            Self::Unknown => "Unknown command",
            Self::OutOfMemory => "Out of memory allocating item",
            Self::Internal => "Internal error",
        }
    }
}

impl Message<'_> {
    /// Whether it is about one item: a partition's to serve.
    pub fn is_for_item(&self) -> bool {
        matches!(
            self.command,
            Command::Get { .. }
                | Command::Touch(_)
                | Command::Store { .. }
                | Command::Delete
                | Command::Count { .. }
        )
    }

    /// Whether it changes nothing, so that it may be asked twice.
    pub fn only_reads(&self) -> bool {
        matches!(self.command, Command::Get { touch: None, .. })
    }
}

/// A message that deletes an item without an answer if all goes well.
pub fn delete(key: &[u8]) -> Vec<u8> {
    let length = u16::try_from(key.len()).unwrap_or(u16::MAX);
    let mut message = vec![0; HEADER_BYTES];
    message[0] = REQUEST_MAGIC;
    message[1] = DELETE_QUIETLY;
    message[2..4].copy_from_slice(&length.to_be_bytes());
    message[8..12].copy_from_slice(&u32::from(length).to_be_bytes());
    message.extend_from_slice(key);
    message
}

#[cfg(test)]
mod tests;
