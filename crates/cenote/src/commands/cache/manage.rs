//! `cache manage`: the manager of one cache, in the foreground; and how others start one and end it.
//!
//! On standard output it says one thing, once: the line that announces it.

use std::io::{BufRead, BufReader, Write as _};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use cenote_cache::owner::Settings;
use cenote_cache::service::journal::JournalFile;
use cenote_cache::service::{Claim, Config, End, Server, StartError, Terms};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::{signals, stderr};
use cenote_fabric::{Address, HostPort};

use super::claim::AtEtcd;
use super::metrics::CacheMetrics;
use super::supply;
use crate::caches::{CHECKPOINT, CacheDir, LOG, Spec, hosts_of, journal_path};
use crate::place::{Loaded, Which};
use crate::process::{self, Identity};
use crate::service;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the cache
    name: String,
    #[command(flatten)]
    which: Which,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Allow other machines to reach --metrics
    #[arg(long, requires = "metrics")]
    allow_remote: bool,
}

/// A host that is out of reach for longer is taken for dead. Clients of a cache have their data elsewhere,
/// and are to have a whole cache again soon.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// How long a manager may take to announce itself. Where etcd is slow it waits 10 s for each of two
/// calls that claim the cache, 6 s until the one before it, elsewhere, can act no more, 5 s for a
/// proof that it is the last, and 10 s for each of two calls that begin.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Lines of a log that an error shows.
const TAIL_LINES: usize = 10;

pub fn run(args: &Args) -> Result<u8> {
    let reach: Arc<OnceLock<cenote_fabric::Waker>> = Arc::default();
    let at_stop = Arc::clone(&reach);
    let stop = signals::on_stop(move || {
        if let Some(waker) = at_stop.get() {
            waker.wake();
        }
    })?;
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    let lock = cache.own()?;
    // From here on others find it to stop it: it may be long until it serves.
    let before = Identity::load(cache.folder()).ok().flatten();
    Identity::of(std::process::id())?.save(cache.folder())?;
    let begun = begin(args, &loaded, &cache, &stop);
    let Ok(Some(mut server)) = begun else {
        // Another one that runs elsewhere may be noted there.
        let restored = match before {
            Some(before) => before.save(cache.folder()),
            None => Identity::forget(cache.folder()),
        };
        begun.and(restored)?;
        stderr::say(format_args!(
            "stopped before the manager of cache {} began",
            args.name
        ));
        return Ok(DONE);
    };
    drop(reach.set(server.waker()));
    service::tell("READY=1");
    let end = server.run(&stop).context("wait for clients and hosts")?;
    service::tell("STOPPING=1");
    drop(server);
    match end {
        // What is noted in the folder is the other's.
        End::Superseded => {
            let what = format!("cache {}: another manager has taken it over", args.name);
            return Err(Failure::replaced(what, "cenote cache status shows its state").into());
        }
        End::Stopped => {
            Identity::forget(cache.folder())?;
            stderr::say(format_args!(
                "stopped; hosts keep the data of cache {} for the next manager",
                args.name
            ));
        }
        End::Deleted => {
            cache.forget()?;
            stderr::say(format_args!(
                "cache {} has ended and its memory is freed",
                args.name
            ));
        }
    }
    drop(lock);
    Ok(DONE)
}

/// Takes the cache over and says so; `None`: it is to stop before.
fn begin(
    args: &Args,
    loaded: &Loaded,
    cache: &CacheDir,
    stop: &AtomicBool,
) -> Result<Option<Server>> {
    let config = config(args, loaded, cache)?;
    let started = Server::start(config, stop).and_then(|mut server| {
        // A journal that is not the newest is of no use, whatever it says.
        server.hear_hosts(stop)?;
        Ok(server)
    });
    let server = match started {
        Err(StartError::Stopped) => return Ok(None),
        Err(StartError::Superseded) => {
            let (name, journal) = (&args.name, journal_path(cache));
            let what = format!(
                "cache {name}: its hosts know a later manager than {} does; nothing was changed",
                journal.display()
            );
            let remedy = "put the newest journal there; one that is older has regions where they are \
                          no more";
            return Err(Failure::new(what, remedy).into());
        }
        other => other.with_context(|| format!("cache {}", args.name))?,
    };
    if let Some(address) = &args.metrics {
        let (cache, key) = (cache.clone(), loaded.key.clone());
        CacheMetrics { cache, key }.serve(address, args.allow_remote)?;
    }
    let listening: Vec<String> = server.addresses().iter().map(Address::to_string).collect();
    let line = format!("ready {} at {}", args.name, listening.join(" "));
    let mut out = std::io::stdout();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("announce on standard output")?;
    Ok(Some(server))
}

fn config(args: &Args, loaded: &Loaded, cache: &CacheDir) -> Result<Config> {
    let spec = cache.spec()?;
    let (size, region, slab) = spec.sizes()?;
    let count =
        |many: u64, what| u32::try_from(many).with_context(|| format!("cache file: {what}"));
    let settings = Settings {
        cache: spec.id()?,
        slab_bytes: slab.bytes(),
        slabs_per_region: count(region.bytes() / slab.bytes().max(1), "region")?,
        copies: spec.copies,
        give_up_after: GIVE_UP_AFTER,
    };
    super::create::check(size, region, slab, spec.copies)?;
    let listen: Result<Vec<Address>, _> = spec.listen.iter().map(|text| text.parse()).collect();
    let mut addresses = vec![cache.socket()];
    addresses.extend(listen.context("cache file: listen")?);
    Ok(Config {
        settings,
        regions: count(size.bytes() / region.bytes(), "size")?,
        duration: spec.duration_s.map(Duration::from_secs),
        terms: Terms {
            configuration: spec.configuration.into(),
        },
        hosts: match &spec.catalogue {
            Some(_) => Vec::new(),
            None => hosts_of(&loaded.cluster)?,
        },
        supply: supply::of(&args.which, loaded, &args.name, &spec)?,
        key: loaded.key.clone(),
        addresses,
        journal: Box::new(JournalFile::new(&journal_path(cache))),
        checkpoint: Some(cache.folder().join(CHECKPOINT)),
        claim: claimed(cache, &spec)?,
        clock: unix_seconds,
    })
}

/// Who keeps other managers of the cache out.
fn claimed(cache: &CacheDir, spec: &Spec) -> Result<Claim> {
    let Some(endpoints) = &spec.etcd else {
        return Ok(Claim::Lock);
    };
    let etcd = spec.at_etcd.connect(endpoints)?;
    let (path, machine) = (cache.folder().path().display(), cenote_fabric::machine_id());
    let place = format!("{path} on machine {machine:032x}");
    Ok(Claim::Agreed(Box::new(AtEtcd::new(
        etcd,
        spec.id()?,
        place,
    ))))
}

/// Seconds of Unix time; 0 on a clock before 1970.
pub fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Starts a manager in the background, and waits until it serves.
///
/// # Errors
/// There is one already, or it does not start.
pub fn start(which: &Which, cache: &CacheDir) -> Result<()> {
    if cache.is_managed()? {
        return Err(cache.is_managed_failure().into());
    }
    let log = cache.folder().empty_file(LOG)?;
    let program = std::env::current_exe().context("find this program's file")?;
    let mut command = Command::new(program);
    command
        .args(["cache", "manage", cache.name()])
        .args(which.absolute()?);
    let mut child = process::in_background(&mut command, log)
        .spawn()
        .context("start the cache's manager")?;
    let mut said = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let deadline = Instant::now() + START_LIMIT;
    let mut line = String::new();
    if process::wait_readable(said.get_ref(), deadline)? {
        said.read_line(&mut line)?;
    }
    if line.starts_with(&format!("ready {} at ", cache.name())) {
        return Ok(());
    }
    cenote_cli::child::end(&mut child, cenote_cli::child::Signal::KILL);
    Identity::forget_ended(cache.folder())?;
    let text = cache.folder().read(LOG)?.unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    bail!(
        "the manager of cache {} did not start; the end of its log:\n  {}",
        cache.name(),
        lines[from..].join("\n  ")
    )
}

/// Ends the manager of a cache, if there is one; whether there was.
///
/// # Errors
/// It cannot be signalled, as one on another machine, or does not end.
pub fn stop(cache: &CacheDir, limit: Duration) -> Result<bool> {
    let identity = match Identity::load(cache.folder()) {
        // It says nothing, and nobody is to be found.
        Err(error) if cache.is_managed()? => return Err(error),
        other => other.ok().flatten(),
    };
    let process = identity.map(|identity| identity.open()).transpose()?;
    let Some(process) = process.flatten() else {
        if cache.is_managed()? {
            let name = cache.name();
            let what = format!(
                "cache {name} has a manager that this machine cannot stop, or that is starting"
            );
            let remedy = format!("try again, or cenote cache stop {name} where it runs");
            return Err(Failure::new(what, remedy).into());
        }
        Identity::forget(cache.folder())?;
        return Ok(false);
    };
    super::super::down::end(&[(cache.name(), process)], libc::SIGTERM, limit)?;
    Identity::forget(cache.folder())?;
    Ok(true)
}
