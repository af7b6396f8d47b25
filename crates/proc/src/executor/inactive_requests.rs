//! INACTIVE requests: what each needs, and what it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use cenote_fabric::Time;

use super::{Executor, Ready};
use crate::message::Need;
use crate::{CacheId, Request, Status};

/// A request that cannot run, and nothing of it but its state.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    /// `None`: leave to step.
    pub(super) need: Option<Need>,
    /// What came so far of the bytes that it needs.
    pub(super) buffer: Vec<u8>,
    pub(super) give_up: Time,
}

impl Waiting {
    /// With the bytes that it waited for.
    pub(super) fn into_ready(self, addr: u64) -> Ready {
        Ready {
            request: self.request,
            addr,
            data: self.buffer,
        }
    }
}

/// What is to happen before a request goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// The bytes of a fetch come.
    Fetch {
        index: usize,
        generation: u64,
        size: u32,
    },
    /// A newer word about a region comes.
    Map { index: usize },
    /// The machine has more time with the cache.
    Lease,
    /// It is time to ask again.
    Retry { at: Time },
}

impl Wait {
    /// The word of its cache that it waits for: one about a region, or, before all of those, one about
    /// time. `None`: no word.
    fn word(self) -> Option<Option<usize>> {
        match self {
            Self::Map { index } => Some(Some(index)),
            Self::Lease => Some(None),
            Self::Fetch { .. } | Self::Retry { .. } => None,
        }
    }

    /// When it asks again, or gives up.
    fn due(self, give_up: Time) -> Time {
        match self {
            Self::Retry { at } => give_up.min(at),
            _ => give_up,
        }
    }
}

/// All of them, by the number that a fetch carries. A number is used once, so that an answer that
/// comes late, or twice, finds nobody.
///
/// There may be very many while a machine is silent, and words and ticks come all the time: each looks
/// at those alone that it is about.
#[derive(Debug, Default)]
pub(super) struct Parked {
    by_token: BTreeMap<u64, (Waiting, Wait)>,
    by_due: BTreeSet<(Time, u64)>,
    /// Those that wait for a word of their cache.
    by_word: BTreeSet<(CacheId, Option<usize>, u64)>,
    last_token: u64,
}

impl Parked {
    pub(super) fn put(&mut self, waiting: Waiting, wait: Wait) {
        self.put_with_token(waiting, wait);
    }

    pub(super) fn put_with_token(&mut self, waiting: Waiting, wait: Wait) -> u64 {
        self.last_token += 1;
        let token = self.last_token;
        self.by_due.insert((wait.due(waiting.give_up), token));
        if let Some(word) = wait.word() {
            self.by_word.insert((waiting.request.cache, word, token));
        }
        self.by_token.insert(token, (waiting, wait));
        token
    }

    pub(super) fn take(&mut self, token: u64) -> Option<(Waiting, Wait)> {
        let (waiting, wait) = self.by_token.remove(&token)?;
        self.by_due.remove(&(wait.due(waiting.give_up), token));
        if let Some(word) = wait.word() {
            self.by_word.remove(&(waiting.request.cache, word, token));
        }
        Some((waiting, wait))
    }

    pub(super) fn take_for_map(&mut self, cache: CacheId, wanted: usize) -> Vec<Waiting> {
        self.take_for_words(cache, Some(wanted)..=Some(wanted))
    }

    /// Those that wait for a word about this region or any behind it.
    pub(super) fn take_for_maps_from(&mut self, cache: CacheId, first: usize) -> Vec<Waiting> {
        self.take_for_words(cache, Some(first)..=Some(usize::MAX))
    }

    pub(super) fn take_for_lease(&mut self, cache: CacheId) -> Vec<Waiting> {
        self.take_for_words(cache, None..=Some(usize::MAX))
    }

    /// Whether any waits for a word about a region.
    pub(super) fn is_awaited(&self, cache: CacheId, wanted: usize) -> bool {
        let range = (cache, Some(wanted), 0)..=(cache, Some(wanted), u64::MAX);
        self.by_word.range(range).next().is_some()
    }

    fn take_for_words(
        &mut self,
        cache: CacheId,
        words: RangeInclusive<Option<usize>>,
    ) -> Vec<Waiting> {
        let range = (cache, *words.start(), 0)..=(cache, *words.end(), u64::MAX);
        let tokens = self.by_word.range(range).map(|(.., token)| *token);
        self.take_all(tokens.collect())
    }

    pub(super) fn take_of(&mut self, cache: CacheId) -> Vec<Waiting> {
        let all = self.by_token.iter();
        let of = all.filter(|(_, (waiting, _))| waiting.request.cache == cache);
        self.take_all(of.map(|(token, _)| *token).collect())
    }

    pub(super) fn take_overdue(&mut self, now: Time) -> Vec<Waiting> {
        self.take_due(now, |waiting, _| waiting.give_up <= now)
    }

    pub(super) fn take_retries(&mut self, now: Time) -> Vec<Waiting> {
        self.take_due(now, |_, wait| matches!(wait, Wait::Retry { .. }))
    }

    fn take_due(&mut self, now: Time, wanted: impl Fn(&Waiting, &Wait) -> bool) -> Vec<Waiting> {
        let due = self.by_due.range(..=(now, u64::MAX));
        let is_wanted = |token: &u64| {
            let (waiting, wait) = &self.by_token[token];
            wanted(waiting, wait)
        };
        let tokens = due.map(|(_, token)| *token).filter(is_wanted).collect();
        self.take_all(tokens)
    }

    /// In the order in which they came.
    fn take_all(&mut self, mut tokens: Vec<u64>) -> Vec<Waiting> {
        tokens.sort_unstable();
        let taken = tokens.into_iter().filter_map(|token| self.take(token));
        taken.map(|(waiting, _)| waiting).collect()
    }

    /// When the next of them gives up or asks again.
    pub(super) fn next_time(&self) -> Option<Time> {
        Some(self.by_due.first()?.0)
    }

    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }
}

impl Executor {
    /// Parks a request for a moment.
    pub(super) fn redo(&mut self, request: Request) {
        self.redo_after(request, self.limits.retry);
    }

    fn redo_after(&mut self, request: Request, pause: Duration) {
        let at = self.now.after(pause);
        let give_up = self.now.after(self.limits.wait);
        let waiting = Waiting {
            request,
            need: None,
            buffer: Vec::new(),
            give_up,
        };
        self.parked.put(waiting, Wait::Retry { at });
    }

    /// Parks a request whose procedure is being compiled here. The step that found so did not run.
    pub(super) fn await_code(&mut self, mut request: Request) {
        request.steps -= 1;
        request.refusals += 1;
        let pause = self.limits.retry.saturating_mul(CODE_RETRIES);
        match pause.saturating_mul(request.refusals) > self.limits.wait {
            true => self.answer(request, Status::TimedOut),
            false => self.redo_after(request, pause),
        }
    }

    /// Parks a request until this machine may use the cache for longer.
    pub(super) fn await_lease(&mut self, request: Request) {
        let waiting = Waiting {
            request,
            need: None,
            buffer: Vec::new(),
            give_up: self.now.after(self.limits.wait),
        };
        match self.successors.get(&waiting.request.cache) {
            Some(&successor) => self.send(waiting, successor, None, false),
            None => self.parked.put(waiting, Wait::Lease),
        }
    }
}

/// How many times as long as for other things a request waits until it looks for its code again: a
/// module takes milliseconds to compile, or seconds, and many may wait. Arbitrary.
const CODE_RETRIES: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::tests::echo;

    fn waiting(cache: u128, number: u64, give_up: u64) -> Waiting {
        let mut request = echo(1, number);
        request.cache = CacheId(cache);
        Waiting {
            request,
            need: None,
            buffer: Vec::new(),
            give_up: Time(give_up),
        }
    }

    fn numbers(all: Vec<Waiting>) -> Vec<u64> {
        all.into_iter().map(|one| one.request.number).collect()
    }

    #[test]
    fn each_word_and_each_tick_takes_those_that_it_is_about_in_their_order() {
        let mut parked = Parked::default();
        let fetch = Wait::Fetch {
            index: 3,
            generation: 1,
            size: 1,
        };
        parked.put(waiting(7, 0, 90), Wait::Map { index: 3 });
        parked.put(waiting(7, 1, 80), Wait::Map { index: 4 });
        parked.put(waiting(8, 2, 70), Wait::Map { index: 3 });
        parked.put(waiting(7, 3, 60), Wait::Lease);
        let token = parked.put_with_token(waiting(7, 4, 50), fetch);
        parked.put(waiting(7, 5, 95), Wait::Retry { at: Time(10) });
        parked.put(waiting(7, 6, 40), Wait::Map { index: 3 });
        parked.put(waiting(8, 7, 30), Wait::Retry { at: Time(99) });
        assert_eq!(parked.next_time(), Some(Time(10)));
        let awaited = |parked: &Parked, index| parked.is_awaited(CacheId(7), index);
        assert!(awaited(&parked, 3) && awaited(&parked, 4) && !awaited(&parked, 2));
        assert_eq!(numbers(parked.take_for_map(CacheId(7), 3)), [0, 6]);
        assert_eq!(numbers(parked.take_for_map(CacheId(7), 3)), []);
        assert!(!awaited(&parked, 3) && awaited(&parked, 4));
        assert_eq!(numbers(parked.take_overdue(Time(9))), []);
        assert_eq!(numbers(parked.take_overdue(Time(30))), [7]);
        assert_eq!(numbers(parked.take_retries(Time(30))), [5]);
        assert_eq!(parked.next_time(), Some(Time(50)));
        assert!(parked.take(token).is_some() && parked.take(token).is_none());
        assert_eq!(numbers(parked.take_for_lease(CacheId(7))), [1, 3]);
        assert_eq!(numbers(parked.take_of(CacheId(8))), [2]);
        assert_eq!((parked.len(), parked.next_time()), (0, None));
        assert!(parked.by_due.is_empty() && parked.by_word.is_empty());
    }
}
