//! What travels between clients and machines, and its bytes.
//!
//! Every number is little-endian. A message is a kind, one byte, then its fields; lists and states
//! are preceded by their length. What is read here comes from peers: lengths are checked before
//! anything is kept, and what is left over makes a message invalid.

use cenote_proc_sdk::{DATA_MAX, STATE_MAX};

use crate::{CacheId, ClientId, Machine, ProcedureId, Request, Response, State, Status, Trap};

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 64 << 10;

/// What a request waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Need {
    /// Bytes, wherever it is: DFlow.
    Data {
        /// Of the first.
        addr: u64,
        /// How many.
        size: u32,
    },
    /// To be where these bytes begin: FFlow.
    Place {
        /// Of the first.
        addr: u64,
        /// How many.
        size: u32,
    },
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

/// A request that goes on at another machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Moved {
    /// Who sent it, and takes it back if it is refused.
    pub from: Machine,
    /// What it needs there; nothing if it can run anywhere.
    pub need: Option<Need>,
    /// Of the region that it needs, as the sender knows it.
    pub generation: u64,
    /// By a machine that the region had left; at most once.
    pub forwarded: bool,
    /// With its state.
    pub request: Request,
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
    pub size: u32,
    /// Of the region, as the asker knows it.
    pub generation: u64,
    /// As in [`Moved`].
    pub forwarded: bool,
}

/// Why bytes did not come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The region is elsewhere by now.
    Stale,
    /// The machine has not heard of the region yet.
    Early,
    /// There is no such region.
    OutOfBounds,
}

/// The answer to a [`Fetch`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Data {
    /// The fetch's.
    pub token: u64,
    /// The bytes.
    pub bytes: Result<Vec<u8>, Refusal>,
}

/// Anything that travels.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// Of a client.
    Requests(Vec<Request>),
    /// To a client.
    Responses(Vec<Response>),
    /// FFlow.
    Moved(Moved),
    /// FFlow, back.
    Refused(Refused),
    /// DFlow.
    Fetch(Fetch),
    /// DFlow, back.
    Data(Data),
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

impl Message {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Requests(requests) => write_requests(requests, out),
            Self::Responses(responses) => write_responses(responses, out),
            Self::Moved(moved) => {
                out.push(3);
                put_moved(out, moved);
            }
            Self::Refused(refused) => {
                out.push(4);
                put_moved(out, &refused.moved);
            }
            Self::Fetch(fetch) => {
                out.push(5);
                put_u32(out, fetch.from.0);
                put_u64(out, fetch.token);
                put_u128(out, fetch.cache.0);
                put_u64(out, fetch.addr);
                put_u32(out, fetch.size);
                put_u64(out, fetch.generation);
                out.push(u8::from(fetch.forwarded));
            }
            Self::Data(data) => {
                out.push(6);
                put_u64(out, data.token);
                match &data.bytes {
                    Ok(bytes) => {
                        out.push(0);
                        put_bytes(out, bytes);
                    }
                    Err(Refusal::Stale) => out.push(1),
                    Err(Refusal::Early) => out.push(2),
                    Err(Refusal::OutOfBounds) => out.push(3),
                }
            }
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`NoMessage`]: the peer is broken or hostile, and its connection ends.
    pub fn read(bytes: &[u8], sender: Sender) -> Result<Self, NoMessage> {
        if bytes.len() > MESSAGE_MAX {
            return Err(NoMessage("too long"));
        }
        let mut input = Input(bytes);
        let message = match (input.u8()?, sender) {
            (1, Sender::Client(client)) => {
                let count = input.u32()? as usize;
                let one = |input: &mut Input<'_>| input.request(client);
                Self::Requests(input.list(count, REQUEST_BYTES, one)?)
            }
            (2, Sender::Server) => {
                let count = input.u32()? as usize;
                Self::Responses(input.list(count, RESPONSE_BYTES, Input::response)?)
            }
            (3, Sender::Machine) => Self::Moved(input.moved()?),
            (4, Sender::Machine) => Self::Refused(Refused {
                moved: input.moved()?,
            }),
            (5, Sender::Machine) => Self::Fetch(input.fetch()?),
            (6, Sender::Machine) => Self::Data(input.data()?),
            _ => return Err(NoMessage("unknown kind, or not this sender's")),
        };
        input.end()?;
        Ok(message)
    }
}

/// Appends the message of a batch of requests.
pub fn write_requests(requests: &[Request], out: &mut Vec<u8>) {
    out.push(1);
    put_u32(out, count(requests.len()));
    for request in requests {
        put_u64(out, request.number);
        put_u128(out, request.cache.0);
        put_u32(out, request.procedure.0);
        put_bytes(out, &request.state);
    }
}

/// Appends the message of a batch of answers.
pub fn write_responses(responses: &[Response], out: &mut Vec<u8>) {
    out.push(2);
    put_u32(out, count(responses.len()));
    for response in responses {
        put_u64(out, response.number);
        let (status, detail) = status_number(response.status);
        out.push(status);
        put_u32(out, detail);
        put_bytes(out, &response.state);
    }
}

pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], NoMessage> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(NoMessage("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NoMessage> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(NoMessage("too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, NoMessage> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, NoMessage> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, NoMessage> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, NoMessage> {
        self.array().map(u128::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, NoMessage> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NoMessage("neither yes nor no")),
        }
    }

    pub(crate) fn text(&mut self, most: usize) -> Result<String, NoMessage> {
        String::from_utf8(self.bytes(most)?).map_err(|_| NoMessage("not text"))
    }

    /// Nothing is left over.
    pub(crate) fn end(&self) -> Result<(), NoMessage> {
        match self.0 {
            [] => Ok(()),
            _ => Err(NoMessage("bytes left over")),
        }
    }

    pub(crate) fn bytes(&mut self, most: usize) -> Result<Vec<u8>, NoMessage> {
        self.field(most).map(<[u8]>::to_vec)
    }

    fn state(&mut self) -> Result<State, NoMessage> {
        self.field(STATE_MAX).map(State::from_slice)
    }

    fn field(&mut self, most: usize) -> Result<&'a [u8], NoMessage> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(NoMessage("a field is too long"));
        }
        self.take(len)
    }

    /// `least` bytes are an item's at least, so that a count cannot claim more than the message
    /// has.
    pub(crate) fn list<T>(
        &mut self,
        count: usize,
        least: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, NoMessage>,
    ) -> Result<Vec<T>, NoMessage> {
        if count > self.0.len() / least {
            return Err(NoMessage("too short for its count"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn request(&mut self, client: ClientId) -> Result<Request, NoMessage> {
        Ok(Request {
            client,
            number: self.u64()?,
            cache: CacheId(self.u128()?),
            procedure: ProcedureId(self.u32()?),
            steps: 0,
            state: self.state()?,
        })
    }

    fn response(&mut self) -> Result<Response, NoMessage> {
        let number = self.u64()?;
        let (kind, detail) = (self.u8()?, self.u32()?);
        Ok(Response {
            number,
            status: status(kind, detail)?,
            state: self.state()?,
        })
    }

    fn need(&mut self) -> Result<Option<Need>, NoMessage> {
        let kind = self.u8()?;
        if kind == 0 {
            return Ok(None);
        }
        let (addr, size) = (self.u64()?, self.size()?);
        match kind {
            1 => Ok(Some(Need::Data { addr, size })),
            2 => Ok(Some(Need::Place { addr, size })),
            _ => Err(NoMessage("unknown need")),
        }
    }

    fn size(&mut self) -> Result<u32, NoMessage> {
        let size = self.u32()?;
        if !(1..=DATA_MAX).contains(&(size as usize)) {
            return Err(NoMessage("a size that no request has"));
        }
        Ok(size)
    }

    fn moved(&mut self) -> Result<Moved, NoMessage> {
        let from = Machine(self.u32()?);
        let need = self.need()?;
        let generation = self.u64()?;
        let forwarded = self.bool()?;
        let client = ClientId(self.u64()?);
        let steps = self.u32()?;
        let mut request = self.request(client)?;
        request.steps = steps;
        Ok(Moved {
            from,
            need,
            generation,
            forwarded,
            request,
        })
    }

    fn fetch(&mut self) -> Result<Fetch, NoMessage> {
        Ok(Fetch {
            from: Machine(self.u32()?),
            token: self.u64()?,
            cache: CacheId(self.u128()?),
            addr: self.u64()?,
            size: self.size()?,
            generation: self.u64()?,
            forwarded: self.bool()?,
        })
    }

    fn data(&mut self) -> Result<Data, NoMessage> {
        let token = self.u64()?;
        let bytes = match self.u8()? {
            0 => Ok(self.bytes(DATA_MAX)?),
            1 => Err(Refusal::Stale),
            2 => Err(Refusal::Early),
            3 => Err(Refusal::OutOfBounds),
            _ => return Err(NoMessage("unknown refusal")),
        };
        Ok(Data { token, bytes })
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_u128(out: &mut Vec<u8>, number: u128) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, count(bytes.len()));
    out.extend_from_slice(bytes);
}

pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("lists and states are bounded where they are made")
}

fn put_moved(out: &mut Vec<u8>, moved: &Moved) {
    put_u32(out, moved.from.0);
    match moved.need {
        None => out.push(0),
        Some(need) => {
            out.push(match need {
                Need::Data { .. } => 1,
                Need::Place { .. } => 2,
            });
            let (addr, size) = need.range();
            put_u64(out, addr);
            put_u32(out, size);
        }
    }
    put_u64(out, moved.generation);
    out.push(u8::from(moved.forwarded));
    let request = &moved.request;
    put_u64(out, request.client.0);
    put_u32(out, request.steps);
    put_u64(out, request.number);
    put_u128(out, request.cache.0);
    put_u32(out, request.procedure.0);
    put_bytes(out, &request.state);
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

fn status(kind: u8, detail: u32) -> Result<Status, NoMessage> {
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
        _ => return Err(NoMessage("unknown status")),
    };
    match status {
        Status::Trapped(Trap::Failed(_)) => Ok(status),
        _ if detail == 0 => Ok(status),
        _ => Err(NoMessage("a detail that no status has")),
    }
}

/// Of a request without a state.
const REQUEST_BYTES: usize = 32;
/// Of an answer without a state.
const RESPONSE_BYTES: usize = 17;

#[cfg(test)]
pub(crate) mod tests;
