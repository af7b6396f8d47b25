mod flushes;

use std::net::SocketAddr;
use std::os::unix::net::UnixStream as Pair;

use cenote_fabric::{ClusterKey, WireProtection};
use cenote_kv::group::member::Service;
use cenote_kv::group::view::View;
use cenote_kv::memory::key_hash::place_hash;
use cenote_memcached::{
    Asker, Backend as _, FIRST_TOKEN, Partitions as _, Peers as _, Route, Ticket,
};
use mio::net::TcpListener;
use mio::{Events, Poll};

use super::super::config::{KeyFingerprint, NodeState, Registration, VERSION};
use super::super::detector::Settings;
use super::super::handshake::Hello;
use super::super::membership::Registered;
use super::super::node::{Order, Parting};
use super::super::store::LeaseId;
use super::*;

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const REGION_BYTES: u64 = 16 * 4096;
/// Turns in which something would have happened.
const SOME: usize = 30;

/// The only lane of a node, turned by hand.
struct Turned {
    lane: Lane,
    shared: Arc<Shared>,
    poll: Poll,
    address: SocketAddr,
    asks: Batch,
    answers: Batch,
    /// Links and their probes go on; what the member says is lost.
    is_mute: bool,
}

fn process(node: u32) -> Process {
    let incarnation = 1;
    Process { node, incarnation }
}

/// With what every node is registered.
const LEASE: LeaseId = LeaseId(7);

fn registered(address: Option<SocketAddr>) -> Registered {
    Registered {
        incarnation: 1,
        address,
        state: NodeState::Up,
        lease: Some(LEASE),
    }
}

impl Turned {
    fn start(node: u32, key: &ClusterKey) -> Self {
        let me = process(node);
        let config = ClusterConfig {
            service: Service::Online,
            groups: 1,
            code: "1+1".parse().unwrap(),
            scheme: Scheme::Coded,
            region_bytes: REGION_BYTES,
            memory_bytes: 64 << 20,
            lanes: 1,
            link_traffic: WireProtection::default(),
            key: KeyFingerprint::of(key, "well"),
            nodes: vec!["a".to_owned(), "b".to_owned()],
        };
        let hello = Hello {
            cluster: "well".to_owned(),
            node: NodeId(node),
            incarnation: me.incarnation,
            lane: 0,
            protection: WireProtection::default(),
        };
        let registration = Registration {
            version: VERSION,
            name: format!("n{node}"),
            clients: Vec::new(),
            peers: Vec::new(),
            incarnation: me.incarnation,
            state: NodeState::Up,
        };
        let poll = Poll::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (bell, waker) = Pair::pair().unwrap();
        waker.set_nonblocking(true).unwrap();
        let homes = vec![vec![1, 0]];
        let shared = Shared::new(NodeId(node), REGION_BYTES, homes, registration, vec![bell]);
        let shared = Arc::new(shared);
        shared.registration_lease.renew(LEASE, u64::MAX);
        shared.order(
            0,
            Order::Node {
                node: NodeId(node),
                registered: Some(registered(None)),
            },
        );
        let links = Links::new(hello, key.clone(), listener, poll.registry(), FIRST_TOKEN.0);
        // Who is not turned is not missed.
        let detector = Detector::new(Settings {
            silence: PATIENCE,
            ..Settings::default()
        });
        let mut lane = Lane::new(Parts {
            evicts: true,
            hasher: KeyHasher::new([7; 16]),
            index: 0,
            config: Arc::new(config),
            me,
            links: links.unwrap(),
            detector,
            shared: Arc::clone(&shared),
            waker: UnixStream::from_std(waker),
        });
        lane.register(poll.registry()).unwrap();
        Self {
            lane,
            shared,
            poll,
            address,
            asks: Batch::default(),
            answers: Batch::default(),
            is_mute: false,
        }
    }

    fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        let wait = Some(Duration::from_millis(2));
        if let Err(error) = self.poll.poll(&mut events, wait) {
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
        }
        events.iter().for_each(|event| self.lane.on_event(event));
        self.lane.poll(&mut self.asks, &mut self.answers);
        if self.is_mute {
            self.lane.seats[0].member.take_messages();
        }
        self.lane.flush();
    }

    fn meet(&self, other: &Self) {
        let node = NodeId(other.lane.me.node);
        let registered = Some(registered(Some(other.address)));
        self.shared.order(0, Order::Node { node, registered });
    }

    fn adopt(&self, view: &View) {
        let view = Arc::new(view.clone());
        self.shared.order(0, Order::View { group: 0, view });
    }

    fn view(&self) -> u32 {
        let view = self.lane.seats[0].member.view();
        view.map_or(0, |view| view.number)
    }

    fn goodbyes(&self) -> u64 {
        let goodbye = self.lane.goodbyes.values().next();
        goodbye.map_or(0, |goodbye| goodbye.answered)
    }
}

fn texts(batch: &Batch) -> Vec<(u64, Vec<u8>)> {
    let entries = batch.iter();
    entries
        .map(|(ticket, text)| (ticket.slot, text.to_vec()))
        .collect()
}

fn ticket(slot: u64) -> Ticket {
    Ticket {
        asker: Asker::Worker(0),
        client: 7,
        generation: 1,
        slot,
    }
}

/// A front, which is a spare, and an owner that it has a link to; and their view.
fn front_and_owner() -> (Turned, Turned, View) {
    linked_with_owner(2)
}

/// A node and an owner that it has a link to; and their view, whose parity is node 0.
fn linked_with_owner(node: u32) -> (Turned, Turned, View) {
    let key = ClusterKey::generate().unwrap();
    let (mut front, mut owner) = (Turned::start(node, &key), Turned::start(1, &key));
    front.meet(&owner);
    owner.meet(&front);
    let view = View::first(view::Scheme::Coded, &[process(1)], &[process(0)]);
    front.adopt(&view);
    owner.adopt(&view);
    let deadline = Instant::now() + PATIENCE;
    let links = |one: &Turned| one.lane.membership.all_linked().count();
    while links(&front) == 0 || links(&owner) == 0 || owner.view() == 0 {
        assert!(Instant::now() < deadline, "they do not meet");
        front.turn();
        owner.turn();
    }
    (front, owner, view)
}

#[test]
fn requests_wait_while_an_earlier_one_may_be_with_the_former_owner() {
    let is_in_order = |front: &Turned| front.lane.is_in_order(place_hash(b"a"));
    for is_answered in [true, false] {
        let (mut front, mut owner, view) = front_and_owner();
        let deadline = Instant::now() + PATIENCE;
        front.lane.forward(1, ticket(1), b"get a\r\n");
        front.turn();
        while owner.asks.iter().next().is_none() {
            assert!(Instant::now() < deadline, "it does not come");
            owner.turn();
        }
        // One more waits to be sent when the partition goes to another: it is to ask again.
        front.lane.forward(1, ticket(2), b"get b\r\n");
        assert!(is_in_order(&front));
        let next = view.without(|dead| dead == process(1));
        front.adopt(&next.expect("a parity is there"));
        front.turn();
        assert_eq!(front.lane.route(place_hash(b"a")), Route::Node(0));
        assert_eq!(texts(&front.asks), [(2, b"get b\r\n".to_vec())]);
        front.asks.clear();
        for _ in 0..SOME {
            front.turn();
            assert!(!is_in_order(&front), "the first may still be done");
        }
        let asked = owner.asks.iter().next().map(|(ticket, _)| ticket);
        if is_answered {
            owner.lane.answer(asked.expect("it came"), b"END\r\n");
        } else {
            // A read whose answer is lost is asked again.
            drop(owner);
            owner = Turned::start(1, &ClusterKey::generate().unwrap());
        }
        while !is_in_order(&front) {
            assert!(Instant::now() < deadline, "it waits for ever");
            owner.turn();
            front.turn();
        }
        let answers = texts(&front.answers);
        let asks = texts(&front.asks);
        match is_answered {
            true => assert_eq!((answers.len(), asks.len()), (1, 0)),
            false => assert_eq!((answers.len(), asks), (0, vec![(1, b"get a\r\n".to_vec())])),
        }
    }
}

#[test]
fn a_node_that_leaves_answers_what_was_sent_to_it_before_it_ends() {
    // The front hears of views from nobody but the owner.
    let (mut front, mut owner, view) = front_and_owner();
    let deadline = Instant::now() + PATIENCE;

    // A request is on its way when the owner is told to end, and lets its partition go.
    front.lane.forward(1, ticket(1), b"get a\r\n");
    front.lane.flush();
    owner.shared.end_soon();
    owner.adopt(&view.with_released(process(1)).expect("a parity is there"));
    for _ in 0..SOME {
        owner.turn();
        assert_eq!(
            owner.shared.parting(),
            Parting::Begun,
            "nobody has heard of it"
        );
    }
    let asked = owner.asks.iter().next().map(|(ticket, _)| ticket);
    let asked = asked.expect("it was on its way");

    // Another waits at the front, which learns from the owner that it is to ask again.
    front.lane.forward(1, ticket(2), b"get b\r\n");
    while owner.goodbyes() == 0 {
        assert!(Instant::now() < deadline, "no answer");
        front.turn();
        owner.turn();
    }
    assert_eq!(front.view(), 2);
    for _ in 0..SOME {
        front.turn();
        owner.turn();
        assert_eq!(owner.shared.parting(), Parting::Begun, "it owes an answer");
    }

    // It has read the answer before the owner may end.
    owner.lane.answer(asked, b"END\r\n");
    for _ in 0..SOME {
        owner.turn();
        assert_eq!(owner.shared.parting(), Parting::Begun, "nobody has read it");
    }
    while owner.shared.parting() != Parting::Done {
        assert!(Instant::now() < deadline, "it does not come to an end");
        front.turn();
        owner.turn();
    }
    assert_eq!(texts(&front.answers), [(1, b"END\r\n".to_vec())]);
    assert_eq!(texts(&front.asks), [(2, b"get b\r\n".to_vec())]);
}

#[test]
fn what_waits_for_a_node_that_does_not_read_is_counted_and_bounded() {
    const COUNT: usize = 200;
    let (mut front, mut owner, _) = front_and_owner();
    let deadline = Instant::now() + PATIENCE;
    let text = [&b"set a 0 0 65536\r\n"[..], &[b'x'; 64 << 10], b"\r\n"].concat();
    for slot in 0..COUNT {
        front.lane.forward(1, ticket(slot as u64), &text);
    }
    for _ in 0..SOME {
        front.turn();
        assert!(front.lane.asked_bytes() >= COUNT * text.len());
        let room = front.lane.links.room_bytes(NodeId(1));
        let window = front.lane.bounds.window_bytes.max(text.len());
        assert!(front.lane.bounds.out_bytes - room < window + 1024, "{room}");
    }
    // It reads, and is not read from.
    let mut asked = Vec::new();
    while asked.len() < COUNT {
        assert!(Instant::now() < deadline, "{} came", asked.len());
        owner.turn();
        let asks = std::mem::take(&mut owner.asks);
        asked.extend(asks.iter().map(|(ticket, _)| ticket));
        for (ticket, _) in asks.iter() {
            owner.lane.answer(ticket, b"STORED\r\n");
        }
        front.turn();
    }
    while front.lane.asked_bytes() > 0 {
        assert!(Instant::now() < deadline, "answers are missing");
        owner.turn();
        front.turn();
    }
    assert_eq!(texts(&front.answers).len(), COUNT);
}

#[test]
fn answers_that_a_node_does_not_read_are_bounded_for_it_alone() {
    /// As [`front_and_owner`] numbers it.
    const FRONT: u32 = 2;
    const COUNT: usize = 40;
    let (mut front, mut owner, _) = front_and_owner();
    let deadline = Instant::now() + PATIENCE;
    for slot in 0..COUNT {
        front.lane.forward(1, ticket(slot as u64), b"get a\r\n");
    }
    let mut asked = Vec::new();
    while asked.len() < COUNT {
        assert!(Instant::now() < deadline, "{} came", asked.len());
        front.turn();
        owner.turn();
        let asks = std::mem::take(&mut owner.asks);
        asked.extend(asks.iter().map(|(ticket, _)| ticket));
    }
    let answer = [b'x'; 100 << 10];
    let max = owner.lane.bounds.answer_bytes;
    let mut held = 0;
    while owner.lane.has_room_for_answers(FRONT, 0) {
        owner
            .lane
            .answer(asked.pop().expect("fewer are enough"), &answer);
        held += answer.len();
    }
    assert!((max - answer.len()..max + answer.len()).contains(&held));
    assert!(!asked.is_empty() && !owner.lane.has_room_for_answers(FRONT, 0));
    // Others are answered on.
    assert!(owner.lane.has_room_for_answers(FRONT + 1, max - 1));
    while texts(&front.answers).len() < COUNT - asked.len() {
        assert!(Instant::now() < deadline, "they do not come");
        owner.turn();
        front.turn();
    }
    let has_room = |held| owner.lane.has_room_for_answers(FRONT, held);
    assert!(has_room(max - 1) && !has_room(max));
}

#[test]
fn a_process_that_is_not_known_yet_is_not_taken_for_dead() {
    let key = ClusterKey::generate().unwrap();
    let mut owner = Turned::start(1, &key);
    owner.adopt(&View::first(
        view::Scheme::Coded,
        &[process(1)],
        &[process(0)],
    ));
    let register = |owner: &Turned, registered| {
        let node = NodeId(0);
        owner.shared.order(0, Order::Node { node, registered });
    };
    let here = registered(None);
    for heard in [None, Some(here)] {
        heard.inspect(|_| register(&owner, heard));
        for _ in 0..SOME {
            owner.turn();
            let proposals = owner.shared.take_proposals();
            assert!(proposals.is_empty(), "{heard:?}: {proposals:?}");
        }
    }
    register(&owner, None);
    let deadline = Instant::now() + PATIENCE;
    let proposal = loop {
        owner.turn();
        if let Some(proposal) = owner.shared.take_proposals().pop() {
            break proposal;
        }
        assert!(Instant::now() < deadline, "it is gone and nobody says so");
    };
    assert!(!proposal.view.has(process(0)));
}

#[test]
fn a_member_that_lives_and_acknowledges_nothing_is_given_up() {
    for is_mute in [false, true] {
        let (mut parity, mut owner, _) = linked_with_owner(0);
        parity.is_mute = is_mute;
        let deadline = Instant::now() + PATIENCE;
        // An operation that needs its word.
        owner.lane.tick(1);
        let xid = |owner: &Turned| {
            let mut owned = owner.lane.seats[0].member.owned_partitions();
            let (_, owner) = owned.next().expect("it has one");
            (owner.last_xid(), owner.committed_xid())
        };
        loop {
            owner.turn();
            parity.turn();
            let proposal = owner.shared.take_proposals().pop();
            match (is_mute, proposal) {
                (true, Some(proposal)) => {
                    assert!(!proposal.view.has(process(0)));
                    break;
                }
                (false, None) if xid(&owner) == (1, 1) => break,
                (_, None) => assert!(Instant::now() < deadline, "{:?}", xid(&owner)),
                (false, proposal) => panic!("{proposal:?}"),
            }
        }
    }
}

#[test]
fn a_node_that_is_not_registered_serves_while_its_group_is_whole_and_refuses_when_it_is_not() {
    let (parity, mut owner, view) = linked_with_owner(0);
    let mut parity = Some(parity);
    let index = owner.lane.index_of(place_hash(b"a"));
    let index = index.expect("there is one lane");
    let until = |owner: &mut Turned, parity: &mut Option<Turned>, refuses: bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            owner.turn();
            parity.iter_mut().for_each(Turned::turn);
            let loss = owner.lane.loss(index, b"set a 0 0 1\r\nx\r\n");
            let is_refused = loss.is_some_and(|loss| loss.ends_with(b"nothing was done\r\n"));
            if is_refused == refuses && (refuses || owner.lane.may_serve(index)) {
                assert_eq!(owner.lane.term(index) == 0, refuses);
                return;
            }
            assert!(Instant::now() < deadline, "{loss:?}");
        }
    };
    until(&mut owner, &mut parity, false);
    // Its registration runs out, by its own count, and is told to be gone.
    owner.shared.registration_lease.renew(LEASE, 0);
    until(&mut owner, &mut parity, false);
    let gone = |node| Order::Node {
        node,
        registered: None,
    };
    owner.shared.order(0, gone(NodeId(1)));
    until(&mut owner, &mut parity, false);
    parity = None;
    until(&mut owner, &mut parity, true);
    // Registered with another lease: not before it has been told of that, and of all before.
    let other = LeaseId(8);
    owner.shared.registration_lease.renew(other, u64::MAX);
    for _ in 0..SOME {
        owner.turn();
    }
    until(&mut owner, &mut parity, true);
    let again = Registered {
        lease: Some(other),
        ..registered(None)
    };
    let node = NodeId(1);
    let registered = Some(again);
    owner.shared.order(0, Order::Node { node, registered });
    let without = view.without(|process| process.node == 0);
    owner.adopt(&without.expect("it was in it"));
    until(&mut owner, &mut parity, false);
}

#[test]
fn a_node_that_stood_still_looks_whether_it_was_counted_out_before_it_serves() {
    let (mut parity, mut owner, view) = linked_with_owner(0);
    let index = owner.lane.index_of(place_hash(b"a"));
    let index = index.expect("there is one lane");
    // A member is gone, as it has heard: nobody takes a turn in between.
    owner.turn();
    parity.turn();
    let (mut asks, mut answers) = (Batch::default(), Batch::default());
    let now = Instant::now();
    owner
        .lane
        .link_down(NodeId(0), now, &mut asks, &mut answers);
    owner.shared.registration_lease.renew(LEASE, 0);
    owner.lane.refused_at = now_ns() - 10_000_000;
    assert!(!owner.lane.may_serve(index));
    assert!(owner.lane.loss(index, b"get a\r\n").is_some());

    // No backup says whether others have gone on without it.
    owner.shared.registration_lease.renew(LEASE, u64::MAX);
    let without = view.without(|process| process.node == 0);
    owner.adopt(&without.expect("it was in it"));
    let deadline = Instant::now() + PATIENCE;
    while !owner.lane.may_serve(index) {
        assert!(Instant::now() < deadline, "it is not served");
        owner.turn();
    }
    owner.shared.registration_lease.renew(LEASE, 0);
    owner.lane.refused_at = 0;
    assert!(!owner.lane.may_serve(index), "nothing was heard");
    owner.turn();
    assert!(owner.lane.may_serve(index), "it has its partition still");
}

#[test]
fn a_flush_is_refused_while_an_owner_is_missing_that_nobody_may_replace() {
    let (mut front, owner, _) = front_and_owner();
    drop(owner);
    front.lane.forward(1, ticket(1), b"flush_all 0\r\n");
    for _ in 0..SOME {
        front.turn();
    }
    assert_eq!(
        texts(&front.answers),
        [],
        "it may come back, or be replaced"
    );
    for node in [NodeId(0), NodeId(1)] {
        let registered = None;
        front.shared.order(0, Order::Node { node, registered });
    }
    let deadline = Instant::now() + PATIENCE;
    while texts(&front.answers).is_empty() {
        assert!(Instant::now() < deadline, "it waits for ever");
        front.turn();
    }
    let (slot, answer) = texts(&front.answers).remove(0);
    assert!(slot == 1 && answer.ends_with(b"not all items were flushed\r\n"));
    assert_eq!(front.lane.asked_bytes(), 0);
    assert!(front.lane.forwarding.is_quiet());
}

#[test]
fn a_flush_is_refused_for_what_an_earlier_process_of_the_node_had() {
    let mut again = Turned::start(1, &ClusterKey::generate().unwrap());
    let earlier = Process {
        incarnation: 0,
        ..process(1)
    };
    let view = View::first(view::Scheme::Coded, &[earlier], &[process(0)]);
    let parity = Some(registered(None));
    again.shared.order(
        0,
        Order::Node {
            node: NodeId(0),
            registered: parity,
        },
    );
    again.adopt(&view);
    again.turn();
    // Whoever knows this view sends it what is meant for its node.
    assert_eq!(again.lane.route(place_hash(b"a")), Route::Here(0));
    assert!(again.lane.is_here(0), "a flush passes it over");
    let refused = again.lane.loss(0, b"flush_all 0\r\n");
    assert!(refused.is_some_and(|why| why.ends_with(b"not all items were flushed\r\n")));
    assert_eq!(
        again.lane.loss(0, b"get a\r\n"),
        None,
        "it waits for a view"
    );
    let next = view.without(|dead| dead == earlier);
    again.adopt(&next.expect("a parity is there"));
    again.turn();
    assert!(!again.lane.is_here(0));
    assert_eq!(again.lane.loss(0, b"flush_all 0\r\n"), None);
}
