//! What one thread does with a store: reads, writes, and what waits for tiers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::error::Error;
use super::index::BucketTag;
use super::injected_faults::{InjectedFault, is_injected};
use super::memory::Locked;
use super::operations::{Completion, Found, Kind, Operation, Pending, Ticket};
use super::record::Shape;
use super::store::{Store, Traced};
use super::tiers::{End, Inbox};

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

/// One thread's end of a store. Dropping it gives up operations that wait: a merge among them may
/// be left out.
///
/// Families: `read`, `upsert`, `merge`, `delete` never wait and never block; they may return
/// [`Error::Busy`], and then nothing was done. [`poll`](Self::poll) moves everything on.
/// [`wait`](Self::wait) turns any of them into a call that blocks.
pub struct Session {
    pub(super) store: Arc<Store>,
    pub(super) slot: usize,
    pub(super) pending: Pending,
    /// What commits and compactions asked for, and the answers.
    pub(super) others: HashMap<u64, Option<End>>,
    scratch: Vec<u8>,
    pub(super) merged: Vec<u8>,
}

/// What one step of a merge came to.
pub(super) enum Merged {
    Done,
    /// Somebody was faster.
    Again,
    Below(Found),
}

impl Session {
    pub(super) fn new(store: Arc<Store>, slot: usize) -> Self {
        Self {
            store,
            slot,
            pending: Pending::default(),
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
        self.store.check_key(key)?;
        let store = &*self.store;
        let place = store.place(key);
        let pin = store.epochs.pin(self.slot);
        let first = store.first();
        let looked = look(store, key, store.front(place), first, value);
        drop(pin);
        match looked {
            Looked::Here(answer) => Ok(answer),
            Looked::Below(found) => self.suspend(Kind::Read, key, found),
        }
    }

    /// Reads the values of several keys: `each` is called once for each key, in any order, with its
    /// number, the answer, and the value of one that is `Done`. Faster than one after the other where
    /// they are in memory, as the processor fetches what is looked at next meanwhile.
    ///
    /// `each` must not use the store, by another session either, and must not block for long. Records stay
    /// where they are while it runs: a write by it that waits for memory would wait for itself, and hang. Note
    /// what is to be done, and do it when this has returned.
    pub fn read_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut each: impl FnMut(usize, Result<Answer, Error>, &[u8]),
    ) {
        let mut value = std::mem::take(&mut self.scratch);
        for (number, keys) in keys.chunks(BATCH).enumerate() {
            let mut looked = [const { None }; BATCH];
            self.look_ahead(
                keys,
                &mut looked,
                |at, answer, value| {
                    each(number * BATCH + at, Ok(answer), value);
                },
                &mut value,
            );
            for (at, (key, looked)) in keys.iter().zip(looked).enumerate() {
                let Some(missed) = looked else { continue };
                let answer = missed.and_then(|found| self.suspend(Kind::Read, key.as_ref(), found));
                each(number * BATCH + at, answer, &[]);
            }
        }
        self.scratch = value;
    }

    /// Answers what is in memory of one batch; the rest is left in `missed`.
    fn look_ahead<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        missed: &mut [Option<Result<Found, Error>>; BATCH],
        mut each: impl FnMut(usize, Answer, &[u8]),
        value: &mut Vec<u8>,
    ) {
        let store = &*self.store;
        let mut places = [BucketTag { bucket: 0, tag: 0 }; BATCH];
        let mut fronts = [0; BATCH];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = store.place(key.as_ref());
            store.index.prefetch(*place);
        }
        let _pin = store.epochs.pin(self.slot);
        let first = store.first();
        let head = store.addresses.head.load();
        for (front, place) in fronts.iter_mut().zip(&places[..keys.len()]) {
            *front = store.front(*place);
            if *front >= head {
                store.memory.prefetch(*front);
            }
        }
        for (at, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            if let Err(error) = store.check_key(key) {
                missed[at] = Some(Err(error));
                continue;
            }
            match look(store, key, fronts[at], first, value) {
                Looked::Here(answer) => each(at, answer, value),
                Looked::Below(found) => missed[at] = Some(Ok(found)),
            }
        }
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// The key's or the value's length; [`Error::Busy`] and others when there is no room.
    pub fn upsert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.store.check_key(key)?;
        self.store.check_value(key, value)?;
        self.write(key, Some(value))
    }

    /// Makes `key` absent.
    ///
    /// # Errors
    /// As [`Session::upsert`].
    pub fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        self.store.check_key(key)?;
        self.write(key, None)
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
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
                Some(value) => store.entry_for(place, Shape::of(key, value))?,
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
        self.store.check_key(key)?;
        if self.pending.len() >= self.store.settings.pending_max {
            return Err(Error::Busy);
        }
        loop {
            let step = self.try_merge(key, operand);
            self.after_write(step.as_ref().err());
            match step? {
                Merged::Done => return Ok(Answer::Done),
                Merged::Again => {}
                Merged::Below(found) => {
                    let operand = operand.to_vec();
                    return self.suspend(Kind::Merge { operand }, key, found);
                }
            }
        }
    }

    pub(super) fn try_merge(&mut self, key: &[u8], operand: &[u8]) -> Result<Merged, Error> {
        let store = &*self.store;
        let place = store.place(key);
        let _pin = store.epochs.pin(self.slot);
        let first = store.first();
        let front = store.front(place);
        let mut old: Option<Locked<'_>> = None;
        let mut has_old = false;
        match store.trace(front, key, first, 0) {
            Traced::Absent => {}
            Traced::Below(address) => {
                return Ok(Merged::Below(Found {
                    first,
                    front,
                    address,
                }));
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
                    store.check_value(key, &self.merged)?;
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
        let entry = store.entry_for(place, Shape::of(key, &self.merged))?;
        if entry.address() != front {
            return Ok(Merged::Again);
        }
        if !store.append(&entry, key, &self.merged, false)? {
            return Ok(Merged::Again);
        }
        if let Some(old) = old
            && !is_injected(InjectedFault::NoSeal)
        {
            old.seal();
        }
        Ok(Merged::Done)
    }

    /// Notes an operation that waits for the record at `address`.
    fn suspend(&mut self, kind: Kind, key: &[u8], found: Found) -> Result<Answer, Error> {
        if self.pending.len() >= self.store.settings.pending_max {
            self.store.advance();
            return Err(Error::Busy);
        }
        let operation = Operation::new(&self.store, key, kind, found);
        let ticket = self.pending.add(&self.store, self.inbox(), operation);
        Ok(Answer::Pending(ticket))
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
    pub(super) fn after_write(&mut self, error: Option<&Error>) {
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

/// Keys that are looked up side by side: more than the processor fetches at a time.
const BATCH: usize = 32;

/// What a look at memory came to.
pub(super) enum Looked {
    Here(Answer),
    Below(Found),
}

/// Looks for a key whose chain begins at `front`, 0 if there is none. The caller is pinned, and has
/// loaded `first` before.
#[inline]
pub(super) fn look(
    store: &Store,
    key: &[u8],
    front: u64,
    first: u64,
    value: &mut Vec<u8>,
) -> Looked {
    match store.trace(front, key, first, 0) {
        Traced::Absent => Looked::Here(Answer::Absent),
        Traced::InMemory(address) => Looked::Here(match store.memory.read(address, value) {
            true => Answer::Done,
            false => Answer::Absent,
        }),
        Traced::Below(address) => Looked::Below(Found {
            first,
            front,
            address,
        }),
    }
}

/// From where on records change in place.
fn in_place_from(store: &Store) -> u64 {
    if is_injected(InjectedFault::InPlaceReadOnly) {
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
