//! `cenote-lab`: benchmarks, the demo and experiments. `cenote bench`, `cenote demo` and `cenote
//! lab` execute this program.
//!
//! This crate parses arguments and prints; measurements and simulations are in the crates below it.
//! Results go to stdout, everything else to stderr.

#![deny(unsafe_code)]

use std::process::ExitCode;

use cenote_cli::help;
use cenote_lab::Cli;
use clap::{CommandFactory as _, FromArgMatches as _};

fn main() -> ExitCode {
    let matches = help::laid_out(Cli::command(), help::width()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.start_log();
    cenote_cli::run(cli.role(), |_| None, || cli.run())
}
