//! Clients of one worker whose items another one has.

use cenote_kv::memory::key_hash::place_hash;

use super::*;
use crate::backend::Route;

/// Two workers of one server, without sockets.
fn two() -> [Worker<Alone>; 2] {
    let polls = [(); 2].map(|()| Poll::new().unwrap());
    let faces = polls.iter().map(|poll| WorkerFace {
        mailbox: Mailbox::new(Waker::new(poll.registry(), WAKER).unwrap()),
        counters: Arc::new(Counters::default()),
        traffic: Traffic::default(),
        times: Times::default(),
    });
    let faces = faces.collect();
    let listener = Poll::new().unwrap();
    let waker = Waker::new(listener.registry(), WAKER).unwrap();
    let shared = Arc::new(Shared::new(Settings::default(), faces, waker));
    let mut indices = 0..;
    polls.map(|poll| {
        let index = indices.next().unwrap();
        let backend = Alone::new(index, 2, 64 << 20, true, KeyHasher::new([7; 16]));
        Worker::new(poll, index, backend, Arc::clone(&shared), Vec::new()).unwrap()
    })
}

/// Goes on with both, for more rounds than a request and its answer take.
fn go_on_with(workers: &mut [Worker<Alone>; 2]) {
    for _ in 0..20 {
        go_round(workers);
    }
}

/// Goes on with each once.
fn go_round(workers: &mut [Worker<Alone>; 2]) {
    for worker in workers {
        worker.take_messages();
        worker.take_turns(TURNS_MAX);
        worker.core.move_on();
        worker.take_answers();
        worker.write();
        worker.give_room();
        assert!(worker.core.hand_over());
    }
}

/// A key of the second worker that begins so, with a value of so many bytes.
fn store(workers: &mut [Worker<Alone>; 2], begin: &str, bytes: usize) -> String {
    let mut keys = (0..).map(|number| format!("{begin}{number}"));
    let route = |key: &String| workers[0].core.backend.route(place_hash(key.as_bytes()));
    let key = keys.find(|key| route(key) == Route::Worker(1)).unwrap();
    let change = Change::Put {
        client_flags: 0,
        expiry: 0,
        marks: Marks::NONE,
        value: &[&vec![b'v'; bytes]],
    };
    let partition = workers[1].core.backend.partition(0);
    let hash = partition.hash_of(key.as_bytes());
    partition.propose(hash, key.as_bytes(), change).unwrap();
    key
}

fn value(key: &str, bytes: usize) -> String {
    format!("VALUE {key} 0 {bytes}\r\n{}\r\n", "v".repeat(bytes))
}

#[test]
fn another_worker_is_asked_whether_its_answer_is_small() {
    let mut workers = two();
    let small = store(&mut workers, "small", 1000);
    let large = store(&mut workers, "large", 100_000);
    have_all_answers(&mut workers[0], Source::User(0));
    let said = format!("get {small}\r\nmg {small} v\r\nget {small} {large} {small}\r\nmn\r\n");
    let mut peer = connect(&mut workers[0], said.as_bytes());
    go_on_with(&mut workers);
    let shown = value(&small, 1000);
    let meta = format!("VA 1000\r\n{}\r\n", "v".repeat(1000));
    let before = format!("{shown}END\r\n{meta}{shown}");
    let patience = Some(Duration::from_secs(60));
    peer.set_read_timeout(patience).unwrap();
    let mut said = vec![0; before.len()];
    peer.read_exact(&mut said).unwrap();
    assert_eq!(String::from_utf8(said).unwrap(), before);
    // The large one waits, and what stands behind it.
    assert!(workers[0].core.clients.is_waited_for(Part::Answers));
    let held = workers[0].places.client(0).unwrap().session.bytes();
    assert!(held < 2048, "{held} bytes");
    workers[0].core.clients.change(Part::Answers, ALL, 0);
    let reader = std::thread::spawn(move || told(&mut peer, "MN\r\n"));
    while !reader.is_finished() {
        workers[0].places.client(0).unwrap().note_writable();
        workers[0].enqueue(0);
        go_on_with(&mut workers);
    }
    let after = format!("{}{shown}END\r\nMN\r\n", value(&large, 100_000));
    assert!(reader.join().unwrap() == after);
}

/// None of them has been answered before, so nobody knows what comes.
#[test]
fn many_that_ask_for_large_values_at_once_stay_within_the_memory_for_clients() {
    const BYTES: usize = 900_000;
    let mut workers = two();
    let large = store(&mut workers, "large", BYTES);
    let get = format!("get{}\r\n", format!(" {large}").repeat(100));
    let connect = |_| connect(&mut workers[0], get.as_bytes());
    let peers: Vec<_> = (0..50).map(connect).collect();
    go_on_with(&mut workers);
    let held = workers[0].core.clients.held();
    let all = usize::try_from(Settings::default().buffer_bytes).unwrap();
    assert!((BYTES / 2..=all).contains(&held), "{held} bytes of {all}");
    drop(peers);
}

/// Something of it is under way at any time, of which it is told nothing.
#[test]
fn a_guest_that_sends_stores_without_answers_is_not_the_guest_for_ever() {
    let mut workers = two();
    let small = store(&mut workers, "small", 1);
    let large = store(&mut workers, "large", 100_000);
    have_all_answers(&mut workers[0], Source::User(7));
    let sets = format!("set {small} 0 0 1 noreply\r\nx\r\n").repeat(2000);
    let _guest = connect_as(&mut workers[0], Source::User(1), sets.as_bytes());
    go_round(&mut workers);
    let get = format!("get {large}\r\nmn\r\n");
    let mut other = connect_as(&mut workers[0], Source::User(2), get.as_bytes());
    other.set_nonblocking(true).unwrap();
    while let Err(error) = other.read(&mut [0; 100]) {
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let guest = workers[0].places.client(0).unwrap();
        assert!(guest.has_more(), "the other waits for all of it");
        go_round(&mut workers);
    }
}
