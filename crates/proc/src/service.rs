//! What calls of procedures to a host carry, and their bytes.
//!
//! The first byte of a call says for which service of the host it is. Clients send batches of
//! requests ([`crate::message`]); the owner of a cache says where its slabs are ([`Word`]); other
//! machines send requests and ask for bytes ([`Errand`]); who puts procedures there does it in
//! pieces ([`Order`]).
//!
//! Numbers and lists are as in [`crate::message`]: each form is read in one way, lengths are
//! checked first. Byte tables: docs/protocols/procedures.md.

mod orders;
mod words;

use crate::Response;
use crate::message::{
    Data, Fetch, Input, Message, Moved, NoMessage, Sender, put_u32, put_u64, put_u128,
    write_responses,
};

pub use orders::{Label, Order, Row, Told};
pub use words::{Heard, Named, Opened, SlabPlace, SlabWord, Word, WordRefusal};

/// A call with a batch of requests: what follows is [`Message::Requests`].
pub const REQUESTS: u8 = 2;
/// A call of another machine: what follows is an [`Errand`].
pub const ERRAND: u8 = 3;
/// A call of a cache's owner: what follows is a [`Word`].
pub const WORD: u8 = 4;
/// A call of who puts procedures there: what follows is an [`Order`].
pub const ORDER: u8 = 5;

/// Machines of a cache at most.
pub const MACHINES_MAX: usize = 256;
/// Clients that an owner may name for a cache.
pub const USERS_MAX: usize = 256;
/// In place of a client: whoever holds the cluster's key.
pub const EVERYBODY: u128 = u128::MAX;
/// Slabs of a cache at most.
pub const SLABS_MAX: u32 = 1 << 16;
/// Bytes of a machine's address at most.
pub const ADDRESS_MAX: usize = 512;
/// Bytes of a module that one call brings at most.
pub const PIECE_MAX: usize = 32 << 10;
/// Caches that a procedure's grants name at most.
pub const GRANTS_MAX: usize = 256;
/// Bytes of a reason at most.
pub const REASON_MAX: usize = 1024;
/// Bytes of a procedure's name at most.
pub const NAME_MAX: usize = 64;

/// What one machine asks of another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Errand {
    /// DFlow: the answer is [`Message::Data`].
    Fetch(Fetch),
    /// FFlow: the answer is a [`Taking`].
    Move(Travel),
    /// What became of requests that went away from there: the numbers are their tickets.
    Answers(Vec<Response>),
}

/// A request on its way, with its way home.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Travel {
    /// The client, as its session names it.
    pub user: u128,
    /// The machine of the cache that answers the client.
    pub home: u32,
    /// The request, over there.
    pub ticket: u64,
    /// The request, and what it needs.
    pub moved: Moved,
}

/// What becomes of a request that was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Taking {
    /// It goes on there.
    Taken = 0,
    /// It came for nothing and was not run there.
    Refused = 1,
    /// Nobody knows whether it came.
    Lost = 2,
    /// The machine is not ready for it, and did not run it: ask again.
    Early = 3,
}

impl Errand {
    /// Appends the call.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(ERRAND);
        match self {
            Self::Fetch(fetch) => Message::Fetch(fetch.clone()).write(out),
            Self::Move(travel) => {
                Message::Moved(travel.moved.clone()).write(out);
                put_u128(out, travel.user);
                put_u32(out, travel.home);
                put_u64(out, travel.ticket);
            }
            Self::Answers(responses) => write_responses(responses, out),
        }
    }

    /// Reads what follows the first byte.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        match bytes.first() {
            Some(2) => match Message::read(bytes, Sender::Server)? {
                Message::Responses(responses) => Ok(Self::Answers(responses)),
                _ => Err(NoMessage("not an errand")),
            },
            Some(3) => {
                const HOME_BYTES: usize = 16 + 4 + 8;
                let at = bytes.len().checked_sub(HOME_BYTES);
                let (moved, home) = bytes.split_at(at.ok_or(NoMessage("too short"))?);
                let Message::Moved(moved) = Message::read(moved, Sender::Machine)? else {
                    return Err(NoMessage("not an errand"));
                };
                let mut input = Input(home);
                Ok(Self::Move(Travel {
                    user: input.u128()?,
                    home: input.u32()?,
                    ticket: input.u64()?,
                    moved,
                }))
            }
            _ => match Message::read(bytes, Sender::Machine)? {
                Message::Fetch(fetch) => Ok(Self::Fetch(fetch)),
                _ => Err(NoMessage("not an errand")),
            },
        }
    }
}

impl Taking {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        match bytes {
            [0] => Ok(Self::Taken),
            [1] => Ok(Self::Refused),
            [2] => Ok(Self::Lost),
            [3] => Ok(Self::Early),
            _ => Err(NoMessage("unknown answer to a move")),
        }
    }
}

/// Reads the answer to a [`Fetch`].
///
/// # Errors
/// [`NoMessage`].
pub fn read_data(bytes: &[u8]) -> Result<Data, NoMessage> {
    match Message::read(bytes, Sender::Machine)? {
        Message::Data(data) => Ok(data),
        _ => Err(NoMessage("not the answer to a fetch")),
    }
}

#[cfg(test)]
mod tests;
