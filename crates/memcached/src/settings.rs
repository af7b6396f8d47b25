//! What a server is told to be: checked by who makes it, and the same for all workers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_kv::protocol::Limits;
use cenote_kv::protocol::authentication::Credentials;

/// Where and how a server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses for TCP.
    pub tcp: Vec<TcpAddress>,
    /// Addresses for UDP, which is not served where there are [credentials](Self::credentials).
    pub udp: Vec<SocketAddr>,
    /// A Unix socket, and the permissions of its file.
    pub unix: Option<(PathBuf, u32)>,
    /// Threads that serve; at least one.
    pub workers: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// What happens to the next one.
    pub when_full: WhenFull,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
    /// Requests of one connection that are served before others have their turn; at least one.
    pub requests_per_turn: u32,
    /// A connection over which nothing came or went for so long is closed.
    pub idle_timeout: Option<Duration>,
    /// Which protocols clients on stream sockets may speak.
    pub binding: Binding,
    /// Limits of requests.
    pub limits: Limits,
    /// Bytes of memory of the whole process, as it is told.
    pub memory_bytes: u64,
    /// Bytes of it for what clients have sent and not been served, and have not read.
    pub buffer_bytes: u64,
    /// Whether items are dropped when that is used up.
    pub evicts: bool,
    /// Whether `flush_all` is served.
    pub may_flush: bool,
    /// Whether `stats cachedump` and `lru_crawler metadump` are served.
    pub may_dump: bool,
    /// Whether `watch` is served.
    pub may_watch: bool,
    /// Whether `shutdown` is served.
    pub may_shut_down: bool,
    /// Whether `debugtime` is served.
    pub may_leap: bool,
    /// Whether `lru_crawler` may be asked at first.
    pub has_crawler: bool,
    /// Whether `stats` has the names of memcached's threads that move items about; all of them are 0.
    pub tells_lru: bool,
    /// How much is logged on standard error, as memcached's `-v`.
    pub verbosity: u8,
    /// Who may ask, of clients on stream sockets.
    pub credentials: Option<Arc<Credentials>>,
    /// Certificates; clients on TCP then speak TLS, but on addresses that say otherwise.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// What `version` answers.
    pub version: String,
    /// Lines of `stats settings` that only who has read the options knows.
    pub more: Vec<(String, String)>,
}

/// An address for TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TcpAddress {
    /// Where.
    pub address: SocketAddr,
    /// Without TLS even where there are certificates.
    pub is_plain: bool,
}

/// Which protocols are spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Binding {
    /// What the first byte of a connection says.
    Auto,
    /// Text and its meta commands.
    Text,
    /// The binary one.
    Binary,
}

impl Binding {
    /// memcached's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto-negotiate",
            Self::Text => "ascii",
            Self::Binary => "binary",
        }
    }
}

/// What happens to a connection above the limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WhenFull {
    /// It is told so, and closed.
    Refuse,
    /// It waits until another one ends.
    Wait,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tcp: Vec::new(),
            udp: Vec::new(),
            unix: None,
            workers: 4,
            connections_max: 1024,
            when_full: WhenFull::Refuse,
            backlog: 1024,
            requests_per_turn: 20,
            idle_timeout: None,
            binding: Binding::Auto,
            limits: Limits::default(),
            memory_bytes: 64 << 20,
            buffer_bytes: 8 << 20,
            evicts: true,
            may_flush: true,
            may_dump: true,
            may_watch: true,
            may_shut_down: false,
            may_leap: false,
            has_crawler: true,
            tells_lru: true,
            verbosity: 0,
            credentials: None,
            tls: None,
            version: concat!("1.6.18-cenote", env!("CARGO_PKG_VERSION")).to_owned(),
            more: Vec::new(),
        }
    }
}
