//! Machines whose threads stand still between any two instructions, and that are cut off.
//!
//! A manager goes by the rules of the cache's owner: a machine has its regions for a lease, counted
//! from what its own clock showed; a move waits until each machine goes by it or has no lease; what
//! a machine without one may have been writing is fenced off. Numbers are added to and read
//! meanwhile. Whoever looks at the clock may stand still there while all others go on. Decision 110.
//!
//! Of regions with two copies the first is lost now and then, and messages with stores come late
//! after their sender was told that nobody knows of them. Decision 150.

mod clients;
mod manager;
mod network;
mod threads;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{Region, RegionOptions, Time};
use cenote_proc_sdk::procedures::WalkList;
use cenote_proc_sdk::{BAD_ARGUMENT, Frame, Memory, Procedure, Verdict};

use super::super::{Delivery, Executor, Limits};
use super::cluster::Add;
use crate::injected_faults::{InjectedFault, inject};
use crate::message::{Data, Fetch, Moved, Refused, Replicate};
use crate::table::Clock;
use crate::{
    Access, CacheId, Grants, Machine, ProcedureId, Procedures, Registry, Request, Slot, Table,
};
use threads::{Runner, look, turn};

const MACHINES: usize = 3;
const REGIONS: usize = 3;
const REGION: u64 = 64;
const CACHE: CacheId = CacheId(1);
const REQUESTS: u64 = 400;
const MILLISECOND: u64 = 1_000_000;
const LEASE: Duration = Duration::from_millis(200);
/// How often a machine is asked what its clock shows.
const ASK: u64 = 25 * MILLISECOND;
/// Of a process' own tokens for fetches: the rest says which process it is.
const TOKEN_BITS: u32 = 32;
const ADD: ProcedureId = ProcedureId(1);
const READ: ProcedureId = ProcedureId(2);
const SET: ProcedureId = ProcedureId(3);
/// In a region: two numbers that are added to, and one that is set by one request at a time.
const NUMBERS: [u64; 3] = [0, 8, 32];

/// Sets a number, and looks at nothing.
struct Set;

impl Procedure for Set {
    fn step<M: Memory + ?Sized>(memory: &mut M, frame: &mut Frame) -> Verdict {
        let (Some(addr), Some(number)) = (frame.u64_at(0), frame.u64_at(8)) else {
            return Verdict::Fail(BAD_ARGUMENT);
        };
        match memory.store(addr, &number.to_le_bytes()) {
            Ok(()) => Verdict::Done,
            Err(_) => Verdict::Move { addr, size: 8 },
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Request(Request),
    Move(Moved),
    Refuse(Refused),
    Fetch(Fetch),
    Data(Data),
    Replicate {
        from: usize,
        replicate: Replicate,
        /// Of the sender.
        process: u64,
        /// Its sender was told already that it is lost.
        is_lost: bool,
    },
    /// Of a process' token.
    Replicated(u64, u64, Delivery),
    Word(Word),
}

/// What the manager says over one connection.
#[derive(Clone, Debug)]
struct Word {
    connection: u64,
    entries: Vec<(usize, Slot)>,
    until: Option<Time>,
    permits: bool,
    /// Doubts that the manager has heard.
    heard: Vec<(usize, u64)>,
}

/// How far a region's move is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Open,
    /// Stores wait, and the copy until everybody knows it.
    Frozen {
        to: usize,
    },
    Copying {
        to: usize,
        until: u64,
    },
    /// Its copies are to be made equal once everybody knows that stores wait.
    Settling,
    /// Loads go to the new place, and stores wait until everybody knows it.
    Switched,
}

struct Row {
    machine: usize,
    generation: u64,
    memory: Arc<Region>,
    step: Step,
    /// Memory that nobody uses any more once all go by this entry.
    old: Option<Arc<Region>>,
    second: Option<(usize, Arc<Region>)>,
    /// Its copies may differ.
    is_doubtful: bool,
    sure_since: u64,
}

impl Row {
    fn copies_differ(&self) -> bool {
        let mut copies = [[0; REGION as usize]; 2];
        self.memory.read(0, &mut copies[0]).unwrap();
        let Some((_, second)) = &self.second else {
            return false;
        };
        second.read(0, &mut copies[1]).unwrap();
        copies[0] != copies[1]
    }
}

/// One machine, and what the manager knows of it.
struct Host {
    /// None: it stands still in the middle of something.
    executor: Option<Executor>,
    runner: Option<Runner>,
    /// What its clock shows besides the manager's.
    ahead: u64,
    still_until: u64,
    cut_until: u64,
    connection: u64,
    /// Generations that it was told over this connection, and since the beginning.
    told: Vec<u64>,
    known: Vec<u64>,
    is_spoken_to: bool,
    asked_at: u64,
    asking: Option<(u64, Time)>,
    granted: Option<(u64, Time)>,
    lease_until: Option<u64>,
    /// Which process it is, of those that had its memory.
    process: u64,
    /// The owner knows that it writes, since this connection.
    writes: Option<u64>,
    is_permitted: bool,
    heard: Vec<(usize, u64)>,
}

/// What was asked of a number, and what it was by then.
struct Asked {
    addr: u64,
    procedure: ProcedureId,
    /// What it was at least by then: additions that had been answered, or what it was set to.
    least: u64,
    /// What it is set to.
    set_to: u64,
}

#[derive(Default)]
struct Count {
    asked: u64,
    done: u64,
}

struct World {
    copies: usize,
    /// No thread stands still, and no copy is lost: what lost messages leave behind stays.
    is_calm: bool,
    random: u64,
    now: u64,
    hosts: Vec<Host>,
    rows: Vec<Row>,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    sent: u64,
    asked: HashMap<u64, Asked>,
    counts: BTreeMap<u64, Count>,
    requests: u64,
    /// Stops and leases that ended while a machine had a region.
    stops: u64,
    fences: u64,
    /// Stores of which nobody knew, and first copies that were lost.
    doubts: u64,
    hosts_write: bool,
    losses: u64,
    restarts: u64,
    registry: Arc<Registry>,
    complaint: Option<String>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Which machine's thread this is.
    static RUNNING: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| act(world.as_mut().expect("a world")))
}

impl World {
    fn new(seed: u64, copies: usize) -> Self {
        let registry = Registry::default();
        registry
            .link::<Add>(ADD, "add", Grants::All(Access::ReadWrite))
            .unwrap();
        registry
            .link::<WalkList>(READ, "read", Grants::All(Access::Read))
            .unwrap();
        registry
            .link::<Set>(SET, "set", Grants::All(Access::ReadWrite))
            .unwrap();
        let registry = Arc::new(registry);
        let host = |at: usize| Host {
            executor: Some(executor(at, copies)),
            runner: Some(Runner(Procedures::new(Arc::clone(&registry)))),
            // Each machine was started at a time of its own.
            ahead: at as u64 * 77_777 * MILLISECOND,
            still_until: 0,
            cut_until: 0,
            connection: 1,
            told: vec![0; REGIONS],
            known: vec![0; REGIONS],
            is_spoken_to: false,
            asked_at: 0,
            asking: None,
            granted: None,
            lease_until: None,
            process: 1,
            writes: None,
            is_permitted: false,
            heard: Vec::new(),
        };
        let row = |index: usize| Row {
            machine: index % MACHINES,
            generation: 1,
            memory: memory(&[0; REGION as usize]),
            step: Step::Open,
            old: None,
            second: (copies == 2).then(|| ((index + 1) % MACHINES, memory(&[0; REGION as usize]))),
            is_doubtful: false,
            sure_since: 0,
        };
        Self {
            copies,
            is_calm: copies == 2 && seed % 2 == 1,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 1,
            hosts: (0..MACHINES).map(host).collect(),
            rows: (0..REGIONS).map(row).collect(),
            events: BTreeMap::new(),
            sent: 0,
            asked: HashMap::new(),
            counts: BTreeMap::new(),
            requests: 0,
            stops: 0,
            fences: 0,
            doubts: 0,
            hosts_write: false,
            losses: 0,
            restarts: 0,
            registry,
            complaint: None,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % bound
    }

    fn clock(&self, host: usize) -> Time {
        Time(self.now + self.hosts[host].ahead)
    }

    /// Whether things go wrong still: at the end all is answered.
    fn is_lively(&self) -> bool {
        self.requests < REQUESTS
    }

    fn go_on(&mut self) {
        self.now += MILLISECOND;
        if self.is_lively() {
            if self.below(3) == 0 {
                self.ask();
            }
            let host = self.below(MACHINES);
            if !self.is_calm && self.below(200) == 0 && self.now >= self.hosts[host].cut_until {
                self.hosts[host].cut_until = self.now + MILLISECOND * self.below(700) as u64;
            }
        }
        for host in 0..MACHINES {
            if self.copies == 2 && self.is_lively() && self.below(1000) == 0 {
                self.restart(host);
            }
            self.expire(host);
            self.speak(host);
        }
        self.move_regions();
    }

    /// Another process takes over, with the memory as it is. It knows nothing else, and who asked
    /// is not answered.
    fn restart(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.executor.is_none() {
            return;
        }
        self.restarts += 1;
        host.executor = Some(executor(at, self.copies));
        host.runner = Some(Runner(Procedures::new(Arc::clone(&self.registry))));
        host.process += 1;
        (host.is_spoken_to, host.asking) = (false, None);
        host.connection += 1;
        host.told = vec![0; REGIONS];
        // What it had asked others for, and was told over its connections.
        let is_for = |(_, (to, event)): &(&(u64, u64), &mut (usize, Event))| {
            let is_reply = matches!(event, Event::Data(_) | Event::Word(_) | Event::Refuse(_));
            *to == at && is_reply
        };
        self.events.retain(|key, value| !is_for(&(key, value)));
    }

    fn complain(&mut self, what: String) {
        self.complaint.get_or_insert(what);
    }
}

fn executor(at: usize, copies: usize) -> Executor {
    let limits = Limits {
        wait: 4 * LEASE,
        ..Limits::default()
    };
    let mut executor = Executor::new(Machine(u32::try_from(at).unwrap()), limits);
    executor.clock = Clock(look);
    let mut table = Table::new(REGION, REGIONS, true);
    table.allow_writes(Time(0));
    table.end_reads_with_writes();
    if copies == 2 {
        table.keep_stores_back();
    }
    executor.handle_cache(CACHE, table);
    executor
}

fn memory(bytes: &[u8]) -> Arc<Region> {
    let region = Region::create("proc-sim", REGION, RegionOptions::default()).unwrap();
    region.write(0, bytes).unwrap();
    Arc::new(region)
}

fn copy(from: &Region) -> Arc<Region> {
    let mut bytes = [0; REGION as usize];
    from.read(0, &mut bytes).unwrap();
    memory(&bytes)
}

/// Runs one seed; how often a thread stood still, and how many regions were fenced.
fn run_world(seed: u64, copies: usize) -> Result<[u64; 5], String> {
    WORLD.set(Some(World::new(seed, copies)));
    let is_over = |world: &World| {
        let is_idle = |host: &Host| {
            let executor = host.executor.as_ref();
            let is_idle = |one: &Executor| one.inactive() == 0 && one.own() == 0;
            executor.is_some_and(|one| is_idle(one) && one.doubts(CACHE).next().is_none())
        };
        let is_idle = world.hosts.iter().all(is_idle);
        // Who asked a process that is no more is never answered.
        let is_over = is_idle && (world.asked.is_empty() || world.restarts > 0);
        let is_answered = !world.is_lively() && is_over;
        let is_at_rest = |row: &Row| row.step == Step::Open && !row.is_doubtful;
        let late = |(_, event): &(usize, Event)| !matches!(event, Event::Word(_));
        is_answered && world.rows.iter().all(is_at_rest) && !world.events.values().any(late)
    };
    for _ in 0..20_000 {
        turn();
        if with(|world| is_over(world)) {
            break;
        }
    }
    with(|world| {
        if !is_over(world) {
            world.complain("it does not come to rest".to_owned());
        }
    });
    let counts = |world: &World| {
        [
            world.stops,
            world.fences,
            world.doubts,
            world.losses,
            world.restarts,
        ]
    };
    let ended = with(|world| world.check_end().map(|()| counts(world)));
    WORLD.set(None);
    ended
}

fn complaint(seeds: std::ops::Range<u64>, copies: usize) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let said = run_world(seed, copies).err()?;
        Some(format!("seed {seed}: {said}"))
    })
}

/// Runs some seeds; how often each thing happened.
fn run_all(copies: usize) -> [u64; 5] {
    let mut all = [0; 5];
    for seed in 0..200 {
        let ended = run_world(seed, copies);
        let counts = ended.unwrap_or_else(|said| panic!("seed {seed}: {said}"));
        all.iter_mut()
            .zip(counts)
            .for_each(|(all, count)| *all += count);
    }
    println!("{copies} copies: stops, fences, doubts, losses, restarts: {all:?}");
    all
}

#[test]
fn nothing_that_was_answered_is_lost_or_old_whoever_stands_still() {
    let [stops, fences, ..] = run_all(1);
    assert!(stops > 200 && fences > 200);
}

#[test]
fn nothing_that_was_answered_is_lost_with_one_of_two_copies() {
    let counts = run_all(2);
    assert!(counts.iter().all(|count| *count > 50));
}

fn is_found(mistake: InjectedFault, copies: usize) {
    inject(Some(mistake));
    let found = complaint(0..2000, copies);
    inject(None);
    let found = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
    println!("{mistake:?}: {found}");
}

#[test]
fn what_counts_too_long_is_found() {
    for mistake in [
        InjectedFault::LateLoad,
        InjectedFault::LateStore,
        InjectedFault::LateFetch,
    ] {
        is_found(mistake, 1);
    }
}

#[test]
fn what_is_not_in_both_copies_is_found() {
    for mistake in [
        InjectedFault::FirstFirst,
        InjectedFault::ForgetDoubt,
        InjectedFault::StaleSecond,
        InjectedFault::HastyWord,
        InjectedFault::BlindStep,
        InjectedFault::HastyTrust,
        InjectedFault::UnsaidStore,
    ] {
        is_found(mistake, 2);
    }
}
