//! `placement`.

use std::str::FromStr;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_measure::statistics::MedianRange;
use cenote_papers::infiniswap::placement::{self, Options};

use super::super::output::Output;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of machines, or a range as in 32..100000
    #[arg(long, value_name = "N", default_value = "32..100000")]
    machines: Sizes,
    /// Slabs that each machine maps
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slabs: u32,
    /// Clusters to simulate for each size and policy
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// Sizes of clusters.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Sizes(Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| match text.parse::<usize>() {
            Ok(size) if (2..=placement::MACHINES_MAX).contains(&size) => Ok(size),
            _ => Err(format!("from 2 to {}", placement::MACHINES_MAX)),
        };
        let Some((low, high)) = text.split_once("..") else {
            return Ok(Self(vec![size(text)?]));
        };
        let (low, high) = (size(low)?, size(high)?);
        if low > high {
            return Err("the smaller one first".to_owned());
        }
        let between = HALF_POWERS
            .into_iter()
            .filter(|at| (low + 1..high).contains(at));
        let mut sizes = vec![low];
        sizes.extend(between);
        if high > low {
            sizes.push(high);
        }
        Ok(Self(sizes))
    }
}

/// Half powers of ten, up to [`placement::MACHINES_MAX`].
const HALF_POWERS: [usize; 12] = [
    3, 10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000,
];

pub fn run(args: &Args) -> Result<u8> {
    let rows = placement::run(&Options {
        machines: args.machines.0.clone(),
        slabs: args.slabs,
        runs: args.runs,
        seed: args.seed,
    })?;
    args.output
        .write_files(&placement::csv(&rows), &placement::plot(&rows))?;
    args.output.print(&rows, |out| {
        writeln!(
            out,
            "Slabs on hosts, {} in the mean; median of {} runs from seed {}, least to greatest",
            args.slabs, args.runs, args.seed
        )?;
        writeln!(
            out,
            "{:>8}  {:<12}  {:<16}  {:<20}  max / min",
            "machines", "policy", "fullest", "max / median"
        )?;
        for row in &rows {
            writeln!(
                out,
                "{:>8}  {:<12}  {:<16}  {:<20}  {}",
                row.machines,
                row.policy,
                whole(&row.max),
                ratio(&row.max_to_median),
                ratio(&row.max_to_min)
            )?;
        }
        Ok(())
    })?;
    Ok(DONE)
}

fn whole(spread: &MedianRange) -> String {
    format!(
        "{:.0} ({:.0}-{:.0})",
        spread.median, spread.low, spread.high
    )
}

fn ratio(spread: &MedianRange) -> String {
    format!(
        "{:.2} ({:.2}-{:.2})",
        spread.median, spread.low, spread.high
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_in_half_powers_of_ten() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(
            sizes("32..100000").unwrap(),
            [32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000]
        );
        assert_eq!(sizes("50..60").unwrap(), [50, 60]);
        assert_eq!(sizes("7..7").unwrap(), [7]);
        assert_eq!(sizes("500").unwrap(), [500]);
        for text in ["", "1", "32..", "..5", "9..3", "2000000", "a..b"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }
}
