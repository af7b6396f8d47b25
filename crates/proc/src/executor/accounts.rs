//! What each client has under way, and the answers that wait to travel together.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::HashMap;

use super::{Action, Limits};
use crate::{ClientId, Response};

/// All clients of a thread.
#[derive(Debug)]
pub(super) struct Accounts {
    limits: Limits,
    by_client: HashMap<ClientId, Account>,
    /// Clients with answers that wait, oldest first.
    open: VecDeque<ClientId>,
}

#[derive(Debug, Default)]
struct Account {
    /// Queued, run and parked.
    under_way: usize,
    /// Queued or run: more answers come soon.
    queued: usize,
    responses: Vec<Response>,
    bytes: usize,
    /// When the first of the answers was put in.
    since_round: u64,
    /// Nobody waits for answers any more.
    has_left: bool,
}

impl Accounts {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            by_client: HashMap::default(),
            open: VecDeque::new(),
        }
    }

    /// Whether one more may come; counts it then.
    pub(super) fn admit(&mut self, client: ClientId) -> bool {
        self.take_in(client).is_some()
    }

    /// The same for one that is queued at once.
    pub(super) fn admit_queued(&mut self, client: ClientId) -> bool {
        self.take_in(client)
            .map(|account| account.queued += 1)
            .is_some()
    }

    fn take_in(&mut self, client: ClientId) -> Option<&mut Account> {
        let is_full = self.by_client.len() >= self.limits.clients;
        let account = match self.by_client.entry(client) {
            Entry::Vacant(_) if is_full => return None,
            entry => entry.or_default(),
        };
        if account.under_way >= self.limits.client_requests {
            return None;
        }
        account.under_way += 1;
        Some(account)
    }

    pub(super) fn queued(&mut self, client: ClientId) {
        if let Some(account) = self.by_client.get_mut(&client) {
            account.queued += 1;
        }
    }

    pub(super) fn unqueued(&mut self, client: ClientId) {
        if let Some(account) = self.by_client.get_mut(&client) {
            account.queued = account.queued.saturating_sub(1);
        }
    }

    pub(super) fn leave(&mut self, client: ClientId) {
        if let Some(account) = self.by_client.get_mut(&client) {
            account.has_left = true;
        }
    }

    pub(super) fn has_left(&self, client: ClientId) -> bool {
        let account = self.by_client.get(&client);
        account.is_some_and(|account| account.has_left)
    }

    /// A request went elsewhere.
    pub(super) fn departed(&mut self, client: ClientId) {
        if let Some(account) = self.by_client.get_mut(&client) {
            account.under_way = account.under_way.saturating_sub(1);
            if account.under_way == 0 && account.responses.is_empty() {
                self.by_client.remove(&client);
            }
        }
    }

    /// A request ended: its answer waits for others, until they fill a message.
    pub(super) fn answer(
        &mut self,
        client: ClientId,
        response: Response,
        round: u64,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(account) = self.by_client.get_mut(&client) else {
            let responses = vec![response];
            return actions.push_back(Action::Answer { client, responses });
        };
        account.under_way = account.under_way.saturating_sub(1);
        if account.responses.is_empty() {
            account.since_round = round;
            self.open.push_back(client);
        }
        account.bytes += response.state.len() + RESPONSE_BYTES;
        account.responses.push(response);
        if account.bytes >= self.limits.batch_bytes {
            account.bytes = 0;
            // The next batch will be about as long.
            let room = Vec::with_capacity(account.responses.len());
            let responses = std::mem::replace(&mut account.responses, room);
            actions.push_back(Action::Answer { client, responses });
        }
    }

    /// Sends what waits of clients without requests that are queued, and what waited long.
    pub(super) fn flush(&mut self, round: u64, actions: &mut VecDeque<Action>) {
        for _ in 0..self.open.len() {
            let Some(client) = self.open.pop_front() else {
                break;
            };
            let Some(account) = self.by_client.get_mut(&client) else {
                continue;
            };
            let waits =
                account.queued > 0 && round < account.since_round + self.limits.batch_rounds;
            if !account.responses.is_empty() && waits {
                self.open.push_back(client);
                continue;
            }
            account.bytes = 0;
            let responses = std::mem::take(&mut account.responses);
            if account.under_way == 0 {
                self.by_client.remove(&client);
            }
            if !responses.is_empty() {
                actions.push_back(Action::Answer { client, responses });
            }
        }
    }
}

/// Of an answer's own numbers in a message.
const RESPONSE_BYTES: usize = 16;
