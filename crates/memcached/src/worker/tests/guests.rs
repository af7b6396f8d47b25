//! The client that may go on though others have all memory for answers: how long it may.

use super::*;
use crate::batch::{Asker, Ticket};
use crate::buffers::LEAST_BYTES;

const UNREAD: Source = Source::User(7);
const GUEST: Source = Source::User(1);
const OTHER: Source = Source::User(2);

/// A worker with a large item, whose memory for answers others have.
fn worker_without_memory(bytes: usize) -> Worker<Alone> {
    let mut worker = worker();
    store_long(&mut worker, bytes);
    have_all_answers(&mut worker, UNREAD);
    worker
}

/// Reads what there is; how much that was.
fn read_all(peer: &mut UnixStream) -> usize {
    peer.set_nonblocking(true).unwrap();
    let mut piece = vec![0; 1 << 20];
    let mut all = 0;
    while let Ok(length) = peer.read(&mut piece) {
        all += length;
    }
    all
}

/// The system says that a client takes more.
fn note_writable(worker: &mut Worker<Alone>, place: usize) {
    worker.places.client(place).unwrap().note_writable();
    worker.enqueue(place);
    go_on(worker);
}

#[test]
fn a_guest_that_always_asks_for_more_and_reads_it_is_not_the_guest_for_ever() {
    const ASKED: usize = 50;
    const BYTES: usize = 300_000;
    for (asked, count) in [
        ("get a\r\n", ASKED),
        ("get a a a a a a a a a a\r\n", ASKED / 10),
    ] {
        let mut worker = worker_without_memory(BYTES);
        let mut guest = connect_as(&mut worker, GUEST, asked.repeat(count).as_bytes());
        go_on(&mut worker);
        let mut other = connect_as(&mut worker, OTHER, b"get a\r\n");
        go_on(&mut worker);
        assert!(worker.places.client(1).unwrap().is_waiting);
        let mut read = 0;
        while worker.places.client(1).unwrap().is_waiting {
            let more = read_all(&mut guest);
            read += more;
            let is_bounded = more > 0 && read < ASKED * BYTES / 2;
            assert!(is_bounded, "{read} bytes of {asked:?}");
            note_writable(&mut worker, 0);
        }
        assert!(read_all(&mut other) > 0);
        // Both come to their end.
        while read < ASKED * BYTES {
            read_all(&mut other);
            note_writable(&mut worker, 1);
            read += read_all(&mut guest);
            note_writable(&mut worker, 0);
        }
    }
}

/// A guest that reads nothing any more, at once or after some seconds.
#[test]
fn a_guest_that_does_not_read_goes_when_another_could_be_the_guest() {
    for reads in [true, false] {
        let mut worker = worker_without_memory(1 << 20);
        let mut guest = connect_as(&mut worker, GUEST, b"get a\r\n");
        go_on(&mut worker);
        for _ in 0..5 {
            worker.drop_slow();
            assert!(worker.places.client(0).is_some(), "nobody waits for it");
        }
        let mut other = connect_as(&mut worker, OTHER, b"get a\r\n");
        go_on(&mut worker);
        // It may have become the guest just now.
        worker.drop_slow();
        assert!(worker.places.client(0).is_some());
        if reads {
            // So little that the system takes no more from here.
            guest.read_exact(&mut vec![0; 2 * LEAST_BYTES]).unwrap();
            worker.drop_slow();
            worker.drop_slow();
            assert!(worker.places.client(0).is_some(), "it has read");
        }
        assert_eq!(read_all(&mut other), 0);
        worker.drop_slow();
        assert!(worker.places.client(0).is_none());
        worker.give_room();
        go_on(&mut worker);
        assert!(read_all(&mut other) > 0);
    }
}

#[test]
fn who_sends_much_and_reads_nothing_keeps_no_memory_for_answers() {
    const UNSENT: usize = 10_000;
    let mut worker = worker();
    let mut peer = connect_as(&mut worker, GUEST, b"");
    worker.take_turns(TURNS_MAX);
    let client = worker.places.client(0).unwrap();
    client.session.replies.tail().resize(8 << 20, b'v');
    client.write(&worker.core);
    // Few enough for it to be asked for more.
    let unsent = client.session.replies.unsent().len();
    client.session.replies.note_sent(unsent - UNSENT);
    client.count_answers(&mut worker.core);
    let other = Waiter {
        source: OTHER,
        place: 1,
        wanted: usize::MAX / 4,
    };
    worker.core.clients.wait(Part::Answers, other);
    let value = "v".repeat(LEAST_BYTES);
    let set = format!("set x 0 0 {LEAST_BYTES} noreply\r\n{value}\r\n");
    for _ in 0..3 * PATIENCE_SECONDS {
        let Some(client) = worker.places.client(0) else {
            return;
        };
        client.note_readable();
        peer.write_all(set.as_bytes()).unwrap();
        let before = worker.core.traffic().bytes_read.read();
        worker.enqueue(0);
        worker.take_turns(TURNS_MAX);
        worker.write();
        let read = worker.core.traffic().bytes_read.read() - before;
        assert_eq!(read, set.len() as u64);
        worker.drop_slow();
    }
    panic!("it keeps its memory");
}

#[test]
fn who_waits_to_store_is_given_its_answers_meanwhile() {
    let mut worker = worker_without_memory(1 << 20);
    let mut peer = connect_as(&mut worker, GUEST, b"get a\r\n");
    go_on(&mut worker);
    let client = worker.places.client(0).unwrap();
    assert!(!client.session.replies.unsent().is_empty());
    // As if a store stood behind it for which there is no room.
    client.is_waiting = true;
    let waiter = client.waiter(usize::MAX / 4);
    worker.core.clients.wait(Part::Large, waiter);
    let mut events = Events::with_capacity(EVENTS_MAX);
    let mut read = 0;
    let whole = "VALUE a 0 1048576\r\n".len() + (1 << 20) + "\r\nEND\r\n".len();
    while read < whole {
        let more = read_all(&mut peer);
        assert!(more > 0, "{read} bytes of {whole} came");
        read += more;
        let patience = Some(Duration::from_secs(1));
        worker.poll.poll(&mut events, patience).unwrap();
        events.iter().for_each(|event| worker.note(event));
        worker.write();
    }
    let mut other = connect_as(&mut worker, OTHER, b"get a\r\n");
    go_on(&mut worker);
    assert!(read_all(&mut other) > 0, "the first is still the guest");
}

#[test]
fn a_guest_whose_request_cannot_be_served_yet_is_the_guest_no_more() {
    for request in ["get a\r\n", "set b 0 0 1\r\nx\r\n"] {
        let mut worker = worker_without_memory(100_000);
        let _guest = connect_as(&mut worker, GUEST, request.as_bytes());
        // One before it waits for its partition.
        let before = Ticket {
            asker: Asker::Worker(0),
            client: 0,
            generation: worker.places.generations[0],
            slot: 0,
        };
        worker.core.park(before, b"mn\r\n");
        go_on(&mut worker);
        let mut other = connect_as(&mut worker, OTHER, b"get a\r\n");
        go_on(&mut worker);
        assert!(read_all(&mut other) > 0, "{request:?}");
    }
}
