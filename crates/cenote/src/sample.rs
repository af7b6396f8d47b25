//! What hosts, volumes and key-value nodes say, once: for `cenote top` and the dashboard.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cli::failure::chain;
use cenote_pool::HostEntry;
use cenote_pool::control::HostStatus;
use serde_json::Value;

use crate::ask;
use crate::commands::kv::place::Found as KvCluster;
use crate::commands::kv::status::{self, NodeStatus};
use crate::place::{ClusterDir, Loaded, Which};
use crate::process::Identity;
use crate::volumes;

/// Asks.
pub struct Sampler {
    /// The cluster of hosts, if the folder has one.
    loaded: Option<Loaded>,
    /// Its key-value nodes, if it has some.
    kv: Option<KvCluster>,
    timeout: Duration,
}

/// All hosts of the cluster file, in its order.
pub type Hosts = Vec<Host>;

/// A host, as it was found.
#[derive(Clone, Debug)]
pub struct Host {
    /// As in the cluster file.
    pub name: String,
    /// As in the cluster file.
    pub address: String,
    /// As in the cluster file.
    pub domain: String,
    /// What it said, or why it said nothing.
    pub found: Found,
}

/// What came of asking a host.
#[derive(Clone, Debug)]
pub enum Found {
    /// It answers.
    Up(Box<HostStatus>),
    /// Its process runs on this machine and does not answer.
    Silent(String),
    /// Its process on this machine has ended.
    Ended(String),
    /// No answer, and it is no process of this machine's cluster folder.
    Unreachable(String),
}

/// All volumes of the cluster folder, by name.
#[derive(Clone, Debug)]
pub struct Volumes {
    /// When they were asked.
    pub at: Instant,
    /// Them.
    pub volumes: Vec<Volume>,
}

/// A volume, as it was found.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// As its file says.
    pub size: String,
    /// As its file says.
    pub scheme: String,
    /// What its owner says, or why that is nothing; `None` when nobody owns it.
    pub status: Option<Result<Value, String>>,
}

/// All key-value nodes of a cluster, by their numbers.
pub struct Nodes {
    /// When they were asked.
    pub at: Instant,
    /// Them.
    pub nodes: Vec<NodeStatus>,
}

impl Sampler {
    /// Of a folder with hosts, or key-value nodes, or both.
    ///
    /// # Errors
    /// It has neither, or what it has cannot be read.
    pub fn new(which: &Which, timeout: Duration) -> Result<Self> {
        let kv = KvCluster::of_folder(which.directory()?.root())?;
        let loaded = match which.load() {
            Ok(loaded) => Some(loaded),
            Err(_) if kv.is_some() => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            loaded,
            kv,
            timeout,
        })
    }

    /// Whether there are hosts and volumes.
    pub fn has_hosts(&self) -> bool {
        self.loaded.is_some()
    }

    /// Whether there are key-value nodes.
    pub fn has_nodes(&self) -> bool {
        self.kv.is_some()
    }

    /// The cluster, for the title.
    pub fn cluster(&self) -> String {
        let file = self
            .loaded
            .as_ref()
            .map(|loaded| loaded.file.display().to_string());
        let kv = self.kv.as_ref();
        let kv = || kv.map(|found| format!("{} at {}", found.known.cluster, found.known.etcd));
        file.or_else(kv).unwrap_or_default()
    }

    /// Asks etcd, and every key-value node that it knows.
    ///
    /// # Errors
    /// etcd does not answer; nodes that do not are no error.
    pub fn nodes(&self) -> Result<Nodes> {
        let at = Instant::now();
        let report = self
            .kv
            .as_ref()
            .map(|found| status::report(found, self.timeout));
        let nodes = report
            .transpose()?
            .map_or(Vec::new(), |report| report.nodes);
        Ok(Nodes { at, nodes })
    }

    /// Asks every host.
    ///
    /// # Errors
    /// As [`hosts`].
    pub fn hosts(&self) -> Result<Hosts> {
        match &self.loaded {
            Some(loaded) => hosts(loaded, &loaded.cluster.hosts, self.timeout),
            None => Ok(Vec::new()),
        }
    }

    /// Asks every volume's owner.
    ///
    /// # Errors
    /// As [`volumes()`].
    pub fn volumes(&self) -> Result<Volumes> {
        match &self.loaded {
            Some(loaded) => volumes(&loaded.dir, self.timeout),
            None => Ok(Volumes {
                at: Instant::now(),
                volumes: Vec::new(),
            }),
        }
    }
}

/// Asks hosts of a cluster, all of them side by side.
///
/// # Errors
/// This machine's own files make no sense; hosts that do not answer are no error.
pub fn hosts(loaded: &Loaded, entries: &[HostEntry], timeout: Duration) -> Result<Hosts> {
    let answers = ask::all(entries, &loaded.key, timeout);
    let found = entries.iter().zip(answers).map(|(entry, answer)| {
        let found = match answer {
            Ok(status) => Found::Up(Box::new(status)),
            Err(error) => missing(loaded, &entry.name, chain(&error))?,
        };
        Ok(Host {
            name: entry.name.clone(),
            address: entry.address.clone(),
            domain: entry.domain.clone(),
            found,
        })
    });
    found.collect()
}

/// Asks the owners of the volumes of a folder, all of them side by side.
///
/// # Errors
/// The folder of volumes cannot be read; owners that do not answer are no error.
pub fn volumes(dir: &ClusterDir, timeout: Duration) -> Result<Volumes> {
    let at = Instant::now();
    let statuses = volumes::Volumes::new(dir).statuses(timeout)?;
    let found = statuses.into_iter().map(|seen| {
        let [size, scheme] = seen.size_and_scheme();
        Volume {
            name: seen.name,
            size,
            scheme,
            status: seen.error.map(Err).or(seen.status.map(Ok)),
        }
    });
    let volumes = found.collect();
    Ok(Volumes { at, volumes })
}

fn missing(loaded: &Loaded, name: &str, why: String) -> Result<Found> {
    let folder = loaded.dir.host(name)?;
    let noted = folder.map(|folder| Identity::load(&folder)).transpose()?;
    let noted = noted.flatten();
    Ok(match noted {
        None => Found::Unreachable(why),
        Some(identity) if identity.open()?.is_some() => Found::Silent(why),
        Some(_) => Found::Ended(why),
    })
}
