//! How fast slabs are rebuilt and moved beside the requests of the volume's own users.
//!
//! Arithmetic only. Workers time one request of a few; a window of those gives the p99 of reads and
//! of writes. While nothing is rebuilt it is *normal*; while something is, the rate goes down by
//! three tenths when the p99 is more than [`FACTOR`] of normal, and up by a fifth when it is
//! well below. Nobody asks for anything: as fast as it goes. A limit holds always.
//!
//! Invariants: the rate never falls below [`FLOOR`], so that a rebuild ends; a window in which
//! too little was timed changes nothing. Paper: \[hydra22\] 7.3 (impact of regeneration).

use std::time::Duration;

use cenote_fabric::Time;

use crate::timings::Counts;

/// A request's p99 beside a rebuild, in terms of normal, that the rate is chosen for.
pub const FACTOR: f64 = 1.5;
/// Below this much of the factor the rate goes up.
const WELL_BELOW: f64 = 0.85;
/// Slab bytes per second that are rebuilt whatever it costs: 1 GiB in half a minute.
pub const FLOOR: f64 = 32.0 * 1024.0 * 1024.0;
/// At first, beside requests.
const START: f64 = 256.0 * 1024.0 * 1024.0;
/// No host rebuilds faster.
const CEILING: f64 = 8.0 * 1024.0 * 1024.0 * 1024.0;
/// A window has this many timed requests, or is [`LONGEST`].
const ENOUGH: u64 = 256;
/// Fewer say nothing about a p99.
const FEW: u64 = 32;
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(250);
/// Weight of the newest window in what is normal.
const ALPHA: f64 = 0.2;

/// What to rebuild at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Step {
    /// Slab bytes of one fill.
    pub fill_bytes: u64,
    /// Fills that are asked for together, under one fence.
    pub fills: u32,
    /// Chunks of different extents that may be fenced at a time.
    pub chunks: usize,
}

/// What the volume's workers did so far.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Page operations.
    pub pages: u64,
    /// Timed reads, timed writes.
    pub timed: [Counts; 2],
}

/// Fills of a chunk that nobody is expected to write into: most of its time goes to them, and not to the
/// round trips between chunks.
const FILLS_ALONE: u32 = 8;

/// What a host takes of one client: more and it is cut off.
const CLIENT_FILLS_MAX: usize = 32;
/// Slabs relocated at a time: while some wait for a host, a slab or a drain, others go on.
pub(super) const RELOCATIONS_MAX: usize = 4;

const _: () = assert!(FILLS_ALONE as usize * RELOCATIONS_MAX <= CLIENT_FILLS_MAX);

/// Decides when the next chunk may be rebuilt.
#[derive(Debug)]
pub struct Pacing {
    /// Beside requests, in bytes per second.
    rate: f64,
    is_loaded: bool,
    /// Most bytes per second that its owner allows.
    limit: f64,
    /// Whether requests slow it down.
    yields: bool,
    next_at: Time,
    began: Time,
    seen: Load,
    /// p99 of reads and writes while nothing is rebuilt, in nanoseconds.
    normal: [Option<f64>; 2],
}

impl Pacing {
    pub fn new(now: Time) -> Self {
        Self {
            rate: START,
            is_loaded: false,
            limit: f64::INFINITY,
            yields: true,
            next_at: now,
            began: now,
            seen: Load::default(),
            normal: [None; 2],
        }
    }

    /// What its owner wants from `now` on: at most so many bytes per second (0: no limit), and whether to yield
    /// to requests. Of what began under another limit nothing is waited for.
    pub fn set(&mut self, now: Time, limit: u64, yields: bool) {
        let limit = match limit {
            0 => f64::INFINITY,
            limit => limit as f64,
        };
        if limit != self.limit {
            self.limit = limit;
            self.next_at = self.next_at.min(now);
        }
        self.yields = yields;
    }

    /// Whether a look is due: [`Pacing::handle_load`] costs a copy of two histograms.
    pub fn is_due(&self, now: Time) -> bool {
        now.since(self.began) >= SHORTEST
    }

    /// Takes what was done so far; `rebuilds`: something is being rebuilt.
    pub fn handle_load(&mut self, now: Time, load: Load, rebuilds: bool) {
        let timed = [0, 1].map(|kind| load.timed[kind].since(&self.seen.timed[kind]));
        let most = timed.iter().map(Counts::total).max().unwrap_or(0);
        if most < ENOUGH && now.since(self.began) < LONGEST {
            return;
        }
        let was_loaded = self.is_loaded;
        self.is_loaded = load.pages != self.seen.pages;
        (self.began, self.seen) = (now, load);
        if self.is_loaded && !was_loaded {
            self.rate = START;
        }
        let told = |kind: usize| (timed[kind].total() >= FEW).then(|| timed[kind].quantile(0.99));
        let p99 = [0, 1].map(|kind| told(kind).flatten());
        if rebuilds {
            self.judge(p99);
        } else {
            self.learn(p99);
        }
    }

    fn learn(&mut self, p99: [Option<f64>; 2]) {
        for (normal, p99) in self.normal.iter_mut().zip(p99) {
            if let Some(p99) = p99 {
                *normal = Some(normal.map_or(p99, |old| ALPHA * p99 + (1.0 - ALPHA) * old));
            }
        }
    }

    fn judge(&mut self, p99: [Option<f64>; 2]) {
        let ratios = self.normal.iter().zip(p99);
        let worst = ratios
            .filter_map(|(normal, p99)| Some(p99? / (*normal)?))
            .fold(None, |worst: Option<f64>, ratio| {
                Some(worst.map_or(ratio, |worst| worst.max(ratio)))
            });
        let Some(worst) = worst else { return };
        if worst > FACTOR {
            self.rate = (self.rate * 0.7).max(FLOOR);
        } else if worst < FACTOR * WELL_BELOW {
            self.rate = (self.rate * 1.2).min(CEILING);
        }
    }

    /// Bytes per second now; infinite: as fast as it goes.
    pub fn rate(&self) -> f64 {
        if self.is_loaded && self.yields {
            self.rate.min(self.limit)
        } else {
            self.limit
        }
    }

    /// What the next chunk is to be. Writes to it wait, so beside requests it is one small fill; where
    /// it yields to them a smaller one, which no other keeps from the cores.
    pub fn step(&self) -> Step {
        let is_alone = !self.is_loaded && self.rate().is_infinite();
        Step {
            fill_bytes: match (is_alone, self.yields) {
                (true, _) => 1 << 20,
                (false, true) => 128 << 10,
                (false, false) => 256 << 10,
            },
            fills: if is_alone { FILLS_ALONE } else { 1 },
            chunks: if self.is_loaded && self.yields {
                1
            } else {
                RELOCATIONS_MAX
            },
        }
    }

    /// When the next chunk may begin; `None`: now.
    pub fn waits_until(&self, now: Time) -> Option<Time> {
        (self.rate().is_finite() && now < self.next_at).then_some(self.next_at)
    }

    /// A chunk begins.
    pub fn note_chunk(&mut self, now: Time, bytes: u64) {
        let rate = self.rate();
        if rate.is_finite() {
            let took = Duration::from_secs_f64(bytes as f64 / rate);
            self.next_at = self.next_at.max(now).after(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timings::Histogram;

    const MIB: u64 = 1 << 20;

    /// A volume whose users see what a test says.
    struct Users {
        pacing: Pacing,
        now: Time,
        pages: u64,
        histograms: [Histogram; 2],
    }

    impl Users {
        fn new() -> Self {
            Self {
                pacing: Pacing::new(Time(0)),
                now: Time(0),
                pages: 0,
                histograms: [Histogram::default(), Histogram::default()],
            }
        }

        /// A window of requests, of which one in fifty is slow.
        fn window(&mut self, slow_us: u64, rebuilds: bool) {
            self.now = self.now.after(SHORTEST);
            for index in 0..ENOUGH {
                let micros = if index % 50 == 0 { slow_us } else { 1 };
                self.histograms[0].note(Duration::from_micros(micros));
            }
            self.pages += ENOUGH * 16;
            self.look(rebuilds);
        }

        fn look(&mut self, rebuilds: bool) {
            let load = Load {
                pages: self.pages,
                timed: [self.histograms[0].counts(), self.histograms[1].counts()],
            };
            self.pacing.handle_load(self.now, load, rebuilds);
        }
    }

    #[test]
    fn alone_it_goes_as_fast_as_it_can() {
        let mut users = Users::new();
        users.now = users.now.after(LONGEST);
        users.look(true);
        let Users { pacing, now, .. } = &mut users;
        assert!(pacing.rate().is_infinite());
        assert_eq!((pacing.step().fill_bytes, pacing.step().fills), (MIB, 8));
        pacing.note_chunk(*now, 100 * MIB);
        assert_eq!(pacing.waits_until(*now), None);
    }

    #[test]
    fn requests_that_get_slow_slow_it_down_to_the_floor_and_back() {
        let mut users = Users::new();
        for _ in 0..10 {
            users.window(10, false);
        }
        users.window(10, true);
        assert_eq!(users.pacing.rate(), START * 1.2, "no slower than ever");
        users.window(20, true);
        assert_eq!(users.pacing.rate(), START * 1.2 * 0.7);
        for _ in 0..50 {
            users.window(20, true);
        }
        assert_eq!(users.pacing.rate(), FLOOR);
        let step = users.pacing.step();
        assert_eq!((step.fills, step.chunks), (1, 1), "few writes wait for it");
        users.window(14, true);
        assert_eq!(
            users.pacing.rate(),
            FLOOR,
            "within the factor, and close to it"
        );
        users.window(10, true);
        assert_eq!(users.pacing.rate(), FLOOR * 1.2);
        // They stop asking.
        users.now = users.now.after(LONGEST);
        users.look(true);
        assert!(users.pacing.rate().is_infinite());
        users.window(20, true);
        assert!(users.pacing.rate() <= START, "and begin again");
    }

    #[test]
    fn what_is_normal_is_learnt_while_nothing_is_rebuilt() {
        let mut users = Users::new();
        users.window(20, true);
        assert_eq!(users.pacing.rate(), START, "nothing to compare with");
        for _ in 0..30 {
            users.window(20, false);
        }
        users.window(20, true);
        assert!(users.pacing.rate() > START);
    }

    #[test]
    fn too_few_requests_say_nothing() {
        let mut users = Users::new();
        for _ in 0..5 {
            users.window(10, false);
        }
        users.window(10, true);
        let before = users.pacing.rate();
        for _ in 0..FEW - 1 {
            users.histograms[0].note(Duration::from_millis(5));
        }
        users.pages += 1;
        users.now = users.now.after(LONGEST);
        users.look(true);
        assert_eq!(users.pacing.rate(), before);
    }

    #[test]
    fn a_limit_holds_with_and_without_requests() {
        let mut users = Users::new();
        users.pacing.set(Time(0), MIB, true);
        for second in 0..10_u64 {
            let now = Time(second * 1_000_000_000);
            assert_eq!(users.pacing.waits_until(now), None, "second {second}");
            users.pacing.note_chunk(now, MIB);
            assert!(users.pacing.waits_until(now).is_some());
        }
        users.window(10, false);
        assert_eq!(users.pacing.rate(), MIB as f64);
        users.pacing.set(users.now, 0, false);
        assert!(users.pacing.rate().is_infinite(), "told not to yield");
        assert_eq!(users.pacing.step().fills, 1, "but few writes meet it");
    }

    #[test]
    fn a_limit_that_is_lifted_holds_nothing_up() {
        for next in [0, MIB] {
            let (mut pacing, now) = (Pacing::new(Time(0)), Time(7));
            pacing.set(now, 64, true);
            pacing.note_chunk(now, 128 << 10);
            assert!(pacing.waits_until(now).is_some());
            // As often as it is looked at.
            pacing.set(now, 64, true);
            assert!(pacing.waits_until(now).is_some());
            pacing.set(now, next, true);
            assert_eq!(pacing.waits_until(now), None, "{next}");
        }
    }
}
