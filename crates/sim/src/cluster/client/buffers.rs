//! Buffers of reads that have ended: nothing may alter them any more (H2).

use std::collections::VecDeque;
use std::time::Duration;

use cenote_fabric::{FAILURE_TIMEOUT, Time, sim};

/// Buffers, oldest first, each with when it came back, what was read, and the bytes' fingerprint.
#[derive(Default)]
pub(super) struct Buffers(VecDeque<(Time, String, Vec<u8>, u32)>);

/// Every verb that was out when a read ended has ended by then.
const KEPT: Duration = FAILURE_TIMEOUT.saturating_mul(3);

impl Buffers {
    /// Keeps the buffer of a read that has just ended.
    pub fn keep(&mut self, place: String, bytes: Vec<u8>) {
        let fingerprint = cenote_codec::crc32c(&bytes);
        self.0.push_back((sim::now(), place, bytes, fingerprint));
    }

    /// Looks at those that are old by now; says which one was altered.
    pub fn check(&mut self, now: Time) -> Option<String> {
        while let Some((since, ..)) = self.0.front()
            && now.since(*since) > KEPT
        {
            let (since, place, bytes, fingerprint) = self.0.pop_front()?;
            if cenote_codec::crc32c(&bytes) != fingerprint {
                return Some(format!(
                    "{place}, read at {} ns: altered after the read had ended",
                    since.0
                ));
            }
        }
        None
    }
}
