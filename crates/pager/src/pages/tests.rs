//! [`Pages`] against a model: a memory, a store that is slow and fails, and threads that touch
//! pages and know what they wrote. Every mistake of [`MISTAKES`] is found within the seeds that
//! pass without.

use std::collections::{HashMap, HashSet};

use cenote_test_kit::Random;

use super::*;
use crate::injected_faults::MISTAKES;

const PAGES: u32 = 160;
const ROOM: u32 = 64;
const THREADS: usize = 4;

#[derive(Clone, Copy)]
struct Mapped {
    value: u64,
    is_protected: bool,
}

/// What is under way at the store.
enum Io {
    Read(u32),
    Write(u32, u64, WrittenAs),
    Erase(u32),
}

struct World {
    pages: Pages,
    random: Random,
    now: Duration,
    mapped: HashMap<u32, Mapped>,
    poisoned: HashSet<u32>,
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
    fn new(seed: u64) -> Self {
        Self {
            pages: Pages::new(PAGES, ROOM),
            random: Random(seed),
            now: Duration::ZERO,
            mapped: HashMap::new(),
            poisoned: HashSet::new(),
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
    fn forked(&self, seed: u64) -> Self {
        let (pages, writable) = self.pages.copied();
        let mut child = Self {
            pages,
            mapped: self.mapped.clone(),
            poisoned: self.poisoned.clone(),
            truth: self.truth.clone(),
            store: self.store.clone(),
            now: self.now,
            walker: self.walker,
            next_value: self.next_value,
            ..Self::new(seed)
        };
        for page in writable {
            child.mapped.get_mut(&page).expect("resident").is_protected = false;
        }
        child
    }

    fn run(&mut self, steps: usize) -> Fault {
        for _ in 0..steps {
            self.step()?;
        }
        // Everything ends once nothing new comes.
        for _ in 0..20_000 {
            self.now += Duration::from_millis(1);
            self.pages.tick(self.now);
            self.act()?;
            self.deliver()?;
            self.finish(false)?;
            self.retry_discards()?;
            for thread in 0..THREADS {
                self.touch(thread)?;
            }
            if self.threads.iter().all(Option::is_none) && self.under_way.is_empty() {
                break;
            }
        }
        for (thread, wish) in self.threads.iter().enumerate() {
            if let Some((page, ..)) = wish {
                return Err(format!("thread {thread} waits at page {page} for ever"));
            }
        }
        for page in 0..PAGES {
            if !self.poisoned.contains(&page) {
                self.threads[0] = Some((page, false, false));
                for _ in 0..200 {
                    self.now += Duration::from_millis(1);
                    self.pages.tick(self.now);
                    self.act()?;
                    self.touch(0)?;
                    self.deliver()?;
                    self.finish(false)?;
                }
                if self.threads[0].is_some() {
                    return Err(format!(
                        "page {page} cannot be read at the end: {:?}, {} under way, {} faults unread, {} \
                         free",
                        self.pages.pages[page as usize].state,
                        self.under_way.len(),
                        self.events.len(),
                        self.pages.free(),
                    ));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Fault {
        self.now += Duration::from_millis(1);
        match self.random.index(8) {
            0..3 => self.touch_something(),
            3 | 4 => self.deliver(),
            5 | 6 => self.finish(self.is_failing),
            _ => self.discard_something(),
        }
    }

    fn touch_something(&mut self) -> Fault {
        // The first thread walks, and is seldom disturbed: so pages are read ahead.
        let thread = self.random.index(12).saturating_sub(12 - THREADS);
        if self.threads[thread].is_none() {
            let page = if thread == 0 {
                self.walker = (self.walker + 1) % PAGES;
                self.walker
            } else {
                self.random.index(PAGES as usize) as u32
            };
            if self.discards.contains(&page) {
                return Ok(());
            }
            self.threads[thread] = Some((page, self.random.index(3) == 0, false));
        }
        self.touch(thread)
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
        self.pages.fault(page, to_write, self.now);
        self.act()
    }

    /// Some I/O ends.
    fn finish(&mut self, may_fail: bool) -> Fault {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.under_way.len());
        let is_ok = !may_fail || self.random.index(12) != 0;
        match self.under_way.swap_remove(at) {
            Io::Read(page) => {
                let value = self.store.get(&page).copied().unwrap_or(0);
                match self.pages.read_done(page, is_ok, self.now) {
                    Arrival::Install { protected } => self.install(page, value, protected)?,
                    Arrival::Ignore => {}
                    Arrival::Poison => {
                        if is_ok {
                            return Err(format!("page {page} was read and is poisoned"));
                        }
                        self.poisoned.insert(page);
                        self.wake(page);
                    }
                }
            }
            Io::Write(page, value, how) => {
                if is_ok && how != WrittenAs::Nothing {
                    self.store.insert(page, value);
                }
                self.pages.write_done(page, is_ok.then_some(how), self.now);
            }
            Io::Erase(page) => {
                if is_ok {
                    self.store.insert(page, 0);
                }
                self.pages.erase_done(page, self.now);
            }
        }
        self.act()
    }

    fn install(&mut self, page: u32, value: u64, is_protected: bool) -> Fault {
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
            if self.pages.discard(page, self.now) {
                self.truth.insert(page, 0);
                self.poisoned.remove(&page);
            } else {
                self.discards.push(page);
            }
            self.act()?;
        }
        Ok(())
    }

    fn act(&mut self) -> Fault {
        while let Some(action) = self.pages.next_action() {
            match action {
                Action::Zero(page) => self.install(page, 0, false)?,
                Action::Read(page) => self.under_way.push(Io::Read(page)),
                Action::Protect(page) => self.protect(page, true)?,
                Action::Unprotect(page) => {
                    self.protect(page, false)?;
                    self.wake(page);
                }
                Action::Write(page) => {
                    let value = self.mapped.get(&page).ok_or("a write of nothing")?.value;
                    let how = self.pages.written_as(page, value == 0);
                    self.under_way.push(Io::Write(page, value, how));
                }
                Action::Drop(page) => {
                    self.mapped.remove(&page);
                }
                Action::Erase(page) => self.under_way.push(Io::Erase(page)),
                Action::Wake(page) => self.wake(page),
            }
        }
        let reads = self.under_way.iter().filter(|io| matches!(io, Io::Read(_)));
        let held = self.mapped.len() + reads.count();
        if held > self.pages.room() as usize || held != self.pages.resident() as usize {
            return Err(format!("{held} pages held, {} told", self.pages.resident()));
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

fn run(seed: u64) -> Result<Counters, String> {
    let mut world = World::new(seed);
    world.run(8_000)?;
    Ok(world.pages.counters())
}

#[test]
fn no_page_is_ever_other_than_written_and_no_thread_waits_for_ever() {
    let mut seen = Counters::default();
    for seed in SEEDS {
        let counters = run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        seen.waits += counters.waits;
        seen.reads_ahead_useful += counters.reads_ahead_useful;
        seen.write_failures += counters.write_failures;
        seen.lost += counters.lost;
    }
    // All that can happen did.
    let rare = [
        seen.waits,
        seen.reads_ahead_useful,
        seen.write_failures,
        seen.lost,
    ];
    assert!(rare.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn parents_and_children_see_their_own() {
    for seed in SEEDS {
        let mut world = World::new(seed);
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
    for (name, mistake) in MISTAKES {
        let found = std::thread::spawn(move || {
            crate::injected_faults::inject(Some(mistake));
            SEEDS.into_iter().find(|seed| {
                // Only what a check says counts, not a panic of the code.
                run(*seed).is_err()
            })
        })
        .join();
        match found {
            Ok(found) => assert!(found.is_some(), "{name} is not found"),
            Err(_) => panic!("{name} panics before it is found"),
        }
    }
}

#[test]
fn room_that_becomes_less_is_kept_again() {
    let mut pages = Pages::new(64, 32);
    for page in 0..30 {
        pages.fault(page, true, Duration::ZERO);
    }
    pages.set_room(16, Duration::ZERO);
    loop {
        match pages.next_action() {
            Some(Action::Write(page)) => {
                pages.write_done(page, Some(WrittenAs::Bytes), Duration::ZERO)
            }
            Some(_) => {}
            None => break,
        }
    }
    assert!(pages.resident() <= 16, "{}", pages.resident());
}
