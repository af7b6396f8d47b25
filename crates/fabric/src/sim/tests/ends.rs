//! How ends of connections learn of each other's end, and what is left of a connection then.

use super::*;
use crate::FAILURE_TIMEOUT;

#[test]
fn a_client_hears_late_that_its_host_closed() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.set_notice_delay(Duration::from_millis(500));
    let session = pair.net.connections(client, host)[0];
    pair.post_write(0, &[9; 64], 1);
    pair.endpoint.flush(&mut pair.queue);
    pair.listener.close(session.peer());
    assert!(!pair.endpoint.is_dead(), "nobody has told it yet");
    assert_eq!(pair.endpoint.outstanding(), 1);
    pair.pass(Duration::from_millis(500));
    assert_eq!(pair.statuses(1), [Status::Disconnected]);
    assert_eq!(pair.memory(0, 64), [0; 64], "the host's end was closed");
}

#[test]
fn a_notice_on_a_cut_link_is_lost_and_silence_tells() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.set_notice_delay(Duration::from_millis(1));
    let session = pair.net.connections(client, host)[0];
    pair.post_write(0, &[9; 64], 1);
    pair.endpoint.flush(&mut pair.queue);
    pair.listener.close(session.peer());
    pair.net.cut(host, client);
    pair.pass(Duration::from_millis(2));
    assert!(!pair.endpoint.is_dead());
    pair.pass(FAILURE_TIMEOUT);
    assert_eq!(pair.statuses(1), [Status::Timeout]);
}

#[test]
fn connections_that_are_over_leave_no_trace() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    for _ in 0..1000 {
        pair.endpoint = pair.session.endpoint(Duration::ZERO).unwrap();
        assert_eq!(pair.write(0, &[9; 64]), Status::Ok);
        pair.pass(Duration::from_millis(1));
    }
    let kept = pair.net.lock().connections.len();
    assert!(kept <= 128, "{kept} connections of 1001");
    let all = pair.net.connections(client, host);
    assert_eq!(all.len(), 2, "a session and its endpoint");
    let mut unique = all.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), all.len());
}

#[test]
fn an_opener_outlives_its_session() {
    let mut pair = Pair::plain();
    let opener = pair.session.opener();
    let (_, session, endpoint, _) = join(&pair.net, &pair.connector, &mut pair.listener, 0);
    (pair.session, pair.endpoint) = (session, endpoint);
    for _ in 0..300 {
        drop(pair.session.endpoint(Duration::ZERO).unwrap());
        pair.pass(Duration::from_millis(1));
    }
    assert!(opener(Duration::ZERO).is_err());
}
