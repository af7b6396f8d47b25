//! Peers that are slow, silent, idle or gone.

use std::io::{Read as _, Write as _};
use std::sync::atomic::AtomicU64;

use super::*;
use crate::FAILURE_TIMEOUT;
use crate::tcp::answers::{Answer, Answers};
use crate::tcp::bench::Bench;
use crate::tcp::wire::{RESPONSE_BYTES, Request, Verb};

#[test]
fn a_client_that_takes_no_responses_is_not_read_and_loses_nothing() {
    for rig in Rig::all(1) {
        let (region, window) = rig.window(1 << 20, Rights::ALL);
        region.write(0, &pattern(1 << 20, 3)).unwrap();
        let mut slow = rig.client();
        let mut landing = vec![0; 64 << 20];
        for (i, part) in landing.chunks_mut(1 << 20).enumerate() {
            slow.read(&window, 0, part, i as u64);
        }
        slow.endpoint.flush(&mut slow.queue);
        let mut other = rig.client();
        let mut byte = [0; 4096];
        other.read(&window, 0, &mut byte, 1);
        assert_eq!(
            other.next().status,
            Status::Ok,
            "the other connection is served meanwhile"
        );
        assert_eq!(slow.statuses(64), [Status::Ok; 64]);
        let expected = pattern(1 << 20, 3);
        assert!(
            landing.chunks(1 << 20).all(|part| part == expected),
            "the bytes differ"
        );
    }
}

/// It asks for more than there is memory, and what is asked for is not there: zeros, without end.
#[test]
fn a_client_is_sent_its_share_in_a_turn_and_no_more() {
    for protection in WireProtection::ALL {
        let (mut ours, theirs) = sockets();
        theirs.set_nonblocking(true).unwrap();
        let (table, calls) = (WindowTable::new(), AtomicU64::new(0));
        let mut bench = Bench::new(&table, sync_channel(1).0, &calls);
        let sealer = records(protection).1.map(|(sealer, _)| sealer);
        let mut answers = Answers::new(sealer, false);
        let read = Request {
            verb: Verb::Read,
            len_bytes: u32::MAX,
            window: u32::MAX,
            immediate: None,
            generation: 0,
            offset: 0,
            operand: 0,
            swap: 0,
        };
        answers.push(Answer {
            read: Some(read),
            status: Status::Ok,
            value: 0,
        });
        assert!(matches!(answers.respond(&mut bench, &theirs), Ok(false)));
        drop(theirs);
        let mut sent = Vec::new();
        ours.read_to_end(&mut sent).unwrap();
        assert!(sent.len() < 3 << 19, "{} bytes in one turn", sent.len());
    }
}

#[test]
fn a_full_event_queue_refuses_messages_and_immediates() {
    for rig in Rig::all(2) {
        let (_region, window) = rig.window(4096, Rights::ALL);
        let mut client = rig.client();
        for token in 0..3 {
            client
                .endpoint
                .post_send(&[token as u8], token, &mut client.queue)
                .unwrap();
        }
        let byte = [1];
        // SAFETY: `byte` outlives the completion awaited below.
        unsafe {
            let queue = &mut client.queue;
            client
                .endpoint
                .post_write(&window, 3, byte.as_ptr(), 1, Some(77), 3, queue)
                .unwrap();
        }
        use Status::{Ok, ReceiverNotReady};
        assert_eq!(
            client.statuses(4),
            [Ok, Ok, ReceiverNotReady, ReceiverNotReady]
        );
        for expected in 0..2 {
            let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(
                event,
                AgentEvent::Message {
                    client: CLIENT,
                    bytes: vec![expected]
                }
            );
        }
        client
            .endpoint
            .post_send(&[9], 4, &mut client.queue)
            .unwrap();
        assert_eq!(client.next().status, Ok);
    }
}

#[test]
fn disconnect_ends_every_connection_of_that_client_alone() {
    for rig in Rig::all(8) {
        let (_region, window) = rig.window(4096, Rights::ALL);
        let mut leaving = [rig.client(), rig.client()];
        let mut staying = rig.client_of(ClientId(8));
        rig.agent.disconnect(CLIENT);
        for _ in &leaving {
            let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(event, AgentEvent::Closed { client: CLIENT });
        }
        for client in &mut leaving {
            let mut landing = [0; 8];
            client.read(&window, 0, &mut landing, 1);
            assert_eq!(client.next().status, Status::Disconnected);
            assert!(client.endpoint.is_dead());
        }
        let mut landing = [0; 8];
        staying.read(&window, 0, &mut landing, 1);
        assert_eq!(staying.next().status, Status::Ok);
    }
}

#[test]
fn a_silent_peer_times_out_every_verb_and_later_ones_at_once() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let (ours, _silent) = sockets();
    let mut client = Client::new(ours);
    let mut landing = [0; 8];
    client.read(&window, 0, &mut landing, 1);
    client.write(&window, 0, &[1], 2);
    client.endpoint.flush(&mut client.queue);
    let start = Time(5_000_000_000);
    client.endpoint.poll(start, &mut client.queue);
    client.endpoint.poll(
        start.after(FAILURE_TIMEOUT - Duration::from_nanos(1)),
        &mut client.queue,
    );
    assert!(client.queue.is_empty() && !client.endpoint.is_dead());
    client
        .endpoint
        .poll(start.after(FAILURE_TIMEOUT), &mut client.queue);
    assert_eq!((client.queue.len(), client.endpoint.outstanding()), (2, 0));
    client
        .endpoint
        .post_send(b"late", 3, &mut client.queue)
        .unwrap();
    for token in 1..=3 {
        let completion = client.queue.pop().unwrap();
        assert_eq!(
            completion,
            Completion {
                token,
                status: Status::Timeout,
                value: 0
            }
        );
    }
}

#[test]
fn a_connection_that_has_ended_is_left_alone_and_keeps_its_reason() {
    let rig = Rig::with(1, WireProtection::Encrypted);
    let (_region, window) = rig.window(64 << 20, Rights::ALL);
    let (ours, _silent) = sockets();
    let mut client = Client::with(ours, records(rig.protection).0);
    // More than the sockets take, so that records are left over.
    let source = vec![1; 64 << 20];
    client.write(&window, 0, &source, 1);
    client.endpoint.flush(&mut client.queue);
    let start = Time(5_000_000_000);
    client.endpoint.poll(start, &mut client.queue);
    client
        .endpoint
        .poll(start.after(FAILURE_TIMEOUT), &mut client.queue);
    assert_eq!(client.next().status, Status::Timeout);
    let calls = client.endpoint.system_calls();
    client.endpoint.flush(&mut client.queue);
    assert_eq!(client.endpoint.system_calls(), calls);
    client
        .endpoint
        .post_send(b"late", 2, &mut client.queue)
        .unwrap();
    assert_eq!(client.next().status, Status::Timeout);
}

#[test]
fn idle_time_is_not_silence() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let (ours, _silent) = sockets();
    let mut client = Client::new(ours);
    let mut at = Time(1);
    for _ in 0..3 {
        at = at.after(FAILURE_TIMEOUT * 2);
        client.endpoint.poll(at, &mut client.queue);
    }
    let mut landing = [0; 8];
    client.read(&window, 0, &mut landing, 1);
    client.endpoint.flush(&mut client.queue);
    client
        .endpoint
        .poll(at.after(FAILURE_TIMEOUT * 2), &mut client.queue);
    assert!(!client.endpoint.is_dead());
}

#[test]
fn an_idle_endpoint_notices_that_its_peer_is_gone() {
    let (ours, theirs) = sockets();
    let mut client = Client::new(ours);
    drop(theirs);
    let fd = client.endpoint.fd().unwrap();
    assert!(wait(&[fd], Some(Duration::from_secs(20))).unwrap());
    client.endpoint.poll(Time::now(), &mut client.queue);
    assert!(client.endpoint.is_dead());
}

/// Neither does the agent wait for the rest in the middle of a window, nor look for it all the time.
#[test]
fn a_lone_client_that_stops_in_the_middle_of_a_write_costs_nothing() {
    const LEN: usize = 4096;
    for serving in [Serving::Ring, Serving::Epoll] {
        let rig = Rig::serving(8, WireProtection::Plain, serving);
        let (region, window) = rig.window(LEN as u64, Rights::ALL);
        let (mut ours, theirs) = sockets();
        rig.agent.adopt(theirs, CLIENT, None);
        let request = |verb, len_bytes: usize| Request {
            verb,
            len_bytes: len_bytes as u32,
            window: window.descriptor.id.0,
            immediate: None,
            generation: window.descriptor.generation.0,
            offset: 0,
            operand: 0,
            swap: 0,
        };
        let mut answer = |bytes: &[u8]| {
            ours.write_all(bytes).unwrap();
            ours.read_exact(&mut [0; RESPONSE_BYTES]).unwrap();
        };
        // One that is whole, so that it is busy; then half of another.
        answer(&[&request(Verb::Write, 8).encode()[..], &[1; 8]].concat());
        answer(&request(Verb::FetchAdd, 8).encode());
        let half = [&request(Verb::Write, LEN).encode()[..], &[2; LEN / 2]].concat();
        ours.write_all(&half).unwrap();
        let mut seen = [0; LEN / 2];
        let deadline = Instant::now() + Duration::from_secs(20);
        while seen != [2; LEN / 2] {
            assert!(Instant::now() < deadline, "the first half is not taken");
            region.read(0, &mut seen).unwrap();
        }
        let before = rig.agent.system_calls();
        std::thread::sleep(Duration::from_millis(100));
        let calls = rig.agent.system_calls() - before;
        assert!(calls < 20, "{calls} system calls for nothing, {serving:?}");
        ours.write_all(&[3; LEN / 2]).unwrap();
        ours.read_exact(&mut [0; RESPONSE_BYTES]).unwrap();
        let mut all = [0; LEN];
        region.read(0, &mut all).unwrap();
        assert_eq!(all, [[2; LEN / 2], [3; LEN / 2]].concat()[..]);
    }
}
