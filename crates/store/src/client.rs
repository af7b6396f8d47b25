//! A client of a store: PUTs and GETs under way over one data connection and one for calls.
//!
//! One thread's. Operations are submitted and polled; each is the steps of the store's scheme
//! ([`crate::schemes`]), in `operation.rs`. What a GET reads one-sided counts only if the key, the place, the
//! epoch and the flag are right, and if the half of the log that it was read from was not given up meanwhile.
//! Header and value are two READs on one connection: they take effect in that order, so that a flag which is
//! there was there before the value was read. One READ of both may fetch the value first.
//! Paper: eFactory, hybrid GET.

mod calls;
mod connector;
mod operation;
mod silence;
mod step;
mod verbs;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::calls::Caller;
use cenote_fabric::{
    Address, ClientId, Connector, Error, Incoming, RemoteWindow, Session, Status, Time, wait,
};

use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::pool::{Condition, hash};
use crate::protocol::{ACK, Answer, INLINE_BYTES_MAX, Notice, Refusal};
use crate::schemes::{PutStep, Scheme};
use crate::server::shard_of;

use calls::{Calls, QUESTIONS};
pub use connector::Connecting;
use operation::{Operation, Whose};
use silence::{ASKED_AFTER, IS_THERE, QUESTION, Silence};
use step::Step;
use verbs::Verbs;

/// Chosen by who submits, returned with the end.
pub type Token = u64;

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Puts a value by the store's scheme.
    Put {
        /// 1 to 250 bytes.
        key: Vec<u8>,
        /// At most 1 MiB.
        value: Vec<u8>,
        /// On which version there is.
        condition: Condition,
        /// Whether it ends when the value is durable.
        is_durable: bool,
    },
    /// Gets the newest value.
    Get {
        /// 1 to 250 bytes.
        key: Vec<u8>,
    },
    /// Deletes a key, durably.
    Delete {
        /// 1 to 250 bytes.
        key: Vec<u8>,
        /// On which version there is.
        condition: Condition,
    },
    /// Ends when all that this client put is durable, or was given up.
    Sync,
}

/// How it ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Put, or deleted: the version.
    Done {
        /// Its name.
        sequence: u64,
    },
    /// Got.
    Value {
        /// The version.
        sequence: u64,
        /// Its bytes.
        value: Vec<u8>,
    },
    /// There is none.
    Absent,
    /// All is durable but so many versions that were given up: their values did not come.
    Synced {
        /// Since the last time.
        lost: u64,
    },
}

/// Why it did not.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server's word. `Busy` alone is worth another try.
    #[error("the store refused: {0:?}")]
    Refused(Refusal),
    /// The connection ended; a change may have been made.
    #[error("the connection to the store ended: {0:?}")]
    Lost(Status),
    /// The server said nonsense.
    #[error("the store said what it may not say")]
    Protocol,
    /// Keys have 1 to 250 bytes; values at most 1 MiB, or what the store's scheme has room for in a call.
    #[error(
        "a key of {key_bytes} bytes, a value of {value_bytes}: the store takes keys of 1 to \
         {KEY_BYTES_MAX} and values of up to {value_bytes_max}"
    )]
    Size {
        /// Of the key.
        key_bytes: usize,
        /// Of the value.
        value_bytes: usize,
        /// Of a value, the most.
        value_bytes_max: usize,
    },
}

impl ClientError {
    /// Whether the same may be asked again, and nothing was done.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        self == Self::Refused(Refusal::Busy)
    }
}

/// The end of a command.
pub type End = (Token, Result<Outcome, ClientError>);

/// What a GET cost, for benchmarks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// GETs that READs alone answered.
    pub pure_gets: u64,
    /// GETs that asked the server.
    pub asked_gets: u64,
}

/// A connection to a store.
pub struct Client {
    // Dropped first: from then on nothing lands in operations' memory.
    verbs: Verbs,
    caller: Box<dyn Caller>,
    session: Box<dyn Session>,
    address: Address,
    scheme: Box<dyn Scheme>,
    seed: u64,
    shards: Vec<RemoteShard>,
    landing: RemoteWindow,
    operations: Vec<Option<Box<Operation>>>,
    free: Vec<usize>,
    /// Those that wait for the server to have time, and when they ask again.
    resting: VecDeque<(Time, usize)>,
    /// Those that found a connection full.
    stalled: VecDeque<usize>,
    ended: VecDeque<End>,
    calls: Calls,
    silence: Silence,
    request: Vec<u8>,
    counts: Counts,
    /// What `now`s are read from.
    clock: fn() -> Time,
    /// Versions that were given up, as syncs that ended were told.
    lost: u64,
    trace: Option<Vec<&'static str>>,
}

/// What is read of a shard.
#[derive(Clone, Debug)]
struct RemoteShard {
    entry_count: u64,
    index: RemoteWindow,
    log: RemoteWindow,
}

/// How long a refused command rests.
const REST: Duration = Duration::from_micros(200);

impl Client {
    /// Connects to a store.
    ///
    /// # Errors
    /// As [`Connector::connect`]; `Protocol`: what is there is no store.
    pub fn connect(
        connector: &dyn Connector,
        address: &Address,
        client: ClientId,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let until = Time::now().after(timeout);
        let mut connecting = Connecting::begin(connector, address, client, timeout)?;
        while !connecting.advance()? {
            let now = Time::now();
            if now >= until {
                return Err(Error::Timeout(timeout));
            }
            let fds: Vec<_> = connecting.session.fd().into_iter().collect();
            wait(&fds, Some(until.since(now)))?;
        }
        connecting.finish(timeout)
    }

    /// Where the store is, as it was named.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Goes by another clock than the machine's, which each `now` is of as well: a simulator's.
    pub fn set_clock(&mut self, clock: fn() -> Time) {
        self.clock = clock;
    }

    /// The store's scheme.
    #[must_use]
    pub fn scheme(&self) -> &dyn Scheme {
        &*self.scheme
    }

    /// Shards of the store.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// What GETs cost so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Notes each message and verb from here on, by name.
    pub fn begin_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What was sent since.
    pub fn end_trace(&mut self) -> Vec<&'static str> {
        self.trace.take().unwrap_or_default()
    }

    /// Begins a command; it ends with [`Client::poll`]. What it sends goes out with the next poll or wait,
    /// together with what others send.
    pub fn submit(&mut self, command: Command, token: Token, now: Time) {
        self.begin(command, Whose::Submitted(token), now);
    }

    fn begin(&mut self, command: Command, whose: Whose, now: Time) {
        let (key_bytes, value_bytes) = match &command {
            Command::Put { key, value, .. } => (key.len(), value.len()),
            Command::Get { key } | Command::Delete { key, .. } => (key.len(), 0),
            Command::Sync => (1, 0),
        };
        let value_bytes_max = match self.has_space_step() {
            true => VALUE_BYTES_MAX,
            // All of it goes with the call.
            false => INLINE_BYTES_MAX,
        };
        if !(1..=KEY_BYTES_MAX).contains(&key_bytes) || value_bytes > value_bytes_max {
            let error = ClientError::Size {
                key_bytes,
                value_bytes,
                value_bytes_max,
            };
            return self.tell(whose, Err(error));
        }
        let (shard, hash) = match &command {
            Command::Put { key, .. } | Command::Get { key } | Command::Delete { key, .. } => {
                let shard = shard_of(self.seed, key, self.shards.len());
                (shard, hash(self.seed, key))
            }
            Command::Sync => (0, 0),
        };
        let lost = self.lost;
        let calls_carry = self.calls_carry_values();
        let operation = Operation::new(
            command,
            whose,
            shard,
            hash,
            &*self.scheme,
            calls_carry,
            lost,
        );
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.operations.push(None);
                self.operations.len() - 1
            }
        };
        self.operations[index] = Some(Box::new(operation));
        self.go_on(index, now);
    }

    /// Whether clients ask for space, and write values there.
    fn has_space_step(&self) -> bool {
        self.scheme.put_steps().contains(&PutStep::CallForSpace)
    }

    /// Whether values travel in calls and their answers as far as they fit. Over TCP no network card
    /// reads and writes memory: the server's processor has the same work, and a call has all of it done
    /// in one round trip instead of two.
    fn calls_carry_values(&self) -> bool {
        matches!(self.address, Address::Tcp(_)) && self.scheme.lands_beside_log()
    }

    /// Commands that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// Makes progress without blocking; the next end, if there is one.
    pub fn poll(&mut self, now: Time) -> Option<End> {
        if let Some(end) = self.ended.pop_front() {
            return Some(end);
        }
        self.progress(now);
        self.ended.pop_front()
    }

    /// Waits until polling may bring something, for at most `timeout`.
    ///
    /// # Errors
    /// `Os`: the system refuses to wait.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        Self::wait_for_any(std::slice::from_mut(self), timeout)
    }

    /// Waits until polling one of `clients` may bring something, for at most `timeout`.
    ///
    /// # Errors
    /// `Os`: the system refuses to wait.
    pub fn wait_for_any(clients: &mut [Self], timeout: Duration) -> Result<(), Error> {
        Self::wait_with(clients, None, timeout)
    }

    /// Waits until polling may bring something, or `other` is readable, for at most `timeout`.
    ///
    /// # Errors
    /// `Os`: the system refuses to wait.
    pub fn wait_beside(&mut self, other: RawFd, timeout: Duration) -> Result<(), Error> {
        Self::wait_with(std::slice::from_mut(self), Some(other), timeout)
    }

    fn wait_with(
        clients: &mut [Self],
        other: Option<RawFd>,
        mut timeout: Duration,
    ) -> Result<(), Error> {
        for client in &mut *clients {
            client.flush();
            if !client.resting.is_empty() || !client.stalled.is_empty() {
                timeout = timeout.min(Duration::from_millis(1));
            }
            if client.caller.outstanding() > 0 {
                timeout = timeout.min(ASKED_AFTER);
            }
        }
        let fds = |client: &Self| [client.caller.fd(), client.verbs.fd(), client.session.fd()];
        let fds = clients.iter().flat_map(fds).flatten();
        let fds: Vec<_> = fds.chain(other).collect();
        wait(&fds, Some(timeout)).map(drop)
    }

    fn progress(&mut self, now: Time) {
        let mut answers: Vec<(Token, Result<Answer, ClientError>)> = Vec::new();
        self.caller.poll(now, &mut |token, said| {
            let answer = match said {
                Ok(bytes) => Answer::decode(bytes).map_err(|_| ClientError::Protocol),
                Err(status) => Err(ClientError::Lost(status)),
            };
            answers.push((token, answer));
        });
        let has_answered = !answers.is_empty();
        for (token, answer) in answers {
            match token {
                IS_THERE => self.silence.answered(),
                QUESTIONS.. => self.take_said(token, answer),
                index => self.take_answer(index as usize, answer, now),
            }
        }
        while let Some((index, status)) = self.verbs.poll(now) {
            self.take_completion(index, status, now);
        }
        self.take_messages(now);
        while let Some((until, index)) = self.resting.front().copied() {
            if until > now {
                break;
            }
            self.resting.pop_front();
            self.go_on(index, now);
        }
        for _ in 0..self.stalled.len() {
            if let Some(index) = self.stalled.pop_front() {
                self.go_on(index, now);
            }
        }
        let owed = self.caller.outstanding();
        if self.silence.is_question_due(has_answered, owed, now) {
            self.ask_whether_it_is_there();
        }
        self.flush();
    }

    fn ask_whether_it_is_there(&mut self) {
        let mut bytes = std::mem::take(&mut self.request);
        QUESTION.encode(&mut bytes);
        // Without room for it the next round asks.
        if self.caller.call(&bytes, IS_THERE).is_ok() {
            self.silence.asked();
        }
        self.request = bytes;
    }

    fn flush(&mut self) {
        self.verbs.flush();
        self.caller.flush();
    }

    /// Acknowledgements of notices.
    fn take_messages(&mut self, now: Time) {
        if !self.scheme.put_steps().contains(&PutStep::AwaitAck) {
            return;
        }
        loop {
            match self.session.receive() {
                Ok(Some(Incoming::Message(bytes))) => {
                    let notice = Notice::decode(&bytes).ok();
                    let Some(notice) = notice.filter(|notice| notice.kind == ACK) else {
                        continue;
                    };
                    let waits = |one: &Operation| one.waits_for_ack(notice.shard, notice.sequence);
                    let mut operations = self.operations.iter();
                    let found = operations.position(|one| one.as_deref().is_some_and(waits));
                    if let Some(index) = found {
                        let operation = self.operations[index].as_mut().expect("it was found");
                        operation.step = operation.step.acknowledged(notice.is_durable);
                        self.go_on(index, now);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => return self.fail_waiting(),
            }
        }
    }

    /// The session ended: acknowledgements do not come any more.
    fn fail_waiting(&mut self) {
        for index in 0..self.operations.len() {
            let waits = |one: &Operation| matches!(one.step, Step::Acknowledged { .. });
            if self.operations[index].as_deref().is_some_and(waits) {
                self.end(index, Err(ClientError::Lost(Status::Disconnected)));
            }
        }
    }

    fn end(&mut self, index: usize, end: Result<Outcome, ClientError>) {
        if let Some(operation) = self.operations[index].take() {
            self.free.push(index);
            self.tell(operation.whose, end);
        }
    }

    fn tell(&mut self, whose: Whose, end: Result<Outcome, ClientError>) {
        match whose {
            Whose::Submitted(token) => self.ended.push_back((token, end)),
            Whose::Called(number) => self.calls.take_end(number, end),
        }
    }

    fn note(&mut self, what: &'static str) {
        if let Some(trace) = &mut self.trace {
            trace.push(what);
        }
    }
}
