//! What travels between clients and machines, and its bytes.
//!
//! Every number is little-endian. A message is a kind, one byte, then its fields; lists and states
//! are preceded by their length. What is read here comes from peers: lengths are checked before
//! anything is kept, and what is left over makes a message invalid.

use cenote_proc_sdk::{DATA_MAX, STATE_MAX};
use cenote_wire::{Bytes, Field, Layout, List, Malformed, Reader, Tagged, Taken, Writer, messages};

use crate::{CacheId, ClientId, Machine, ProcedureId, Request, Response, State, Status, Trap};

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Bytes of a [`Piece`] at most.
pub const PIECE_MAX: usize = 16 << 10;
/// As many items as the message has.
pub(crate) const ANY: usize = u32::MAX as usize;

messages! {
    /// Anything that travels.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Message | "unknown kind, or not this sender's" {
        /// Of a client.
        1 => Requests(Vec<Request> as List<u32, 0, ANY, New>),
        /// To a client.
        2 => Responses(Vec<Response> as List<u32, 0, ANY>),
        /// FFlow.
        3 => Moved(Moved),
        /// FFlow, back.
        4 => Refused(Refused),
        /// DFlow.
        5 => Fetch(Fetch),
        /// DFlow, back.
        6 => Data(Data),
        /// Stores, for second copies.
        7 => Replicate(Replicate),
    }

    /// A request that goes on at another machine.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Moved {
        /// Who sent it, and takes it back if it is refused.
        pub from: Machine,
        /// What it needs there; nothing if it can run anywhere.
        pub need: Option<Need> as OrNone,
        /// Of the region that it needs, as the sender knows it.
        pub generation: u64,
        /// By a machine that the region had left; at most once.
        pub forwarded: bool,
        /// With its state.
        pub request: Request as Underway,
    }

    /// What a request waits for.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Need | "unknown need" {
        /// Bytes, wherever it is: DFlow.
        1 => Data {
            /// Of the first.
            addr: u64,
            /// How many.
            size: u32 as Size,
        },
        /// To be where these bytes begin: FFlow.
        2 => Place {
            /// Of the first.
            addr: u64,
            /// How many.
            size: u32 as Size,
        },
    }

    /// A request that came to a machine for nothing.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Refused {
        /// As it came.
        pub moved: Moved,
    }

    /// Bytes that a machine asks for: DFlow.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Fetch {
        /// Who gets them.
        pub from: Machine,
        /// The asker's, echoed.
        pub token: u64,
        /// Of the cache.
        pub cache: CacheId,
        /// Of the first byte.
        pub addr: u64,
        /// Of one region.
        pub size: u32 as Size,
        /// Of the region, as the asker knows it.
        pub generation: u64,
        /// As in [`Moved`].
        pub forwarded: bool,
    }

    /// Why bytes did not come.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Refusal | "unknown refusal" {
        /// The region is elsewhere by now.
        1 => Stale,
        /// The machine has not heard of the region yet.
        2 => Early,
        /// There is no such region.
        3 => OutOfBounds,
    }

    /// The answer to a [`Fetch`].
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Data {
        /// The fetch's.
        pub token: u64,
        /// The bytes.
        pub bytes: Result<Vec<u8>, Refusal> as BytesOrRefusal,
    }

    /// Stores that second copies are to have: all of them, or none unless the end says that nobody
    /// knows.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Replicate {
        /// The sender's.
        pub token: u64,
        /// Of the cache.
        pub cache: CacheId,
        /// Each in one region.
        pub pieces: Vec<Piece> as List<u32, 0, ANY>,
    }

    /// Bytes for the second copy of a region.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Piece {
        /// Of the first.
        pub addr: u64,
        /// Of the region, as the sender knows it.
        pub generation: u64,
        /// At most [`PIECE_MAX`].
        pub bytes: Vec<u8> as Bytes<u32, PIECE_MAX>,
    }

    /// What became of a [`Replicate`].
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Replicated | "unknown answer to stores" {
        /// The second copies have all of it.
        0 => Written,
        /// None has any of it: the region is elsewhere, or on the move, or the machine has no time.
        1 => Refused,
        /// Some may have some of it, or come to have it.
        2 => InDoubt,
    }

    for Response { number, status, state as StateBytes }
    for CacheId { 0 }
    for ClientId { 0 }
    for Machine { 0 }
    for ProcedureId { 0 }
}

impl Need {
    /// The bytes: address and length.
    #[must_use]
    pub fn range(self) -> (u64, u32) {
        match self {
            Self::Data { addr, size } | Self::Place { addr, size } => (addr, size),
        }
    }
}

/// Who is at the other end, as the connection's handshake says. Nobody may send what is not his.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sender {
    /// Requests come from here, all in this client's name.
    Client(ClientId),
    /// Answers come from here.
    Server,
    /// Another machine of the cache: requests and bytes on their way.
    Machine,
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a message of procedures: {0}")]
pub struct NoMessage(pub &'static str);

impl From<Malformed> for NoMessage {
    fn from(Malformed(wrong): Malformed) -> Self {
        Self(wrong)
    }
}

impl Message {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        Writer::lenient(out).put(self);
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`NoMessage`]: the peer is broken or hostile, and its connection ends.
    pub fn read(bytes: &[u8], sender: Sender) -> Result<Self, NoMessage> {
        if bytes.len() > MESSAGE_MAX {
            return Err(NoMessage("too long"));
        }
        let kinds = match sender {
            Sender::Client(_) => 1..=1,
            Sender::Server => 2..=2,
            Sender::Machine => 3..=7,
        };
        if bytes.first().is_some_and(|kind| !kinds.contains(kind)) {
            return Err(NoMessage("unknown kind, or not this sender's"));
        }
        let mut message = Reader::new(bytes).whole()?;
        if let (Self::Requests(requests), Sender::Client(client)) = (&mut message, sender) {
            for request in requests {
                request.client = client;
            }
        }
        Ok(message)
    }
}

impl Piece {
    /// What it takes of a message.
    pub(crate) fn len_bytes(&self) -> usize {
        8 + 8 + 4 + self.bytes.len()
    }
}

impl Replicated {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        Ok(Reader::new(bytes).whole()?)
    }
}

/// Appends the message of a batch of requests.
pub fn write_requests(requests: &[Request], out: &mut Vec<u8>) {
    let mut out = Writer::lenient(out);
    out.put(&(1_u8, count(requests.len())));
    for request in requests {
        New::put(request, &mut out);
    }
}

/// Appends one request of a batch.
pub(crate) fn write_request(
    number: u64,
    cache: CacheId,
    procedure: ProcedureId,
    argument: &[u8],
    out: &mut Vec<u8>,
) {
    let mut out = Writer::lenient(out);
    out.put(&(number, cache, procedure));
    out.put_as::<Bytes<u32, STATE_MAX>, _>(&argument);
}

/// Appends the message of a batch of answers.
pub fn write_responses(responses: &[Response], out: &mut Vec<u8>) {
    let mut out = Writer::lenient(out);
    out.put(&(2_u8, count(responses.len())));
    for response in responses {
        out.put(response);
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("batches are bounded where they are made")
}

/// A request that was not run yet, without the client: the connection says who that is.
struct New;

impl<'a> Layout<'a, Request> for New {
    fn put(value: &Request, out: &mut Writer<'_>) {
        out.put(&(value.number, value.cache, value.procedure));
        out.put_as::<StateBytes, _>(&value.state);
    }

    fn take(input: &mut Reader<'a>) -> Taken<Request> {
        Ok(Request {
            number: input.take()?,
            cache: input.take()?,
            procedure: input.take()?,
            state: input.take_as::<StateBytes, _>()?,
            ..Request::default()
        })
    }
}

/// A request between machines: whose it is, how far it is, and then as one that is new.
struct Underway;

impl<'a> Layout<'a, Request> for Underway {
    fn put(value: &Request, out: &mut Writer<'_>) {
        out.put(&(value.client, value.steps));
        out.put_as::<New, _>(value);
    }

    fn take(input: &mut Reader<'a>) -> Taken<Request> {
        let (client, steps) = input.take()?;
        let request = input.take_as::<New, _>()?;
        Ok(Request {
            client,
            steps,
            ..request
        })
    }
}

struct StateBytes;

impl<'a> Layout<'a, State> for StateBytes {
    fn put(value: &State, out: &mut Writer<'_>) {
        out.put_as::<Bytes<u32, STATE_MAX>, _>(&&value[..]);
    }

    fn take(input: &mut Reader<'a>) -> Taken<State> {
        let bytes = input.take_as::<Bytes<u32, STATE_MAX>, &[u8]>();
        bytes.map(State::from_slice)
    }
}

/// 1 to [`DATA_MAX`].
struct Size;

impl<'a> Layout<'a, u32> for Size {
    fn put(value: &u32, out: &mut Writer<'_>) {
        out.put(value);
    }

    fn take(input: &mut Reader<'a>) -> Taken<u32> {
        let size: u32 = input.take()?;
        if !(1..=DATA_MAX).contains(&(size as usize)) {
            return Err(Malformed("a size that no request has"));
        }
        Ok(size)
    }
}

/// 0 for none; needs have the other numbers.
struct OrNone;

impl<'a> Layout<'a, Option<Need>> for OrNone {
    fn put(value: &Option<Need>, out: &mut Writer<'_>) {
        match value {
            Some(need) => out.put(need),
            None => out.put(&0_u8),
        }
    }

    fn take(input: &mut Reader<'a>) -> Taken<Option<Need>> {
        match input.take()? {
            0 => Ok(None),
            kind => Need::take_tagged(kind, input).map(Some),
        }
    }
}

/// 0 and the bytes; refusals have the other numbers.
struct BytesOrRefusal;

impl<'a> Layout<'a, Result<Vec<u8>, Refusal>> for BytesOrRefusal {
    fn put(value: &Result<Vec<u8>, Refusal>, out: &mut Writer<'_>) {
        match value {
            Ok(bytes) => {
                out.put(&0_u8);
                out.put_as::<Bytes<u32, DATA_MAX>, _>(bytes);
            }
            Err(refusal) => out.put(refusal),
        }
    }

    fn take(input: &mut Reader<'a>) -> Taken<Result<Vec<u8>, Refusal>> {
        match input.take()? {
            0 => input.take_as::<Bytes<u32, DATA_MAX>, _>().map(Ok),
            number => Refusal::take_tagged(number, input).map(Err),
        }
    }
}

/// The status' number, and what a procedure failed with; 0 where it did not.
impl<'a> Field<'a> for Status {
    fn put(&self, out: &mut Writer<'_>) {
        out.put(&status_number(*self));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        let (kind, detail) = input.take()?;
        status(kind, detail)
    }
}

fn status_number(status: Status) -> (u8, u32) {
    match status {
        Status::Done => (0, 0),
        Status::Stopped => (1, 0),
        Status::Busy => (2, 0),
        Status::TooManySteps => (3, 0),
        Status::TimedOut => (4, 0),
        Status::OutOfBounds => (5, 0),
        Status::Lost => (12, 0),
        Status::Trapped(Trap::Failed(code)) => (6, code),
        Status::Trapped(Trap::TooLong) => (7, 0),
        Status::Trapped(Trap::Crashed) => (8, 0),
        Status::Trapped(Trap::BadVerdict) => (9, 0),
        Status::Trapped(Trap::Unknown) => (10, 0),
        Status::Trapped(Trap::Denied) => (11, 0),
        Status::Trapped(Trap::Gone) => (13, 0),
    }
}

fn status(kind: u8, detail: u32) -> Taken<Status> {
    let status = match kind {
        0 => Status::Done,
        1 => Status::Stopped,
        2 => Status::Busy,
        3 => Status::TooManySteps,
        4 => Status::TimedOut,
        5 => Status::OutOfBounds,
        6 => Status::Trapped(Trap::Failed(detail)),
        7 => Status::Trapped(Trap::TooLong),
        8 => Status::Trapped(Trap::Crashed),
        9 => Status::Trapped(Trap::BadVerdict),
        10 => Status::Trapped(Trap::Unknown),
        11 => Status::Trapped(Trap::Denied),
        13 => Status::Trapped(Trap::Gone),
        12 => Status::Lost,
        _ => return Err(Malformed("unknown status")),
    };
    match status {
        Status::Trapped(Trap::Failed(_)) => Ok(status),
        _ if detail == 0 => Ok(status),
        _ => Err(Malformed("a detail that no status has")),
    }
}

#[cfg(test)]
pub(crate) mod tests;
