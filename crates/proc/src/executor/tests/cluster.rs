//! Some machines, a network that delays and reorders, regions that move, and a model of every byte.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cenote_fabric::{Region, RegionOptions, Time};
use cenote_proc_sdk::procedures::{Reached, Walk, WalkList};
use cenote_proc_sdk::{Away, BAD_ARGUMENT, Frame, Memory, Procedure, Verdict};

use super::super::{Action, Executor, Limits};
use crate::message::{Data, Fetch, Moved, Refused};
use crate::{
    Access, CacheId, ClientId, Grants, Machine, ProcedureId, Procedures, RegionLocation, Registry,
    Request, Response, Slot, Status, Table, client,
};

const MACHINES: usize = 4;
const REGIONS: usize = 6;
const REGION: u64 = 128;
const NODES: u64 = 30;
const COUNTERS: u64 = REGION * REGIONS as u64 - 40;
const REQUESTS: u64 = 150;
const CACHE: CacheId = CacheId(1);

/// Adds one to a number, where it is.
pub(super) struct Add;

impl Procedure for Add {
    fn step<M: Memory + ?Sized>(memory: &mut M, frame: &mut Frame) -> Verdict {
        let Some(addr) = frame.u64_at(0) else {
            return Verdict::Fail(BAD_ARGUMENT);
        };
        let added = memory
            .load_u64(addr)
            .and_then(|number| memory.store(addr, &(number + 1).to_le_bytes()));
        match added {
            Ok(()) => Verdict::Done,
            Err(_) => Verdict::Move { addr, size: 8 },
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Request(Request),
    Word(usize, Slot),
    Move(Moved),
    Refuse(Refused),
    Fetch(Fetch),
    Data(Data),
}

/// A region on its way.
struct Copying {
    index: usize,
    to: usize,
    /// When the copy is made.
    at: u64,
}

pub(super) struct Cluster {
    random: u64,
    now: u64,
    machines: Vec<Executor>,
    runners: Vec<Procedures>,
    left: Vec<bool>,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    sent: u64,
    /// Of each region: its owner, generation and memory.
    owners: Vec<(usize, u64, Arc<Region>)>,
    copying: Option<Copying>,
    /// Memory that is given back when the machine hears of it.
    freed: Vec<(usize, usize, u64, Arc<Region>)>,
    bytes: Vec<u8>,
    asked: HashMap<u64, Request>,
    /// Additions that were answered, by address.
    added: BTreeMap<u64, u64>,
}

impl Cluster {
    pub(super) fn new(seed: u64) -> Self {
        let registry = Registry::default();
        registry
            .link::<WalkList>(ProcedureId(1), "walk", Grants::All(Access::ReadWrite))
            .unwrap();
        registry
            .link::<Add>(ProcedureId(2), "add", Grants::All(Access::ReadWrite))
            .unwrap();
        let registry = Arc::new(registry);
        // Never given up: what is lost shows as a request without an answer.
        let limits = Limits {
            wait: std::time::Duration::MAX,
            retry: std::time::Duration::from_nanos(20),
            ..Limits::default()
        };
        let machine = |at: usize| Executor::new(Machine(u32::try_from(at).unwrap()), limits);
        let mut cluster = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 0,
            machines: (0..MACHINES).map(machine).collect(),
            runners: (0..MACHINES)
                .map(|_| Procedures::new(Arc::clone(&registry)))
                .collect(),
            left: vec![false; MACHINES],
            events: BTreeMap::new(),
            sent: 0,
            owners: Vec::new(),
            copying: None,
            freed: Vec::new(),
            bytes: list(),
            asked: HashMap::new(),
            added: BTreeMap::new(),
        };
        for index in 0..REGIONS {
            let memory = cluster.memory(index * REGION as usize);
            let owner = cluster.below(MACHINES);
            cluster.owners.push((owner, 1, memory));
        }
        for machine in &mut cluster.machines {
            machine.handle_cache(CACHE, Table::new(REGION, REGIONS, true));
        }
        for index in 0..REGIONS {
            for machine in 0..MACHINES {
                let slot = cluster.slot(index, machine);
                cluster.machines[machine].handle_map(CACHE, index, slot);
            }
        }
        cluster
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % bound
    }

    fn memory(&self, start: usize) -> Arc<Region> {
        let region = Region::create("proc-sim", REGION, RegionOptions::default()).unwrap();
        region
            .write(0, &self.bytes[start..start + REGION as usize])
            .unwrap();
        Arc::new(region)
    }

    fn slot(&self, index: usize, machine: usize) -> Slot {
        let (owner, generation, memory) = &self.owners[index];
        let place = if *owner == machine {
            RegionLocation::Here {
                memory: Arc::clone(memory).into(),
                offset: 0,
            }
        } else {
            RegionLocation::At(Machine(u32::try_from(*owner).unwrap()))
        };
        Slot {
            generation: *generation,
            place,
        }
    }

    fn send(&mut self, to: usize, event: Event) {
        // Words are slow now and then, so that they come in any order.
        let most = if self.below(8) == 0 { 300 } else { 12 };
        let at = self.now + 1 + self.below(most) as u64;
        self.sent += 1;
        self.events.insert((at, self.sent), (to, event));
    }

    pub(super) fn run(mut self) -> Result<(), String> {
        let mut asked = 0;
        for _ in 0..200_000 {
            self.now += 1;
            if asked < REQUESTS && self.below(3) == 0 {
                self.ask(asked);
                asked += 1;
            }
            if asked < REQUESTS {
                self.move_regions()?;
            }
            self.copy();
            self.deliver()?;
            for at in 0..MACHINES {
                let now = Time(self.now);
                self.machines[at].handle_tick(now);
                let most = self.below(4);
                self.machines[at].run(&mut self.runners[at], most);
                self.act(at, None)?;
            }
            self.check_owners()?;
            let busy = self.machines.iter().any(|m| !m.shelf().is_empty());
            if asked == REQUESTS && self.events.is_empty() && self.copying.is_none() && !busy {
                break;
            }
        }
        self.check_end()
    }

    fn ask(&mut self, number: u64) {
        let request = if self.below(3) == 0 {
            let counter = (self.below(4) * 8) as u64;
            let argument = (COUNTERS + counter).to_le_bytes();
            Request::new(
                ClientId(number % 3),
                number,
                CACHE,
                ProcedureId(2),
                &argument,
            )
        } else {
            let away = [Away::Fetch, Away::Move][self.below(2)];
            let walk = Walk {
                node: place(0),
                hops: self.below(NODES as usize + 5) as u32,
                next_at: 0,
                value_at: 8,
                away,
            };
            let argument = walk.to_bytes();
            Request::new(
                ClientId(number % 3),
                number,
                CACHE,
                ProcedureId(1),
                &argument,
            )
        };
        self.asked.insert(number, request.clone());
        let to = loop {
            let to = self.below(MACHINES);
            if !self.left[to] {
                break to;
            }
        };
        self.send(to, Event::Request(request));
    }

    /// Begins a move now and then, and lets a machine leave that has no region.
    fn move_regions(&mut self) -> Result<(), String> {
        if self.copying.is_some() || self.below(6) > 0 {
            return Ok(());
        }
        let leaver = (self.random >> 20) as usize % MACHINES;
        let in_use = self.left.iter().filter(|left| !**left).count();
        let has_none = self.owners.iter().all(|(owner, ..)| *owner != leaver);
        let heard = self.freed.iter().all(|(machine, ..)| *machine != leaver);
        if in_use > 2 && has_none && heard && !self.left[leaver] {
            self.left[leaver] = true;
            let successor = self.owners[0].0;
            let to = Machine(u32::try_from(successor).unwrap());
            let machine = &mut self.machines[leaver];
            machine.handle_leave(CACHE, to);
            if machine.inactive() > 0 || !machine.shelf().is_empty() {
                return Err(format!("machine {leaver} left, and keeps requests"));
            }
            return Ok(());
        }
        let (index, to) = (self.below(REGIONS), self.below(MACHINES));
        let (owner, generation, memory) = self.owners[index].clone();
        let known = self.machines[owner].table(CACHE).unwrap().slot(index);
        let knows = matches!(&known.unwrap().place, RegionLocation::Here { .. });
        if to == owner || self.left[to] || !knows {
            return Ok(());
        }
        let place = RegionLocation::Leaving {
            memory: memory.into(),
            offset: 0,
        };
        self.machines[owner].handle_map(CACHE, index, Slot { generation, place });
        let at = self.now + 1 + self.below(20) as u64;
        self.copying = Some(Copying { index, to, at });
        Ok(())
    }

    fn copy(&mut self) {
        let Some(copying) = self.copying.take_if(|copying| copying.at <= self.now) else {
            return;
        };
        let Copying { index, to, .. } = copying;
        let (owner, generation, memory) = self.owners[index].clone();
        let mut bytes = vec![0; REGION as usize];
        memory.read(0, &mut bytes).unwrap();
        let new = self.memory(index * REGION as usize);
        new.write(0, &bytes).unwrap();
        self.owners[index] = (to, generation + 1, new);
        self.freed.push((owner, index, generation + 1, memory));
        for machine in 0..MACHINES {
            let slot = self.slot(index, machine);
            self.send(machine, Event::Word(index, slot));
        }
    }

    fn deliver(&mut self) -> Result<(), String> {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, event) = entry.remove();
            let machine = &mut self.machines[to];
            match event.clone() {
                Event::Request(request) => machine.handle_requests([request]),
                Event::Word(index, slot) => {
                    let generation = slot.generation;
                    let _holds = machine.handle_map(CACHE, index, slot);
                    self.free(to, index, generation);
                }
                Event::Move(moved) => machine.handle_moved(moved),
                Event::Refuse(refused) => machine.handle_refused(refused),
                Event::Fetch(fetch) => machine.handle_fetch(fetch),
                Event::Data(data) => machine.handle_data(data),
            }
            self.act(to, Some(&event))?;
        }
        Ok(())
    }

    /// Once a machine knows that a region is elsewhere, its memory is used for something else.
    fn free(&mut self, machine: usize, index: usize, generation: u64) {
        self.freed.retain(|(old, region, since, memory)| {
            let is_it = (*old, *region) == (machine, index) && *since <= generation;
            if is_it {
                memory.write(0, &[0xee; REGION as usize]).unwrap();
            }
            !is_it
        });
    }

    /// Sends what a machine says; `cause` is the message that it answers.
    fn act(&mut self, at: usize, cause: Option<&Event>) -> Result<(), String> {
        while let Some(action) = self.machines[at].poll_action() {
            let to = |machine: Machine| machine.0 as usize;
            match action {
                Action::Answer { responses, .. } => {
                    for response in responses {
                        self.check(response)?;
                    }
                }
                Action::Move {
                    to: machine, moved, ..
                } => {
                    if matches!(cause, Some(Event::Move(came)) if came.forwarded && moved.forwarded)
                    {
                        return Err(format!("forwarded twice: {moved:?}"));
                    }
                    self.send(to(machine), Event::Move(moved));
                }
                Action::Refuse {
                    to: machine,
                    refused,
                } => {
                    self.send(to(machine), Event::Refuse(refused));
                }
                Action::Fetch { to: machine, fetch } => {
                    let came = |came: &Fetch| came.forwarded && fetch.forwarded;
                    if matches!(cause, Some(Event::Fetch(fetch)) if came(fetch)) {
                        return Err(format!("forwarded twice: {fetch:?}"));
                    }
                    self.send(to(machine), Event::Fetch(fetch));
                }
                Action::Data { to: machine, data } => self.send(to(machine), Event::Data(data)),
                Action::Replicate { .. } | Action::Doubt { .. } => {
                    return Err(format!("regions have one copy: {action:?}"));
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, response: Response) -> Result<(), String> {
        let Some(request) = self.asked.remove(&response.number) else {
            return Err(format!("answered twice: {response:?}"));
        };
        if response.status != Status::Done {
            return Err(format!("{response:?}"));
        }
        if request.procedure == ProcedureId(2) {
            let addr = u64::from_le_bytes(request.state[..8].try_into().unwrap());
            *self.added.entry(addr).or_default() += 1;
            return Ok(());
        }
        let number = |at: usize| {
            let bytes = request.state[at..at + 4].try_into().unwrap();
            u32::from_le_bytes(bytes)
        };
        let walk = Walk {
            node: place(0),
            hops: number(8),
            next_at: 0,
            value_at: 8,
            away: Away::Stop,
        };
        let read = |addr: u64, target: &mut [u8]| -> Result<(), ()> {
            let start = addr as usize;
            target.copy_from_slice(self.bytes.get(start..start + target.len()).ok_or(())?);
            Ok(())
        };
        let expected = client::walk(read, walk).ok();
        if Reached::of(&response.state) == expected {
            Ok(())
        } else {
            Err(format!("{response:?}, expected {expected:?}"))
        }
    }

    /// R1: nobody writes to a region but its owner.
    fn check_owners(&self) -> Result<(), String> {
        for index in 0..REGIONS {
            let is_writable = |machine: &&Executor| {
                let slot = machine.table(CACHE).and_then(|table| table.slot(index));
                matches!(slot.unwrap().place, RegionLocation::Here { .. })
            };
            let writable = self.machines.iter().filter(is_writable).count();
            if writable > 1 {
                return Err(format!("region {index} has {writable} owners"));
            }
        }
        Ok(())
    }

    fn check_end(self) -> Result<(), String> {
        if !self.asked.is_empty() {
            return Err(format!("never answered: {:?}", self.asked.values().next()));
        }
        for (addr, count) in &self.added {
            let (_, _, memory) = &self.owners[(addr / REGION) as usize];
            let mut bytes = [0; 8];
            memory.read(addr % REGION, &mut bytes).unwrap();
            if u64::from_le_bytes(bytes) != *count {
                return Err(format!("{count} additions, {}", u64::from_le_bytes(bytes)));
            }
        }
        Ok(())
    }
}

/// Nodes of 16 bytes, some across two regions, in an order that goes everywhere.
fn list() -> Vec<u8> {
    let mut bytes = vec![0; REGION as usize * REGIONS];
    for node in 0..NODES {
        let next = if node + 1 < NODES { place(node + 1) } else { 0 };
        let at = place(node) as usize;
        bytes[at..at + 8].copy_from_slice(&next.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&(node * 7).to_le_bytes());
    }
    bytes
}

fn place(node: u64) -> u64 {
    // 7 and 30 have no common divisor, so each node has a place of its own.
    4 + node * 7 % NODES * 22
}
