//! Whether a server that owes answers is there.
//!
//! A connection without an answer for a second counts as failed, and a disk's fence takes longer at times. So a
//! server that is silent is asked what it answers at once: a version that nobody has ever put.

use std::time::Duration;

use cenote_fabric::Time;

use super::Token;
use crate::protocol::Request;

/// How long a server that owes answers may be silent before it is asked: a few questions go into the time
/// after which its connection counts as failed.
pub(super) const ASKED_AFTER: Duration = Duration::from_millis(300);
/// Of the answer.
pub(super) const IS_THERE: Token = Token::MAX;

/// What it is asked. Every server knows the question.
pub(super) const QUESTION: Request<'static> = Request::Settle {
    shard: 0,
    sequence: 0,
};

/// How long a server has been silent.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// `None`: it owes nothing.
    since: Option<Time>,
    /// The question is under way.
    is_asked: bool,
}

impl Silence {
    /// Whether the server is to be asked now; `has_answered`: since the last time.
    pub fn is_question_due(&mut self, has_answered: bool, owed: usize, now: Time) -> bool {
        if owed == 0 {
            self.since = None;
            return false;
        }
        if has_answered {
            self.since = Some(now);
        }
        let since = *self.since.get_or_insert(now);
        !self.is_asked && now.since(since) >= ASKED_AFTER
    }

    pub fn asked(&mut self) {
        self.is_asked = true;
    }

    pub fn answered(&mut self) {
        self.is_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_once_it_was_silent_and_again_after_its_answer() {
        let mut silence = Silence::default();
        let at = |millis: u64| Time(millis * 1_000_000);
        assert!(!silence.is_question_due(false, 0, at(1000)));
        // It owes something from here on.
        assert!(!silence.is_question_due(false, 1, at(2000)));
        assert!(!silence.is_question_due(true, 1, at(2200)));
        assert!(!silence.is_question_due(false, 1, at(2499)));
        assert!(silence.is_question_due(false, 1, at(2500)));
        silence.asked();
        assert!(!silence.is_question_due(false, 2, at(3400)));
        silence.answered();
        assert!(!silence.is_question_due(true, 1, at(3450)));
        assert!(silence.is_question_due(false, 1, at(3750)));
        // Nothing is owed: the next time begins anew.
        assert!(!silence.is_question_due(false, 0, at(3750)));
        assert!(!silence.is_question_due(false, 1, at(9000)));
    }
}
