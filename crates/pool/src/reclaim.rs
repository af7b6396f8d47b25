//! When a machine has memory to spare, whose it is: first its own client's, whose pages are reclaimed,
//! then that of others, for whom slabs are prepared.
//!
//! Arithmetic only: the caller says once a second what is free and what its clients still have
//! away, and tells them what comes of it (RECLAIM).
//!
//! Invariants: what is offered leaves the headroom and the slack free, which is more than lending
//! leaves, so that pages that are reclaimed take no slab from anybody; an offer ends with the first
//! sample that says so, and begins after [`CALM`] that agree; a client that does not reclaim
//! what it could keeps memory from others for [`PATIENCE`] samples, no longer.
//! Paper: \[hydra22\] section 4.2 (adaptive slab allocation).

use crate::pressure::CALM;

/// Samples without progress after which a client's pages no longer come first. Arbitrary, long
/// beside the time that a client takes to notice.
pub const PATIENCE: u32 = 10;

/// One look at the machine and its clients.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Look {
    /// Free on average, the host's slabs in use.
    pub free_bytes: u64,
    /// To stay free.
    pub headroom_bytes: u64,
    /// More than the headroom by this much must stay free, too; lending grows up to there.
    pub slack_bytes: u64,
    /// Programs wait for memory.
    pub is_stalled: bool,
    /// What clients of this machine have on hosts and could reclaim.
    pub away_bytes: u64,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Offer {
    /// Memory that pages may be reclaimed into; 0: none.
    pub bytes: u64,
    /// Whether it is theirs before it is prepared for others.
    pub comes_first: bool,
}

/// Offers memory, with hysteresis.
#[derive(Clone, Debug, Default)]
pub struct Reclaim {
    /// Samples in a row that left twice the slack.
    calm: u32,
    /// The last offer.
    offer: Offer,
    away_bytes: u64,
    /// Samples since less was away.
    waited: u32,
    offers: u64,
}

impl Reclaim {
    /// Takes a look, one a second.
    pub fn handle_look(&mut self, look: Look) -> Offer {
        let kept = look.headroom_bytes.saturating_add(look.slack_bytes);
        let spare = look.free_bytes.saturating_sub(kept);
        let is_offered = self.offer.bytes > 0;
        self.calm = if look.is_stalled || spare < look.slack_bytes.max(1) {
            0
        } else {
            self.calm.saturating_add(1)
        };
        let holds = !look.is_stalled && spare > 0;
        let bytes = if holds && (is_offered || self.calm >= CALM) {
            spare
        } else {
            0
        };
        self.offers += u64::from(bytes > 0 && !is_offered);
        self.waited = if bytes > 0 && look.away_bytes > 0 && look.away_bytes >= self.away_bytes {
            self.waited.saturating_add(1)
        } else {
            0
        };
        self.away_bytes = look.away_bytes;
        self.offer = Offer {
            bytes,
            comes_first: bytes > 0 && look.away_bytes > 0 && self.waited <= PATIENCE,
        };
        self.offer
    }

    /// The last offer.
    #[must_use]
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// What clients said last that they have away.
    #[must_use]
    pub fn away_bytes(&self) -> u64 {
        self.away_bytes
    }

    /// Times that an offer began.
    #[must_use]
    pub fn offers(&self) -> u64 {
        self.offers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn free(bytes: u64) -> Look {
        Look {
            free_bytes: bytes,
            headroom_bytes: 250,
            slack_bytes: 30,
            is_stalled: false,
            away_bytes: 100,
        }
    }

    fn offered(reclaim: &mut Reclaim, bytes: u64, samples: u32) -> u64 {
        let mut last = 0;
        for _ in 0..samples {
            last = reclaim.handle_look(free(bytes)).bytes;
        }
        last
    }

    #[test]
    fn it_is_offered_after_a_calm_and_leaves_headroom_and_slack() {
        let mut reclaim = Reclaim::default();
        assert_eq!(offered(&mut reclaim, 400, CALM - 1), 0);
        let offer = reclaim.handle_look(free(400));
        assert_eq!((offer.bytes, offer.comes_first), (120, true));
        assert_eq!(reclaim.offers(), 1);
    }

    #[test]
    fn it_begins_above_where_it_ends() {
        let mut reclaim = Reclaim::default();
        assert_eq!(
            offered(&mut reclaim, 309, 100),
            0,
            "less than twice the slack"
        );
        assert_eq!(offered(&mut reclaim, 310, CALM), 30);
        assert_eq!(offered(&mut reclaim, 281, 100), 1, "down to the slack");
        assert_eq!(offered(&mut reclaim, 280, 1), 0);
        assert_eq!(offered(&mut reclaim, 309, 100), 0);
        assert_eq!(reclaim.offers(), 1);
    }

    #[test]
    fn a_stall_ends_it_at_once() {
        let mut reclaim = Reclaim::default();
        assert_eq!(offered(&mut reclaim, 500, CALM), 220);
        let stalled = Look {
            is_stalled: true,
            ..free(500)
        };
        assert_eq!(reclaim.handle_look(stalled), Offer::default());
        assert_eq!(offered(&mut reclaim, 500, CALM - 1), 0);
        assert_eq!(offered(&mut reclaim, 500, 1), 220);
        assert_eq!(reclaim.offers(), 2);
    }

    #[test]
    fn pages_come_before_slabs_as_long_as_they_come() {
        let mut reclaim = Reclaim::default();
        let mut look = free(500);
        for _ in 0..3 * PATIENCE {
            look.away_bytes -= 1;
            reclaim.handle_look(look);
        }
        assert!(
            reclaim.offer().comes_first,
            "they come slowly, but they come"
        );
        for _ in 0..PATIENCE {
            assert!(reclaim.handle_look(look).comes_first);
        }
        assert!(!reclaim.handle_look(look).comes_first, "nobody brings them");
        assert_eq!(reclaim.offer().bytes, 220, "it may still");
        look.away_bytes = 0;
        assert!(!reclaim.handle_look(look).comes_first);
    }

    proptest! {
        /// Whatever the machine does: what is offered is there, beside headroom and slack, and
        /// reclaiming all of it leaves an offer of nothing, not a machine that is short.
        #[test]
        fn nothing_is_offered_that_the_headroom_needs(
            looks in proptest::collection::vec((0_u64..1000, any::<bool>(), 0_u64..300), 1..100),
        ) {
            let mut reclaim = Reclaim::default();
            for (bytes, is_stalled, away_bytes) in looks {
                let look = Look { is_stalled, away_bytes, ..free(bytes) };
                let offer = reclaim.handle_look(look);
                prop_assert!(offer.bytes == 0 || bytes - offer.bytes == 280);
                prop_assert!(!is_stalled || offer.bytes == 0);
                prop_assert!(!offer.comes_first || offer.bytes > 0 && away_bytes > 0);
            }
        }
    }
}
