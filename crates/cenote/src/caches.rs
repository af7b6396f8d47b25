//! The caches of a cluster folder: what they are, and which process is the manager of each.
//!
//! A cache has one manager at a time, the process that holds the lock on `caches/NAME/lock`. The lock goes
//! with its process, so a file left behind means nothing.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cache::links::HostConfig;
use cenote_cache::service::question::{Answer, Parameters, Question, Status};
use cenote_cache::service::{CallError, ask_while};
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;
use cenote_fabric::{Address, ClusterKey};
use cenote_pool::Cluster;
use serde::{Deserialize, Serialize};

use crate::ask::random_u128;
use crate::at_etcd::AtEtcd;
use crate::folder::{Folder, FolderError};
use crate::lock::{is_locked, try_lock};
use crate::place::ClusterDir;
use crate::process::Identity;
use crate::volumes::check_name_of;

/// What a cache is; the content of its file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// 128 bits in hex, drawn when the cache is created.
    pub id: String,
    /// As `--size` takes it. Once there is a journal, that knows better.
    pub size: String,
    /// As `--region` takes it.
    pub region: String,
    /// As hosts lend it.
    pub slab: String,
    /// Of each region.
    pub copies: usize,
    /// Seconds for which it was asked at first; none: until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<u64>,
    /// Where clients of other machines reach its manager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<String>,
    /// Where its managers agree on who is next, as `--etcd` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
    /// And who they are there.
    #[serde(default, skip_serializing_if = "AtEtcd::is_default")]
    pub at_etcd: AtEtcd,
    /// The machines that may be got for it; none: it uses hosts of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<std::path::PathBuf>,
    /// Whether machines that their owner may want back are got.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// How it is accessed.
    pub configuration: Parameters,
    /// What it has to do, and what is expected of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Objective>,
}

/// What a cache has to do, and what a model expects of its configuration.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Requests per second.
    pub throughput: f64,
    /// Most time of a request in microseconds.
    pub latency_us: f64,
    /// Which latency: mean, p50 or p99.
    pub latency_of: String,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Requests per second, at least.
    pub predicted_throughput: f64,
    /// Time of a request in microseconds, at most.
    pub predicted_latency_us: f64,
}

impl Spec {
    /// A cache that nobody has made before.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(
        size: Size,
        region: Size,
        slab: Size,
        copies: usize,
        configuration: Parameters,
    ) -> Result<Self> {
        Ok(Self {
            id: format!("{:032x}", random_u128()?),
            size: size.to_string(),
            region: region.to_string(),
            slab: slab.to_string(),
            copies,
            duration_s: None,
            listen: Vec::new(),
            etcd: None,
            at_etcd: AtEtcd::default(),
            catalogue: None,
            spot: false,
            configuration,
            slo: None,
        })
    }

    /// Its identity as a number.
    ///
    /// # Errors
    /// The file was edited into something else.
    pub fn id(&self) -> Result<u128> {
        u128::from_str_radix(&self.id, 16).with_context(|| format!("cache id {:?}", self.id))
    }

    /// Bytes of the cache, of a region and of a slab.
    ///
    /// # Errors
    /// As [`Spec::id`].
    pub fn sizes(&self) -> Result<(Size, Size, Size)> {
        let size = |text: &str| {
            let parsed = text.parse::<Size>();
            parsed.with_context(|| format!("cache file: size {text:?}"))
        };
        Ok((size(&self.size)?, size(&self.region)?, size(&self.slab)?))
    }
}

/// One cache in its folder.
#[derive(Clone, Debug)]
pub struct CacheDir {
    name: String,
    above: Folder,
    folder: Folder,
}

const SPEC: &str = "cache.toml";
const LOCK: &str = "lock";
/// What one manager leaves to the next.
pub const JOURNAL: &str = "journal";
/// Its regions as they were, to come back from.
pub const CHECKPOINT: &str = "checkpoint";
/// Where the manager listens.
const SOCKET: &str = "socket";
/// What the manager says.
pub const LOG: &str = "log";
/// Hosts that were started for it here.
pub const MACHINES: &str = "machines";
/// Longest path of a unix socket, without its closing zero.
const SOCKET_PATH_MAX: usize = 107;
/// How long a manager may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

impl CacheDir {
    /// Describes a new cache.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn create(dir: &ClusterDir, name: &str, spec: &Spec) -> Result<Self> {
        check_name_of("cache", name)?;
        let above = dir.make_caches()?;
        let socket = above.join(name).join(SOCKET);
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let what = format!(
                "{}: a socket path has at most {SOCKET_PATH_MAX} bytes",
                socket.display()
            );
            return Err(
                Failure::usage(what, "a shorter name, or a folder with a shorter path").into(),
            );
        }
        let folder = above.make(name)?;
        let text = toml::to_string(spec).context("cache file")?;
        match folder.write_new(SPEC, &text) {
            Err(error) if error.is_taken() => Err(Failure::new(
                format!("cache {name} already exists"),
                format!("another name, or cenote cache delete {name}"),
            )
            .into()),
            other => {
                other?;
                let name = name.to_owned();
                Ok(Self {
                    name,
                    above,
                    folder,
                })
            }
        }
    }

    /// An existing cache.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn open(dir: &ClusterDir, name: &str) -> Result<Self> {
        check_name_of("cache", name)?;
        let none = || {
            Failure::new(
                format!("there is no cache {name}"),
                format!("cenote cache status, or cenote cache create {name} --size SIZE"),
            )
        };
        let above = dir.caches()?.ok_or_else(none)?;
        let folder = above.sub(name)?.ok_or_else(none)?;
        if !folder.has(SPEC)? {
            return Err(none().into());
        }
        let name = name.to_owned();
        Ok(Self {
            name,
            above,
            folder,
        })
    }

    /// Every cache, by name.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn all(dir: &ClusterDir) -> Result<Vec<Self>> {
        let each = Self::each(dir)?.into_iter();
        each.map(|(_, cache)| Ok(cache?)).collect()
    }

    /// The same, for who goes on with the others where the folder of one cannot be used.
    ///
    /// # Errors
    /// The folder that they are in cannot be read.
    pub fn each(dir: &ClusterDir) -> Result<Vec<(String, Result<Self, FolderError>)>> {
        let Some(above) = dir.caches()? else {
            return Ok(Vec::new());
        };
        let found = |name: &str| {
            let folder = above.sub(name).transpose()?;
            let folder = folder.and_then(|folder| Ok(folder.has(SPEC)?.then_some(folder)));
            folder.transpose()
        };
        let names = above.names()?.into_iter();
        let caches = names.filter_map(|name| {
            let cache = found(&name)?.map(|folder| Self {
                name: name.clone(),
                above: above.clone(),
                folder,
            });
            Some((name, cache))
        });
        Ok(caches.collect())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// What it is.
    ///
    /// # Errors
    /// The file makes no sense.
    pub fn spec(&self) -> Result<Spec> {
        let path = self.folder.join(SPEC);
        let text = self.folder.read(SPEC)?;
        let text = text.with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Changes what it is, asks its manager for the same, and loses no change that another command
    /// makes meanwhile; what it is then.
    ///
    /// # Errors
    /// As [`CacheDir::ask`], or the disk refuses. What the manager refuses changes nothing.
    pub fn change(
        &self,
        key: &ClusterKey,
        question: &Question,
        change: impl FnOnce(&mut Spec),
    ) -> Result<Spec> {
        // Given back when it is dropped.
        let _lock = self.folder.lock()?;
        self.folder.remove_drafts(SPEC)?;
        if !self.is_managed()? {
            return Err(self.no_manager().into());
        }
        let before = self.spec()?;
        let mut spec = before.clone();
        change(&mut spec);
        // First: the next manager knows what the file says and nothing else.
        self.set_spec(&spec)?;
        if let Err(error) = self.ask(key, question) {
            // Of one that did not answer it is not known, and what waits for the disk will be done:
            // then the file says what is wanted.
            if let Some(CallError::Refused(_)) = error.downcast_ref() {
                self.set_spec(&before)?;
            }
            return Err(error);
        }
        Ok(spec)
    }

    fn set_spec(&self, spec: &Spec) -> Result<()> {
        let text = toml::to_string(spec).context("cache file")?;
        Ok(self.folder.write(SPEC, &text)?)
    }

    /// Becomes its one manager, until the file is dropped.
    ///
    /// # Errors
    /// Another process is.
    pub fn own(&self) -> Result<File> {
        let lock = try_lock(&self.folder, LOCK)?.ok_or_else(|| self.is_managed_failure())?;
        // Only managers write these: whoever began them is gone.
        for name in [JOURNAL, CHECKPOINT] {
            self.folder.remove_drafts(name)?;
        }
        Ok(lock)
    }

    /// Whether a process is its manager.
    ///
    /// # Errors
    /// The lock cannot be tried.
    pub fn is_managed(&self) -> Result<bool> {
        Ok(self.folder.has(LOCK)? && is_locked(&self.folder, LOCK)?)
    }

    /// Says that another manager is there.
    pub fn is_managed_failure(&self) -> Failure {
        let pid = match Identity::load(&self.folder) {
            Ok(Some(identity)) => format!(", process {}", identity.pid),
            _ => String::new(),
        };
        let name = &self.name;
        Failure::new(
            format!("cache {name} already has a manager{pid}"),
            format!("cenote cache status {name} shows it; cenote cache stop {name} stops it"),
        )
    }

    /// Where its manager listens on this machine.
    pub fn socket(&self) -> Address {
        Address::Shm(self.folder.join(SOCKET))
    }

    /// Asks its manager.
    ///
    /// # Errors
    /// None runs, or it refuses or is silent.
    pub fn ask(&self, key: &ClusterKey, question: &Question) -> Result<Answer> {
        self.ask_within(key, question, ANSWER_LIMIT)
    }

    fn ask_within(&self, key: &ClusterKey, question: &Question, limit: Duration) -> Result<Answer> {
        let name = &self.name;
        if !self.is_managed()? {
            return Err(self.no_manager().into());
        }
        // One that ends has the lock for longer than it listens; one that begins has it before.
        let mut is_there = || self.is_managed().unwrap_or(true);
        match ask_while(vec![self.socket()], key, question, limit, &mut is_there) {
            Ok(answer) => Ok(answer),
            Err(CallError::NoManager) => Err(self.no_manager().into()),
            Err(CallError::Ended) => Err(Failure::new(
                format!(
                    "cache {name}: its manager ended before it answered; the request may or may \
                     not have been executed"
                ),
                format!(
                    "cenote cache status {name}; cenote cache start {name} if it has no manager"
                ),
            )
            .into()),
            Err(CallError::Silent(limit)) => Err(Failure::new(
                format!("cache {name}: its manager did not answer within {limit:?}"),
                format!(
                    "try again; if that fails, cenote cache stop {name}, then cenote cache start \
                     {name}"
                ),
            )
            .into()),
            Err(error) => Err(error).with_context(|| format!("cache {name}")),
        }
    }

    fn no_manager(&self) -> Failure {
        let name = &self.name;
        let what = format!(
            "cache {name} has no manager; its clients wait for the next one and lose nothing"
        );
        Failure::new(what, format!("cenote cache start {name}"))
    }

    /// How it is.
    ///
    /// # Errors
    /// As [`CacheDir::ask`].
    pub fn status(&self, key: &ClusterKey) -> Result<Status> {
        self.status_within(key, ANSWER_LIMIT)
    }

    /// How it is, of a manager that takes no longer than `limit` to say so.
    ///
    /// # Errors
    /// As [`CacheDir::ask`].
    pub fn status_within(&self, key: &ClusterKey, limit: Duration) -> Result<Status> {
        match self.ask_within(key, &Question::Status, limit)? {
            Answer::Status(status) => Ok(*status),
            other => anyhow::bail!("cache {}: no status: {other:?}", self.name),
        }
    }

    /// Forgets the cache. Hosts are not told.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget(&self) -> Result<()> {
        // What makes it a cache goes first.
        for name in [
            SPEC, JOURNAL, CHECKPOINT, SOCKET, "pid", "started", LOG, LOCK,
        ] {
            self.folder.remove(name)?;
            self.folder.remove_drafts(name)?;
        }
        // Empty: its machines were given back.
        self.folder.remove_folder(MACHINES)?;
        Ok(self.above.remove_folder(&self.name)?)
    }
}

/// The hosts of a cluster as a cache takes them.
///
/// # Errors
/// An address makes no sense.
pub fn hosts_of(cluster: &Cluster) -> Result<Vec<HostConfig>> {
    let lends = cluster
        .hosts
        .iter()
        .filter(|host| host.lends && !host.retired);
    let host = |entry: &cenote_pool::HostEntry| {
        Ok(HostConfig {
            name: entry.name.clone(),
            address: entry
                .address
                .parse()
                .with_context(|| format!("host {}", entry.name))?,
            domain: entry.domain.clone(),
        })
    };
    lends.map(host).collect()
}

/// The path of a cache's journal.
pub fn journal_path(cache: &CacheDir) -> std::path::PathBuf {
    let path: &Path = cache.folder().path();
    path.join(JOURNAL)
}
