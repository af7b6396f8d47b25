//! `cenote down`: ends the managers of caches and the hosts of a local cluster.
//!
//! SIGTERM to all, SIGKILL to those that are left after a limit. A process that only
//! has the number of a host of ours is never touched.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cache::service::journal::{Journal, JournalFile};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::span;

use super::cache::manage;
use super::up::{SOCKET, refuse_foreign};
use crate::caches::{CacheDir, journal_path};
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
refuses.")]
pub struct Args {
    /// Cluster folder
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
    /// Stop the hosts even if volumes are in use, whose pages are lost, or caches have acquired
    /// machines, which keep running at your cost
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
    let machines = machines_of_caches(&dir)?;
    if args.force {
        if !machines.is_empty() {
            eprintln!("left running, and not released: {}", machines.join(", "));
        }
    } else {
        refuse_in_use(&volumes)?;
        refuse_machines(&machines)?;
    }
    // First: a manager would take its hosts for dead.
    for cache in CacheDir::all(&dir)? {
        manage::stop(&cache, args.timeout)?;
    }
    let hosts = dir.hosts()?;
    let mut running: Vec<(&str, Process)> = Vec::new();
    let mut noted = 0;
    for (name, folder) in &hosts {
        let Some(identity) = Identity::load(folder)? else {
            continue;
        };
        noted += 1;
        if let Some(process) = identity.open()? {
            running.push((name, process));
        }
    }
    let killed = end(&running, libc::SIGTERM, args.timeout)?;
    // Volumes lose their content only with the hosts that held it: where none ran, they may be of a
    // cluster whose file has another name. They go first, so that a `down` that was cut off is done again.
    if noted > 0 || is_known {
        volumes.clear()?;
    }
    dir.folder().remove(CLUSTER_FILE)?;
    for (_, folder) in &hosts {
        Identity::forget(folder)?;
        folder.remove(SOCKET)?;
    }
    let ended = running.len();
    match (noted, noted - ended, killed) {
        (0, ..) => println!("already down: {}", dir.root().display()),
        (_, 0, 0) => println!("down: {ended} hosts ended"),
        (_, gone, killed) => {
            println!(
                "down: {ended} hosts ended, {killed} of them killed; {gone} had already ended"
            );
        }
    }
    Ok(DONE)
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

/// Machines that were got for caches: how many, and for which.
fn machines_of_caches(dir: &ClusterDir) -> Result<Vec<String>> {
    let mut machines = Vec::new();
    for cache in CacheDir::all(dir)? {
        let image = Journal::load(&mut JournalFile::new(&journal_path(&cache)))
            .with_context(|| format!("read which machines the cache {} has", cache.name()))?;
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
pub fn end(running: &[(&str, Process)], signal: i32, limit: Duration) -> Result<usize> {
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
