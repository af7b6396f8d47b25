//! Calls of clients: each is answered at once, or later by the persister.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cenote_fabric::calls::{Answered, Answerer, Answering, Spin, Spinner};
use cenote_fabric::{ClientId, Error, Time};

use super::books::Waiter;
use super::outbox::Outboxes;
use super::shard::{Reply, Shard, shard_of};
use super::times::{Operation, Timed, Times, Turn};
use crate::landing::Area;
use crate::medium::Medium;
use crate::protocol::Request;

/// The landings of those that are there.
pub(super) type Clients = Arc<RwLock<HashMap<ClientId, Arc<Area>>>>;

/// Answers the calls of one server thread.
pub(super) struct Calls<M, A> {
    pub index: usize,
    pub answerer: A,
    pub seed: u64,
    pub shards: Vec<Arc<Shard<M>>>,
    pub clients: Clients,
    pub outboxes: Arc<Outboxes>,
    pub times: Arc<Times>,
}

impl<M: Medium, A: Answering> Calls<M, A> {
    /// Takes the calls that are there, or waits for some; whether there was anything.
    ///
    /// # Errors
    /// Those of [`Answering::turn`].
    pub fn turn(&mut self, patience: Option<Duration>, clock: fn() -> Time) -> Result<bool, Error> {
        let now = clock();
        let late = self.outboxes.threads[self.index].take();
        let found = !late.is_empty();
        for (call, answer, timed) in late {
            self.times.note(timed, now);
            self.answerer.answer(call, &answer);
        }
        let (seed, shards, clients) = (self.seed, &self.shards, &self.clients);
        let index = self.index;
        let mut turn = Turn::default();
        let any = self.answerer.turn(patience, &mut |call, answer| {
            let request = match Request::decode(call.request) {
                Ok(request) => request,
                Err(error) => return Answered::Never(error.0),
            };
            let operation = Operation::of(&request);
            let since = turn.began(clock);
            let timed = Timed { operation, since };
            let now = match operation {
                // Its value is waited for from here on: a client that is in time after its call is
                // not late because this thread stood still before it.
                Operation::Space => clock(),
                _ => since,
            };
            let waiter = Waiter::Call {
                thread: index,
                call: call.id,
                timed,
            };
            let answered = answer_call(
                seed,
                shards,
                clients,
                now,
                call.client,
                request,
                waiter,
                answer,
            );
            if matches!(answered, Answered::Now) {
                turn.count(operation);
            }
            answered
        })?;
        turn.end(&self.times, clock);
        Ok(found || any)
    }
}

impl<M: Medium> Calls<M, Answerer> {
    /// Until the store stops.
    ///
    /// # Errors
    /// Those of [`Answering::turn`]: who called this thread is answered no more.
    pub fn serve(mut self, stop: &AtomicBool) -> Result<(), Error> {
        let mut spinner = Spinner::new(Spin::default());
        let mut patience = Some(Duration::ZERO);
        while !stop.load(Ordering::Acquire) {
            let found = self.turn(patience, Time::now)?;
            drop(self.answerer.take_ended());
            patience = match found {
                true => {
                    spinner.found();
                    Some(Duration::ZERO)
                }
                false => spinner.looks_on(Time::now()).then_some(Duration::ZERO),
            };
        }
        Ok(())
    }
}

#[expect(clippy::too_many_arguments, reason = "a call, and what it may touch")]
fn answer_call<M: Medium>(
    seed: u64,
    shards: &[Arc<Shard<M>>],
    clients: &Clients,
    now: Time,
    client: ClientId,
    request: Request<'_>,
    waiter: Waiter,
    answer: &mut Vec<u8>,
) -> Answered {
    let shard = match request {
        Request::Space { key, .. }
        | Request::Put { key, .. }
        | Request::Locate { key }
        | Request::Get { key }
        | Request::Delete { key, .. } => shard_of(seed, key, shards.len()),
        Request::Settle { shard, .. }
        | Request::Sync { shard }
        | Request::List { shard, .. }
        | Request::Clean { shard }
        | Request::Figures { shard } => usize::from(shard),
    };
    let Some(shard) = shards.get(shard) else {
        return Answered::Never("a shard that is not there");
    };
    let area = match request {
        Request::Space { .. } | Request::Put { .. } => {
            let clients = clients.read().unwrap_or_else(PoisonError::into_inner);
            clients.get(&client).cloned()
        }
        _ => None,
    };
    match shard.handle(request, client, area.as_ref(), waiter, now) {
        Reply::Now(now) => {
            now.encode(answer);
            Answered::Now
        }
        Reply::Later => Answered::Later,
    }
}
