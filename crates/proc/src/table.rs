//! Where the bytes of a cache are, as one server thread knows it: the `LocalTranslator`.
//!
//! A cache is an array of regions of one size. Each is here, on another machine, or stopped while
//! it moves; generations say which word is newer. A thread has a table of its own and runs no step
//! while it changes, so no step ever uses a region that was taken away (invariant R2).
//!
//! Memory that peers write is reached by copies through [`Local`] alone. Of a window each copy
//! looks at the generation, so that a slab that is given back between two words is never used after
//! that.
//! Stores into a cache with two copies are kept back ([`pending`]) until the executor has brought
//! them to both.
//! Paper: `[compucache]` Translate.

pub(crate) mod pending;

use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{Dead, HeldWindow, Region, Time, Unwritten};
use cenote_proc_sdk::{Fault, Memory};

use crate::injected_faults::{self, InjectedFault};
use pending::Pending;

/// A machine of a cache.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Machine(pub u32);

/// Memory of this machine.
#[derive(Clone, Debug)]
pub enum Local {
    /// Of this process alone, or of windows whose generations nobody asks for.
    Region(Arc<Region>),
    /// A life of a window.
    Window {
        /// The memory.
        window: HeldWindow,
        /// Number and generation.
        name: (u32, u64),
    },
}

/// What a region's bytes here are in, until its window is renewed.
#[derive(Clone, Debug)]
pub enum Life {
    /// Of [`Local::Region`]: that itself, so that no other is taken for it.
    Region(Arc<Region>),
    /// Of [`Local::Window`]: its name.
    Window(u32, u64),
}

impl PartialEq for Life {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Region(one), Self::Region(other)) => Arc::ptr_eq(one, other),
            (Self::Window(id, generation), Self::Window(other, later)) => {
                (id, generation) == (other, later)
            }
            _ => false,
        }
    }
}

impl From<Arc<Region>> for Local {
    fn from(region: Arc<Region>) -> Self {
        Self::Region(region)
    }
}

impl Local {
    fn len_bytes(&self) -> u64 {
        match self {
            Self::Region(region) => region.len_bytes(),
            Self::Window { window, .. } => window.len_bytes(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Region(region) => region.is_dead(),
            Self::Window { window, .. } => window.is_over(),
        }
    }

    pub(crate) fn life(&self) -> Life {
        match self {
            Self::Region(region) => Life::Region(Arc::clone(region)),
            Self::Window { name, .. } => Life::Window(name.0, name.1),
        }
    }

    #[inline]
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), Dead> {
        match self {
            Self::Region(region) => region.read(offset, target),
            Self::Window { window, .. } => window.read(offset, target),
        }
    }

    pub(crate) fn write(&self, offset: u64, source: &[u8]) -> Result<(), Unwritten> {
        match self {
            Self::Region(region) => region
                .write(offset, source)
                .map_err(|Dead| Unwritten::Nothing),
            Self::Window { window, .. } => window.write(offset, source),
        }
    }
}

/// What is known of a region.
#[derive(Clone, Debug)]
pub enum RegionLocation {
    /// Its bytes are here, from `offset` of `memory`.
    Here {
        /// What the bytes are in.
        memory: Local,
        /// Of the region's first byte.
        offset: u64,
    },
    /// Its first copy is here, as with `Here`; a store reaches the second before that.
    First {
        /// What the bytes are in.
        memory: Local,
        /// Of the region's first byte.
        offset: u64,
        /// Who has the second copy.
        second: Machine,
    },
    /// It belongs to another machine.
    At(Machine),
    /// It belongs to another machine, whose stores come here first: this is the second copy.
    Second {
        /// What the bytes are in.
        memory: Local,
        /// Of the region's first byte.
        offset: u64,
        /// To whom it belongs.
        first: Machine,
    },
    /// It is here and moves away: reads go on, writes wait. Paper: `[redy22]` migration.
    Leaving {
        /// What the bytes are in.
        memory: Local,
        /// Of the region's first byte.
        offset: u64,
    },
    /// Nobody has it, as far as is known here.
    Nowhere,
}

impl RegionLocation {
    /// Whether the copy that is read is here.
    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(
            self,
            Self::Here { .. } | Self::First { .. } | Self::Leaving { .. }
        )
    }

    /// The other machine that has the copy that is read.
    #[must_use]
    pub fn elsewhere(&self) -> Option<Machine> {
        match self {
            Self::At(machine) | Self::Second { first: machine, .. } => Some(*machine),
            Self::Here { .. } | Self::First { .. } | Self::Leaving { .. } | Self::Nowhere => None,
        }
    }

    /// Of the copy that is read, if it is here.
    pub(crate) fn life(&self) -> Option<Life> {
        let (memory, _) = self.bytes().filter(|_| self.is_here())?;
        Some(memory.life())
    }

    /// The same, and what is here is read only.
    pub(crate) fn without_stores(self) -> Self {
        match self {
            Self::Here { memory, offset } | Self::First { memory, offset, .. } => {
                Self::Leaving { memory, offset }
            }
            other => other,
        }
    }

    /// What of it is here, of whatever use.
    fn bytes(&self) -> Option<(&Local, u64)> {
        match self {
            Self::Here { memory, offset }
            | Self::First { memory, offset, .. }
            | Self::Leaving { memory, offset }
            | Self::Second { memory, offset, .. } => Some((memory, *offset)),
            Self::At(_) | Self::Nowhere => None,
        }
    }
}

/// A region's place, and which word about it this is.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Grows with each change of the owner.
    pub generation: u64,
    /// Where the region is.
    pub place: RegionLocation,
}

/// The machine's clock; tests have others, by which threads stand still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(pub(crate) fn() -> Time);

impl Default for Clock {
    fn default() -> Self {
        Self(Time::now)
    }
}

impl Clock {
    pub(crate) fn now(self) -> Time {
        (self.0)()
    }
}

/// The regions of one cache.
#[derive(Clone, Debug, Default)]
pub struct Table {
    region_bytes: u64,
    slots: Vec<Slot>,
    /// Whether procedures may write at all.
    writable: bool,
    /// Whether the one that steps may.
    step_writes: bool,
    /// Until when stores count; `None`: as long as the regions are here.
    writes_until: Option<Time>,
    /// Loads count as long as stores do.
    reads_end: bool,
    /// Regions that are here, leaving or not.
    here: usize,
    /// Of the step: what became of its stores, and whether it loaded anything.
    stores: Stores,
    loaded: bool,
    clock: Clock,
    /// Of a cache with two copies: what was stored and is not in both.
    pending: Option<Box<Pending>>,
}

/// What became of the stores of a step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Stores {
    /// Those that went through count.
    #[default]
    Count,
    /// One met a region on the move, or was too late, and changed nothing: it waits for a word
    /// about the region at `index`, which need not be the one that it begins in.
    Wait {
        /// Of the region.
        index: usize,
    },
    /// One changed bytes that do not count: where the region goes on has them, or not. Whoever does
    /// it again may do it twice.
    InDoubt,
}

/// A range of bytes of one region that is here.
#[derive(Clone, Copy)]
struct Span<'a> {
    memory: &'a Local,
    offset: u64,
    len: u64,
    leaving: bool,
}

impl Table {
    /// Of a cache of `regions` regions, none of which is anywhere yet; procedures may write if
    /// `writable`.
    ///
    /// # Panics
    /// If the regions have no bytes, or all of them more than an address can say.
    #[must_use]
    pub fn new(region_bytes: u64, regions: usize, writable: bool) -> Self {
        assert!(region_bytes > 0, "a region has bytes");
        let total = u64::try_from(regions)
            .ok()
            .and_then(|n| n.checked_mul(region_bytes));
        assert!(total.is_some(), "addresses are 64 bits");
        let slot = Slot {
            generation: 0,
            place: RegionLocation::Nowhere,
        };
        Self {
            region_bytes,
            slots: vec![slot; regions],
            writable,
            step_writes: writable,
            writes_until: None,
            reads_end: false,
            here: 0,
            stores: Stores::default(),
            loaded: false,
            clock: Clock::default(),
            pending: None,
        }
    }

    /// The cache has regions with two copies: what is stored is kept back until both have it.
    pub fn keep_stores_back(&mut self) {
        self.pending = Some(Box::default());
    }

    /// Goes by another clock than the machine's from now on.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// From now on loads count no longer than stores do ([`Table::allow_writes`]).
    pub fn end_reads_with_writes(&mut self) {
        self.reads_end = true;
    }

    /// Takes a word about a region in; whether it was news.
    ///
    /// Of one generation a word counts that only changes between here and leaving.
    ///
    /// # Panics
    /// If a place here is smaller than a region.
    pub fn set(&mut self, index: usize, slot: Slot) -> bool {
        let Some(known) = self.slots.get_mut(index) else {
            return false;
        };
        let same_owner = RegionLocation::is_here;
        let news = slot.generation > known.generation
            || slot.generation == known.generation
                && same_owner(&slot.place)
                && same_owner(&known.place);
        if let Some((memory, offset)) = slot.place.bytes() {
            let end = offset.checked_add(self.region_bytes);
            assert!(
                end.is_some_and(|end| end <= memory.len_bytes()),
                "a region's bytes are inside its memory"
            );
        }
        let serves_old = injected_faults::is(InjectedFault::ServeOld)
            && same_owner(&known.place)
            && slot.place.elsewhere().is_some();
        if news && !serves_old || injected_faults::is(InjectedFault::OldWord) {
            self.here -= usize::from(same_owner(&known.place));
            self.here += usize::from(same_owner(&slot.place));
            *known = slot;
        }
        news
    }

    /// Whether a word says what is known already.
    pub(crate) fn agrees(&self, index: usize, slot: &Slot) -> bool {
        self.slots.get(index).is_some_and(|known| {
            let is_here = known.place.is_here() || slot.place.is_here();
            let same_place = known.place.elsewhere() == slot.place.elsewhere();
            known.generation == slot.generation && !is_here && same_place
        })
    }

    /// Whether a store into a region waits: for the end of its move, or for more time.
    pub(crate) fn holds_stores(&self, index: usize) -> bool {
        let holds = |slot: &Slot| self.is_kept_from_stores(&slot.place);
        self.is_too_late() || self.slots.get(index).is_some_and(holds)
    }

    /// Whether a region that is here takes no stores.
    fn is_kept_from_stores(&self, place: &RegionLocation) -> bool {
        match place {
            RegionLocation::Leaving { .. } => true,
            RegionLocation::First { second, .. } if self.is_suspect(*second) => true,
            _ if injected_faults::is(InjectedFault::UnsaidStore) => false,
            _ => self
                .pending
                .as_ref()
                .is_some_and(|pending| !pending.may_write),
        }
    }

    /// The region that `addr` is in, if the cache is that long.
    #[must_use]
    pub fn index(&self, addr: u64) -> Option<usize> {
        let index = usize::try_from(addr.checked_div(self.region_bytes)?).ok()?;
        (index < self.slots.len()).then_some(index)
    }

    /// What is known of the region at `index`.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// Bytes from `addr` to the end of its region.
    #[must_use]
    pub fn rest_of_region(&self, addr: u64) -> u64 {
        self.region_bytes - addr % self.region_bytes
    }

    /// Where each region is, by index.
    pub(crate) fn places(&self) -> impl Iterator<Item = &RegionLocation> {
        self.slots.iter().map(|slot| &slot.place)
    }

    /// How many regions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the cache has no region.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Stores count until then, by the machine's clock; who lent the memory does not wait for
    /// longer.
    pub fn allow_writes(&mut self, until: Time) {
        self.writes_until = Some(until);
    }

    fn is_too_late(&self) -> bool {
        self.writes_until
            .is_some_and(|until| self.clock.now() >= until)
    }

    /// Whether the last step loaded anything that counts until some time alone; once.
    pub(crate) fn take_loaded(&mut self) -> bool {
        std::mem::take(&mut self.loaded) && self.reads_end
    }

    /// Whether what was loaded up to `at` may be of before a move that this machine was not told
    /// of. To be asked after the loads: a thread may stand still between any two instructions.
    pub(crate) fn is_stale(&self, at: Time) -> bool {
        self.reads_end && self.writes_until.is_none_or(|until| at >= until)
    }

    /// [`Table::is_stale`] of what was loaded just now.
    pub(crate) fn is_stale_now(&self) -> bool {
        self.reads_end && self.is_stale(self.clock.now())
    }

    /// Whether a step that begins now would not end in time. One that finds nothing here, and goes
    /// elsewhere, always does.
    pub(crate) fn is_lapsing(&self, now: Time) -> bool {
        self.here > 0 && self.is_stale(now.after(LAPSE))
    }

    /// Says whether the procedure of the next step may write.
    pub fn begin_step(&mut self, writes: bool) {
        self.step_writes = writes && self.writable;
    }

    /// What became of the stores of the last step, once.
    pub fn take_stores(&mut self) -> Stores {
        std::mem::take(&mut self.stores)
    }

    /// A store into the region of `addr` is to wait.
    fn hold_store(&mut self, addr: u64) -> Fault {
        if let (Stores::Count, Some(index)) = (self.stores, self.index(addr)) {
            self.stores = Stores::Wait { index };
        }
        Fault::Elsewhere
    }

    /// A store that has changed some bytes goes no further.
    fn break_store(&mut self) -> Fault {
        self.stores = Stores::InDoubt;
        Fault::Elsewhere
    }

    /// Whether all of a range is here, and may be written to as far as its regions go. Nothing is
    /// written of one that is not: what is half done would be done again.
    fn may_store(&mut self, addr: u64, size: u64) -> Result<(), Fault> {
        let mut done = 0;
        while done < size {
            let at = addr.wrapping_add(done);
            let span = self.translate(at, size - done).ok_or(Fault::Elsewhere)?;
            if span.memory.is_over() {
                return Err(Fault::Elsewhere);
            }
            if span.leaving {
                return Err(self.hold_store(at));
            }
            done += span.len;
        }
        match self.is_too_late() {
            true => Err(self.hold_store(addr)),
            false => Ok(()),
        }
    }

    /// The part of a range that is here in one piece: null in the paper's words is `None`, and a
    /// piece shorter than asked is out of bounds at its end.
    fn translate(&self, addr: u64, size: u64) -> Option<Span<'_>> {
        let index = addr.checked_div(self.region_bytes)?;
        let within = addr - index * self.region_bytes;
        let slot = self.slots.get(usize::try_from(index).ok()?)?;
        let (memory, offset) = slot.place.bytes().filter(|_| slot.place.is_here())?;
        let leaving = self.is_kept_from_stores(&slot.place);
        Some(Span {
            memory,
            offset: offset + within,
            len: size.min(self.region_bytes - within),
            leaving,
        })
    }
}

impl Memory for Table {
    #[inline]
    fn load(&mut self, mut addr: u64, mut target: &mut [u8]) -> Result<(), Fault> {
        while !target.is_empty() {
            let size = target.len() as u64;
            let span = self.translate(addr, size).ok_or(Fault::Elsewhere)?;
            let len = usize::try_from(span.len).map_err(|_| Fault::Elsewhere)?;
            let (part, rest) = target.split_at_mut(len);
            // Memory that died under the read is nowhere until the table says where it is.
            span.memory
                .read(span.offset, part)
                .map_err(|_| Fault::Elsewhere)?;
            let len = span.len;
            if let Some(pending) = &mut self.pending {
                let region = (addr / self.region_bytes) as usize;
                pending.patch(region, addr, part);
            }
            addr = addr.wrapping_add(len);
            target = rest;
            self.loaded = true;
        }
        Ok(())
    }

    fn store(&mut self, mut addr: u64, mut source: &[u8]) -> Result<(), Fault> {
        if !self.step_writes {
            return Err(Fault::Denied);
        }
        if let Some(pending) = &mut self.pending {
            pending.wants_to_write = true;
        }
        if !injected_faults::is(InjectedFault::WriteLeaving) {
            self.may_store(addr, source.len() as u64)?;
        }
        if self.pending.is_some() {
            return self.keep_back(addr, source);
        }
        let mut changed = false;
        while !source.is_empty() {
            let size = source.len() as u64;
            let span = self.translate(addr, size).ok_or(Fault::Elsewhere)?;
            let len = usize::try_from(span.len).map_err(|_| Fault::Elsewhere)?;
            let (part, rest) = source.split_at(len);
            let written = span.memory.write(span.offset, part);
            addr = addr.wrapping_add(span.len);
            source = rest;
            match written {
                Ok(()) => changed = true,
                Err(Unwritten::Perhaps) => return Err(self.break_store()),
                Err(Unwritten::Nothing) if changed => return Err(self.break_store()),
                // The word about where it is now is on its way.
                Err(Unwritten::Nothing) => return Err(Fault::Elsewhere),
            }
            // Copied while the time was over, or before: nobody knows.
            let is_unasked = injected_faults::is(InjectedFault::WriteLeaving)
                || injected_faults::is(InjectedFault::LateStore);
            if self.is_too_late() && !is_unasked {
                return Err(self.break_store());
            }
        }
        Ok(())
    }

    fn here(&mut self, addr: u64, size: u64) -> u64 {
        let mut total = 0;
        while total < size {
            let at = addr.wrapping_add(total);
            match self.translate(at, size - total) {
                // What a load would not get is not here.
                Some(span) if !span.memory.is_over() => total += span.len,
                _ => break,
            }
        }
        total
    }
}

/// Of the time that loads count, the last part in which no step begins. Arbitrary: twice what a
/// guest's step may take, so that only a thread that stands still is overtaken.
const LAPSE: Duration = Duration::from_millis(20);
