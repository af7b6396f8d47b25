use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use cenote_kv::engine::Counters;
use cenote_kv::group::marks::Marks;
use cenote_kv::group::owner::Change;
use cenote_kv::memory::key_hash::KeyHasher;
use mio::Waker;

use super::*;
use crate::backend::{Alone, Partitions as _};
use crate::mailboxes::Mailbox;
use crate::settings::Settings;
use crate::shared::WorkerFace;
use crate::times::Times;
use crate::traffic::Traffic;

/// The only worker of a server without sockets.
fn worker() -> Worker<Alone> {
    let poll = Poll::new().unwrap();
    let face = WorkerFace {
        mailbox: Mailbox::new(Waker::new(poll.registry(), WAKER).unwrap()),
        counters: Arc::new(Counters::default()),
        traffic: Traffic::default(),
        times: Times::default(),
    };
    let listener = Poll::new().unwrap();
    let waker = Waker::new(listener.registry(), WAKER).unwrap();
    let shared = Arc::new(Shared::new(Settings::default(), vec![face], waker));
    let backend = Alone::new(0, 1, 64 << 20, true, KeyHasher::new([7; 16]));
    Worker::new(poll, 0, backend, shared, Vec::new()).unwrap()
}

/// Brings a client that has said something.
fn connect(worker: &mut Worker<Alone>, said: &[u8]) -> UnixStream {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    peer.write_all(said).unwrap();
    stream.set_nonblocking(true).unwrap();
    worker.take_client(NewClient::over(stream));
    peer
}

#[test]
fn a_client_at_the_place_of_one_that_left_while_queued_waits_for_room_once() {
    let mut worker = worker();
    // Others have all memory for answers.
    let all = usize::MAX / 4;
    worker.core.clients.change(Part::Answers, 0, all);
    let _gone = connect(&mut worker, b"");
    worker.drop_client(0);
    let _peer = connect(&mut worker, b"version\r\n");
    worker.take_turns(TURNS_MAX);
    assert!(worker.queue.is_empty());
    assert!(worker.core.clients.is_waited_for(Part::Answers));
    worker.core.clients.change(Part::Answers, all, 0);
    worker.give_room();
    assert_eq!(worker.queue, [0]);
}

/// Has so many bytes stored as `a`.
fn store_long(worker: &mut Worker<Alone>, bytes: usize) {
    let change = Change::Put {
        client_flags: 0,
        expiry: 0,
        marks: Marks::NONE,
        value: &[&vec![b'v'; bytes]],
    };
    let partition = worker.core.backend.partition(0);
    let hash = partition.hash_of(b"a");
    partition.propose(hash, b"a", change).unwrap();
}

#[test]
fn a_get_of_many_keys_takes_many_turns() {
    const KEYS: usize = 5000;
    const MOST: u64 = 1000;
    // One line; lines as long as those that take no memory.
    let one = format!("get{}\r\nmn\r\n", " a".repeat(KEYS));
    let lines = format!(
        "{}mn\r\n",
        format!("get{}\r\n", " a".repeat(1000)).repeat(5)
    );
    for (said, ends) in [(one, 1), (lines, 5)] {
        let mut worker = worker();
        let mut peer = connect(&mut worker, said.as_bytes());
        let mut turns = 0;
        let mut looked_up = 0;
        while looked_up < KEYS as u64 {
            worker.take_turns(1);
            worker.write();
            let now = worker.core.engine.counters().get_misses.read();
            assert!(
                now - looked_up <= MOST,
                "{} keys in one turn",
                now - looked_up
            );
            assert!(now > looked_up || !worker.queue.is_empty());
            looked_up = now;
            turns += 1;
        }
        assert!(turns >= KEYS as u64 / MOST);
        worker.take_turns(TURNS_MAX);
        worker.write();
        let mut answer = vec![0; 5 * ends + 4];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(
            answer,
            format!("{}MN\r\n", "END\r\n".repeat(ends)).as_bytes()
        );
    }
}

#[test]
fn a_peer_that_ends_with_its_request_is_over() {
    let mut worker = worker();
    // So long that it is written from where it lies.
    store_long(&mut worker, 100_000);
    let peer = connect(&mut worker, b"get a\r\n");
    drop(peer);
    worker.take_turns(TURNS_MAX);
    assert!(worker.queue.is_empty());
    worker.write();
    let places = 0..worker.places.occupants.len();
    let left = places.filter(|place| worker.places.client(*place).is_some());
    assert_eq!(left.count(), 0, "nobody tells of its end again");
}
