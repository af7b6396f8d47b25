//! From an SLO to a configuration: measured before, looked up when a cache is asked for.
//!
//! - [`Survey`]: which configuration to measure next, and when to stop (before).
//! - [`Model`]: what was measured; a file.
//! - [`Surface`]: what is predicted between measured points, for one size of records.
//! - [`Surface::search`]: the cheapest configuration that does what an [`Slo`](crate::Slo) asks.
//!
//! Paper: \[redy22\], offline modelling and online search; deviations in `docs/papers/redy.md`.

mod grid;
mod model;
mod search;
mod surface;
mod survey;
mod table;
pub mod trial;

pub use grid::{Grid, Spacing};
pub use model::{Key, Mix, Model, ModelError, NoTable, Transport, UnknownTransport};
pub use search::{Found, Refusal};
pub use surface::{MARGIN, Prediction, Surface};
pub use survey::{RISE_MIN, Survey};
pub use table::{NotOnGrid, Table};

use crate::{Configuration, LatencyOf};

/// How a configuration did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    throughput_per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Measurement {
    /// Requests per second of all client threads together, and the time of a request in microseconds.
    /// `None` if one is no positive number that is finite, or if the median is above the p99.
    #[must_use]
    pub fn new(throughput_per_second: f64, mean_us: f64, p50_us: f64, p99_us: f64) -> Option<Self> {
        let all = [throughput_per_second, mean_us, p50_us, p99_us];
        let sound = all.iter().all(|one| one.is_finite() && *one > 0.0) && p50_us <= p99_us;
        sound.then_some(Self {
            throughput_per_second,
            mean_us,
            p50_us,
            p99_us,
        })
    }

    /// Requests per second.
    #[must_use]
    pub fn throughput_per_second(self) -> f64 {
        self.throughput_per_second
    }

    /// Time of a request in microseconds.
    #[must_use]
    pub fn latency_us(self, of: LatencyOf) -> f64 {
        match of {
            LatencyOf::Mean => self.mean_us,
            LatencyOf::P50 => self.p50_us,
            LatencyOf::P99 => self.p99_us,
        }
    }

    /// The lower throughput and the higher latencies of two runs.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        Self {
            throughput_per_second: self.throughput_per_second.min(other.throughput_per_second),
            mean_us: self.mean_us.max(other.mean_us),
            p50_us: self.p50_us.max(other.p50_us),
            p99_us: self.p99_us.max(other.p99_us),
        }
    }
}

/// What runs a configuration and says how it did: a network, simulated or real.
pub trait Measurer {
    /// Why a run failed.
    type Error;

    /// Runs closed loops: each connection has as many requests under way as `configuration` lets it,
    /// each for a record of `record_bytes` at random.
    ///
    /// # Errors
    /// The run could not be made; the survey may go on later.
    fn measure(
        &mut self,
        record_bytes: u32,
        configuration: Configuration,
    ) -> Result<Measurement, Self::Error>;
}
