//! `cenote host notice`: a host is told that its machine is taken back, and when.
//!
//! The host passes it on to its clients, which move what they have there, and ends when nobody has anything, at the
//! latest when the time is over: as on SIGTERM with `--grace`, for a machine that somebody else ends.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::span::Span;
use cenote_cli::stdout;
use cenote_pool::control::Request;
use serde_json::json;

use super::target;
use crate::ask::Asker;

/// `host notice` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote host notice h03 --grace 30s --cluster /etc/cenote/cluster.toml
  cenote host notice tcp:10.0.0.7:7000 --grace 2m --key /etc/cenote/cluster.key --json
  cenote host notice h03 --cancel --dir ~/.cenote/well

Caches move their regions off the host, first those without another copy; volumes move their slabs. The
host exits once nobody holds its memory, at the latest after --grace. cenote host drain, in contrast,
waits for the end, and stops the host only with --stop.")]
pub struct Args {
    #[command(flatten)]
    target: target::Named,
    /// Time from now until the machine goes away
    #[arg(long, value_name = "DURATION", required_unless_present = "cancel")]
    grace: Option<Span>,
    /// Withdraw the notice
    #[arg(long, conflicts_with = "grace")]
    cancel: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How long an answer of the host may take.
const ANSWER: Duration = Duration::from_secs(5);

pub fn run(args: &Args) -> Result<u8> {
    let within_ms = match args.grace {
        None => 0,
        Some(grace) => {
            let ms = u32::try_from(grace.ns() / 1_000_000)
                .ok()
                .filter(|&ms| ms > 0);
            ms.ok_or_else(|| Failure::usage("--grace", "from 1ms to 49 days"))?
        }
    };
    let target = args.target.target()?;
    let mut host = Asker::connect(&target.address, &target.key, "cenote host notice", ANSWER)
        .with_context(|| format!("host {}", target.name))?;
    let request = Request::Notice { within_ms };
    if host.version() < request.since() {
        let what = format!(
            "host {} runs an older version that does not support notices",
            target.name
        );
        return Err(
            Failure::new(what, "use cenote host drain, or upgrade it: docs/deploy.md").into(),
        );
    }
    let status = host
        .ask(&request, ANSWER)
        .with_context(|| format!("host {}", target.name))?;
    let lent = status.slabs.mapped + status.slabs.orphaned;
    let mut out = stdout::lock();
    if args.json {
        let leaving = within_ms > 0;
        let said = json!({
            "host": target.name, "leaving": leaving, "within_ms": within_ms, "slabs_lent": lent,
        });
        writeln!(out, "{said}")?;
    } else if within_ms == 0 {
        writeln!(out, "{}: notice withdrawn, lends again", target.name)?;
    } else {
        let seconds = f64::from(within_ms) / 1e3;
        writeln!(
            out,
            "{}: leaves in {seconds} s; {lent} slabs to move",
            target.name
        )?;
    }
    Ok(DONE)
}
