//! A store beside a model of what every key may be, one operation after the other.
//!
//! A value stands for a number: its first word, and its length follows from it. A merge adds. As
//! operations that wait for tiers take effect at any time until they end, the model has for each
//! key every state that may be, and forgets those that an answer rules out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cenote_cache::log::tiers::memory::{Fault, MemoryTier};
use cenote_cache::log::tiers::remote::RemoteTier;
use cenote_cache::log::tiers::{Request, Tier};
use cenote_cache::log::{
    Answer, Checkpoint, Commit, Completion, Error, Session, Settings, Store, Ticket,
};

use crate::medium::{Disk, DiskTier};
use crate::ring::Ring;
use crate::states::{State, States, closure, numbers};
use crate::values::{KEYS, SECRET, add, keys, number_of, value_of};
use cenote_test_kit::Random;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    Read(usize),
    Upsert(usize, u64),
    Merge(usize, u64),
    Delete(usize),
    Poll(u8),
    Commit,
    Checkpoint,
    /// Of the log from begin to head so many parts of eight.
    Compact(u8),
    LoseCache,
    RestoreCache,
    Crash(u64),
}

impl Op {
    pub fn random(random: &mut Random) -> Self {
        let key = random.below(KEYS as u64) as usize;
        match random.below(100) {
            0..25 => Self::Read(key),
            25..50 => Self::Upsert(key, random.below(1000)),
            50..68 => Self::Merge(key, 1 + random.below(9)),
            68..74 => Self::Delete(key),
            74..84 => Self::Poll(random.below(8) as u8),
            84..89 => Self::Commit,
            89..92 => Self::Checkpoint,
            92..95 => Self::Compact(random.below(9) as u8),
            95 => Self::LoseCache,
            96..98 => Self::RestoreCache,
            _ => Self::Crash(random.next()),
        }
    }
}

/// What is before the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cache {
    None,
    /// A tier that is slow, fails, and tears.
    Memory,
    /// The remote tier over bytes that are slow, fail, and are lost by region.
    Ring,
}

/// What the harness is to be hard with.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    pub seed: u64,
    pub cache: Cache,
    pub commit_point: usize,
    /// Of the cache's requests one in so many goes wrong in this way; 0 is none.
    pub failing_writes: u64,
    pub torn: u64,
    pub copies_reads: bool,
}

impl Conditions {
    pub fn random(random: &mut Random) -> Self {
        Self {
            seed: random.next(),
            cache: [Cache::None, Cache::Memory, Cache::Ring][random.below(3) as usize],
            commit_point: random.below(2) as usize,
            failing_writes: [0, 5][random.below(2) as usize],
            torn: [0, 4][random.below(2) as usize],
            copies_reads: random.one_in(2),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            copies_reads: self.copies_reads,
            ..settings(self.commit_point)
        }
    }
}

pub fn settings(commit_point: usize) -> Settings {
    Settings {
        page_bytes: 256,
        pages: 4,
        mutable_pages: 1,
        index_buckets: 1,
        index_buckets_max: 8,
        overflow_buckets: 16,
        sessions: 2,
        pending_max: 8,
        writes_max: 2,
        commit_point,
        copies_reads: false,
    }
}

enum Waiting {
    Read(usize, BTreeSet<Option<u64>>),
    Merge(usize),
}

enum Durable {
    Commit(Commit),
    Checkpoint(Checkpoint),
}

/// See the module.
pub struct Harness {
    conditions: Conditions,
    keys: Vec<Vec<u8>>,
    pub disk: Arc<Mutex<Disk>>,
    file: PathBuf,
    _folder: tempfile::TempDir,
    session: Option<Session>,
    states: Vec<States>,
    waiting: BTreeMap<Ticket, Waiting>,
    durable: Vec<(Durable, bool)>,
    /// What each key may have been at each cut.
    cuts: BTreeMap<u64, Vec<BTreeSet<Option<u64>>>>,
    /// The newest cut that was said to be durable.
    promised: u64,
    crashes: u64,
}

type Outcome<T = ()> = Result<T, String>;

/// Polls without an end of anything after which a store counts as stuck.
const STUCK: u32 = 3000;

impl Harness {
    pub fn new(conditions: Conditions) -> Self {
        // Its syncs are the disk's in a test of files; here they would only take time.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.unwrap();
        let file = folder.path().join("checkpoint");
        let disk = Arc::new(Mutex::new(Disk::default()));
        let mut harness = Self {
            conditions,
            keys: keys(),
            disk,
            file,
            _folder: folder,
            session: None,
            states: vec![States::from([(None, BTreeMap::new())]); KEYS],
            waiting: BTreeMap::new(),
            durable: Vec::new(),
            cuts: BTreeMap::new(),
            promised: 0,
            crashes: 0,
        };
        let tiers = harness.tiers();
        let store = Store::create(
            conditions.settings(),
            SECRET,
            Arc::new(add),
            tiers,
            Some(harness.file.clone()),
        );
        harness.session = Some(store.unwrap().session().unwrap());
        harness.note_cut(0);
        harness
    }

    fn tiers(&self) -> Vec<Box<dyn Tier>> {
        let seed = self.conditions.seed ^ self.crashes;
        let mut tiers: Vec<Box<dyn Tier>> = Vec::new();
        if self.conditions.cache != Cache::None {
            tiers.push(self.cache());
        }
        tiers.push(Box::new(DiskTier::new(Arc::clone(&self.disk), seed, 9)));
        tiers
    }

    fn cache(&self) -> Box<dyn Tier> {
        let conditions = self.conditions;
        if conditions.cache == Cache::Ring {
            let ring = Ring::new(2048, 512, conditions.seed ^ 77 ^ self.crashes);
            let ring = ring.failing(conditions.failing_writes, 40);
            let page_bytes = conditions.settings().page_bytes;
            return Box::new(RemoteTier::new("cache", Box::new(ring), page_bytes));
        }
        let mut random = Random(conditions.seed ^ 55 ^ self.crashes);
        let mut hits = move |one_in| one_in > 0 && random.one_in(one_in);
        let mut delay = Random(conditions.seed ^ 66);
        let faults = move |request: &Request| match request {
            Request::Write { .. } if hits(conditions.failing_writes) => {
                Fault::Fail(std::io::ErrorKind::TimedOut)
            }
            _ if hits(conditions.torn) => Fault::Torn(delay.below(256) as usize),
            _ => Fault::Delay(delay.below(5) as u32),
        };
        Box::new(MemoryTier::with_faults(
            "cache",
            Some(2048),
            Box::new(faults),
        ))
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("there is one between crashes")
    }

    pub fn run(&mut self, ops: &[Op]) -> Outcome {
        for (number, op) in ops.iter().enumerate() {
            if self.disk.lock().unwrap().is_off() {
                return Ok(());
            }
            self.step(*op)
                .map_err(|error| format!("operation {number} ({op:?}): {error}"))?;
        }
        self.finish()?;
        self.read_all()?;
        self.check_tiers()
    }

    pub fn step(&mut self, op: Op) -> Outcome {
        match op {
            Op::Read(key) => self.read(key),
            Op::Upsert(key, number) => self.write(key, Some(number)),
            Op::Delete(key) => self.write(key, None),
            Op::Merge(key, operand) => self.merge(key, operand),
            Op::Poll(times) => (0..times).try_for_each(|_| self.poll()),
            Op::Commit => {
                self.durable
                    .push((Durable::Commit(Commit::default()), false));
                self.poll()
            }
            Op::Checkpoint => {
                let point = Durable::Checkpoint(Checkpoint::default());
                self.durable.push((point, false));
                self.poll()
            }
            Op::Compact(parts) => self.compact(parts),
            Op::LoseCache => {
                if self.conditions.cache != Cache::None {
                    self.session().store().drop_tier(0);
                }
                Ok(())
            }
            Op::RestoreCache => {
                let cache = self.cache();
                // It may not be lost.
                drop(self.session().store().restore_tier(0, cache));
                Ok(())
            }
            Op::Crash(seed) => self.crash(seed),
        }
    }

    /// Does what may be too busy, with polls in between. `None`: the power is gone.
    fn retry<T>(
        &mut self,
        mut call: impl FnMut(&mut Session, &[Vec<u8>]) -> Result<T, Error>,
    ) -> Outcome<Option<T>> {
        for _ in 0..STUCK {
            let keys = std::mem::take(&mut self.keys);
            let result = call(self.session(), &keys);
            self.keys = keys;
            match result {
                Ok(result) => return Ok(Some(result)),
                Err(error) if error.is_retryable() => self.poll()?,
                Err(error) => return Err(error.to_string()),
            }
            if self.disk.lock().unwrap().is_off() {
                return Ok(None);
            }
        }
        Err(format!("stuck: {:?}", self.session().store().extent()))
    }

    fn read(&mut self, key: usize) -> Outcome {
        let mut value = Vec::new();
        let answer = self.retry(|session, keys| session.read(&keys[key], &mut value))?;
        let may_be = numbers(&self.states[key]);
        match answer {
            Some(Answer::Pending(ticket)) => {
                self.waiting.insert(ticket, Waiting::Read(key, may_be));
            }
            Some(Answer::Done) => self.judge_read(key, &may_be, Some(&value))?,
            Some(Answer::Absent) => self.judge_read(key, &may_be, None)?,
            None => {}
        }
        Ok(())
    }

    fn judge_read(
        &self,
        key: usize,
        may_be: &BTreeSet<Option<u64>>,
        value: Option<&[u8]>,
    ) -> Outcome {
        let number = value.map(number_of).transpose()?;
        if may_be.contains(&number) {
            return Ok(());
        }
        Err(format!("key {key} reads {number:?}, and may be {may_be:?}"))
    }

    /// Notes what a key may be from now on, and what reads under way may return therefore.
    fn set_states(&mut self, key: usize, states: States) {
        for waiting in self.waiting.values_mut() {
            if let Waiting::Read(read, may_be) = waiting
                && *read == key
            {
                may_be.extend(numbers(&states));
            }
        }
        self.states[key] = states;
    }

    fn write(&mut self, key: usize, number: Option<u64>) -> Outcome {
        let value = number.map(value_of);
        let done = self.retry(|session, keys| match &value {
            Some(value) => session.upsert(&keys[key], value),
            None => session.delete(&keys[key]),
        })?;
        if done.is_some() {
            let before = closure(&self.states[key]);
            self.set_states(
                key,
                before
                    .into_iter()
                    .map(|(_, merges)| (number, merges))
                    .collect(),
            );
        }
        Ok(())
    }

    fn merge(&mut self, key: usize, operand: u64) -> Outcome {
        let pending = |waiting: &&Waiting| matches!(waiting, Waiting::Merge(it) if *it == key);
        if self.waiting.values().filter(pending).count() >= 3 {
            self.finish()?;
        }
        let bytes = operand.to_le_bytes();
        let answer = self.retry(|session, keys| session.merge(&keys[key], &bytes))?;
        let before = closure(&self.states[key]);
        let states = match answer {
            Some(Answer::Pending(ticket)) => {
                self.waiting.insert(ticket, Waiting::Merge(key));
                let with = |(number, mut merges): State| {
                    merges.insert(ticket, operand);
                    (number, merges)
                };
                before.into_iter().map(with).collect()
            }
            Some(_) => {
                let merged =
                    |(number, merges): State| (Some(number.unwrap_or(0) + operand), merges);
                before.into_iter().map(merged).collect()
            }
            None => return Ok(()),
        };
        self.set_states(key, states);
        Ok(())
    }

    pub fn poll(&mut self) -> Outcome {
        let mut ended = Vec::new();
        self.session().poll(&mut ended);
        self.take(ended)?;
        let mut durable = std::mem::take(&mut self.durable);
        let mut result = Ok(());
        durable.retain_mut(|(step, is_cut)| {
            let session = self.session.as_mut().expect("there is one");
            let (advanced, cut) = match step {
                Durable::Commit(commit) => (session.advance_commit(commit), commit.cut()),
                Durable::Checkpoint(point) => (session.advance_checkpoint(point), point.cut()),
            };
            if let Some(cut) = cut
                && !std::mem::replace(is_cut, true)
            {
                self.note_cut(cut);
            }
            match advanced {
                Ok(None) => true,
                Ok(Some(end)) => {
                    self.promised = self.promised.max(end);
                    false
                }
                Err(error) if error.is_retryable() => true,
                Err(error) => {
                    result = Err(error.to_string());
                    false
                }
            }
        });
        self.durable = durable;
        result
    }

    fn note_cut(&mut self, cut: u64) {
        let may_be = self.states.iter().map(numbers).collect::<Vec<_>>();
        // Two cuts at one address have nothing between them but reads.
        self.cuts.entry(cut).or_insert(may_be);
    }

    fn take(&mut self, ended: Vec<Completion>) -> Outcome {
        for end in ended {
            let waiting = self
                .waiting
                .remove(&end.ticket)
                .ok_or("an end of nothing")?;
            let value = end.result.map_err(|error| error.to_string())?;
            match waiting {
                Waiting::Read(key, may_be) => self.judge_read(key, &may_be, value.as_deref())?,
                Waiting::Merge(key) => {
                    number_of(&value.ok_or("a merge without a value")?)?;
                    let mut states = closure(&self.states[key]);
                    states.retain(|(_, merges)| !merges.contains_key(&end.ticket));
                    self.set_states(key, states);
                }
            }
        }
        Ok(())
    }

    /// Until nothing waits.
    fn finish(&mut self) -> Outcome {
        for _ in 0..STUCK {
            if self.waiting.is_empty() && self.durable.is_empty() {
                return Ok(());
            }
            self.poll()?;
            if self.disk.lock().unwrap().is_off() {
                return Ok(());
            }
        }
        Err(format!(
            "stuck at the end: {:?}",
            self.session().store().extent()
        ))
    }

    fn compact(&mut self, parts: u8) -> Outcome {
        // It blocks: a disk without power would hold it for ever.
        if self.disk.lock().unwrap().budget.is_some() {
            return Ok(());
        }
        self.finish()?;
        let extent = self.session().store().extent();
        let until = extent.begin + (extent.head - extent.begin) * u64::from(parts) / 8;
        let mut ended = Vec::new();
        for _ in 0..STUCK {
            match self.session().compact(until, &mut ended) {
                Ok(_) => return self.take(ended),
                Err(error) if error.is_retryable() => self.poll()?,
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("compaction is stuck".to_owned())
    }

    /// Cuts the power, starts again, and compares.
    pub fn crash(&mut self, seed: u64) -> Outcome {
        self.session = None;
        self.waiting.clear();
        self.durable.clear();
        self.crashes += 1;
        self.disk.lock().unwrap().crash(&mut Random(seed));
        let store = Store::recover(
            self.conditions.settings(),
            Arc::new(add),
            self.tiers(),
            self.file.clone(),
        );
        let store = store.map_err(|error| error.to_string())?;
        let end = store.extent().tail;
        self.session = Some(store.session().unwrap());
        if end < self.promised {
            return Err(format!(
                "came back to {end:#x}, {:#x} was promised",
                self.promised
            ));
        }
        let cut = self
            .cuts
            .get(&end)
            .ok_or(format!("came back to {end:#x}, where no cut was"))?;
        let states = |may_be: &BTreeSet<Option<u64>>| {
            may_be
                .iter()
                .map(|number| (*number, BTreeMap::new()))
                .collect()
        };
        self.states = cut.iter().map(states).collect();
        self.cuts.split_off(&(end + 1));
        self.promised = end;
        self.read_all()
    }

    /// Reads every key, after which it is known.
    pub fn read_all(&mut self) -> Outcome {
        for key in 0..KEYS {
            let mut value = Vec::new();
            let answer = self.retry(|session, keys| session.read(&keys[key], &mut value))?;
            let value = match answer {
                None => return Ok(()),
                Some(Answer::Absent) => None,
                Some(Answer::Done) => Some(value),
                Some(Answer::Pending(ticket)) => {
                    let Some(value) = self.until_ended(ticket)? else {
                        return Ok(());
                    };
                    value
                }
            };
            let may_be = numbers(&self.states[key]);
            self.judge_read(key, &may_be, value.as_deref())?;
            let number = value.map(|value| number_of(&value)).transpose()?;
            self.states[key].retain(|(it, merges)| *it == number || !merges.is_empty());
        }
        // What is known now was so at the cut that this came back to, if it did just now.
        if self.waiting.is_empty() {
            let known: Vec<_> = self.states.iter().map(numbers).collect();
            let tail = self.session().store().extent().tail;
            if let Some(cut) = self.cuts.get_mut(&tail) {
                *cut = known;
            }
        }
        Ok(())
    }

    fn until_ended(&mut self, ticket: Ticket) -> Outcome<Option<Option<Vec<u8>>>> {
        for _ in 0..STUCK {
            let mut ended = Vec::new();
            self.session().poll(&mut ended);
            let (ours, others) = ended.into_iter().partition(|end| end.ticket == ticket);
            self.take(others)?;
            let ours: Vec<Completion> = ours;
            if let Some(end) = ours.into_iter().next() {
                return end.result.map(Some).map_err(|error| error.to_string());
            }
            if self.disk.lock().unwrap().is_off() {
                return Ok(None);
            }
        }
        Err("a read never ends".to_owned())
    }

    /// A tier holds what it says, unless it was made to tear.
    fn check_tiers(&mut self) -> Outcome {
        let status = self.session().store().tiers();
        let faults: u64 = status.iter().map(|tier| tier.fault_count).sum();
        let tears = self.conditions.torn > 0 && self.conditions.cache == Cache::Memory;
        if !tears && faults > 0 {
            return Err(format!(
                "reads failed of tiers that said they had it: {status:?}"
            ));
        }
        Ok(())
    }
}
