//! What a lane knows of one other node: where it is, whether it is linked, and when to call it next.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Between two tries to connect: the first, doubled up to the most.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A link that was open for so long is no failed try: it is made again at once.
const LASTED: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Peer {
    address: Option<SocketAddr>,
    /// The connection that is made, or open.
    connection: Option<usize>,
    is_open: bool,
    incarnation: u64,
    opened_at: Option<Instant>,
    /// Tries since it was last open for a while.
    tries: u32,
    retry_at: Option<Instant>,
    trouble: Option<String>,
}

impl Peer {
    pub(super) fn connection(&self) -> Option<usize> {
        self.connection
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Of the process that was linked last.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// What the last try to reach it came to, unless it is linked.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    #[cfg(test)]
    pub(super) fn tries(&self) -> u32 {
        self.tries
    }

    /// Where it is from now on; says whether that is news.
    pub(super) fn move_to(&mut self, address: Option<SocketAddr>, now: Instant) -> bool {
        if self.address == address {
            return false;
        }
        self.address = address;
        self.tries = 0;
        self.retry_at = address.map(|_| now);
        true
    }

    /// Where to call it, if it is time to.
    pub(super) fn due(&self, now: Instant) -> Option<SocketAddr> {
        let is_due = self.connection.is_none() && self.retry_at.is_some_and(|at| at <= now);
        self.address.filter(|_| is_due)
    }

    /// It is not called: it calls, or a try has begun.
    pub(super) fn stop_retrying(&mut self) {
        self.retry_at = None;
    }

    /// It is called by this connection.
    pub(super) fn note_call(&mut self, connection: usize) {
        self.connection = Some(connection);
    }

    /// It is linked by this connection.
    pub(super) fn note_open(&mut self, connection: usize, incarnation: u64, now: Instant) {
        self.connection = Some(connection);
        self.is_open = true;
        self.incarnation = incarnation;
        self.opened_at = Some(now);
        self.retry_at = None;
        self.trouble = None;
    }

    /// It cannot be reached, or its link is broken. Notes when to call it next if `is_called` by us.
    pub(super) fn note_failure(&mut self, trouble: String, is_called: bool, now: Instant) {
        self.connection = None;
        self.is_open = false;
        self.trouble = Some(trouble);
        let opened_at = self.opened_at.take();
        let lasted = opened_at.map(|at| now.saturating_duration_since(at));
        if lasted.is_some_and(|lasted| lasted >= LASTED) {
            self.tries = 0;
        }
        // The first try at once: a process that lives takes it before anyone is alarmed.
        let pause = match self.tries {
            0 => Duration::ZERO,
            tries => (PAUSE * (1 << (tries - 1).min(8))).min(PAUSE_MAX),
        };
        self.tries += 1;
        self.retry_at = (is_called && self.address.is_some()).then(|| now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_again_after_a_link_that_lasted() {
        let mut peer = Peer::default();
        let mut now = Instant::now();
        assert!(peer.move_to(Some(([10, 0, 0, 1], 1).into()), now));
        assert!(peer.due(now).is_some());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            peer.note_failure(String::new(), true, now);
            let at = peer.retry_at().expect("it is called");
            pauses.push((at - now).as_millis());
            assert!(peer.due(at).is_some() && (at == now || peer.due(now).is_none()));
            now = at;
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 250, 250, 250]);
        peer.note_open(1, 1, now);
        assert!(peer.is_open() && peer.due(now).is_none());
        now += Duration::from_secs(1);
        peer.note_failure(String::new(), true, now);
        assert_eq!(peer.retry_at(), Some(now));
        peer.note_failure(String::new(), false, now);
        assert_eq!(peer.retry_at(), None, "it calls us");
    }
}
