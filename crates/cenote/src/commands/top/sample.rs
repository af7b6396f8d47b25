//! What hosts and volumes say, once.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_pool::control::HostStatus;
use serde_json::Value;

use super::view::Focus;
use crate::ask;
use crate::commands::kv::place::Found as KvCluster;
use crate::commands::kv::status::{self, NodeStatus};
use crate::failure::chain;
use crate::place::{Loaded, Which};
use crate::process::Identity;
use crate::volumes::{self, Question};

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

    /// What there is to show.
    pub fn tables(&self) -> Vec<Focus> {
        let hosts = self
            .loaded
            .iter()
            .flat_map(|_| [Focus::Hosts, Focus::Volumes]);
        hosts.chain(self.kv.iter().map(|_| Focus::Nodes)).collect()
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
    /// This machine's own files make no sense; hosts that do not answer are no error.
    pub fn hosts(&self) -> Result<Hosts> {
        let Some(loaded) = &self.loaded else {
            return Ok(Vec::new());
        };
        let entries = &loaded.cluster.hosts;
        let answers = ask::all(entries, &loaded.key, self.timeout);
        let found = entries.iter().zip(answers).map(|(entry, answer)| {
            let found = match answer {
                Ok(status) => Found::Up(Box::new(status)),
                Err(error) => missing(loaded, &entry.name, chain(&error))?,
            };
            Ok(Host {
                name: entry.name.clone(),
                address: entry.address.clone(),
                found,
            })
        });
        found.collect()
    }

    /// Asks every volume's owner.
    ///
    /// # Errors
    /// The folder of volumes cannot be read; owners that do not answer are no error.
    pub fn volumes(&self) -> Result<Volumes> {
        let at = Instant::now();
        let Some(loaded) = &self.loaded else {
            let volumes = Vec::new();
            return Ok(Volumes { at, volumes });
        };
        let folder = volumes::Volumes::new(&loaded.dir);
        let found = folder.list()?.into_iter().map(|(name, spec)| {
            let status = folder.is_owned(&name)?.then(|| {
                let answer = folder.ask_within(&name, Question::Status, self.timeout);
                answer.map_err(|error| chain(&error))
            });
            Ok(Volume {
                name,
                size: spec.size,
                scheme: spec.scheme,
                status,
            })
        });
        let volumes = found.collect::<Result<Vec<_>>>()?;
        Ok(Volumes { at, volumes })
    }
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
