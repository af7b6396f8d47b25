//! `cenote kv down`: ends the nodes of this machine, and the etcd that `kv up` started.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::place::KvDir;
use crate::commands::down::end;
use crate::failure::DONE;
use crate::process::{Identity, Process};

/// `kv down` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv down --dir /tmp/well

What the nodes hold in memory is gone afterwards. The key and the logs stay in the folder.")]
pub struct Args {
    /// Folder of the nodes
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
    /// How long processes have to end by themselves before they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    limit: u64,
}

pub fn run(args: &Args) -> Result<u8> {
    let dir = KvDir::open(&args.dir)?;
    let _lock = dir.lock()?;
    let names = dir.node_names()?;
    let limit = Duration::from_secs(args.limit);
    let mut nodes: Vec<(&str, Process)> = Vec::new();
    for name in &names {
        if let Some(process) = running(&dir.node(name))? {
            nodes.push((name, process));
        }
    }
    // All of them end: nobody is there to take over what they have.
    let mut killed = end(&nodes, libc::SIGINT, limit)?;
    // Last, so that nodes could say goodbye to it.
    let etcd = running(&dir.etcd())?;
    let ended = nodes.len();
    if let Some(etcd) = etcd {
        killed += end(&[("etcd", etcd)], libc::SIGTERM, limit)?;
    }
    for name in &names {
        Identity::forget(&dir.node(name))?;
    }
    Identity::forget(&dir.etcd())?;
    let was_up = dir.known()?.is_some();
    dir.forget_known()?;
    match (was_up || ended > 0, killed) {
        (false, _) => println!("already down: {}", dir.root().display()),
        (true, 0) => println!("down: {ended} nodes ended"),
        (true, _) => println!("down: {ended} nodes ended, {killed} processes were killed"),
    }
    Ok(DONE)
}

fn running(folder: &std::path::Path) -> Result<Option<Process>> {
    match Identity::load(folder)? {
        Some(identity) => identity.open(),
        None => Ok(None),
    }
}
