//! A network on which every configuration can be measured: client threads, connections, batches, server
//! threads and two network cards, as discrete events.
//!
//! Each connection has its messages under way in a closed loop. A message waits for and takes, one
//! after the other: its client thread (packing, posting), the way there, its server thread (none
//! for one-sided verbs), the way back, its client thread again (taking answers). Threads and each way serve in
//! the order of arrival. Every figure that comes out is simulated.
//!
//! Time is in picoseconds in the code below. All randomness comes from one seed.
//!
//! Paper: \[redy22\]: 3 to 4 us for a read at the network's own speed, ten times its throughput by
//! batches of 16-byte records, and nothing more from batches from 256-byte records on.

mod network;
mod run;

pub use network::Network;

use crate::tuner::{Measurement, Measurer};
use crate::{Configuration, Writes};
use cenote_pool::random::Random;

/// Measures configurations on a [`Network`].
#[derive(Clone, Debug)]
pub struct SimulatedMeasurer {
    network: Network,
    seed: u64,
    rounds: u32,
    messages: usize,
    writes: Writes,
}

impl SimulatedMeasurer {
    /// Each measurement is the worst of `rounds` runs of `messages` messages each, after others that warm it up;
    /// more where so many would not fill the connections ten times.
    #[must_use]
    pub fn new(network: Network, seed: u64, rounds: u32, messages: usize) -> Self {
        Self {
            network,
            seed,
            rounds: rounds.max(1),
            messages: messages.max(100),
            writes: Writes::NONE,
        }
    }

    /// As the rest of the program has it: the worst of three runs of 2000 messages.
    #[must_use]
    pub fn usual(network: Network, seed: u64) -> Self {
        Self::new(network, seed, 3, 2000)
    }

    /// The same with so many requests that write.
    #[must_use]
    pub fn with_writes(self, writes: Writes) -> Self {
        Self { writes, ..self }
    }

    /// One measurement.
    ///
    /// # Panics
    /// The configuration is none: c, b or q is 0, s is above c, or s is 0 and b is not 1.
    #[must_use]
    pub fn run(&self, record_bytes: u32, configuration: Configuration) -> Measurement {
        let Configuration { c, s, b, q } = configuration;
        // The same whatever was measured before, so that a survey that goes on measures what it would have.
        let mut random = Random::new(self.seed);
        for part in [record_bytes, c, s, b, q] {
            random = Random::new(random.number() ^ u64::from(part));
        }
        let mut worst: Option<Measurement> = None;
        for _ in 0..self.rounds {
            let seed = random.number();
            let what = (record_bytes, self.writes);
            let run = run::Run::new(&self.network, configuration, what, seed);
            let measured = run.finish(self.messages);
            worst = Some(worst.map_or(measured, |worst| worst.worse(measured)));
        }
        worst.expect("at least one round")
    }
}

impl Measurer for SimulatedMeasurer {
    type Error = std::convert::Infallible;

    fn measure(
        &mut self,
        record_bytes: u32,
        configuration: Configuration,
    ) -> Result<Measurement, Self::Error> {
        Ok(self.run(record_bytes, configuration))
    }
}

#[cfg(test)]
mod tests;
