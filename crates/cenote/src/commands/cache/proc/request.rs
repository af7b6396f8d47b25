//! `cenote cache proc run`: one request for a procedure, from the command line.
//!
//! It is asked of one host after the other until one knows the cache: those that have no slab of it
//! may not. Arguments and answers are shown as numbers of 8 bytes, little-endian, as procedures
//! have them.

use anyhow::{Result, bail, ensure};
use cenote_proc::remote::Remote;
use cenote_proc::{Access, ProcedureId, Status};

use super::{Common, Site, cache_id, known, say, sites};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Name of the procedure; the newest version runs
    name: String,
    /// The cache, by name or number
    cache: String,
    /// Argument, as up to 128 numbers of 8 bytes
    numbers: Vec<u64>,
    #[command(flatten)]
    common: Common,
}

/// How a request ended that no host can end better.
struct End {
    host: String,
    status: Status,
    answer: Vec<u8>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    ensure!(
        args.numbers.len() <= cenote_proc_sdk::STATE_MAX / 8,
        "an argument has at most {} numbers",
        cenote_proc_sdk::STATE_MAX / 8
    );
    let loaded = args.common.which.load()?;
    let cache = cache_id(&loaded, &args.cache, Access::Read)?;
    let sites = sites(&loaded)?;
    let code = sites.code();
    let Some(&(_, id)) = known(&sites.up, &args.name).last() else {
        bail!("no host has a procedure {}", args.name);
    };
    let argument: Vec<u8> = args.numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let end = ask(sites.up, |remote| remote.run(cache, id, &argument), id)?;
    let End {
        host,
        status,
        answer,
    } = end;
    let (how, is_whole) = match status {
        Status::Done => ("done", true),
        Status::Stopped => ("stopped; the answer is the state to continue from", true),
        _ => ("", false),
    };
    if !is_whole {
        let ran = match status.may_have_run() {
            true => "it may have run",
            false => "it did not run",
        };
        bail!("{} on {}: {status:?}; {ran}", args.name, args.cache);
    }
    let numbers = answer.chunks_exact(8);
    let rest = numbers.remainder();
    let numbers = numbers.map(|n| u64::from_le_bytes(n.try_into().expect("8 bytes")));
    let numbers: Vec<u64> = numbers.collect();
    if args.common.json {
        let line = serde_json::json!({
            "status": how, "host": host, "numbers": numbers, "rest": rest,
        });
        say(&line.to_string())?;
    } else {
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let rest = match rest.len() {
            0 => String::new(),
            len => format!(", and {len} bytes"),
        };
        say(&format!(
            "{how}, asked of {host}: {}{rest}",
            numbers.join(" ")
        ))?;
    }
    Ok(code)
}

/// Asks hosts that have the procedure until one knows the cache.
fn ask(
    sites: Vec<Site>,
    request: impl Fn(&mut Remote) -> Result<(Status, Vec<u8>), cenote_proc::remote::Cut>,
    id: ProcedureId,
) -> Result<End> {
    let mut last = None;
    for site in sites {
        if !site.rows.iter().any(|row| row.id == id) {
            continue;
        }
        let mut remote = Remote::new(site.caller, 1);
        let (status, answer) = request(&mut remote)?;
        let end = End {
            host: site.name,
            status,
            answer,
        };
        if end.status != Status::OutOfBounds {
            return Ok(end);
        }
        last = Some(end);
    }
    Ok(last.expect("a host has the procedure"))
}
