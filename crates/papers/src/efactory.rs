//! eFactory beside six other schemes, in virtual time: `cenote lab efactory`.
//!
//! Clients in a closed loop take the steps that `cenote_store::schemes` has for a scheme, over a
//! model of a network, a server's card, its cores and one core in the background. Which versions
//! there are, whole, durable and named, is kept for each key, so how often a read meets one that
//! is not durable comes out and is not put in. Every figure is **simulated**; what it rests on is
//! [`Parameters`].
//!
//! One store, whose requests any core takes: locks and the misses that cores cost each other are
//! not charged. Nor are clients' own cards. Keys are drawn by Zipf's law, 0.99.
//! Paper: eFactory, ICPP 2021, evaluation; `docs/papers/efactory.md`, Claims.

mod background;
mod card;
mod client;
mod cores;
pub mod experiments;
pub mod parameters;
mod price;
pub mod report;
pub mod tally;
mod versions;
mod world;

use cenote_store::schemes::Scheme;

pub use parameters::Parameters;
pub use tally::Measured;

/// Shares of GETs and PUTs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mix {
    /// All GETs.
    Gets,
    /// 95 of a hundred.
    MostlyGets,
    /// Half.
    Half,
    /// All PUTs.
    Puts,
}

impl Mix {
    /// The slides' four.
    pub const ALL: [Self; 4] = [Self::Gets, Self::MostlyGets, Self::Half, Self::Puts];

    /// GETs of a hundred operations.
    #[must_use]
    pub fn gets_percent(self) -> u8 {
        match self {
            Self::Gets => 100,
            Self::MostlyGets => 95,
            Self::Half => 50,
            Self::Puts => 0,
        }
    }

    /// As the slides have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gets => "100% GET",
            Self::MostlyGets => "95% GET",
            Self::Half => "50% GET",
            Self::Puts => "100% PUT",
        }
    }
}

/// Which GETs of a scheme that has a call go by it while the log is cleaned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fallback {
    /// All, as in the paper: a client that has heard of it calls at once.
    WhileCleaning,
    /// Those whose entry leads to the half that is being emptied; the entry is read first.
    UntilMoved,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What things cost.
    pub parameters: Parameters,
    /// Random seed.
    pub seed: u64,
    /// What clients ask for.
    pub mix: Mix,
    /// Length of each value.
    pub value_bytes: u64,
    /// Clients, each with one operation at a time.
    pub clients: u32,
    /// Whether the server refuses space while too much waits to be durable.
    pub is_bounded: bool,
    /// The log is cleaned from the end of the warm-up on; a run ends when it is.
    pub cleaning: Option<Fallback>,
    /// Microseconds that do not count.
    pub warm_up_us: u64,
    /// Those that do, at most.
    pub measured_us: u64,
    /// Keep every step that is taken.
    pub has_trace: bool,
}

impl Setup {
    /// Of usual length and with the usual costs.
    #[must_use]
    pub fn new(seed: u64, mix: Mix, value_bytes: u64, clients: u32) -> Self {
        Self {
            parameters: Parameters::default(),
            seed,
            mix,
            value_bytes,
            clients,
            is_bounded: false,
            cleaning: None,
            warm_up_us: 4000,
            measured_us: 16_000,
            has_trace: false,
        }
    }

    /// Runs it with a scheme.
    ///
    /// # Panics
    /// No clients, no keys, no cores, or no time.
    #[must_use]
    pub fn run(&self, scheme: &dyn Scheme) -> Measured {
        let is_something = self.clients > 0
            && self.parameters.keys > 1
            && self.parameters.server_cores > 0
            && self.measured_us > 0;
        assert!(is_something, "nothing to run");
        world::World::new(self, scheme).finish()
    }

    fn warm_up_ps(&self) -> u64 {
        self.warm_up_us * 1_000_000
    }

    fn end_ps(&self) -> u64 {
        (self.warm_up_us + self.measured_us) * 1_000_000
    }
}

#[cfg(test)]
mod tests;
