//! Each fault does what it says, and nothing else.

use super::*;
use crate::sim::{Memory, Notice, Serving};
use crate::{Error, FAILURE_TIMEOUT};

#[test]
fn a_write_into_a_cut_link_waits_for_its_heal() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.cut(client, host);
    pair.post_write(0, &[9; 64], 1);
    pair.endpoint.flush(&mut pair.queue);
    pair.pass(FAILURE_TIMEOUT / 2);
    assert_eq!(pair.memory(0, 64), [0; 64]);
    pair.net.heal(client, host);
    assert_eq!(pair.statuses(1), [Status::Ok]);
    assert_eq!(pair.memory(0, 64), [9; 64]);
    pair.pass(FAILURE_TIMEOUT * 2);
    assert!(!pair.endpoint.is_dead(), "a healed connection ended");
}

#[test]
fn a_host_that_cannot_answer_is_silent_and_its_verbs_took_effect() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    let start = pair.net.now();
    pair.net.cut(host, client);
    assert_eq!(pair.write(0, &[9; 64]), Status::Timeout);
    assert_eq!(pair.net.now().since(start), FAILURE_TIMEOUT);
    assert_eq!(pair.memory(0, 64), [9; 64]);
    assert!(pair.endpoint.is_dead());
    let result = pair
        .connector
        .connect(&address(0), &hello(), FAILURE_TIMEOUT);
    assert!(matches!(result, Err(Error::Timeout(FAILURE_TIMEOUT))));
    assert!(matches!(pair.session.receive(), Err(Error::Closed)));
    // The host is in no hurry.
    assert!(!events(&mut pair.listener).iter().any(is_disconnect));
    pair.pass(crate::sim::CLIENT_SILENCE);
    assert!(events(&mut pair.listener).iter().any(is_disconnect));
}

#[test]
fn a_lost_connection_ends_alone() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    let mut other = pair.session.endpoint(Duration::ZERO).unwrap();
    let all = pair.net.connections(client, host);
    assert_eq!(all.len(), 3);
    pair.post_write(0, &[9; 64], 1);
    pair.endpoint.flush(&mut pair.queue);
    pair.net.lose_connection(all[1]);
    let mut ready = Vec::new();
    pair.net.take_ready(&mut ready);
    assert!(ready.contains(&client));
    assert_eq!(pair.statuses(1), [Status::Disconnected]);
    assert!(pair.session.receive().unwrap().is_none());
    other.post_send(b"here", 2, &mut pair.queue).unwrap();
    other.flush(&mut pair.queue);
    pair.pass(Duration::from_millis(1));
    other.poll(pair.net.now(), &mut pair.queue);
    assert_eq!(pair.queue.pop().unwrap().status, Status::Ok);
    assert_eq!(pair.memory(0, 64), [0; 64], "what was under way is lost");
}

#[test]
fn losing_all_connections_ends_the_session_on_both_sides() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.lose_connections(host, client);
    assert!(pair.net.connections(client, host).is_empty());
    assert!(pair.endpoint.is_dead());
    assert!(matches!(pair.session.receive(), Err(Error::Closed)));
    assert!(pair.session.endpoint(Duration::ZERO).is_err());
    assert!(events(&mut pair.listener).iter().any(is_disconnect));
}

#[test]
fn a_crash_is_noticed_at_once_or_by_silence() {
    for (notice, status, took) in [
        (Notice::AtOnce, Status::Disconnected, Duration::ZERO),
        (Notice::BySilence, Status::Timeout, FAILURE_TIMEOUT),
    ] {
        let mut pair = Pair::plain();
        let (_, host) = pair.nodes();
        let start = pair.net.now();
        pair.post_write(0, &[9; 64], 1);
        pair.endpoint.flush(&mut pair.queue);
        pair.net.crash(host, Memory::Lost, notice);
        assert_eq!(pair.statuses(1), [status]);
        assert_eq!(pair.net.now().since(start), took);
        pair.pass(Duration::from_millis(1));
        assert!(matches!(pair.session.receive(), Err(Error::Closed)));
        let result = pair
            .connector
            .connect(&address(0), &hello(), FAILURE_TIMEOUT);
        let is_expected = match result.map(drop).unwrap_err() {
            Error::Os { source, .. } => {
                notice == Notice::AtOnce && source.kind() == std::io::ErrorKind::ConnectionRefused
            }
            Error::Timeout(_) => notice == Notice::BySilence,
            _ => false,
        };
        assert!(is_expected, "{notice:?}");
        assert!(matches!(
            pair.listener.poll(None, &mut Vec::new()),
            Err(Error::Closed)
        ));
    }
}

#[test]
fn a_crash_keeps_memory_or_loses_it_and_a_restart_gives_new_generations() {
    for memory in [Memory::Lost, Memory::Kept] {
        let mut pair = Pair::plain();
        let (_, host) = pair.nodes();
        assert_eq!(pair.write(0, &[9; 64]), Status::Ok);
        let old = pair.window.clone();
        pair.net.crash(host, memory, Notice::AtOnce);
        assert_eq!(pair.region.is_dead(), memory == Memory::Lost);
        pair.listener = pair.net.restart(host);
        let region = Arc::clone(&pair.region);
        let registered = pair.listener.register(region, Rights::ALL);
        assert_eq!(registered.is_ok(), memory == Memory::Kept);
        if let Ok(registered) = registered {
            assert_eq!(registered.id, old.descriptor.id);
            assert_ne!(registered.generation, old.descriptor.generation);
            assert_eq!(pair.memory(0, 64), [9; 64]);
        }
        assert!(pair.endpoint.is_dead());
        let (region, session, endpoint, _) =
            join(&pair.net, &pair.connector, &mut pair.listener, 0);
        (pair.region, pair.session, pair.endpoint) = (region, session, endpoint);
        // Still the old window.
        assert_eq!(pair.write(0, &[1; 64]), Status::StaleGeneration);
    }
}

#[test]
fn a_restarted_machine_answers_that_it_knows_no_old_connection() {
    let mut pair = Pair::plain();
    let (_, host) = pair.nodes();
    pair.net.crash(host, Memory::Lost, Notice::BySilence);
    assert!(!pair.endpoint.is_dead());
    pair.listener = pair.net.restart(host);
    let start = pair.net.now();
    assert_eq!(pair.write(0, &[9; 64]), Status::Disconnected);
    assert!(pair.net.now().since(start) < Duration::from_micros(10));
    pair.pass(FAILURE_TIMEOUT);
    assert!(matches!(pair.session.receive(), Err(Error::Closed)));
}

#[test]
fn a_paused_agent_answers_nothing_until_it_goes_on() {
    let mut pair = Pair::plain();
    let (_, host) = pair.nodes();
    pair.net.set_serving(host, Serving::Agent);
    pair.net.pause(host);
    pair.post_write(0, &[9; 64], 1);
    pair.session.send(b"hello").unwrap();
    pair.endpoint.flush(&mut pair.queue);
    pair.pass(FAILURE_TIMEOUT / 2);
    let mut ready = Vec::new();
    pair.net.take_ready(&mut ready);
    assert!(!ready.contains(&host), "a paused node has nothing to do");
    assert!(events(&mut pair.listener).is_empty());
    pair.net.resume(host);
    pair.net.take_ready(&mut ready);
    assert!(ready.contains(&host), "a message waits");
    assert_eq!(events(&mut pair.listener).len(), 1);
    assert_eq!(pair.statuses(1), [Status::Ok]);
}

#[test]
fn a_clients_crash_is_seen_by_its_host() {
    for (notice, after) in [
        (Notice::AtOnce, Duration::ZERO),
        (Notice::BySilence, crate::sim::CLIENT_SILENCE),
    ] {
        let mut pair = Pair::plain();
        let (client, _) = pair.nodes();
        let mut landing = [3; 64];
        pair.post_read(0, &mut landing, 1);
        pair.endpoint.flush(&mut pair.queue);
        events(&mut pair.listener);
        pair.net.crash(client, Memory::Lost, notice);
        pair.pass(after);
        assert_eq!(landing, [3; 64], "nothing lands in a process that is gone");
        assert!(events(&mut pair.listener).iter().any(is_disconnect));
        let connect = || {
            pair.connector
                .connect(&address(0), &hello(), FAILURE_TIMEOUT)
        };
        assert!(connect().is_err());
        pair.net.restart_client(client);
        assert!(connect().is_ok());
    }
}

#[test]
fn corruption_changes_every_byte_of_its_range_alone() {
    let mut pair = Pair::plain();
    let (_, host) = pair.nodes();
    assert_eq!(pair.write(0, &[9; 64]), Status::Ok);
    let (window, generation) = (pair.window.descriptor.id, pair.window.descriptor.generation);
    pair.net.corrupt(host, window, generation, 10, 20).unwrap();
    let bytes = pair.read(0, 64).unwrap();
    for (at, &byte) in bytes.iter().enumerate() {
        assert_eq!(byte == 9, !(10..30).contains(&at), "byte {at}");
    }
    pair.listener.revoke(window).unwrap();
    let gone = pair.net.corrupt(host, window, generation, 0, 1);
    assert!(gone.is_err());
}

#[test]
fn a_closed_peer_and_its_endpoints_end_without_an_event() {
    let mut pair = Pair::plain();
    let mut seen = Vec::new();
    let mut other = pair.net.host(address(1), "other");
    let session = pair
        .connector
        .connect(&address(1), &hello(), Duration::ZERO)
        .unwrap();
    let endpoint = session.endpoint(Duration::ZERO).unwrap();
    other.poll(None, &mut seen).unwrap();
    let Event::Connected { peer, .. } = seen[0] else {
        panic!("{seen:?}")
    };
    other.send(peer, b"last words").unwrap();
    other.close(peer);
    assert!(endpoint.is_dead());
    assert!(matches!(other.send(peer, b"more"), Err(Error::Closed)));
    assert!(events(&mut other).is_empty());
    assert_eq!(pair.write(0, &[1]), Status::Ok, "other hosts go on");
}
