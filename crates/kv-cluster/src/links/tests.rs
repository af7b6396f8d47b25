use std::net::TcpStream as BlockingStream;
use std::thread;

use cenote_fabric::WireProtection;
use mio::{Events, Poll};

use super::super::ask;
use super::super::frame::{self, FrameError, kind};
use super::super::link::{Full, OUT_BYTES_MAX};

use super::*;

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The loops of some nodes, turned by hand in one thread.
struct Nodes {
    poll: Poll,
    nodes: Vec<Links>,
    /// By node, what happened there.
    events: Vec<Vec<LinkEvent>>,
    key: ClusterKey,
}

fn hello(node: u32, incarnation: u64, protection: WireProtection) -> Hello {
    Hello {
        cluster: "well".to_owned(),
        node: NodeId(node),
        incarnation,
        lane: 0,
        protection,
    }
}

impl Nodes {
    fn new(count: u32, protection: WireProtection) -> Self {
        let poll = Poll::new().unwrap();
        let key = ClusterKey::generate().unwrap();
        let mut nodes = Self {
            poll,
            nodes: Vec::new(),
            events: Vec::new(),
            key,
        };
        for node in 0..count {
            nodes.start(hello(node, 1, protection));
        }
        nodes
    }

    fn start(&mut self, hello: Hello) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let first = self.nodes.len() * TOKENS;
        let key = self.key.clone();
        let links = Links::new(hello, key, listener, self.poll.registry(), first);
        self.nodes.push(links.unwrap());
        self.events.push(Vec::new());
        self.nodes.len() - 1
    }

    /// Tells `at` where `of` is.
    fn introduce(&mut self, at: usize, of: usize) {
        let address = self.nodes[of].local_address().unwrap();
        let node = self.nodes[of].hello.node;
        let now = Instant::now();
        self.nodes[at].set_peer(node, Some(address), now, &mut self.events[at]);
    }

    fn turn(&mut self) {
        let now = Instant::now();
        for (links, events) in self.nodes.iter_mut().zip(&mut self.events) {
            links.tick(now, events);
            links.flush(now, events);
        }
        let deadlines = self
            .nodes
            .iter()
            .filter_map(|links| links.next_deadline(now));
        let wait = deadlines
            .min()
            .map_or(PATIENCE, |at| at.saturating_duration_since(now));
        let mut ready = Events::with_capacity(64);
        let wait = wait.min(Duration::from_millis(20));
        self.poll.poll(&mut ready, Some(wait)).unwrap();
        let now = Instant::now();
        for event in &ready {
            for (links, events) in self.nodes.iter_mut().zip(&mut self.events) {
                if links.owns(event.token()) {
                    links.handle(event, now, events);
                }
            }
        }
    }

    /// Turns the loops until `done`.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.events);
            self.turn();
        }
    }

    fn linked(&mut self, one: usize, other: usize) {
        self.introduce(one, other);
        let (a, b) = (self.nodes[one].hello.node, self.nodes[other].hello.node);
        self.until("link", |nodes| {
            nodes.nodes[one].is_open(b) && nodes.nodes[other].is_open(a)
        });
    }

    /// Payloads of the frames that a node has got.
    fn frames(&self, at: usize) -> Vec<Bytes> {
        let payload = |event: &LinkEvent| match event {
            LinkEvent::Frame { frame, .. } => Some(frame.payload.clone()),
            _ => None,
        };
        self.events[at].iter().filter_map(payload).collect()
    }

    fn downs(&self, at: usize) -> usize {
        let is_down = |event: &&LinkEvent| matches!(event, LinkEvent::Down { .. });
        self.events[at].iter().filter(is_down).count()
    }
}

fn numbered(number: usize, length: usize) -> Bytes {
    let mut bytes = vec![u8::try_from(number % 251).unwrap(); length];
    bytes[..4].copy_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
    bytes.into()
}

#[test]
fn frames_arrive_whole_and_in_order_both_ways_however_they_are_protected() {
    for protection in WireProtection::ALL {
        let mut nodes = Nodes::new(2, protection);
        nodes.linked(0, 1);
        // Small and large ones in turn, in one part and in several; more than one turn's reading.
        let lengths = [4, 100, 5000, 70_000, frame::PAYLOAD_BYTES_MAX, 4095, 4096];
        let sent: Vec<Bytes> = (0..35)
            .map(|number| numbered(number, lengths[number % lengths.len()]))
            .collect();
        for (from, to) in [(0, 1), (1, 0)] {
            for payload in &sent {
                let half = payload.len() / 2;
                let parts = [payload.slice(..half), payload.slice(half..)];
                let node = NodeId(u32::try_from(to).unwrap());
                nodes.until("room", |nodes| {
                    nodes.nodes[from].send(node, kind::GROUP, &parts).is_ok()
                });
            }
        }
        nodes.until("arrival", |nodes| {
            [0, 1]
                .iter()
                .all(|&at| nodes.frames(at).len() == sent.len())
        });
        assert!(nodes.frames(0) == sent && nodes.frames(1) == sent);
        assert_eq!(nodes.downs(0) + nodes.downs(1), 0);
    }
}

#[test]
fn an_answer_longer_than_a_frame_arrives_whole() {
    for protection in WireProtection::ALL {
        let mut nodes = Nodes::new(1, protection);
        for length in [4, frame::PAYLOAD_BYTES_MAX, 12 << 20] {
            let answer = numbered(length, length);
            let (address, key) = (nodes.nodes[0].local_address().unwrap(), nodes.key.clone());
            let asker = thread::spawn(move || ask::report(address, &key, "well", PATIENCE));
            nodes.until("answer", |nodes| {
                for event in nodes.events[0].drain(..) {
                    if let LinkEvent::Asked { observer, .. } = event {
                        nodes.nodes[0].answer(observer, kind::REPORT, &answer);
                    }
                }
                asker.is_finished()
            });
            assert!(asker.join().unwrap().unwrap() == answer, "{length} bytes");
        }
    }
}

#[test]
fn a_full_link_refuses_and_has_room_again_when_the_peer_reads() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    nodes.linked(0, 1);
    let payload = numbered(1, 1 << 20);
    let mut sent = 0;
    while nodes.nodes[0]
        .send(NodeId(1), kind::GROUP, std::slice::from_ref(&payload))
        .is_ok()
    {
        sent += 1;
    }
    assert_eq!(
        sent,
        OUT_BYTES_MAX / payload.len() - 1,
        "headers count, too"
    );
    let refused = nodes.nodes[0].send(NodeId(1), kind::GROUP, std::slice::from_ref(&payload));
    assert_eq!(refused, Err(SendError::Full(Full)));
    nodes.until("room", |nodes| {
        nodes.nodes[0].room_bytes(NodeId(1)) == OUT_BYTES_MAX
    });
    nodes.until("arrival", |nodes| nodes.frames(1).len() == sent);
    let stranger = nodes.nodes[0].send(NodeId(9), kind::GROUP, &[]);
    assert_eq!(stranger, Err(SendError::Down(NodeId(9))));
}

#[test]
fn a_frame_that_no_peer_takes_is_refused_and_those_behind_it_arrive() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    nodes.linked(0, 1);
    let length = frame::PAYLOAD_BYTES_MAX + 1;
    let parts = [numbered(1, 8), numbered(2, length - 8)];
    let refused = nodes.nodes[0].send(NodeId(1), kind::GROUP, &parts);
    let too_long = FrameError::TooLong(length);
    assert_eq!(refused, Err(SendError::Frame(too_long)));
    let sent = nodes.nodes[0].send(NodeId(1), kind::GROUP, &[numbered(3, 8)]);
    assert_eq!(sent, Ok(()));
    nodes.until("arrival", |nodes| nodes.frames(1).len() == 1);
}

#[test]
fn a_broken_link_is_told_on_both_sides_and_made_again() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    nodes.linked(0, 1);
    let now = Instant::now();
    // Broken by the one that does not make it.
    let (links, events) = (&mut nodes.nodes[1], &mut nodes.events[1]);
    links.reset(NodeId(0), now, events);
    assert!(!nodes.nodes[1].is_open(NodeId(0)));
    nodes.until("again", |nodes| {
        nodes.downs(0) == 1
            && nodes.nodes[0].is_open(NodeId(1))
            && nodes.nodes[1].is_open(NodeId(0))
    });
    assert_eq!(nodes.downs(1), 1);
    nodes.nodes[0]
        .send(NodeId(1), kind::GROUP, &[numbered(7, 8)])
        .unwrap();
    nodes.until("arrival", |nodes| nodes.frames(1).len() == 1);
}

#[test]
fn a_peer_that_is_not_there_is_called_until_it_is() {
    let mut nodes = Nodes::new(1, WireProtection::Plain);
    let held = BlockingStream::connect(nodes.nodes[0].local_address().unwrap()).unwrap();
    // An address of which we know that nobody listens there: the end of a connection.
    let nobody = held.local_addr().unwrap();
    let (links, events) = (&mut nodes.nodes[0], &mut nodes.events[0]);
    links.set_peer(NodeId(1), Some(nobody), Instant::now(), events);
    nodes.until("some tries", |nodes| {
        nodes.nodes[0].peers[&NodeId(1)].tries() >= 5
    });
    assert!(
        nodes.nodes[0]
            .trouble(NodeId(1))
            .unwrap()
            .contains("refused")
    );
    let other = nodes.start(hello(1, 1, WireProtection::Plain));
    nodes.linked(0, other);
    assert_eq!(nodes.nodes[0].trouble(NodeId(1)), None);
}

#[test]
fn a_node_that_starts_again_takes_the_place_of_its_earlier_process() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    nodes.linked(0, 1);
    // The called one cannot tell that the caller is gone: its connection still stands.
    let again = nodes.start(hello(0, 2, WireProtection::Plain));
    nodes.introduce(again, 1);
    nodes.until("the newer", |nodes| nodes.nodes[again].is_open(NodeId(1)));
    nodes.until("told", |nodes| nodes.downs(1) == 1);
    let ups: Vec<u64> = nodes.events[1]
        .iter()
        .filter_map(|event| match event {
            LinkEvent::Up { incarnation, .. } => Some(*incarnation),
            _ => None,
        })
        .collect();
    assert_eq!(ups, [1, 2]);
    // The earlier one calls again and is refused, again and again.
    nodes.until("refused", |nodes| {
        nodes.nodes[0].peers[&NodeId(1)].tries() >= 3
    });
    assert_eq!(nodes.downs(1), 1);
    assert!(nodes.nodes[1].is_open(NodeId(0)));
}

#[test]
fn strangers_and_liars_are_refused() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    let refused = |nodes: &mut Nodes, at: usize, reason: &str| {
        nodes.introduce(at, 1);
        nodes.until(reason, |nodes| {
            nodes.nodes[at]
                .trouble(NodeId(1))
                .is_some_and(|why| why.contains(reason))
        });
        assert_eq!(nodes.nodes[1].peers.len(), 0);
    };
    let key = std::mem::replace(&mut nodes.key, ClusterKey::generate().unwrap());
    let stranger = nodes.start(hello(0, 1, WireProtection::Plain));
    refused(&mut nodes, stranger, "closed");
    nodes.key = key;
    let pond = Hello {
        cluster: "pond".to_owned(),
        ..hello(0, 1, WireProtection::Plain)
    };
    let other_cluster = nodes.start(pond);
    refused(&mut nodes, other_cluster, "the peer is of cluster \"well\"");
    let lane = Hello {
        lane: 1,
        ..hello(0, 1, WireProtection::Plain)
    };
    let other_lane = nodes.start(lane);
    refused(&mut nodes, other_lane, "lane");
}

#[test]
fn bytes_that_are_no_handshake_close_the_connection_without_an_answer() {
    use std::io::{Read, Write};
    let mut nodes = Nodes::new(1, WireProtection::Plain);
    let address = nodes.nodes[0].local_address().unwrap();
    let mut stream = BlockingStream::connect(address).unwrap();
    stream.write_all(&[7; 200]).unwrap();
    nodes.until("accepted", |nodes| nodes.nodes[0].next_token > 1);
    nodes.until("closed", |nodes| nodes.nodes[0].connections.is_empty());
    let mut said = Vec::new();
    // An end or a reset, as bytes were left unread; never a word.
    assert!(matches!(stream.read_to_end(&mut said), Ok(0) | Err(_)));
    assert!(said.is_empty());
}

#[test]
fn strangers_push_each_other_out_and_never_keep_out_a_node() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    let address = nodes.nodes[1].local_address().unwrap();
    let mut flood: Vec<BlockingStream> = Vec::new();
    for count in [200, 1000] {
        for _ in 0..count {
            flood.push(BlockingStream::connect(address).unwrap());
            // Takes them in, as others keep coming.
            nodes.turn();
        }
        // The node that calls is linked, and again after its link broke.
        nodes.linked(0, 1);
        let (node, now) = (nodes.nodes[0].hello.node, Instant::now());
        let mut events = Vec::new();
        nodes.nodes[1].reset(node, now, &mut events);
        nodes.linked(0, 1);
        let counts = nodes.nodes[1].strangers();
        assert!(
            counts.waiting <= STRANGERS.places_of_source as u64,
            "{counts:?}"
        );
        assert!(counts.displaced > 0, "{counts:?}");
        flood.clear();
    }
    assert_eq!(nodes.nodes[1].strangers().wrong_key, 0);
}

#[test]
fn strangers_that_stay_silent_are_late() {
    let mut nodes = Nodes::new(1, WireProtection::Plain);
    let address = nodes.nodes[0].local_address().unwrap();
    let silent: Vec<_> = (0..3)
        .map(|_| BlockingStream::connect(address).unwrap())
        .collect();
    nodes.until("strangers", |nodes| nodes.nodes[0].connections.len() == 3);
    let later = Instant::now() + OPEN_LIMIT;
    let (links, events) = (&mut nodes.nodes[0], &mut nodes.events[0]);
    links.tick(later, events);
    assert_eq!((links.connections.len(), links.strangers().late), (0, 3));
    drop(silent);
}

#[test]
fn a_frame_that_is_none_ends_the_link() {
    let mut nodes = Nodes::new(2, WireProtection::Plain);
    nodes.linked(0, 1);
    let token = nodes.nodes[0].peers[&NodeId(1)].connection().unwrap();
    let link = &mut nodes.nodes[0].connections.get_mut(&token).unwrap().link;
    std::io::Write::write_all(link.stream_mut(), &[0xff; 5]).unwrap();
    nodes.until("down", |nodes| nodes.downs(1) == 1);
    let error = nodes.events[1].iter().find_map(|event| match event {
        LinkEvent::Down { error, .. } => Some(error.to_string()),
        _ => None,
    });
    assert!(error.unwrap().contains("a frame of 4294967295 bytes"));
}

#[test]
fn a_record_that_was_made_up_or_changed_ends_the_link() {
    for protection in [WireProtection::Authenticated, WireProtection::Encrypted] {
        let mut nodes = Nodes::new(2, protection);
        nodes.linked(0, 1);
        let token = nodes.nodes[0].peers[&NodeId(1)].connection().unwrap();
        let link = &mut nodes.nodes[0].connections.get_mut(&token).unwrap().link;
        // A frame as it would go without protection, as a record.
        let mut forged = vec![17 + 5, 0];
        forged.extend_from_slice(&frame::header(kind::GROUP, 1).unwrap());
        forged.extend_from_slice(&[7; 1 + 16]);
        std::io::Write::write_all(link.stream_mut(), &forged).unwrap();
        nodes.until("down", |nodes| nodes.downs(1) == 1);
        assert!(nodes.frames(1).is_empty());
        let error = nodes.events[1].iter().find_map(|event| match event {
            LinkEvent::Down { error, .. } => Some(error.to_string()),
            _ => None,
        });
        assert!(error.unwrap().contains("changed, repeated or forged"));
    }
}
