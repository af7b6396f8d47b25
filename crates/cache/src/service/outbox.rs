//! What one client is still to be told, in the order in which it may be.
//!
//! Bounded whatever happens while the client reads nothing: of each region only the newest entry waits, of
//! leases only the last one, and of answers a few. A lease goes behind all entries that were there before
//! it: one that reads it has read these.

use std::collections::{BTreeMap, VecDeque};

use super::injected_faults::{InjectedFault, is_injected};
use super::message::{ANSWER_PART_BYTES, ENTRY_SLABS_MAX, ToClient};
use crate::owner::{Copy, Entry};

/// Most questions of one client that wait for their answer.
const ANSWERS_MAX: usize = 4;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Outbox {
    greeting: VecDeque<ToClient>,
    /// Hosts that came or moved since, by their numbers.
    hosts: BTreeMap<u16, ToClient>,
    entries: BTreeMap<u32, Entry>,
    /// When it was asked for.
    lease: Option<u64>,
    is_forgotten: bool,
    answers: VecDeque<Answer>,
}

#[derive(Debug)]
struct Answer {
    number: u32,
    text: Vec<u8>,
    sent_bytes: usize,
}

/// Whether something has to wait for the socket, or for the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sent {
    /// Nothing is left.
    All,
    /// The socket takes no more now.
    Blocked,
    /// A lease waits for a record, or an entry for a host that does.
    Held,
}

impl Outbox {
    /// It joins: what the cache is, then its hosts. What was to be said before is of no use.
    pub fn greet(&mut self, greeting: impl Iterator<Item = ToClient>) {
        self.greeting = greeting.collect();
        self.hosts.clear();
        self.entries.clear();
        self.lease = None;
        self.is_forgotten = false;
    }

    /// It asks for a lease that it cannot have now: what the cache is, once more, so that it hears something.
    pub fn greet_again(&mut self, welcome: &ToClient) {
        if self.greeting.is_empty() {
            self.greeting.push_back(welcome.clone());
        }
    }

    /// A host that is new, or is reached elsewhere: said before any entry that names it.
    pub fn tell_host(&mut self, number: u16, host: ToClient) {
        self.hosts.insert(number, host);
    }

    /// A region's newest entry. It says nothing of a copy to come where that does not fit into a message.
    pub fn tell(&mut self, mut entry: Entry) {
        if entry.places().map(|copy| copy.windows.len()).sum::<usize>() > ENTRY_SLABS_MAX {
            entry.next.clear();
        }
        self.entries.insert(entry.region, entry);
    }

    /// It has its lease, as asked for at `asked_at`.
    pub fn grant(&mut self, asked_at: u64) {
        self.lease = Some(asked_at);
    }

    /// Its lease is over, and it has to join again.
    pub fn forget(&mut self) {
        self.entries.clear();
        self.lease = None;
        self.is_forgotten = true;
    }

    /// The answer to a question; false: too many wait already.
    pub fn answer(&mut self, number: u32, text: Vec<u8>) -> bool {
        let has_room =
            self.answers.len() < ANSWERS_MAX || is_injected(InjectedFault::AnswersUnbounded);
        if has_room {
            self.answers.push_back(Answer {
                number,
                text,
                sent_bytes: 0,
            });
        }
        has_room
    }

    /// Sends what may be: leases only when every record `is_kept`. `send` says whether it took a message.
    pub fn send(&mut self, is_kept: bool, mut send: impl FnMut(&[u8]) -> bool) -> Sent {
        while let Some(message) = self.greeting.front() {
            if !send(&message.encode()) {
                return Sent::Blocked;
            }
            self.greeting.pop_front();
        }
        // What is told of regions names none of those that the journal may lack.
        while is_kept && let Some(first) = self.hosts.first_entry() {
            if !send(&first.get().encode()) {
                return Sent::Blocked;
            }
            first.remove();
        }
        let mut next = 0;
        while let Some(entry) = self.next_entry(next) {
            let region = entry.region;
            if !send(&ToClient::Entry(entry.clone()).encode()) {
                return Sent::Blocked;
            }
            self.entries.remove(&region);
            next = region + 1;
        }
        if self.is_forgotten {
            if !send(&ToClient::Unknown.encode()) {
                return Sent::Blocked;
            }
            self.is_forgotten = false;
        }
        if !self.send_answers(&mut send) {
            return Sent::Blocked;
        }
        let Some(asked_at) = self.lease else {
            return match self.entries.is_empty() {
                true => Sent::All,
                false => Sent::Held,
            };
        };
        if !is_kept && !is_injected(InjectedFault::LeaseUnkept) {
            return Sent::Held;
        }
        if !send(&ToClient::Lease { asked_at }.encode()) {
            return Sent::Blocked;
        }
        self.lease = None;
        Sent::All
    }

    /// The first entry from region `from` on of whose hosts the client was told: it believes no
    /// other.
    fn next_entry(&self, from: u32) -> Option<&Entry> {
        let is_told = |copy: &Copy| {
            let host = u16::try_from(copy.host).expect("at most 4096");
            !self.hosts.contains_key(&host)
        };
        let mut entries = self.entries.range(from..).map(|(_, entry)| entry);
        entries.find(|entry| entry.places().all(is_told))
    }

    fn send_answers(&mut self, send: &mut impl FnMut(&[u8]) -> bool) -> bool {
        while let Some(answer) = self.answers.front_mut() {
            let rest = &answer.text[answer.sent_bytes..];
            let part = &rest[..rest.len().min(ANSWER_PART_BYTES)];
            let is_last = part.len() == rest.len();
            let message = ToClient::Answer {
                number: answer.number,
                is_last,
                part: part.to_vec(),
            };
            if !send(&message.encode()) {
                return false;
            }
            answer.sent_bytes += part.len();
            if is_last {
                self.answers.pop_front();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Access;

    fn entry(region: u32, generation: u64) -> Entry {
        Entry {
            region,
            generation,
            access: Access::Absent,
            copies: Vec::new(),
            losses: 0,
            fell_back_ms: 0,
            next: Vec::new(),
        }
    }

    fn sent(outbox: &mut Outbox, is_kept: bool, room: usize) -> (Vec<ToClient>, Sent) {
        let mut said = Vec::new();
        let end = outbox.send(is_kept, |bytes| {
            let takes = said.len() < room;
            if takes {
                said.push(ToClient::decode(bytes, 1 << 20).unwrap());
            }
            takes
        });
        (said, end)
    }

    #[test]
    fn a_lease_goes_behind_what_was_told_before_it_and_behind_the_record() {
        let mut outbox = Outbox::default();
        outbox.grant(7);
        outbox.tell(entry(1, 1));
        let told = ToClient::Entry(entry(1, 1));
        assert_eq!(sent(&mut outbox, false, 9), (vec![told], Sent::Held));
        let lease = ToClient::Lease { asked_at: 7 };
        assert_eq!(sent(&mut outbox, true, 9), (vec![lease], Sent::All));
    }

    #[test]
    fn an_entry_goes_behind_the_hosts_that_it_names_while_these_wait_for_the_record() {
        let host = ToClient::Host {
            number: 3,
            name: "h3".to_owned(),
            address: "tcp:127.0.0.1:3".to_owned(),
            domain: "d".to_owned(),
        };
        let window = cenote_pool::control::Window {
            id: 1,
            generation: 1,
            len_bytes: 1 << 20,
            rights: 7,
        };
        let there = Entry {
            copies: vec![crate::owner::Copy::new(3, vec![window])],
            ..entry(1, 2)
        };
        let coming = Entry {
            next: there.copies.clone(),
            ..entry(2, 2)
        };
        let mut outbox = Outbox::default();
        outbox.tell_host(3, host.clone());
        // It read nothing, and a record failed before it went on.
        assert_eq!(sent(&mut outbox, true, 0).1, Sent::Blocked);
        for entry in [there.clone(), coming.clone(), entry(4, 1)] {
            outbox.tell(entry);
        }
        let free = vec![ToClient::Entry(entry(4, 1))];
        assert_eq!(sent(&mut outbox, false, 9), (free, Sent::Held));
        let rest = vec![host, ToClient::Entry(there), ToClient::Entry(coming)];
        assert_eq!(sent(&mut outbox, true, 9), (rest, Sent::All));
    }

    #[test]
    fn one_that_reads_nothing_makes_nobody_keep_more_than_the_newest_of_each() {
        let mut outbox = Outbox::default();
        for generation in 1..1000 {
            outbox.tell(entry(1, generation));
            outbox.grant(generation);
            assert_eq!(sent(&mut outbox, true, 0).1, Sent::Blocked);
        }
        let expected = vec![
            ToClient::Entry(entry(1, 999)),
            ToClient::Lease { asked_at: 999 },
        ];
        assert_eq!(sent(&mut outbox, true, 9), (expected, Sent::All));
        let taken = (0..100).filter(|&n| outbox.answer(n, vec![1])).count();
        assert_eq!(taken, ANSWERS_MAX);
    }

    #[test]
    fn a_long_answer_goes_in_parts_and_from_where_it_was_blocked() {
        let mut outbox = Outbox::default();
        let text: Vec<u8> = (0..ANSWER_PART_BYTES * 2 + 5).map(|at| at as u8).collect();
        assert!(outbox.answer(3, text.clone()));
        let mut whole = Vec::new();
        for _ in 0..3 {
            for message in sent(&mut outbox, true, 1).0 {
                let ToClient::Answer {
                    number: 3, part, ..
                } = message
                else {
                    panic!("{message:?}");
                };
                whole.extend(part);
            }
        }
        assert_eq!(whole, text);
        assert_eq!(sent(&mut outbox, true, 9), (Vec::new(), Sent::All));
    }
}
