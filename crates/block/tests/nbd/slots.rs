//! More connections than there are slots, and who is served nevertheless.

use std::net::SocketAddr;
use std::sync::Arc;

use cenote_block::nbd::{Address, Config};
use cenote_block::ram::RamDisk;

use crate::client::*;

fn served(adjust: impl FnOnce(&mut Config)) -> Fixture {
    let disk = Arc::new(RamDisk::new(1 << 20));
    Fixture::with(disk, |config| {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        config.addresses.push(Address::Tcp(any));
        adjust(config);
    })
}

fn reads<S: std::io::Read + std::io::Write>(client: &mut Client<S>) {
    client.request((READ, 0), 7, 0, 16);
    assert_eq!(client.simple_reply(), (0, 7));
    client.take(16);
}

#[test]
fn idle_strangers_over_tcp_lock_nobody_out() {
    let fixture = served(|_| {});
    let mut before = fixture.connect_tcp();
    before.greet();
    before.go();
    let mut strangers: Vec<_> = (0..300).map(|_| fixture.connect_tcp()).collect();

    reads(&mut fixture.simple());
    let mut after = fixture.connect_tcp();
    after.greet();
    after.go();
    reads(&mut after);
    reads(&mut before);

    assert!(
        strangers[0].is_closed_after_greeting(),
        "the oldest stranger"
    );
    let stats = fixture.server.stats();
    assert_eq!(stats.connections_refused, 0);
    assert!(stats.connections_evicted >= 300 - 64, "{stats:?}");
}

#[test]
fn clients_that_are_established_keep_their_slots_and_a_new_one_is_refused() {
    let fixture = served(|config| {
        (config.connections_max, config.source_connections_max) = (4, 3);
    });
    let mut clients: Vec<_> = (0..3).map(|_| fixture.connect_tcp()).collect();
    for client in &mut clients {
        client.greet();
        client.go();
    }
    assert!(
        fixture.connect_tcp().is_closed(),
        "the address has its share"
    );
    clients.iter_mut().for_each(reads);
    let mut local: Vec<_> = (0..4).map(|_| fixture.simple()).collect();
    assert!(fixture.connect().is_closed(), "all slots of this listener");
    local.iter_mut().for_each(reads);
    let stats = fixture.server.stats();
    assert_eq!(
        (stats.connections_refused, stats.connections_evicted),
        (2, 0)
    );
    drop(clients);
    fixture.wait_for("room", |stats| stats.connections_open == 4);
    let mut again = fixture.connect_tcp();
    again.greet();
    again.go();
    reads(&mut again);
}

#[test]
fn a_handshake_that_takes_too_long_is_counted() {
    let limit = std::time::Duration::from_millis(200);
    let fixture = served(|config| config.handshake_limit = limit);
    let mut slow = fixture.connect_tcp();
    assert!(slow.is_closed_after_greeting());
    assert_eq!(fixture.server.stats().handshakes_expired, 1);
}
