//! Requests that wait for the medium, and so for the persister.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use cenote_fabric::{ClientId, Time};

use super::books::Waiter;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::landing::Area;
use crate::medium::Medium;
use crate::pool::{Condition, Located, Pool, StoreError, VersionLocation};
use crate::protocol::Request;

/// What the persister does for a request, since it waits for the medium.
#[derive(Debug)]
pub(super) struct Job {
    pub kind: JobKind,
    pub client: ClientId,
    pub area: Option<Arc<Area>>,
    pub waiter: Waiter,
    pub key: Vec<u8>,
    /// Versions from here on turned out not to be whole, or came after a read was asked for.
    pub below: u64,
    /// The sequence that was the next one when it came.
    pub came_before: u64,
    /// When it came: perhaps later than the turn began that does it.
    pub since: Time,
    /// How often the persister had looked at values when it came.
    pub looks: u64,
}

/// What walks of keys' versions came to while a shard is locked and nothing is changed: of one key, whose
/// client chooses how many versions are walked, many may ask.
#[derive(Debug, Default)]
pub(super) struct Walks {
    located: HashMap<(Vec<u8>, u64), Located>,
    /// Below which version a read goes on after a look.
    passed: HashMap<(Vec<u8>, u64), u64>,
}

impl Walks {
    /// As [`Pool::locate`].
    pub fn locate<M: Medium>(
        &mut self,
        pool: &Pool<M>,
        key: &[u8],
        below: u64,
    ) -> Result<Located, StoreError> {
        Ok(match self.located.entry((key.to_vec(), below)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(pool.locate(key, below)?),
        })
    }
}

/// What waits for the persister, and what it has in hand: of all clients and of each, so that one that
/// asks for more than it may have is told to come back, and others are not.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    new: Vec<Job>,
    all: Load,
    of_client: HashMap<ClientId, Load>,
}

/// Jobs, and bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    jobs: usize,
    bytes: usize,
}

/// Most of all clients.
const LOAD_MAX: Load = Load {
    jobs: 16_384,
    bytes: 128 << 20,
};
/// Most of one.
const CLIENT_LOAD_MAX: Load = Load {
    jobs: LOAD_MAX.jobs / 8,
    bytes: LOAD_MAX.bytes / 8,
};

impl Load {
    fn has_room(self, bytes: usize, most: Self) -> bool {
        self.jobs < most.jobs && self.bytes + bytes <= most.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.jobs += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.jobs -= 1;
        self.bytes -= bytes;
    }
}

impl Jobs {
    /// Takes one more; `false`: its client, or all of them, have too many.
    pub fn add(&mut self, job: Job) -> bool {
        let bytes = job.len_bytes();
        let own = self.of_client.get(&job.client).copied().unwrap_or_default();
        if !self.all.has_room(bytes, LOAD_MAX) || !own.has_room(bytes, CLIENT_LOAD_MAX) {
            return false;
        }
        self.all.add(bytes);
        self.of_client.entry(job.client).or_default().add(bytes);
        self.new.push(job);
        true
    }

    /// Those that came since the last time. They count until they [`end`](Self::end).
    pub fn take(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.new)
    }

    /// One of these is over.
    pub fn end(&mut self, job: &Job) {
        let bytes = job.len_bytes();
        self.all.remove(bytes);
        if let Some(own) = self.of_client.get_mut(&job.client) {
            own.remove(bytes);
            if own.jobs == 0 {
                self.of_client.remove(&job.client);
            }
        }
    }

    /// Whether none came since they were taken.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }
}

#[derive(Debug)]
pub(super) enum JobKind {
    Locate,
    Space {
        condition: Condition,
        value_bytes: u32,
        checksum: u32,
    },
    Put {
        condition: Condition,
        is_durable: bool,
        value: Vec<u8>,
    },
    Delete {
        condition: Condition,
    },
}

impl Job {
    /// The version that has to be durable, or known not to be whole, before the job is done.
    ///
    /// A read takes the one below a version that is not whole, and awaits none that came after it: of a key
    /// that is put all the time there is always another. A change that is made of one version goes by the
    /// newest, named or not: two of them would be made of one otherwise.
    pub fn awaits<M: Medium>(&self, pool: &Pool<M>, walks: &mut Walks) -> Option<u64> {
        if !self.is_conditional() {
            return match walks.locate(pool, &self.key, self.below) {
                Ok(Located::Waiting(sequence)) => Some(sequence),
                _ => None,
            };
        }
        if self.refused_by(pool, walks).is_some() {
            return None;
        }
        let mut is_older = |sequence: &u64| match walks.locate(pool, &self.key, u64::MAX) {
            Ok(Located::Durable(place)) => *sequence < place.sequence,
            Ok(_) => false,
            // The medium failed: nothing is waited for.
            Err(_) => true,
        };
        pool.newest_waiting(&self.key)
            .filter(|sequence| !is_older(sequence))
    }

    /// The durable version for which a change is refused whatever becomes of those that wait: the one that it
    /// is made of is not the newest any more, or the key has had a value since it came.
    pub fn refused_by<M: Medium>(
        &self,
        pool: &Pool<M>,
        walks: &mut Walks,
    ) -> Option<VersionLocation> {
        let condition = self.condition().filter(|_| self.is_conditional())?;
        // Past all that wait.
        let Ok(Located::Durable(newest)) = walks.locate(pool, &self.key, 0) else {
            return None;
        };
        let is_refused = match condition {
            Condition::Always => false,
            Condition::Absent => newest.sequence >= self.came_before,
            Condition::Sequence(sequence) => newest.sequence > sequence,
        };
        is_refused.then_some(newest)
    }

    /// Awaits no more what a look found not to be whole; `waiting` is ascending. A read goes past all of
    /// these, a change that is made of one version asks again after the first.
    pub fn pass_over<M: Medium>(&mut self, pool: &Pool<M>, waiting: &[u64], walks: &mut Walks) {
        let is_waiting = |sequence: &u64| waiting.binary_search(sequence).is_ok();
        if self.is_conditional() {
            if let Some(sequence) = self.awaits(pool, walks).filter(is_waiting) {
                self.below = sequence;
            }
            return;
        }
        let question = (self.key.clone(), self.below);
        self.below = *walks.passed.entry(question).or_insert_with(|| {
            // In one walk: clients choose how many there are.
            let mut below = self.below;
            _ = pool.locate_where(&self.key, |sequence| {
                if sequence < below && is_waiting(&sequence) {
                    below = sequence;
                }
                sequence < below
            });
            below
        });
    }

    /// Whether it is such a change, and the version that it awaits turned out not to be whole.
    pub fn is_tried(&self) -> bool {
        self.is_conditional() && self.below < u64::MAX
    }

    fn len_bytes(&self) -> usize {
        let value_bytes = match &self.kind {
            JobKind::Put { value, .. } => value.len(),
            _ => 0,
        };
        self.key.len() + value_bytes
    }

    /// Of a change.
    fn condition(&self) -> Option<Condition> {
        match self.kind {
            JobKind::Locate => None,
            JobKind::Space { condition, .. }
            | JobKind::Put { condition, .. }
            | JobKind::Delete { condition } => Some(condition),
        }
    }

    fn is_conditional(&self) -> bool {
        self.condition().is_some_and(|one| one != Condition::Always)
            && !is_injected(InjectedFault::UnwrittenPassedOver)
    }
}

/// Of a request that waits: a locate, or a change. `next_sequence` is the pool's, `newest` the key's newest
/// version that waits: reads that come between two of them ask for the same.
pub(super) fn job_of(
    request: Request<'_>,
    client: ClientId,
    area: Option<&Arc<Area>>,
    waiter: Waiter,
    next_sequence: u64,
    newest: Option<u64>,
    now: Time,
) -> Job {
    let below = match request {
        Request::Locate { .. } => newest.map_or(next_sequence, |newest| newest + 1),
        _ => u64::MAX,
    };
    let (kind, key) = match request {
        Request::Space {
            condition,
            value_bytes,
            checksum,
            key,
        } => (
            JobKind::Space {
                condition,
                value_bytes,
                checksum,
            },
            key,
        ),
        Request::Put {
            condition,
            is_durable,
            key,
            value,
        } => (
            JobKind::Put {
                condition,
                is_durable,
                value: value.to_vec(),
            },
            key,
        ),
        Request::Delete { condition, key } => (JobKind::Delete { condition }, key),
        Request::Locate { key } => (JobKind::Locate, key),
        _ => unreachable!("requests that no job is made of"),
    };
    Job {
        kind,
        client,
        area: area.cloned(),
        waiter,
        key: key.to_vec(),
        below,
        came_before: next_sequence,
        since: now,
        looks: 0,
    }
}
