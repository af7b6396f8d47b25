//! Commands and questions that a caller waits for, beside what is submitted.
//!
//! One that ends when nobody waits for it any more ends unheard: the next is another one.

use std::time::Duration;

use cenote_fabric::{Status, Time};

use super::operation::{Operation, Whose};
use super::step::Step;
use super::{Client, ClientError, Command, Outcome, Token};
use crate::protocol::{Answer, Request};
use crate::server::Figures;

/// Tokens of questions begin here; those below are operations.
pub(super) const QUESTIONS: Token = 1 << 63;

/// What is waited for.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Of the last.
    number: u64,
    /// How that one ended.
    end: Option<Result<Outcome, ClientError>>,
    /// Or what was answered to it.
    answer: Option<Result<Answer, ClientError>>,
}

impl Calls {
    /// Another one's number.
    fn begin(&mut self) -> u64 {
        let number = self.number + 1;
        *self = Self {
            number,
            ..Self::default()
        };
        number
    }

    pub fn take_end(&mut self, number: u64, end: Result<Outcome, ClientError>) {
        if number == self.number {
            self.end = Some(end);
        }
    }

    /// Whether somebody hears of the end of a command.
    pub fn hears(&self, whose: Whose) -> bool {
        match whose {
            Whose::Submitted(_) => true,
            Whose::Called(number) => number == self.number,
        }
    }
}

impl Client {
    /// Does one command to its end; a store that is busy is asked again until `limit`, and no more after it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(&mut self, command: Command, limit: Duration) -> Result<Outcome, ClientError> {
        let until = Time::now().after(limit);
        let number = self.calls.begin();
        self.begin(command, Whose::Called(number), Time::now());
        let mut polls = 0_u32;
        loop {
            let now = Time::now();
            self.progress(now);
            if let Some(end) = self.calls.end.take() {
                return end;
            }
            if now > until {
                self.abandon(number);
                return Err(ClientError::Lost(Status::Timeout));
            }
            polls += 1;
            // Answers of a thread with a processor of its own come within so many looks.
            if polls > 2_000 && self.wait(Duration::from_millis(100)).is_err() {
                self.abandon(number);
                return Err(ClientError::Lost(Status::Disconnected));
            }
        }
    }

    /// Nobody waits for a call any more. What it has not asked for by now it never does: that would come
    /// behind what is called next, and take its place.
    fn abandon(&mut self, number: u64) {
        // It is unheard from here on, not only once there is another.
        self.calls.begin();
        let is_unasked = |one: &Operation| {
            one.whose == Whose::Called(number) && matches!(one.step, Step::Call | Step::Entry)
        };
        let mut operations = self.operations.iter();
        let found = operations.position(|one| one.as_deref().is_some_and(is_unasked));
        if let Some(index) = found {
            self.resting.retain(|(_, one)| *one != index);
            self.stalled.retain(|one| *one != index);
            self.end(index, Err(ClientError::Lost(Status::Timeout)));
        }
    }

    /// Keys of one shard that begin with `prefix`, from a place of its index on, and those of some places
    /// before it, which may have moved there since; where to go on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(
        &mut self,
        shard: usize,
        slot: u64,
        prefix: &[u8],
        limit: Duration,
    ) -> Result<(Vec<Vec<u8>>, Option<u64>), ClientError> {
        let request = Request::List {
            shard: shard as u16,
            slot,
            prefix,
        };
        match self.ask(request, limit)? {
            Answer::Keys { next_slot, keys } => Ok((keys, next_slot)),
            Answer::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }

    /// All keys that begin with `prefix`, in order. `limit` is for each part of them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn keys(&mut self, prefix: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, ClientError> {
        let mut keys = Vec::new();
        for shard in 0..self.shard_count() {
            let mut slot = Some(0);
            while let Some(from) = slot {
                let (some, next) = self.list(shard, from, prefix, limit)?;
                keys.extend(some);
                slot = next;
            }
        }
        keys.sort();
        // Parts overlap, and one that moved meanwhile is seen twice.
        keys.dedup();
        Ok(keys)
    }

    /// Has all shards cleaned, in the background, in which that leaves something out.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clean(&mut self, limit: Duration) -> Result<(), ClientError> {
        for shard in 0..self.shards.len() as u16 {
            self.ask(Request::Clean { shard }, limit)?;
        }
        Ok(())
    }

    /// How much each shard holds and has done. A server of an earlier version ends the connection.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn figures(&mut self, limit: Duration) -> Result<Vec<Figures>, ClientError> {
        let shards = 0..self.shards.len() as u16;
        shards
            .map(|shard| match self.ask(Request::Figures { shard }, limit)? {
                Answer::Figures(figures) => Ok(figures),
                Answer::Refused(refusal) => Err(ClientError::Refused(refusal)),
                _ => Err(ClientError::Protocol),
            })
            .collect()
    }

    /// One question.
    fn ask(&mut self, request: Request<'_>, limit: Duration) -> Result<Answer, ClientError> {
        let until = Time::now().after(limit);
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let token = QUESTIONS + self.calls.begin();
        let full = |_| ClientError::Lost(Status::Disconnected);
        self.caller.call(&bytes, token).map_err(full)?;
        loop {
            self.progress(Time::now());
            if let Some(answer) = self.calls.answer.take() {
                return answer;
            }
            if Time::now() > until {
                return Err(ClientError::Lost(Status::Timeout));
            }
            if self.wait(Duration::from_millis(100)).is_err() {
                return Err(ClientError::Lost(Status::Disconnected));
            }
        }
    }

    /// Takes the answer to a question, unless nobody waits for it any more.
    pub(super) fn take_said(&mut self, token: Token, answer: Result<Answer, ClientError>) {
        if token == QUESTIONS + self.calls.number {
            self.calls.answer = Some(answer);
        }
    }
}
