//! INACTIVE requests: what each needs, and what it waits for.

use std::collections::BTreeMap;

use cenote_fabric::Time;

use super::Ready;
use crate::message::Need;
use crate::{CacheId, Request};

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

/// All of them, by the number that a fetch carries. A number is used once, so that an answer that
/// comes late, or twice, finds nobody.
#[derive(Debug, Default)]
pub(super) struct Parked {
    by_token: BTreeMap<u64, (Waiting, Wait)>,
    last_token: u64,
}

impl Parked {
    pub(super) fn put(&mut self, waiting: Waiting, wait: Wait) {
        self.put_with_token(waiting, wait);
    }

    pub(super) fn put_with_token(&mut self, waiting: Waiting, wait: Wait) -> u64 {
        self.last_token += 1;
        self.by_token.insert(self.last_token, (waiting, wait));
        self.last_token
    }

    pub(super) fn take(&mut self, token: u64) -> Option<(Waiting, Wait)> {
        self.by_token.remove(&token)
    }

    pub(super) fn take_for_map(&mut self, cache: CacheId, wanted: usize) -> Vec<Waiting> {
        self.take_if(|waiting, wait| {
            waiting.request.cache == cache
                && matches!(wait, Wait::Map { index } if *index == wanted)
        })
    }

    pub(super) fn take_for_lease(&mut self, cache: CacheId) -> Vec<Waiting> {
        self.take_if(|waiting, wait| {
            waiting.request.cache == cache && matches!(wait, Wait::Map { .. } | Wait::Lease)
        })
    }

    pub(super) fn take_of(&mut self, cache: CacheId) -> Vec<Waiting> {
        self.take_if(|waiting, _| waiting.request.cache == cache)
    }

    pub(super) fn take_overdue(&mut self, now: Time) -> Vec<Waiting> {
        self.take_if(|waiting, _| waiting.give_up <= now)
    }

    pub(super) fn take_retries(&mut self, now: Time) -> Vec<Waiting> {
        self.take_if(|_, wait| matches!(wait, Wait::Retry { at } if *at <= now))
    }

    fn take_if(&mut self, wanted: impl Fn(&Waiting, &Wait) -> bool) -> Vec<Waiting> {
        self.by_token
            .extract_if(.., |_, (waiting, wait)| wanted(waiting, wait))
            .map(|(_, (waiting, _))| waiting)
            .collect()
    }

    /// When the next of them gives up or asks again.
    pub(super) fn next_time(&self) -> Option<Time> {
        let time = |(waiting, wait): &(Waiting, Wait)| match wait {
            Wait::Retry { at } => waiting.give_up.min(*at),
            _ => waiting.give_up,
        };
        self.by_token.values().map(time).min()
    }

    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }
}
