//! Which host an operator means: by its name in a cluster file, or by its address.

use std::path::PathBuf;

use anyhow::Result;
use cenote_cli::failure::Failure;
use cenote_fabric::ClusterKey;
use cenote_pool::HostEntry;

use crate::place::{Which, load_key};

/// A host, and the cluster's file or the key alone.
#[derive(clap::Args, Debug)]
pub struct Named {
    /// Host name in the cluster file; with --key, an address
    host: String,
    #[command(flatten)]
    which: Which,
    /// File with the cluster's key, when an address is given in place of a name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "cluster"])]
    key: Option<PathBuf>,
}

/// A host that can be asked.
pub struct Target {
    /// For people.
    pub name: String,
    pub address: String,
    pub key: ClusterKey,
    /// The others of its cluster, where that is known.
    pub others: Option<Vec<HostEntry>>,
}

impl Named {
    /// Finds it.
    ///
    /// # Errors
    /// No such host is in the file, or a file is missing.
    pub fn target(&self) -> Result<Target> {
        if let Some(path) = &self.key {
            return Ok(Target {
                name: self.host.clone(),
                address: self.host.clone(),
                key: load_key(path)?,
                others: None,
            });
        }
        let loaded = self.which.load()?;
        let is_meant = |host: &HostEntry| host.name == self.host || host.address == self.host;
        let hosts = loaded.cluster.hosts.into_iter();
        let (mut found, others): (Vec<_>, Vec<_>) = hosts.partition(is_meant);
        let Some(host) = found.pop() else {
            let what = format!("{}: no host {}", loaded.file.display(), self.host);
            let names: Vec<&str> = others.iter().map(|host| host.name.as_str()).collect();
            return Err(Failure::new(what, format!("use one of {}", names.join(", "))).into());
        };
        Ok(Target {
            name: host.name,
            address: host.address,
            key: loaded.key,
            others: Some(others),
        })
    }
}
