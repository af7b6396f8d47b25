//! What a cache must do.

use std::fmt;
use std::str::FromStr;

/// What a cache is asked to do, and to keep doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Least requests per second, of all client threads together; more than 0.
    pub throughput_per_second: f64,
    /// Most time of a request in microseconds, from its submission to its answer, while that many are made.
    pub latency_us: f64,
    /// Which latency that is.
    pub latency_of: LatencyOf,
    /// Bytes of a record, the unit of a request; at least 1.
    pub record_bytes: u32,
}

/// Which of a distribution's figures a latency is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LatencyOf {
    /// The mean, as in the paper.
    #[default]
    Mean,
    /// The median.
    P50,
    /// What 99 of 100 requests stay below.
    P99,
}

impl LatencyOf {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mean, Self::P50, Self::P99];

    /// How it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P99 => "p99",
        }
    }
}

impl fmt::Display for LatencyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LatencyOf {
    type Err = UnknownLatency;

    fn from_str(text: &str) -> Result<Self, UnknownLatency> {
        let found = Self::ALL.into_iter().find(|of| of.name() == text);
        found.ok_or(UnknownLatency)
    }
}

/// A text that names no [`LatencyOf`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("one of mean, p50 and p99")]
pub struct UnknownLatency;
