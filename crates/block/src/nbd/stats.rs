//! Counters of a server, one set per worker, summed when read.
//!
//! Each counter has one writer, its worker; readers see values that are at most
//! one request behind.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a server has done since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// READ requests taken.
    pub reads: u64,
    /// WRITE requests taken.
    pub writes: u64,
    /// TRIM and WRITE_ZEROES requests taken.
    pub discards: u64,
    /// FLUSH requests taken.
    pub flushes: u64,
    /// CACHE requests taken.
    pub caches: u64,
    /// BLOCK_STATUS requests taken.
    pub block_statuses: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes of READ requests answered without error, holes included.
    pub read_bytes: u64,
    /// Bytes of WRITE requests answered without error.
    pub written_bytes: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections taken since the start.
    pub connections_accepted: u64,
    /// Connections closed because others waited for memory that their clients left in use.
    pub connections_stalled: u64,
    /// Connections closed at once because too many were open.
    pub connections_refused: u64,
    /// Connections closed in their handshake to make room for others.
    pub connections_evicted: u64,
    /// Connections closed because their handshake took too long.
    pub handshakes_expired: u64,
    /// Connections closed because what came was no TLS, or without a certificate that was needed.
    pub tls_failures: u64,
}

impl Stats {
    /// Requests of every kind.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.discards + self.flushes + self.caches + self.block_statuses
    }
}

/// The counters of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) reads: Counter,
    pub(crate) writes: Counter,
    pub(crate) discards: Counter,
    pub(crate) flushes: Counter,
    pub(crate) caches: Counter,
    pub(crate) block_statuses: Counter,
    pub(crate) errors: Counter,
    pub(crate) connections_stalled: Counter,
    pub(crate) handshakes_expired: Counter,
    pub(crate) tls_failures: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) written_bytes: Counter,
}

impl Counters {
    /// Adds this worker's share to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Stats) {
        sum.reads += self.reads.value();
        sum.writes += self.writes.value();
        sum.discards += self.discards.value();
        sum.flushes += self.flushes.value();
        sum.caches += self.caches.value();
        sum.block_statuses += self.block_statuses.value();
        sum.handshakes_expired += self.handshakes_expired.value();
        sum.tls_failures += self.tls_failures.value();
        sum.connections_stalled += self.connections_stalled.value();
        sum.errors += self.errors.value();
        sum.read_bytes += self.read_bytes.value();
        sum.written_bytes += self.written_bytes.value();
    }
}

/// A counter that only one thread adds to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// A plain load and store: cheaper than a locked add, and enough for one writer.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
