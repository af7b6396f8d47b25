//! Takes messages from the front of what a connection has received.
//!
//! Called as the text parser is: [`Parser::parse`], drop what was taken, again until [`Step::More`].

use super::{Command, HEADER_BYTES, Head, Message, REQUEST_MAGIC, Seconds, Status};
use crate::protocol::key::KEY_BYTES_MAX;
use crate::protocol::limits::Limits;
use crate::protocol::request::{Direction, StoreMode};

/// Longest thing said to prove who one is.
const AUTHENTICATION_BYTES_MAX: usize = 2048;
/// The expiry time that asks `Increment` to make nothing.
const MAKES_NONE: u32 = u32::MAX;

/// What the front of a buffer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step<'a> {
    /// Not whole: with fewer than `needed` bytes in the buffer another call tells nothing new.
    More {
        /// Bytes, those that are there included.
        needed: usize,
    },
    /// A message.
    Message {
        /// Which.
        message: Message<'a>,
        /// Its bytes.
        taken: usize,
    },
    /// A message that is answered by an error.
    Refused {
        /// What to answer.
        refusal: Refusal<'a>,
        /// Its bytes, but those that are passed over.
        taken: usize,
    },
    /// Bytes of a body that belongs to a refused message.
    Skipped {
        /// How many.
        taken: usize,
    },
    /// No message begins here: the connection is of no more use.
    Close,
}

/// An error, and what goes with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal<'a> {
    /// What the answer repeats.
    pub head: Head,
    /// What it says.
    pub status: Status,
    /// The connection is closed behind it: nobody knows where the next message begins.
    pub is_end: bool,
    /// A key to delete, so that no value older than the refused one is read under it.
    pub forget: Option<&'a [u8]>,
    /// Bytes to pass over. The parser does.
    skips: u64,
}

impl Refusal<'_> {
    /// Whether it is of an item that is too large, whatever was to be done with it.
    pub fn is_of_large_item(&self) -> bool {
        let verb = Verb::of(self.head.opcode);
        self.status == Status::TooLarge && matches!(verb, Some((Verb::Store(_), _)))
    }
}

/// What an opcode stands for.
#[derive(Clone, Copy)]
enum Verb {
    Get { shows_key: bool, touches: bool },
    Touch,
    Store(StoreMode),
    Delete,
    Count(Direction),
    Flush,
    Noop,
    Quit,
    Version,
    Verbosity,
    Stat,
    Mechanisms,
    Authenticate,
    AuthenticateFurther,
}

impl Verb {
    /// The verb of an opcode, and whether it is quiet.
    fn of(opcode: u8) -> Option<(Self, bool)> {
        let get = |shows_key, touches| Self::Get { shows_key, touches };
        Some(match opcode {
            0x00 => (get(false, false), false),
            0x01 => (Self::Store(StoreMode::Set), false),
            0x02 => (Self::Store(StoreMode::Add), false),
            0x03 => (Self::Store(StoreMode::Replace), false),
            0x04 => (Self::Delete, false),
            0x05 => (Self::Count(Direction::Up), false),
            0x06 => (Self::Count(Direction::Down), false),
            0x07 => (Self::Quit, false),
            0x08 => (Self::Flush, false),
            0x09 => (get(false, false), true),
            0x0a => (Self::Noop, false),
            0x0b => (Self::Version, false),
            0x0c => (get(true, false), false),
            0x0d => (get(true, false), true),
            0x0e => (Self::Store(StoreMode::Append), false),
            0x0f => (Self::Store(StoreMode::Prepend), false),
            0x10 => (Self::Stat, false),
            0x11 => (Self::Store(StoreMode::Set), true),
            0x12 => (Self::Store(StoreMode::Add), true),
            0x13 => (Self::Store(StoreMode::Replace), true),
            0x14 => (Self::Delete, true),
            0x15 => (Self::Count(Direction::Up), true),
            0x16 => (Self::Count(Direction::Down), true),
            0x17 => (Self::Quit, true),
            0x18 => (Self::Flush, true),
            0x19 => (Self::Store(StoreMode::Append), true),
            0x1a => (Self::Store(StoreMode::Prepend), true),
            0x1b => (Self::Verbosity, false),
            0x1c => (Self::Touch, false),
            0x1d => (get(false, true), false),
            0x1e => (get(false, true), true),
            0x20 => (Self::Mechanisms, false),
            0x21 => (Self::Authenticate, false),
            0x22 => (Self::AuthenticateFurther, false),
            0x23 => (get(true, true), false),
            0x24 => (get(true, true), true),
            _ => return None,
        })
    }

    /// Whether a message of it may have these lengths.
    fn may_have(self, extras: usize, key: usize, value: u64) -> bool {
        match self {
            Self::Get { touches: true, .. } | Self::Touch => extras == 4 && key > 0 && value == 0,
            Self::Get { .. } | Self::Delete => extras == 0 && key > 0 && value == 0,
            Self::Store(StoreMode::Append | StoreMode::Prepend)
            | Self::Authenticate
            | Self::AuthenticateFurther => extras == 0 && key > 0,
            Self::Store(_) => extras == 8 && key > 0,
            Self::Count(_) => extras == 20 && key > 0 && value == 0,
            Self::Flush => matches!(extras, 0 | 4) && key == 0 && value == 0,
            Self::Noop | Self::Quit | Self::Version | Self::Mechanisms => {
                extras == 0 && key == 0 && value == 0
            }
            Self::Verbosity => extras == 4 && key == 0 && value == 0,
            Self::Stat => extras == 0 && value == 0,
        }
    }

    /// Whether somebody may ask for it of whom is not known who that is.
    fn is_for_everybody(self) -> bool {
        matches!(
            self,
            Self::Version | Self::Mechanisms | Self::Authenticate | Self::AuthenticateFurther
        )
    }

    fn command<'a>(self, extras: &[u8], value: &'a [u8]) -> Command<'a> {
        let first = || Seconds(number(extras, 0));
        match self {
            Self::Get { shows_key, touches } => Command::Get {
                shows_key,
                touch: touches.then(first),
            },
            Self::Touch => Command::Touch(first()),
            Self::Store(mode) => Command::Store {
                mode,
                client_flags: number(extras, 0),
                exptime: Seconds(number(extras, 4)),
                value,
            },
            Self::Delete => Command::Delete,
            Self::Count(direction) => Command::Count {
                direction,
                delta: long_number(extras, 0),
                initial: long_number(extras, 8),
                vivify: Some(number(extras, 16))
                    .filter(|seconds| *seconds != MAKES_NONE)
                    .map(Seconds),
            },
            Self::Flush => Command::Flush(first()),
            Self::Noop => Command::Noop,
            Self::Quit => Command::Quit,
            Self::Version => Command::Version,
            Self::Verbosity => Command::Verbosity(number(extras, 0)),
            Self::Stat => Command::Stat,
            Self::Mechanisms => Command::Mechanisms,
            Self::Authenticate => Command::Authenticate(value),
            Self::AuthenticateFurther => Command::AuthenticateFurther(value),
        }
    }
}

/// A number at a place; 0 where the bytes are not there.
fn number(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_be_bytes(bytes.unwrap_or_default())
}

fn long_number(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) << 32 | u64::from(number(bytes, at + 4))
}

/// The header of a message.
struct Header {
    head: Head,
    key: usize,
    extras: usize,
    body: u64,
    cas: u64,
}

impl Header {
    fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            head: Head {
                opcode: bytes[1],
                opaque: number(bytes, 12),
            },
            key: usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            extras: usize::from(bytes[4]),
            body: number(bytes, 8).into(),
            cas: long_number(bytes, 16),
        }
    }

    fn refused<'a>(&self, status: Status, is_end: bool) -> Refusal<'a> {
        Refusal {
            head: self.head,
            status,
            is_end,
            forget: None,
            skips: 0,
        }
    }

    /// The verb, if the message may be one, and whether it is quiet.
    ///
    /// The order of the checks is memcached's.
    fn verb<'a>(&self, is_known: bool) -> Result<(Verb, bool), Refusal<'a>> {
        let Some(value) = self.body.checked_sub((self.key + self.extras) as u64) else {
            return Err(self.refused(Status::Unknown, true));
        };
        let verb = Verb::of(self.head.opcode);
        if !is_known && !verb.is_some_and(|(verb, _)| verb.is_for_everybody()) {
            return Err(self.refused(Status::AuthenticationError, true));
        }
        if self.key > KEY_BYTES_MAX {
            return Err(self.refused(Status::Invalid, true));
        }
        let Some((verb, is_quiet)) = verb else {
            return Err(Refusal {
                skips: self.body,
                ..self.refused(Status::Unknown, false)
            });
        };
        if !verb.may_have(self.extras, self.key, value) {
            return Err(self.refused(Status::Invalid, true));
        }
        Ok((verb, is_quiet))
    }
}

/// The parser of one connection.
#[derive(Clone, Debug)]
pub struct Parser {
    limits: Limits,
    /// Bytes of a refused body that are still to come.
    skip: u64,
}

impl Parser {
    /// A parser at the start of a stream.
    pub fn new(limits: Limits) -> Self {
        Self { limits, skip: 0 }
    }

    /// What the front of `buffer` is: all bytes that were received and not taken. `is_known`: whether
    /// the client has said who it is, or need not.
    pub fn parse<'a>(&mut self, buffer: &'a [u8], is_known: bool) -> Step<'a> {
        if self.skip > 0 {
            return self.pass_over(buffer);
        }
        if buffer.first().is_some_and(|magic| *magic != REQUEST_MAGIC) {
            return Step::Close;
        }
        let Some(header) = buffer.first_chunk() else {
            return Step::More {
                needed: HEADER_BYTES,
            };
        };
        let header = Header::read(header);
        let (verb, is_quiet) = match header.verb(is_known) {
            Ok(verb) => verb,
            Err(refusal) => return self.refuse(refusal, HEADER_BYTES),
        };
        let key_at = HEADER_BYTES + header.extras;
        let value_at = key_at + header.key;
        if buffer.len() < value_at {
            return Step::More { needed: value_at };
        }
        let extras = &buffer[HEADER_BYTES..key_at];
        let key = &buffer[key_at..value_at];
        let value = header.body - (value_at - HEADER_BYTES) as u64;
        let length = usize::try_from(value).unwrap_or(usize::MAX);
        let is_too_large = match verb {
            Verb::Store(_) => !self.limits.fits(key.len(), number(extras, 0), length),
            _ => length > AUTHENTICATION_BYTES_MAX,
        };
        if is_too_large {
            let replaces = matches!(verb, Verb::Store(StoreMode::Set));
            let refusal = Refusal {
                forget: replaces.then_some(key),
                skips: value,
                ..header.refused(Status::TooLarge, false)
            };
            return self.refuse(refusal, value_at);
        }
        let taken = value_at + length;
        if buffer.len() < taken {
            return Step::More { needed: taken };
        }
        let message = Message {
            head: header.head,
            is_quiet,
            cas: header.cas,
            key,
            command: verb.command(extras, &buffer[value_at..taken]),
        };
        Step::Message { message, taken }
    }

    fn refuse<'a>(&mut self, refusal: Refusal<'a>, taken: usize) -> Step<'a> {
        self.skip = refusal.skips;
        Step::Refused { refusal, taken }
    }

    fn pass_over(&mut self, buffer: &[u8]) -> Step<'static> {
        let taken = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if taken == 0 {
            return Step::More { needed: 1 };
        }
        self.skip -= taken as u64;
        Step::Skipped { taken }
    }
}

/// A message that is whole, from who has read it before: another worker or node.
pub fn whole(text: &[u8], limits: Limits) -> Option<Message<'_>> {
    match Parser::new(limits).parse(text, true) {
        Step::Message { message, .. } => Some(message),
        _ => None,
    }
}
