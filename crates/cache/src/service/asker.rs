//! A question to the manager of a cache, from one who is no client of it.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use cenote_fabric::{Address, ClusterKey, Time, Waker, wait};

use super::correspondent::{Correspondent, Told};
use super::question::{Answer, Question};
use crate::client;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A read or a write failed; the error names the region.
    #[error(transparent)]
    Request(#[from] client::Error),
    /// The cache was deleted, or its time is over: open another one.
    #[error("the cache is gone")]
    Gone,
    /// The manager did not answer in time. What was asked may be done or not.
    #[error("the manager does not answer within {0:?}")]
    Silent(Duration),
    /// The connection to the manager ended before it answered. What was asked may be done or not.
    #[error("the manager's connection ended before it answered: what was asked may be done or not")]
    Ended,
    /// No manager is there, and nothing was asked.
    #[error("no manager is there")]
    NoManager,
    /// The manager refuses, and did nothing.
    #[error("{0}")]
    Refused(String),
    /// What was asked stands, and is done once the manager's disk has it; why that is not yet.
    #[error("{0}")]
    Pending(String),
    /// The system refuses to wait.
    #[error(transparent)]
    Fabric(#[from] cenote_fabric::Error),
}

impl CallError {
    /// Whether the same call can succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Request(error) => error.is_retryable(),
            Self::Silent(_) | Self::Ended | Self::NoManager | Self::Pending(_) => true,
            Self::Gone | Self::Refused(_) | Self::Fabric(_) => false,
        }
    }
}

/// Asks the manager at one of `addresses`, and waits for its answer up to `timeout`.
///
/// # Errors
/// `Silent`: no manager answers; `Ended`: it ended while it was asked; `Refused`: it says why not;
/// `Pending`: it says why not yet; `Fabric`: the system refuses.
pub fn ask(
    addresses: Vec<Address>,
    key: &ClusterKey,
    question: &Question,
    timeout: Duration,
) -> Result<Answer, CallError> {
    ask_while(addresses, key, question, timeout, &mut || true)
}

/// The same, as long as `is_there` says that there is a manager: it is looked at while there is no
/// connection. What changes nothing is asked again on the next connection.
///
/// # Errors
/// As [`ask`]; `NoManager`: none is there, and nothing was asked.
pub fn ask_while(
    addresses: Vec<Address>,
    key: &ClusterKey,
    question: &Question,
    timeout: Duration,
    is_there: &mut dyn FnMut() -> bool,
) -> Result<Answer, CallError> {
    const NUMBER: u32 = 1;
    const REST: Duration = Duration::from_millis(20);
    let waker = Waker::new()?;
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| CallError::Refused(format!("read random bytes: {error}")))?;
    let hello = Correspondent::hello("cenote cache", u128::from_le_bytes(bytes));
    let mut manager = Correspondent::new(addresses, key, hello, waker.clone());
    let bytes = serde_json::to_vec(question).expect("plain data");
    manager.say_question(NUMBER, bytes.clone());
    let begun = Time::now();
    let mut told = Vec::new();
    loop {
        let now = Time::now();
        manager.receive(now, &mut told);
        manager.send(now, false);
        for one in told.drain(..) {
            match one {
                Told::Answer(NUMBER, text) => return read(&text),
                Told::Refused(refusal) => return Err(CallError::Refused(refusal.to_string())),
                Told::Unanswered(NUMBER) if question.is_repeatable() => {
                    manager.say_question(NUMBER, bytes.clone());
                }
                Told::Unanswered(NUMBER) => return Err(CallError::Ended),
                Told::Answer(..) | Told::Unanswered(_) | Told::Message(_) => {}
            }
        }
        if !manager.is_connected() && !is_there() {
            return Err(CallError::NoManager);
        }
        if now.since(begun) >= timeout {
            return Err(CallError::Silent(timeout));
        }
        let fds = [Some(waker.as_fd().as_raw_fd()), manager.fd()];
        let fds: Vec<_> = fds.into_iter().flatten().collect();
        wait(&fds, Some(REST))?;
        waker.clear();
    }
}

/// What an answer says.
pub(super) fn read(text: &[u8]) -> Result<Answer, CallError> {
    match serde_json::from_slice(text) {
        Ok(Answer::Error(why)) => Err(CallError::Refused(why)),
        Ok(Answer::Pending(why)) => Err(CallError::Pending(why)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(CallError::Refused(format!("its answer: {error}"))),
    }
}
