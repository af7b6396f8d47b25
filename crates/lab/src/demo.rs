//! `cenote demo`: the main job, from an empty machine to a report.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cenote_bench::demo::{self, Options};
use cenote_cli::failure::{DONE, FAILED};
use cenote_cli::progress;
use cenote_cli::span;

/// `demo` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote demo
  cenote demo --transport tcp --duration 60s

It starts twelve hosts, uses an rs:8+2 volume on them as swap space, runs memcached in half the memory
that it needs, kills two hosts halfway, checks every value, and repeats this with a swap file. It needs
root and memcached, and cleans up after itself.")]
pub struct Args {
    /// Transport to the hosts
    #[arg(long, value_enum, default_value_t = cenote_cli::transport::Transport::Shm)]
    transport: cenote_cli::transport::Transport,
    /// Length of the load; the hosts are killed halfway
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span::within("4s", "10m"))]
    duration: Duration,
    /// Folder for temporary files, on a real disk, for the swap file
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<u8> {
    let defaults = Options::default();
    let options = Options {
        dir: args.dir.clone().unwrap_or_else(|| defaults.dir.clone()),
        transport: args.transport.to_string(),
        load_time: args.duration,
        ..defaults
    };
    let bar = progress::line();
    let report = demo::run(&options, &mut |step| {
        bar.suspend(|| eprintln!("{step}"));
        bar.set_message(step.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    let report = report?;
    println!("{report}");
    Ok(if report.is_success() { DONE } else { FAILED })
}
