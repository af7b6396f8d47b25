//! `cenote kv down`: ends the nodes of this machine, and the etcd that `kv up` started.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::span;
use cenote_kv_cluster::config::DocumentKeys;
use cenote_kv_cluster::etcd::Etcd;

use super::place::KvDir;
use crate::at_etcd::AtEtcd;
use crate::commands::down::end;
use crate::folder::Folder;
use crate::process::{Identity, Process};

/// `kv down` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv down --dir ~/.cenote/well

Data in the nodes' memory is lost. The key and the logs stay in the folder. Groups whose nodes were all
stopped start again empty when nodes run for them; if nodes of the cluster run elsewhere, after cenote
kv reset-lost.")]
pub struct Args {
    /// Folder of the cluster's nodes
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
    /// Time for processes to exit before they are killed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = span::any)]
    timeout: Duration,
    #[command(flatten)]
    at_etcd: AtEtcd,
}

pub fn run(args: &Args) -> Result<u8> {
    let dir = KvDir::open(&args.dir)?;
    let _lock = dir.lock()?;
    let folders = dir.nodes()?;
    let limit = args.timeout;
    let mut nodes: Vec<(&str, Process)> = Vec::new();
    for (name, folder) in &folders {
        if let Some(process) = running(folder)? {
            nodes.push((name, process));
        }
    }
    let ending = Ending::of(&dir, &args.at_etcd, &nodes);
    // All of them end: nobody is there to take over what they have.
    let mut killed = end(&nodes, libc::SIGINT, limit)?;
    let kept = match ending.and_then(|ending| ending.map_or(Ok(Vec::new()), Ending::forget)) {
        Ok(groups) if groups.is_empty() => None,
        Ok(groups) => Some(format!(
            "other nodes are running, so etcd keeps the views of groups whose nodes were all here: \
             {}",
            groups
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        )),
        Err(error) => Some(format!("groups keep their views in etcd: {error:#}")),
    };
    if let Some(kept) = kept {
        eprintln!("{kept}");
        eprintln!("try: cenote kv reset-lost, once new nodes are running for them");
    }
    // Last, so that nodes could say goodbye to it.
    let etcd_folder = dir.etcd()?;
    let etcd = etcd_folder.as_ref().map(running).transpose()?.flatten();
    let ended = nodes.len();
    if let Some(etcd) = etcd {
        killed += end(&[("etcd", etcd)], libc::SIGTERM, limit)?;
    }
    for folder in folders.iter().map(|(_, folder)| folder).chain(&etcd_folder) {
        Identity::forget(folder)?;
    }
    let was_up = dir.known()?.is_some();
    dir.forget_known()?;
    match (was_up || ended > 0, killed) {
        (false, _) => println!("already down: {}", dir.root().display()),
        (true, 0) => println!("down: {ended} nodes ended"),
        (true, _) => println!("down: {ended} nodes ended, {killed} processes were killed"),
    }
    Ok(DONE)
}

/// Processes that are ended, in a cluster whose etcd stays.
struct Ending {
    keys: DocumentKeys,
    etcd: Etcd,
    processes: Vec<cenote_kv::group::process::Process>,
}

impl Ending {
    /// Which they are; none: the etcd goes as well, or nothing runs.
    fn of(dir: &KvDir, at_etcd: &AtEtcd, nodes: &[(&str, Process)]) -> Result<Option<Self>> {
        let Some(known) = dir.known()?.filter(|_| !nodes.is_empty()) else {
            return Ok(None);
        };
        if dir.has_password()? {
            return Ok(None);
        }
        let keys = DocumentKeys::of(&known.cluster)?;
        let etcd = at_etcd.connect(&known.etcd)?;
        let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
        let processes = keys.processes_of(&etcd, &names)?;
        Ok(Some(Self {
            keys,
            etcd,
            processes,
        }))
    }

    /// They have ended: what etcd has of groups of theirs alone is of no use. Groups of which it is to stay, since
    /// others know of it.
    fn forget(self) -> Result<Vec<usize>> {
        Ok(self.keys.forget_ended(&self.etcd, &self.processes)?)
    }
}

fn running(folder: &Folder) -> Result<Option<Process>> {
    match Identity::load(folder)? {
        Some(identity) => identity.open(),
        None => Ok(None),
    }
}
