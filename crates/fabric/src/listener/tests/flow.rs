//! Messages both ways, and peers that do not take them.

use super::*;
use crate::{MESSAGE_BYTES_MAX, Status};

#[test]
fn messages_arrive_in_order_on_both_kinds_of_connection() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for address in &host.addresses {
        let mut session = connect(address, 5);
        let (peer, _) = host.next_connected();
        for index in 0..100_u8 {
            session
                .send(&vec![index; usize::from(index) * 160])
                .unwrap();
        }
        for index in 0..100_u8 {
            match receive(&mut *session) {
                Incoming::Message(bytes) => {
                    assert_eq!(bytes, vec![index; usize::from(index) * 160])
                }
                Incoming::Attached(..) => panic!("nothing was attached"),
            }
            assert!(matches!(host.next(), Event::Message { peer: p, .. } if p == peer));
        }
        let mut endpoint = session.endpoint(PATIENCE).unwrap();
        let mut queue = CompletionQueue::default();
        endpoint
            .post_send(b"by data connection", 1, &mut queue)
            .unwrap();
        assert_eq!(completion(&mut *endpoint, &mut queue).status, Status::Ok);
        match host.next() {
            Event::Message { peer: p, bytes } => {
                assert_eq!((p, &bytes[..]), (peer, &b"by data connection"[..]))
            }
            other => panic!("expected the SEND, got {other:?}"),
        }
        drop((session, endpoint));
        assert!(matches!(host.next(), Event::Disconnected { .. }));
    }
}

#[test]
fn sends_to_a_host_that_does_not_read_are_bounded_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let address = shm_address(&dir);
    let mut listener = Listener::bind(std::slice::from_ref(&address), &key()).unwrap();
    let (mut session, mut endpoint) = {
        let client = thread::spawn(move || {
            let session = connect(&address, 5);
            let endpoint = session.endpoint(PATIENCE).unwrap();
            (session, endpoint)
        });
        while !client.is_finished() {
            listener
                .poll(Some(Duration::from_millis(10)), &mut Vec::new())
                .unwrap();
        }
        client.join().unwrap()
    };
    let (mut queue, message) = (CompletionQueue::default(), vec![1; MESSAGE_BYTES_MAX]);
    let mut taken = 0_usize;
    loop {
        endpoint.post_send(&message, 0, &mut queue).unwrap();
        match queue.pop().unwrap().status {
            Status::Ok => taken += 1,
            Status::ReceiverNotReady => break,
            other => panic!("{other:?}"),
        }
        assert!(taken < 10_000, "nothing bounds the queue");
    }
    let mut queued = 0_usize;
    let refusal = loop {
        match session.send(&message) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
        assert!(queued < 10_000, "nothing bounds the session");
    };
    assert!(matches!(refusal, Error::Bound(_)) && session.wants_write());
    // Nothing that was taken is lost once the host reads.
    let (mut events, mut heard) = (Vec::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    while heard < taken + queued {
        listener
            .poll(Some(Duration::from_millis(10)), &mut events)
            .unwrap();
        heard += events
            .drain(..)
            .filter(|e| matches!(e, Event::Message { .. }))
            .count();
        assert!(session.receive().unwrap().is_none());
        endpoint.flush(&mut queue);
        assert!(
            Instant::now() < deadline,
            "{heard} of {} messages",
            taken + queued
        );
    }
    endpoint.post_send(&message, 0, &mut queue).unwrap();
    assert_eq!(queue.pop().unwrap().status, Status::Ok);
}

#[test]
fn a_peer_that_takes_no_answers_is_not_asked_for_more() {
    let dir = tempfile::tempdir().unwrap();
    let address = shm_address(&dir);
    let mut listener = Listener::bind(std::slice::from_ref(&address), &key()).unwrap();
    let region = Arc::new(Region::create("test", 4096, RegionOptions::default()).unwrap());
    let descriptor = listener.register(region, Rights::ALL).unwrap();
    let client = thread::spawn(move || connect(&address, 5));
    let mut events = Vec::new();
    while !client.is_finished() {
        listener
            .poll(Some(Duration::from_millis(10)), &mut events)
            .unwrap();
    }
    let mut session = client.join().unwrap();
    let Some(Event::Connected { peer, .. }) = events.pop() else {
        panic!("no peer")
    };
    while listener.send(peer, &[0; MESSAGE_BYTES_MAX]).is_ok() {}
    assert!(matches!(
        listener.send(peer, &[0]),
        Ok(()) | Err(Error::Bound(_))
    ));
    let mut asked = 0_usize;
    while session.attach(descriptor).is_ok() && asked < 100_000 {
        asked += 1;
        listener.poll(Some(Duration::ZERO), &mut events).unwrap();
    }
    assert!(
        events.is_empty() && asked < 100_000,
        "requests are held back by the sockets' bounds"
    );
    let deadline = Instant::now() + PATIENCE;
    let mut attached = 0_usize;
    while attached < asked {
        listener.poll(Some(Duration::ZERO), &mut events).unwrap();
        while let Some(incoming) = session.receive().unwrap() {
            attached += usize::from(matches!(incoming, Incoming::Attached(_, Ok(_))));
        }
        assert!(Instant::now() < deadline, "{attached} of {asked} attached");
    }
}
