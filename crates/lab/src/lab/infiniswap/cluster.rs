//! `cluster`.

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::number::amount;
use cenote_papers::infiniswap::cluster::{self, MACHINES_MAX, Options, Swapped};

use super::super::output::Output;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of clusters to simulate, each with a new container placement
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of machines in a cluster
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..=MACHINES_MAX as i64))]
    machines: u32,
    /// Memory of a machine
    #[arg(long, value_name = "GIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    memory_gib: u32,
    /// Number of containers
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..))]
    containers: u32,
    /// Add Spark's PageRank, 16 GiB, as another workload
    #[arg(long)]
    with_spark: bool,
    /// Memory that a machine's operating system uses
    #[arg(long, value_name = "GIB", default_value_t = 2.0, value_parser = amount)]
    system_gib: f64,
    /// Pages per second that a program touches at its peak
    #[arg(long, value_name = "N", default_value_t = 10_000.0, value_parser = amount)]
    touches: f64,
    /// Free memory that a host keeps (headroom)
    #[arg(long, value_name = "GIB", default_value_t = 8.0, value_parser = amount)]
    headroom_gib: f64,
    /// Page I/Os per second above which a slab is mapped (HotSlab)
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = amount)]
    hot_slab: f64,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: &Args) -> Result<u8> {
    let options = Options {
        seed: args.seed,
        runs: args.runs,
        machines: usize::try_from(args.machines)?,
        memory_gib: args.memory_gib,
        containers: usize::try_from(args.containers)?,
        with_spark: args.with_spark,
        system_gib: args.system_gib,
        touches: args.touches,
        headroom_gib: args.headroom_gib,
        hot_slab: args.hot_slab,
        ..Options::default()
    };
    let outcomes = cluster::run(&options)?;
    args.output
        .write_files(&cluster::csv(&outcomes), &cluster::plot(&outcomes))?;
    args.output.print(&outcomes, |out| {
        writeln!(
            out,
            "Simulated: {} machines of {} GiB, {} containers; median of {} runs from seed {}, least \
             to greatest",
            options.machines, options.memory_gib, options.containers, options.runs, options.seed
        )?;
        for outcome in &outcomes {
            writeln!(out, "\n{}", title(outcome.swapped))?;
            writeln!(out, "{:<24}{:>10}  {:<22}{:>8}", "", "median", "", "paper")?;
            for (name, spread, paper) in outcome.figures() {
                let form = form(name);
                let range = format!("({} to {})", form(spread.low), form(spread.high));
                writeln!(
                    out,
                    "{:<24}{:>10}  {:<22}{:>8}",
                    name.replace('_', " "),
                    form(spread.median),
                    range,
                    paper_text(name, paper)
                )?;
            }
        }
        Ok(())
    })?;
    Ok(DONE)
}

fn title(swapped: Swapped) -> &'static str {
    match swapped {
        Swapped::Overflow => "In swap space: what does not fit",
        Swapped::Whole => "In swap space: every page of a program that does not fit",
    }
}

/// The paper only says that the network's share is less.
fn paper_text(name: &str, paper: Option<f64>) -> String {
    let text = paper.map(form(name)).unwrap_or_default();
    if name == "network_share" {
        format!("< {text}")
    } else {
        text
    }
}

/// How a figure is written.
fn form(name: &str) -> fn(f64) -> String {
    match name {
        "utilisation_without" | "utilisation_with" | "network_share" | "remote_share" => {
            |share| format!("{:.1} %", share * 100.0)
        }
        "network_mbps" | "evictions" => |count| format!("{count:.0}"),
        _ => |ratio| format!("{ratio:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_and_counts_are_whole() {
        assert_eq!(form("utilisation_with")(0.4), "40.0 %");
        assert_eq!(form("evictions")(12.4), "12");
        assert_eq!(form("max_to_min_with")(2.666), "2.67");
    }
}
