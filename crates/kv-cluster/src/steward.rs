//! A node's part in what is agreed on: views, who is registered, and what the store has of both.
//!
//! Pure but for the [`Store`]: it takes changes of the store ([`Steward::take`]) and proposals of the lanes, and says
//! what the lanes are to be told ([`Notice`]). One key for each group has its view, changed by compare-and-swap. Until
//! the outcome of a proposal is known the group has no other.
//!
//! Invariant: a group's first view is written by the first node of its plan, once, when all of the plan are
//! registered, and never into a store that was [seeded](super::seeder) again: after that a group starts from scratch by command.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_kv::group::process::Process;
use cenote_kv::group::view::{self, View};
use cenote_kv::group::wire::{decode_view, encode_view};

use super::NodeId;
use super::backoff::Backoff;
use super::balance::{self, Balance, HandOver};
use super::config::{ClusterConfig, DocumentKeys, NodeState, Registration, Scheme};
use super::etcd::Change;
use super::seeding::{Seeding, Testimony};
use super::store::{Entry, LeaseId, Listing, Store, Swap};
use crate::injected_faults::{InjectedFault, is_injected};

/// Between two tries to do what etcd does not have yet, in nanoseconds.
const RETRY_NS: u64 = 50_000_000;
/// The first pause, at the most, after etcd did not say what became of a proposal ...
const RETRY_LEAST: Duration = Duration::from_millis(50);
/// ... and all later ones: nothing fails over meanwhile.
const RETRY_MOST: Duration = Duration::from_secs(1);

/// A view that a lane proposes.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Of which group.
    pub group: usize,
    /// The view.
    pub view: View,
}

/// Asks a process what it has; nothing: it does not answer, or is another one.
pub type Ask<'a> = &'a dyn Fn(&Steward, Process) -> Option<Testimony>;

/// What the lanes are to be told, in this order.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A view stands.
    View {
        /// Of which group.
        group: usize,
        /// The view.
        view: Arc<View>,
        /// It was proposed here.
        is_ours: bool,
    },
    /// What was proposed was not agreed on, for sure.
    Refused {
        /// For which group.
        group: usize,
        /// The number of that view.
        number: u32,
    },
    /// A node is registered; none: it is not any more.
    Node {
        /// Which.
        node: NodeId,
        /// How, and with what the registration goes.
        found: Option<(Registration, Option<LeaseId>)>,
    },
    /// The store was seeded again: all that was agreed on in the former one has been told.
    Seeded(u64),
    /// A partition of this node is to go to another, for owners to be spread.
    HandOver(HandOver),
    /// A later process has this one's name.
    Replaced,
}

/// A view, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The revision of its key; none: the store does not have it any more.
    pub(super) revision: Option<i64>,
    /// The revision of what the store has in its place; 0: nothing.
    pub(super) instead: i64,
    pub(super) view: Arc<View>,
}

/// See the [module](self).
pub struct Steward {
    pub(super) me: Process,
    pub(super) keys: DocumentKeys,
    pub(super) config: Arc<ClusterConfig>,
    /// By group: the nodes of the plan, data first.
    plan: Vec<Vec<NodeId>>,
    pub(super) registered: BTreeMap<NodeId, Registration>,
    /// Every node that was ever heard of, as it was last registered.
    pub(super) names: BTreeMap<NodeId, String>,
    pub(super) views: BTreeMap<usize, Known>,
    proposals: BTreeMap<usize, Proposal>,
    retry_at: u64,
    backoff: Backoff,
    balance: Balance,
    pub(super) seeding: Seeding,
    pub(super) notices: Vec<Notice>,
}

impl Steward {
    /// Of a process that has heard nothing yet. `names` are those of all nodes with their numbers; `plan` has the
    /// nodes of each group, data first; `mark` is random.
    #[must_use]
    pub fn new(
        me: Process,
        keys: DocumentKeys,
        config: Arc<ClusterConfig>,
        names: &[(NodeId, String)],
        plan: Vec<Vec<NodeId>>,
        mark: u64,
    ) -> Self {
        Self {
            me,
            keys,
            config,
            plan,
            registered: BTreeMap::new(),
            names: names.iter().cloned().collect(),
            views: BTreeMap::new(),
            proposals: BTreeMap::new(),
            retry_at: 0,
            backoff: Backoff::new(RETRY_LEAST, RETRY_MOST, mark),
            balance: Balance::default(),
            seeding: Seeding::new(mark),
            notices: Vec::new(),
        }
    }

    /// What the lanes are to be told since it was last called.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The registration of a node.
    #[must_use]
    pub fn registration(&self, node: NodeId) -> Option<&Registration> {
        self.registered.get(&node)
    }

    /// Whether something is to be tried again soon.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.proposals.is_empty() || self.seeding.is_needed()
    }

    /// Takes what the store says.
    pub fn take(&mut self, change: Change) {
        match change {
            Change::Reset(listing) => self.take_all(listing),
            _ if self.seeding.is_foreign() => {}
            Change::Put(entry) => self.take_entry(&entry),
            Change::Deleted { key, .. } => {
                if let Some(node) = self.keys.node_of(&key) {
                    self.gone(node);
                } else if let Some(group) = self.keys.group_of(&key) {
                    self.view_is_gone(group);
                } else if key == self.keys.turn() {
                    self.balance.turn = 0;
                }
            }
        }
    }

    /// The store does not have a group's view any more.
    pub(super) fn view_is_gone(&mut self, group: usize) {
        if let Some(known) = self.views.get_mut(&group)
            && !is_injected(InjectedFault::LossUnseen)
        {
            (known.revision, known.instead) = (None, 0);
            self.seeding.doubt();
        }
    }

    fn take_all(&mut self, listing: Listing) {
        let keys = self.keys.clone();
        let find = |key: &str| listing.entries.iter().find(|entry| entry.key == key);
        let has = |key: &str| find(key).is_some();
        let config = find(&keys.config());
        let is_foreign = config.is_some_and(|entry| {
            let config = ClusterConfig::parse(&entry.key, &entry.value);
            config.is_ok_and(|config| config != *self.config)
        });
        self.seeding.set_foreign(is_foreign);
        if config.is_none() && !is_injected(InjectedFault::LossUnseen) {
            self.seeding.doubt();
        }
        for group in self.views.keys().copied().collect::<Vec<_>>() {
            if is_foreign || !has(&keys.view(group)) {
                self.view_is_gone(group);
            }
        }
        if is_foreign {
            return;
        }
        if !has(&keys.turn()) {
            self.balance.turn = 0;
        }
        let gone = self.registered.keys().copied();
        let gone: Vec<NodeId> = gone.filter(|node| !has(&keys.node(*node))).collect();
        gone.into_iter().for_each(|node| self.gone(node));
        let mut entries: Vec<&Entry> = listing.entries.iter().collect();
        entries.sort_by_key(|entry| self.turn_of(&entry.key));
        for entry in entries {
            // Its revision may be less than in the store before.
            if let Some(group) = keys.group_of(&entry.key)
                && let Some(known) = self.views.get_mut(&group)
            {
                known.revision = known
                    .revision
                    .map(|known| known.min(entry.mod_revision - 1));
            }
            self.take_entry(entry);
        }
    }

    /// When a key is taken of all that there are: views first, and this node's own registration last. By that a
    /// lane opens, and may turn between any two of the orders that it is given.
    fn turn_of(&self, key: &str) -> u8 {
        match self.keys.node_of(key) {
            Some(node) if node.0 == self.me.node => 2,
            None if self.keys.group_of(key).is_some() => 0,
            _ => 1,
        }
    }

    fn take_entry(&mut self, entry: &Entry) {
        if let Some(node) = self.keys.node_of(&entry.key) {
            self.take_registration(node, entry);
        } else if let Some(group) = self.keys.group_of(&entry.key) {
            if group < self.config.groups {
                self.take_view(group, entry);
            }
        } else if entry.key == self.keys.turn() {
            self.balance.turn = entry.mod_revision;
            self.balance.note_change();
        } else if entry.key == self.keys.seed()
            && let Some(seed) = self.seeding.take(&entry.value)
        {
            self.notices.push(Notice::Seeded(seed));
        }
    }

    fn take_registration(&mut self, node: NodeId, entry: &Entry) {
        let found = match Registration::parse(&entry.key, &entry.value) {
            Ok(found) => found,
            // One node's bad document is no reason for another to end.
            Err(error) => return tracing::warn!(%error, "a registration"),
        };
        if node.0 == self.me.node && found.incarnation != self.me.incarnation {
            if found.incarnation > self.me.incarnation {
                self.notices.push(Notice::Replaced);
            }
            return;
        }
        self.names.insert(node, found.name.clone());
        self.seeding.note_incarnation(node, found.incarnation);
        if self.registered.get(&node) != Some(&found) {
            self.balance.note_change();
        }
        self.registered.insert(node, found.clone());
        let found = Some((found, entry.lease));
        self.notices.push(Notice::Node { node, found });
    }

    fn gone(&mut self, node: NodeId) {
        self.registered.remove(&node);
        self.balance.note_loss();
        let found = None;
        self.notices.push(Notice::Node { node, found });
    }

    /// Takes a group's key as it stands.
    pub(super) fn take_view(&mut self, group: usize, entry: &Entry) {
        let known = self.views.get(&group);
        if known.is_some_and(|known| Some(entry.mod_revision) <= known.revision) {
            return;
        }
        let view = match decode_view(Bytes::copy_from_slice(&entry.value)) {
            Ok(view) => view,
            Err(error) => return tracing::error!(key = entry.key, %error, "a view"),
        };
        if let Some(known) = self.views.get_mut(&group)
            && known.view.number > view.number
        {
            // It is what it was long ago, as from a backup: members have gone on.
            tracing::warn!(
                group,
                number = view.number,
                "etcd has an older view than it had"
            );
            (known.revision, known.instead) = (None, entry.mod_revision);
            return self.seeding.doubt();
        }
        self.stand(group, entry.mod_revision, view, false);
    }

    pub(super) fn stand(&mut self, group: usize, revision: i64, view: View, is_ours: bool) {
        for process in view.processes() {
            self.seeding
                .note_incarnation(NodeId(process.node), process.incarnation);
        }
        let view = Arc::new(view);
        let known = Known {
            revision: Some(revision),
            instead: 0,
            view: Arc::clone(&view),
        };
        let before = self.views.insert(group, known);
        if before.is_none_or(|before| before.view.number < view.number) {
            self.balance.note_change();
            self.notices.push(Notice::View {
                group,
                view,
                is_ours,
            });
        }
    }

    /// A lane proposes a view.
    pub fn propose(&mut self, proposal: Proposal) {
        self.proposals.insert(proposal.group, proposal);
        self.retry_at = 0;
    }

    /// Does what is due at the store; `now` in nanoseconds. True: something does not fit what the store has told, and
    /// all of it is to be read again.
    pub fn turn(&mut self, store: &impl Store, ask: Ask<'_>, now: u64) -> bool {
        if now < self.retry_at {
            return false;
        }
        let mut is_puzzled = false;
        self.begin_groups();
        for group in self.proposals.keys().copied().collect::<Vec<_>>() {
            let Some(proposal) = self.proposals.remove(&group) else {
                continue;
            };
            match self.grant(store, &proposal) {
                Outcome::Decided => self.backoff.reset(),
                Outcome::Puzzled => {
                    is_puzzled = true;
                    self.proposals.insert(group, proposal);
                }
                Outcome::Unknown => {
                    self.proposals.insert(group, proposal);
                    let pause = self.backoff.pause().as_nanos();
                    self.retry_at = now + u64::try_from(pause).expect("a short time");
                    return false;
                }
                Outcome::Held => drop(self.proposals.insert(group, proposal)),
            }
        }
        self.seed(store, ask, now);
        self.spread(store, now);
        if self.is_busy() {
            self.retry_at = now + RETRY_NS;
        }
        is_puzzled
    }

    /// Has a view agreed on, if it is the next one.
    fn grant(&mut self, store: &impl Store, proposal: &Proposal) -> Outcome {
        let group = proposal.group;
        let number = proposal.view.number;
        let (revision, is_next) = match self.views.get(&group) {
            Some(known) => {
                // The outcome was not known, and came with what the store told.
                if *known.view == proposal.view {
                    return Outcome::Decided;
                }
                (known.revision, number == known.view.number + 1)
            }
            None => (Some(0), true),
        };
        if !is_next {
            return self.refuse(group, number);
        }
        // Whoever has gone on since by a view that is lost with the store must not be passed by.
        let Some(revision) = revision else {
            return Outcome::Held;
        };
        let mut bytes = BytesMut::new();
        encode_view(&proposal.view, &mut bytes);
        let _span = tracing::info_span!(
            "agree on view",
            cenote.kv.group = group as i64,
            cenote.kv.view = i64::from(number),
        )
        .entered();
        match store.swap(&self.keys.view(group), revision, &bytes, None) {
            Ok(Swap::Done(revision)) => {
                tracing::info!(group, view = number, "agreed");
                self.stand(group, revision, proposal.view.clone(), true);
                Outcome::Decided
            }
            Ok(Swap::Changed(Some(entry))) => {
                self.take_view(group, &entry);
                self.refuse(group, number)
            }
            // A key that was there is gone: the store has lost what it had.
            Ok(Swap::Changed(None)) if !is_injected(InjectedFault::LossUnseen) => {
                tracing::warn!(group, "etcd has no view of it any more");
                Outcome::Puzzled
            }
            Ok(Swap::Changed(None)) => self.refuse(group, number),
            // It may have been agreed on: nobody may act as if it was not.
            Err(error) => {
                tracing::warn!(%error, group, "ask for a view");
                Outcome::Unknown
            }
        }
    }

    fn refuse(&mut self, group: usize, number: u32) -> Outcome {
        self.notices.push(Notice::Refused { group, number });
        Outcome::Decided
    }

    /// Has a partition of this node go to another, if it is its turn.
    fn spread(&mut self, store: &impl Store, now: u64) {
        if !self.balance.is_due(now) {
            return;
        }
        if self.is_busy() || self.seeding.is_foreign() {
            return self.balance.pause(now);
        }
        let known = (0..self.config.groups).map(|group| {
            let known = self.views.get(&group)?;
            known.revision.map(|_| &*known.view)
        });
        let Some(views) = known.collect::<Option<Vec<&View>>>() else {
            return self.balance.rest();
        };
        let up = self.registered.iter();
        let up = up.filter(|(_, found)| found.state == NodeState::Up);
        let up: Vec<Process> = up
            .map(|(node, found)| Process {
                node: node.0,
                incarnation: found.incarnation,
            })
            .collect();
        let Some(next) = balance::next(&views, &up) else {
            return self.balance.rest();
        };
        self.balance.pause(now);
        if next.from != self.me {
            return;
        }
        let HandOver {
            group,
            partition,
            to,
            view,
            ..
        } = next;
        let claim = format!("{{\"group\":{group},\"view\":{view},\"partition\":{partition}}}");
        match store.swap(&self.keys.turn(), self.balance.turn, claim.as_bytes(), None) {
            Ok(Swap::Done(revision)) => {
                tracing::info!(group, partition, %to, "hand a partition over for balance");
                self.balance.turn = revision;
                self.notices.push(Notice::HandOver(next));
            }
            Ok(Swap::Changed(other)) => {
                self.balance.turn = other.map_or(0, |entry| entry.mod_revision);
            }
            Err(error) => tracing::warn!(%error, "claim the turn to hand a partition over"),
        }
    }

    /// Has groups begin whose first node this is.
    fn begin_groups(&mut self) {
        for group in 0..self.plan.len() {
            let is_first = self.plan[group].first() == Some(&NodeId(self.me.node));
            if is_first
                && !self.proposals.contains_key(&group)
                && let Some(view) = self.first_view(group)
            {
                self.proposals.insert(group, Proposal { group, view });
            }
        }
    }

    /// The view with everybody of the plan at home, where there was never one.
    fn first_view(&self, group: usize) -> Option<View> {
        let is_registered = |process: &Process| {
            let found = self.registered.get(&NodeId(process.node));
            found.is_some_and(|found| found.incarnation == process.incarnation)
        };
        let before = self.views.get(&group);
        if let Some(before) = before
            && (!is_injected(InjectedFault::BeginsByItself)
                || before.view.processes().iter().any(is_registered))
        {
            return None;
        }
        if self.seeding.is_seeded() || self.seeding.is_needed() {
            return None;
        }
        let players: Option<Vec<Process>> = self.plan[group]
            .iter()
            .map(|node| {
                Some(Process {
                    node: node.0,
                    incarnation: self.registered.get(node)?.incarnation,
                })
            })
            .collect();
        let scheme = match self.config.scheme {
            Scheme::Coded => view::Scheme::Coded,
            Scheme::Replicated => view::Scheme::Replicated,
        };
        let players = players?;
        let (data, parities) = players.split_at(self.config.code.data());
        let number = before.map_or(0, |known| known.view.number) + 1;
        Some(View::beginning(number, scheme, data, parities))
    }
}

/// What came of a proposal.
enum Outcome {
    /// It stands, or is refused.
    Decided,
    /// Nobody knows.
    Unknown,
    /// It waits until the store has the group's view again.
    Held,
    /// The store does not have what it had.
    Puzzled,
}

#[cfg(test)]
mod tests;
