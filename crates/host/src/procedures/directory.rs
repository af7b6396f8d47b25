//! Which caches there are, as their owners say: shared by the server threads.
//!
//! A word is believed of the client that the slabs are lent to, for the volume that has the cache's
//! number. Each thread is told of it in the same order; what it says of windows is looked at once,
//! and each access looks at the window's generation again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_fabric::{Address, Generation, Time, WindowId, Windows};
use cenote_proc::service::{
    Doubt, EVERYBODY, Named, Opened, SLABS_MAX, SlabPlace, SlabWord, Word, WordRefusal, Writing,
};
use cenote_proc::{CacheId, Local, Machine, RegionLocation, Slot, Table};

use crate::owners::Owners;

/// This host, among the machines that it knows.
pub(super) const ME: Machine = Machine(0);

/// See the module's text.
pub(super) struct Directory {
    windows: Windows,
    owners: Owners,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    caches: HashMap<CacheId, Arc<Cache>>,
    /// Other machines of all caches. A number is given once: connections and requests are known by
    /// it.
    machines: HashMap<Machine, Arc<Address>>,
    by_text: HashMap<String, Known>,
    /// Numbers given so far, from 1.
    given: u32,
    /// Slabs of all caches.
    slabs: u64,
}

/// A machine, and in how many caches' lists it is.
struct Known {
    machine: Machine,
    uses: usize,
}

/// A cache, as far as all of it is alike.
#[derive(Debug)]
pub(super) struct Cache {
    /// To whom its slabs are lent.
    owner: u128,
    opened: Opened,
    /// Of each of its machines, this host's number.
    machines: Vec<Machine>,
}

/// What a thread is told.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    Open(Arc<Cache>),
    Map {
        cache: CacheId,
        writes_until: Time,
        slots: Arc<Vec<(usize, Slot)>>,
    },
    Leave {
        cache: CacheId,
        successor: Machine,
    },
    Close {
        cache: CacheId,
    },
    Write {
        cache: CacheId,
    },
    Told {
        cache: CacheId,
        doubts: Arc<Vec<Doubt>>,
    },
}

impl Notice {
    pub(super) fn cache(&self) -> CacheId {
        match self {
            Self::Open(cache) => cache.id(),
            Self::Map { cache, .. }
            | Self::Leave { cache, .. }
            | Self::Close { cache }
            | Self::Write { cache }
            | Self::Told { cache, .. } => *cache,
        }
    }

    /// Whether it says nothing of where slabs are.
    pub(super) fn is_leave(&self) -> bool {
        match self {
            Self::Map { slots, .. } => slots.is_empty(),
            Self::Write { .. } | Self::Told { .. } => true,
            Self::Open(_) | Self::Leave { .. } | Self::Close { .. } => false,
        }
    }
}

impl Cache {
    pub(super) fn id(&self) -> CacheId {
        self.opened.cache
    }

    /// A table in which no slab is anywhere yet, and nothing may be written.
    pub(super) fn table(&self) -> Table {
        let Opened {
            slab_bytes,
            slabs,
            writing,
            leased,
            ..
        } = self.opened;
        let mut table = Table::new(slab_bytes, slabs as usize, writing != Writing::Denied);
        if writing == Writing::Replicated {
            table.keep_stores_back();
        }
        table.allow_writes(Time(0));
        if leased {
            table.end_reads_with_writes();
        }
        table
    }

    /// Whether it is the same cache, as long as before, and owned by the same client.
    pub(super) fn is_as_before(&self, before: &Self) -> bool {
        self.owner == before.owner
            && self.is_shaped_as(&before.opened)
            && self.is_as_long_as(&before.opened)
    }

    fn is_shaped_as(&self, opened: &Opened) -> bool {
        shape(&self.opened) == shape(opened)
    }

    fn is_as_long_as(&self, opened: &Opened) -> bool {
        self.opened.slabs == opened.slabs
    }

    /// Whether a client may run procedures on it.
    pub(super) fn admits(&self, client: u128) -> bool {
        let users = &self.opened.users;
        client == self.owner || users.contains(&client) || users.contains(&EVERYBODY)
    }

    /// This host's number of the cache's machine `index`.
    pub(super) fn machine(&self, index: u32) -> Option<Machine> {
        self.machines.get(index as usize).copied()
    }

    /// Another machine of the cache; none: that is this one.
    fn other(&self, index: u32) -> Result<Option<Machine>, WordRefusal> {
        let machine = self.machine(index).ok_or(WordRefusal::Shape)?;
        Ok((machine != ME).then_some(machine))
    }

    /// What the cache's machines call this one.
    pub(super) fn index_of(&self, machine: Machine) -> Option<u32> {
        let at = self.machines.iter().position(|known| *known == machine)?;
        u32::try_from(at).ok()
    }
}

impl Directory {
    pub(super) fn new(windows: Windows, owners: Owners) -> Self {
        Self {
            windows,
            owners,
            inner: Mutex::default(),
        }
    }

    /// Where a machine is reached.
    pub(super) fn address(&self, machine: Machine) -> Option<Arc<Address>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.machines.get(&machine).map(Arc::clone)
    }

    /// Takes a client's word, and has all threads told; how many slabs it says are in windows that
    /// are not here.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub(super) fn hear(
        &self,
        client: u128,
        word: Word,
        tell: impl FnMut(Notice),
    ) -> Result<u32, WordRefusal> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match word {
            Word::Open(opened) => self.open(&mut inner, client, opened, tell).map(|()| 0),
            Word::Map {
                cache,
                writes_until,
                slabs,
            } => {
                let cache = inner.of(client, cache)?;
                self.map(&cache, Time(writes_until), &slabs, tell)
            }
            Word::Leave { cache, successor } => {
                let cache = inner.of(client, cache)?;
                Self::leave(&cache, successor, tell)
            }
            Word::Close { cache } => {
                inner.of(client, cache)?;
                inner.close(cache, tell);
                Ok(0)
            }
            Word::Write { cache } => {
                let cache = inner.of(client, cache)?.id();
                let mut tell = tell;
                tell(Notice::Write { cache });
                Ok(0)
            }
            Word::Told { cache, doubts } => {
                let cache = inner.of(client, cache)?.id();
                let (mut tell, doubts) = (tell, Arc::new(doubts));
                tell(Notice::Told { cache, doubts });
                Ok(0)
            }
        }
    }

    fn open(
        &self,
        inner: &mut Inner,
        client: u128,
        opened: Opened,
        mut tell: impl FnMut(Notice),
    ) -> Result<(), WordRefusal> {
        let volume = opened.cache.0;
        if !self.owners.lent(client, volume) {
            // What an owner said that has nothing here any more is told again by nobody.
            let known = inner.caches.get(&opened.cache);
            if known.is_some_and(|known| !self.owners.lent(known.owner, volume)) {
                inner.close(opened.cache, &mut tell);
            }
            return Err(WordRefusal::NotYours);
        }
        let whole = u64::from(opened.slabs).checked_mul(opened.slab_bytes);
        let me = opened.me as usize;
        if opened.slab_bytes == 0
            || !(1..=SLABS_MAX).contains(&opened.slabs)
            || whole.is_none()
            || me >= opened.machines.len()
        {
            return Err(WordRefusal::Shape);
        }
        if let Some(known) = inner.caches.get(&opened.cache) {
            if known.owner != client && self.owners.lent(known.owner, volume) {
                return Err(WordRefusal::NotYours);
            }
            let same = known.is_shaped_as(&opened);
            let goes_on =
                known.opened.me == opened.me && opened.machines.starts_with(&known.opened.machines);
            if known.owner == client && !(same && goes_on) {
                return Err(WordRefusal::Shape);
            }
            // Another owner has the number by right: what the last one said, and its generations,
            // count no more. Requests for the same cache wait for what this one says.
            if known.owner != client && !(same && known.is_as_long_as(&opened)) {
                inner.close(opened.cache, &mut tell);
            }
        }
        let machines = match inner.take_in(&opened) {
            Err(WordRefusal::Full) => {
                self.forget_abandoned(inner, opened.cache, &mut tell);
                inner.take_in(&opened)
            }
            taken => taken,
        }?;
        let cache = Arc::new(Cache {
            owner: client,
            opened,
            machines,
        });
        if let Some(last) = inner.caches.insert(cache.id(), Arc::clone(&cache)) {
            inner.release(&last.opened);
        }
        tell(Notice::Open(cache));
        Ok(())
    }

    /// Closes the other caches whose owners ended without a word, and have nothing here.
    fn forget_abandoned(&self, inner: &mut Inner, but: CacheId, mut tell: impl FnMut(Notice)) {
        let caches = inner.caches.values().filter(|cache| cache.id() != but);
        let abandoned = caches.filter(|cache| !self.owners.lent(cache.owner, cache.id().0));
        for cache in abandoned.map(|cache| cache.id()).collect::<Vec<_>>() {
            inner.close(cache, &mut tell);
        }
    }

    fn map(
        &self,
        cache: &Cache,
        writes_until: Time,
        words: &[SlabWord],
        mut tell: impl FnMut(Notice),
    ) -> Result<u32, WordRefusal> {
        let mut slots = Vec::with_capacity(words.len());
        let mut missing = 0;
        for word in words {
            if word.slab >= cache.opened.slabs {
                return Err(WordRefusal::Shape);
            }
            let place = match word.place {
                SlabPlace::Nowhere => Some(RegionLocation::Nowhere),
                SlabPlace::At(machine) => cache.other(machine)?.map(RegionLocation::At),
                SlabPlace::Here(named) => self
                    .held(cache, named)
                    .map(|memory| RegionLocation::Here { memory, offset: 0 }),
                SlabPlace::Leaving(named) => self
                    .held(cache, named)
                    .map(|memory| RegionLocation::Leaving { memory, offset: 0 }),
                SlabPlace::First { named, second } => {
                    let second = cache.other(second)?;
                    let copies = self.held(cache, named).zip(second);
                    copies.map(|(memory, second)| RegionLocation::First {
                        memory,
                        offset: 0,
                        second,
                    })
                }
                SlabPlace::Second { named, first } => {
                    let first = cache.other(first)?;
                    let copies = self.held(cache, named).zip(first);
                    copies.map(|(memory, first)| RegionLocation::Second {
                        memory,
                        offset: 0,
                        first,
                    })
                }
            };
            let Some(place) = place else {
                missing += 1;
                continue;
            };
            let slot = Slot {
                generation: word.generation,
                place,
            };
            slots.push((word.slab as usize, slot));
        }
        tell(Notice::Map {
            cache: cache.id(),
            writes_until,
            slots: Arc::new(slots),
        });
        Ok(missing)
    }

    /// A window of the cache's volume that is lent to its owner, as long as a slab is.
    fn held(&self, cache: &Cache, named: Named) -> Option<Local> {
        let volume = cache.id().0;
        let (window, generation) = (named.window, named.generation);
        if !self.owners.holds(cache.owner, window, generation, volume) {
            return None;
        }
        let held = self
            .windows
            .hold(WindowId(window), Generation(generation))?;
        (held.len_bytes() >= cache.opened.slab_bytes).then_some(Local::Window {
            window: held,
            name: (window, generation),
        })
    }

    fn leave(
        cache: &Cache,
        successor: u32,
        mut tell: impl FnMut(Notice),
    ) -> Result<u32, WordRefusal> {
        match cache.machine(successor) {
            None | Some(ME) => Err(WordRefusal::Shape),
            Some(successor) => {
                let cache = cache.id();
                tell(Notice::Leave { cache, successor });
                Ok(0)
            }
        }
    }
}

impl Inner {
    /// A cache whose owner the client is.
    fn of(&self, client: u128, cache: CacheId) -> Result<Arc<Cache>, WordRefusal> {
        let cache = self.caches.get(&cache).ok_or(WordRefusal::Unknown)?;
        if cache.owner != client {
            return Err(WordRefusal::NotYours);
        }
        Ok(Arc::clone(cache))
    }

    fn close(&mut self, cache: CacheId, mut tell: impl FnMut(Notice)) {
        if let Some(gone) = self.caches.remove(&cache) {
            self.slabs -= u64::from(gone.opened.slabs);
            self.release(&gone.opened);
            tell(Notice::Close { cache });
        }
    }

    /// The machines of a cache that there is room for: it counts with those and its slabs.
    fn take_in(&mut self, opened: &Opened) -> Result<Vec<Machine>, WordRefusal> {
        let known = self.caches.get(&opened.cache);
        let is_one_more = known.is_none() && self.caches.len() >= CACHES_MAX;
        // It may have another number of slabs than before.
        let before = known.map_or(0, |known| known.opened.slabs);
        let slabs = self.slabs - u64::from(before) + u64::from(opened.slabs);
        if is_one_more || slabs > SLABS_MAX_ALL {
            return Err(WordRefusal::Full);
        }
        let machines = self.machines_of(opened)?;
        self.slabs = slabs;
        Ok(machines)
    }

    /// The machines of a cache, each counted once more.
    fn machines_of(&mut self, opened: &Opened) -> Result<Vec<Machine>, WordRefusal> {
        let others = others(opened);
        let mut addresses = HashMap::new();
        for text in others
            .clone()
            .filter(|text| !self.by_text.contains_key(*text))
        {
            let address: Address = text.parse().map_err(|_| WordRefusal::Shape)?;
            addresses.insert(text.clone(), address);
        }
        if self.by_text.len() + addresses.len() > MACHINES_MAX_ALL {
            return Err(WordRefusal::Full);
        }
        for (text, address) in addresses {
            self.given += 1;
            let machine = Machine(self.given);
            self.machines.insert(machine, Arc::new(address));
            self.by_text.insert(text, Known { machine, uses: 0 });
        }
        for text in others {
            if let Some(known) = self.by_text.get_mut(text) {
                known.uses += 1;
            }
        }
        let number = |(index, text): (u32, &String)| match self.by_text.get(text) {
            _ if index == opened.me => ME,
            Some(known) => known.machine,
            None => unreachable!("each was put in"),
        };
        Ok((0..).zip(&opened.machines).map(number).collect())
    }

    /// The machines of a cache are counted once less; those that are in no list go.
    fn release(&mut self, opened: &Opened) {
        for text in others(opened) {
            let Some(known) = self.by_text.get_mut(text) else {
                continue;
            };
            known.uses -= 1;
            if known.uses == 0 {
                let machine = known.machine;
                self.machines.remove(&machine);
                self.by_text.remove(text);
            }
        }
    }
}

/// What of a cache does not change as long as it is that cache.
fn shape(opened: &Opened) -> (u64, Writing, bool) {
    let Opened {
        slab_bytes,
        writing,
        leased,
        ..
    } = *opened;
    (slab_bytes, writing, leased)
}

/// The addresses of a cache's machines but the one that is told.
fn others(opened: &Opened) -> impl Iterator<Item = &String> + Clone {
    let is_other = |(index, _): &(u32, &String)| *index != opened.me;
    (0..)
        .zip(&opened.machines)
        .filter(is_other)
        .map(|(_, text)| text)
}

/// Caches that a host knows at most.
const CACHES_MAX: usize = 256;
/// Slabs of all of them: each has some 64 bytes in each thread.
const SLABS_MAX_ALL: u64 = 1 << 18;
/// Other machines of all of them.
const MACHINES_MAX_ALL: usize = 1024;
