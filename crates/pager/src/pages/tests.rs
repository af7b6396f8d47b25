//! [`Pages`], of one shard and of several in one bound, against a model: a memory, a store that is
//! slow and fails, and threads that touch pages and know what they wrote. Every mistake of
//! [`MISTAKES`] is found within the seeds that pass without.

use std::collections::{HashMap, HashSet};

use cenote_preload::stripes::Stripes;
use cenote_test_kit::Random;

use super::*;
use crate::injected_faults::MISTAKES;
use crate::rooms::{Held, Rooms};

const PAGES: u32 = 160;
const ROOM: u32 = 64;
/// Pages of a stripe, where there are several shards.
const STRIPE: usize = 20;
/// How long one thread walks alone, and how long it does not.
const WALK: Duration = Duration::from_millis(800);
/// How long most touches are of one shard's pages.
const FOCUS: Duration = Duration::from_millis(400);
const THREADS: usize = 4;

#[derive(Clone, Copy)]
struct Mapped {
    value: u64,
    is_protected: bool,
}

/// What is under way at the store.
enum Io {
    Read(u32),
    /// Nothing of the store: the page may be on its way out.
    Zero(u32),
    Write(u32, u64, WrittenAs),
    /// A write of a page that was discarded since, to a place that is not the page's any more.
    Orphan(u32),
    Erase(u32),
}

struct World {
    stripes: Stripes,
    shards: Vec<Pages>,
    rooms: Rooms,
    /// Faults of each shard when it settled last.
    faults: Vec<u64>,
    random: Random,
    now: Duration,
    mapped: HashMap<u32, Mapped>,
    poisoned: HashSet<u32>,
    /// Pages that are gone by the books, and in the memory still.
    gone: Vec<u32>,
    /// What each page is; 0 is zeros.
    truth: HashMap<u32, u64>,
    store: HashMap<u32, u64>,
    under_way: Vec<Io>,
    /// Faults that the handler has not read yet.
    events: Vec<(u32, bool)>,
    /// What each thread wants, and whether it sleeps.
    threads: [Option<(u32, bool, bool)>; THREADS],
    /// Where the first thread walks.
    walker: u32,
    discards: Vec<u32>,
    next_value: u64,
    is_failing: bool,
    is_discarding: bool,
}

type Fault = Result<(), String>;

impl World {
    fn new(seed: u64, shard_count: usize) -> Self {
        let stripes = match shard_count {
            1 => Stripes::new(PAGES as usize, 1),
            _ => Stripes::of(PAGES as usize, shard_count, STRIPE),
        };
        let counts = (0..shard_count).map(|shard| stripes.len(shard) as u32);
        let rooms = Rooms::new(ROOM, &counts.clone().collect::<Vec<_>>());
        let shards = counts.enumerate();
        let shards = shards.map(|(shard, count)| Pages::new(count, rooms.granted(shard)));
        Self {
            stripes,
            shards: shards.collect(),
            rooms,
            faults: vec![0; shard_count],
            random: Random(seed),
            now: Duration::ZERO,
            mapped: HashMap::new(),
            poisoned: HashSet::new(),
            gone: Vec::new(),
            truth: HashMap::new(),
            store: HashMap::new(),
            under_way: Vec::new(),
            events: Vec::new(),
            threads: [None; THREADS],
            walker: 0,
            discards: Vec::new(),
            next_value: 1,
            is_failing: seed.is_multiple_of(3),
            is_discarding: seed.is_multiple_of(2),
        }
    }

    /// A copy of the memory, as `fork` makes one: what is under way is the parent's alone.
    fn forked(&mut self, seed: u64) -> Self {
        self.drop_gone();
        let mut child = Self {
            rooms: self.rooms.clone(),
            faults: self.faults.clone(),
            mapped: self.mapped.clone(),
            poisoned: self.poisoned.clone(),
            truth: self.truth.clone(),
            store: self.store.clone(),
            now: self.now,
            walker: self.walker,
            next_value: self.next_value,
            ..Self::new(seed, self.shards.len())
        };
        for (shard, parent) in self.shards.iter().enumerate() {
            let (pages, writable) = parent.copied();
            child.shards[shard] = pages;
            for page in writable {
                let page = self.stripes.page(shard, page as usize) as u32;
                child.mapped.get_mut(&page).expect("resident").is_protected = false;
            }
        }
        child
    }

    /// Does something with the page's shard.
    fn on<T>(&mut self, page: u32, call: impl FnOnce(&mut Pages, u32, Duration) -> T) -> T {
        let (shard, local) = self.stripes.find(page as usize);
        call(&mut self.shards[shard], local as u32, self.now)
    }

    fn tick(&mut self) {
        for shard in &mut self.shards {
            shard.tick(self.now);
            shard.retry_lost(self.now);
        }
    }

    /// A shard says what it has, and gets its room.
    fn settle(&mut self) -> Fault {
        let shard = self.random.index(self.shards.len());
        let pages = &self.shards[shard];
        let faults = pages.counters().faults;
        let held = Held {
            resident: pages.resident(),
            leaving: 0,
            is_idle: faults == self.faults[shard] && !pages.is_awaited(),
        };
        self.faults[shard] = faults;
        let room = self.rooms.settle(shard, held);
        self.shards[shard].set_room(room.pages, self.now);
        self.shards[shard].retry_lost(self.now);
        self.act()
    }

    fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for shard in &self.shards {
            all += shard.counters();
        }
        all
    }

    fn run(&mut self, steps: usize) -> Fault {
        for _ in 0..steps {
            self.step()?;
        }
        // Everything ends once nothing new comes.
        for _ in 0..20_000 {
            self.now += Duration::from_millis(1);
            self.tick();
            self.act()?;
            self.settle()?;
            self.deliver()?;
            self.finish(false)?;
            self.retry_discards()?;
            for thread in 0..THREADS {
                self.touch(thread)?;
            }
            let is_quiet = self.threads.iter().all(Option::is_none) && self.under_way.is_empty();
            if is_quiet && self.poisoned.is_empty() {
                break;
            }
        }
        for (thread, wish) in self.threads.iter().enumerate() {
            if let Some((page, ..)) = wish {
                return Err(format!("thread {thread} waits at page {page} for ever"));
            }
        }
        if !self.poisoned.is_empty() {
            return Err(format!("{:?} can be read, and are poisoned", self.poisoned));
        }
        for page in 0..PAGES {
            self.threads[0] = Some((page, false, false));
            for _ in 0..200 {
                self.now += Duration::from_millis(1);
                self.tick();
                self.act()?;
                self.touch(0)?;
                self.deliver()?;
                self.finish(false)?;
            }
            if self.threads[0].is_some() {
                let (state, free) = self.on(page, |pages, page, _| {
                    (pages.pages[page as usize].state, pages.free())
                });
                return Err(format!(
                    "page {page} cannot be read at the end: {state:?}, {} under way, {} faults \
                     unread, {free} free",
                    self.under_way.len(),
                    self.events.len(),
                ));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Fault {
        self.now += Duration::from_millis(1);
        match self.random.index(9) {
            8 => self.settle(),
            0..3 => self.touch_something(),
            3 | 4 => self.deliver(),
            5 | 6 => self.finish(self.is_failing),
            _ => self.discard_something(),
        }
    }

    fn touch_something(&mut self) -> Fault {
        // The first thread walks, and every other while it is alone: so pages are read ahead.
        let is_alone = self.now.as_millis() / WALK.as_millis() % 2 == 1;
        let thread = match is_alone {
            true => 0,
            false => self.random.index(12).saturating_sub(12 - THREADS),
        };
        if self.threads[thread].is_none() {
            let page = if thread == 0 {
                self.walker = (self.walker + 1) % PAGES;
                self.walker
            } else {
                self.some_page()
            };
            if self.discards.contains(&page) {
                return Ok(());
            }
            self.threads[thread] = Some((page, self.random.index(3) == 0, false));
        }
        self.touch(thread)
    }

    /// One of all pages, or one of the shard that is touched most for a while.
    fn some_page(&mut self) -> u32 {
        if self.random.index(4) == 0 {
            return self.random.index(PAGES as usize) as u32;
        }
        let focus = (self.now.as_millis() / FOCUS.as_millis()) as usize;
        let shard = focus % self.shards.len();
        let page = self.random.index(self.stripes.len(shard));
        self.stripes.page(shard, page) as u32
    }

    fn touch(&mut self, thread: usize) -> Fault {
        let Some((page, to_write, is_asleep)) = self.threads[thread] else {
            return Ok(());
        };
        if is_asleep {
            return Ok(());
        }
        if self.poisoned.contains(&page) {
            self.threads[thread] = None;
            return Ok(());
        }
        match self.mapped.get_mut(&page) {
            Some(mapped) if !(to_write && mapped.is_protected) => {
                let truth = self.truth.get(&page).copied().unwrap_or(0);
                if mapped.value != truth {
                    return Err(format!(
                        "page {page} is {} instead of {truth}",
                        mapped.value
                    ));
                }
                if to_write {
                    // Now and then zeros are written.
                    self.next_value += 1;
                    let value = match self.next_value % 5 {
                        0 => 0,
                        _ => self.next_value,
                    };
                    mapped.value = value;
                    self.truth.insert(page, value);
                }
                self.threads[thread] = None;
            }
            _ => {
                self.events.push((page, to_write));
                self.threads[thread] = Some((page, to_write, true));
            }
        }
        Ok(())
    }

    fn wake(&mut self, page: u32) {
        for (at, _, is_asleep) in self.threads.iter_mut().flatten() {
            if *at == page {
                *is_asleep = false;
            }
        }
    }

    /// The handler reads a fault. Their order is nobody's promise.
    fn deliver(&mut self) -> Fault {
        if self.events.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.events.len());
        let (page, to_write) = self.events.swap_remove(at);
        self.on(page, |pages, page, now| pages.fault(page, to_write, now));
        self.act()
    }

    /// Some I/O ends.
    fn finish(&mut self, may_fail: bool) -> Fault {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.under_way.len());
        // Who takes pages out of the memory may take long.
        if matches!(self.under_way[at], Io::Zero(_)) && self.random.index(8) != 0 {
            return Ok(());
        }
        let is_ok = !may_fail || self.random.index(12) != 0;
        match self.under_way.swap_remove(at) {
            Io::Read(page) => {
                let value = self.store.get(&page).copied().unwrap_or(0);
                match self.on(page, |pages, page, now| pages.read_done(page, is_ok, now)) {
                    Arrival::Install { protected } => self.install(page, value, protected)?,
                    Arrival::Ignore => {}
                    Arrival::Poison => {
                        if is_ok {
                            return Err(format!("page {page} was read and is poisoned"));
                        }
                        self.drop_gone();
                        self.poisoned.insert(page);
                        self.wake(page);
                    }
                }
            }
            Io::Zero(page) => self.install_zeros(page)?,
            Io::Write(page, value, how) => {
                if is_ok && how != WrittenAs::Nothing {
                    self.store.insert(page, value);
                }
                let written = is_ok.then_some(how);
                self.on(page, |pages, page, now| {
                    pages.write_done(page, written, now)
                });
            }
            Io::Orphan(page) => self.on(page, |pages, _, now| pages.orphan_done(is_ok, now)),
            Io::Erase(page) => {
                if is_ok {
                    self.store.insert(page, 0);
                }
                self.on(page, |pages, page, now| pages.erase_done(page, now));
            }
        }
        self.act()
    }

    fn install_zeros(&mut self, page: u32) -> Fault {
        match self.on(page, |pages, page, now| pages.zero_done(page, now)) {
            Arrival::Install { protected } => self.install(page, 0, protected),
            Arrival::Ignore => Ok(()),
            Arrival::Poison => Err(format!("page {page} of zeros is poisoned")),
        }
    }

    fn install(&mut self, page: u32, value: u64, is_protected: bool) -> Fault {
        self.drop_gone();
        let mapped = Mapped {
            value,
            is_protected,
        };
        if self.mapped.insert(page, mapped).is_some() {
            return Err(format!("page {page} is installed twice"));
        }
        self.wake(page);
        Ok(())
    }

    /// The program gives a page back that no thread of it touches.
    fn discard_something(&mut self) -> Fault {
        let is_touched = |page| {
            self.threads
                .iter()
                .flatten()
                .any(|wish: &(u32, bool, bool)| wish.0 == page)
        };
        // One that is just being read ahead, if there is one.
        let read = self.under_way.iter().find_map(|io| match io {
            Io::Read(page) if !is_touched(*page) => Some(*page),
            _ => None,
        });
        let any = self.random.index(PAGES as usize) as u32;
        let page = read.unwrap_or(any);
        let is_touched = is_touched(page);
        let may = self.is_discarding && (read.is_some() || self.random.index(4) == 0);
        if may && !is_touched && !self.discards.contains(&page) {
            self.discards.push(page);
        }
        self.retry_discards()
    }

    fn retry_discards(&mut self) -> Fault {
        for page in std::mem::take(&mut self.discards) {
            self.disown(page);
            if self.on(page, |pages, page, now| pages.discard(page, now)) {
                self.truth.insert(page, 0);
            } else {
                self.discards.push(page);
            }
            self.act()?;
            self.drop_gone();
        }
        Ok(())
    }

    /// Now and then, has a write of the page go on for nobody.
    fn disown(&mut self, page: u32) {
        if self.random.index(2) == 0 && self.on(page, |pages, page, _| pages.disown_write(page)) {
            let is_its = |io: &&mut Io| matches!(io, Io::Write(at, ..) if *at == page);
            let write = self.under_way.iter_mut().find(is_its);
            *write.expect("a write that is under way") = Io::Orphan(page);
            self.store.remove(&page);
        }
    }

    /// As a handler does before another page comes, and now and then.
    fn drop_gone(&mut self) {
        for page in self.gone.drain(..) {
            self.mapped.remove(&page);
            self.poisoned.remove(&page);
        }
    }

    fn act(&mut self) -> Fault {
        for shard in 0..self.shards.len() {
            self.act_for(shard)?;
        }
        if self.mapped.len() > ROOM as usize {
            return Err(format!("{} pages are in the memory", self.mapped.len()));
        }
        if self.random.index(2) == 0 {
            self.drop_gone();
        }
        let mut held = vec![0; self.shards.len()];
        let reads = self.under_way.iter().filter_map(|io| match io {
            Io::Read(page) | Io::Zero(page) => Some(page),
            _ => None,
        });
        let there = self.mapped.keys().filter(|page| !self.gone.contains(page));
        for page in there.chain(reads) {
            held[self.stripes.find(*page as usize).0] += 1;
        }
        let told: Vec<u32> = self.shards.iter().map(Pages::resident).collect();
        if held.iter().sum::<u32>() > ROOM || held != told {
            return Err(format!("{held:?} pages held, {told:?} told"));
        }
        Ok(())
    }

    fn act_for(&mut self, shard: usize) -> Fault {
        while let Some(action) = self.shards[shard].next_action() {
            let stripes = self.stripes;
            let page = |page: u32| stripes.page(shard, page as usize) as u32;
            match action {
                // Seldom on its way out.
                Action::Zero(local) if self.random.index(16) == 0 => {
                    self.under_way.push(Io::Zero(page(local)));
                }
                Action::Zero(local) => self.install_zeros(page(local))?,
                Action::Read(local) => self.under_way.push(Io::Read(page(local))),
                Action::Protect(local) => self.protect(page(local), true)?,
                Action::Unprotect(local) => {
                    self.protect(page(local), false)?;
                    self.wake(page(local));
                }
                Action::Write(local) => {
                    let page = page(local);
                    let value = self.mapped.get(&page).ok_or("a write of nothing")?.value;
                    let how = self.shards[shard].written_as(local, value == 0);
                    self.under_way.push(Io::Write(page, value, how));
                }
                Action::Drop(local) | Action::Unpoison(local) => {
                    self.gone.push(page(local));
                }
                Action::Erase(local) => self.under_way.push(Io::Erase(page(local))),
                Action::Wake(local) => self.wake(page(local)),
            }
        }
        Ok(())
    }

    fn protect(&mut self, page: u32, is_protected: bool) -> Fault {
        let mapped = self.mapped.get_mut(&page);
        mapped
            .ok_or(format!("page {page} is not mapped"))?
            .is_protected = is_protected;
        Ok(())
    }
}

const SEEDS: std::ops::Range<u64> = 0..150;

/// Handlers of the worlds.
const SHARDS: std::ops::RangeInclusive<usize> = 1..=3;

fn run(seed: u64, shard_count: usize) -> Result<Counters, String> {
    let mut world = World::new(seed, shard_count);
    world.run(8_000)?;
    Ok(world.counters())
}

#[test]
fn no_page_is_ever_other_than_written_and_no_thread_waits_for_ever() {
    for shards in SHARDS {
        let mut seen = Counters::default();
        for seed in SEEDS {
            let ended = run(seed, shards);
            seen += ended.unwrap_or_else(|wrong| panic!("seed {seed}, {shards} shards: {wrong}"));
        }
        // All that can happen did.
        let rare = [
            seen.waits,
            seen.reads_ahead_useful,
            seen.write_failures,
            seen.lost,
        ];
        assert!(rare.iter().all(|count| *count > 0), "{shards}: {seen:?}");
    }
}

#[test]
fn room_goes_where_pages_are_touched() {
    let mut moved = 0;
    let mut world = World::new(5, 2);
    for _ in 0..8_000 {
        let before = world.rooms.granted(0);
        world.step().unwrap_or_else(|wrong| panic!("{wrong}"));
        moved += u32::from(world.rooms.granted(0) != before);
    }
    assert!(moved > 10, "{moved}");
}

#[test]
fn parents_and_children_see_their_own() {
    for (seed, shards) in SEEDS.zip(SHARDS.cycle()) {
        let mut world = World::new(seed, shards);
        for round in 0..3_u64 {
            for _ in 0..500 + 311 * round {
                world.step().unwrap_or_else(|what| panic!("{seed}: {what}"));
            }
            let mut child = world.forked(seed ^ round << 32);
            let ended = child.run(1_000);
            ended.unwrap_or_else(|what| panic!("child {round} of {seed}: {what}"));
        }
        let ended = world.run(1_000);
        ended.unwrap_or_else(|what| panic!("parent of {seed}: {what}"));
    }
}

#[test]
fn each_injected_fault_is_found() {
    let worlds = MISTAKES
        .iter()
        .flat_map(|fault| SHARDS.map(move |shards| (fault, shards)));
    for ((name, mistake), shards) in worlds {
        // One shard has all the room there is.
        if *mistake == InjectedFault::RoomGivenTwice && shards == 1 {
            continue;
        }
        let mistake = *mistake;
        let found = std::thread::spawn(move || {
            crate::injected_faults::inject(Some(mistake));
            // Only what a check says counts, not a panic of the code.
            SEEDS.into_iter().find(|seed| run(*seed, shards).is_err())
        })
        .join();
        match found {
            Ok(found) => assert!(found.is_some(), "{name} is not found with {shards} shards"),
            Err(_) => panic!("{name} panics before it is found, with {shards} shards"),
        }
    }
}

mod edge_cases;
