//! Room for values and keys: what has ended goes, and what was not read for longest makes room for others.
//!
//! Items go by operations like any other, so the space is there once these are committed; until
//! then a Put waits. Only the owner chooses, also for what its backups keep: they follow, so it bounds
//! itself by what they can hold ([`Footprint`]). In a group the region is used from its beginning up to a
//! limit that grows, since a parity has memory for what any of its partitions uses; alone, chunks that
//! nobody uses any more are given back to keys.
//! Deviation: \[cocytus16\] does not evict.

mod clearance;

use self::clearance::{Cleared, Clearing, Strides, Trimming};
use super::counts::Counts;
use super::operation::Effect;
use super::owner::{Owner, Refusal};
use super::replica::space_of;
use crate::memory::classes::Gauge;
use crate::memory::footprint::Footprint;
use crate::memory::region::CHUNK_BYTES;
use crate::memory::table::{Entry, Slot};

/// Room that is kept at most, so that a request seldom waits for items to go.
const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// How often [`Owner::sweep`] goes on, in nanoseconds: with a part of the table, of so many stretches, for items
/// that have ended.
pub const SWEEP_NS: u64 = 10_000_000;
const SWEEP_STRETCHES: usize = 8;
/// Most items that make room for one.
const EVICTIONS_MAX: usize = 64;
/// Items that made room and are kept for who wants to see them.
const EVICTED_MAX: usize = 1000;
/// What a table may grow by at once, or an eighth of what it may have.
const TABLE_STEP_BYTES: u64 = 256 << 10;
/// A region is sparse of which more than one part in so many is free.
const SPARSE_PART: u64 = 8;
/// Chunks that are looked at for one that nobody uses.
const CHUNKS_LOOKED_AT: u64 = 16;
/// What goes by age for one value at least, and as much as it takes twice, before what lies in its way does.
const IN_VAIN_BYTES: u64 = 256 << 10;

/// What a partition may take.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The memory of its node; none: its whole region, and a table of any size.
    pub footprint: Option<Footprint>,
    /// Bytes of operations that may be under way.
    pub pending_bytes: usize,
}

impl Bound {
    /// Its region is all that bounds it.
    pub const NONE: Self = Self {
        footprint: None,
        pending_bytes: 64 << 20,
    };
}

/// How a partition uses its memory.
#[derive(Debug)]
pub(super) struct Room {
    bound: Bound,
    /// Chunks are given back: nobody else has them.
    is_alone: bool,
    /// The region is used up to here.
    limit: u64,
    /// Where the search for a chunk that nobody uses goes on.
    chunk: u64,
    /// Where values have been: no chunk behind it was touched.
    reached: u64,
    /// More is taken than a bound that was lowered allows.
    is_above: bool,
    trimming: Trimming,
    strides: Strides,
    in_vain: InVain,
    clearing: Option<Clearing>,
}

/// Items that went for a value which still has no place.
#[derive(Debug, Default)]
struct InVain {
    /// How long it is, or the longest of some.
    wanted: u64,
    /// What they had.
    bytes: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(Bound::NONE)
    }
}

impl Room {
    pub(super) fn new(bound: Bound) -> Self {
        Self {
            bound,
            is_alone: false,
            limit: 0,
            chunk: 0,
            reached: 0,
            is_above: false,
            trimming: Trimming::default(),
            strides: Strides::default(),
            in_vain: InVain::default(),
            clearing: None,
        }
    }

    pub(super) fn alone(bound: Bound) -> Self {
        Self {
            is_alone: true,
            ..Self::new(bound)
        }
    }

    /// Whether nobody else ever has the partition.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    pub(super) fn pending_bytes_max(&self) -> usize {
        self.bound.pending_bytes
    }
}

/// The search for items that have ended.
#[derive(Debug)]
pub(super) struct Sweep {
    /// There may be some, now or later.
    is_needed: bool,
    /// The same after this time around: an item that ends was seen in it, or came, or a flush did.
    is_needed_again: bool,
    /// Where it goes on, in hashes.
    to: u64,
    /// When it last went on, in nanoseconds.
    last: u64,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            is_needed: true,
            is_needed_again: false,
            to: 0,
            last: 0,
        }
    }
}

impl Owner {
    /// Gives one that is alone another bound of its memory; what is above it goes by and by. Whether it
    /// has addresses for so much.
    pub fn set_footprint(&mut self, footprint: Footprint) -> bool {
        if footprint.region_cap(0) > self.replica.allocator().region_bytes() {
            return false;
        }
        self.room.bound.footprint = Some(footprint);
        self.room.is_above = true;
        true
    }

    /// What has made room for others since this was last asked, as far as it is kept; `keeps`: whether
    /// it is from now on.
    pub fn take_evicted(&mut self, keeps: bool) -> Vec<(Vec<u8>, Entry)> {
        let next = keeps.then(Vec::new);
        std::mem::replace(&mut self.evicted, next).unwrap_or_default()
    }

    /// Items that went without being asked to.
    pub fn counts(&self) -> Counts {
        self.went.all()
    }

    /// Classes of items in which something has changed since this was last asked, as bits.
    pub fn take_changed_classes(&mut self) -> u64 {
        self.went.take_changed() | self.replica.table_mut().take_changed_classes()
    }

    /// The items of a class, and those that went without being asked to.
    pub fn class(&self, class: usize) -> (Gauge, Counts) {
        (self.replica.table().class(class), self.went.of(class))
    }

    /// An operation is about to be applied: what may end by it is looked for in all of the table
    /// from then on.
    pub(super) fn note_ends(&mut self, effect: &Effect) {
        let may_end = match *effect {
            Effect::Put(Entry { expiry, .. }) | Effect::Alter { expiry, .. } => expiry != 0,
            Effect::Flush { .. } => true,
            Effect::Tick { now, .. } => self.replica.flush_at().is_some_and(|at| at <= now),
            Effect::Remove => false,
        };
        self.sweep.is_needed |= may_end;
        self.sweep.is_needed_again |= may_end;
    }

    /// Whether [`sweep`](Self::sweep) would look at anything.
    pub fn has_to_sweep(&self) -> bool {
        self.room.is_above || self.room.clearing.is_some() || self.sweep.is_needed
    }

    /// Whether [`sweep`](Self::sweep) has something to do that does not wait for the time of an item.
    pub fn has_to_clear(&self) -> bool {
        self.room.is_above && !self.room.trimming.rests() || self.room.clearing.is_some()
    }

    /// Removes some items that have expired or been flushed: a part of the table at a time, and only while
    /// there are items that end; some that are above a lowered bound; and some that are where a value is to have
    /// its place. To be called often.
    pub fn sweep(&mut self, now: u64) {
        let is_due = now.saturating_sub(self.sweep.last) >= SWEEP_NS;
        if !is_due || self.check_open().is_err() {
            return;
        }
        self.sweep.last = now;
        if self.room.is_above {
            self.trim(now);
        }
        if self.check_open().is_ok() {
            self.clear_some();
        }
        if self.sweep.is_needed && self.check_open().is_ok() {
            self.sweep_some();
        }
    }

    /// Removes what is dead in some stretches of the table, and says whether there was something.
    fn sweep_some(&mut self) -> bool {
        let mut has_found = false;
        for _ in 0..SWEEP_STRETCHES {
            let stretch = self.replica.table().stretch(self.sweep.to);
            let mut dead = Vec::new();
            for (hash, key, entry) in stretch.items {
                self.sweep.is_needed_again |= entry.expiry != 0;
                // For a second it is left for a retrieval to miss, and count.
                let is_dead = !self.replica.is_live(&entry) && !self.has_just_ended(&entry);
                if is_dead && self.backlog.last_on(hash, key).is_none() {
                    dead.push((hash, key.to_vec(), entry));
                }
            }
            let next = stretch.next;
            has_found |= !dead.is_empty();
            for (hash, key, entry) in &dead {
                self.free_by_removal(*hash, key, entry);
                self.count_reclaimed(key, entry);
            }
            self.sweep.to = next.unwrap_or(0);
            if next.is_none() {
                // Once around: where nothing can end any more, nothing is looked for.
                self.sweep.is_needed = std::mem::take(&mut self.sweep.is_needed_again) || has_found;
                break;
            }
        }
        has_found
    }

    fn has_just_ended(&self, entry: &Entry) -> bool {
        entry.expiry != 0 && entry.expiry == self.now()
    }

    /// Removes an item for its space.
    fn free_by_removal(&mut self, hash: u64, key: &[u8], entry: &Entry) -> u64 {
        let space = space_of(entry);
        let bytes = space.end - space.start;
        self.push(hash, key, Effect::Remove, None);
        // Where nobody else has the partition it is gone already.
        self.backlog.note_frees(bytes);
        bytes
    }

    /// Takes space whose units are all here, for the value of a key.
    pub(super) fn place(&mut self, hash: u64, key: &[u8], bytes: u64) -> Result<u64, Refusal> {
        if bytes > self.region_bytes_max() {
            return Err(Refusal::NoSpace);
        }
        let table = self.replica.table();
        if table.is_crowded(hash) && table.find(hash, key).is_none() {
            return Err(Refusal::NoSpace);
        }
        let grows = |owner: &Self| {
            let table = owner.replica.table();
            table.grows_for(key.len()) && table.find(hash, key).is_none()
        };
        if self.evicts && self.lacks_table(2) && grows(self) && !self.give_chunk_back() {
            // One comes, one goes: the table stays as it is.
            self.make_room(1);
        }
        loop {
            let lacks_table = self.lacks_table(1) && grows(self);
            if lacks_table && self.give_chunk_back() {
                continue;
            }
            if !lacks_table && let Some(address) = self.take(bytes) {
                if bytes >= self.room.in_vain.wanted {
                    self.room.in_vain = InVain::default();
                }
                self.note_placed(address, bytes);
                let entry = Entry {
                    address,
                    value_bytes: u32::try_from(bytes).expect("it was one"),
                    ..Entry::default()
                };
                return self
                    .check_present(&entry)
                    .map(|()| address)
                    .inspect_err(|_| {
                        let freed = self.replica.allocator_mut().free(address, bytes);
                        freed.expect("it was just taken");
                    });
            }
            if !self.evicts {
                let is_freeing =
                    self.backlog.freeing_bytes() > 0 || (self.sweep.is_needed && self.sweep_some());
                match is_freeing {
                    true if self.backlog.is_empty() => continue,
                    true => return Err(Refusal::Busy),
                    false => return Err(Refusal::NoSpace),
                }
            }
            let wanted = if lacks_table { 1 } else { bytes };
            let is_freeing = self.backlog.freeing_bytes() >= wanted
                || match lacks_table {
                    true => self.make_room(1) > 0,
                    false => match self.make_place(bytes) {
                        Cleared::Freeing => true,
                        Cleared::Later => return Err(Refusal::Busy),
                        Cleared::Nothing => false,
                    },
                };
            if !self.backlog.is_empty() {
                return Err(Refusal::Busy);
            }
            if !is_freeing {
                return Err(Refusal::NoSpace);
            }
        }
    }

    /// Takes space, if there is memory for it.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let kept = self.kept_from(bytes);
        let Some(footprint) = self.room.bound.footprint else {
            let limit = self.limit();
            let allocator = self.replica.allocator_mut();
            return allocator.allocate_below(bytes, limit, &kept);
        };
        if !self.room.is_alone {
            let limit = self.limit();
            let allocator = self.replica.allocator_mut();
            return allocator.allocate_below(bytes, limit, &kept).or_else(|| {
                let limit = self.grow(bytes)?;
                let allocator = self.replica.allocator_mut();
                allocator.allocate_below(bytes, limit, &kept)
            });
        }
        let cap = footprint.region_cap(self.table_bytes() + self.table_step());
        let low = self.is_sparse().then(|| {
            let address = self.replica.allocator_mut().allocate_low(bytes, &kept)?;
            self.keep_if_within(cap, address, bytes)
        });
        low.flatten().or_else(|| {
            let room = cap.saturating_sub(self.region.touched_bytes());
            let length = usize::try_from(bytes).expect("it is shorter than its region");
            let region = &self.region;
            let allocator = self.replica.allocator_mut();
            let address = allocator.allocate_where(bytes, &kept, |address| {
                let lacking = region.lacking_bytes(address, length);
                lacking == 0 || lacking <= room
            })?;
            self.room.reached = self.room.reached.max(address + bytes);
            Some(address)
        })
    }

    /// Whether much of what values take of memory is free: then the next ones go to the lowest places, so that
    /// chunks can be given back when those before them have gone.
    pub(super) fn is_sparse(&self) -> bool {
        let used = self.used_bytes();
        let touched = self.region.touched_bytes();
        touched > used + (touched / SPARSE_PART).max(2 * CHUNK_BYTES)
    }

    fn used_bytes(&self) -> u64 {
        let allocator = self.replica.allocator();
        allocator.region_bytes() - allocator.free_bytes()
    }

    /// Gives a place back for which there is no memory.
    fn keep_if_within(&mut self, cap: u64, address: u64, bytes: u64) -> Option<u64> {
        let length = usize::try_from(bytes).expect("it is shorter than its region");
        let lacking = self.region.lacking_bytes(address, length);
        if lacking > 0 && self.region.touched_bytes() + lacking > cap {
            let freed = self.replica.allocator_mut().free(address, bytes);
            freed.expect("it was just taken");
            return None;
        }
        self.room.reached = self.room.reached.max(address + bytes);
        Some(address)
    }

    /// The longest that the region can come to be.
    fn region_bytes_max(&self) -> u64 {
        let bytes = self.replica.allocator().region_bytes();
        let footprint = self.room.bound.footprint;
        footprint.map_or(bytes, |footprint| footprint.region_cap(0).min(bytes))
    }

    /// Up to where the region is used. What a former owner used, and what there is memory for already, is.
    fn limit(&self) -> u64 {
        let allocator = self.replica.allocator();
        if self.room.bound.footprint.is_none() {
            return allocator.region_bytes();
        }
        let used = allocator.used_end().max(self.region.touched_bytes());
        self.room.limit.max(used).min(allocator.region_bytes())
    }

    /// Has more of the region used, if there is memory for it; says up to where.
    fn grow(&mut self, bytes: u64) -> Option<u64> {
        let footprint = self.room.bound.footprint?;
        let table = self.table_bytes() + self.table_step();
        let table = table.max(footprint.table_reserve());
        let limit = footprint.grown(self.limit(), bytes, table)?;
        let limit = limit.min(self.replica.allocator().region_bytes());
        (limit > self.limit()).then(|| {
            self.room.limit = limit;
            limit
        })
    }

    /// Memory that is taken for values and keys.
    pub fn resident_bytes(&self) -> u64 {
        let replica = &self.replica;
        let beside = replica.table().resident_bytes() + replica.allocator().resident_bytes();
        self.region.touched_bytes() + beside
    }

    /// What a replica takes beside values, at the most while it has as many keys.
    fn table_bytes(&self) -> u64 {
        let replica = &self.replica;
        replica.table().churned_bytes() + replica.allocator().resident_bytes()
    }

    fn table_step(&self) -> u64 {
        let footprint = self.room.bound.footprint;
        footprint.map_or(0, |footprint| {
            TABLE_STEP_BYTES.min(footprint.table_cap(0) / 8)
        })
    }

    /// Whether the table has no room for so many steps.
    fn lacks_table(&self, steps: u64) -> bool {
        let Some(footprint) = self.room.bound.footprint else {
            return false;
        };
        let region = if self.room.is_alone {
            self.region.touched_bytes()
        } else {
            self.limit()
        };
        self.table_bytes() + steps * self.table_step() > footprint.table_cap(region)
    }

    /// Gives a chunk of the region back that nobody uses.
    fn give_chunk_back(&mut self) -> bool {
        let allocator = self.replica.allocator();
        let reached = self.room.reached.min(allocator.region_bytes());
        let chunks = reached.div_ceil(CHUNK_BYTES);
        if !self.room.is_alone || chunks == 0 {
            return false;
        }
        for _ in 0..CHUNKS_LOOKED_AT.min(chunks) {
            self.room.chunk = (self.room.chunk + 1) % chunks;
            let address = self.room.chunk * CHUNK_BYTES;
            if self.region.is_touched(address, 1) && allocator.is_free(address, CHUNK_BYTES) {
                self.region.release(address, CHUNK_BYTES);
                return true;
            }
        }
        false
    }

    /// Lets items go ahead of need, so that what comes next does not wait for it.
    pub(super) fn keep_room(&mut self) {
        if !self.evicts || self.backups.is_empty() {
            return;
        }
        let limit = self.limit();
        let allocator = self.replica.allocator();
        let reserve = (limit / 64).min(RESERVE_BYTES_MAX);
        // Beyond the limit nothing is used.
        let free = allocator.free_bytes() + limit - allocator.region_bytes();
        let room = free + self.backlog.freeing_bytes();
        if room < reserve && self.grow(reserve).is_none() {
            self.make_room(reserve - room);
        }
    }

    /// Proposes that items go for a value: the coldest and, where the space of many does not give it a place as
    /// it is here and there, all in one place.
    fn make_place(&mut self, bytes: u64) -> Cleared {
        let in_vain = &mut self.room.in_vain;
        in_vain.wanted = in_vain.wanted.max(bytes);
        if in_vain.bytes >= bytes + bytes.max(IN_VAIN_BYTES) {
            match self.clear_window(bytes) {
                Cleared::Later => return Cleared::Later,
                Cleared::Freeing => {
                    self.room.in_vain.bytes = 0;
                    return Cleared::Freeing;
                }
                Cleared::Nothing => self.room.in_vain.bytes = 0,
            }
        }
        let freed = self.make_room(bytes);
        self.room.in_vain.bytes += freed;
        match freed {
            0 => Cleared::Nothing,
            _ => Cleared::Freeing,
        }
    }

    /// Proposes that the coldest items go whose space is as much as `bytes`; says how much it is.
    fn make_room(&mut self, bytes: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..EVICTIONS_MAX {
            if freed >= bytes {
                break;
            }
            let Some(slot) = self.replica.table_mut().choose_coldest() else {
                break;
            };
            match self.let_go(slot) {
                Some(bytes) => freed += bytes,
                None => self.replica.table_mut().keep(slot),
            }
        }
        freed
    }

    /// Proposes that an item goes to make room, and says how much; none: it has just been written.
    fn let_go(&mut self, slot: Slot) -> Option<u64> {
        let entry = self.replica.table().entry(slot);
        let key = self.replica.table().key(slot).to_vec();
        let hash = self.replica.table().hash_of(&key);
        if self.backlog.last_on(hash, &key).is_some() {
            return None;
        }
        let freed = self.free_by_removal(hash, &key, &entry);
        if self.replica.is_live(&entry) {
            self.went
                .note_evicted(entry.class(key.len()), entry.was_hit);
            if let Some(evicted) = &mut self.evicted
                && evicted.len() < EVICTED_MAX
            {
                evicted.push((key, entry));
            }
        } else {
            self.count_reclaimed(&key, &entry);
        }
        Some(freed)
    }

    fn count_reclaimed(&mut self, key: &[u8], entry: &Entry) {
        let class = entry.class(key.len());
        self.went.note_reclaimed(class, entry.was_hit);
    }
}
