//! The owner of a partition: decides what becomes of each request, and in which order.
//!
//! An operation is proposed, sent to every backup, acknowledged by all, and then committed: applied
//! to keys and values. [`Owner::propose`] makes one, [`Owner::committed_xid`] tells how far it has
//! come; whoever answers a client waits for that. The newest state of a key, operations under way
//! included, is what the next one is decided on.
//!
//! Invariants: C1, what is committed all backups have; C3, values change when an operation is
//! committed and then only, in fresh space: a value is never changed in place. Space is used again
//! once its freeing is committed. Paper: \[cocytus16\] sections 3.4 and 4.2.

use std::cell::Cell;
use std::sync::Arc;

use bytes::BytesMut;

use super::backlog::{Backlog, Pending};
use super::backup::Backup;
use super::counts::Went;
use super::exchange::Folding;
use super::horizon::Horizon;
use super::marks::Marks;
use super::message::Run;
use super::operation::{Effect, Operation};
use super::pace::Pace;
use super::replica::{Diverged, Replica, Xid, space_of};
use super::room::{Bound, Room, Sweep};
use super::units::Units;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::key_hash::KeyHasher;
use crate::memory::region::Region;
use crate::memory::table::{Entry, Slot};

/// Bits of a cas number that count operations: 1.7 * 10^13 of them. The others are the view's.
const XID_BITS: u32 = 44;
const VIEWS_MASK: u32 = (1 << (u64::BITS - XID_BITS)) - 1;
const XIDS_MASK: u64 = (1 << XID_BITS) - 1;

/// A change to one item, or to all.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Stores an item.
    Put {
        /// The client's.
        client_flags: u32,
        /// Seconds since 1970; 0: never.
        expiry: u32,
        /// Its marks.
        marks: Marks,
        /// Its value, in parts.
        value: &'a [&'a [u8]],
    },
    /// Changes facts of an item that is there.
    Alter {
        /// Seconds since 1970; 0: never.
        expiry: u32,
        /// Its marks.
        marks: Marks,
        /// Whether it gets a new cas number.
        renews_cas: bool,
    },
    /// Removes an item.
    Remove,
    /// Removes all items at a time, or now if it has passed.
    Flush {
        /// Seconds since 1970.
        at: u32,
    },
}

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    /// Its item.
    pub found: Option<Found>,
    /// The operation that has to be committed before anybody may be told of this.
    pub pending: Option<Xid>,
}

/// An item.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// What is known of it.
    pub entry: Entry,
    slot: Option<Slot>,
    /// The operation under way that has its value.
    value_in: Option<Xid>,
}

/// Why an item is not there that was not deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gone {
    /// Its time has come.
    Ended,
    /// A flush came after it.
    Flushed,
}

/// Why nothing was proposed, or read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no room for the item, and making some is forbidden or did not help.
    NoSpace,
    /// Not now: ask again when something has been committed.
    Busy,
    /// Units have to be recovered first: ask again, from the start, when they are.
    Units(Run),
    /// The partition is changing hands: ask again after the next view, and after each flush: a former
    /// owner's lease may have to run out.
    Closed,
}

/// One partition, served.
pub struct Owner {
    pub(super) partition: usize,
    view: u32,
    pub(super) term: u32,
    pub(super) replica: Replica,
    pub(super) region: Arc<Region>,
    /// Units that are here; none: all.
    pub(super) present: Option<Units>,
    /// Operations under way.
    pub(super) backlog: Backlog,
    /// The time and the flushes once everything under way is committed, where that changes them.
    pub(super) horizon: Option<Horizon>,
    pub(super) backups: Vec<Backup>,
    /// Whether operations may be proposed.
    pub(super) is_open: bool,
    /// Whether items make room for others.
    pub(super) evicts: bool,
    pub(super) went: Went,
    /// What has made room for others, where somebody wants to know.
    pub(super) evicted: Option<Vec<(Vec<u8>, Entry)>>,
    pub(super) room: Room,
    pub(super) sweep: Sweep,
    /// Its values go into a parity of this process, too.
    pub(super) folding: Option<Folding>,
    pace: Pace,
    /// When somebody last asked for leave to read, in nanoseconds.
    pub(super) wanted_at: Cell<Option<u64>>,
    /// What reads found that wait for units.
    #[cfg(feature = "injected-faults")]
    pub(super) stale: std::cell::RefCell<super::lookup::Stale>,
}

impl Owner {
    /// A partition that nobody else has: what is proposed is committed at once.
    pub fn alone(hasher: KeyHasher, region_bytes: u64, bound: Bound) -> Self {
        let replica = Replica::new(hasher, region_bytes);
        let region = Arc::new(Region::new(region_bytes));
        let mut owner = Self::new(0, replica, region, None);
        owner.room = Room::alone(bound);
        owner.view = 1;
        owner.is_open = true;
        owner
    }

    /// Takes a partition over as a replica has it. It is closed at first.
    pub(super) fn new(
        partition: usize,
        replica: Replica,
        region: Arc<Region>,
        present: Option<Units>,
    ) -> Self {
        Self {
            partition,
            view: 0,
            term: 0,
            backlog: Backlog::after(replica.applied()),
            replica,
            region,
            present,
            horizon: None,
            backups: Vec::new(),
            is_open: false,
            evicts: true,
            went: Went::default(),
            evicted: None,
            room: Room::default(),
            sweep: Sweep::default(),
            folding: None,
            pace: Pace::default(),
            wanted_at: Cell::new(None),
            #[cfg(feature = "injected-faults")]
            stale: std::cell::RefCell::default(),
        }
    }

    /// Whether items make room for others (they do at first), or a full partition refuses.
    pub fn set_eviction(&mut self, evicts: bool) {
        self.evicts = evicts;
    }

    /// Names the view of a partition that is alone: a part of its cas numbers.
    pub fn begin_view(&mut self, view: u32) {
        self.view = view;
    }

    /// The view in which this process began to own the partition: what was proposed to an owner of
    /// another term may have been dropped.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// What is committed.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The partition's time, seconds since 1970.
    pub fn now(&self) -> u32 {
        self.replica.now()
    }

    /// The last committed operation: all backups have it.
    pub fn committed_xid(&self) -> Xid {
        self.replica.applied()
    }

    /// Goes on from what a parity kept of the partition, with nothing under way.
    pub(super) fn begin_from(&mut self, replica: Replica) {
        self.backlog = Backlog::after(replica.applied());
        self.replica = replica;
    }

    /// The last operation.
    pub fn last_xid(&self) -> Xid {
        self.backlog.last_xid()
    }

    /// The cas number that the next operation gives.
    pub fn next_cas(&self) -> u64 {
        cas_of(self.view, self.last_xid() + 1)
    }

    /// The hash of a key, which all else here is asked with.
    pub fn hash_of(&self, key: &[u8]) -> u64 {
        self.replica.table().hash_of(key)
    }

    /// Units of the partition that are still to be recovered or moved.
    pub fn missing_units(&self) -> u64 {
        self.present.as_ref().map_or(0, Units::missing)
    }

    /// The newest state of a key, operations under way included, that an operation is decided on.
    pub(super) fn newest_of(&self, hash: u64, key: &[u8]) -> Newest {
        let (found, pending) = match self.backlog.last_on(hash, key) {
            Some((xid, pending)) => {
                let found = pending.after.map(|(entry, value_in)| Found {
                    entry,
                    slot: None,
                    value_in,
                });
                (found, xid)
            }
            None => (self.stored(hash, key), 0),
        };
        let (found, ended_by) = match found {
            Some(found) if self.replica.is_live(&found.entry) => match self.horizon {
                Some(horizon) if !horizon.is_live(&found.entry) => (None, horizon.xid),
                _ => (Some(found), 0),
            },
            _ => (None, 0),
        };
        Newest {
            found,
            pending: Some(pending.max(ended_by)).filter(|xid| *xid > 0),
        }
    }

    /// The value of an item, in parts.
    ///
    /// # Errors
    /// [`Refusal::Units`]: some of it is lost and not recovered yet.
    pub fn value<R>(&self, found: &Found, with: impl FnOnce(&[&[u8]]) -> R) -> Result<R, Refusal> {
        let Entry {
            address,
            value_bytes,
            ..
        } = found.entry;
        let bytes = value_bytes as usize;
        if let Some(pending) = found.value_in.and_then(|xid| self.backlog.get(xid)) {
            let mut value = pending.operation.change().to_vec();
            self.region.with_parts(address, bytes, |parts| {
                xor_parts(&mut value, parts);
            });
            return Ok(with(&[&value]));
        }
        let present = self.check_present(&found.entry);
        self.note_read(present.is_ok());
        present?;
        Ok(self.region.with_parts(address, bytes, with))
    }

    /// Whether the value of an item is here.
    ///
    /// # Errors
    /// [`Refusal::Units`]: some of it is lost and not recovered yet.
    pub fn check_present(&self, entry: &Entry) -> Result<(), Refusal> {
        let Some(present) = &self.present else {
            return Ok(());
        };
        let missing = present.missing_in(&space_of(entry));
        missing.map_or(Ok(()), |run| Err(Refusal::Units(run)))
    }

    /// A client has read an item.
    pub fn note_use(&mut self, found: &Found) {
        let now = self.now();
        if let Some(slot) = found.slot {
            self.replica.table_mut().note_use(slot, now);
        }
    }

    /// Proposes a change. It is committed at once where there are no backups.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    ///
    /// # Panics
    /// If an item is to be altered that is not there.
    pub fn propose(&mut self, hash: u64, key: &[u8], change: Change<'_>) -> Result<Xid, Refusal> {
        self.check_open()?;
        let cas = self.next_cas();
        match change {
            Change::Put {
                client_flags,
                expiry,
                marks,
                value,
            } => {
                let bytes: usize = value.iter().map(|part| part.len()).sum();
                let value_bytes = u32::try_from(bytes).map_err(|_| Refusal::NoSpace)?;
                let mut entry = Entry {
                    client_flags,
                    expiry,
                    cas,
                    value_bytes,
                    marks: marks.bits(),
                    ..Entry::default()
                };
                if let Some(xid) = self.put_in_place(hash, key, entry, value) {
                    return Ok(xid);
                }
                entry.address = self.place(hash, key, u64::from(value_bytes))?;
                let xid = self.put(hash, key, entry, value);
                self.keep_room();
                Ok(xid)
            }
            Change::Alter {
                expiry,
                marks,
                renews_cas,
            } => {
                let newest = self.newest_of(hash, key);
                let found = newest.found.expect("only an item that is there is altered");
                let cas = if renews_cas { cas } else { found.entry.cas };
                let after = Entry {
                    expiry,
                    marks: marks.bits(),
                    cas,
                    ..found.entry
                };
                let effect = Effect::Alter { expiry, marks, cas };
                Ok(self.push(hash, key, effect, Some((after, found.value_in))))
            }
            Change::Remove => Ok(self.push(hash, key, Effect::Remove, None)),
            Change::Flush { at } => {
                let mut after = self.after_backlog();
                if at <= after.now {
                    (after.flush_at, after.flushed_below) = (None, cas);
                } else {
                    after.flush_at = Some(at);
                }
                Ok(self.push_with(Effect::Flush { at, cas }, after))
            }
        }
    }

    /// Moves the partition's time on as far as a clock that never jumps allows, towards what the system says:
    /// `said` are seconds since 1970, `now_ns` nanoseconds of the former. To be called often.
    pub fn follow(&mut self, said: u32, now_ns: u64) {
        if self.check_open().is_ok() {
            let next = self.pace.next(self.proposed_now(), said, now_ns);
            self.tick(next);
        }
    }

    pub(super) fn check_open(&self) -> Result<(), Refusal> {
        if !self.is_open {
            Err(Refusal::Closed)
        } else if self.backlog.is_full(self.room.pending_bytes_max()) {
            Err(Refusal::Busy)
        } else {
            Ok(())
        }
    }

    fn put(&mut self, hash: u64, key: &[u8], entry: Entry, value: &[&[u8]]) -> Xid {
        if self.commits_at_once() {
            return self.put_now(hash, key, entry, value);
        }
        let xid = self.last_xid() + 1;
        let region = Arc::clone(&self.region);
        let operation = Operation::new(Effect::Put(entry), key, |out: &mut BytesMut| {
            let start = out.len();
            value.iter().for_each(|part| out.extend_from_slice(part));
            let bytes = entry.value_bytes as usize;
            region.with_parts(entry.address, bytes, |parts| {
                xor_parts(&mut out[start..], parts);
            });
        });
        self.add(hash, operation, Some((entry, Some(xid))))
    }

    pub(super) fn push(
        &mut self,
        hash: u64,
        key: &[u8],
        effect: Effect,
        after: Option<(Entry, Option<Xid>)>,
    ) -> Xid {
        if self.commits_at_once() {
            return self.commit_now(hash, key, effect);
        }
        self.add(hash, Operation::new(effect, key, |_| {}), after)
    }

    fn add(&mut self, hash: u64, operation: Operation, after: Option<(Entry, Option<Xid>)>) -> Xid {
        let old = if is_injected(InjectedFault::OldAtIssue) {
            self.stored(hash, operation.key()).map(|found| found.entry)
        } else {
            None
        };
        let xid = self.backlog.push(Pending {
            hash,
            operation,
            after,
            frees: 0,
            old,
        });
        if self.backups.is_empty() {
            self.commit(xid).expect("its own operations fit");
        }
        xid
    }

    /// Whether the next operation is committed as it is proposed, and nobody is sent it.
    pub(super) fn commits_at_once(&self) -> bool {
        let is_first = self.backlog.is_empty() && self.horizon.is_none();
        self.backups.is_empty() && is_first && !is_injected(InjectedFault::OldAtIssue)
    }

    /// Commits operations up to one.
    pub(super) fn commit(&mut self, stable: Xid) -> Result<(), Diverged> {
        while self.committed_xid() < stable {
            let Some((xid, done)) = self.backlog.pop() else {
                break;
            };
            assert_eq!(xid, self.committed_xid() + 1, "one follows the other");
            if self.horizon.is_some_and(|horizon| horizon.xid == xid) {
                self.horizon = None;
            }
            let effect = done.operation.effect();
            self.note_ends(&effect);
            if let Effect::Put(entry) = effect {
                let (address, change) = (entry.address, done.operation.change());
                self.region.xor(address, change);
                if let Some(folding) = &self.folding {
                    folding.add(address, change);
                }
            }
            if is_injected(InjectedFault::OldAtIssue) {
                self.replica.apply_freeing(xid, &done.operation, done.old)?;
            } else {
                self.replica.apply(xid, &done.operation, true)?;
            }
        }
        Ok(())
    }

    /// Commits what all backups have.
    pub(super) fn advance(&mut self) -> Result<(), Diverged> {
        let counts =
            |backup: &&Backup| !(backup.is_joining() && is_injected(InjectedFault::JoinUncounted));
        let acked = self
            .backups
            .iter()
            .filter(counts)
            .map(|backup| backup.acked);
        self.commit(acked.min().unwrap_or(Xid::MAX))
    }

    /// Enters a view with these backups; what earlier ones have acknowledged is known.
    pub(super) fn enter(&mut self, view: u32, mut backups: Vec<Backup>) {
        self.view = view;
        for backup in &mut backups {
            let before = self.backups.iter().find(|known| known.is_same(backup));
            backup.acked = before.map_or(0, |known| known.acked);
        }
        self.backups = backups;
    }

    /// An operation under way.
    pub(super) fn pending_operation(&self, xid: Xid) -> Option<&Operation> {
        self.backlog.get(xid).map(|pending| &pending.operation)
    }

    /// Whether nothing is under way.
    pub(super) fn is_drained(&self) -> bool {
        self.backlog.is_empty()
    }

    /// What is committed, to keep it as a backup. Operations under way give up their space, and what
    /// they were to remove may be chosen to go again.
    pub(super) fn into_replica(mut self) -> Replica {
        for pending in self.backlog.iter() {
            if pending.frees > 0
                && let Some(slot) = self
                    .replica
                    .table()
                    .find(pending.hash, pending.operation.key())
            {
                self.replica.table_mut().keep(slot);
            }
            if let Effect::Put(entry) = pending.operation.effect() {
                let allocator = self.replica.allocator_mut();
                let freed = allocator.free(entry.address, u64::from(entry.value_bytes));
                freed.expect("the operation took it");
            }
        }
        self.replica
    }

    pub(super) fn stored(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let slot = self.replica.table().find(hash, key)?;
        Some(Found {
            entry: self.replica.table().entry(slot),
            slot: Some(slot),
            value_in: None,
        })
    }
}

/// The cas number of an operation: given once though numbers of operations that were dropped are
/// used again, and greater than that of every one before until the views' part begins anew.
pub fn cas_of(view: u32, xid: Xid) -> u64 {
    u64::from(view & VIEWS_MASK) << XID_BITS | xid & XIDS_MASK
}

/// Whether the operation that gave one cas number comes before that of another.
///
/// Views do not count: the numbers of a partition's committed operations rise through all of them,
/// and the views' part may begin anew.
pub(super) fn comes_before(cas: u64, other: u64) -> bool {
    cas & XIDS_MASK < other & XIDS_MASK
}

fn xor_parts(value: &mut [u8], parts: &[&[u8]]) {
    let mut rest = value;
    for part in parts {
        let (front, back) = rest.split_at_mut(part.len());
        front
            .iter_mut()
            .zip(*part)
            .for_each(|(byte, old)| *byte ^= old);
        rest = back;
    }
}
