//! Memory that the client's own machine has to spare, and what the volume could reclaim to it.
//!
//! The control thread notes what a host of this machine says (RECLAIM); a front end that can take
//! its pages back reads it, and says how many it has away. An offer fades by itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_fabric::Time;

/// A host repeats itself every second; one that no longer does has changed its mind.
const FADES: Duration = Duration::from_millis(2500);

/// What the machine has to spare, and what is away from it. One thread writes each.
#[derive(Debug, Default)]
pub struct Spare {
    bytes: AtomicU64,
    until: AtomicU64,
    away_bytes: AtomicU64,
    offers: AtomicU64,
}

impl Spare {
    /// The machine has so much to spare.
    pub fn offer(&self, bytes: u64, now: Time) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.offers.fetch_add(1, Ordering::Relaxed);
        self.until.store(now.after(FADES).0, Ordering::Release);
    }

    /// What may be reclaimed now; 0: nothing.
    pub fn bytes(&self, now: Time) -> u64 {
        if now.0 < self.until.load(Ordering::Acquire) {
            self.bytes.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// So often it was offered.
    pub fn offers(&self) -> u64 {
        self.offers.load(Ordering::Relaxed)
    }

    /// The front end has so much on hosts that it could reclaim.
    pub fn note_away(&self, bytes: u64) {
        self.away_bytes.store(bytes, Ordering::Relaxed);
    }

    /// As noted last; 0 where no front end reclaims anything.
    pub fn away_bytes(&self) -> u64 {
        self.away_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_fades_unless_it_is_said_again() {
        let spare = Spare::default();
        let at = |millis: u64| Time(millis * 1_000_000);
        assert_eq!(spare.bytes(at(0)), 0);
        spare.offer(7, at(1000));
        assert_eq!((spare.bytes(at(1000)), spare.bytes(at(3499))), (7, 7));
        assert_eq!(spare.bytes(at(3500)), 0);
        spare.offer(5, at(3000));
        assert_eq!(spare.bytes(at(5499)), 5);
    }
}
