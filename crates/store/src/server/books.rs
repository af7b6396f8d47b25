//! What a shard knows of its clients' versions: which are not durable yet, and who waits for which.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use cenote_fabric::calls::CallId;
use cenote_fabric::{ClientId, PeerId, Time};
use foldhash::fast::RandomState;

use super::times::{Operation, Timed};
use crate::protocol::{Answer, Refusal};
use crate::sequence_set::SequenceSet;
use crate::sequenced::Sequenced;

/// Who is answered later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Waiter {
    /// A call that a server thread took.
    Call {
        thread: usize,
        call: CallId,
        timed: Timed,
    },
    /// A client that sent a notice about a version of this shard.
    Peer {
        peer: PeerId,
        shard: u16,
        timed: Timed,
    },
}

impl Waiter {
    /// Of a notice that came now.
    pub fn notice(peer: PeerId, shard: u16, now: Time) -> Self {
        let timed = Timed {
            operation: Operation::Settle,
            since: now,
        };
        Self::Peer { peer, shard, timed }
    }
}

/// A version that is not durable yet.
#[derive(Debug)]
struct Ticket {
    client: ClientId,
    since: Time,
    /// Who is told when it is durable. With any, the value is there, or was never meant to come.
    waiters: Vec<Waiter>,
    /// Its client says that the value is there.
    is_claimed: bool,
    /// Its time is over: it is given up if the next look finds it not whole.
    is_late: bool,
}

/// What is known of a client's versions.
#[derive(Debug, Default)]
struct Book {
    is_here: bool,
    waiting: SequenceSet,
    /// The first that is known of: what became of an earlier one is not. `None`: no version came yet.
    known_from: Option<u64>,
    /// Of those that are known, the ones that were given up: who asks for one is told so.
    given_up: BTreeSet<u64>,
    /// Those that were given up before it said that it had written them: it may write them yet.
    unwritten: BTreeSet<u64>,
    /// There were more of these than are known.
    has_more_unwritten: bool,
    /// All that were given up. What it was told of before is known to the client.
    lost: u64,
    /// Waits until nothing up to a sequence waits.
    syncs: Vec<(u64, Waiter)>,
}

/// A version that does not wait any more.
#[derive(Debug)]
pub(super) struct Closed {
    pub client: ClientId,
    /// Who is told.
    pub waiters: Vec<Waiter>,
    is_claimed: bool,
}

/// The books of all clients: a version is in the ticket list and in its client's book, or in neither.
#[derive(Debug, Default)]
pub(super) struct Books {
    tickets: Sequenced<Ticket>,
    clients: HashMap<ClientId, Book, RandomState>,
    /// Clients that went, and their last versions then: what of these is not whole by now never will be.
    gone: BTreeMap<ClientId, u64>,
    /// Clients that are here and may write to places of versions that were given up.
    late_writers: BTreeSet<ClientId>,
}

/// Who may wait for one version: its client, asking again and again.
const WAITERS_MAX: usize = 16;
/// Waits of one client for all of its versions: it may give calls up and make others.
const SYNCS_MAX: usize = 1024;
/// Those of a client that were given up and are remembered.
const GIVEN_UP_MAX: usize = 4096;
/// Versions of one client that may wait: three quarters of what the pool takes, so that others find room.
/// More than wait under lazy schemes before the persister makes them durable, or they would for ever.
pub(super) const CLIENT_VERSIONS_MAX: usize = 49_152;

impl Books {
    /// A client is there, perhaps again.
    pub fn client_came(&mut self, client: ClientId) {
        self.clients.entry(client).or_default().is_here = true;
    }

    /// Whether a client may have one version more.
    pub fn has_room_for(&self, client: ClientId) -> bool {
        let book = self.clients.get(&client);
        book.is_none_or(|book| book.waiting.len() < CLIENT_VERSIONS_MAX)
    }

    /// A version of a client waits from now on.
    pub fn open(&mut self, sequence: u64, client: ClientId, waiters: Vec<Waiter>, now: Time) {
        let book = self.clients.entry(client).or_default();
        book.waiting.insert(sequence);
        book.known_from.get_or_insert(sequence);
        if !book.is_here {
            // Its request was under way while it went: nobody will say so again.
            self.gone.insert(client, sequence);
        }
        let ticket = Ticket {
            client,
            since: now,
            is_claimed: !waiters.is_empty(),
            waiters,
            is_late: false,
        };
        self.tickets.insert(sequence, ticket);
    }

    /// A client says that a version's value is there: its time begins again.
    ///
    /// # Errors
    /// What it is told at once: the version does not wait, or is not known any more, or it is not this
    /// client's, which could have it given up, or too many wait.
    pub fn claim(&mut self, sequence: u64, client: ClientId, now: Time) -> Result<(), Answer> {
        let Some(ticket) = self.tickets.get_mut(sequence) else {
            self.has_written(sequence, client);
            let book = self.clients.get(&client);
            return Err(match book.is_some_and(|book| book.has_stored(sequence)) {
                true => Answer::Done { sequence },
                false => Answer::Refused(Refusal::Incomplete),
            });
        };
        if ticket.client != client {
            return Err(Answer::Refused(Refusal::Incomplete));
        }
        if ticket.waiters.len() >= WAITERS_MAX {
            return Err(Answer::Refused(Refusal::Busy));
        }
        ticket.since = now;
        ticket.is_claimed = true;
        Ok(())
    }

    /// Who claimed a version waits for it.
    pub fn wait(&mut self, sequence: u64, waiter: Waiter) {
        if let Some(ticket) = self.tickets.get_mut(sequence) {
            ticket.waiters.push(waiter);
        }
    }

    /// A client waits until all of its versions are durable: the last of them.
    ///
    /// # Errors
    /// None waits; so many were given up.
    pub fn sync(&mut self, client: ClientId, waiter: Waiter) -> Result<u64, u64> {
        let Some(book) = self.clients.get_mut(&client) else {
            return Err(0);
        };
        let Some(last) = book.waiting.last() else {
            return Err(book.lost);
        };
        book.syncs.push((last, waiter));
        Ok(last)
    }

    /// Whether a client may wait so once more.
    pub fn may_sync(&self, client: ClientId) -> bool {
        let book = self.clients.get(&client);
        book.is_none_or(|book| book.syncs.len() < SYNCS_MAX)
    }

    /// Whether a client waits until all of its versions are durable.
    pub fn has_syncs(&self) -> bool {
        self.clients.values().any(|book| !book.syncs.is_empty())
    }

    /// Of versions that are looked at, those that are given up if they are not whole: their time is over, or
    /// who waits for one has written it. Who asks later may have written it after the look.
    pub fn decided_of(&self, versions: &[u64]) -> BTreeSet<u64> {
        let is_decided = |sequence: &&u64| {
            let ticket = self.tickets.get(**sequence);
            ticket.is_some_and(|ticket| ticket.is_late || !ticket.waiters.is_empty())
        };
        versions.iter().filter(is_decided).copied().collect()
    }

    /// A version is durable.
    pub fn close(&mut self, sequence: u64) -> Option<Closed> {
        self.remove(sequence)
    }

    /// A version's value did not come, or is another. `is_written`: it came, and counts no more.
    pub fn give_up(&mut self, sequence: u64, is_written: bool) -> Option<Closed> {
        let closed = self.remove(sequence)?;
        if let Some(book) = self.clients.get_mut(&closed.client) {
            book.lost += 1;
            if book.is_here && !closed.is_claimed && !is_written {
                self.late_writers.insert(closed.client);
                match book.unwritten.len() < GIVEN_UP_MAX {
                    true => drop(book.unwritten.insert(sequence)),
                    false => book.has_more_unwritten = true,
                }
            }
            book.given_up.insert(sequence);
            if book.given_up.len() > GIVEN_UP_MAX {
                let forgotten = book.given_up.pop_first();
                book.known_from = book.known_from.max(forgotten.map(|one| one + 1));
            }
        }
        Some(closed)
    }

    /// A client says that it wrote a version that was given up.
    fn has_written(&mut self, sequence: u64, client: ClientId) {
        if let Some(book) = self.clients.get_mut(&client)
            && book.unwritten.remove(&sequence)
            && book.unwritten.is_empty()
            && !book.has_more_unwritten
        {
            self.late_writers.remove(&client);
        }
    }

    /// How many clients may still write to places of versions that were given up: those are not for others
    /// before it is none.
    pub fn late_writers(&self) -> usize {
        self.late_writers.len()
    }

    /// Versions that wait and of which the pool, asked by `is_there`, knows nothing any more.
    pub fn without(&self, is_there: impl Fn(u64) -> bool) -> Vec<u64> {
        let waiting = self.tickets.iter().map(|(sequence, _)| sequence);
        waiting.filter(|sequence| !is_there(*sequence)).collect()
    }

    fn remove(&mut self, sequence: u64) -> Option<Closed> {
        let Ticket {
            client,
            waiters,
            is_claimed,
            ..
        } = self.tickets.remove(sequence)?;
        if let Some(book) = self.clients.get_mut(&client) {
            book.waiting.remove(sequence);
        }
        Some(Closed {
            client,
            waiters,
            is_claimed,
        })
    }

    /// Those whose wait for all versions of a client is over, and how many were given up.
    pub fn take_synced(&mut self, client: ClientId) -> Vec<(Waiter, u64)> {
        let Some(book) = self.clients.get_mut(&client) else {
            return Vec::new();
        };
        let first = book.waiting.first().unwrap_or(u64::MAX);
        let over = book.syncs.extract_if(.., |(last, _)| *last < first);
        over.map(|(_, waiter)| (waiter, book.lost)).collect()
    }

    /// A client is gone: what it has not written it never will. It may come back, with new versions.
    pub fn client_gone(&mut self, client: ClientId) {
        let last = self.last_of(client);
        if let Some(book) = self.clients.get_mut(&client) {
            book.is_here = false;
            book.syncs.clear();
            book.unwritten.clear();
            book.has_more_unwritten = false;
            self.late_writers.remove(&client);
            self.gone.insert(client, last);
        }
    }

    /// Whether a client that is gone is still in the books.
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// The last version of a client that waits, or 0.
    pub fn last_of(&self, client: ClientId) -> u64 {
        let book = self.clients.get(&client);
        book.and_then(|book| book.waiting.last()).unwrap_or(0)
    }

    /// Whether nothing of a client waits up to this version.
    pub fn is_done_with(&self, client: ClientId, last: u64) -> bool {
        let book = self.clients.get(&client);
        book.is_none_or(|book| book.waiting.first().is_none_or(|first| first > last))
    }

    /// Versions whose time is over since the last look, about `most` of them: of clients that are gone, and
    /// those that wait for longer than `patience`.
    pub fn newly_late(&mut self, patience: Duration, most: usize, now: Time) -> Vec<u64> {
        let tickets = self.tickets.iter();
        // By sequence, which is by age but for those that were asked for since.
        let old = tickets.take_while(|(_, ticket)| now.since(ticket.since) > patience);
        let in_time = old.filter(|(_, ticket)| !ticket.is_late);
        let mut late: Vec<u64> = in_time.map(|(sequence, _)| sequence).take(most).collect();
        let clients = &mut self.clients;
        self.gone.retain(|client, last| {
            let Some(book) = clients.get(client) else {
                return false;
            };
            let before = late.len();
            late.extend(book.waiting.iter().take_while(|one| one <= last));
            let is_over = late.len() == before;
            if is_over && !book.is_here {
                clients.remove(client);
            }
            !is_over
        });
        late.retain(|sequence| {
            let ticket = self.tickets.get_mut(*sequence);
            ticket.is_some_and(|ticket| !std::mem::replace(&mut ticket.is_late, true))
        });
        late
    }
}

impl Book {
    /// Whether a version that does not wait is durable, as far as is known.
    fn has_stored(&self, sequence: u64) -> bool {
        let is_known = self.known_from.is_some_and(|from| from <= sequence);
        is_known && !self.given_up.contains(&sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITER: Waiter = Waiter::Peer {
        peer: PeerId(1),
        shard: 0,
        timed: Timed {
            operation: Operation::Settle,
            since: Time(0),
        },
    };
    const PATIENCE: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn of_clients(clients: [u128; 2]) -> Books {
        let mut books = Books::default();
        for client in clients {
            books.client_came(ClientId(client));
        }
        books
    }

    #[test]
    fn only_its_own_client_claims_a_version() {
        let mut books = of_clients([1, 2]);
        books.open(7, ClientId(1), Vec::new(), at(0));
        let incomplete = Answer::Refused(Refusal::Incomplete);
        assert_eq!(books.claim(7, ClientId(2), at(0)), Err(incomplete.clone()));
        for _ in 0..WAITERS_MAX {
            assert_eq!(books.claim(7, ClientId(1), at(0)), Ok(()));
            books.wait(7, WAITER);
        }
        let busy = Answer::Refused(Refusal::Busy);
        assert_eq!(books.claim(7, ClientId(1), at(0)), Err(busy));
        assert_eq!(
            books.give_up(7, false).expect("there").waiters.len(),
            WAITERS_MAX
        );
        assert_eq!(books.claim(7, ClientId(1), at(0)), Err(incomplete));
        let done = Answer::Done { sequence: 8 };
        assert_eq!(books.claim(8, ClientId(1), at(0)), Err(done));
    }

    #[test]
    fn who_waits_for_all_is_told_when_the_last_is_over_and_of_all_losses() {
        let mut books = of_clients([1, 2]);
        assert_eq!(books.sync(ClientId(1), WAITER), Err(0));
        for sequence in [3, 5, 9] {
            books.open(sequence, ClientId(1), Vec::new(), at(0));
        }
        assert_eq!(books.sync(ClientId(1), WAITER), Ok(9));
        books.open(11, ClientId(1), Vec::new(), at(0));
        books.close(3);
        books.give_up(5, false);
        assert_eq!(books.take_synced(ClientId(1)), []);
        assert!(books.has_syncs());
        books.close(9);
        assert_eq!(books.take_synced(ClientId(1)), [(WAITER, 1)]);
        assert!(!books.has_syncs());
        books.close(11);
        assert_eq!(books.sync(ClientId(1), WAITER), Err(1));
    }

    #[test]
    fn a_client_waits_for_all_so_often_and_others_are_none_the_worse() {
        let mut books = of_clients([1, 2]);
        for client in [1, 2] {
            books.open(client, ClientId(client.into()), Vec::new(), at(0));
        }
        for _ in 0..SYNCS_MAX {
            assert!(books.may_sync(ClientId(1)));
            assert_eq!(books.sync(ClientId(1), WAITER), Ok(1));
        }
        assert!(!books.may_sync(ClientId(1)) && books.may_sync(ClientId(2)));
        books.close(1);
        assert_eq!(books.take_synced(ClientId(1)).len(), SYNCS_MAX);
        assert!(books.may_sync(ClientId(1)));
    }

    #[test]
    fn a_version_is_late_once_by_its_age_or_when_its_client_is_gone() {
        let mut books = of_clients([1, 2]);
        books.open(1, ClientId(1), Vec::new(), at(0));
        books.open(2, ClientId(2), Vec::new(), at(2));
        assert_eq!(books.newly_late(PATIENCE, 10, at(2)), [1]);
        assert_eq!(books.newly_late(PATIENCE, 10, at(2)), []);
        books.client_gone(ClientId(2));
        assert_eq!(books.newly_late(PATIENCE, 10, at(2)), [2]);
        assert!(books.has_gone() && !books.is_done_with(ClientId(2), 2));
        books.give_up(2, false);
        assert_eq!(books.newly_late(PATIENCE, 10, at(2)), []);
        assert!(!books.has_gone() && books.is_done_with(ClientId(2), 2));
        assert!(!books.clients.contains_key(&ClientId(2)));
        // A request that was under way while its client went.
        books.open(3, ClientId(2), Vec::new(), at(2));
        assert_eq!(books.newly_late(PATIENCE, 10, at(2)), [3]);
        books.close(3);
        assert_eq!(books.newly_late(PATIENCE, 10, at(2)), []);
        assert!(!books.clients.contains_key(&ClientId(2)));
    }

    #[test]
    fn who_may_write_what_was_given_up_is_known_until_it_has_or_is_gone() {
        let mut books = of_clients([1, 2]);
        for sequence in 1..=4 {
            books.open(sequence, ClientId(1), Vec::new(), at(0));
        }
        books.open(5, ClientId(2), vec![WAITER], at(0));
        // It said that it had written that one.
        books.give_up(5, false);
        books.close(1);
        assert_eq!(books.late_writers(), 0);
        books.give_up(2, false);
        books.give_up(3, false);
        assert_eq!(books.late_writers(), 1);
        for sequence in [2, 2, 3] {
            assert_eq!(books.late_writers(), 1);
            // The other client's word does not count.
            assert!(books.claim(sequence, ClientId(2), at(0)).is_err());
            assert!(books.claim(sequence, ClientId(1), at(0)).is_err());
        }
        assert_eq!(books.late_writers(), 0);
        books.open(6, ClientId(1), Vec::new(), at(0));
        books.give_up(6, true);
        assert_eq!(books.late_writers(), 0);
        books.give_up(4, false);
        assert_eq!(books.late_writers(), 1);
        books.client_gone(ClientId(1));
        assert_eq!(books.late_writers(), 0);
    }

    #[test]
    fn what_was_given_up_is_never_told_as_durable_whatever_others_do() {
        let mut books = of_clients([1, 2]);
        let incomplete = Err(Answer::Refused(Refusal::Incomplete));
        let done = |sequence| Err(Answer::Done { sequence });
        let give_up = |books: &mut Books, sequence, client| {
            books.open(sequence, client, Vec::new(), at(0));
            books.give_up(sequence, false);
        };
        books.open(1, ClientId(1), Vec::new(), at(0));
        books.close(1);
        give_up(&mut books, 2, ClientId(1));
        for sequence in 3..9_999 {
            give_up(&mut books, sequence, ClientId(2));
        }
        assert_eq!(books.claim(2, ClientId(1), at(0)), incomplete);
        assert_eq!(books.claim(1, ClientId(1), at(0)), done(1));
        // What is forgotten of its own is told as if it were not durable, and no more is kept.
        books.open(9_999, ClientId(1), Vec::new(), at(0));
        for sequence in 10_000..20_000 {
            give_up(&mut books, sequence, ClientId(1));
        }
        books.give_up(9_999, false);
        books.open(20_000, ClientId(1), Vec::new(), at(0));
        books.close(20_000);
        for sequence in [1, 2, 9_999, 10_000, 15_000, 19_999] {
            assert_eq!(books.claim(sequence, ClientId(1), at(0)), incomplete);
        }
        assert_eq!(books.claim(20_000, ClientId(1), at(0)), done(20_000));
        assert_eq!(books.clients[&ClientId(1)].given_up.len(), GIVEN_UP_MAX);
        // Nor is it after its client went, and came back.
        books.client_gone(ClientId(1));
        books.newly_late(PATIENCE, 10, at(0));
        books.client_came(ClientId(1));
        books.open(20_001, ClientId(1), Vec::new(), at(0));
        assert_eq!(books.claim(19_999, ClientId(1), at(0)), incomplete);
    }

    #[test]
    fn a_client_that_is_back_has_its_new_versions_waited_for() {
        let mut books = of_clients([1, 2]);
        books.open(5, ClientId(1), Vec::new(), at(0));
        books.client_gone(ClientId(1));
        books.client_came(ClientId(1));
        books.open(6, ClientId(1), Vec::new(), at(0));
        assert_eq!(books.newly_late(PATIENCE, 10, at(0)), [5]);
        assert_eq!(books.decided_of(&[5, 6]), BTreeSet::from([5]));
        books.give_up(5, false);
        // The landing of its first connection is needed no more.
        assert!(books.is_done_with(ClientId(1), 5) && !books.is_done_with(ClientId(1), 6));
        books.open(7, ClientId(1), Vec::new(), at(0));
        assert_eq!(books.newly_late(PATIENCE, 10, at(0)), []);
        assert!(!books.has_gone());
        books.close(6);
        books.close(7);
        assert_eq!(books.newly_late(PATIENCE, 10, at(0)), []);
        assert_eq!(books.sync(ClientId(1), WAITER), Err(1), "its loss is told");
    }
}
