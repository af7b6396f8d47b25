//! What one thread does with a store: reads, writes, and what waits for tiers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::error::Error;
use super::fetch::{Fetch, Progress};
use super::memory::Locked;
use super::planted::{Planted, is_planted};
use super::store::{Store, Traced};
use super::tiers::{End, Inbox};

/// Names an operation that waits for a tier. Unique in its session.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ticket(u64);

/// How an operation ended, or that it has not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// A read found the value; a merge is done.
    Done,
    /// A read found no value.
    Absent,
    /// A tier has to be asked; [`Session::poll`] returns the end.
    Pending(Ticket),
}

/// The end of an operation that waited.
#[derive(Debug)]
pub struct Completion {
    /// As [`Answer::Pending`] said.
    pub ticket: Ticket,
    /// The value that a read found, `None` if the key is not there; for a merge, its new value.
    pub result: Result<Option<Vec<u8>>, Error>,
}

/// One thread's end of a store. Dropping it gives up operations that wait: a merge among them may
/// be left out.
///
/// Families: `read`, `upsert`, `merge`, `delete` never wait and never block; they may return
/// [`Error::Busy`], and then nothing was done. [`poll`](Self::poll) moves everything on.
/// [`wait`](Self::wait) turns any of them into a call that blocks.
pub struct Session {
    pub(super) store: Arc<Store>,
    pub(super) slot: usize,
    tickets: u64,
    pending: HashMap<Ticket, Operation>,
    /// Whose answer a token is.
    asked: HashMap<u64, Ticket>,
    /// What commits and compactions asked for, and the answers.
    pub(super) others: HashMap<u64, Option<End>>,
    scratch: Vec<u8>,
    merged: Vec<u8>,
}

/// An operation that waits.
struct Operation {
    key: Vec<u8>,
    kind: Kind,
    /// The begin, loaded before the chain was.
    first: u64,
    /// Front of the chain when the operation looked.
    front: u64,
    stage: Stage,
}

enum Stage {
    /// A record of the chain is read.
    Fetching(Fetch),
    /// The chain has changed: the key is to be looked up anew.
    Anew,
}

impl Operation {
    fn fetch(&mut self) -> Option<&mut Fetch> {
        match &mut self.stage {
            Stage::Fetching(fetch) => Some(fetch),
            Stage::Anew => None,
        }
    }
}

enum Kind {
    Read,
    Merge { operand: Vec<u8> },
}

/// What one step of a merge came to.
enum Merged {
    Done,
    /// Somebody was faster.
    Again,
    Below {
        first: u64,
        front: u64,
        address: u64,
    },
}

impl Session {
    pub(super) fn new(store: Arc<Store>, slot: usize) -> Self {
        Self {
            store,
            slot,
            tickets: 0,
            pending: HashMap::new(),
            asked: HashMap::new(),
            others: HashMap::new(),
            scratch: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Operations that wait for a tier.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn inbox(&self) -> Inbox {
        Inbox(self.slot + 1)
    }

    /// Reads the value of `key` into `value`.
    ///
    /// # Errors
    /// [`Error::KeyLength`]; [`Error::Busy`] when as many operations wait as may.
    pub fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Answer, Error> {
        Store::check_key(key)?;
        let store = &*self.store;
        let place = store.place(key);
        let pin = store.epochs.pin(self.slot);
        let first = store.first();
        let Some(entry) = store.index.find(place) else {
            return Ok(Answer::Absent);
        };
        let front = entry.address();
        let address = match store.trace(front, key, first, 0) {
            Traced::Absent => return Ok(Answer::Absent),
            Traced::InMemory(address) => {
                return Ok(match store.memory.read(address, value) {
                    true => Answer::Done,
                    false => Answer::Absent,
                });
            }
            Traced::Below(address) => address,
        };
        drop(pin);
        self.suspend(Kind::Read, key, first, front, address)
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// The key's or the value's length; [`Error::Busy`] and others when there is no room.
    pub fn upsert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.store.check_value(key, value)?;
        self.write(key, Some(value))
    }

    /// Makes `key` absent.
    ///
    /// # Errors
    /// As [`Session::upsert`].
    pub fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        self.write(key, None)
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        Store::check_key(key)?;
        let result = self.try_write(key, value);
        self.after_write(result.as_ref().err());
        result
    }

    fn try_write(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let store = &*self.store;
        let place = store.place(key);
        loop {
            let _pin = store.epochs.pin(self.slot);
            let first = store.first();
            let entry = match value {
                Some(_) => store
                    .index
                    .find_or_add(place)
                    .map_err(|_| Error::IndexFull)?,
                None => match store.index.find(place) {
                    Some(entry) if entry.address() >= first => entry,
                    // Nothing to delete.
                    _ => return Ok(()),
                },
            };
            let floor = in_place_from(store);
            let traced = store.trace(entry.address(), key, first, floor);
            if let Traced::InMemory(address) = traced {
                let Some(mut record) = store.memory.lock(address) else {
                    continue;
                };
                match value {
                    Some(value) => {
                        if record.replace(value) {
                            return Ok(());
                        }
                    }
                    None => {
                        record.set_deleted(true);
                        return Ok(());
                    }
                }
            }
            if value.is_none() && matches!(traced, Traced::Absent) {
                return Ok(());
            }
            if store.append(&entry, key, value.unwrap_or_default(), value.is_none())? {
                return Ok(());
            }
        }
    }

    /// Sets the value of `key` to what the store's [`Merge`](super::Merge) makes of it and `operand`.
    ///
    /// # Errors
    /// As [`Session::read`] and [`Session::upsert`]; [`Error::ValueLength`] of the merged value.
    pub fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<Answer, Error> {
        Store::check_key(key)?;
        if self.pending.len() >= self.store.settings.pending_max {
            return Err(Error::Busy);
        }
        loop {
            let step = self.try_merge(key, operand);
            self.after_write(step.as_ref().err());
            match step? {
                Merged::Done => return Ok(Answer::Done),
                Merged::Again => {}
                Merged::Below {
                    first,
                    front,
                    address,
                } => {
                    let operand = operand.to_vec();
                    return self.suspend(Kind::Merge { operand }, key, first, front, address);
                }
            }
        }
    }

    fn try_merge(&mut self, key: &[u8], operand: &[u8]) -> Result<Merged, Error> {
        let store = &*self.store;
        let place = store.place(key);
        let _pin = store.epochs.pin(self.slot);
        let first = store.first();
        let entry = store
            .index
            .find_or_add(place)
            .map_err(|_| Error::IndexFull)?;
        let front = entry.address();
        let mut old: Option<Locked<'_>> = None;
        let mut has_old = false;
        match store.trace(front, key, first, 0) {
            Traced::Absent => {}
            Traced::Below(address) => {
                return Ok(Merged::Below {
                    first,
                    front,
                    address,
                });
            }
            Traced::InMemory(address) => {
                // Also where the record is read-only: others who do not know that yet change it in
                // place, and must not once it is replaced.
                let Some(mut record) = store.memory.lock(address) else {
                    return Ok(Merged::Again);
                };
                has_old = record.read(&mut self.scratch);
                if address >= in_place_from(store) {
                    let old = has_old.then_some(&self.scratch[..]);
                    self.merged.clear();
                    store.merge.merge(old, operand, &mut self.merged);
                    if record.replace(&self.merged) {
                        return Ok(Merged::Done);
                    }
                }
                old = Some(record);
            }
        }
        self.merged.clear();
        let value = has_old.then_some(&self.scratch[..]);
        store.merge.merge(value, operand, &mut self.merged);
        store.check_value(key, &self.merged)?;
        if !store.append(&entry, key, &self.merged, false)? {
            return Ok(Merged::Again);
        }
        if let Some(old) = old
            && !is_planted(Planted::NoSeal)
        {
            old.seal();
        }
        Ok(Merged::Done)
    }

    /// Goes on with a merge whose old value came from a tier. `false`: the chain has changed since.
    fn end_merge(
        &mut self,
        operation: &Operation,
        old: Option<&[u8]>,
        operand: &[u8],
    ) -> Result<bool, Error> {
        let store = &*self.store;
        self.merged.clear();
        store.merge.merge(old, operand, &mut self.merged);
        store.check_value(&operation.key, &self.merged)?;
        let place = store.place(&operation.key);
        let _pin = store.epochs.pin(self.slot);
        let entry = store
            .index
            .find_or_add(place)
            .map_err(|_| Error::IndexFull)?;
        if entry.address() != operation.front && !is_planted(Planted::MergeOverNewer) {
            return Ok(false);
        }
        store.append(&entry, &operation.key, &self.merged, false)
    }

    /// Notes an operation that waits for the record at `address`.
    fn suspend(
        &mut self,
        kind: Kind,
        key: &[u8],
        first: u64,
        front: u64,
        address: u64,
    ) -> Result<Answer, Error> {
        if self.pending.len() >= self.store.settings.pending_max {
            self.store.advance();
            return Err(Error::Busy);
        }
        let mut operation = Operation {
            key: key.to_vec(),
            kind,
            first,
            front,
            stage: Stage::Fetching(Fetch::record(&self.store, address)),
        };
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.ask(ticket, &mut operation);
        self.pending.insert(ticket, operation);
        Ok(Answer::Pending(ticket))
    }

    /// Asks a tier for an operation, if it can be asked now. Errors come up at the next poll.
    fn ask(&mut self, ticket: Ticket, operation: &mut Operation) {
        let inbox = self.inbox();
        if let Some(fetch) = operation.fetch()
            && let Ok(Progress::UnderWay) = fetch.advance(&self.store, inbox)
            && let Some(token) = fetch.asked_with()
        {
            self.asked.insert(token, ticket);
        }
    }

    /// Moves pages and pending operations on, and adds operations that ended to `ended`.
    pub fn poll(&mut self, ended: &mut Vec<Completion>) {
        self.store.advance();
        self.collect();
        let is_idle = |operation: &Operation| match &operation.stage {
            Stage::Fetching(fetch) => fetch.asked_with().is_none(),
            Stage::Anew => true,
        };
        let ready: Vec<Ticket> = self
            .pending
            .iter()
            .filter(|(_, operation)| is_idle(operation))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in ready {
            let operation = self.pending.remove(&ticket).expect("it was there");
            match self.resume(ticket, operation) {
                Ok(Resumed::Waits(operation)) => drop(self.pending.insert(ticket, *operation)),
                Ok(Resumed::Ended(value)) => ended.push(Completion {
                    ticket,
                    result: Ok(value),
                }),
                Err(error) => ended.push(Completion {
                    ticket,
                    result: Err(error),
                }),
            }
        }
    }

    /// Takes answers of tiers to those who asked.
    pub(super) fn collect(&mut self) {
        for end in self.store.tiers.take(self.inbox()) {
            match self.asked.remove(&end.token) {
                Some(ticket) => {
                    if let Some(operation) = self.pending.get_mut(&ticket)
                        && let Some(fetch) = operation.fetch()
                    {
                        fetch.take(&self.store, end);
                    }
                }
                // What nobody asked for was asked for by the session before this one.
                None => {
                    if let Some(answer) = self.others.get_mut(&end.token) {
                        *answer = Some(end);
                    }
                }
            }
        }
    }

    /// Notes that the answer with this token is waited for.
    pub(super) fn expect(&mut self, token: u64) {
        self.others.entry(token).or_default();
    }

    /// The answer with this token, if it came.
    pub(super) fn answer(&mut self, token: u64) -> Option<End> {
        self.collect();
        let answer = self.others.get_mut(&token)?.take()?;
        self.others.remove(&token);
        Some(answer)
    }

    /// Goes on with an operation that no tier is working for.
    fn resume(&mut self, ticket: Ticket, mut operation: Operation) -> Result<Resumed, Error> {
        let store = Arc::clone(&self.store);
        loop {
            let Stage::Fetching(mut fetch) = std::mem::replace(&mut operation.stage, Stage::Anew)
            else {
                match self.restart(&mut operation) {
                    Ok(Some(value)) => return Ok(Resumed::Ended(value)),
                    Ok(None) => continue,
                    Err(error) if error.is_retryable() => {
                        return Ok(Resumed::Waits(Box::new(operation)));
                    }
                    Err(error) => return Err(error),
                }
            };
            match fetch.advance(&store, self.inbox()) {
                Ok(Progress::UnderWay) => {
                    if let Some(token) = fetch.asked_with() {
                        self.asked.insert(token, ticket);
                    }
                    operation.stage = Stage::Fetching(fetch);
                    return Ok(Resumed::Waits(Box::new(operation)));
                }
                Ok(Progress::Gone) => {}
                // What was given up meanwhile had been moved.
                Err(_) if fetch.address() < store.first() => {}
                Err(error) => return Err(error),
                Ok(Progress::Here) => match self.judge(&mut operation, fetch)? {
                    Judged::Ended(value) => return Ok(Resumed::Ended(value)),
                    Judged::GoesOn => {}
                    Judged::NoRoom => return Ok(Resumed::Waits(Box::new(operation))),
                },
            }
        }
    }

    /// Looks at a record that came, and leaves the next stage in `operation`.
    fn judge(&mut self, operation: &mut Operation, fetch: Fetch) -> Result<Judged, Error> {
        let store = Arc::clone(&self.store);
        let record = fetch.fetched_record(&store).expect("it was checked");
        let is_it = record.key == operation.key || is_planted(Planted::KeyUnchecked);
        let previous = record.link.previous();
        if !is_it && previous >= operation.first {
            operation.stage = Stage::Fetching(Fetch::record(&store, previous));
            return Ok(Judged::GoesOn);
        }
        let value = (is_it && !record.link.is_deleted()).then_some(record.value);
        let Kind::Merge { operand } = &operation.kind else {
            return Ok(Judged::Ended(value.map(<[u8]>::to_vec)));
        };
        match self.end_merge(operation, value, operand) {
            Ok(true) => Ok(Judged::Ended(Some(self.merged.clone()))),
            Ok(false) => Ok(Judged::GoesOn),
            Err(error) if error.is_retryable() => {
                self.after_write(Some(&error));
                operation.stage = Stage::Fetching(fetch);
                Ok(Judged::NoRoom)
            }
            Err(error) => Err(error),
        }
    }

    /// Does an operation anew. Its end, or `None` with another record to fetch.
    fn restart(&mut self, operation: &mut Operation) -> Result<Option<Option<Vec<u8>>>, Error> {
        let store = Arc::clone(&self.store);
        let (first, front, address) = match &operation.kind {
            Kind::Read => {
                let _pin = store.epochs.pin(self.slot);
                let first = store.first();
                let Some(entry) = store.index.find(store.place(&operation.key)) else {
                    return Ok(Some(None));
                };
                match store.trace(entry.address(), &operation.key, first, 0) {
                    Traced::Absent => return Ok(Some(None)),
                    Traced::InMemory(address) => {
                        let mut value = Vec::new();
                        let is_there = store.memory.read(address, &mut value);
                        return Ok(Some(is_there.then_some(value)));
                    }
                    Traced::Below(address) => (first, entry.address(), address),
                }
            }
            Kind::Merge { operand } => loop {
                match self.try_merge(&operation.key, operand)? {
                    Merged::Done => return Ok(Some(Some(self.merged.clone()))),
                    Merged::Again => {}
                    Merged::Below {
                        first,
                        front,
                        address,
                    } => break (first, front, address),
                }
            },
        };
        operation.first = first;
        operation.front = front;
        operation.stage = Stage::Fetching(Fetch::record(&store, address));
        Ok(None)
    }

    /// Blocks until every operation that waits has ended, and adds the ends to `ended`.
    pub fn finish(&mut self, ended: &mut Vec<Completion>) {
        let mut pause = Pause::default();
        while !self.pending.is_empty() {
            let before = ended.len();
            self.poll(ended);
            pause.after(ended.len() > before);
        }
    }

    /// Calls `operation` until it is not [`Error::Busy`], polling in between; ends of other
    /// operations go to `ended`. Blocks for as long as tiers take.
    ///
    /// # Errors
    /// Those of `operation` but `Busy`.
    pub fn wait<T>(
        &mut self,
        ended: &mut Vec<Completion>,
        mut operation: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut pause = Pause::default();
        loop {
            match operation(self) {
                Err(Error::Busy) => {
                    self.poll(ended);
                    pause.after(false);
                }
                other => return other,
            }
        }
    }

    /// Moves pages on when there is no room, and now and then besides.
    fn after_write(&mut self, error: Option<&Error>) {
        let store = &self.store;
        let page = store.addresses.tail.load() / store.page_bytes();
        if error.is_some() || !store.memory.is_ready(page + 1) {
            store.advance();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.store.epochs.release(self.slot);
    }
}

/// What became of an operation that went on.
enum Resumed {
    Waits(Box<Operation>),
    /// The value that it ended with.
    Ended(Option<Vec<u8>>),
}

/// What a record that came means for its operation.
enum Judged {
    Ended(Option<Vec<u8>>),
    GoesOn,
    /// There is no room for the merged value.
    NoRoom,
}

/// From where on records change in place.
fn in_place_from(store: &Store) -> u64 {
    if is_planted(Planted::InPlaceReadOnly) {
        return 0;
    }
    store.addresses.read_only.load()
}

/// Waits longer the longer nothing happens.
#[derive(Default)]
pub(super) struct Pause {
    idle: u32,
}

impl Pause {
    pub(super) fn after(&mut self, is_progress: bool) {
        self.idle = if is_progress { 0 } else { self.idle + 1 };
        match self.idle {
            0 => {}
            1..200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}
