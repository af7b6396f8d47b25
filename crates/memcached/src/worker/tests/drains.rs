//! A server that ends: for whom it waits.

use super::*;
use crate::batch::{Asker, Ticket};
use crate::small_answers::Doubtful;

#[test]
fn a_server_that_ends_does_not_wait_for_who_reads_nothing() {
    let mut worker = worker();
    store_long(&mut worker, 1 << 20);
    // More than its socket takes.
    let mut reads = connect(&mut worker, b"get a a a\r\n");
    let _does_not = connect(&mut worker, b"get a a a\r\n");
    worker.shared.drains.store(true, Ordering::SeqCst);
    go_on(&mut worker);
    for _ in 0..=UNREAD_SECONDS {
        worker.drain();
        assert!(worker.places.client(1).is_some(), "it has some seconds");
        worker.core.now += 1;
        reads.read_exact(&mut vec![0; 100_000]).unwrap();
        worker.places.client(0).unwrap().note_writable();
        worker.written.push(0);
        worker.write();
        go_on(&mut worker);
    }
    worker.drain();
    assert!(worker.places.client(0).is_some(), "it reads");
    assert!(worker.places.client(1).is_none(), "it is waited for");
}

/// Another worker was asked whether its answer is small: it may still have to wait for memory.
#[test]
fn a_server_that_ends_answers_a_request_whose_answer_may_be_large() {
    let mut worker = worker();
    let _peer = connect(&mut worker, b"");
    worker.shared.drains.store(true, Ordering::SeqCst);
    let ticket = Ticket {
        asker: Asker::Worker(0),
        client: 0,
        generation: 0,
        slot: 0,
    };
    let asked = Doubtful::asked(ticket, b"get a\r\n".to_vec());
    worker.places.client(0).unwrap().session.doubtful = Some(asked);
    for _ in 0..3 {
        worker.drain();
        worker.core.now += 1;
        let client = worker.places.client(0).expect("it is answered first");
        assert!(!client.session.has_quit);
    }
    worker.places.client(0).unwrap().session.doubtful = None;
    worker.drain();
    assert!(worker.places.client(0).is_none());
}

/// The system takes megabytes for it at once, and says that it takes more when much of them is read.
#[test]
fn a_server_that_ends_waits_for_who_reads_less_than_the_system_keeps() {
    let mut worker = worker();
    store_long(&mut worker, 1 << 20);
    let mut peer = connect(&mut worker, b"get a a a a\r\n");
    worker.shared.drains.store(true, Ordering::SeqCst);
    go_on(&mut worker);
    worker.core.now += 1;
    for _ in 0..3 * UNREAD_SECONDS {
        // Of what lies at its end already: nothing more is written.
        peer.read_exact(&mut [0; 10_000]).unwrap();
        worker.drain();
        assert!(worker.places.client(0).is_some(), "it reads");
        worker.core.now += 1;
    }
    for _ in 0..=UNREAD_SECONDS {
        worker.drain();
        worker.core.now += 1;
    }
    worker.drain();
    assert!(worker.places.client(0).is_none(), "it reads no more");
}
