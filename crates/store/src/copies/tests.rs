//! Objects with copies: clients that stall, die and act late, and stores that leave a row and come into it.
//!
//! The real changes go through stores that do what a store promises, one command at a time, in any order
//! and at any time. Whatever was told or read stays, in each store that is left.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use super::*;
use crate::injected_faults::{InjectedFault, inject};
use crate::protocol::Refusal;

const KEYS: u64 = 2;
const CLIENTS: usize = 4;
const STEPS: u32 = 600;

/// An injected fault is all of the process's.
static TURN: Mutex<()> = Mutex::new(());

/// Newest versions, each with its number at this store.
#[derive(Clone, Default)]
struct Store {
    versions: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    last: u64,
}

impl Store {
    fn act(&mut self, command: Command) -> Result<Outcome, ClientError> {
        match command {
            Command::Get { key } => Ok(match self.versions.get(&key).cloned() {
                Some((sequence, value)) => Outcome::Value { sequence, value },
                None => Outcome::Absent,
            }),
            Command::Put {
                key,
                value,
                condition,
                is_durable,
            } => {
                assert!(is_durable, "a copy that a crash may take");
                let newest = self.versions.get(&key).map(|(sequence, _)| *sequence);
                let holds = match condition {
                    Condition::Always => true,
                    Condition::Absent => newest.is_none(),
                    Condition::Sequence(wanted) => newest == Some(wanted),
                };
                if !holds {
                    return Err(ClientError::Refused(Refusal::Condition(newest)));
                }
                self.last += 1;
                let sequence = self.last;
                self.versions.insert(key, (sequence, value));
                Ok(Outcome::Done { sequence })
            }
            other => panic!("{other:?}"),
        }
    }

    fn number(&self, key: u64) -> Option<Copy> {
        let (_, bytes) = self.versions.get(&name(key))?;
        Some(Copy::decode(bytes).expect("a copy"))
    }
}

/// A command that is on its way to a store, or its answer on the way back.
struct Sent {
    /// Of which change; a client that is gone has another by now.
    change: u64,
    client: usize,
    store: usize,
    what: Way,
}

enum Way {
    There(Command),
    Back(Result<Outcome, ClientError>),
}

struct Client {
    /// The change that it is at, and which of all that is.
    at: Option<(u64, Change)>,
    key: u64,
    value: Option<Vec<u8>>,
    condition: Condition,
}

struct World {
    random: u64,
    /// All stores that there ever were; those in the row, in their order.
    stores: Vec<Store>,
    row: Vec<usize>,
    /// The one of them that has not got yet what was there before it came.
    new: Option<usize>,
    clients: Vec<Client>,
    sent: Vec<Sent>,
    changes: u64,
    /// What was told or read of each key: its number.
    floor: HashMap<u64, u64>,
    /// What a number of a key is.
    meant: HashMap<(u64, u64), Option<Vec<u8>>>,
    told: u64,
    left: u64,
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

impl World {
    fn new(seed: u64) -> Self {
        let client = || Client {
            at: None,
            key: 0,
            value: None,
            condition: Condition::Always,
        };
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            stores: vec![Store::default(); 3],
            row: vec![0, 1, 2],
            new: None,
            clients: (0..CLIENTS).map(|_| client()).collect(),
            sent: Vec::new(),
            changes: 0,
            floor: HashMap::new(),
            meant: HashMap::new(),
            told: 0,
            left: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % bound
    }

    fn step(&mut self) -> Result<(), String> {
        match self.below(200) {
            0 => self.leave(),
            1 if self.new.is_some() => self.bring()?,
            1 if self.is_first_last() => self.leave_last(),
            1 => self.join(),
            // A client dies: what it sent last goes on without it.
            2 => {
                let client = self.below(CLIENTS);
                self.clients[client].at = None;
            }
            3..20 => self.read()?,
            20..60 => self.begin()?,
            _ => self.deliver()?,
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), String> {
        let client = self.below(CLIENTS);
        if self.clients[client].at.is_some() {
            return Ok(());
        }
        let key = self.below(KEYS as usize) as u64;
        self.changes += 1;
        let value = (self.below(4) > 0).then(|| self.changes.to_le_bytes().to_vec());
        let read = self.stores[self.last()].number(key);
        let visible = read.filter(|copy| copy.value.is_some());
        let condition = match (self.below(3), visible) {
            (0, _) => Condition::Always,
            (_, None) => Condition::Absent,
            (_, Some(copy)) => Condition::Sequence(copy.number),
        };
        let (change, step) = Change::new(name(key), value.clone(), condition, self.row.len());
        self.clients[client] = Client {
            at: Some((self.changes, change)),
            key,
            value,
            condition,
        };
        self.go_on(client, step)
    }

    fn last(&self) -> usize {
        *self.row.last().expect("a row")
    }

    fn go_on(&mut self, client: usize, step: Step) -> Result<(), String> {
        let at = &mut self.clients[client];
        match step {
            Step::Ask { store, command } => {
                let (change, _) = at.at.as_ref().expect("a change");
                let change = *change;
                let (store, what) = (self.row[store], Way::There(command));
                self.sent.push(Sent {
                    change,
                    client,
                    store,
                    what,
                });
                Ok(())
            }
            Step::Ended(end) => {
                at.at = None;
                let (key, value, condition) = (at.key, at.value.clone(), at.condition);
                self.check_end(key, value, condition, end)
            }
        }
    }

    fn check_end(
        &mut self,
        key: u64,
        value: Option<Vec<u8>>,
        condition: Condition,
        end: Result<u64, CopiesError>,
    ) -> Result<(), String> {
        let in_all = match end {
            Ok(0) => return Ok(()),
            Ok(number) => {
                self.told += 1;
                if value.is_some() {
                    self.mean(key, number, value)?;
                    if let Condition::Sequence(wanted) = condition
                        && number != wanted + 1
                    {
                        return Err(format!("key {key}: {number} in place of {wanted}"));
                    }
                }
                number
            }
            // Whoever is told of a number can read it.
            Err(CopiesError {
                error: CopyError::Client(ClientError::Refused(Refusal::Condition(visible))),
                ..
            }) => visible.unwrap_or(0),
            Err(error) => return Err(format!("key {key}: {error}")),
        };
        for store in self.row.clone() {
            let has = self.stores[store].number(key).map_or(0, |copy| copy.number);
            if has < in_all {
                return Err(format!(
                    "key {key}: {in_all} was told, store {store} has {has}"
                ));
            }
        }
        let floor = self.floor.entry(key).or_default();
        *floor = in_all.max(*floor);
        Ok(())
    }

    fn mean(&mut self, key: u64, number: u64, value: Option<Vec<u8>>) -> Result<(), String> {
        let before = self.meant.insert((key, number), value.clone());
        match before {
            Some(before) if before != value => {
                Err(format!("key {key}: {number} is {before:?} and {value:?}"))
            }
            _ => Ok(()),
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let key = self.below(KEYS as usize) as u64;
        let read = self.stores[self.last()].number(key);
        let number = read.as_ref().map_or(0, |copy| copy.number);
        let floor = self.floor.entry(key).or_default();
        if number < *floor {
            return Err(format!("key {key}: read {number} after {floor}"));
        }
        *floor = number;
        let Some(copy) = read else {
            return Ok(());
        };
        if self.is_first_last() {
            let row = self.row.len();
            self.drive(Change::hand_on_read(name(key), copy.clone(), row))?;
        }
        self.mean(key, number, copy.value)
    }

    /// Some command gets to its store, or its answer back, or neither.
    fn deliver(&mut self) -> Result<(), String> {
        if self.sent.is_empty() {
            return Ok(());
        }
        let at = self.below(self.sent.len());
        let one = self.sent.swap_remove(at);
        let current = |world: &Self| {
            let at = world.clients[one.client].at.as_ref();
            at.is_some_and(|(change, _)| *change == one.change)
        };
        match one.what {
            Way::There(command) => {
                // Connections break before and behind a store.
                let mut said = Err(ClientError::Lost(cenote_fabric::Status::Disconnected));
                let broken = self.below(60);
                if broken != 0 {
                    let heard = self.stores[one.store].act(command);
                    said = if broken == 1 { said } else { heard };
                }
                let what = Way::Back(said);
                self.sent.push(Sent { what, ..one });
                Ok(())
            }
            Way::Back(_) if !current(self) => Ok(()),
            Way::Back(Err(ClientError::Lost(_))) => {
                self.clients[one.client].at = None;
                Ok(())
            }
            Way::Back(said) => {
                let (_, change) = self.clients[one.client].at.as_mut().expect("a change");
                let step = change.handle(said);
                self.go_on(one.client, step)
            }
        }
    }

    /// A store is lost, and taken out of the row for all clients. What they sent goes on.
    fn leave(&mut self) {
        let gone = match self.new.take() {
            Some(new) => new,
            None if self.row.len() > 1 => {
                let at = self.below(self.row.len());
                self.row[at]
            }
            None => return,
        };
        let mut row = self.row.clone();
        row.retain(|store| *store != gone);
        row.dedup();
        self.set_row(row);
        self.left += 1;
    }

    fn set_row(&mut self, row: Vec<usize>) {
        self.row = row;
        self.clients.iter_mut().for_each(|client| client.at = None);
    }

    /// An empty store comes in between the first and the last, which may be one.
    fn join(&mut self) {
        if self.row.len() == 3 {
            return;
        }
        self.stores.push(Store::default());
        let new = self.stores.len() - 1;
        let mut row = self.row.clone();
        if row.len() == 1 {
            row.push(row[0]);
        }
        row.insert(row.len() - 1, new);
        self.new = Some(new);
        self.set_row(row);
    }

    /// It gets what it lacks.
    fn bring(&mut self) -> Result<(), String> {
        self.new = None;
        for key in 0..KEYS {
            let first = &self.stores[self.row[0]];
            let Some(copy) = first.number(key) else {
                continue;
            };
            self.drive(Change::hand_on(name(key), copy, self.row.len()))?;
        }
        Ok(())
    }

    fn drive(&mut self, (mut change, mut step): (Change, Step)) -> Result<(), String> {
        loop {
            match step {
                Step::Ask { store, command } => {
                    let said = self.stores[self.row[store]].act(command);
                    step = change.handle(said);
                }
                Step::Ended(end) => {
                    return end.map(drop).map_err(|error| format!("hand on: {error}"));
                }
            }
        }
    }

    fn is_first_last(&self) -> bool {
        self.row.len() > 2 && self.row[0] == self.last()
    }

    /// The one that was named twice is the first alone: another is the last by now.
    fn leave_last(&mut self) {
        let mut row = self.row.clone();
        row.pop();
        self.set_row(row);
    }
}

/// How many changes were told, and stores lost.
fn run(seed: u64) -> Result<(u64, u64), String> {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world
            .step()
            .map_err(|said| format!("seed {seed}: {said}"))?;
    }
    for _ in 0..20 {
        world
            .read()
            .map_err(|said| format!("seed {seed}: {said}"))?;
    }
    Ok((world.told, world.left))
}

#[test]
fn what_was_told_or_read_is_in_every_store_that_is_left() {
    let _turn = TURN.lock();
    let (mut told, mut left) = (0, 0);
    for seed in 0..3_000 {
        let (more, gone) = run(seed).unwrap_or_else(|said| panic!("{said}"));
        (told, left) = (told + more, left + gone);
    }
    assert!(told > 10_000 && left > 1_000, "{told} told, {left} left");
    println!("{told} changes told, {left} stores lost");
}

#[test]
fn every_mistake_with_copies_is_found() {
    let _turn = TURN.lock();
    for mistake in [
        InjectedFault::CopyAcknowledgedFirst,
        InjectedFault::CopyUnconditional,
        InjectedFault::CopyOverNewer,
        InjectedFault::CopyLeftBehind,
    ] {
        inject(Some(mistake));
        let found = (0..3_000).find_map(|seed| run(seed).err());
        inject(None);
        println!("{mistake:?}: {}", found.expect("it is not found"));
    }
}

/// One that lacks what the others have gives out numbers that they have already.
#[test]
fn an_empty_or_older_store_that_is_named_first_is_told() {
    let _turn = TURN.lock();
    let mut stores = vec![Store::default(); 2];
    let put = |stores: &mut [Store], row: &[usize]| {
        let value = Some(b"value".to_vec());
        let (mut change, mut step) = Change::new(name(0), value, Condition::Always, row.len());
        loop {
            match step {
                Step::Ask { store, command } => {
                    let said = stores[row[store]].act(command);
                    step = change.handle(said);
                }
                Step::Ended(end) => break end,
            }
        }
    };
    let behind = Err(CopiesError {
        store: 0,
        error: CopyError::Behind,
    });
    assert_eq!(put(&mut stores, &[0]), Ok(1));
    assert_eq!(put(&mut stores, &[1, 0]), behind);
    assert!(stores[1].number(0).is_none(), "nothing was put there");
    assert_eq!(put(&mut stores, &[0, 1, 0]), Ok(2));
    assert_eq!(put(&mut stores, &[0]), Ok(3));
    assert_eq!(put(&mut stores, &[0]), Ok(4));
    assert_eq!(put(&mut stores, &[1, 0]), behind);
}
