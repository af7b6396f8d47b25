//! How many slabs a host has room for beside everything else on its machine.
//!
//! Arithmetic only: the caller measures once a second. What the others use is averaged,
//!
//! ```text
//! U = beta * U_measured + (1 - beta) * U
//! ```
//!
//! and the host may have memory for as many slabs as leave [`Settings::headroom_bytes`] of the
//! rest free. The answer is a number of slabs, not of slabs to give up: whoever acts on it counts
//! what is already on its way, so nothing is asked for twice (Z9).
//!
//! Invariants: the room shrinks with the average at once, and grows only when nothing has made
//! it shrink for [`CALM`] samples, to less than it could: what a host does by itself never
//! turns it round. Paper: \[infiniswap17\] section 5.1; deviations in `docs/papers/infiniswap.md`.

/// Weight of the newest sample.
pub const BETA: f64 = 0.2;
/// Samples without a shortage before the host takes memory on nobody's behalf. Arbitrary; at one
/// a second the average has followed two thirds of a step by then.
pub const CALM: u32 = 5;

/// What a host's lending is to leave to the rest of its machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Size of a slab.
    pub slab_bytes: u64,
    /// Slabs that the host lends at most.
    pub slabs_total: u32,
    /// Free memory to keep.
    pub headroom_bytes: u64,
    /// Free memory below which a slab may be taken from a client that does not answer; at most
    /// `headroom_bytes`.
    pub floor_bytes: u64,
}

/// One look at the machine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sample {
    /// Memory of the machine, or that the host's control group may use.
    pub total_bytes: u64,
    /// What all but this host's slabs uses, at least. Memory that is being made or given back may
    /// be in the figure or not, so there is a greatest, too.
    pub used_least_bytes: u64,
    /// And at most.
    pub used_most_bytes: u64,
    /// Programs wait for memory.
    pub is_stalled: bool,
}

/// How much of its memory a host may have in slabs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Most slabs with memory behind them.
    pub slabs_max: u32,
    /// Above as many, a slab may be taken from a client that does not answer.
    pub slabs_floor: u32,
    /// Whether slabs may be prepared before anybody asks for one.
    pub stocks: bool,
}

impl Room {
    /// Of a host that lends `slabs_total`, whatever happens around it.
    #[must_use]
    pub fn fixed(slabs_total: u32) -> Self {
        Self {
            slabs_max: slabs_total,
            slabs_floor: slabs_total,
            stocks: true,
        }
    }

    /// Before the first sample: what clients ask for, and nothing ahead.
    #[must_use]
    pub fn unknown(slabs_total: u32) -> Self {
        Self {
            stocks: false,
            ..Self::fixed(slabs_total)
        }
    }
}

/// The memory around a host, averaged.
#[derive(Clone, Debug)]
pub struct Pressure {
    settings: Settings,
    total_bytes: u64,
    used_bytes: f64,
    is_stalled: bool,
    /// `None` before the first sample.
    slabs_max: Option<u32>,
    /// Samples since the room shrank.
    calm: u32,
}

impl Pressure {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            total_bytes: 0,
            used_bytes: 0.0,
            is_stalled: false,
            slabs_max: None,
            calm: 0,
        }
    }

    /// Takes a sample, one a second. The average starts at the first one.
    ///
    /// While programs wait for memory a rise counts in full and nothing grows.
    #[expect(
        clippy::cast_precision_loss,
        reason = "an average of bytes, exact below 2^53"
    )]
    pub fn handle_sample(&mut self, sample: Sample) -> Room {
        let least = sample.used_least_bytes as f64;
        let most = (sample.used_most_bytes as f64).max(least);
        let measured = match self.slabs_max {
            None => most,
            Some(_) => self.used_bytes.clamp(least, most),
        };
        let averaged = match self.slabs_max {
            None => measured,
            Some(_) => BETA * measured + (1.0 - BETA) * self.used_bytes,
        };
        self.used_bytes = if sample.is_stalled {
            // Only what is surely not the host's own, or it would take its slabs that are on
            // their way back for somebody's need, and ask for as many again.
            averaged.max(measured)
        } else {
            averaged
        };
        self.total_bytes = sample.total_bytes;
        self.is_stalled = sample.is_stalled;
        let now = sample.used_least_bytes;
        let floor_bytes = self.settings.floor_bytes;
        Room {
            slabs_max: self.limit(sample.used_most_bytes),
            // By the average and by this sample: a spike takes nothing from anybody.
            slabs_floor: self
                .memory_fits(floor_bytes, self.used_bytes())
                .max(self.memory_fits(floor_bytes, now)),
            stocks: self.calm >= CALM && !self.is_stalled,
        }
    }

    fn limit(&mut self, measured_bytes: u64) -> u32 {
        let headroom_bytes = self.settings.headroom_bytes;
        let fits = self.fits(headroom_bytes, self.used_bytes());
        // An average on its way up is no reason to grow.
        let to_come = self.used_bytes().max(measured_bytes);
        let roomy = self.fits(headroom_bytes + self.settings.slack_bytes(), to_come);
        let before = self.slabs_max.unwrap_or(fits);
        let limit = if fits < before {
            self.calm = 0;
            fits
        } else if self.is_stalled {
            self.calm = 0;
            before
        } else {
            self.calm = self.calm.saturating_add(1);
            if self.calm >= CALM {
                before.max(roomy)
            } else {
                before
            }
        };
        self.slabs_max = Some(limit);
        limit
    }

    /// Slabs to lend that fit beside what the others use and bytes that stay free.
    fn fits(&self, free_bytes: u64, used_bytes: u64) -> u32 {
        self.memory_fits(free_bytes, used_bytes)
            .min(self.settings.slabs_total)
    }

    /// As `fits`, of the machine's memory alone: a host that took over more slabs than it is to lend
    /// does not lack memory for them.
    fn memory_fits(&self, free_bytes: u64, used_bytes: u64) -> u32 {
        let spare = self.total_bytes.saturating_sub(used_bytes);
        let slabs = spare.saturating_sub(free_bytes) / self.settings.slab_bytes;
        u32::try_from(slabs).unwrap_or(u32::MAX)
    }

    /// What it was told.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Memory of the machine, as last seen.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// What all but this host's slabs uses: the average.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an average of numbers of 64 bits is one"
    )]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes as u64
    }

    /// Whether programs waited for memory when last looked.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }
}

impl Settings {
    /// More than the headroom by this much must be free for the room to grow: an eighth of it, and
    /// at least a slab. Arbitrary, above what the average wavers by.
    #[must_use]
    pub fn slack_bytes(&self) -> u64 {
        (self.headroom_bytes / 8).max(self.slab_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn settings() -> Settings {
        Settings {
            slab_bytes: GIB,
            slabs_total: 48,
            headroom_bytes: 8 * GIB,
            floor_bytes: 2 * GIB,
        }
    }

    fn used(gib: u64) -> Sample {
        Sample {
            total_bytes: 64 * GIB,
            used_least_bytes: gib * GIB,
            used_most_bytes: gib * GIB,
            is_stalled: false,
        }
    }

    #[test]
    fn the_first_sample_is_believed_but_nothing_is_taken_on_it() {
        let mut pressure = Pressure::new(settings());
        let first = pressure.handle_sample(used(20));
        assert_eq!((first.slabs_max, first.stocks), (64 - 20 - 8, false));
        for _ in 1..CALM - 1 {
            assert!(!pressure.handle_sample(used(20)).stocks);
        }
        assert!(pressure.handle_sample(used(20)).stocks);
    }

    #[test]
    fn the_average_follows_by_a_fifth_of_the_difference() {
        let mut pressure = Pressure::new(settings());
        let _ = pressure.handle_sample(used(10));
        // 10 + 0.2 * 30, then + 0.2 * 24.
        let _ = pressure.handle_sample(used(40));
        assert_eq!(pressure.used_bytes(), 16 * GIB);
        let room = pressure.handle_sample(used(40));
        assert_eq!(pressure.used_bytes() >> 20, 20 * 1024 + 819);
        assert_eq!((room.slabs_max, room.stocks), (64 - 21 - 8, false));
    }

    #[test]
    fn it_grows_after_a_calm_and_by_less_than_it_could() {
        let mut pressure = Pressure::new(settings());
        let _ = pressure.handle_sample(used(50));
        let mut room = pressure.handle_sample(used(10));
        assert_eq!(room.slabs_max, 6, "42 GiB are used on average");
        for _ in 0..300 {
            room = pressure.handle_sample(used(10));
        }
        // 46 would fit; a slab's worth more than the headroom stays free.
        assert_eq!((room.slabs_max, room.stocks), (45, true));
        for _ in 0..100 {
            let calm = pressure.handle_sample(used(10));
            assert_eq!(calm, room);
        }
    }

    #[test]
    fn an_average_on_its_way_up_is_no_reason_to_grow() {
        let mut pressure = Pressure::new(settings());
        let steps = [(15, 1), (44, 9), (0, 2), (30, 7)];
        let mut limits = Vec::new();
        for (gib, seconds) in steps {
            for _ in 0..seconds {
                limits.push(pressure.handle_sample(used(gib)).slabs_max);
            }
        }
        assert!(limits[12..].is_sorted(), "{limits:?}");
        assert!(limits[18] > limits[11], "it fell from 44 to 30: {limits:?}");
    }

    #[test]
    fn a_stall_counts_a_rise_in_full_and_grows_nothing() {
        let mut pressure = Pressure::new(settings());
        for _ in 0..20 {
            let _ = pressure.handle_sample(used(10));
        }
        let stalled = |gib| Sample {
            is_stalled: true,
            ..used(gib)
        };
        let room = pressure.handle_sample(stalled(40));
        assert_eq!((room.slabs_max, room.stocks), (16, false));
        for _ in 0..50 {
            let later = pressure.handle_sample(stalled(10));
            assert_eq!((later.slabs_max, later.stocks), (16, false));
        }
    }

    #[test]
    fn only_what_lasts_puts_it_below_the_floor() {
        let mut pressure = Pressure::new(settings());
        let _ = pressure.handle_sample(used(10));
        let spike = pressure.handle_sample(used(60));
        // 20 GiB on average.
        assert_eq!((spike.slabs_max, spike.slabs_floor), (36, 42));
        for _ in 0..40 {
            let _ = pressure.handle_sample(used(60));
        }
        let room = pressure.handle_sample(used(60));
        assert_eq!((room.slabs_max, room.slabs_floor), (0, 2));
        assert_eq!(
            pressure.handle_sample(used(10)).slabs_floor,
            52,
            "over already"
        );
    }

    /// Of more slabs than it is to lend a host that was upgraded asks for some; none is taken for
    /// want of memory, of which there is enough.
    #[test]
    fn the_floor_is_of_memory_and_not_of_what_is_to_be_lent() {
        let mut pressure = Pressure::new(Settings {
            slabs_total: 4,
            ..settings()
        });
        let room = pressure.handle_sample(used(10));
        assert_eq!((room.slabs_max, room.slabs_floor), (4, 64 - 10 - 2));
    }

    #[test]
    fn memory_that_may_be_the_hosts_own_moves_nothing() {
        let mut pressure = Pressure::new(settings());
        let _ = pressure.handle_sample(used(20));
        let doubtful = Sample {
            used_least_bytes: 18 * GIB,
            used_most_bytes: 22 * GIB,
            ..used(0)
        };
        let _ = pressure.handle_sample(doubtful);
        assert_eq!(pressure.used_bytes(), 20 * GIB);
        let stalled = Sample {
            is_stalled: true,
            ..doubtful
        };
        let before = pressure.handle_sample(doubtful).slabs_max;
        let room = pressure.handle_sample(stalled);
        assert_eq!((pressure.used_bytes(), room.slabs_max), (20 * GIB, before));
        let surely = Sample {
            used_least_bytes: 30 * GIB,
            used_most_bytes: 34 * GIB,
            ..stalled
        };
        let _ = pressure.handle_sample(surely);
        assert_eq!(
            pressure.used_bytes(),
            30 * GIB,
            "a sure rise counts in full"
        );
    }

    proptest! {
        /// A host that always fills the room it has, under use that swings: it never has less
        /// than the headroom free on average, and while the use stays as it is it never goes
        /// back and forth.
        #[test]
        fn the_headroom_is_kept_and_a_steady_machine_sees_no_swing(
            steps in proptest::collection::vec((0_u64..64, 1_usize..40), 1..12),
        ) {
            let settings = settings();
            let mut pressure = Pressure::new(settings);
            for (gib, seconds) in steps {
                let mut limits = Vec::new();
                for _ in 0..seconds {
                    let room = pressure.handle_sample(used(gib));
                    let full = u64::from(room.slabs_max) * settings.slab_bytes;
                    let free = (64 * GIB).saturating_sub(pressure.used_bytes() + full);
                    prop_assert!(free >= settings.headroom_bytes || room.slabs_max == 0);
                    prop_assert!(room.slabs_floor >= room.slabs_max);
                    limits.push(room.slabs_max);
                }
                let turns = limits.windows(2).map(|pair| pair[0].cmp(&pair[1]));
                let mut turns: Vec<_> = turns.filter(|turn| turn.is_ne()).collect();
                turns.dedup();
                prop_assert!(turns.len() <= 1, "{:?}", limits);
            }
        }
    }
}
