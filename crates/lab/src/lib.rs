//! The commands of `cenote-lab`.

#![deny(unsafe_code)]

mod bench;
mod demo;
mod lab;
mod man;

use cenote_cli::Common;
use cenote_cli::role::Role;

/// Benchmarks, the demo and experiments, as run by cenote bench, demo and lab
#[derive(Debug, clap::Parser)]
#[command(name = "cenote", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

const AFTER_HELP: &str = "\
Examples:
  cenote demo
  cenote bench codec
  cenote lab sim --seed 7 --duration 2h";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Demo: memcached swaps to twelve hosts, two are killed, nothing is lost
    Demo(demo::Args),
    /// Run benchmarks against other systems
    Bench(bench::Args),
    /// Simulations: a whole cluster under faults, and the papers' experiments
    Lab(lab::Args),
    /// Print shell completions for cenote-lab
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
    /// Write the manual pages of these commands, for packagers
    #[command(hide = true)]
    Man(man::Args),
}

impl Cli {
    /// Starts the log. Simulated hosts warn of the faults that they are there for: what they say has their
    /// time, and is not shown unless it is asked for.
    pub fn start_log(&self) {
        match &self.command {
            Command::Lab(args) if args.simulates() => {
                let usual = if args.is_verbose() { "warn" } else { "off" };
                self.common.start_with(usual, VirtualTime);
            }
            _ => self.common.start("warn"),
        }
    }

    /// What this command is to the machine.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.command {
            Command::Demo(_) | Command::Bench(_) => Role::Tidies,
            Command::Lab(_) | Command::Completions { .. } | Command::Man(_) => Role::Prints,
        }
    }

    /// Does it; the exit code.
    ///
    /// # Errors
    /// The command's.
    pub fn run(&self) -> anyhow::Result<u8> {
        match &self.command {
            Command::Demo(args) => demo::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Lab(args) => lab::run(args),
            Command::Completions { shell } => man::completions(*shell),
            Command::Man(args) => man::run(args),
        }
    }
}

/// The time of the simulated network that moved last on this thread; 0 where there is none.
struct VirtualTime;

impl tracing_subscriber::fmt::time::FormatTime for VirtualTime {
    fn format_time(
        &self,
        out: &mut tracing_subscriber::fmt::format::Writer<'_>,
    ) -> std::fmt::Result {
        let now = cenote_fabric::sim::now();
        write!(out, "{:>14.6} s", now.0 as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    #[test]
    fn help_fits_a_terminal_of_80_columns_and_has_an_example() {
        let faults = cenote_cli::help::check::faults(Cli::command());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn what_starts_programs_tidies_and_what_prints_ends_with_its_reader() {
        let role = |words: &[&str]| {
            let all = ["cenote"].iter().chain(words);
            Cli::try_parse_from(all).expect("right usage").role()
        };
        assert_eq!(role(&["demo"]), Role::Tidies);
        assert_eq!(role(&["bench", "codec"]), Role::Tidies);
        assert_eq!(role(&["lab", "latency"]), Role::Prints);
    }
}
