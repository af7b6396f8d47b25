//! How long calls of clients take, by what they ask for.
//!
//! A call that is answered at once took as long as its turn, whose calls are timed by one look at
//! the clock; one that the persister answers took until its answer is sent. What clients read and
//! write one-sided, without a call, the server does not see. The clock is the caller's.

use cenote_fabric::Time;
use cenote_latency::{Histogram, Latency};

use crate::protocol::Request;

/// What a call asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    /// Room for a value that the client writes itself.
    Space,
    /// A value that is acknowledged before it is durable, where the scheme does that.
    Put,
    PutDurable,
    /// Where a value is; a client that finds it by itself does not ask.
    Get,
    Delete,
    /// Whether a value that was written has become durable.
    Settle,
    Sync,
    List,
    Clean,
    /// How the server is.
    Figures,
}

impl Operation {
    /// As they are told.
    const NAMES: [&str; 10] = [
        "space",
        "put",
        "put_durable",
        "get",
        "delete",
        "settle",
        "sync",
        "list",
        "clean",
        "figures",
    ];

    pub fn of(request: &Request<'_>) -> Self {
        match request {
            Request::Space { .. } => Self::Space,
            Request::Put {
                is_durable: true, ..
            } => Self::PutDurable,
            Request::Put { .. } => Self::Put,
            Request::Locate { .. } | Request::Get { .. } => Self::Get,
            Request::Delete { .. } => Self::Delete,
            Request::Settle { .. } => Self::Settle,
            Request::Sync { .. } => Self::Sync,
            Request::List { .. } => Self::List,
            Request::Clean { .. } => Self::Clean,
            Request::Figures { .. } => Self::Figures,
        }
    }
}

/// A call that is answered later, and since when.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Timed {
    pub operation: Operation,
    pub since: Time,
}

/// What one thread has timed. Only it adds, any may read.
#[derive(Debug, Default)]
pub(super) struct Times([Histogram; Operation::NAMES.len()]);

impl Times {
    /// A call was answered that waited.
    pub fn note(&self, timed: Timed, now: Time) {
        self.0[timed.operation as usize].note(now.since(timed.since));
    }

    /// Of all threads, by the names of what was asked for.
    pub fn latencies<'a>(
        all: impl Iterator<Item = &'a Self> + Clone,
    ) -> Vec<(&'static str, Latency)> {
        let names = Operation::NAMES.into_iter().enumerate();
        names
            .map(|(at, name)| (name, Latency::of(all.clone().map(|times| &times.0[at]))))
            .collect()
    }
}

/// The calls of one turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    began: Option<Time>,
    answered: [u64; Operation::NAMES.len()],
}

impl Turn {
    /// A call is there: when the first of its turn was taken.
    pub fn began(&mut self, clock: fn() -> Time) -> Time {
        *self.began.get_or_insert_with(clock)
    }

    /// It was answered at once.
    pub fn count(&mut self, operation: Operation) {
        self.answered[operation as usize] += 1;
    }

    /// The turn is over.
    pub fn end(self, times: &Times, clock: fn() -> Time) {
        let Some(began) = self.began else {
            return;
        };
        let took = clock().since(began);
        for (count, spread) in self.answered.into_iter().zip(&times.0) {
            if count > 0 {
                spread.note_alike(took, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(0) };
    }

    /// A clock that goes on by a microsecond at each look.
    fn clock() -> Time {
        Time(NOW_NS.replace(NOW_NS.get() + 1_000))
    }

    #[test]
    fn calls_of_a_turn_took_the_turn_and_others_until_they_were_answered() {
        let times = Times::default();
        let mut turn = Turn::default();
        let since = turn.began(clock);
        assert_eq!(turn.began(clock), since, "the first call's");
        turn.count(Operation::Put);
        turn.count(Operation::Put);
        turn.count(Operation::Get);
        turn.end(&times, clock);
        let operation = Operation::PutDurable;
        times.note(Timed { operation, since }, Time(since.0 + 7_000));
        // Nothing was there.
        Turn::default().end(&times, clock);
        let told = Times::latencies([&times, &Times::default()].into_iter());
        let told: Vec<_> = told
            .into_iter()
            .filter(|(_, latency)| latency.values.count > 0)
            .map(|(name, latency)| (name, latency.values.count, latency.sum_ns))
            .collect();
        let expected = [
            ("put", 2, 2_000),
            ("put_durable", 1, 7_000),
            ("get", 1, 1_000),
        ];
        assert_eq!(told, expected);
    }
}
