//! `cenote cache proc run`: one request for a procedure, from the command line.
//!
//! It is asked once, of the first host that knows the cache: those that have no slab of it may not.
//! Arguments and answers are shown as numbers of 8 bytes, little-endian, as procedures
//! have them.

use anyhow::{Context as _, Result, bail};
use cenote_cli::failure::{Failure, chain};
use cenote_fabric::Session;
use cenote_proc::remote::Remote;
use cenote_proc::{CacheId, ECHO, ProcedureId, Status, Trap};

use super::{Common, Site, Sites, cache_id, known, say, sites};

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

/// Most numbers of an argument.
const NUMBERS_MAX: usize = cenote_proc_sdk::STATE_MAX / 8;

/// A host that knows the cache.
struct Host {
    name: String,
    remote: Remote,
    // Its end would end the connection.
    _session: Box<dyn Session>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    if args.numbers.len() > NUMBERS_MAX {
        let given = args.numbers.len();
        let what = format!("{given} numbers: an argument has at most {NUMBERS_MAX}");
        return Err(Failure::usage(what, "cenote cache proc run --help").into());
    }
    let loaded = args.common.which.load()?;
    let cache = cache_id(&loaded, &args.cache)?;
    let mut sites = sites(&loaded)?;
    let Some(&(_, id)) = known(&sites.up, &args.name).last() else {
        bail!("no host has a procedure {}", args.name);
    };
    let argument: Vec<u8> = args.numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let Some(mut host) = find(&mut sites, cache, id) else {
        bail!(
            "no host that has {} knows {}: nothing ran; look whether its manager runs",
            args.name,
            args.cache
        );
    };
    let (status, answer) = host.remote.run(cache, id, &argument)?;
    let host = host.name;
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
        let why = why(status);
        bail!("{} on {}: {why}; {ran}", args.name, args.cache);
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
    Ok(sites.code())
}

/// What a status that is no answer means.
fn why(status: Status) -> String {
    let words = match status {
        Status::Trapped(Trap::Failed(code)) => {
            return format!("it failed with its own code {code}");
        }
        Status::Trapped(Trap::TooLong) => "a step took longer than it may",
        Status::Trapped(Trap::Crashed) => {
            "it crashed, or wanted more memory or stack than it may have"
        }
        Status::Trapped(Trap::BadVerdict) => "it returned what no procedure may return",
        Status::Trapped(Trap::Unknown) => "the host does not have it",
        Status::Trapped(Trap::Denied) => "it is not granted on this cache: cenote cache proc grant",
        Status::Trapped(Trap::Gone) => {
            "it was taken away before it ended, or moved where it is not"
        }
        Status::Busy => "the host is busy, or compiles it: try again in a while",
        Status::TooManySteps => "it took more steps than a request may",
        Status::TimedOut => "bytes or the host's time did not come in time: try again",
        Status::OutOfBounds => "an address is in no region of the cache",
        Status::Lost => "it moved to another host, which was not heard of again",
        Status::Done | Status::Stopped => "it ended",
    };
    words.to_owned()
}

/// The first host that has the procedure and knows the cache. This is asked with a procedure that
/// touches nothing: another may say "out of bounds", too, and have run. A host that does not answer
/// is one more that is down.
fn find(sites: &mut Sites, cache: CacheId, id: ProcedureId) -> Option<Host> {
    for site in sites.up.drain(..) {
        let Site {
            name,
            caller,
            rows,
            _session: session,
        } = site;
        if !rows.iter().any(|row| row.id == id) {
            continue;
        }
        let mut remote = Remote::new(caller, 1);
        let answer = remote.run(cache, ECHO, &[]);
        match answer.with_context(|| format!("host {name}")) {
            Ok((Status::OutOfBounds, _)) => {}
            Ok(_) => {
                return Some(Host {
                    name,
                    remote,
                    _session: session,
                });
            }
            Err(error) => {
                eprintln!("skipped: {}", chain(&error));
                sites.down += 1;
            }
        }
    }
    None
}
