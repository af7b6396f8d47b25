//! The engine: a worker's page operations, and the endpoints on which their verbs go.
//!
//! An operation says what it wants done next ([`Next`]); here it is done: verbs are posted (`verbs`), parities
//! encoded while data splits fly, operations that wait are tried again in the next turn, and those that have
//! ended are told of to the worker's requests ([`Ended`]).
//!
//! Drop order matters: the endpoints go first, after which nothing can land in buffers.

mod close;
mod verbs;

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_codec::{DATA_MAX, PARITY_MAX};
use cenote_fabric::CompletionQueue;

use super::data_path::DataPath;
use super::endpoints::Endpoints;
use super::order::{Kind, Order};
use super::page::{Heard, Next, PageOp};
use crate::IoError;
use crate::backing::{Store, Told};
use crate::core::Core;
use crate::limits::{OPS_MAX, READ_OPS};

/// Page operations, and what they are done with.
pub(super) struct Engine {
    endpoints: Endpoints,
    completions: Completions,
    pub path: DataPath,
    ops: Ops,
    agenda: Agenda,
    // Those that have ended, for the requests that they are part of.
    ended: Vec<Ended>,
}

/// An operation has ended, or its request need not wait for its end.
pub(super) struct Ended {
    pub request: u16,
    pub kind: Kind,
    pub result: Result<(), IoError>,
}

/// The operations of a worker, by their number.
struct Ops {
    all: Box<[PageOp]>,
    // Numbers of those that are not in use, from `READ_OPS` on.
    free: Vec<u16>,
    // The same below it.
    free_for_reads: Vec<u16>,
}

/// Verbs that have ended.
struct Completions {
    queue: CompletionQueue,
    // Of endpoints that complete at once; empty between posts.
    inline: CompletionQueue,
}

/// Operations that are to go on.
struct Agenda {
    // Their last verb completed at once.
    ready: Vec<u16>,
    // They wait for something other than a completion.
    parked: Vec<u16>,
    // Those that waited before this turn.
    retry: Vec<u16>,
    // Their data splits are posted, and their parities are not.
    encode: Vec<u16>,
}

impl Completions {
    fn new() -> Self {
        Self {
            // A slab that is being moved is written twice.
            queue: CompletionQueue::with_capacity(OPS_MAX * (DATA_MAX + PARITY_MAX + 1)),
            inline: CompletionQueue::with_capacity(1),
        }
    }
}

impl Agenda {
    fn new() -> Self {
        let list = || Vec::with_capacity(OPS_MAX);
        Self {
            ready: list(),
            parked: list(),
            retry: list(),
            encode: list(),
        }
    }
}

impl Ops {
    fn new() -> Self {
        let (all, for_reads) = (0..OPS_MAX as u16, READ_OPS as u16);
        Self {
            free: (for_reads..all.end).rev().collect(),
            free_for_reads: (0..for_reads).rev().collect(),
            all: all.map(|op| PageOp::free(op, op)).collect(),
        }
    }

    /// `is_behind`: see [`Order`].
    fn take(&mut self, kind: Kind, is_behind: bool) -> Option<u16> {
        match kind {
            Kind::Read if is_behind => self.free_for_reads.pop(),
            Kind::Read => self.free.pop().or_else(|| self.free_for_reads.pop()),
            _ => self.free.pop(),
        }
    }

    fn give_back(&mut self, op: u16) {
        match usize::from(op) < READ_OPS {
            true => self.free_for_reads.push(op),
            false => self.free.push(op),
        }
    }
}

impl Index<u16> for Ops {
    type Output = PageOp;

    #[inline]
    fn index(&self, op: u16) -> &PageOp {
        &self.all[usize::from(op)]
    }
}

impl IndexMut<u16> for Ops {
    #[inline]
    fn index_mut(&mut self, op: u16) -> &mut PageOp {
        &mut self.all[usize::from(op)]
    }
}

impl Engine {
    pub fn new(mut path: DataPath, endpoints: Endpoints) -> Self {
        path.collect_mail();
        let mut engine = Self {
            endpoints,
            completions: Completions::new(),
            path,
            ops: Ops::new(),
            agenda: Agenda::new(),
            ended: Vec::with_capacity(OPS_MAX),
        };
        engine.adopt_arrivals();
        engine
    }

    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Operations that are not in use, and that writes may use.
    pub fn free_count(&self) -> usize {
        self.ops.free.len()
    }

    /// Whether operations wait for something other than a completion that some request waits for, too.
    pub fn has_parked(&self) -> bool {
        let mut parked = self.agenda.parked.iter();
        parked.any(|&op| !self.ops[op].is_stranded())
    }

    /// Whether writes wait for slabs that are out of reach.
    pub fn has_stranded(&self) -> bool {
        let mut parked = self.agenda.parked.iter();
        parked.any(|&op| self.ops[op].is_stranded())
    }

    /// Whether every operation that writes may use waits for slabs that are out of reach.
    pub fn is_stranded(&self) -> bool {
        self.ops.free.is_empty() && self.ops.all[READ_OPS..].iter().all(PageOp::is_stranded)
    }

    /// Whether writes were acknowledged that have not landed everywhere, and will if they are waited for.
    pub fn is_landing(&self) -> bool {
        let mut landing = self.path.landing.iter();
        landing.any(|write| !self.ops[write.op].is_stranded())
    }

    /// Whether some answer or the disk's is waited for, or may yet come.
    pub fn is_owed(&self) -> bool {
        self.is_working() || self.path.views.lingering() > 0
    }

    /// Whether some operation works with hosts or with the disk.
    pub fn is_working(&self) -> bool {
        self.path.views.working() > 0 || self.path.at_disk > 0
    }

    /// Starts an operation on part of one page; false when none is free for it.
    pub fn start(&mut self, order: &Order) -> bool {
        let Some(op) = self.ops.take(order.kind, order.is_behind) else {
            return false;
        };
        self.ops[op].accept(order, &self.path);
        let next = self.ops[op].begin(&mut self.path);
        self.apply(op, next);
        true
    }

    /// Hears hosts, waiting up to `timeout` for the first.
    ///
    /// `patience`: with it, the host that was sent to last is waited for, and after so long any.
    pub fn hear(&mut self, timeout: Duration, patience: Option<Duration>) {
        let (clock, queue) = (self.path.core.clock, &mut self.completions.queue);
        let dead = match patience {
            Some(patience) => self.endpoints.wait(timeout, patience, clock, queue),
            None => self.endpoints.poll(timeout, clock, queue),
        };
        for session in dead {
            self.fail_session(session);
        }
    }

    /// Hears the disk, and tries again what waited for something other than a completion.
    pub fn begin_turn(&mut self) {
        self.completions.queue.received.clear();
        self.hear_disk();
        std::mem::swap(&mut self.agenda.parked, &mut self.agenda.retry);
        while let Some(op) = self.agenda.retry.pop() {
            let next = self.ops[op].resume(&mut self.path);
            self.apply(op, next);
        }
    }

    /// Rings doorbells, encodes while data splits fly, and handles what has completed; false when nothing
    /// had.
    pub fn advance(&mut self) -> bool {
        if !self.agenda.encode.is_empty() {
            self.endpoints.flush(&mut self.completions.queue);
            while let Some(op) = self.agenda.encode.pop() {
                self.post_parities(op);
            }
        }
        self.endpoints.flush(&mut self.completions.queue);
        if self.completions.queue.is_empty() && self.agenda.ready.is_empty() {
            return false;
        }
        while let Some(op) = self.agenda.ready.pop() {
            self.step(op);
        }
        while let Some(completion) = self.completions.queue.pop() {
            self.complete(completion);
        }
        true
    }

    /// Has `hear` know of each operation that has ended since the last time.
    #[inline]
    pub fn tell_ended(&mut self, mut hear: impl FnMut(&Core, &Ended)) {
        for ended in &self.ended {
            hear(&self.path.core, ended);
        }
        self.ended.clear();
    }

    /// Uses the endpoints that were delivered.
    pub fn take_mail(&mut self) {
        if self.path.core.mailboxes.has_mail(self.path.worker) {
            self.path.collect_mail();
        }
        self.adopt_arrivals();
    }

    /// Uses the endpoints that the data path has taken. Before anything is posted on them.
    #[inline]
    fn adopt_arrivals(&mut self) {
        while let Some((session, endpoint)) = self.path.take_arrival() {
            self.endpoints.adopt(session, endpoint);
        }
    }

    /// Moves on an operation with no verb out, or a read that has what it needs.
    fn step(&mut self, op: u16) {
        self.revoke_late(op);
        let next = self.ops[op].on_verbs(&mut self.path);
        self.apply(op, next);
    }

    /// Does what an operation wants done.
    fn apply(&mut self, mut op: u16, mut next: Next) {
        loop {
            let then = match next {
                Next::Wait => return,
                Next::Read { splits } => return self.read(op, splits),
                Next::Write { members } => return self.write(op, members),
                Next::Park => {
                    self.ops[op].park(&mut self.path);
                    return self.agenda.parked.push(op);
                }
                Next::Pause => return self.agenda.parked.push(op),
                Next::Refuse(error) => {
                    self.tell(op, Err(error));
                    return self.agenda.parked.push(op);
                }
                Next::End(result) => return self.end(op, result),
                Next::Apart(then) => then,
            };
            let Some(other) = self.detach(op) else {
                // It is stepped again when its verbs have ended.
                return;
            };
            op = other;
            next = self.ops[op].go_on(then, &mut self.path);
        }
    }

    /// The operation that goes on with the page, with no verb out: another one, with the same bytes,
    /// while verbs of this one are. `None` when no other is free: then this one goes on when they
    /// have ended.
    fn detach(&mut self, op: u16) -> Option<u16> {
        if self.ops[op].page.verbs.is_over() {
            return Some(op);
        }
        let next = self.ops.take(self.ops[op].page.kind, false)?;
        let mut other = self.ops[next];
        self.ops[op].detach(&mut other, &mut self.path);
        self.ops[next] = other;
        Some(next)
    }

    /// Ends an operation of which nothing that is out can land.
    fn end(&mut self, op: u16, result: Result<(), IoError>) {
        let heard = self.ops[op].page.heard;
        if self.ops[op].end(&mut self.path, result.is_ok()) {
            self.ops.give_back(op);
        }
        match heard {
            Heard::Nothing => self.tell(op, result),
            Heard::Failed => {}
            Heard::Written => {
                self.path.landing.retain(|write| write.op != op);
                self.note_unlanded(op, result);
            }
        }
    }

    /// A write has ended that was acknowledged before: nobody else hears that it has failed after all.
    fn note_unlanded(&self, op: u16, result: Result<(), IoError>) {
        // Of a volume that ends, the next owner does it again.
        if let Err(error) = result
            && error != IoError::Closed
        {
            let page = self.ops[op].page.number;
            tracing::error!(page, %error, "a write that was acknowledged before all of it had landed cannot be completed: its page is lost");
            let counters = &self.path.core.measures.counters;
            counters.requests_failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the operation's request know how it ended.
    fn tell(&mut self, op: u16, result: Result<(), IoError>) {
        let page = &self.ops[op].page;
        self.ended.push(Ended {
            request: page.request,
            kind: page.kind,
            result,
        });
    }

    /// Takes in what the disk queues have ended.
    fn hear_disk(&mut self) {
        let Some(store) = &self.path.core.backing else {
            return;
        };
        let worker = self.path.worker;
        if !store.has_told(worker) {
            return;
        }
        let store = Arc::clone(store);
        store.hear(worker);
        while let Some(told) = store.told(worker) {
            self.on_told(&store, told);
        }
    }

    fn on_told(&mut self, store: &Store, told: Told) {
        let op = told.token.op();
        if self.ops[op].page.take_told(told.token) {
            self.path.at_disk -= 1;
            let (state, path) = (&mut self.ops[op], &mut self.path);
            let next = match told.read {
                Some((lane, entry)) => {
                    let buffer = store.lanes[lane].reads.buffer(entry);
                    state.on_fetched(path, buffer, told.is_ok)
                }
                None => state.on_stored(path, told.is_ok),
            };
            self.apply(op, next);
        }
        // Also of an operation of an earlier worker of this number.
        if let Some((lane, entry)) = told.read {
            store.lanes[lane].reads.free(entry);
        }
    }
}

#[cfg(test)]
mod tests;
