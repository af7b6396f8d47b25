//! Stores into a cache with two copies, until both have them.
//!
//! A step's stores are seen by its own loads at once, and by later steps of its thread from its end
//! on: together they go to the second copies, and then into the first ones. So steps of one thread
//! follow each other as if each had changed both copies. All others, who read the copies, see a
//! store when it is in both.

use cenote_fabric::Unwritten;
use cenote_proc_sdk::Fault;
use smallvec::SmallVec;

use super::{Life, Local, RegionLocation, Table};
use crate::Machine;
use crate::injected_faults::{self, InjectedFault};
use crate::message::{Piece, Replicated};
use crate::service::WriteState;
use crate::write_set::WriteSet;

/// Regions of a step, by index.
pub(crate) type Regions = SmallVec<[usize; 2]>;

/// Of one cache, on one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    /// Of the step.
    step: WriteSet,
    /// Of steps whose stores go out next.
    gathered: WriteSet,
    /// On their way to the second copies.
    flying: WriteSet,
    /// A step is being taken, whose loads see all of it.
    in_step: bool,
    regions: Regions,
    /// A step has stored, or would have.
    pub(super) wants_to_write: bool,
    /// The owner knows that steps store.
    pub(super) may_write: bool,
    /// Machines whose second copies take nothing for now.
    pub(crate) suspects: SmallVec<[Machine; 2]>,
}

/// What a step stored, and what it was based on.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepWrites {
    pub(crate) stores: WriteSet,
    /// Regions that it stored into, or found stores of other steps in.
    pub(crate) regions: Regions,
}

/// Why a store is not taken in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Full {
    /// The step is to go on once what it stored is in both copies.
    Now,
    /// It is more than a step may store.
    Ever,
}

/// Lines of 64 bytes that a step may store into. Arbitrary: what goes out of some steps is to be
/// some messages.
const STEP_LINES: usize = 1024;
/// Lines of steps that wait beyond which no further one begins.
const GATHERED_LINES: usize = 4096;

impl Pending {
    pub(super) fn begin_step(&mut self) {
        self.in_step = true;
    }

    /// Ends a step.
    pub(super) fn take_step(&mut self) -> StepWrites {
        self.in_step = false;
        StepWrites {
            stores: std::mem::take(&mut self.step),
            regions: std::mem::take(&mut self.regions),
        }
    }

    /// Whether no further step is to begin before these are in both copies.
    pub(super) fn is_full(&self) -> bool {
        self.gathered.lines() >= GATHERED_LINES
    }

    fn note(&mut self, region: usize) {
        if !self.regions.contains(&region) {
            self.regions.push(region);
        }
    }

    /// Puts over bytes that were loaded of a region what is to be seen instead.
    pub(super) fn patch(&mut self, region: usize, addr: u64, target: &mut [u8]) {
        if !self.in_step {
            return;
        }
        if !injected_faults::is(InjectedFault::BlindStep) {
            let of_flying = self.flying.patch(addr, target);
            let of_gathered = self.gathered.patch(addr, target);
            if of_flying || of_gathered {
                self.note(region);
            }
        }
        self.step.patch(addr, target);
    }

    pub(super) fn has_room(&self, addr: u64, len: usize) -> Result<(), Full> {
        if WriteSet::lines_of(addr, len) > STEP_LINES {
            return Err(Full::Ever);
        }
        if self.step.lines() + self.step.lines_missing(addr, len) > STEP_LINES {
            return Err(Full::Now);
        }
        Ok(())
    }

    /// Takes in a part of a store, which is in one region.
    pub(super) fn store(&mut self, region: usize, addr: u64, source: &[u8]) {
        self.note(region);
        self.step.store(addr, source);
    }

    /// A step's stores go out with the next.
    pub(crate) fn gather(&mut self, stores: &WriteSet) {
        self.gathered.absorb(stores);
    }

    /// Has what was gathered go out.
    pub(crate) fn launch(&mut self) -> &WriteSet {
        self.flying = std::mem::take(&mut self.gathered);
        &self.flying
    }

    /// What went out is in both copies, or came to nothing.
    pub(crate) fn land(&mut self) {
        self.flying.clear();
    }

    /// What was gathered comes to nothing: its steps are taken again.
    pub(crate) fn scatter(&mut self) {
        self.gathered.clear();
    }

    pub(crate) fn is_gathered_empty(&self) -> bool {
        self.gathered.is_empty()
    }
}

impl Table {
    /// Lets a step see what is not in the copies yet. To be ended by [`Table::take_step`].
    pub(crate) fn begin_view(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.begin_step();
        }
    }

    /// What the last step stored that is in no copy yet; `None`: the cache has one.
    pub(crate) fn take_step(&mut self) -> Option<StepWrites> {
        self.pending.as_mut().map(|pending| pending.take_step())
    }

    /// Whether stores are kept back.
    pub(crate) fn keeps_back(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether so much is kept back that no step is to begin.
    pub(crate) fn is_full(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| pending.is_full())
    }

    /// What is kept back.
    ///
    /// # Panics
    /// If nothing is: its cache has one copy.
    pub(crate) fn pending(&mut self) -> &mut Pending {
        self.pending.as_mut().expect("a cache with two copies")
    }

    /// Whether second copies on that machine take nothing for now.
    pub(super) fn is_suspect(&self, second: Machine) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|pending| pending.suspects.contains(&second))
    }

    /// Takes a store in that both copies are to have.
    pub(super) fn keep_back(&mut self, mut addr: u64, mut source: &[u8]) -> Result<(), Fault> {
        let region_bytes = self.region_bytes;
        let pending = self.pending();
        match pending.has_room(addr, source.len()) {
            Ok(()) => {}
            Err(Full::Now) => return Err(Fault::Elsewhere),
            Err(Full::Ever) => return Err(Fault::Denied),
        }
        while !source.is_empty() {
            let region = addr / region_bytes;
            let rest = usize::try_from(region_bytes - addr % region_bytes).unwrap_or(usize::MAX);
            let (part, later) = source.split_at(rest.min(source.len()));
            let region = usize::try_from(region).expect("it was found to be here");
            pending.store(region, addr, part);
            addr += part.len() as u64;
            source = later;
        }
        Ok(())
    }

    /// Stores into the region at `index` wait until its windows were renewed: its copies may
    /// differ.
    pub(crate) fn stop_stores(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.place = slot.place.clone().without_stores();
    }

    /// The life of a region's copy that is read, if that is here.
    pub(crate) fn life(&self, index: usize) -> Option<Life> {
        self.slots.get(index)?.place.life()
    }

    /// The owner knows that procedures here write.
    pub(crate) fn permit_writes(&mut self) {
        if let Some(pending) = &mut self.pending {
            (pending.may_write, pending.wants_to_write) = (true, true);
        }
    }

    /// How far it is with writing.
    pub(crate) fn write_state(&self) -> WriteState {
        match &self.pending {
            Some(pending) if pending.may_write => WriteState::Writes,
            Some(pending) if pending.wants_to_write => WriteState::Wants,
            _ => WriteState::Idle,
        }
    }

    /// Follows a table of the same cache in the same process, from which nothing is under way.
    pub(crate) fn succeed(&mut self, before: &Self) {
        match before.write_state() {
            WriteState::Writes => self.permit_writes(),
            state => {
                if let Some(pending) = &mut self.pending {
                    pending.wants_to_write = state == WriteState::Wants;
                }
            }
        }
    }

    /// Writes into the second copies that are here, of all regions concerned or of none.
    pub(crate) fn write_second(&self, pieces: &[Piece]) -> Replicated {
        let place = |piece: &Piece| {
            let slot = self.slots.get(self.index(piece.addr)?)?;
            let RegionLocation::Second { memory, offset, .. } = &slot.place else {
                return None;
            };
            let fits = piece.bytes.len() as u64 <= self.rest_of_region(piece.addr);
            let known = slot.generation == piece.generation
                || injected_faults::is(InjectedFault::StaleSecond);
            let is_there = fits && known && !memory.is_over();
            is_there.then_some((memory, offset + piece.addr % self.region_bytes))
        };
        let places: Option<Vec<_>> = pieces.iter().map(place).collect();
        let Some(places) = places.filter(|_| !self.is_too_late()) else {
            return Replicated::Refused;
        };
        let mut changed = false;
        for ((memory, offset), piece) in places.into_iter().zip(pieces) {
            match memory.write(offset, &piece.bytes) {
                Ok(()) => changed = true,
                Err(Unwritten::Nothing) if !changed => return Replicated::Refused,
                Err(_) => return Replicated::InDoubt,
            }
        }
        // As with stores: by then the copy may be another's.
        match self.is_too_late() {
            true => Replicated::InDoubt,
            false => Replicated::Written,
        }
    }

    /// Where bytes that were kept back go: their region's generation, its first copy, and who has
    /// the second. `None`: it takes no stores now.
    pub(crate) fn copies(&self, addr: u64) -> Option<(u64, Local, u64, Option<Machine>)> {
        let slot = self.slots.get(self.index(addr)?)?;
        let second = match &slot.place {
            RegionLocation::Here { .. } => None,
            RegionLocation::First { second, .. } if !self.is_suspect(*second) => Some(*second),
            _ => return None,
        };
        let (memory, offset) = slot.place.bytes()?;
        let offset = offset + addr % self.region_bytes;
        Some((slot.generation, memory.clone(), offset, second))
    }

    /// Bytes of a region.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Whether it is too late for stores to be known to count.
    pub(crate) fn is_over(&self) -> bool {
        self.is_too_late()
    }
}
