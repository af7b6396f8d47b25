//! Steps of a thread's own requests, and of another thread's that it helps.

use std::time::Duration;

use cenote_fabric::Time;

use super::commits::Hold;
use super::{Ended, Executor, Ready, Run, Shelf};
use crate::{ClientId, Stores, Table};

/// Whose requests are run.
#[derive(Clone, Copy)]
enum From<'a> {
    Own,
    Helped(&'a Shelf),
}

impl Executor {
    /// Takes up to `most` steps, and sends the answers whose clients have nothing more queued.
    /// Returns how many steps were taken. To be called after events even if none is to be taken. A
    /// step that was ended because it took too long is the last of its turn: whoever else waits for
    /// this thread has waited long enough.
    pub fn run(&mut self, runner: &mut impl Run, most: usize) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        // Half of the turn each, where there are some of both.
        let own = if self.shelf.is_empty() {
            most
        } else {
            most / 2
        };
        self.own.take(own, &mut batch);
        self.shelf.take(most - batch.len(), &mut batch);
        if !batch.is_empty() {
            runner.begin();
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.step_all(runner, batch, From::Own, &mut ended);
        let taken = ended.len();
        for ended in ended.drain(..) {
            self.settle(ended);
        }
        self.ended = ended;
        self.launch_all();
        self.round += 1;
        self.accounts.flush(self.round, &mut self.actions);
        taken
    }

    /// Takes up to `most` steps for another thread, whose executor is to [`Executor::settle`] them.
    pub fn help(&mut self, other: &Shelf, runner: &mut impl Run, most: usize) -> Vec<Ended> {
        let mut batch = std::mem::take(&mut self.batch);
        other.take(most, &mut batch);
        runner.begin();
        let mut ended = Vec::with_capacity(batch.len());
        self.step_all(runner, batch, From::Helped(other), &mut ended);
        ended
    }

    /// Takes the steps of a batch. It ends with a step that took too long, or when all of them
    /// have: the others go back.
    fn step_all(
        &mut self,
        runner: &mut impl Run,
        mut batch: Vec<Ready>,
        from: From<'_>,
        ended: &mut Vec<Ended>,
    ) {
        let mut has_loaded = false;
        let until = (batch.len() > LOOK_STEPS).then(|| self.clock.now().after(BATCH_TIME));
        let mut steps = batch.drain(..);
        while let Some(ready) = steps.next() {
            let step = self.step(runner, ready, from);
            has_loaded |= step.loaded_by.is_some();
            let looks = (ended.len() + 1).is_multiple_of(LOOK_STEPS);
            let is_late = looks && until.is_some_and(|until| self.clock.now() >= until);
            if is_late || step.is_slow() {
                self.put_back(from, step.request.client, steps.by_ref());
            }
            ended.push(step);
        }
        drop(steps);
        self.batch = batch;
        if has_loaded {
            // One look at the clock for all: it costs more than a step.
            let now = self.clock.now();
            let times = ended.iter_mut().filter_map(|step| step.loaded_by.as_mut());
            times.for_each(|loaded_by| *loaded_by = now);
        }
    }

    fn put_back(
        &mut self,
        from: From<'_>,
        slow: ClientId,
        rest: impl DoubleEndedIterator<Item = Ready>,
    ) {
        if let From::Helped(shelf) = from {
            return shelf.put_back(slow, rest);
        }
        let is_own = |ready: &Ready| {
            let table = self.caches.get(&ready.request.cache);
            table.is_some_and(Table::keeps_back)
        };
        let (own, shared): (Vec<_>, Vec<_>) = rest.partition(is_own);
        self.own.put_all_back(slow, own.into_iter());
        self.shelf.put_back(slow, shared.into_iter());
    }

    fn step(&mut self, runner: &mut impl Run, ready: Ready, from: From<'_>) -> Ended {
        let Ready {
            mut request,
            addr,
            data,
        } = ready;
        let now = self.now;
        let is_open = |table: &&mut Table| {
            // What a thread stored that is in no copy yet, no other one finds.
            let is_own = matches!(from, From::Own) || !table.keeps_back();
            is_own && !table.is_lapsing(now) && !table.is_full()
        };
        let Some(table) = self.caches.get_mut(&request.cache).filter(is_open) else {
            return Ended {
                request,
                outcome: None,
                stores: Stores::default(),
                loaded_by: None,
                hold: None,
            };
        };
        request.steps = request.steps.saturating_add(1);
        let before = table.keeps_back().then(|| request.clone());
        table.begin_view();
        let outcome = runner.step(&mut request, table, addr, &data);
        let hold = before
            .zip(table.take_step())
            .and_then(|(before, writes)| Hold::new(before, writes, &outcome, table));
        Ended {
            request,
            outcome: Some(outcome),
            stores: table.take_stores(),
            loaded_by: table.take_loaded().then_some(Time::default()),
            hold: hold.map(Box::new),
        }
    }
}

/// A batch ends when its steps have taken so long: its thread has connections to serve. Arbitrary:
/// twice what a guest's step may take, and far less than makes a peer take it for dead.
pub(super) const BATCH_TIME: Duration = Duration::from_millis(20);
/// Steps between two looks at the clock for that: a look costs about as much as a short step.
const LOOK_STEPS: usize = 4;
