//! What is told of connections: how many there are, and of each where it is and what it is doing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Numbers of connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) current: AtomicUsize,
    pub(super) total: AtomicU64,
    pub(super) rejected: AtomicU64,
    /// Times that accepting was stopped.
    pub(super) stops: AtomicU64,
    pub(super) is_accepting: AtomicBool,
}

/// What `stats conns` tells of a connection.
#[derive(Debug)]
pub(super) struct ConnectionFacts {
    /// Its own, of all connections that there ever were.
    pub(super) id: u64,
    pub(super) number: i32,
    pub(super) address: String,
    /// Of a client, where it came in.
    pub(super) listener: Option<String>,
    /// Seconds since 1970.
    pub(super) last_request: AtomicU64,
    /// What it is doing.
    pub(super) state: AtomicU8,
    /// Its worker, and its place there.
    pub(super) place: OnceLock<(usize, u32)>,
}

/// What a client is doing, as `stats conns` tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// Nothing has come of its next request.
    Waits = 0,
    /// Its request is not whole.
    Reads = 1,
    /// It is served.
    Served = 2,
    /// It watches.
    Watches = 3,
}

impl ConnectionFacts {
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// What who watches is told of it, and why it ended.
    pub(super) fn line(&self, what: &str, reason: Option<&str>) -> String {
        let (transport, peer) = self.address.split_once(':').unwrap_or_default();
        let (host, port, transport) = match peer.rsplit_once(':') {
            Some((host, port)) if transport != "unix" => (host, port, transport),
            _ => (peer, "0", "local"),
        };
        let reason = reason.map_or_else(String::new, |reason| format!(" reason={reason}"));
        let number = self.number;
        format!("type={what} rip={host} rport={port} transport={transport}{reason} cfd={number}")
    }

    pub(super) fn state_name(&self) -> &'static str {
        const NAMES: [&str; 4] = ["conn_read", "conn_nread", "conn_parse_cmd", "conn_watch"];
        let state = usize::from(self.state.load(Ordering::Relaxed));
        NAMES.get(state).copied().unwrap_or(NAMES[0])
    }
}
