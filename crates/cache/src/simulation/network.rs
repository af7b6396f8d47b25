//! What things cost on the simulated network.

/// Costs of a network and of the threads at its ends.
///
/// The defaults are after the papers' machines: 100 Gbit/s, reads at 3 to 4 us, cards that move
/// some 50 million messages a second, and packets of 256 bytes at least. The rest is assumed; see D5 in
/// `docs/papers/redy.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Time of a bit from one end to the other, one way, in nanoseconds.
    pub distance_ns: u64,
    /// Bandwidth each way.
    pub gigabits_per_second: f64,
    /// Time of the cards for a message, each way, in nanoseconds.
    pub card_ns: f64,
    /// Bytes that every message has besides its requests or records.
    pub header_bytes: u32,
    /// Bytes of a request in a message: address, length, what to do.
    pub request_bytes: u32,
    /// Bytes that a message takes at least.
    pub packet_bytes_min: u32,
    /// Messages under way, of all connections, that cards have room for; each share more slows
    /// them by [`Network::crowd_share`] of it.
    pub crowd_messages: u32,
    /// See above.
    pub crowd_share: f64,
    /// A client thread's time to post a message and to take its answer, each, in nanoseconds.
    pub client_message_ns: f64,
    /// A client thread's time to pack a request and to take a record, each, in nanoseconds.
    pub client_request_ns: f64,
    /// A server thread's time for a message, in nanoseconds, and for each connection that it polls besides.
    pub server_message_ns: f64,
    /// See above.
    pub server_poll_ns: f64,
    /// A server thread's time for a request, in nanoseconds.
    pub server_request_ns: f64,
    /// A thread's time to copy a byte, in nanoseconds.
    pub copy_byte_ns: f64,
    /// What n threads of a side cost each other: every one takes
    /// `1 + contention * (n - 1) + coherence * n * (n - 1)` times as long.
    pub contention: f64,
    /// See above.
    pub coherence: f64,
    /// Every time above is up to this share longer, at random.
    pub jitter: f64,
    /// One message of so many is late, by up to `late_ns`.
    pub late_one_in: u32,
    /// See above.
    pub late_ns: u64,
}

impl Network {
    /// The papers' network over a distance in nanoseconds, one way. With 1500 a read takes what the paper's
    /// does.
    #[must_use]
    pub fn paper(distance_ns: u64) -> Self {
        Self {
            distance_ns,
            gigabits_per_second: 100.0,
            card_ns: 20.0,
            header_bytes: 30,
            request_bytes: 16,
            packet_bytes_min: 256,
            crowd_messages: 128,
            crowd_share: 0.3,
            client_message_ns: 150.0,
            client_request_ns: 12.0,
            server_message_ns: 200.0,
            server_poll_ns: 10.0,
            server_request_ns: 20.0,
            copy_byte_ns: 0.05,
            contention: 0.01,
            coherence: 0.0012,
            jitter: 0.2,
            // Each message goes two ways: half a percent is late, and the p99 is not among them.
            late_one_in: 400,
            late_ns: 4000,
        }
    }

    /// Time on a way of a message with `payload_bytes`, without the distance, in picoseconds.
    pub(super) fn way_ps(&self, payload_bytes: u64, messages_under_way: u64) -> f64 {
        let bytes =
            (payload_bytes + u64::from(self.header_bytes)).max(u64::from(self.packet_bytes_min));
        let line_ns = bytes as f64 * 8.0 / self.gigabits_per_second;
        let room = f64::from(self.crowd_messages);
        let crowd = (messages_under_way as f64 - room).max(0.0) / room;
        line_ns.max(self.card_ns * (1.0 + self.crowd_share * crowd)) * 1000.0
    }

    /// How many times as long a thread takes beside others: `count` in all.
    pub(super) fn slower(&self, count: u32) -> f64 {
        let others = f64::from(count.saturating_sub(1));
        1.0 + self.contention * others + self.coherence * others * f64::from(count)
    }
}
