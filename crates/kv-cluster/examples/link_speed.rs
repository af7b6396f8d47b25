//! How fast a link is on loopback: the round trip of one frame, and small frames per second when
//! many leave in one write.
//!
//! `cargo run --release -p cenote-kv-cluster --example link_speed`

use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_fabric::{ClusterKey, WireProtection};
use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::frame::kind::GROUP;
use cenote_kv_cluster::handshake::Hello;
use cenote_kv_cluster::links::{LinkEvent, Links};
use mio::net::TcpListener;
use mio::{Events, Poll};

const TIME: Duration = Duration::from_secs(2);
const SMALL_BYTES: usize = 64;

struct End {
    poll: Poll,
    ready: Events,
    links: Links,
    events: Vec<LinkEvent>,
}

impl End {
    fn new(node: u32, key: &ClusterKey, protection: WireProtection) -> Self {
        let poll = Poll::new().unwrap();
        let hello = Hello {
            cluster: "speed".to_owned(),
            node: NodeId(node),
            incarnation: 1,
            lane: 0,
            protection,
        };
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let links = Links::new(hello, key.clone(), listener, poll.registry(), 0).unwrap();
        Self {
            poll,
            ready: Events::with_capacity(64),
            links,
            events: Vec::new(),
        }
    }

    /// One turn of the loop; the frames that came.
    fn turn(&mut self, wait: Duration) -> Vec<Bytes> {
        let now = Instant::now();
        self.links.flush(now, &mut self.events);
        let due = self.links.next_deadline(now);
        let wait = due.map_or(wait, |at| wait.min(at.saturating_duration_since(now)));
        self.poll.poll(&mut self.ready, Some(wait)).unwrap();
        let now = Instant::now();
        self.links.tick(now, &mut self.events);
        for event in &self.ready {
            self.links.handle(event, now, &mut self.events);
        }
        let frames = self.events.drain(..).filter_map(|event| match event {
            LinkEvent::Frame { frame, .. } => Some(frame.payload),
            LinkEvent::Down { error, .. } => panic!("{error}"),
            _ => None,
        });
        frames.collect()
    }
}

/// Sends back whatever comes, until it is told to stop.
fn echo(mut end: End, peer: NodeId) {
    loop {
        for payload in end.turn(Duration::from_secs(1)) {
            if payload.is_empty() {
                return;
            }
            end.links.send(peer, GROUP, &[payload]).unwrap();
        }
    }
}

fn measure(protection: WireProtection) {
    let key = ClusterKey::generate().unwrap();
    let (mut near, far) = (End::new(0, &key, protection), End::new(1, &key, protection));
    let peer = NodeId(1);
    let address = far.links.local_address().unwrap();
    near.links
        .set_peer(peer, Some(address), Instant::now(), &mut near.events);
    let echoing = std::thread::spawn(move || echo(far, NodeId(0)));
    while !near.links.is_open(peer) {
        near.turn(Duration::from_millis(10));
    }
    let name = protection;
    for length in [SMALL_BYTES, 1024, 65536] {
        let payload = Bytes::from(vec![7; length]);
        let mut times = Vec::new();
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            let sent = Instant::now();
            near.links
                .send(peer, GROUP, std::slice::from_ref(&payload))
                .unwrap();
            while near.turn(Duration::from_secs(1)).is_empty() {}
            times.push(sent.elapsed());
        }
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100].as_nanos() as f64 / 1000.0;
        println!(
            "{name}: {length} B there and back: p50 {:.1} us, p99 {:.1} us",
            at(50),
            at(99)
        );
    }
    for batch in [1, 16, 64, 256, 1024] {
        let payload = Bytes::from(vec![7; SMALL_BYTES]);
        let (mut waiting, mut done) = (0, 0_u64);
        let start = Instant::now();
        while start.elapsed() < TIME {
            // Keeps `batch` frames on their way; all that fit leave in one write.
            while waiting < batch {
                near.links
                    .send(peer, GROUP, std::slice::from_ref(&payload))
                    .unwrap();
                waiting += 1;
            }
            let count = near.turn(Duration::from_secs(1)).len();
            waiting -= count;
            done += count as u64;
        }
        while waiting > 0 {
            waiting -= near.turn(Duration::from_secs(1)).len();
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        println!(
            "{name}: {batch} on their way: {:.0} thousand round trips of {SMALL_BYTES} B per second",
            rate / 1000.0
        );
    }
    near.links.send(peer, GROUP, &[]).unwrap();
    near.links.flush(Instant::now(), &mut near.events);
    echoing.join().unwrap();
}

fn main() {
    WireProtection::ALL.into_iter().for_each(measure);
}
