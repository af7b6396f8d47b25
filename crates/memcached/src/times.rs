//! How long requests for items take, by what they ask for.
//!
//! A request that is answered in its client's turn took as long as that turn: the clock is read once
//! for all of them. One that waits, for its backups or for who owns its key, took from its client's
//! turn until its answer was there; answers that come together are timed by one look at the clock.
//! What it waits in sockets, before the node has read it or after it has written, does not count.

use std::time::Duration;

use cenote_kv::protocol::{Request, binary};
use cenote_latency::{Histogram, Latency};

/// What a request for an item asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation {
    /// Retrievals, by key; also those that give another expiry time.
    Get,
    /// Whatever stores a value.
    Set,
    Delete,
    /// Counting up and down.
    Arithmetic,
    Touch,
}

impl Operation {
    /// As they are told.
    const NAMES: [&str; 5] = ["get", "set", "delete", "arithmetic", "touch"];

    /// Of a request for one key; `None` of one that looks at memory alone.
    pub(super) fn of(request: &Request<'_>) -> Option<Self> {
        Some(match request {
            Request::Get(_) | Request::MetaGet(_) => Self::Get,
            Request::Store(_) | Request::MetaSet(_) => Self::Set,
            Request::Delete { .. } | Request::MetaDelete(_) => Self::Delete,
            Request::Arithmetic { .. } | Request::MetaArithmetic(_) => Self::Arithmetic,
            Request::Touch { .. } => Self::Touch,
            Request::Binary(message) => match message.command {
                binary::Command::Get { .. } => Self::Get,
                binary::Command::Store { .. } => Self::Set,
                binary::Command::Delete => Self::Delete,
                binary::Command::Count { .. } => Self::Arithmetic,
                binary::Command::Touch(_) => Self::Touch,
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// A request that waits for its answer, and since when.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Timed {
    operation: Operation,
    since_ns: u64,
}

/// What one worker has timed. Only it adds, any thread may read.
#[derive(Debug, Default)]
pub(super) struct Times([Histogram; Operation::NAMES.len()]);

/// Of all workers, by the names of what was asked for.
pub(super) fn latencies<'a>(
    workers: impl Iterator<Item = &'a Times> + Clone,
) -> Vec<(&'static str, Latency)> {
    let names = Operation::NAMES.into_iter().enumerate();
    names
        .map(|(at, name)| {
            let histograms = workers.clone().map(|times| &times.0[at]);
            (name, Latency::of(histograms))
        })
        .collect()
}

/// A worker's clock, as it last looked at it, and what was answered since.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    looked_ns: u64,
    answered: [u64; Operation::NAMES.len()],
}

impl Stopwatch {
    /// It is `now_ns`.
    pub(super) fn look(&mut self, now_ns: u64) {
        self.looked_ns = now_ns;
    }

    /// When it last looked.
    pub(super) fn looked_ns(&self) -> u64 {
        self.looked_ns
    }

    /// One was answered in this turn.
    pub(super) fn count(&mut self, operation: Option<Operation>) {
        if let Some(operation) = operation {
            self.answered[operation as usize] += 1;
        }
    }

    /// One is answered later.
    pub(super) fn start(&self, operation: Option<Operation>) -> Option<Timed> {
        let since_ns = self.looked_ns;
        operation.map(|operation| Timed {
            operation,
            since_ns,
        })
    }

    /// One that was waited for is there.
    pub(super) fn note(&self, times: &Times, timed: Timed) {
        let took = Duration::from_nanos(self.looked_ns.saturating_sub(timed.since_ns));
        times.0[timed.operation as usize].note(took);
    }

    /// A turn is over.
    pub(super) fn end_turn(&mut self, times: &Times, now_ns: u64) {
        let took = Duration::from_nanos(now_ns.saturating_sub(self.looked_ns));
        for (count, spread) in self.answered.iter_mut().zip(&times.0) {
            if *count > 0 {
                spread.note_alike(took, std::mem::take(count));
            }
        }
        self.looked_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_in_a_turn_took_the_turn_and_what_waits_took_its_wait() {
        let (times, mut watch) = (Times::default(), Stopwatch::default());
        watch.look(1_000);
        watch.count(Some(Operation::Get));
        watch.count(Some(Operation::Get));
        watch.count(None);
        let later = watch.start(Some(Operation::Set)).unwrap();
        assert_eq!(watch.start(None), None);
        watch.end_turn(&times, 4_000);
        // Nothing was asked in this one.
        watch.end_turn(&times, 9_000);
        watch.look(51_000);
        watch.note(&times, later);
        let latency = |operation: Operation| times.0[operation as usize].latency();
        let got = latency(Operation::Get);
        assert_eq!((got.values.count, got.sum_ns), (2, 6_000));
        let set = latency(Operation::Set);
        assert_eq!((set.values.count, set.sum_ns), (1, 50_000));
        assert_eq!(latency(Operation::Touch).values.count, 0);
    }
}
