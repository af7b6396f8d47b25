//! The `rdma` backend: verbs that a network card executes on the host's memory.
//!
//! Each connection is a TCP one with the handshake of every other backend, and on data
//! connections a reliable queue pair beside it. The two ends tell each other the pair's numbers
//! over the encrypted TCP connection, so whoever lacks the key has no pair; and when a refusal has
//! broken a pair, they make another over it and what the old one did not carry out goes again.
//! What a device is told is `cenote-verbs`'s. Why it is so: `docs/decisions/0010-rdma.md`; numbers to
//! tune: `docs/rdma.md`.

#[cfg(feature = "rdma")]
pub(crate) mod calls;
#[cfg(feature = "rdma")]
mod counts;
#[cfg(feature = "rdma")]
mod credits;
#[cfg(feature = "rdma")]
pub(crate) mod device;
#[cfg(feature = "rdma")]
pub(crate) mod endpoint;
#[cfg(feature = "rdma")]
pub(crate) mod host;
#[cfg(feature = "rdma")]
mod keys;
#[cfg(feature = "rdma")]
mod ring;
#[cfg(feature = "rdma")]
mod slots;

/// What of RDMA this program and this machine have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Support {
    /// The program was built without the feature `rdma`.
    NotBuilt,
    /// `libibverbs.so.1` cannot be loaded.
    NoLibrary,
    /// The system gives no devices; with its reason.
    NoDevice(String),
    /// There are devices.
    Devices(Vec<Found>),
}

/// Choices of a client's end, each of which can be switched off to see what it is worth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tuning {
    /// Short WRITEs ride in the request itself.
    pub inline_writes: bool,
    /// One completion for many requests; else each has its own.
    pub selective_signals: bool,
    /// Memory is registered when a connection is made; else verbs register what they use.
    pub registered_once: bool,
}

impl Default for Tuning {
    /// All of them on.
    fn default() -> Self {
        Self {
            inline_writes: true,
            selective_signals: true,
            registered_once: true,
        }
    }
}

#[cfg(feature = "rdma")]
impl Tuning {
    /// Of so many requests one has a completion.
    fn signal_every(self) -> usize {
        match self.selective_signals {
            true => SIGNAL_EVERY,
            false => 1,
        }
    }
}

/// A device of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found {
    /// As in `/sys/class/infiniband`.
    pub name: String,
    /// IP addresses that its ports answer to, which an address `rdma:IP:PORT` may have. Empty on
    /// InfiniBand, and on a port that is not configured.
    pub addresses: Vec<std::net::IpAddr>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        match addresses.is_empty() {
            true => write!(f, "{} (no IP address)", self.name),
            false => write!(f, "{} ({})", self.name, addresses.join(", ")),
        }
    }
}

/// Looks for RDMA devices.
#[must_use]
pub fn support() -> Support {
    #[cfg(feature = "rdma")]
    return device::support();
    #[cfg(not(feature = "rdma"))]
    Support::NotBuilt
}

impl std::fmt::Display for Support {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotBuilt => f.write_str("this program was built without the feature rdma"),
            Self::NoLibrary => f.write_str("libibverbs.so.1 was not found"),
            Self::NoDevice(reason) => write!(f, "no device: {reason}"),
            Self::Devices(devices) => {
                let texts: Vec<String> = devices.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
        }
    }
}

/// How a client's device names the memory of a window.
#[cfg(feature = "rdma")]
#[derive(Debug)]
pub(crate) struct RemoteMemory {
    /// Where the window starts, in the host's own addresses.
    pub(crate) address: u64,
    /// The right to use it (an *rkey*); the host's device checks it on each access.
    pub(crate) key: u32,
    /// Identifies the session that attached it: a key outlives no session.
    pub(crate) session: std::sync::Arc<std::sync::atomic::AtomicBool>,
    /// The host's device has refused the key once, and will for ever.
    pub(crate) stale: std::sync::atomic::AtomicBool,
}

/// Far below the depth of a send queue, so that room is known of early; far above one, since a
/// completion costs about as much as a request.
#[cfg(feature = "rdma")]
const SIGNAL_EVERY: usize = 16;
