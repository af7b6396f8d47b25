//! Machines whose threads stand still between any two instructions, and that are cut off.
//!
//! A manager goes by the rules of the cache's owner: a machine has its regions for a lease, counted
//! from what its own clock showed; a move waits until each machine goes by it or has no lease; what
//! a machine without one may have been writing is fenced off. Numbers are added to and read
//! meanwhile. Whoever looks at the clock may stand still there while all others go on. Decision 110.

mod manager;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{Region, RegionOptions, Time};
use cenote_proc_sdk::procedures::{Reached, Walk, WalkList};
use cenote_proc_sdk::{Away, BAD_ARGUMENT, Frame, Memory, Procedure, Verdict};

use super::super::{Action, Executor, Limits, Run};
use super::cluster::Add;
use crate::injected_faults::{InjectedFault, inject};
use crate::message::{Data, Fetch, Moved, Refused};
use crate::table::Clock;
use crate::{
    Access, CacheId, ClientId, Grants, Machine, Outcome, ProcedureId, Procedures, Registry,
    Request, Response, Slot, Status, Table,
};

const MACHINES: usize = 3;
const REGIONS: usize = 3;
const REGION: u64 = 64;
const CACHE: CacheId = CacheId(1);
const REQUESTS: u64 = 400;
const MILLISECOND: u64 = 1_000_000;
const LEASE: Duration = Duration::from_millis(200);
/// How often a machine is asked what its clock shows.
const ASK: u64 = 25 * MILLISECOND;
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
    Word(Word),
}

/// What the manager says over one connection.
#[derive(Clone, Debug)]
struct Word {
    connection: u64,
    entries: Vec<(usize, Slot)>,
    until: Option<Time>,
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

/// A look at the clock. Its thread may stand still for long before and behind.
fn look() -> Time {
    let host = RUNNING.get().expect("a machine looks");
    perhaps_stand(host);
    let time = with(|world| world.clock(host));
    perhaps_stand(host);
    time
}

fn perhaps_stand(host: usize) {
    let Some(until) = with(|world| {
        let stands = world.below(16) == 0 && world.is_lively();
        let most = if world.below(3) == 0 { 500 } else { 20 };
        let until = world.now + MILLISECOND * (1 + world.below(most) as u64);
        world.stops += u64::from(stands);
        world.hosts[host].still_until = if stands { until } else { 0 };
        stands.then_some(until)
    }) else {
        return;
    };
    while with(|world| world.now < until) {
        turn();
    }
    RUNNING.set(Some(host));
}

/// Its thread may stand still in front of each step.
struct Runner(Procedures);

impl Run for Runner {
    fn begin(&mut self) {
        self.0.begin();
    }

    fn step(
        &mut self,
        request: &mut Request,
        table: &mut Table,
        addr: u64,
        data: &[u8],
    ) -> Outcome {
        perhaps_stand(RUNNING.get().expect("a machine steps"));
        self.0.step(request, table, addr, data)
    }
}

/// A millisecond of everybody who does not stand still.
fn turn() {
    with(World::go_on);
    for host in 0..MACHINES {
        while let Some(event) = with(|world| world.next_event(host)) {
            run(host, |executor, _| match event {
                Event::Request(request) => executor.handle_requests([request]),
                Event::Move(moved) => executor.handle_moved(moved),
                Event::Refuse(refused) => executor.handle_refused(refused),
                Event::Fetch(fetch) => executor.handle_fetch(fetch),
                Event::Data(data) => executor.handle_data(data),
                Event::Word(word) => hear(host, executor, word),
            });
        }
        run(host, |executor, runner| {
            executor.handle_tick(with(|world| world.clock(host)));
            let most = with(|world| world.below(4));
            executor.run(runner, most);
        });
    }
}

fn hear(host: usize, executor: &mut Executor, word: Word) {
    let mut known = Vec::new();
    for (index, slot) in word.entries {
        let generation = slot.generation;
        if executor.handle_map(CACHE, index, slot) {
            known.push((index, generation));
        }
    }
    if let Some(until) = word.until {
        executor.handle_lease(CACHE, until);
    }
    with(|world| world.hear_answer(host, word.connection, &known));
}

/// Has a machine do something, unless it stands still.
fn run(host: usize, act: impl FnOnce(&mut Executor, &mut Runner)) {
    let taken = with(|world| {
        let host = &mut world.hosts[host];
        let is_still = world.now < host.still_until;
        (!is_still).then(|| Some((host.executor.take()?, host.runner.take()?)))
    });
    let Some(Some((mut executor, mut runner))) = taken else {
        return;
    };
    let before = RUNNING.replace(Some(host));
    act(&mut executor, &mut runner);
    RUNNING.set(before);
    with(|world| {
        while let Some(action) = executor.poll_action() {
            world.send_action(action);
        }
        let host = &mut world.hosts[host];
        (host.executor, host.runner) = (Some(executor), Some(runner));
    });
}

impl World {
    fn new(seed: u64) -> Self {
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
        let limits = Limits {
            wait: 4 * LEASE,
            ..Limits::default()
        };
        let host = |at: usize| {
            let mut executor = Executor::new(Machine(u32::try_from(at).unwrap()), limits);
            executor.clock = Clock(look);
            let mut table = Table::new(REGION, REGIONS, true);
            table.allow_writes(Time(0));
            table.end_reads_with_writes();
            executor.handle_cache(CACHE, table);
            Host {
                executor: Some(executor),
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
            }
        };
        let row = |index: usize| Row {
            machine: index % MACHINES,
            generation: 1,
            memory: memory(&[0; REGION as usize]),
            step: Step::Open,
            old: None,
        };
        Self {
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
            if self.below(200) == 0 && self.now >= self.hosts[host].cut_until {
                self.hosts[host].cut_until = self.now + MILLISECOND * self.below(700) as u64;
            }
        }
        for host in 0..MACHINES {
            self.expire(host);
            self.speak(host);
        }
        self.move_regions();
    }

    fn ask(&mut self) {
        let number = self.requests;
        self.requests += 1;
        let number_at = self.below(NUMBERS.len());
        let addr = REGION * self.below(REGIONS) as u64 + NUMBERS[number_at];
        let is_set = |asked: &Asked| asked.addr == addr && asked.procedure == SET;
        let is_being_set = self.asked.values().any(is_set);
        let reads = self.below(2) == 0;
        let away = [Away::Fetch, Away::Move][self.below(2)];
        let count = self.counts.entry(addr).or_default();
        let least = count.done;
        let (procedure, argument) = if reads || is_being_set {
            let read = Walk {
                node: addr,
                hops: 0,
                next_at: 0,
                value_at: 0,
                away,
            };
            (READ, read.to_bytes().to_vec())
        } else {
            count.asked += 1;
            let argument = [addr.to_le_bytes(), count.asked.to_le_bytes()].concat();
            (if number_at == 2 { SET } else { ADD }, argument)
        };
        let set_to = count.asked;
        let asked = Asked {
            addr,
            procedure,
            least,
            set_to,
        };
        self.asked.insert(number, asked);
        let request = Request::new(ClientId(number % 3), number, CACHE, procedure, &argument);
        let to = self.below(MACHINES);
        self.send(to, Event::Request(request));
    }

    fn send(&mut self, to: usize, event: Event) {
        let at = self.now + MILLISECOND * self.below(5) as u64;
        self.sent += 1;
        self.events.insert((at, self.sent), (to, event));
    }

    fn next_event(&mut self, host: usize) -> Option<Event> {
        if self.now < self.hosts[host].still_until || self.hosts[host].executor.is_none() {
            return None;
        }
        let due = self.events.range(..=(self.now, u64::MAX));
        let key = due.filter(|(_, (to, _))| *to == host).map(|(key, _)| *key);
        let (_, event) = self.events.remove(&key.min()?)?;
        Some(event)
    }

    fn send_action(&mut self, action: Action) {
        let at = |machine: Machine| machine.0 as usize;
        match action {
            Action::Answer { responses, .. } => responses.into_iter().for_each(|r| self.check(&r)),
            Action::Move { to, moved, .. } => self.send(at(to), Event::Move(moved)),
            Action::Refuse { to, refused } => self.send(at(to), Event::Refuse(refused)),
            Action::Fetch { to, fetch } => self.send(at(to), Event::Fetch(fetch)),
            Action::Data { to, data } => self.send(at(to), Event::Data(data)),
        }
    }

    fn complain(&mut self, what: String) {
        self.complaint.get_or_insert(what);
    }

    fn check(&mut self, response: &Response) {
        let Some(asked) = self.asked.remove(&response.number) else {
            return self.complain(format!("answered twice: {response:?}"));
        };
        let count = self.counts.entry(asked.addr).or_default();
        match (response.status, asked.procedure) {
            (Status::Done, ADD) => count.done += 1,
            (Status::Done, SET) => count.done = asked.set_to,
            (Status::Done, _) => {
                let value = Reached::of(&response.state).expect("a number").value;
                if value < asked.least || value > count.asked {
                    let (least, most) = (asked.least, count.asked);
                    self.complain(format!("read {value}, which is not {least} to {most}"));
                }
            }
            (status, _) if status.is_retryable() => {}
            _ => self.complain(format!("{response:?}")),
        }
    }

    fn check_end(&mut self) -> Result<(), String> {
        if let Some(complaint) = self.complaint.take() {
            return Err(complaint);
        }
        if let Some(number) = self.asked.keys().next() {
            return Err(format!("{number} is never answered"));
        }
        for (addr, count) in &self.counts {
            let row = &self.rows[usize::try_from(addr / REGION).unwrap()];
            let mut bytes = [0; 8];
            row.memory.read(addr % REGION, &mut bytes).unwrap();
            let value = u64::from_le_bytes(bytes);
            if value < count.done || value > count.asked {
                let Count { asked, done } = count;
                return Err(format!(
                    "{done} of {asked} additions answered, {value} there"
                ));
            }
        }
        Ok(())
    }
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
fn run_world(seed: u64) -> Result<(u64, u64), String> {
    WORLD.set(Some(World::new(seed)));
    let is_over = |world: &World| {
        let is_answered = !world.is_lively() && world.asked.is_empty();
        is_answered && world.rows.iter().all(|row| row.step == Step::Open)
    };
    for _ in 0..20_000 {
        turn();
        if with(|world| is_over(world)) {
            break;
        }
    }
    let ended = with(|world| world.check_end().map(|()| (world.stops, world.fences)));
    WORLD.set(None);
    ended
}

fn complaint(seeds: std::ops::Range<u64>) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let said = run_world(seed).err()?;
        Some(format!("seed {seed}: {said}"))
    })
}

#[test]
fn nothing_that_was_answered_is_lost_or_old_whoever_stands_still() {
    let (mut stops, mut fences) = (0, 0);
    for seed in 0..200 {
        let ended = run_world(seed);
        let (stood, fenced) = ended.unwrap_or_else(|said| panic!("seed {seed}: {said}"));
        (stops, fences) = (stops + stood, fences + fenced);
    }
    assert!(
        stops > 200 && fences > 200,
        "{stops} stops, {fences} fences"
    );
}

#[test]
fn what_counts_too_long_is_found() {
    for mistake in [
        InjectedFault::LateLoad,
        InjectedFault::LateStore,
        InjectedFault::LateFetch,
    ] {
        inject(Some(mistake));
        let found = complaint(0..400);
        inject(None);
        let found = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {found}");
    }
}
