//! What of a cluster runs in the folder already.

use std::collections::BTreeMap;

use anyhow::Result;
use cenote_cli::failure::Failure;
use cenote_kv_cluster::config::{ClusterConfig, DocumentKeys, KeyFingerprint};

use super::Args;
use crate::commands::kv::place::{Known, KvDir};
use crate::folder::Folder;
use crate::place::load_key;
use crate::process::Identity;
use crate::shell::quoted;

/// Whether all of the very cluster that is asked for runs here; its nodes' processes by name.
///
/// # Errors
/// Some of its nodes have ended, etcd does not answer, or the folder cannot be read.
pub(super) fn find(
    dir: &KvDir,
    known: &Known,
    args: &Args,
    config: &ClusterConfig,
    keys: &DocumentKeys,
) -> Result<Option<BTreeMap<String, u32>>> {
    let mut running = BTreeMap::new();
    for (name, folder) in dir.nodes()? {
        if let Some(identity) = Identity::load(&folder)?
            && identity.open()?.is_some()
        {
            running.insert(name, identity.pid);
        }
    }
    let is_own = dir.has_password()?;
    let is_asked_for = args.cluster_name == known.cluster
        && match &args.etcd {
            Some(etcd) => !is_own && *etcd == known.etcd && !args.plan_only,
            None => is_own,
        };
    if running.is_empty() || !is_asked_for || !dir.key_file().exists() {
        return Ok(None);
    }
    let at_etcd = match is_own {
        true => dir.at_own_etcd(),
        false => args.at_etcd.clone(),
    };
    let key = load_key(&dir.key_file())?;
    let wanted = ClusterConfig {
        key: KeyFingerprint::of(&key, &known.cluster),
        ..config.clone()
    };
    if keys.read_config(&at_etcd.connect(&known.etcd)?)? != wanted {
        return Ok(None);
    }
    let ended = |name: &&String| !running.contains_key(*name);
    let ended: Vec<&str> = wanted
        .nodes
        .iter()
        .filter(ended)
        .map(String::as_str)
        .collect();
    let Some(first) = ended.first() else {
        return Ok(Some(running));
    };
    // They may have been drained, and others be in their places: nobody starts them unasked.
    let what = format!(
        "the cluster is up, but for nodes that have ended: {}",
        ended.join(", ")
    );
    let remedy = format!("cenote kv join --name {first} --dir {}", quoted(dir.root()));
    Err(Failure::new(what, remedy).into())
}

/// Traces of a cluster that no longer runs are cleared; one that runs is let be.
pub(super) fn refuse(dir: &KvDir) -> Result<()> {
    let nodes = dir.nodes()?.into_iter().map(|(_, folder)| folder);
    let folders: Vec<Folder> = nodes.chain(dir.etcd()?).collect();
    let mut alive = 0;
    for folder in &folders {
        if let Some(identity) = Identity::load(folder)? {
            alive += usize::from(identity.open()?.is_some());
        }
    }
    if alive > 0 {
        let root = dir.root();
        let what = format!(
            "{}: {alive} processes of another cluster are running here, or of an incomplete start",
            root.display()
        );
        return Err(Failure::new(what, format!("cenote kv down --dir {}", quoted(root))).into());
    }
    for folder in &folders {
        Identity::forget(folder)?;
    }
    dir.forget_known()
}
