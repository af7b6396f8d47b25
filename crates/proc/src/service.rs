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

use cenote_wire::{List, Reader, Writer, messages};

use crate::Response;
use crate::message::{ANY, Data, Fetch, MESSAGE_MAX, Message, Moved, NoMessage, Replicate, Sender};

pub use orders::{Label, Order, Row, Told};
pub use words::{
    DOUBTS_MAX, Doubt, Heard, Named, Opened, SlabPlace, SlabWord, Word, WordRefusal, WriteState,
    Writing,
};

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
/// Bytes of a [`Travel`] besides its request.
const HOME_BYTES: usize = 16 + 4 + 8;

messages! {
    /// What one machine asks of another.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Errand | "not an errand" {
        /// DFlow: the answer is [`Message::Data`].
        5 => Fetch(Fetch),
        /// FFlow: the answer is a [`Taking`].
        3 => Move(Travel),
        /// What became of requests that went away from there: the numbers are their tickets.
        2 => Answers(Vec<Response> as List<u32, 0, ANY>),
        /// Stores for second copies: the answer is a [`crate::message::Replicated`].
        7 => Replicate(Replicate),
    }

    /// A request on its way, with its way home.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Travel {
        /// The request, and what it needs.
        pub moved: Moved,
        /// The client, as its session names it.
        pub user: u128,
        /// The machine of the cache that answers the client.
        pub home: u32,
        /// The request, over there.
        pub ticket: u64,
    }

    /// What becomes of a request that was sent.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Taking | "unknown answer to a move" {
        /// It goes on there.
        0 => Taken,
        /// It came for nothing and was not run there.
        1 => Refused,
        /// Nobody knows whether it came.
        2 => Lost,
        /// The machine is not ready for it, and did not run it: ask again.
        3 => Early,
    }
}

impl Errand {
    /// Appends the call.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(ERRAND);
        Writer::lenient(out).put(self);
    }

    /// Reads what follows the first byte.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        // A message that moves is as long as one may be without its way home.
        let most = match bytes.first() {
            Some(3) => MESSAGE_MAX + HOME_BYTES,
            _ => MESSAGE_MAX,
        };
        if bytes.len() > most {
            return Err(NoMessage("too long"));
        }
        Ok(Reader::new(bytes).whole()?)
    }
}

impl Taking {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        Ok(Reader::new(bytes).whole()?)
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
