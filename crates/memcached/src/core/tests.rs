mod flushes;
mod noreply;
mod values;

use std::cell::Cell;
use std::io::{Seek, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use cenote_kv::engine::{Counters, Item, Newest};
use cenote_kv::group::Bound;
use cenote_kv::group::owner::{Change, Found, Owner, Refusal};
use cenote_kv::memory::classes::Gauge;
use cenote_kv::memory::key_hash::KeyHasher;
use cenote_kv::protocol::Limits;
use cenote_kv::protocol::{Parser, Step};
use mio::event::Event;
use mio::{Poll, Registry, Token, Waker};

use super::*;
use crate::backend::{ClassFigures, Partitions};
use crate::client::{Client, Turn};
use crate::mailboxes::{Mailbox, NewClient};
use crate::parked_requests::ENTRY_BYTES;
use crate::session::Session;
use crate::settings::Settings;
use crate::shared::WorkerFace;
use crate::times::Times;

/// A partition whose operations are committed when the test says so.
struct Slow {
    owner: Owner,
    committed: Xid,
    is_closed: bool,
    /// Values are lost, and not recovered yet.
    is_recovering: bool,
    term: u32,
    /// How many stretches it has without an item, and how many of them were looked at.
    stretches: u64,
    walked: Cell<u64>,
}

impl Partition for Slow {
    type Found = Found;

    fn item(found: &Found) -> Item {
        <Owner as Partition>::item(found)
    }

    fn hash_of(&self, key: &[u8]) -> u64 {
        self.owner.hash_of(key)
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
        if self.is_recovering {
            return Err(Refusal::Busy);
        }
        self.owner.value(found, with)
    }

    fn note_use(&mut self, found: &Found) {
        self.owner.note_use(found);
    }

    fn walk(&self, from: u64, _with: &mut dyn FnMut(&[u8], &Item)) -> Option<u64> {
        self.walked.set(self.walked.get() + 1);
        Some(from + 1).filter(|next| *next < self.stretches)
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

/// A worker's partition, and other nodes that have such.
struct TestBackend {
    partition: Slow,
    route: Route,
    /// What is said of each partition, whether it may be served.
    may_serve: bool,
    nodes: Vec<u32>,
    is_given_away: bool,
    /// What is answered in place of the partition.
    loss: Option<&'static [u8]>,
    asked: Vec<(u32, Ticket, Vec<u8>)>,
    asked_bytes: usize,
    /// Bytes of answers to other nodes.
    answers_max: usize,
    /// Counts the links to other nodes, as their tickets do.
    link: u32,
    answered: Vec<Vec<u8>>,
    /// What comes of that.
    asks: Batch,
    answers: Batch,
}

impl TestBackend {
    fn new(nodes: Vec<u32>) -> Self {
        let partition = Slow {
            owner: Owner::alone(KeyHasher::new([7; 16]), 1 << 20, Bound::NONE),
            committed: 0,
            is_closed: false,
            is_recovering: false,
            term: 0,
            stretches: 0,
            walked: Cell::new(0),
        };
        Self {
            partition,
            route: Route::Here(0),
            may_serve: true,
            nodes,
            is_given_away: false,
            loss: None,
            asked: Vec::new(),
            asked_bytes: 0,
            answers_max: usize::MAX,
            link: 0,
            answered: Vec::new(),
            asks: Batch::default(),
            answers: Batch::default(),
        }
    }
}

impl Partitions for TestBackend {
    type Partition = Slow;

    fn route(&self, _place: u32) -> Route {
        self.route
    }

    fn is_here(&self, _index: usize) -> bool {
        !self.is_given_away
    }

    fn partition_count(&self) -> usize {
        1
    }

    fn partition(&mut self, _index: usize) -> &mut Slow {
        &mut self.partition
    }

    fn loss(&self, _index: usize, _text: &[u8]) -> Option<&'static [u8]> {
        self.loss
    }

    fn term(&self, _index: usize) -> u32 {
        self.partition.term
    }

    fn class(&self, _class: usize) -> ClassFigures {
        let here = Gauge { items: 1, bytes: 0 };
        ClassFigures {
            here,
            ..ClassFigures::default()
        }
    }

    fn figures(&self) -> crate::Figures {
        crate::Figures::default()
    }

    fn tick(&mut self, _now: u64) {}

    fn may_serve(&mut self, _index: usize) -> bool {
        self.may_serve
    }

    fn on_refusal(&mut self, _index: usize, _refusal: Refusal) {}

    fn set_memory(&mut self, _bytes: u64) -> bool {
        false
    }

    fn take_changed_classes(&mut self) -> u64 {
        0
    }

    fn leap(&mut self, _seconds: u32) {}
}

impl Peers for TestBackend {
    fn nodes(&self) -> Vec<u32> {
        self.nodes.clone()
    }

    fn owners(&self) -> u64 {
        self.is_given_away.into()
    }

    fn forward(&mut self, node: u32, ticket: Ticket, text: &[u8]) {
        self.asked.push((node, ticket, text.to_vec()));
    }

    fn asked_bytes(&self) -> usize {
        self.asked_bytes
    }

    fn has_room_for_answers(&self, _node: u32, held_bytes: usize) -> bool {
        held_bytes < self.answers_max
    }

    fn is_awaited(&self, ticket: &Ticket) -> bool {
        ticket.client == self.link
    }

    fn answer(&mut self, _ticket: Ticket, text: &[u8]) {
        self.answered.push(text.to_vec());
    }

    fn poll(&mut self, asks: &mut Batch, answers: &mut Batch) {
        mem::swap(asks, &mut self.asks);
        mem::swap(answers, &mut self.answers);
    }

    fn is_in_order(&self, _place: u32) -> bool {
        true
    }

    fn shards(&self) -> Vec<Option<SocketAddr>> {
        Vec::new()
    }
}

impl Backend for TestBackend {
    type Peers = Self;

    fn peers(&self) -> Option<&Self> {
        Some(self)
    }

    fn peers_mut(&mut self) -> Option<&mut Self> {
        Some(self)
    }

    fn register(&mut self, _registry: &Registry) -> std::io::Result<()> {
        Ok(())
    }

    fn on_event(&mut self, _event: &Event) {}

    fn flush(&mut self) -> Option<Duration> {
        None
    }
}

/// A worker without sockets, and one client of it.
struct Bench {
    core: Core<TestBackend>,
    session: Session,
}

/// What workers share, so many of them.
fn shared(workers: usize) -> Arc<Shared> {
    let waker = || {
        // A poll has one waker.
        let poll = Poll::new().unwrap();
        Waker::new(poll.registry(), Token(0)).unwrap()
    };
    let faces = (0..workers).map(|_| WorkerFace {
        mailbox: Mailbox::new(waker()),
        counters: Arc::new(Counters::default()),
        traffic: Traffic::default(),
        times: Times::default(),
    });
    let faces = faces.collect();
    Arc::new(Shared::new(Settings::default(), faces, waker()))
}

impl Bench {
    fn new() -> Self {
        Self::of(shared(1), Vec::new())
    }

    fn of(shared: Arc<Shared>, nodes: Vec<u32>) -> Self {
        Self {
            core: Core::new(0, TestBackend::new(nodes), shared),
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
        self.core.backend.partition.committed = xid;
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

/// A request of node 3.
fn of_node(slot: u64) -> Ticket {
    Ticket {
        asker: Asker::Node(3),
        client: 0,
        generation: 0,
        slot,
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
    bench.core.backend.partition.is_closed = true;
    bench.say("set a 0 0 1\r\nx\r\n");
    assert!(bench.session.is_held_up());
    assert_eq!(bench.read(), "");
    bench.core.backend.partition.is_closed = false;
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

/// Gives what one worker has for the other to it.
fn hand_over(
    from: &mut Core<TestBackend>,
    to: &mut Core<TestBackend>,
    mut each: impl FnMut(Ticket, &[u8]),
) {
    assert!(from.hand_over());
    let shared = Arc::clone(&to.shared);
    while let Some(message) = shared.workers[to.index].mailbox.receive() {
        match message {
            Message::Asks(asks) => to.take_asks(asks),
            Message::Answers(answers) => answers.iter().for_each(|(at, text)| each(at, text)),
            Message::Client(_) => unreachable!("nobody connects"),
        }
    }
}

#[test]
fn what_lies_elsewhere_leaves_less_room_to_clients() {
    let shared = shared(2);
    let mut bench = Bench::of(Arc::clone(&shared), Vec::new());
    let mut other = Core::new(1, TestBackend::new(Vec::new()), shared);
    // Half of a worker's share is for answers, one of which is a guest's.
    let max = usize::try_from(Settings::default().buffer_bytes).unwrap() / 2 / 2 - (1 << 20);
    let mut has_room = |elsewhere: usize, wanted| {
        other.backend.asked_bytes = elsewhere;
        other.count_elsewhere();
        bench.core.count_elsewhere();
        bench.core.may_answer_datagram(wanted)
    };
    assert!(has_room(0, max + 1), "nothing is under way");
    assert!(has_room(max, max / 2) && !has_room(max, max / 2 + 1));
    assert!(has_room(0, max + 1));
    // What cannot be served here takes room as well, whether its client waits for it or has gone.
    let ticket = Ticket {
        asker: Asker::Worker(0),
        client: 0,
        generation: 0,
        slot: 0,
    };
    bench.core.park(ticket, &vec![0; max - ENTRY_BYTES]);
    assert!(
        bench.core.may_answer_datagram(max / 2) && !bench.core.may_answer_datagram(max / 2 + 1)
    );
    bench.core.parked.pop();
    assert!(bench.core.may_answer_datagram(max + 1));
    // So does what is told when an operation is committed.
    bench.core.hold(0, 1, ticket, vec![0; max]);
    assert!(
        bench.core.may_answer_datagram(max / 2) && !bench.core.may_answer_datagram(max / 2 + 1)
    );
    bench.core.backend.partition.committed = 1;
    bench.core.settle();
    assert!(bench.core.may_answer_datagram(max + 1));
}

#[test]
fn a_node_that_does_not_read_its_answers_is_not_served_more() {
    let mut bench = Bench::new();
    bench.core.backend.answers_max = 10;
    bench.core.serve(of_node(1), b"set a 0 0 5\r\nhello\r\n");
    // Its answer waits for the operation, with the value.
    bench.core.serve(of_node(2), b"get a\r\n");
    bench.core.serve(of_node(3), b"get a\r\n");
    bench.read();
    assert!(bench.core.parked.has((Asker::Node(3), 0, 0)));
    bench.commit(1);
    let value = b"VALUE a 0 5\r\nhello\r\n";
    assert_eq!(
        bench.core.backend.answered,
        [&b"STORED\r\n"[..], value, value]
    );
    assert!(bench.core.held.nodes.values().all(|bytes| *bytes == 0));
}

/// Else each link that breaks while a partition cannot be served leaves some megabytes.
#[test]
fn what_a_node_asked_over_a_link_that_broke_is_not_kept() {
    let mut bench = Bench::new();
    bench.core.backend.partition.is_closed = true;
    for link in 0..5 {
        bench.core.backend.link = link;
        for slot in 0..10 {
            let ticket = Ticket {
                client: link,
                ..of_node(slot)
            };
            bench.core.serve(ticket, b"set a 0 0 5\r\nhello\r\n");
        }
        bench.read();
        let mut parked = mem::take(&mut bench.core.parked);
        let kept: Vec<u32> = std::iter::from_fn(|| parked.pop())
            .map(|one| {
                bench.core.park(one.ticket, &one.text);
                one.ticket.client
            })
            .collect();
        assert_eq!(kept, [link; 10]);
    }
    // Those of the link that is there are done.
    bench.core.backend.partition.is_closed = false;
    bench.read();
    bench.commit(10);
    assert_eq!(bench.core.backend.answered.len(), 10);
}

#[test]
fn what_one_worker_never_asks_another_is_refused_and_harms_nobody() {
    let mut bench = Bench::new();
    let ticket = Ticket {
        asker: Asker::Node(1),
        client: 0,
        generation: 0,
        slot: 0,
    };
    let texts: [&[u8]; 13] = [
        b"version\r\n",
        b"stats\r\n",
        b"quit\r\n",
        b"mn\r\n",
        b"verbosity 1\r\n",
        b"watch\r\n",
        b"cache_memlimit 64\r\n",
        b"debugtime p 1000\r\n",
        b"lru_crawler cachedump 0 0 0 1 1\r\n",
        b"lru_crawler metadump 1 0 0 1 1\r\n",
        b"get",
        b"\x80",
        b"",
    ];
    for text in texts {
        bench.core.serve(ticket, text);
        let answered = mem::take(&mut bench.core.backend.answered);
        let text = String::from_utf8_lossy(text);
        assert_eq!(answered, [b"ERROR\r\n".to_vec()], "{text:?}");
    }
    assert_eq!(bench.core.leapt, 0);
    bench.core.serve(ticket, b"mg a v\r\n");
    assert_eq!(bench.core.backend.answered, [b"EN\r\n".to_vec()]);
}

#[test]
fn who_waits_when_the_partition_changes_hands_is_told_that_nobody_knows() {
    let mut bench = Bench::new();
    bench.say("set a 0 0 1\r\nx\r\nmn\r\n");
    bench.core.backend.partition.term = 7;
    let said = bench.read();
    assert_eq!(
        said,
        "SERVER_ERROR partition changed hands, outcome unknown\r\nMN\r\n"
    );
    assert_eq!(bench.commit(1), "");
}

#[test]
fn a_dump_of_a_class_looks_at_some_of_the_table_at_a_time() {
    let mut bench = Bench::new();
    bench.core.backend.partition.stretches = 10_000;
    bench.say("stats cachedump 39 0\r\n");
    let mut said = String::new();
    let mut all = 0;
    while !bench.session.is_done() {
        let walked = bench.core.backend.partition.walked.take();
        assert!(walked <= 64, "{walked}");
        all += walked;
        said += &bench.read();
        bench.session.go_on(&mut bench.core, None);
        said += &bench.read();
    }
    assert_eq!((said.as_str(), all), ("END\r\n", 10_000));
}

#[test]
fn a_client_that_sends_what_is_skipped_ends_its_turn() {
    let mut core = Bench::new().core;
    // A file gives all at once, so nothing ends the turn but the client itself. The value is longer than an item
    // may be.
    let mut said = tempfile::tempfile().unwrap();
    said.write_all(b"set k 0 0 2000000000\r\n").unwrap();
    said.set_len(2_000_000_000).unwrap();
    said.rewind().unwrap();
    let said = UnixStream::from(OwnedFd::from(said));
    let new = NewClient::over(said);
    let mut client = Client::new(new, Session::new(0, 0), 0, &core);
    assert_eq!(client.turn(&mut core), Turn::Again);
}
