//! Regions whose copies may differ, as a store into the second was lost on its way.
//!
//! Such a store may land late. So its region takes no others here before its windows were renewed,
//! after which nothing of before lands; another generation alone proves nothing (decision 78). The
//! owner is told with each answer to a word until it says that it heard, and makes the copies
//! equal.

use super::{Action, Executor};
use crate::injected_faults::{self, InjectedFault};
use crate::table::Life;
use crate::{CacheId, RegionLocation, Slot};

/// A region that an owner is to make equal.
#[derive(Clone, Debug)]
pub(super) struct Doubted {
    /// Of the entry by which the store was sent.
    generation: u64,
    /// Of the first copy.
    life: Life,
    /// The owner has heard of it.
    is_told: bool,
}

impl Executor {
    /// Nobody knows whether the second copy of a region has, or will have, what was stored by an
    /// entry of this generation, when the first had this life.
    pub fn handle_doubt(&mut self, cache: CacheId, region: usize, generation: u64, life: Life) {
        let Some(table) = self.caches.get_mut(&cache) else {
            return;
        };
        match table.life(region) {
            Some(now) if now == life => table.stop_stores(region),
            // Renewed since: the owner makes the copies equal.
            Some(_) => return,
            None => {}
        }
        let doubted = Doubted {
            generation,
            life,
            is_told: false,
        };
        self.doubts.insert((cache, region), doubted);
    }

    /// [`Executor::handle_doubt`], here and on the machine's other threads.
    pub(super) fn raise_doubt(
        &mut self,
        cache: CacheId,
        region: usize,
        generation: u64,
        life: Life,
    ) {
        self.handle_doubt(cache, region, generation, life.clone());
        self.actions.push_back(Action::Doubt {
            cache,
            region,
            generation,
            life,
        });
    }

    /// Regions whose owner is to hear that it has to make them equal, with the generations.
    pub fn doubts(&self, cache: CacheId) -> impl Iterator<Item = (usize, u64)> {
        let of = self.doubts.range((cache, 0)..=(cache, usize::MAX));
        let untold = of.filter(|(_, doubted)| !doubted.is_told);
        untold.map(|((_, region), doubted)| (*region, doubted.generation))
    }

    /// The owner has heard of a doubt.
    pub fn handle_told(&mut self, cache: CacheId, region: usize, generation: u64) {
        let Some(doubted) = self.doubts.get_mut(&(cache, region)) else {
            return;
        };
        doubted.is_told |= doubted.generation <= generation;
        let table = self.caches.get(&cache);
        let life = table.and_then(|table| table.life(region));
        let is_here = life.as_ref() == Some(&doubted.life);
        if doubted.is_told && !is_here {
            self.doubts.remove(&(cache, region));
        }
    }

    /// The cache is no more.
    pub fn forget_doubts(&mut self, cache: CacheId) {
        self.doubts.retain(|(doubted, _), _| *doubted != cache);
    }

    /// A word about a region that may be doubtful, as it is to be gone by.
    pub(super) fn heed_doubt(&mut self, cache: CacheId, region: usize, slot: &mut Slot) {
        let Some(doubted) = self.doubts.get(&(cache, region)) else {
            return;
        };
        let known = self.caches.get(&cache).and_then(|table| table.slot(region));
        if known.is_some_and(|known| slot.generation < known.generation) {
            return;
        }
        if injected_faults::is(InjectedFault::HastyTrust) {
            self.doubts.remove(&(cache, region));
            return;
        }
        match slot.place.life() {
            Some(life) if life == doubted.life => {
                let place = std::mem::replace(&mut slot.place, RegionLocation::Nowhere);
                slot.place = place.without_stores();
            }
            // It was fenced, and is made equal.
            Some(_) => drop(self.doubts.remove(&(cache, region))),
            None if doubted.is_told => drop(self.doubts.remove(&(cache, region))),
            // It is still to be told: what is there now may have been copied from either.
            None => {}
        }
    }
}
