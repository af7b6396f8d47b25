//! The arguments of `cenote lab history`.

use std::fs::File;
use std::io::BufWriter;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_bench::history::{self, Answer, Options};
use cenote_cli::failure::DONE;
use cenote_cli::span;
use cenote_fabric::HostPort;

/// `lab history` and what follows it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address of a node; may be repeated
    #[arg(long = "address", value_name = "HOST:PORT", required = true)]
    addresses: Vec<HostPort>,
    /// File to write, with one operation on each line
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Length of the recording
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = span::within("1s", "1h"))]
    duration: Duration,
    /// Number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    keys: u16,
    /// Approximate requests per second
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Seed of what is asked
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<u8> {
    let reached = |at: &HostPort| {
        let stream = TcpStream::connect(at).and_then(|stream| stream.peer_addr());
        stream.with_context(|| at.to_string())
    };
    let reached = args.addresses.iter().map(reached);
    let options = Options {
        clients: args.clients.into(),
        keys: args.keys.into(),
        time: args.duration,
        at_least: 0,
        rate: args.rate,
        seed: args.seed,
        ..Options::new(reached.collect::<Result<_>>()?)
    };
    let operations = history::record(&options, || Ok(()))?;
    let path = &args.out;
    let file = File::create(path).with_context(|| path.display().to_string())?;
    history::write_json(&mut BufWriter::new(file), &operations)
        .with_context(|| path.display().to_string())?;
    let open = operations
        .iter()
        .filter(|one| one.answer == Answer::Unknown);
    println!(
        "{} operations in {}, {} of them without an answer",
        operations.len(),
        path.display(),
        open.count()
    );
    Ok(DONE)
}
