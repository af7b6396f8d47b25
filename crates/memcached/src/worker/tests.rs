mod drains;
mod guests;
mod other_workers;

use std::io::{Read, Write};
use std::net::UdpSocket as Peer;
use std::os::unix::net::UnixStream;

use cenote_kv::engine::{Ask, Counters, Outcome, Sight};
use cenote_kv::group::marks::Marks;
use cenote_kv::group::owner::Change;
use cenote_kv::memory::key_hash::KeyHasher;
use cenote_kv::protocol::{Request, Retrieval, Words};
use mio::Waker;

use super::*;
use crate::backend::{Alone, Partitions as _};
use crate::mailboxes::Mailbox;
use crate::settings::Settings;
use crate::shared::WorkerFace;
use crate::times::Times;
use crate::traffic::Traffic;
use crate::turns::Waiter;

/// The only worker of a server without sockets.
fn worker() -> Worker<Alone> {
    worker_with(Vec::new())
}

/// The only worker of a server with these sockets for datagrams.
fn worker_with(sockets: Vec<UdpSocket>) -> Worker<Alone> {
    worker_of(Settings::default(), sockets)
}

fn worker_of(settings: Settings, sockets: Vec<UdpSocket>) -> Worker<Alone> {
    let poll = Poll::new().unwrap();
    let face = WorkerFace {
        mailbox: Mailbox::new(Waker::new(poll.registry(), WAKER).unwrap()),
        counters: Arc::new(Counters::default()),
        traffic: Traffic::default(),
        times: Times::default(),
    };
    let listener = Poll::new().unwrap();
    let waker = Waker::new(listener.registry(), WAKER).unwrap();
    let shared = Arc::new(Shared::new(settings, vec![face], waker));
    let backend = Alone::new(0, 1, 64 << 20, true, KeyHasher::new([7; 16]));
    Worker::new(poll, 0, backend, shared, sockets).unwrap()
}

/// Brings a client that has said something.
fn connect(worker: &mut Worker<Alone>, said: &[u8]) -> UnixStream {
    connect_as(worker, Source::User(0), said)
}

/// The same, of a source.
fn connect_as(worker: &mut Worker<Alone>, source: Source, said: &[u8]) -> UnixStream {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    peer.write_all(said).unwrap();
    stream.set_nonblocking(true).unwrap();
    let new = NewClient::over(stream);
    worker.take_client(NewClient { source, ..new });
    peer
}

#[test]
fn a_client_at_the_place_of_one_that_left_while_queued_waits_for_room_once() {
    let mut worker = worker();
    have_all_answers(&mut worker, Source::User(0));
    let _gone = connect(&mut worker, b"");
    worker.drop_client(0);
    let _peer = connect(&mut worker, b"stats\r\n");
    worker.take_turns(TURNS_MAX);
    assert!(worker.queue.is_empty());
    assert!(worker.core.clients.is_waited_for(Part::Answers));
    worker.core.clients.change(Part::Answers, ALL, 0);
    worker.give_room();
    assert_eq!(worker.queue, [0]);
}

/// More memory than there is.
const ALL: usize = usize::MAX / 4;

/// A source has all memory for answers.
fn have_all_answers(worker: &mut Worker<Alone>, source: Source) {
    worker.core.clients.change(Part::Answers, 0, ALL);
    worker.core.clients.change_source(source, 0, ALL);
}

/// Goes on until nobody has a turn any more.
fn go_on(worker: &mut Worker<Alone>) {
    while !worker.queue.is_empty() {
        worker.take_turns(TURNS_MAX);
        worker.take_answers();
        worker.write();
        worker.give_room();
    }
}

/// Takes what a peer is told, which ends so.
fn told(peer: &mut UnixStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        peer.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn requests_with_small_answers_are_served_while_their_source_has_all_memory_for_answers() {
    let mut worker = worker();
    have_all_answers(&mut worker, Source::User(0));
    let said = b"set a 0 0 1\r\nx\r\nget a\r\nget b a a b\r\nmg a v k\r\nincr a 1\r\nmn\r\n";
    let mut peer = connect(&mut worker, said);
    peer.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    go_on(&mut worker);
    let a = "VALUE a 0 1\r\nx\r\n";
    let number = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    assert_eq!(
        told(&mut peer, "MN\r\n"),
        format!("STORED\r\n{a}END\r\n{a}{a}END\r\nVA 1 ka\r\nx\r\n{number}MN\r\n")
    );
    // A get of a key that is not there, in the binary protocol.
    let get = [&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 12], b"z"].concat();
    let mut peer = connect(&mut worker, &get);
    peer.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    go_on(&mut worker);
    let mut answer = [0; 24];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[7]), (0x81, 1), "not found");
    assert!(!worker.core.clients.is_waited_for(Part::Answers));
}

#[test]
fn what_is_told_of_a_large_item_without_its_value_is_no_large_answer() {
    let mut worker = worker();
    store_long(&mut worker, 100_000);
    have_all_answers(&mut worker, Source::User(0));
    let mut peer = connect(&mut worker, b"mg a s k\r\nmn\r\n");
    go_on(&mut worker);
    assert!(!worker.core.clients.is_waited_for(Part::Answers));
    assert_eq!(told(&mut peer, "MN\r\n"), "HD s100000 ka\r\nMN\r\n");
}

#[test]
fn large_answers_wait_for_memory_and_come_in_order() {
    let large = "v".repeat(100_000);
    let value = format!("VALUE a 0 100000\r\n{large}\r\n");
    let several = format!("{value}VALUE s 0 1\r\nx\r\n{value}END\r\nMN\r\n");
    let meta = format!("VA 100000\r\n{large}\r\nMN\r\n");
    let whole = format!("{value}END\r\nMN\r\n");
    for (said, expected) in [
        ("get a\r\nmn\r\n", whole),
        ("get a s a\r\nmn\r\n", several),
        ("mg a v\r\nmn\r\n", meta),
    ] {
        let mut worker = worker();
        store_long(&mut worker, 100_000);
        have_all_answers(&mut worker, Source::User(0));
        let said = format!("set s 0 0 1 noreply\r\nx\r\n{said}");
        let mut peer = connect(&mut worker, said.as_bytes());
        go_on(&mut worker);
        assert!(worker.core.clients.is_waited_for(Part::Answers));
        let held = worker.places.client(0).unwrap().session.replies.bytes();
        assert!(held < 1024, "{held} bytes");
        worker.core.clients.change(Part::Answers, ALL, 0);
        let client = worker.places.client(0).unwrap();
        client.turn(&mut worker.core);
        let expected_bytes = client.session.replies.bytes();
        assert!(expected_bytes >= 100_000, "others may not ask at once");
        let reader = std::thread::spawn(move || told(&mut peer, "MN\r\n"));
        worker.give_room();
        while !reader.is_finished() {
            worker.places.client(0).unwrap().note_writable();
            worker.enqueue(0);
            go_on(&mut worker);
        }
        assert!(reader.join().unwrap() == expected);
    }
}

#[test]
fn a_large_answer_of_another_source_waits_for_none_that_has_all_memory() {
    let mut worker = worker();
    store_long(&mut worker, 100_000);
    have_all_answers(&mut worker, Source::User(7));
    worker.core.clients.wait(
        Part::Answers,
        Waiter {
            source: Source::User(7),
            place: 1,
            wanted: 1,
        },
    );
    let mut peer = connect(&mut worker, b"get a\r\nmn\r\n");
    let reader = std::thread::spawn(move || told(&mut peer, "MN\r\n"));
    while !reader.is_finished() {
        let client = worker.places.client(0).unwrap();
        assert!(!client.is_waiting, "it waits for the other");
        client.note_writable();
        worker.enqueue(0);
        go_on(&mut worker);
    }
    assert_eq!(reader.join().unwrap().len(), 18 + 100_000 + 2 + 5 + 4);
    assert!(
        worker.core.clients.is_waited_for(Part::Answers),
        "the other's"
    );
}

#[test]
fn a_dump_waits_for_memory_that_others_have() {
    let mut worker = worker();
    store_long(&mut worker, 1);
    let mut peer = connect(&mut worker, b"lru_crawler metadump all\r\n");
    worker.take_turns(1);
    have_all_answers(&mut worker, Source::User(0));
    // The first piece was asked for before.
    worker.take_answers();
    go_on(&mut worker);
    assert!(worker.core.clients.is_waited_for(Part::Answers));
    worker.core.clients.change(Part::Answers, ALL, 0);
    worker.give_room();
    go_on(&mut worker);
    assert!(told(&mut peer, "END\r\n").starts_with("key=a "));
}

#[test]
fn who_does_not_read_has_one_small_answer_unsent_while_others_have_the_memory() {
    let mut worker = worker();
    store_long(&mut worker, 1000);
    have_all_answers(&mut worker, Source::User(0));
    let mut peer = connect(&mut worker, b"");
    peer.set_nonblocking(true).unwrap();
    while peer.write(&b"get a\r\n".repeat(100)).is_ok() {
        worker.places.client(0).unwrap().note_readable();
        worker.enqueue(0);
        go_on(&mut worker);
    }
    let session = &mut worker.places.client(0).unwrap().session;
    let unsent = session.replies.unsent().len();
    assert!((1..1100).contains(&unsent), "{unsent} bytes");
}

#[test]
fn who_does_not_read_its_replies_in_the_middle_of_a_store_keeps_no_memory_from_others() {
    let mut worker = worker();
    let half = format!("set x 0 0 1000000\r\n{}", "v".repeat(100_000));
    let _peer = connect(&mut worker, half.as_bytes());
    worker.take_turns(TURNS_MAX);
    // What it has asked for before comes now.
    let client = worker.places.client(0).unwrap();
    let replies = client.session.replies.tail();
    replies.resize(8 << 20, b'v');
    client.write(&worker.core);
    client.count_answers(&mut worker.core);
    assert!(client.session.is_held_up() && client.held.of(Part::Large) > 0);
    let other = Waiter {
        source: Source::User(7),
        place: 1,
        wanted: usize::MAX / 4,
    };
    worker.core.clients.wait(Part::Large, other);
    for _ in 0..2 * PATIENCE_SECONDS {
        worker.drop_slow();
    }
    assert!(worker.places.client(0).is_none(), "it keeps its memory");
}

#[test]
fn who_sends_a_request_or_waits_with_it_is_not_idle() {
    let settings = Settings {
        idle_timeout: Some(Duration::from_secs(5)),
        ..Settings::default()
    };
    let mut worker = worker_of(settings, Vec::new());
    let mut peer = connect(&mut worker, b"set a 0 0 10\r\n");
    let mut go_on = |worker: &mut Worker<Alone>, said: &[u8]| {
        peer.write_all(said).unwrap();
        let mut events = Events::with_capacity(EVENTS_MAX);
        let patience = Some(Duration::from_secs(60));
        worker.poll.poll(&mut events, patience).unwrap();
        events.iter().for_each(|event| worker.note(event));
        worker.take_turns(TURNS_MAX);
    };
    for _ in 0..10 {
        go_on(&mut worker, b"v");
        worker.core.now += 3;
        worker.drop_idle();
        assert!(worker.places.client(0).is_some(), "it sends");
    }
    worker.places.client(0).expect("it sends").is_waiting = true;
    worker.core.now += 10;
    worker.drop_idle();
    worker.places.client(0).expect("it waits").is_waiting = false;
    go_on(&mut worker, b"\r\n");
    worker.write();
    assert_eq!(worker.core.engine.counters().cmd_set.read(), 1);
    worker.core.now += 10;
    worker.drop_idle();
    assert!(worker.places.client(0).is_none());
    assert_eq!(worker.core.traffic().idle_kicks.read(), 1);
}

#[test]
fn a_client_is_found_by_its_place_until_it_goes() {
    let mut worker = worker();
    assert_eq!(worker.shared.descriptor(0, 0), 0);
    let _first = connect(&mut worker, b"");
    assert_eq!(worker.shared.descriptor(0, 0), 7);
    worker.drop_client(0);
    assert_eq!(worker.shared.descriptor(0, 0), 0);
    let _second = connect(&mut worker, b"");
    assert_eq!(worker.shared.descriptor(0, 0), 7);
}

#[test]
fn whose_request_is_counted_by_its_prefix_is_not_asked() {
    let core = &mut worker().core;
    core.shared.details.set(true);
    core.look_for_watchers();
    let (key, mut answer) = (b"prefix:a", Vec::new());
    let ask = Ask {
        request: &Request::Get(Retrieval {
            keys: Words::new(key),
            with_cas: false,
            touch: None,
        }),
        key,
        sight: Sight::Committed,
    };
    let partition = core.backend.partition(0);
    let outcome = core.engine.serve(partition, &ask, &mut answer);
    assert!(matches!(outcome, Outcome::Answered { waits_for: None }));
    core.note_events(key, || panic!("nobody is to be told"));
    let mut counted = Vec::new();
    core.shared.details.dump(&mut counted);
    assert!(counted.starts_with(b"PREFIX prefix get 1 "));
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

#[test]
fn the_buffer_of_a_long_line_grows_few_times() {
    const PIECE: usize = 10_000;
    let mut worker = worker();
    let mut peer = connect(&mut worker, b"get");
    let mut capacities = Vec::new();
    let mut said = 0;
    while said < 1_000_000 {
        peer.write_all(&b" a".repeat(PIECE / 2)).unwrap();
        said += PIECE;
        let client = worker.places.client(0).unwrap();
        client.turn(&mut worker.core);
        // The poll is not asked here.
        client.note_readable();
        capacities.push(client.input_bytes());
    }
    capacities.dedup();
    assert!(capacities.len() <= 8, "{capacities:?}");
    assert!(capacities.is_sorted() && capacities.last() <= Some(&((1 << 20) + 1)));
    peer.write_all(b"\r\n").unwrap();
    worker.enqueue(0);
    let misses = |worker: &Worker<Alone>| worker.core.engine.counters().get_misses.read();
    while misses(&worker) < said as u64 / 2 {
        worker.take_turns(TURNS_MAX);
        worker.write();
    }
    let mut answer = [0; 5];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"END\r\n");
}

#[test]
fn a_turn_has_few_reads_also_where_buffers_are_short() {
    let mut worker = worker();
    let part = worker.core.clients.part_of(1);
    worker.core.clients.change(part, 0, usize::MAX / 4);
    let said = format!("set a 0 0 2000000\r\n{}", "v".repeat(190_000));
    let _peer = connect(&mut worker, said.as_bytes());
    worker.take_turns(1);
    let read = worker.core.traffic().bytes_read.read();
    assert!((10_000..150_000).contains(&read), "{read} bytes");
    assert_eq!(worker.queue, [0], "it goes on");
}

#[test]
fn small_requests_in_a_large_buffer_are_all_served() {
    const NOOPS: usize = 100_000;
    let mut worker = worker();
    let mut peer = connect(&mut worker, b"get");
    let line = format!("{}\r\n", " a".repeat(150_000));
    let said = [line.as_bytes(), &b"mn\r\n".repeat(NOOPS)].concat();
    let expected = 5 + 4 * NOOPS;
    let writer = std::thread::spawn({
        let mut peer = peer.try_clone().unwrap();
        move || peer.write_all(&said).unwrap()
    });
    let reader = std::thread::spawn(move || {
        let mut answer = vec![0; expected];
        peer.read_exact(&mut answer).unwrap();
        answer
    });
    while !reader.is_finished() {
        let client = worker.places.client(0).unwrap();
        client.note_readable();
        client.note_writable();
        worker.enqueue(0);
        worker.take_turns(TURNS_MAX);
        worker.write();
    }
    writer.join().unwrap();
    let answer = reader.join().unwrap();
    assert!(answer == [&b"END\r\n"[..], &b"MN\r\n".repeat(NOOPS)].concat());
}

/// A worker with a socket for datagrams, and who asks it.
fn worker_and_peer() -> (Worker<Alone>, Peer) {
    let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let peer = Peer::bind("127.0.0.1:0").unwrap();
    peer.connect(socket.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    (worker_with(vec![socket]), peer)
}

fn datagram(number: u8, text: &str) -> Vec<u8> {
    [&[0, number, 0, 0, 0, 1, 0, 0], text.as_bytes()].concat()
}

/// The number of the request that is answered next, and its reply.
fn answer(peer: &Peer) -> (u8, String) {
    let mut bytes = [0; 2000];
    let length = peer.recv(&mut bytes).unwrap();
    let text = String::from_utf8(bytes[8..length].to_vec()).unwrap();
    (bytes[1], text)
}

#[test]
fn a_datagram_of_many_requests_takes_many_turns() {
    const REQUESTS: u64 = 1000;
    let (mut worker, peer) = worker_and_peer();
    let gets = "get a\r\n".repeat(REQUESTS as usize);
    peer.send(&datagram(1, &gets)).unwrap();
    let most = worker.shared.settings.requests_per_turn.into();
    let mut served = 0;
    while served < REQUESTS {
        worker.sockets.note_readable(0);
        worker.take_datagrams();
        let now = worker.core.engine.counters().get_misses.read();
        assert!(
            now - served <= most,
            "{} requests in one turn",
            now - served
        );
        if served == 0 && now > 0 {
            // Another's is not behind all of them.
            peer.send(&datagram(2, "mn\r\n")).unwrap();
        }
        served = now;
    }
    let mut before = 0;
    while answer(&peer).0 == 1 {
        before += 1;
    }
    assert!(before < 3 * most, "{before} answers came first");
}

#[test]
fn a_get_of_many_keys_in_a_datagram_takes_many_turns() {
    const KEYS: u64 = 5000;
    let (mut worker, peer) = worker_and_peer();
    let get = format!("get{}\r\n", " a".repeat(KEYS as usize));
    peer.send(&datagram(1, &get)).unwrap();
    let mut looked_up = 0;
    while looked_up < KEYS {
        worker.sockets.note_readable(0);
        worker.take_datagrams();
        worker.take_turns(1);
        let now = worker.core.engine.counters().get_misses.read();
        assert!(
            now - looked_up <= 1000,
            "{} keys in one turn",
            now - looked_up
        );
        looked_up = now;
    }
    worker.take_turns(TURNS_MAX);
    assert_eq!(answer(&peer), (1, "END\r\n".to_owned()));
    assert_eq!(worker.places.exchanges, 0);
}

#[test]
fn replies_in_datagrams_are_not_answered_nor_is_what_stands_behind_them() {
    let (mut worker, peer) = worker_and_peer();
    store_long(&mut worker, 300_000);
    let mut sent = worker.core.traffic().bytes_read.read();
    let mut send = |datagram: Vec<u8>| sent += peer.send(&datagram).unwrap() as u64;
    let binary = [0x81, 0, 0, 0, 0, 0, 0, 0, b'\r', b'\n'];
    send([&datagram(1, "")[..], &binary].concat());
    let replies = [
        "ERROR\r\n",
        "END\r\n",
        "5\r\n",
        "VALUE a 0 5\r\nmn\r\n\r\nEND\r\n",
        "STAT pid 1\r\nversion\r\n",
        "CLIENT_ERROR bad data chunk\r\nmn\r\n",
        "HD\r\nmn\r\n",
        // Of a request whose reply is too long for datagrams.
        "get a\r\n",
    ];
    for reply in replies {
        send(datagram(1, reply));
    }
    send(datagram(2, "mn\r\n"));
    while worker.sockets.has_more() || worker.core.traffic().bytes_read.read() < sent {
        worker.sockets.note_readable(0);
        worker.take_datagrams();
    }
    assert_eq!(answer(&peer), (2, "MN\r\n".to_owned()));
}
