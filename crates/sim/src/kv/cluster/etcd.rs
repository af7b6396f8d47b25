//! What stands for etcd: keys with revisions, leases that run out, watches, and what can become of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cenote_kv_cluster::etcd::Change;
use cenote_kv_cluster::injected_faults::{InjectedFault, is_injected};
use cenote_kv_cluster::store::{Entry, EtcdError, LeaseId, Listing, Store, Swap};
use cenote_measure::random::Random;

/// Changes of keys that are counted.
const SECOND_NS: u64 = 1_000_000_000;

/// See the [module](self).
pub(super) struct Etcd {
    random: Random,
    cluster: u64,
    revision: i64,
    entries: BTreeMap<String, Entry>,
    /// By number: how long it lasts, and when it runs out unless it is renewed.
    leases: BTreeMap<i64, (u64, u64)>,
    /// What changed, in order.
    log: Vec<(i64, Change)>,
    last_lease: i64,
    /// When attempts to change keys were made in the last second.
    tries: VecDeque<u64>,
    /// The most that there were in one.
    pub(super) tries_max: usize,
    pub(super) is_up: bool,
    /// Nodes that do not reach it.
    pub(super) cut: BTreeSet<u32>,
    /// It has lost what it had, once at least.
    pub(super) has_lost: bool,
    /// Percent of answers that are lost.
    pub(super) losses: u64,
    pub(super) now: u64,
}

impl Etcd {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0xe7cd),
            cluster: 1,
            revision: 1,
            entries: BTreeMap::new(),
            leases: BTreeMap::new(),
            log: Vec::new(),
            last_lease: 0,
            tries: VecDeque::new(),
            tries_max: 0,
            is_up: true,
            cut: BTreeSet::new(),
            has_lost: false,
            losses: 0,
            now: 0,
        }
    }

    /// All that it had is gone. A store that is made from scratch has another number, unless it is made by the same words.
    pub(super) fn lose(&mut self) {
        if self.random.percent(50) {
            self.cluster += 1;
        }
        self.has_lost = true;
        self.revision = 1;
        self.entries.clear();
        self.leases.clear();
        self.log.clear();
    }

    /// Time goes on: leases run out, but not while it is away.
    pub(super) fn turn(&mut self, now: u64) {
        let gap = now - self.now;
        self.now = now;
        if !self.is_up {
            // It grants every lease its full time again when it is back; never less.
            self.leases
                .values_mut()
                .for_each(|(_, until)| *until += gap);
            return;
        }
        let over = self.leases.iter().filter(|(_, (_, until))| *until <= now);
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end(id);
        }
    }

    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let of_lease = |entry: &&Entry| entry.lease == Some(LeaseId(lease));
        let keys: Vec<String> = self
            .entries
            .values()
            .filter(of_lease)
            .map(|entry| entry.key.clone())
            .collect();
        for key in keys {
            self.entries.remove(&key);
            self.revision += 1;
            let revision = self.revision;
            self.log.push((revision, Change::Deleted { key, revision }));
        }
    }

    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    fn listing(&self, prefix: &str) -> Listing {
        let all = self.entries.values();
        Listing {
            cluster: self.cluster,
            revision: self.revision,
            entries: all
                .filter(|entry| entry.key.starts_with(prefix))
                .cloned()
                .collect(),
        }
    }
}

/// The store as one node reaches it.
pub(super) struct Reached<'a> {
    pub(super) etcd: &'a RefCell<Etcd>,
    /// None: an operator, whose answers are not lost.
    pub(super) node: Option<u32>,
}

impl Reached<'_> {
    fn call<T>(&self, what: impl FnOnce(&mut Etcd) -> T) -> Result<T, EtcdError> {
        let mut etcd = self.etcd.borrow_mut();
        let silent = || EtcdError::Unreachable {
            endpoints: "simulated".to_owned(),
            last: "silence".to_owned(),
            is_silent: true,
        };
        if !etcd.is_up || self.node.is_some_and(|node| etcd.cut.contains(&node)) {
            return Err(silent());
        }
        let answer = what(&mut etcd);
        let losses = etcd.losses;
        match self.node.is_some() && etcd.random.percent(losses) {
            true => Err(silent()),
            false => Ok(answer),
        }
    }
}

impl Store for Reached<'_> {
    fn read(&self, key: &str) -> Result<Option<Entry>, EtcdError> {
        self.call(|etcd| etcd.entries.get(key).cloned())
    }

    fn swap(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Swap, EtcdError> {
        self.call(|etcd| {
            let now = etcd.now;
            etcd.tries.push_back(now);
            while etcd.tries.front().is_some_and(|at| now - at >= SECOND_NS) {
                etcd.tries.pop_front();
            }
            etcd.tries_max = etcd.tries_max.max(etcd.tries.len());
            let found = etcd.entries.get(key);
            if found.map_or(0, |entry| entry.mod_revision) != expected {
                return match found {
                    Some(entry) if entry.value == value => Swap::Done(entry.mod_revision),
                    other => Swap::Changed(other.cloned()),
                };
            }
            etcd.revision += 1;
            let entry = Entry {
                key: key.to_owned(),
                value: value.to_vec(),
                mod_revision: etcd.revision,
                lease,
            };
            etcd.entries.insert(key.to_owned(), entry.clone());
            etcd.log.push((etcd.revision, Change::Put(entry)));
            Swap::Done(etcd.revision)
        })
    }

    fn swap_with(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        others: &[(String, i64)],
    ) -> Result<Swap, EtcdError> {
        let is_changed = |(other, revision): &(String, i64)| {
            let etcd = self.etcd.borrow();
            etcd.entry(other).map_or(0, |entry| entry.mod_revision) != *revision
        };
        if others.iter().any(is_changed) {
            return Ok(Swap::Changed(self.read(key)?));
        }
        self.swap(key, expected, value, None)
    }

    fn list(&self, prefix: &str) -> Result<Listing, EtcdError> {
        self.call(|etcd| etcd.listing(prefix))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError> {
        self.call(|etcd| {
            etcd.last_lease += 1;
            let ttl = u64::try_from(ttl.as_nanos()).expect("a short time");
            etcd.leases.insert(etcd.last_lease, (ttl, etcd.now + ttl));
            LeaseId(etcd.last_lease)
        })
    }

    fn renew(&self, lease: LeaseId) -> Result<bool, EtcdError> {
        self.call(|etcd| {
            let now = etcd.now;
            let held = etcd.leases.get_mut(&lease.0);
            held.map(|(ttl, until)| *until = now + *ttl).is_some()
        })
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.call(|etcd| etcd.end(lease.0))
    }
}

/// A node's watch of all that there is: as the real one, it tells a store from another. It is another thread's, so
/// all that there was may come when there is more.
#[derive(Default)]
pub(super) struct Watch {
    cluster: Option<u64>,
    next: Option<i64>,
    /// What was listed at the last poll, and is told at the next.
    listed: Option<Change>,
}

impl Watch {
    /// All is to be read again.
    pub(super) fn restart(&mut self) {
        self.next = None;
        self.listed = None;
    }

    pub(super) fn poll(&mut self, store: &Reached<'_>, prefix: &str) -> Vec<Change> {
        if let Some(listed) = self.listed.take() {
            return vec![listed];
        }
        let known = self.cluster;
        let mut is_late = false;
        let told = store.call(|etcd| {
            let is_other = known.is_some_and(|cluster| cluster != etcd.cluster);
            let is_behind = self.next.is_some_and(|next| etcd.revision < next - 1);
            let is_noticed = (is_other || is_behind) && !is_injected(InjectedFault::LossUnseen);
            let changes = match self.next.filter(|_| !is_noticed) {
                None => {
                    is_late = etcd.random.percent(50);
                    vec![Change::Reset(etcd.listing(prefix))]
                }
                Some(next) => {
                    let since = etcd.log.iter().rev().take_while(|(at, _)| *at >= next);
                    let mut since: Vec<Change> = since.map(|(_, change)| change.clone()).collect();
                    since.reverse();
                    since
                }
            };
            (etcd.cluster, etcd.revision, changes)
        });
        let Ok((cluster, revision, changes)) = told else {
            return Vec::new();
        };
        self.cluster = Some(cluster);
        let next = revision + 1;
        // Where a loss goes unnoticed it waits for revisions that come late or never.
        self.next = Some(match is_injected(InjectedFault::LossUnseen) {
            true => next.max(self.next.unwrap_or(0)),
            false => next,
        });
        match is_late {
            true => {
                self.listed = changes.into_iter().next();
                Vec::new()
            }
            false => changes,
        }
    }
}
