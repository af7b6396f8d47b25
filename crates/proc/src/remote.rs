//! A client's end: requests for procedures over one connection to a server thread of a host.
//!
//! Requests are packed into calls; the host answers a call as soon as some requests have ended,
//! whichever they are, and gives a sign of life when none has for a while. So there is always a
//! call under way while requests are: an empty one is made when there is no other. Each request
//! ends once.

use std::time::{Duration, Instant};

use cenote_fabric::calls::{CALL_BYTES_MAX, CALLS_UNDER_WAY_MAX, Caller};
use cenote_fabric::{Status as Fault, Time, wait};
use cenote_proc_sdk::STATE_MAX;

use crate::message::{Message, Sender, write_request};
use crate::service::REQUESTS;
use crate::{CacheId, ProcedureId, Status};

/// Requests under way on one connection at most; a host answers `Busy` to more.
pub const REQUESTS_MAX: usize = 1024;

/// See the module's text.
pub struct Remote {
    caller: Box<dyn Caller>,
    /// Most requests in a call.
    batch: usize,
    packing: Vec<u8>,
    packed: u32,
    /// What is packed was to be sent, and had to wait.
    is_flushed: bool,
    slots: Vec<Slot>,
    free: Vec<u32>,
    ended: Vec<Ended>,
    /// The end of what [`Remote::run`] waits for.
    answer: Option<Reply>,
}

/// How a request ended and its answer, or why the host does not say.
pub type Reply = Result<(Status, Vec<u8>), Cut>;

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Counts the requests that had it.
    life: u32,
    whose: Whose,
    stage: Stage,
}

/// Who is told of a request's end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Whose {
    /// [`Remote::run`], which has one request under way.
    #[default]
    Run,
    /// Who polls: the token.
    Submitted(u64),
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Free,
    Packed,
    Sent,
}

/// The end of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// As submitted.
    pub token: u64,
    /// See [`Reply`].
    pub result: Reply,
}

/// The host was lost before it answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the host was lost ({why:?}) before it answered")]
pub struct Cut {
    /// How.
    pub why: Fault,
    /// Whether the request was sent, so that it may have run, or may run still: who repeats one
    /// that writes may have it done twice.
    pub may_have_run: bool,
}

/// As many requests are under way as there may be. Poll, then submit again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no room for another request on this connection")]
pub struct Full;

impl Remote {
    /// Over `caller`, with up to `batch` requests in a call.
    ///
    /// # Panics
    /// If `batch` is 0.
    #[must_use]
    pub fn new(caller: Box<dyn Caller>, batch: usize) -> Self {
        assert!(batch > 0, "batches of no request");
        Self {
            caller,
            batch,
            packing: Vec::new(),
            packed: 0,
            is_flushed: false,
            slots: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            answer: None,
        }
    }

    /// Asks for a procedure. It is sent when the batch is full, or with [`Remote::flush`].
    ///
    /// # Errors
    /// [`Full`]: nothing was submitted.
    ///
    /// # Panics
    /// If the argument is longer than [`STATE_MAX`].
    pub fn submit(
        &mut self,
        cache: CacheId,
        procedure: ProcedureId,
        argument: &[u8],
        token: u64,
    ) -> Result<(), Full> {
        self.pack(cache, procedure, argument, Whose::Submitted(token))
    }

    fn pack(
        &mut self,
        cache: CacheId,
        procedure: ProcedureId,
        argument: &[u8],
        whose: Whose,
    ) -> Result<(), Full> {
        assert!(argument.len() <= STATE_MAX, "an argument is a state");
        let is_full = self.packed as usize >= self.batch
            || self.packing.len() + REQUEST_BYTES + argument.len() > CALL_BYTES_MAX;
        if is_full && !self.send() {
            return Err(Full);
        }
        let Some(index) = self.slot() else {
            return Err(Full);
        };
        let slot = &mut self.slots[index as usize];
        slot.life = slot.life.wrapping_add(1);
        (slot.whose, slot.stage) = (whose, Stage::Packed);
        let number = u64::from(slot.life) << 32 | u64::from(index);
        if self.packing.is_empty() {
            self.packing.extend([REQUESTS, 1, 0, 0, 0, 0]);
        }
        write_request(number, cache, procedure, argument, &mut self.packing);
        self.packed += 1;
        Ok(())
    }

    /// Sends what was submitted.
    pub fn flush(&mut self) {
        self.is_flushed = self.packed > 0 && !self.send();
        self.caller.flush();
    }

    /// Makes progress without blocking, and appends what ended.
    pub fn poll(&mut self, now: Time, ended: &mut Vec<Ended>) {
        let (slots, free) = (&mut self.slots, &mut self.free);
        let (own, own_answer) = (&mut self.ended, &mut self.answer);
        let mut cut = None;
        self.caller.poll(now, &mut |_, answer| {
            let read = answer.and_then(|bytes| {
                Message::read(bytes, Sender::Server).map_err(|_| Fault::Protocol)
            });
            match read {
                Ok(Message::Responses(responses)) => {
                    for response in responses {
                        let index = response.number as u32;
                        let life = (response.number >> 32) as u32;
                        let slot = slots.get_mut(index as usize);
                        let mine =
                            |slot: &&mut Slot| slot.life == life && slot.stage == Stage::Sent;
                        // A host that answers what nobody asked is not believed, and not obeyed.
                        if let Some(slot) = slot.filter(mine) {
                            slot.stage = Stage::Free;
                            free.push(index);
                            let result = Ok((response.status, response.state.into_vec()));
                            tell(slot.whose, result, own, own_answer);
                        }
                    }
                }
                Ok(_) => cut = Some(Fault::Protocol),
                Err(why) => cut = Some(why),
            }
        });
        if self.caller.is_dead() && self.caller.outstanding() == 0 {
            cut = cut.or(Some(Fault::Disconnected));
        }
        if let Some(why) = cut {
            self.end_all(why);
        } else if self.is_flushed || (self.packed as usize) >= self.batch {
            self.flush();
        } else if self.outstanding() > 0 && self.caller.outstanding() == 0 && self.packed == 0 {
            // What the host has to say comes as an answer: it gets a call to answer.
            if self.caller.call(&EMPTY, 0).is_ok() {
                self.caller.flush();
            }
        }
        ended.append(&mut self.ended);
    }

    /// Requests submitted and not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the connection is gone for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.caller.is_dead()
    }

    /// Blocks until [`Remote::poll`] would make progress, or for so long. Call it after a poll.
    pub fn wait(&self, patience: Duration) {
        let fds: Vec<_> = self.caller.fd().into_iter().collect();
        // What cannot be waited for is polled for.
        drop(wait(&fds, Some(patience)));
    }

    /// Asks for one procedure and waits for its end. Others that end meanwhile are told by the next poll.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn run(&mut self, cache: CacheId, procedure: ProcedureId, argument: &[u8]) -> Reply {
        let not_sent = Cut {
            why: Fault::Disconnected,
            may_have_run: false,
        };
        self.pack(cache, procedure, argument, Whose::Run)
            .map_err(|Full| not_sent)?;
        self.flush();
        let mut others = Vec::new();
        loop {
            self.poll(Time::now(), &mut others);
            if let Some(result) = self.answer.take() {
                self.ended = others;
                return result;
            }
            self.wait(WAIT);
        }
    }

    fn slot(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = u32::try_from(self.slots.len()).ok()?;
        if self.slots.len() == REQUESTS_MAX {
            return None;
        }
        self.slots.push(Slot::default());
        Some(index)
    }

    /// Makes a call of what is packed; false: it has to wait.
    fn send(&mut self) -> bool {
        if self.packed == 0 {
            return true;
        }
        // One call is kept for the host to answer to.
        if self.caller.outstanding() >= CALLS_UNDER_WAY_MAX - 1 {
            return false;
        }
        self.packing[2..6].copy_from_slice(&self.packed.to_le_bytes());
        if self.caller.call(&self.packing, 0).is_err() {
            return false;
        }
        let mut numbers = &self.packing[6..];
        for _ in 0..self.packed {
            // Our own bytes: number, cache, procedure, length, state.
            let index = u32::from_le_bytes(numbers[..4].try_into().expect("4 bytes"));
            self.slots[index as usize].stage = Stage::Sent;
            let len = u32::from_le_bytes(numbers[28..32].try_into().expect("4 bytes"));
            numbers = &numbers[REQUEST_BYTES + len as usize..];
        }
        self.packing.clear();
        self.packed = 0;
        self.is_flushed = false;
        true
    }

    fn end_all(&mut self, why: Fault) {
        self.packing.clear();
        self.packed = 0;
        for (index, slot) in (0..).zip(&mut self.slots) {
            let stage = std::mem::take(&mut slot.stage);
            if stage == Stage::Free {
                continue;
            }
            self.free.push(index);
            let may_have_run = stage == Stage::Sent;
            let cut = Cut { why, may_have_run };
            tell(slot.whose, Err(cut), &mut self.ended, &mut self.answer);
        }
    }
}

fn tell(whose: Whose, result: Reply, ended: &mut Vec<Ended>, answer: &mut Option<Reply>) {
    match whose {
        Whose::Run => *answer = Some(result),
        Whose::Submitted(token) => ended.push(Ended { token, result }),
    }
}

/// Makes one call and waits for its answer, for at most `patience`: for words and orders.
///
/// # Errors
/// As the call's end, or `Timeout`.
pub fn exchange(
    caller: &mut dyn Caller,
    call: &[u8],
    patience: Duration,
) -> Result<Vec<u8>, Fault> {
    let deadline = Instant::now() + patience;
    caller.call(call, 0).map_err(|_| Fault::Timeout)?;
    caller.flush();
    let mut end = None;
    loop {
        caller.poll(Time::now(), &mut |_, answer| {
            end = Some(answer.map(<[u8]>::to_vec));
        });
        if let Some(end) = end {
            return end;
        }
        if Instant::now() >= deadline {
            return Err(Fault::Timeout);
        }
        let fds: Vec<_> = caller.fd().into_iter().collect();
        drop(wait(&fds, Some(WAIT)));
    }
}

/// Of a request without its state, in a call.
const REQUEST_BYTES: usize = 8 + 16 + 4 + 4;
/// A batch of no request.
const EMPTY: [u8; 6] = [REQUESTS, 1, 0, 0, 0, 0];
/// How long a wait lasts before the connection's own timeout is looked at.
const WAIT: Duration = Duration::from_millis(50);
