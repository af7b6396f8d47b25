//! Wishes drawn at random, and how the configurations that are chosen for them really do.
//!
//! Paper: \[redy22\], accuracy of SLOs: 100 at random, each cache measured.

use super::{Found, Measurement, Measurer, Mix, NoTable, Surface, Transport};
use crate::{LatencyOf, Slo};
use cenote_pool::random::Random;

/// Wishes are for at most so many times the shortest latency at their throughput.
const LATENCY_FACTOR_MAX: f64 = 8.0;

/// Draws wishes that a model says can be met: any size of records up to the largest that was measured,
/// any throughput from the lowest to the highest of a measured point, and a latency from the shortest that can be
/// had with it to eight times that; all with even odds for each factor.
#[derive(Debug)]
pub struct Wishes<'a> {
    mix: Mix<'a>,
    transport: Transport,
    distance_ns: u64,
    latency_of: LatencyOf,
    random: Random,
    record_bytes: (u32, u32),
}

impl<'a> Wishes<'a> {
    /// Wishes for `transport` over `distance_ns`. The seed decides all of them.
    ///
    /// # Errors
    /// The model has nothing for that.
    pub fn new(
        mix: Mix<'a>,
        transport: Transport,
        distance_ns: u64,
        latency_of: LatencyOf,
        seed: u64,
    ) -> Result<Self, NoTable> {
        let tables = mix.by_record(transport, distance_ns)?;
        let (smallest, largest) = (tables.keys().next(), tables.keys().next_back());
        let record_bytes = smallest.zip(largest);
        Ok(Self {
            mix,
            transport,
            distance_ns,
            latency_of,
            random: Random::new(seed),
            record_bytes: record_bytes.map_or((1, 1), |(least, most)| (*least, *most)),
        })
    }

    /// The next wish, and the surface to search for it; `None` if nothing was measured.
    #[expect(
        clippy::should_implement_trait,
        reason = "there is no end to wishes, so this is no iterator"
    )]
    pub fn next(&mut self) -> Option<(Slo, Surface)> {
        let (smallest, largest) = self.record_bytes;
        let drawn = self
            .random
            .between_by_factor(f64::from(smallest), f64::from(largest) + 1.0);
        let record_bytes = (drawn as u32).clamp(smallest, largest);
        let surface = self.mix.surface(
            self.transport,
            self.distance_ns,
            record_bytes,
            self.latency_of,
        );
        let surface = surface.ok()?;
        let speeds = || {
            surface
                .points()
                .map(|(_, point)| point.throughput_per_second)
        };
        let slowest = speeds().min_by(f64::total_cmp)?;
        let fastest = speeds().max_by(f64::total_cmp)?;
        let mut slo = Slo {
            throughput_per_second: self.random.between_by_factor(slowest, fastest).min(fastest),
            latency_us: 0.0,
            latency_of: self.latency_of,
            record_bytes,
        };
        // No latency is 0: the refusal has the shortest.
        let nearest = surface.search(&slo).err()?.at_throughput?;
        let factor = self.random.between_by_factor(1.0, LATENCY_FACTOR_MAX);
        slo.latency_us = nearest.prediction.latency_us * factor;
        Some((slo, surface))
    }
}

/// A wish, what was chosen, and how it did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What was asked for.
    pub slo: Slo,
    /// What was chosen for it.
    pub found: Found,
    /// How it did.
    pub measured: Measurement,
}

impl Sample {
    /// Runs what was chosen for a wish.
    ///
    /// # Errors
    /// Those of the measurer.
    pub fn run<M: Measurer + ?Sized>(
        slo: Slo,
        found: Found,
        measurer: &mut M,
    ) -> Result<Self, M::Error> {
        let measured = measurer.measure(slo.record_bytes, found.configuration)?;
        Ok(Self {
            slo,
            found,
            measured,
        })
    }

    /// Throughput by what was asked for: 1 or more is kept.
    #[must_use]
    pub fn throughput_ratio(&self) -> f64 {
        self.measured.throughput_per_second() / self.slo.throughput_per_second
    }

    /// Latency by what was asked for: 1 or less is kept.
    #[must_use]
    pub fn latency_ratio(&self) -> f64 {
        self.measured.latency_us(self.slo.latency_of) / self.slo.latency_us
    }
}
