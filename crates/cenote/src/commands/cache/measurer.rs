//! What measures configurations, by transport.

mod live;

use anyhow::Result;
use cenote_cache::Configuration;
use cenote_cache::simulated::{Network, SimulatedMeasurer};
use cenote_cache::tuner::{Measurement, Measurer, Transport};

use crate::failure::Failure;
use live::Live;

/// How thoroughly a configuration is run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effort {
    /// For a model: the worst of several short runs.
    Survey,
    /// As a user would: one run, several times as long.
    Use,
}

/// A measurer whose errors are the command's.
pub type AnyMeasurer = Box<dyn Measurer<Error = anyhow::Error>>;

/// The measurer of `transport` over a distance of `distance_ns`, one way.
///
/// # Errors
/// Nothing measures that transport.
pub fn open(
    transport: Transport,
    distance_ns: u64,
    seed: u64,
    effort: Effort,
) -> Result<AnyMeasurer> {
    match transport {
        Transport::Sim => {
            let network = Network::paper(distance_ns);
            Ok(Box::new(Simulated(match effort {
                Effort::Survey => SimulatedMeasurer::usual(network, seed),
                Effort::Use => SimulatedMeasurer::new(network, seed, 1, 10_000),
            })))
        }
        Transport::Shm | Transport::Tcp => Ok(Box::new(Live::new(transport, seed, effort)?)),
        Transport::Rdma => Err(Failure::new(
            format!("caches cannot be measured over {transport} yet"),
            "--transport sim, shm or tcp",
        )
        .into()),
    }
}

struct Simulated(SimulatedMeasurer);

impl Measurer for Simulated {
    type Error = anyhow::Error;

    fn measure(&mut self, record_bytes: u32, configuration: Configuration) -> Result<Measurement> {
        Ok(self.0.run(record_bytes, configuration))
    }
}
