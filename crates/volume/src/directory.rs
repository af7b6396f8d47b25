//! The directory: extent -> stripe -> (host, window), shared without a lock on the data path.
//!
//! Workers see it through immutable snapshots. Each change makes a new snapshot with the
//! next **epoch**; a worker publishes the oldest epoch that it still works in. A change
//! has taken effect everywhere once it is **settled**: no worker works in an older epoch.
//!
//! Invariants:
//! - A host or window is marked failed here before anything is re-issued around it.
//! - No write that skipped a slab is acknowledged before the epoch in which the slab was
//!   dropped has settled: a reader in an older epoch could still return the slab's old bytes.
//! - At most one member of a stripe per failure domain (H1).
//!
//! Concurrency: `changes` serialises publishers; workers take it only when the epoch moved.
//! Paper: \[hydra22\] 3.1 (address ranges), 4.2 (remote failure).

mod epochs;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_fabric::{Generation, RemoteWindow};

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use crate::Resilience;
use crate::extents::ByExtent;
use crate::fence::Fence;
use crate::limits::WORKERS_MAX;
use crate::scheme::Cut;
use epochs::Epochs;

/// Index of a host in the cluster file's order.
pub type HostIndex = usize;

/// One connection to a host: what was granted on an earlier one is gone.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Session {
    pub host: HostIndex,
    /// Counts the connections of this volume, over all hosts.
    pub number: u64,
}

/// One of a stripe's k+r slabs.
#[derive(Clone, Debug)]
pub struct Member {
    pub session: Session,
    pub window: RemoteWindow,
    /// The first generation that it was granted with; names it for good.
    pub birth: u64,
    pub state: MemberState,
}

/// A slab that holds current data and cannot be reached.
#[derive(Clone, Copy, Debug)]
pub struct Unreachable {
    pub host: HostIndex,
    pub birth: u64,
}

/// How far a slab takes part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemberState {
    /// Read and written.
    Live,
    /// Being regenerated: pages below the watermark are written, none is read.
    Filling {
        /// First page of the extent that is not yet filled.
        watermark: u32,
    },
}

/// The slabs of one extent. Immutable; a change makes another one.
#[derive(Clone, Debug, Default)]
pub struct Stripe {
    /// How its pages are cut; with fewer slabs than data splits nothing is read or acknowledged.
    pub cut: Cut,
    /// Index = split. `None`: lost, or never had (degraded). While a slab is being moved there is
    /// one more past the last split's: its copy in the making.
    pub members: Vec<Option<Member>>,
    /// The split that the one past the last is to have, while there is one.
    pub moved: Option<usize>,
    /// Pages of the extent in which writes wait, for regeneration or reclaim.
    pub fence: Fence,
    /// Slabs that missed no acknowledged write, by split: those that went when no more than k
    /// were left, after which nothing was acknowledged. Empty: none.
    pub unreachable: Vec<Option<Unreachable>>,
    /// Fewer than k are there, and too few of the unreachable slabs are awaited: until that changes, requests are
    /// errors (`control::reach`).
    pub is_out_of_reach: bool,
    /// Epoch in which the slabs that hold current data last became others.
    pub changed_in: u64,
}

impl Stripe {
    /// Members that may be read, as a bit set over split indices.
    pub fn readable(&self) -> u64 {
        self.mask(|member| member.state == MemberState::Live)
    }

    /// Members that are there, filled or not, as a bit set.
    pub fn present(&self) -> u64 {
        self.mask(|_| true)
    }

    /// Whether some slab may come back that missed nothing so far: no write may be acknowledged
    /// without it until that is decided.
    pub fn has_unreachable(&self) -> bool {
        self.unreachable.iter().any(Option::is_some)
    }

    /// Puts a split's slab among the unreachable ones.
    fn set_unreachable(&mut self, split: usize, slab: Unreachable) {
        self.unreachable.resize(self.members.len(), None);
        self.unreachable[split] = Some(slab);
    }

    /// Members that a write of `page` (of the extent) must reach.
    pub fn writable(&self, page: u32) -> u64 {
        self.mask(|member| match member.state {
            MemberState::Live => true,
            MemberState::Filling { watermark } => page < watermark,
        })
    }

    /// Splits of a page in this stripe: other stripes of the volume may have more or fewer while its
    /// scheme changes.
    pub fn splits(&self) -> usize {
        self.members.len() - usize::from(self.moved.is_some())
    }

    /// The split that a slab of the stripe holds, or is to hold.
    pub fn split_of(&self, member: usize) -> usize {
        match self.moved {
            Some(split) if member + 1 == self.members.len() => split,
            _ => member,
        }
    }

    /// Splits of a page in this stripe that are made of the others.
    pub fn parities(&self) -> usize {
        self.splits() - self.cut.k()
    }

    /// Whether pages can be read: at least as many slabs as data splits are there.
    pub fn is_there(&self) -> bool {
        self.readable().count_ones() as usize >= self.cut.k()
    }

    /// Whether no page will ever be read again: fewer slabs than data splits are there or may come back.
    pub fn is_past_hope(&self) -> bool {
        let unreachable = self.unreachable.iter().flatten().count();
        let left = self.readable().count_ones() as usize + unreachable;
        if is_injected(InjectedFault::DespairEarly) && left < self.splits() {
            return left <= self.cut.k();
        }
        left < self.cut.k()
    }

    /// Whether requests wait: too few slabs are there, and enough of those that are unreachable are awaited.
    pub fn is_awaited(&self) -> bool {
        !self.is_there() && !self.is_past_hope() && !self.is_out_of_reach
    }

    fn mask(&self, wanted: impl Fn(&Member) -> bool) -> u64 {
        self.members
            .iter()
            .enumerate()
            .fold(0, |mask, (index, member)| {
                mask | u64::from(member.as_ref().is_some_and(&wanted)) << index
            })
    }
}

/// The directory at one epoch.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub epoch: u64,
    /// What is expected of hosts: who works in this epoch goes by it.
    pub resilience: Resilience,
    /// `None`: never written, not mapped.
    pub extents: ByExtent<Option<Arc<Stripe>>>,
    /// Stripes of extents that are not mapped any more and have not given their slabs up yet: they may be
    /// mapped again as they are then. What befalls their slabs befalls them as any other's.
    pub leaving: BTreeMap<usize, Arc<Stripe>>,
}

impl Snapshot {
    /// Every stripe with its extent: of those that are mapped, and of those that are leaving.
    pub fn stripes(&self) -> impl Iterator<Item = (usize, &Arc<Stripe>)> {
        let mapped = self.extents.numbered();
        let mapped = mapped.filter_map(|(extent, stripe)| Some((extent, stripe.as_ref()?)));
        mapped.chain(
            self.leaving
                .iter()
                .map(|(&extent, stripe)| (extent, stripe)),
        )
    }

    fn stripes_mut(&mut self) -> impl Iterator<Item = (usize, &mut Arc<Stripe>)> {
        let mapped = self.extents.numbered_mut();
        let mapped = mapped.filter_map(|(extent, stripe)| Some((extent, stripe.as_mut()?)));
        let leaving = self.leaving.iter_mut();
        mapped.chain(leaving.map(|(&extent, stripe)| (extent, stripe)))
    }

    /// The stripe of an extent that is mapped, or leaving.
    pub fn stripe(&self, extent: usize) -> Option<&Arc<Stripe>> {
        let mapped = self.extents.get(extent).and_then(Option::as_ref);
        mapped.or_else(|| self.leaving.get(&extent))
    }

    /// The stripe of an extent that is mapped, or leaving.
    pub fn stripe_mut(&mut self, extent: usize) -> Option<&mut Arc<Stripe>> {
        let mapped = self.extents.get_mut(extent).and_then(Option::as_mut);
        mapped.or_else(|| self.leaving.get_mut(&extent))
    }
}

/// A window that the directory dropped; its host should get it back when it answers again.
#[derive(Clone, Debug)]
pub struct Dropped {
    pub extent: usize,
    pub member: usize,
    pub session: Session,
    pub window: RemoteWindow,
}

/// The current snapshot, and who works in which epoch.
#[derive(Debug)]
pub struct Directory {
    epochs: Epochs,
    changes: Mutex<Arc<Snapshot>>,
    dropped: Mutex<Vec<Dropped>>,
    failed: Mutex<Vec<Session>>,
    /// Whose hosts have said that their slabs will be back, as they are, when these have ended.
    returning: Mutex<Vec<Session>>,
    /// Whether slabs are waited for whose hosts have not said that they will be back: nothing else has
    /// their bytes.
    awaits_silent: bool,
}

/// What is known of slabs that are out of reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Loss {
    /// Their host has them no more.
    ForGood,
    /// A later session may bring them back: worth waiting for where the stripe has no others to spare.
    MayReturn,
    /// Their host has said that it brings them back: worth waiting for in any case.
    Returns,
}

impl Directory {
    /// With room for so many extents of each layout.
    pub fn new(extent_counts: [usize; 2], resilience: Resilience, awaits_silent: bool) -> Self {
        let snapshot = Snapshot {
            epoch: 1,
            resilience,
            extents: ByExtent::new(extent_counts, || None),
            leaving: BTreeMap::new(),
        };
        Self {
            epochs: Epochs::new(WORKERS_MAX),
            changes: Mutex::new(Arc::new(snapshot)),
            dropped: Mutex::new(Vec::new()),
            failed: Mutex::new(Vec::new()),
            returning: Mutex::new(Vec::new()),
            awaits_silent,
        }
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.epochs.current()
    }

    /// The current snapshot. Takes the publishers' lock: keep it until the epoch moves.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Snapshot>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `change` the next epoch and returns it; no epoch passes when `change` says nothing changed.
    pub fn publish(&self, change: impl FnOnce(&mut Snapshot) -> bool) -> u64 {
        self.publish_next(&mut self.lock(), change)
    }

    fn publish_next(
        &self,
        current: &mut Arc<Snapshot>,
        change: impl FnOnce(&mut Snapshot) -> bool,
    ) -> u64 {
        let mut next = Snapshot::clone(current);
        next.epoch += 1;
        if change(&mut next) {
            let epoch = next.epoch;
            *current = Arc::new(next);
            self.epochs.advance(epoch);
        }
        current.epoch
    }

    /// Changes one extent's stripe; see [`Directory::publish`].
    pub fn publish_stripe(&self, extent: usize, change: impl FnOnce(&mut Stripe) -> bool) -> u64 {
        self.publish(|next| match next.stripe_mut(extent) {
            Some(stripe) => change(Arc::make_mut(stripe)),
            None => false,
        })
    }

    /// Notes whether the slabs of a session will be back when it has ended: then they are unreachable, and
    /// no write of their stripes is acknowledged by hosts, until they are or are given up.
    pub fn set_returning(&self, session: Session, returns: bool) {
        let mut returning = self.lock_returning();
        returning.retain(|&other| other != session);
        if returns {
            returning.push(session);
        }
    }

    fn lock_returning(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.returning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops every slab that was granted on `session`: a later one may bring it back. Idempotent.
    pub fn fail_session(&self, session: Session) {
        let loss = match self.lock_returning().contains(&session) {
            true => Loss::Returns,
            false => Loss::MayReturn,
        };
        self.failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(session);
        self.drop_members(loss, |_, _, member| member.session == session);
    }

    /// Drops one slab, named by its session and generation: its host has it no more.
    pub fn fail_window(
        &self,
        extent: usize,
        split: usize,
        session: Session,
        generation: Generation,
    ) {
        self.drop_members(Loss::ForGood, |at, index, member| {
            let is_it = member.window.descriptor.generation == generation;
            at == extent && index == split && member.session == session && is_it
        });
    }

    fn drop_members(&self, loss: Loss, wanted: impl Fn(usize, usize, &Member) -> bool) {
        let has_hit = |extent: usize, stripe: &Stripe| {
            let mut members = stripe.members.iter().enumerate();
            members.any(|(index, member)| {
                let member = member.as_ref();
                member.is_some_and(|member| wanted(extent, index, member))
            })
        };
        let (mut gone, mut unreachable) = (Vec::new(), false);
        let mut current = self.lock();
        // Each verb that a dead host fails comes here: a copy of the directory for each is too
        // much.
        if !current
            .stripes()
            .any(|(extent, stripe)| has_hit(extent, stripe))
        {
            return;
        }
        self.publish_next(&mut current, |next| {
            let epoch = next.epoch;
            for (extent, stripe) in next.stripes_mut() {
                if !has_hit(extent, stripe) {
                    continue;
                }
                let stripe = Arc::make_mut(stripe);
                // No more than k left: after this one nothing is acknowledged.
                let is_last = stripe.readable().count_ones() as usize <= stripe.cut.k();
                let awaits_silent = match loss {
                    Loss::ForGood => false,
                    Loss::MayReturn => self.awaits_silent && is_last,
                    Loss::Returns => true,
                };
                for index in 0..stripe.members.len() {
                    let is_hit = |member: &mut Member| wanted(extent, index, member);
                    if let Some(member) = stripe.members[index].take_if(is_hit) {
                        if awaits_silent && member.state == MemberState::Live {
                            let (host, birth) = (member.session.host, member.birth);
                            let slab = Unreachable { host, birth };
                            stripe.set_unreachable(index, slab);
                            unreachable = true;
                            continue;
                        }
                        gone.push(Dropped {
                            extent,
                            member: index,
                            session: member.session,
                            window: member.window,
                        });
                    }
                }
                stripe.changed_in = epoch;
            }
            unreachable || !gone.is_empty()
        });
        drop(current);
        self.dropped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut gone);
    }

    /// Takes the slabs dropped since the last call.
    pub fn take_dropped(&self) -> Vec<Dropped> {
        std::mem::take(&mut self.dropped.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the sessions marked failed since the last call.
    pub fn take_failed(&self) -> Vec<Session> {
        std::mem::take(&mut self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether no worker works in an epoch before `epoch`.
    pub fn is_settled(&self, epoch: u64) -> bool {
        self.epochs.is_settled(epoch)
    }

    /// A place to publish one worker's epoch; `None` when [`WORKERS_MAX`] are taken.
    pub fn register(self: &Arc<Self>) -> Option<(usize, WorkerEpoch)> {
        let index = self.epochs.take()?;
        Some((
            index,
            WorkerEpoch {
                directory: Arc::clone(self),
                index,
                current: self.snapshot(),
            },
        ))
    }
}

/// One worker's view: its snapshot, and the epoch it tells the others.
#[derive(Debug)]
pub struct WorkerEpoch {
    directory: Arc<Directory>,
    index: usize,
    current: Arc<Snapshot>,
}

impl WorkerEpoch {
    /// The newest snapshot, published as worked in unless the worker still `holds` an older one.
    pub fn enter(&mut self, holds_older: bool) -> &Arc<Snapshot> {
        let epochs = &self.directory.epochs;
        while !epochs.enter(self.index, self.current.epoch, holds_older) {
            self.current = self.directory.snapshot();
        }
        &self.current
    }

    /// The snapshot that was entered last.
    pub fn known(&self) -> &Snapshot {
        &self.current
    }

    /// Publishes that nothing older than `epoch` is worked in any more; `None`: nothing at all.
    pub fn leave(&self, oldest: Option<u64>) {
        self.directory.epochs.leave(self.index, oldest);
    }
}

impl Drop for WorkerEpoch {
    fn drop(&mut self) {
        self.directory.epochs.give_back(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_settles_when_the_last_worker_left_the_older_ones() {
        let directory = Arc::new(Directory::new(
            [1, 0],
            Resilience::of(crate::Scheme::PLAIN),
            true,
        ));
        let (_, mut a) = directory.register().unwrap();
        let (_, mut b) = directory.register().unwrap();
        assert_eq!(a.enter(false).epoch, 1);
        let next = directory.publish(|snapshot| {
            snapshot.extents[0] = Some(Arc::default());
            true
        });
        assert_eq!(b.enter(false).epoch, next);
        assert!(
            !directory.is_settled(next),
            "a still works in the first epoch"
        );
        a.leave(None);
        assert!(directory.is_settled(next));
        assert_eq!(
            a.enter(false).epoch,
            next,
            "a worker never enters an old epoch"
        );
    }

    #[test]
    fn an_extent_that_is_no_more_has_no_stripe_to_change() {
        let directory = Directory::new([1, 0], Resilience::of(crate::Scheme::PLAIN), true);
        assert_eq!(directory.publish_stripe(3, |_| true), 1);
    }

    #[test]
    fn a_change_that_changes_nothing_makes_no_epoch() {
        let directory = Directory::new([1, 0], Resilience::of(crate::Scheme::PLAIN), true);
        assert_eq!(directory.publish(|_| false), 1);
        assert_eq!(directory.snapshot().epoch, 1);
    }
}
