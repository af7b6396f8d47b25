//! What one memcached request does to one item.
//!
//! ```text
//! Request + newest state of its key -> changes proposed + reply written
//! ```
//!
//! [`Engine::serve`] takes a request for one key, looks the key up in its [`Partition`], proposes
//! what changes and writes the reply, as memcached 1.6.18 does. It is called by a worker of the
//! server for the partitions that are its own. Requests of several keys are cut before, and what
//! is about no item (`stats`, `version`, `flush_all`) is not for here.
//!
//! Invariant: a request that ends as [`Outcome::Retry`] has written nothing and can be asked again
//! whole. Not here: sockets, threads and clocks.

mod arithmetic;
mod binary;
mod classic;
pub mod counters;
mod event;
mod meta;
mod partition;

use std::sync::Arc;

use counters::ClassCounters;
pub use counters::Counters;
pub use event::{Event, EventKind};
use partition::stored_expiry;
pub use partition::{Item, NEVER, Newest, Partition};

use crate::group::owner::{Change, Gone, Refusal};
use crate::group::replica::Xid;
use crate::memory::classes::{class_of, item_bytes};
use crate::protocol::exptime::Expiry;
use crate::protocol::reply::{self, Answer};
use crate::protocol::{Error, KeyScratch, Limits, Request};

/// Where a reply goes.
pub trait Reply {
    /// Takes text at its end.
    fn text(&mut self) -> &mut Vec<u8>;
    /// Takes a value, in parts that are joined, and the line end behind it.
    fn value(&mut self, parts: &[&[u8]]);
    /// Takes a value that nothing follows.
    fn bytes(&mut self, parts: &[&[u8]]);
}

impl Reply for Vec<u8> {
    fn text(&mut self) -> &mut Vec<u8> {
        self
    }

    fn value(&mut self, parts: &[&[u8]]) {
        self.bytes(parts);
        self.extend_from_slice(b"\r\n");
    }

    fn bytes(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.extend_from_slice(part);
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Outcome {
    /// The reply is written. It may be sent when the operation `waits_for` is committed, or at once.
    Answered {
        /// The last operation that the reply tells of, if that is not committed.
        waits_for: Option<Xid>,
    },
    /// The partition could not serve it now: see [`Refusal`].
    Retry(Refusal),
}

/// Which state of an item a request that only reads shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sight {
    /// The committed one, at once.
    Committed,
    /// The newest one, as soon as that is committed: a client sees what it has asked for before.
    Newest,
}

/// A request for one key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The request; of a retrieval the keys are not looked at.
    pub request: &'a Request<'a>,
    /// The key's bytes.
    pub key: &'a [u8],
    /// What it sees, if it only reads.
    pub sight: Sight,
}

/// Serves the requests of one worker.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    counters: Arc<Counters>,
    scratch: Vec<u8>,
    /// Somebody wants to see what requests do.
    is_watched: bool,
    events: Vec<Event>,
}

/// Most bytes that an engine keeps for values that it has put together.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

impl Engine {
    /// An engine that counts in `counters`.
    pub fn new(limits: Limits, counters: Arc<Counters>) -> Self {
        Self {
            limits,
            counters,
            scratch: Vec::new(),
            is_watched: false,
            events: Vec::new(),
        }
    }

    /// The limits that it keeps.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether what requests do is kept for [`Engine::take_events`].
    pub fn set_watched(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// Whether it is.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// What the last request did, where that is kept.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Where it counts.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Serves a request. A retrieval's `END` is not written.
    ///
    /// # Panics
    /// On a request that is about no item.
    pub fn serve<P: Partition, R: Reply>(
        &mut self,
        partition: &mut P,
        ask: &Ask<'_>,
        out: &mut R,
    ) -> Outcome {
        self.work(partition, ask.key, out, |work| match ask.request {
            Request::Get(get) => work.get(get, ask.sight),
            Request::Store(store) => work.store(store),
            Request::Delete { noreply, .. } => work.delete(*noreply),
            Request::Arithmetic {
                direction,
                delta,
                noreply,
                ..
            } => work.arithmetic(*direction, *delta, *noreply),
            Request::Touch {
                exptime, noreply, ..
            } => work.touch(*exptime, *noreply),
            Request::MetaGet(get) => work.meta_get(get, ask.sight),
            Request::MetaSet(set) => work.meta_set(set),
            Request::MetaDelete(delete) => work.meta_delete(delete),
            Request::MetaArithmetic(request) => work.meta_arithmetic(request),
            Request::MetaDebug(_) => work.meta_debug(ask.sight),
            Request::Binary(message) => work.binary(message, ask.sight),
            request => panic!("{request:?} is about no item"),
        })
    }

    fn work<P: Partition, R: Reply>(
        &mut self,
        partition: &mut P,
        key: &[u8],
        out: &mut R,
        serve: impl FnOnce(&mut Work<'_, P, R>) -> Result<(), Refusal>,
    ) -> Outcome {
        let mut work = Work {
            hash: partition.hash_of(key),
            partition,
            key,
            out,
            limits: &self.limits,
            counters: &self.counters,
            scratch: &mut self.scratch,
            events: self.is_watched.then_some(&mut self.events),
            waits_for: None,
            class: 0,
        };
        let result = serve(&mut work);
        let waits_for = work.waits_for;
        let committed = work.partition.committed_xid();
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES_MAX);
        if result.is_err() {
            self.events.clear();
        }
        match result {
            Ok(()) => Outcome::Answered {
                waits_for: waits_for.filter(|xid| *xid > committed),
            },
            Err(refusal) => Outcome::Retry(refusal),
        }
    }
}

/// One request at work.
struct Work<'a, P, R> {
    partition: &'a mut P,
    hash: u64,
    key: &'a [u8],
    out: &'a mut R,
    limits: &'a Limits,
    counters: &'a Counters,
    scratch: &'a mut Vec<u8>,
    events: Option<&'a mut Vec<Event>>,
    waits_for: Option<Xid>,
    /// Of the item that it stores last.
    class: usize,
}

impl<P: Partition, R: Reply> Work<'_, P, R> {
    /// The newest state of the key. What is answered depends on it, also where there is none.
    fn find(&mut self) -> Option<P::Found> {
        let newest = self.partition.newest(self.hash, self.key);
        self.waits_for = newest.pending;
        newest.found
    }

    /// The state of the key that a request sees which changes nothing.
    fn look(&mut self, sight: Sight) -> Option<P::Found> {
        match sight {
            Sight::Committed => self.partition.committed(self.hash, self.key),
            Sight::Newest => self.find(),
        }
    }

    /// When an item ends, as items have it.
    fn expiry(&self, of: impl FnOnce(u64) -> Expiry) -> u32 {
        let now = self.partition.now();
        stored_expiry(of(now), now)
    }

    fn note(&mut self, kind: EventKind, status: &'static str, size: usize) {
        if let Some(events) = &mut self.events {
            events.push(Event { kind, status, size });
        }
    }

    fn note_fetch(&mut self, is_asked: bool, found: Option<&P::Found>) {
        if self.events.is_some() {
            let (status, size) = match found {
                Some(found) => ("found", P::item(found).value_bytes as usize),
                None => ("not_found", 0),
            };
            self.note(EventKind::Fetch { is_asked }, status, size);
        }
    }

    /// Counts a retrieval that found nothing.
    fn count_miss(&mut self) {
        self.note_fetch(true, None);
        self.counters.get_misses.count();
        match self.partition.gone(self.hash, self.key) {
            Some(Gone::Ended) => self.counters.get_expired.count(),
            Some(Gone::Flushed) => self.counters.get_flushed.count(),
            None => {}
        }
    }

    /// The cas number that is shown of an item: 0 where clients are not to have any.
    fn shown_cas(&self, cas: u64) -> u64 {
        if self.limits.has_cas { cas } else { 0 }
    }

    /// What is counted of requests for items of the class of one.
    fn class(&self, item: &Item) -> &ClassCounters {
        self.counters.classes.of(item.class(self.key.len()))
    }

    /// An item is about to be stored.
    fn set_class(&mut self, client_flags: u32, value_bytes: usize) {
        self.class = class_of(item_bytes(self.key.len(), client_flags, value_bytes));
    }

    fn remove(&mut self) -> Result<(), Refusal> {
        self.propose(Change::Remove)
    }

    fn propose(&mut self, change: Change<'_>) -> Result<(), Refusal> {
        let xid = self.partition.propose(self.hash, self.key, change)?;
        self.waits_for = Some(xid);
        Ok(())
    }

    /// Puts a value into the scratch, behind what is there.
    fn append_to_scratch(&mut self, found: &P::Found) -> Result<(), Refusal> {
        let scratch = &mut *self.scratch;
        self.partition.value(found, |parts| {
            for part in parts {
                scratch.extend_from_slice(part);
            }
        })
    }

    /// Whether all of a value can be shown.
    fn check_value(&self, found: &P::Found) -> Result<(), Refusal> {
        self.partition.value(found, |_| ())
    }

    fn write_value(&mut self, found: &P::Found) -> Result<(), Refusal> {
        let out = &mut *self.out;
        self.partition.value(found, |parts| out.value(parts))
    }

    fn answer(&mut self, answer: Answer, noreply: bool) {
        if !noreply {
            reply::answer(self.out.text(), answer);
        }
    }

    fn error(&mut self, error: Error, noreply: bool) {
        if !noreply {
            reply::error(self.out.text(), error);
        }
    }

    /// Tells that there was no memory; every other refusal is the caller's.
    fn out_of_memory(&mut self, refusal: Refusal, noreply: bool) -> Result<(), Refusal> {
        if refusal != Refusal::NoSpace {
            return Err(refusal);
        }
        self.count_no_memory();
        self.error(Error::OutOfMemory, noreply);
        Ok(())
    }

    fn count_no_memory(&self) {
        self.counters.store_no_memory.count();
        self.counters.classes.of(self.class).store_no_memory.count();
    }
}

/// The key that a request is about; nothing where it is about none, or about several.
pub fn key_of<'s>(request: &'s Request<'_>, scratch: &'s mut KeyScratch) -> Option<&'s [u8]> {
    match request {
        Request::Store(store) => Some(store.key),
        Request::Delete { key, .. }
        | Request::Arithmetic { key, .. }
        | Request::Touch { key, .. } => Some(key),
        Request::MetaGet(get) => Some(get.key.bytes(scratch)),
        Request::MetaSet(set) => Some(set.key.bytes(scratch)),
        Request::MetaDelete(delete) => Some(delete.key.bytes(scratch)),
        Request::MetaArithmetic(request) => Some(request.key.bytes(scratch)),
        Request::MetaDebug(key) => Some(key.bytes(scratch)),
        Request::Binary(message) => Some(message.key),
        _ => None,
    }
}
