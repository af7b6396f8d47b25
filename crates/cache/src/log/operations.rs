//! Operations of a session that wait for tiers, and how each goes on.

use std::sync::Arc;

use foldhash::HashMap;

use super::error::Error;
use super::fetch::{Fetch, Progress};
use super::injected_faults::{InjectedFault, is_injected};
use super::record::Shape;
use super::session::{Answer, Looked, Merged, Pause, Session, look};
use super::store::Store;
use super::tiers::{End, Inbox};

/// Names an operation that waits for a tier. Unique in its session.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ticket(u64);

/// The end of an operation that waited.
#[derive(Debug)]
pub struct Completion {
    /// As [`Answer::Pending`] said.
    pub ticket: Ticket,
    /// The value that a read found, `None` if the key is not there; for a merge, its new value.
    pub result: Result<Option<Vec<u8>>, Error>,
}

/// Where a chain leaves memory.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// The log's first address, loaded before the chain was.
    pub first: u64,
    /// Front of the chain.
    pub front: u64,
    /// Its first record below the head.
    pub address: u64,
}

/// An operation that waits.
pub(super) struct Operation {
    key: Vec<u8>,
    kind: Kind,
    /// What the operation found when it looked.
    found: Found,
    stage: Stage,
}

enum Stage {
    /// A record of the chain is read.
    Fetching(Fetch),
    /// The chain has changed: the key is to be looked up again.
    Restart,
}

pub(super) enum Kind {
    Read,
    Merge { operand: Vec<u8> },
}

impl Operation {
    pub fn new(store: &Store, key: &[u8], kind: Kind, found: Found) -> Self {
        Self {
            key: key.to_vec(),
            kind,
            found,
            stage: Stage::Fetching(Fetch::record(store, found.address)),
        }
    }

    fn fetch(&mut self) -> Option<&mut Fetch> {
        match &mut self.stage {
            Stage::Fetching(fetch) => Some(fetch),
            Stage::Restart => None,
        }
    }
}

/// All of a session.
#[derive(Default)]
pub(super) struct Pending {
    tickets: u64,
    operations: HashMap<Ticket, Operation>,
    /// Whose answer a token is.
    asked: HashMap<u64, Ticket>,
    /// Those for which no tier works.
    ready: Vec<Ticket>,
}

impl Pending {
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Notes an operation, and asks a tier for it if one can be asked now.
    pub fn add(&mut self, store: &Store, inbox: Inbox, mut operation: Operation) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if let Some(fetch) = operation.fetch() {
            // An error comes up at the next poll.
            let _progress = fetch.advance(store, inbox);
        }
        self.park(ticket, operation);
        ticket
    }

    /// Keeps an operation until the tier that it asked has answered, or the next poll.
    fn park(&mut self, ticket: Ticket, mut operation: Operation) {
        match operation.fetch().and_then(|fetch| fetch.asked_with()) {
            Some(token) => drop(self.asked.insert(token, ticket)),
            None => self.ready.push(ticket),
        }
        self.operations.insert(ticket, operation);
    }

    /// Takes a tier's answer; one that nobody here asked for comes back.
    fn deliver(&mut self, store: &Store, end: End) -> Option<End> {
        let Some(ticket) = self.asked.remove(&end.token) else {
            return Some(end);
        };
        let operation = self.operations.get_mut(&ticket).expect("it waits");
        if let Some(fetch) = operation.fetch() {
            fetch.take(store, end);
        }
        self.ready.push(ticket);
        None
    }

    /// Takes out the operations for which no tier works.
    fn take_ready(&mut self) -> Vec<(Ticket, Operation)> {
        let operations = &mut self.operations;
        let take = |ticket| (ticket, operations.remove(&ticket).expect("it waits"));
        self.ready.drain(..).map(take).collect()
    }
}

impl Session {
    /// Moves pages and pending operations on, and adds operations that ended to `ended`.
    pub fn poll(&mut self, ended: &mut Vec<Completion>) {
        self.store.advance();
        self.collect();
        for (ticket, operation) in self.pending.take_ready() {
            let result = match self.resume(operation) {
                Ok(Resumed::Waits(operation)) => {
                    self.pending.park(ticket, *operation);
                    continue;
                }
                Ok(Resumed::Ended(value)) => Ok(value),
                Err(error) => Err(error),
            };
            ended.push(Completion { ticket, result });
        }
    }

    /// Takes answers of tiers to those who asked.
    pub(super) fn collect(&mut self) {
        for end in self.store.tiers.take(self.inbox()) {
            // What nobody asked for was asked for by the session before this one.
            if let Some(end) = self.pending.deliver(&self.store, end)
                && let Some(answer) = self.others.get_mut(&end.token)
            {
                *answer = Some(end);
            }
        }
    }

    /// Goes on with an operation that no tier is working for.
    fn resume(&mut self, mut operation: Operation) -> Result<Resumed, Error> {
        let store = Arc::clone(&self.store);
        loop {
            let Stage::Fetching(mut fetch) =
                std::mem::replace(&mut operation.stage, Stage::Restart)
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
                    operation.stage = Stage::Fetching(fetch);
                    return Ok(Resumed::Waits(Box::new(operation)));
                }
                Ok(Progress::Gone) => {}
                // What was given up meanwhile had been moved.
                Err(_) if store.is_given_up(fetch.address()) => {}
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
        let is_it = record.key == operation.key || is_injected(InjectedFault::KeyUnchecked);
        let previous = record.link.previous();
        if !is_it && previous >= operation.found.first {
            operation.stage = Stage::Fetching(Fetch::record(&store, previous));
            return Ok(Judged::GoesOn);
        }
        let value = (is_it && !record.link.is_deleted()).then_some(record.value);
        let Kind::Merge { operand } = &operation.kind else {
            if let Some(value) = value {
                self.copy_read(operation, value);
            }
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

    /// Does an operation again. Its end, or `None` with another record to fetch.
    fn restart(&mut self, operation: &mut Operation) -> Result<Option<Option<Vec<u8>>>, Error> {
        let store = Arc::clone(&self.store);
        operation.found = match &operation.kind {
            Kind::Read => {
                let _pin = store.epochs.pin(self.slot);
                let first = store.first();
                let front = store.front(store.place(&operation.key));
                let mut value = Vec::new();
                match look(&store, &operation.key, front, first, &mut value) {
                    Looked::Here(Answer::Done) => return Ok(Some(Some(value))),
                    Looked::Here(_) => return Ok(Some(None)),
                    Looked::Below(found) => found,
                }
            }
            Kind::Merge { operand } => loop {
                match self.try_merge(&operation.key, operand)? {
                    Merged::Done => return Ok(Some(Some(self.merged.clone()))),
                    Merged::Again => {}
                    Merged::Below(found) => break found,
                }
            },
        };
        operation.stage = Stage::Fetching(Fetch::record(&store, operation.found.address));
        Ok(None)
    }

    /// Copies a record that was read from a tier to the tail, if the store is to and there is room.
    /// A key that was written since keeps what was written: its chain has another front.
    fn copy_read(&mut self, operation: &Operation, value: &[u8]) {
        let store = &*self.store;
        if !store.settings.copies_reads {
            return;
        }
        let copied = {
            let _pin = store.epochs.pin(self.slot);
            match store.index.find(store.place(&operation.key)) {
                Some(entry)
                    if entry.address() == operation.found.front
                        || is_injected(InjectedFault::CopyOverNewer) =>
                {
                    store.append(&entry, &operation.key, value, false)
                }
                _ => return,
            }
        };
        self.after_write(copied.err().as_ref());
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
        let entry = store.entry_for(place, Shape::of(&operation.key, &self.merged))?;
        if entry.address() != operation.found.front && !is_injected(InjectedFault::MergeOverNewer) {
            return Ok(false);
        }
        store.append(&entry, &operation.key, &self.merged, false)
    }

    /// Blocks until every operation that waits has ended, and adds the ends to `ended`. One that waits
    /// for room does so for as long as the last tier takes no page.
    pub fn finish(&mut self, ended: &mut Vec<Completion>) {
        let mut pause = Pause::default();
        while self.pending.len() > 0 {
            let before = ended.len();
            self.poll(ended);
            pause.after(ended.len() > before);
        }
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
