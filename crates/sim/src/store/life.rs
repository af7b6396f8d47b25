//! One life of a pool under a workload: until the medium crashes, or through.
//!
//! Clients announce values that come late, in part, wrong or never, and change while they are verified; some
//! die. Another thread's groups and copies are begun now and ended some steps later.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_measure::random::Random;
use cenote_store::schemes::{Durable, Named, PutStep, Scheme};
use cenote_store::{
    Batch, Condition, Group, Landing, Medium as _, ModelMedium, Pool, Source, StoreError, Taking,
};

use super::KEYS;
use super::oracle::Oracle;

type Bytes = Arc<Mutex<Vec<u8>>>;

/// A client's landing: another thread's to change, whenever it is read.
struct Shared {
    bytes: Bytes,
    /// What the client writes after it was read once.
    afterwards: Option<Vec<u8>>,
}

impl Landing for Shared {
    fn read(&mut self, out: &mut [u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        out.copy_from_slice(&bytes);
        if let Some(next) = self.afterwards.take() {
            *bytes = next;
        }
    }
}

/// A value that its client has not written yet.
enum Late {
    Landing(Bytes, Vec<u8>),
    /// In the log itself, from a place on.
    Log {
        at: u64,
        value: Vec<u8>,
        key: u64,
        sequence: u64,
    },
}

/// Whether it went on to the end, or crashed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    Through,
    Crashed,
}

/// A pool, its clients, and who watches.
pub struct Life<'a> {
    pub pool: Pool<ModelMedium>,
    pub oracle: &'a mut Oracle,
    pub scheme: &'a dyn Scheme,
    /// Versions that another thread is making durable, and what it is copying.
    group: Option<Group<ModelMedium>>,
    taking: Option<Taking<ModelMedium>>,
    batch: Option<Batch<ModelMedium>>,
    /// A batch that is durable, of which the index does not name all copies.
    fenced: Option<Batch<ModelMedium>>,
    late: Vec<Late>,
    pub next_value: u64,
}

impl<'a> Life<'a> {
    pub fn new(
        mut pool: Pool<ModelMedium>,
        oracle: &'a mut Oracle,
        scheme: &'a dyn Scheme,
        next_value: u64,
    ) -> Self {
        pool.name_versions(scheme.named());
        Self {
            pool,
            oracle,
            scheme,
            group: None,
            taking: None,
            batch: None,
            fenced: None,
            late: Vec::new(),
            next_value,
        }
    }

    fn value(&mut self, random: &mut Random) -> Vec<u8> {
        self.next_value += 1;
        let len = 1 + random.below(60) as usize;
        let mut value = vec![self.next_value as u8; len];
        let tag = self.next_value.to_le_bytes();
        value[..len.min(8)].copy_from_slice(&tag[..len.min(8)]);
        value
    }

    /// One thing that somebody does.
    pub fn step(&mut self, random: &mut Random) -> Result<Ended, String> {
        let key = random.below(KEYS);
        let has_space = self.scheme.put_steps().contains(&PutStep::CallForSpace);
        match random.below(15) {
            0..4 if has_space => self.put(random, key),
            0..5 => self.put_durable(random, key),
            5 => self.delete(key),
            6 | 7 => self.write_late(random),
            8 | 9 if self.scheme.durable() == Durable::InBackground => self.persist(random),
            12.. => self.clean(random),
            // What another thread is making durable is not settled by this one.
            _ if self.pool.is_busy() => {
                self.end_taking();
                self.end_group()
            }
            _ => self.get(key),
        }
    }

    fn put(&mut self, random: &mut Random, key: u64) -> Result<Ended, String> {
        if !self.scheme.lands_beside_log() {
            return self.put_into_log(random, key);
        }
        let value = self.value(random);
        let bytes = Arc::new(Mutex::new(vec![0; value.len()]));
        let set = |to: Vec<u8>| *bytes.lock().unwrap_or_else(PoisonError::into_inner) = to;
        let mut afterwards = None;
        match random.below(5) {
            // Never whole.
            0 => set([&[value[0] ^ 0x55], &value[1..]].concat()),
            // Changed once it was looked at.
            1 => {
                set(value.clone());
                afterwards = Some(vec![0xff; value.len()]);
            }
            2 => self
                .late
                .push(Late::Landing(Arc::clone(&bytes), value.clone())),
            _ => set(value.clone()),
        }
        let source = Source::Landing(Box::new(Shared { bytes, afterwards }));
        self.allocate(key, value, source).map(|(ended, _)| ended)
    }

    /// A value that its client writes to the log itself, now, in part, later or never.
    fn put_into_log(&mut self, random: &mut Random, key: u64) -> Result<Ended, String> {
        let value = self.value(random);
        let (ended, given) = self.allocate(key, value.clone(), Source::Log)?;
        let Some((sequence, at)) = given else {
            return Ok(ended);
        };
        let written = match random.below(5) {
            0 => 0,
            1 | 2 => random.below(value.len() as u64) as usize,
            _ => value.len(),
        };
        self.pool.medium().write(at, &value[..written]);
        if written == value.len() {
            return self.end_put(key, sequence);
        }
        self.late.push(Late::Log {
            at,
            value,
            key,
            sequence,
        });
        Ok(Ended::Through)
    }

    /// The value is there: what tells the server, if anything does.
    fn end_put(&mut self, key: u64, sequence: u64) -> Result<Ended, String> {
        if self.scheme.durable() != Durable::BeforeAck {
            return Ok(Ended::Through);
        }
        match self.pool.settle(&[sequence]) {
            Ok(1) => self.oracle.tell(key, sequence),
            // Given up while its client was slow.
            Ok(_) => {}
            Err(error) => return self.crashed(&error),
        }
        Ok(Ended::Through)
    }

    fn allocate(
        &mut self,
        key: u64,
        value: Vec<u8>,
        source: Source,
    ) -> Result<(Ended, Option<(u64, u64)>), String> {
        let name = name(key);
        let sum = Pool::<ModelMedium>::checksum(&name, &value);
        let always = Condition::Always;
        match self.pool.allocate(&name, value.len(), sum, source, always) {
            Ok(one) => {
                self.oracle.allocated(key, one.sequence, Some(value))?;
                Ok((Ended::Through, Some((one.sequence, one.value_at))))
            }
            Err(error) => self.crashed(&error).map(|ended| (ended, None)),
        }
    }

    fn put_durable(&mut self, random: &mut Random, key: u64) -> Result<Ended, String> {
        let value = self.value(random);
        self.oracle.unknown.push((key, Some(value.clone())));
        match self.pool.put_durable(&name(key), &value, Condition::Always) {
            Ok(one) => {
                self.oracle.unknown.pop();
                self.oracle.allocated(key, one.sequence, Some(value))?;
                self.oracle.tell(key, one.sequence);
                Ok(Ended::Through)
            }
            Err(error) => self.crashed(&error),
        }
    }

    fn delete(&mut self, key: u64) -> Result<Ended, String> {
        self.oracle.unknown.push((key, None));
        match self.pool.delete(&name(key), Condition::Always) {
            Ok(one) => {
                self.oracle.unknown.pop();
                self.oracle.allocated(key, one.sequence, None)?;
                self.oracle.tell(key, one.sequence);
                Ok(Ended::Through)
            }
            Err(error) => self.crashed(&error),
        }
    }

    fn write_late(&mut self, random: &mut Random) -> Result<Ended, String> {
        // Some clients die first.
        match self.late.pop().filter(|_| random.below(4) > 0) {
            None => Ok(Ended::Through),
            Some(Late::Landing(bytes, value)) => {
                *bytes.lock().unwrap_or_else(PoisonError::into_inner) = value;
                Ok(Ended::Through)
            }
            Some(Late::Log {
                at,
                value,
                key,
                sequence,
            }) => {
                // Clients are trusted with the log under these schemes: none writes to what was given up.
                if self.pool.is_space_of(sequence) {
                    self.pool.medium().write(at, &value);
                    return self.end_put(key, sequence);
                }
                Ok(Ended::Through)
            }
        }
    }

    fn get(&mut self, key: u64) -> Result<Ended, String> {
        // Where readers do not ask the server, what they read may be lost.
        let is_durable = self.scheme.durable() != Durable::Never;
        let said = match self.scheme.named() {
            Named::WhenDurable => self.pool.peek(&name(key)),
            Named::AtAllocation => self.pool.get(&name(key)),
        };
        match said {
            Ok(said) => {
                let said = said.map(|version| (version.sequence, version.value));
                self.oracle.check(key, said, is_durable)?;
                Ok(Ended::Through)
            }
            Err(error) => self.crashed(&error),
        }
    }

    /// A group in one go, or begun now and ended some steps later, while values of the next are copied.
    fn persist(&mut self, random: &mut Random) -> Result<Ended, String> {
        if random.below(3) == 0 {
            self.take(random);
            return Ok(Ended::Through);
        }
        if self.group.is_some() {
            return self.end_group();
        }
        let mut group = self.pool.begin_group(1 + random.below(4) as usize);
        if let Err(error) = group.write_back() {
            return self.crashed(&error.into());
        }
        self.group = Some(group);
        match random.below(2) {
            0 => self.end_group(),
            _ => Ok(Ended::Through),
        }
    }

    fn take(&mut self, random: &mut Random) {
        if self.taking.is_some() {
            return self.end_taking();
        }
        let sequences = self
            .pool
            .next_waiting(1 + random.below(4) as usize, u64::MAX);
        let mut taking = self.pool.begin_taking(&sequences);
        taking.copy();
        self.taking = Some(taking);
        if random.below(2) == 0 {
            self.end_taking();
        }
    }

    fn end_taking(&mut self) {
        if let Some(taking) = self.taking.take() {
            self.pool.end_taking(taking);
        }
    }

    fn end_group(&mut self) -> Result<Ended, String> {
        let Some(group) = self.group.take() else {
            return Ok(Ended::Through);
        };
        let fenced = group.fence();
        match self.pool.end_group(group, fenced) {
            Ok(_) => Ok(Ended::Through),
            Err(error) => self.crashed(&error),
        }
    }

    /// Some batches: the first and the last of a cleaning are a record alone.
    fn clean(&mut self, random: &mut Random) -> Result<Ended, String> {
        for _ in 0..random.below(3) {
            if self.clean_batch(random)? == Ended::Crashed {
                return Ok(Ended::Crashed);
            }
        }
        self.clean_batch(random)
    }

    fn clean_batch(&mut self, random: &mut Random) -> Result<Ended, String> {
        let entries = 1 + random.below(20) as usize;
        if let Some(batch) = self.fenced.take() {
            return self.end_batch(batch, Ok(()), random);
        }
        let begun = match self.batch.take() {
            Some(mut batch) if batch.has_copies() => {
                let added = self.pool.add_copies(&mut batch, entries);
                added.map(|_| batch)
            }
            Some(batch) => Ok(batch),
            None => self.pool.begin_clean(entries).map(|(batch, _)| batch),
        };
        let batch = match begun {
            Ok(batch) => batch,
            Err(error) => return self.crashed(&error),
        };
        if random.below(3) == 0 {
            self.batch = Some(batch);
            return Ok(Ended::Through);
        }
        let done = batch.write_back().and_then(|()| batch.fence());
        self.end_batch(batch, done, random)
    }

    /// All of it, or a part now and the rest some steps later.
    fn end_batch(
        &mut self,
        mut batch: Batch<ModelMedium>,
        done: io::Result<()>,
        random: &mut Random,
    ) -> Result<Ended, String> {
        if done.is_ok() && batch.has_copies() && random.below(2) == 0 {
            if let Err(error) = self.pool.end_copies(&mut batch, 1) {
                return self.crashed(&error);
            }
            self.fenced = Some(batch);
            return Ok(Ended::Through);
        }
        match self.pool.end_clean(batch, done) {
            Ok(_) => Ok(Ended::Through),
            Err(error) => self.crashed(&error),
        }
    }

    fn crashed(&self, error: &StoreError) -> Result<Ended, String> {
        match error {
            StoreError::Io(_) => Ok(Ended::Crashed),
            StoreError::Full | StoreError::Incomplete => Ok(Ended::Through),
            // Few versions wait, and cleaning waits for some of them.
            StoreError::Backlog(_) if self.pool.is_cleaning() => Ok(Ended::Through),
            error => Err(error.to_string()),
        }
    }

    /// Ends what is under way, and gives up what did not come: then cleaning ends, and no key waits
    /// for anything.
    pub fn end(mut self) -> Result<(), String> {
        match self.put_last() {
            Ok(()) if self.pool.is_cleaning() => Err("its cleaning does not end".to_owned()),
            // No room for copies, or the medium crashes first.
            Ok(()) | Err(StoreError::Full | StoreError::Io(_)) => Ok(()),
            Err(error) => Err(format!("at its end: {error}")),
        }
    }

    fn put_last(&mut self) -> Result<(), StoreError> {
        self.end_taking();
        if let Some(group) = self.group.take() {
            let fenced = group.fence();
            self.pool.end_group(group, fenced)?;
        }
        if let Some(batch) = self.fenced.take() {
            self.pool.end_clean(batch, Ok(()))?;
        }
        if let Some(batch) = self.batch.take() {
            let done = batch.write_back().and_then(|()| batch.fence());
            self.pool.end_clean(batch, done)?;
        }
        while self.pool.persist(usize::MAX)? > 0 {}
        for sequence in self.pool.next_waiting(usize::MAX, u64::MAX) {
            self.pool.give_up(sequence);
        }
        // The pass that is under way may have met what waited.
        for _ in 0..2 {
            if self.pool.is_cleaning() {
                self.pool.clean(usize::MAX)?;
            }
        }
        for key in 0..KEYS {
            match (self.pool).put_durable(&name(key), b"last", Condition::Always) {
                Ok(_) | Err(StoreError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

pub fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}
