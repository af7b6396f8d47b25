use mio::{Poll, Token, Waker};

use super::*;
use crate::engine::{Counters, Item, Newest};
use crate::group::Bound;
use crate::group::owner::{Found, Owner, Refusal};
use crate::protocol::Limits;
use crate::server::session::Session;
use crate::server::settings::Settings;
use crate::server::shared::{Mailbox, WorkerFace};

/// A partition whose operations are committed when the test says so.
struct Slow {
    owner: Owner,
    committed: Xid,
    is_closed: bool,
    tenure: u32,
}

impl Partition for Slow {
    type Found = Found;

    fn item(found: &Found) -> Item {
        <Owner as Partition>::item(found)
    }

    fn newest(&self, hash: u64, key: &[u8]) -> Newest<Found> {
        let last = self.owner.committed_xid();
        Newest {
            found: self.owner.committed(hash, key),
            pending: (last > self.committed).then_some(last),
        }
    }

    fn committed(&self, _hash: u64, _key: &[u8]) -> Option<Found> {
        None
    }

    fn value<R>(&self, found: &Found, with: impl FnOnce(&[&[u8]]) -> R) -> Result<R, Refusal> {
        self.owner.value(found, with)
    }

    fn note_use(&mut self, found: &Found) {
        self.owner.note_use(found);
    }

    fn next_cas(&self) -> u64 {
        self.owner.next_cas()
    }

    fn now(&self) -> u64 {
        u64::from(self.owner.now())
    }

    fn propose(&mut self, hash: u64, key: &[u8], change: Change<'_>) -> Result<Xid, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        self.owner.propose(hash, key, change)
    }

    fn committed_xid(&self) -> Xid {
        self.committed
    }
}

struct Alone(Slow);

impl Backend for Alone {
    type Partition = Slow;

    fn route(&self, _hash: u64) -> Route {
        Route::Here(0)
    }

    fn everyone(&self) -> Vec<Route> {
        vec![Route::Here(0)]
    }

    fn partition_count(&self) -> usize {
        1
    }

    fn partition(&mut self, _index: usize) -> &mut Slow {
        &mut self.0
    }

    fn tenure(&self, _index: usize) -> u32 {
        self.0.tenure
    }

    fn figures(&self) -> crate::server::Figures {
        crate::server::Figures::default()
    }

    fn tick(&mut self, _now: u64) {}
}

/// A worker without sockets, and one client of it.
struct Bench {
    core: Core<Alone>,
    session: Session,
}

impl Bench {
    fn new() -> Self {
        let poll = Poll::new().unwrap();
        let waker = |token| Waker::new(poll.registry(), Token(token)).unwrap();
        let face = WorkerFace {
            mailbox: Mailbox::new(waker(0)),
            counters: Arc::new(Counters::default()),
            traffic: Traffic::default(),
        };
        // A poll has one waker.
        let front = Poll::new().unwrap();
        let front = Waker::new(front.registry(), Token(0)).unwrap();
        let shared = Shared::new(Settings::default(), vec![face], front);
        let slow = Slow {
            owner: Owner::alone(1 << 20, Bound::NONE),
            committed: 0,
            is_closed: false,
            tenure: 0,
        };
        Self {
            core: Core::new(0, Alone(slow), Arc::new(shared)),
            session: Session::new(0, 0),
        }
    }

    fn say(&mut self, said: &str) {
        let mut rest = said.as_bytes();
        while !rest.is_empty() && !self.session.is_held_up() {
            let mut parser = Parser::new(Limits::default());
            let Step::Request { request, taken } = parser.parse(rest) else {
                panic!("{said:?}");
            };
            let core = &mut self.core;
            self.session.request(core, &request, &rest[..taken], None);
            rest = &rest[taken..];
        }
    }

    /// Commits all up to an operation, and gives what the client then has to read.
    fn commit(&mut self, xid: Xid) -> String {
        self.core.backend.0.committed = xid;
        self.read()
    }

    fn read(&mut self) -> String {
        self.core.move_on();
        let answers = self.core.take_answers();
        for (ticket, text) in answers.iter() {
            self.session.fill(ticket.slot, text);
        }
        let said = self.session.replies.unsent().to_vec();
        self.session.replies.note_sent(said.len());
        String::from_utf8(said).unwrap()
    }
}

#[test]
fn a_reply_waits_for_its_operation_and_holds_those_behind_it() {
    let mut bench = Bench::new();
    bench.say("set a 0 0 1\r\nx\r\nset b 0 0 1\r\ny\r\nmn\r\n");
    assert_eq!(bench.read(), "");
    assert_eq!(bench.commit(1), "STORED\r\n");
    assert_eq!(bench.commit(2), "STORED\r\nMN\r\n");
    assert!(bench.session.is_done());
}

#[test]
fn a_client_sees_what_it_has_stored_without_an_answer() {
    let mut bench = Bench::new();
    bench.say("set a 0 0 1 noreply\r\nx\r\nget a\r\n");
    assert_eq!(bench.read(), "");
    assert_eq!(bench.commit(1), "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn another_client_reads_what_is_committed_at_once() {
    let mut bench = Bench::new();
    bench.say("set a 0 0 1\r\nx\r\n");
    bench.session = Session::new(0, 1);
    bench.say("get a\r\n");
    let said = bench.session.replies.unsent();
    assert_eq!(said, b"END\r\n");
}

#[test]
fn a_request_that_cannot_be_served_is_asked_again_and_holds_up_its_client() {
    let mut bench = Bench::new();
    bench.core.backend.0.is_closed = true;
    bench.say("set a 0 0 1\r\nx\r\n");
    assert!(bench.session.is_held_up());
    assert_eq!(bench.read(), "");
    bench.core.backend.0.is_closed = false;
    assert_eq!(bench.read(), "");
    assert_eq!(bench.commit(1), "STORED\r\n");
    assert!(!bench.session.is_held_up());
}

#[test]
fn a_flush_waits_as_well() {
    let mut bench = Bench::new();
    bench.say("flush_all\r\nmn\r\n");
    assert_eq!(bench.read(), "");
    assert_eq!(bench.commit(1), "OK\r\nMN\r\n");
}

#[test]
fn who_waits_when_the_partition_changes_hands_is_told_that_nobody_knows() {
    let mut bench = Bench::new();
    bench.say("set a 0 0 1\r\nx\r\nmn\r\n");
    bench.core.backend.0.tenure = 7;
    let said = bench.read();
    assert_eq!(
        said,
        "SERVER_ERROR partition changed hands, outcome unknown\r\nMN\r\n"
    );
    assert_eq!(bench.commit(1), "");
}
