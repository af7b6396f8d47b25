//! `cenote down`: ends the managers of caches and the hosts of a local cluster.
//!
//! SIGTERM to all, SIGKILL to those that are left after a limit. A process that only
//! has the number of a host of ours is never touched.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cache::service::journal::{Journal, JournalFile};
use cenote_cli::failure::{DONE, Failure, chain};
use cenote_cli::span;

use super::cache::manage;
use super::up::{SOCKET, refuse_foreign};
use crate::background;
use crate::caches::{CacheDir, journal_path};
use crate::folder::Folder;
use crate::place::{CLUSTER_FILE, ClusterDir};
use crate::process::{Identity, Process};
use crate::volumes::Volumes;

/// How long a killed process may take to be gone: the kernel frees its memory first.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// `down` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote down --dir ~/.cenote/well

It stops what cenote up has started, and refuses any other cluster. Data that volumes hold on these
hosts is lost. The key, the logs and the descriptions of volumes stay
in the folder. Machines that caches have acquired are not released; while there are any, down
refuses. A host whose file cannot be read does not keep the others: it is named, and the exit code is
1.")]
pub struct Args {
    /// Cluster folder
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
    /// Stop the hosts even if volumes are in use, whose pages are lost, caches have acquired
    /// machines, which keep running at your cost, or a cache's journal is damaged or its manager runs
    /// elsewhere. Servers that were started with --background are stopped too; others are named
    #[arg(long)]
    force: bool,
    /// Time for hosts to exit before they are killed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = span::any)]
    timeout: Duration,
}

pub fn run(args: &Args) -> Result<u8> {
    let dir = ClusterDir::open(&args.dir)?;
    let _lock = dir.lock()?;
    // Also with --force: nothing here could be started again as it was.
    let is_known = refuse_foreign(&dir)?;
    let volumes = Volumes::new(&dir);
    if !args.force {
        refuse_in_use(&volumes)?;
    }
    let mut caches = Vec::new();
    for (name, cache) in CacheDir::each(&dir)? {
        // What it may have acquired is not known.
        let cache = cache.with_context(|| format!("cache {name}"));
        caches.extend(unless_forced(args, cache)?);
    }
    let machines = machines_of_caches(&caches, args)?;
    if !args.force {
        refuse_machines(&machines)?;
    } else if !machines.is_empty() {
        leave(&machines.join(", "));
    }
    if args.force {
        // While there are hosts: what they hold is of use to nobody afterwards.
        unless_forced(args, end_servers(&dir, &volumes, args.timeout))?;
    }
    // First: a manager would take its hosts for dead.
    for cache in &caches {
        unless_forced(args, manage::stop(cache, args.timeout))?;
    }
    let Hosts {
        noted,
        running,
        folders,
        unknown,
    } = find_hosts(&dir)?;
    let killed = end(&running, libc::SIGTERM, args.timeout)?;
    // Volumes lose their content only with the hosts that held it: where none ran, they may be of a
    // cluster whose file has another name. They go first, so that a `down` that was cut off is done again.
    // One host may still hold what it had, and is to be found by the next `down`.
    let mut lost = Vec::new();
    if unknown.is_empty() {
        if noted > 0 || is_known {
            let held = volumes.clear()?;
            lost.extend(held.into_iter().map(|name| format!("volume {name}")));
            lost.extend(caches.iter().filter_map(held_here));
        }
        dir.folder().remove(CLUSTER_FILE)?;
    }
    for folder in &folders {
        Identity::forget(folder)?;
        folder.remove(SOCKET)?;
    }
    let ended = running.len();
    if !unknown.is_empty() {
        let what = format!("{ended} hosts ended, but not all: {}", unknown.join("; "));
        let remedy = "end its process by hand if it runs, mend or remove the file, and repeat the \
                      command";
        return Err(Failure::new(what, remedy).into());
    }
    match (noted, noted - ended, killed) {
        (0, ..) => println!("already down: {}", dir.root().display()),
        (_, 0, 0) => println!("down: {ended} hosts ended"),
        (_, gone, killed) => {
            println!(
                "down: {ended} hosts ended, {killed} of them killed; {gone} had already ended"
            );
        }
    }
    if !lost.is_empty() {
        println!("what they held is lost: {}", lost.join(", "));
    }
    Ok(DONE)
}

/// A cache whose regions were on the cluster's hosts, and not on machines of its own.
fn held_here(cache: &CacheDir) -> Option<String> {
    let is_here = cache.spec().ok()?.catalogue.is_none() && journal_path(cache).exists();
    is_here.then(|| format!("cache {}", cache.name()))
}

/// The hosts of a folder.
#[derive(Default)]
struct Hosts {
    /// How many processes are noted.
    noted: usize,
    /// Those of them that run.
    running: Vec<(String, Process)>,
    /// Where nothing stays when these have ended.
    folders: Vec<Folder>,
    /// Hosts of which nobody can say whether they run, and why.
    unknown: Vec<String>,
}

fn find_hosts(dir: &ClusterDir) -> Result<Hosts> {
    let mut hosts = Hosts::default();
    for (name, folder) in dir.each_host()? {
        let found = folder.map_err(anyhow::Error::from).and_then(|folder| {
            let identity = Identity::load(&folder)?;
            let process = identity.as_ref().map(Identity::open).transpose()?;
            Ok((folder, identity.is_some(), process.flatten()))
        });
        match found {
            Ok((folder, is_noted, process)) => {
                hosts.noted += usize::from(is_noted);
                hosts.running.extend(process.map(|process| (name, process)));
                hosts.folders.push(folder);
            }
            Err(error) => hosts
                .unknown
                .push(format!("host {name}: {}", chain(&error))),
        }
    }
    Ok(hosts)
}

fn refuse_in_use(volumes: &Volumes) -> Result<()> {
    let used = volumes.in_use()?;
    if used.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("volumes in use: {}", used.join(", ")),
        "stop their nbd server or swap first, or use cenote down --force and lose their pages",
    )
    .into())
}

/// Ends the servers of volumes that were started in the background, and names those that go on: who
/// started another one has it in front, and a device may hang on one that does not end.
fn end_servers(dir: &ClusterDir, volumes: &Volumes, timeout: Duration) -> Result<()> {
    let ended = background::stop_all(dir, timeout)?;
    if !ended.is_empty() {
        println!("servers of volumes ended: {}", ended.join(", "));
    }
    let left = volumes.in_use()?.into_iter().map(|name| {
        let server = background::server_of(dir, &name);
        let pid = server.map_or(String::new(), |pid| format!(" (process {pid})"));
        name + &pid
    });
    let left: Vec<String> = left.collect();
    if !left.is_empty() {
        eprintln!(
            "left running, without hosts: servers of volumes {}",
            left.join(", ")
        );
    }
    Ok(())
}

/// Says what goes on without the cluster.
fn leave(what: &str) {
    eprintln!("left running, and not released: {what}");
}

/// What a step returned. With `--force` a step that failed is reported, and `down` goes on.
fn unless_forced<T>(args: &Args, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(outcome) => Ok(Some(outcome)),
        Err(error) if args.force => {
            eprintln!("warning: {}; going on, as --force says", chain(&error));
            Ok(None)
        }
        Err(error) => {
            let remedy = "cenote down --force ends the hosts all the same; machines that the cache has \
                          acquired keep running, at your cost";
            let first = error.downcast_ref::<Failure>().map(Failure::remedy);
            let remedy = match first.filter(|first| !first.is_empty()) {
                Some(first) => format!("{first}; {remedy}"),
                None => remedy.to_owned(),
            };
            Err(Failure::new(chain(&error), remedy).into())
        }
    }
}

/// Machines that were got for caches: how many, and for which.
fn machines_of_caches(caches: &[CacheDir], args: &Args) -> Result<Vec<String>> {
    let mut machines = Vec::new();
    for cache in caches {
        let image = Journal::load(&mut JournalFile::new(&journal_path(cache)))
            .with_context(|| format!("cache {}", cache.name()));
        let image = unless_forced(args, image)?.flatten();
        let count = image.map_or(0, |image| image.machines.len());
        if count > 0 {
            machines.push(format!("machines of cache {}: {count}", cache.name()));
        }
    }
    Ok(machines)
}

fn refuse_machines(machines: &[String]) -> Result<()> {
    if machines.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!(
            "caches have acquired machines that would not be released: {}",
            machines.join(", ")
        ),
        "cenote cache delete NAME releases them; cenote down --force leaves them running, at your \
         cost",
    )
    .into())
}

/// Ends the processes by a signal; how many had to be killed.
pub fn end(
    running: &[(impl std::fmt::Display, Process)],
    signal: i32,
    limit: Duration,
) -> Result<usize> {
    for (name, process) in running {
        process
            .signal(signal)
            .with_context(|| format!("end {name}"))?;
    }
    let deadline = Instant::now() + limit;
    let mut left = Vec::new();
    for (name, process) in running {
        if !process.wait(deadline)? {
            process
                .signal(libc::SIGKILL)
                .with_context(|| format!("kill {name}"))?;
            left.push((name, process));
        }
    }
    let deadline = Instant::now() + KILL_LIMIT;
    for (name, process) in &left {
        if !process.wait(deadline)? {
            bail!("{name} was killed but is still running after {KILL_LIMIT:?}");
        }
    }
    Ok(left.len())
}
