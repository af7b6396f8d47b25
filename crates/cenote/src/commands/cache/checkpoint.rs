//! `cache checkpoint`: a cache's regions in a file, while it is in use.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cache::service::question::{Answer, Checkpoint, Question};
use cenote_cli::failure::DONE;
use cenote_cli::progress;
use cenote_cli::size::Size;
use cenote_cli::span::{self, Span};
use cenote_cli::stdout;
use cenote_durable::copy;
use serde_json::json;

use crate::caches::{CHECKPOINT, CacheDir};
use crate::place::Which;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the cache
    name: String,
    /// Also copy the checkpoint to this file
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long to wait for the checkpoint
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = span::any)]
    timeout: Duration,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    if let Answer::Error(why) = cache.ask(&loaded.key, &Question::Checkpoint)? {
        bail!("cache {}: {why}", args.name);
    }
    let deadline = Instant::now() + args.timeout;
    let bar = progress::waiting(format!("checkpoint of cache {}", args.name));
    let (regions, len_bytes, longest_hold_ms) = loop {
        match cache.status(&loaded.key)?.checkpoint {
            Some(Checkpoint::Made {
                regions,
                len_bytes,
                longest_hold_ms,
            }) => break (regions, len_bytes, longest_hold_ms),
            Some(Checkpoint::Failed(why)) => bail!("cache {}: no checkpoint: {why}", args.name),
            None => bail!("cache {}: another manager has taken over", args.name),
            Some(Checkpoint::Running) if Instant::now() >= deadline => bail!(
                "cache {}: no checkpoint within {}; it continues in the background",
                args.name,
                Span::from(args.timeout)
            ),
            Some(Checkpoint::Running) => std::thread::sleep(LOOK),
        }
    };
    bar.finish_and_clear();
    if let Some(file) = &args.file {
        let made = cache.folder().join(CHECKPOINT);
        copy(&made, file).with_context(|| format!("copy it to {}", file.display()))?;
    }
    let mut out = stdout::lock();
    if args.json {
        let line = json!({
            "name": args.name, "regions": regions, "bytes": len_bytes,
            "longest_hold_ms": longest_hold_ms,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(
            out,
            "cache {}: {regions} regions in {}; writes of a region were held for {longest_hold_ms} ms at most",
            args.name,
            Size(len_bytes).rounded()
        )?;
    }
    Ok(DONE)
}
