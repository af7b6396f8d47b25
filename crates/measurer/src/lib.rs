//! Measures cache configurations on a real transport, and keeps network models in files: `cenote
//! cache model`, and figures of Redy's paper.
//!
//! On a real transport clients are threads of this process, and the host is a separate process
//! ([`peer`]). Paper: \[redy21\] 5.2.

pub mod files;
mod live;
pub mod peer;

use anyhow::Result;
use cenote_cache::simulation::{Network, SimulatedMeasurer};
use cenote_cache::tuner::{Measurement, Measurer, Survey, Table, Transport};
use cenote_cache::{Configuration, Space, Writes};
use cenote_cli::progress;

use live::Live;
pub use live::{Places, run_patiently};

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

/// The measurer of `transport` over a distance of `distance_ns`, one way, with so many writes.
///
/// # Errors
/// Nothing measures that transport here.
pub fn open(
    transport: Transport,
    distance_ns: u64,
    writes: Writes,
    seed: u64,
    effort: Effort,
) -> Result<AnyMeasurer> {
    match transport {
        Transport::Sim => {
            let network = Network::paper(distance_ns);
            let measurer = match effort {
                Effort::Survey => SimulatedMeasurer::usual(network, seed),
                Effort::Use => SimulatedMeasurer::new(network, seed, 1, 10_000),
            };
            Ok(Box::new(Simulated(measurer.with_writes(writes))))
        }
        Transport::Shm | Transport::Tcp | Transport::Rdma => {
            Ok(Box::new(Live::new(transport, writes, seed, effort)?))
        }
    }
}

/// The configurations that are worth measuring on `transport` here.
pub fn space(transport: Transport) -> Space {
    match transport {
        Transport::Sim => Space::PAPER,
        Transport::Shm | Transport::Tcp | Transport::Rdma => live::space(),
    }
}

/// How often a survey of `transport` is repeated. The simulated network is the same at all times.
pub fn passes(transport: Transport) -> u32 {
    match transport {
        Transport::Sim => 1,
        Transport::Shm | Transport::Tcp | Transport::Rdma => 3,
    }
}

/// Goes on with a survey until `left` measurements were made or none is left to make; `note` sees the
/// table after each.
///
/// # Errors
/// Those of the measurer and of `note`.
pub fn go_on(
    survey: &mut Survey,
    measurer: &mut AnyMeasurer,
    record_bytes: u32,
    left: &mut usize,
    note: &mut dyn FnMut(&Table) -> Result<()>,
) -> Result<()> {
    let bar = progress::steps(survey.grid_count() as u64, "configurations");
    while *left > 0
        && let Some(next) = survey.next()
    {
        survey.insert(next, measurer.measure(record_bytes, next)?)?;
        *left -= 1;
        bar.set_position(survey.done_count() as u64);
        note(survey.table())?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Measures every row of a table again, a while after it was measured first: of each the worst that was
/// seen is kept.
///
/// # Errors
/// Those of the measurer.
pub fn repeat(table: &mut Table, measurer: &mut AnyMeasurer, record_bytes: u32) -> Result<()> {
    let rows: Vec<(Configuration, Measurement)> = table.iter().collect();
    let bar = progress::steps(rows.len() as u64, "repeats");
    for (configuration, before) in rows {
        let again = measurer.measure(record_bytes, configuration)?;
        table.insert(configuration, before.worse(again))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

struct Simulated(SimulatedMeasurer);

impl Measurer for Simulated {
    type Error = anyhow::Error;

    fn measure(&mut self, record_bytes: u32, configuration: Configuration) -> Result<Measurement> {
        Ok(self.0.run(record_bytes, configuration))
    }
}
