//! The arguments of `cenote bench page --trouble` and `--protected`.

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::protection;
use cenote_bench::trouble::{self, Options};
use cenote_cli::transport::Transport;

/// [`trouble::Trouble`] as words of the command line.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Trouble {
    /// Each in turn
    All,
    /// No trouble: the baseline
    Quiet,
    /// One host stalls for 20 ms, repeatedly
    Straggler,
    /// Another client sends as much traffic as it can
    Flows,
    /// Bursts of 32 requests
    Burst,
    /// One host is dead and not replaced
    OneDead,
    /// Two hosts are dead and not replaced
    TwoDead,
    /// The memory of one host rots, repeatedly; rs:8+3 with correction, in place of rs:8+2
    Corrupted,
}

impl Trouble {
    fn of_lab(self) -> Vec<trouble::Trouble> {
        use trouble::Trouble as Lab;
        match self {
            Self::All => Lab::ALL.to_vec(),
            Self::Quiet => vec![Lab::Quiet],
            Self::Straggler => vec![Lab::Straggler],
            Self::Flows => vec![Lab::Flows],
            Self::Burst => vec![Lab::Burst],
            Self::OneDead => vec![Lab::OneDead],
            Self::TwoDead => vec![Lab::TwoDead],
            Self::Corrupted => vec![Lab::Corrupted],
        }
    }
}

pub fn run(
    transports: &[Transport],
    troubles: &[Trouble],
    rounds: Option<usize>,
) -> Result<Vec<Row>> {
    let mut options = Options {
        troubles: troubles.iter().flat_map(|one| one.of_lab()).collect(),
        ..Options::default()
    };
    options.rounds = rounds.unwrap_or(options.rounds);
    over(transports, |transport| {
        options.transport = transport.unwrap_or(&options.transport).to_owned();
        trouble::run(&options)
    })
}

pub fn run_protected(transports: &[Transport], rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = protection::Options::default();
    options.rounds = rounds.unwrap_or(options.rounds);
    over(transports, |transport| {
        options.transport = transport.unwrap_or(&options.transport).to_owned();
        protection::run(&options)
    })
}

/// Measures over each transport; without any, over the measurement's own.
fn over(
    transports: &[Transport],
    mut measure: impl FnMut(Option<&str>) -> Result<Vec<Row>>,
) -> Result<Vec<Row>> {
    if transports.is_empty() {
        return measure(None);
    }
    let mut rows = Vec::new();
    for transport in transports {
        rows.extend(measure(Some(&transport.to_string()))?);
    }
    Ok(rows)
}
