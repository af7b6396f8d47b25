//! Where the nodes of this machine keep their files, and how a command is told which cluster is meant.
//!
//! ```text
//! DIR/kv.json                   the cluster's name and its etcd; there while it is up
//! DIR/cluster.key               its key, mode 0600; kept when it goes down
//! DIR/lock                      held by `up`, `join` and `down` while they work
//! DIR/etcd/{pid,started}        which process our etcd is
//! DIR/etcd/{data,log}           what it keeps, what it says
//! DIR/etcd/password             of the user that it asks for, mode 0600
//! DIR/nodes/NAME/{pid,started}  which process the node is
//! DIR/nodes/NAME/addresses      where it was to be found
//! DIR/nodes/NAME/log            what it says
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{Failure, chain};
use cenote_fabric::ClusterKey;
use cenote_kv_cluster::config::{ClusterConfig, DocumentKeys, KeyFingerprint};
use cenote_kv_cluster::etcd::Etcd;
use serde::{Deserialize, Serialize};

use crate::at_etcd::AtEtcd;
use crate::folder::Folder;
use crate::hints;
use crate::place::{ClusterDir, KEY_FILE, load_key};
use crate::shell::quoted;

/// Name of the cluster where none is given.
pub const NAME: &str = "kv";

/// Names in the folder.
const KNOWN: &str = "kv.json";
const ETCD: &str = "etcd";
const NODES: &str = "nodes";
/// In the folder of an etcd of our own.
pub const PASSWORD: &str = "password";

/// The user of an etcd that `kv up` started: the one that etcd wants before it asks anybody.
const OWN_USER: &str = "root";

/// What `DIR/kv.json` says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Name of the cluster.
    pub cluster: String,
    /// Endpoints of its etcd.
    pub etcd: String,
}

/// The folder of the nodes of this machine.
pub struct KvDir {
    inner: ClusterDir,
}

impl KvDir {
    pub fn open(path: &Path) -> Result<Self> {
        match Folder::open(path) {
            Err(error) if error.is_missing() => {
                let remedy = format!("cenote kv up --dir {}", quoted(path));
                Err(Failure::new(format!("folder {error}"), remedy).into())
            }
            _ => Ok(Self {
                inner: ClusterDir::open(path)?,
            }),
        }
    }

    /// Makes the folder where there is none, for this user alone.
    pub fn create(path: &Path) -> Result<Self> {
        let inner = ClusterDir::create(path)?;
        Ok(Self { inner })
    }

    pub fn root(&self) -> &Path {
        self.inner.root()
    }

    pub fn lock(&self) -> Result<fs::File> {
        self.inner.lock()
    }

    pub fn key_file(&self) -> PathBuf {
        self.root().join(KEY_FILE)
    }

    /// The folder of our etcd; `None`: there is none.
    pub fn etcd(&self) -> Result<Option<Folder>> {
        Ok(self.inner.folder().sub(ETCD)?)
    }

    /// The same, made where there is none.
    pub fn make_etcd(&self) -> Result<Folder> {
        Ok(self.inner.folder().make(ETCD)?)
    }

    /// Whether there is an etcd of our own that asks for a password.
    pub fn has_password(&self) -> Result<bool> {
        match self.etcd()? {
            Some(folder) => Ok(folder.has(PASSWORD)?),
            None => Ok(false),
        }
    }

    /// Who we are at an etcd of our own.
    pub fn at_own_etcd(&self) -> AtEtcd {
        AtEtcd::with_password(OWN_USER, self.root().join(ETCD).join(PASSWORD))
    }

    /// The etcd is another one than ours.
    pub fn forget_password(&self) -> Result<()> {
        if let Some(folder) = self.etcd()? {
            folder.remove(PASSWORD)?;
        }
        Ok(())
    }

    /// The folder of a node, made where there is none.
    pub fn make_node(&self, name: &str) -> Result<Folder> {
        Ok(self.inner.folder().make(NODES)?.make(name)?)
    }

    /// The nodes that have a folder, by name.
    pub fn nodes(&self) -> Result<Vec<(String, Folder)>> {
        Ok(self.inner.folder().subs(NODES)?)
    }

    /// The cluster of this folder; `None`: none is up.
    pub fn known(&self) -> Result<Option<Known>> {
        let folder = self.inner.folder();
        let text = folder.read(KNOWN)?;
        let known = text.map(|text| serde_json::from_str(&text)).transpose();
        known.with_context(|| folder.join(KNOWN).display().to_string())
    }

    pub fn set_known(&self, known: &Known) -> Result<()> {
        let text = serde_json::to_string(known)? + "\n";
        Ok(self.inner.folder().write(KNOWN, &text)?)
    }

    pub fn forget_known(&self) -> Result<()> {
        Ok(self.inner.folder().remove(KNOWN)?)
    }
}

/// Which cluster: that of a folder, or that of an etcd.
#[derive(Clone, Debug, clap::Args)]
pub struct Which {
    /// Folder of the nodes on this machine, as given to cenote kv up or join
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: Option<PathBuf>,
    /// Comma-separated etcd addresses [default: those of the folder]
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    /// Name of the cluster [default: that of the folder, else kv]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// File with the cluster's key [default: DIR/cluster.key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    at_etcd: AtEtcd,
}

/// A cluster that a command works with.
pub struct Found {
    pub known: Known,
    pub at_etcd: AtEtcd,
    pub keys: DocumentKeys,
    pub etcd: Etcd,
    pub key: ClusterKey,
    pub key_file: PathBuf,
}

/// How long etcd may be silent before a command that changes something ends with an error.
pub const ETCD_PATIENCE: Duration = Duration::from_secs(20);

impl Found {
    /// For a command that changes something, and would leave half of it behind where etcd is slow.
    pub fn patient(self) -> Self {
        Self {
            etcd: self.etcd.patient(ETCD_PATIENCE),
            ..self
        }
    }

    /// The configuration, if the key is the cluster's: no node answers another one, and all would seem
    /// to be down.
    ///
    /// # Errors
    /// It is another cluster's key; etcd does not answer; there is no such cluster.
    pub fn config(&self) -> Result<ClusterConfig> {
        let config = self.keys.read_config(&self.etcd)?;
        let cluster = &self.known.cluster;
        if config.key == KeyFingerprint::of(&self.key, cluster) {
            return Ok(config);
        }
        let what = format!(
            "{} is not the key of cluster {cluster}",
            self.key_file.display()
        );
        let remedy = "use --key with cluster.key of the folder where the cluster was made";
        Err(Failure::new(what, remedy).into())
    }

    /// The cluster that is up in a folder; `None`: none is.
    pub fn of_folder(dir: &Path) -> Result<Option<Self>> {
        let which = Which::of_folder(dir);
        which.is_up().then(|| which.load()).transpose()
    }
}

impl Which {
    /// The cluster of a folder.
    pub fn of_folder(dir: &Path) -> Self {
        Self {
            dir: Some(dir.to_owned()),
            etcd: None,
            cluster_name: None,
            key: None,
            at_etcd: AtEtcd::default(),
        }
    }

    /// Whether a cluster is up in its folder.
    pub fn is_up(&self) -> bool {
        let dir = self.dir.as_ref();
        dir.is_some_and(|dir| dir.join(KNOWN).exists())
    }

    /// The cluster at an etcd, for a process of another kind.
    pub fn at(etcd: String, cluster_name: Option<String>, key: PathBuf, at_etcd: AtEtcd) -> Self {
        Self {
            dir: None,
            etcd: Some(etcd),
            cluster_name,
            key: Some(key),
            at_etcd,
        }
    }

    pub fn load(&self) -> Result<Found> {
        let dir = self.dir.as_deref();
        let there = dir.filter(|dir| dir.exists() || self.etcd.is_none());
        let folder = there.map(KvDir::open).transpose()?;
        let known = folder.as_ref().map(KvDir::known).transpose()?.flatten();
        let etcd = self.etcd.clone();
        let is_own = known.as_ref().is_some_and(|known| {
            let is_named = self.etcd.as_ref().is_none_or(|named| *named == known.etcd);
            is_named && !self.at_etcd.has_user()
        });
        let is_own = match &folder {
            Some(dir) if is_own => dir.has_password()?,
            _ => false,
        };
        let at_etcd = match &folder {
            Some(dir) if is_own => dir.at_own_etcd(),
            _ => self.at_etcd.clone(),
        };
        let Some(etcd) = etcd.or_else(|| known.as_ref().map(|known| known.etcd.clone())) else {
            return Err(match dir {
                Some(dir) => Failure::new(
                    format!("{}: no cluster is running here", dir.display()),
                    format!("cenote kv up --dir {}", quoted(dir)),
                ),
                None => Failure::usage(
                    "no cluster given",
                    "use --dir DIR, or --etcd URLS and --key FILE, or set CENOTE_DIR",
                ),
            }
            .into());
        };
        let cluster = self.cluster_name.clone();
        let cluster = cluster.or_else(|| known.map(|known| known.cluster));
        let cluster = cluster.unwrap_or_else(|| NAME.to_owned());
        let key_file = self.key.clone();
        let key_file = key_file.or_else(|| folder.map(|folder| folder.key_file()));
        let key_file = key_file
            .ok_or_else(|| Failure::usage("no cluster key given", "use --key FILE or --dir DIR"))?;
        Ok(Found {
            keys: DocumentKeys::of(&cluster)?,
            etcd: at_etcd.connect(&etcd)?,
            at_etcd,
            key: load_key(&key_file)?,
            key_file,
            known: Known { cluster, etcd },
        })
    }

    /// With what brings an etcd back that `kv up` started for this folder and that does not answer.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let is_down = error.chain().any(hints::is_silent_etcd);
        let own = self.dir.as_ref().filter(|dir| {
            self.etcd.is_none()
                && KvDir::open(dir).is_ok_and(|dir| dir.has_password().is_ok_and(|has| has))
        });
        match own {
            Some(dir) if is_down => {
                let remedy = format!("cenote kv up --dir {} restarts it", quoted(dir));
                Failure::new(chain(&error), remedy).into()
            }
            _ => error,
        }
    }

    /// The folder, for commands that need one.
    pub fn dir(&self) -> Result<&Path> {
        self.dir.as_deref().ok_or_else(|| {
            Failure::usage("no folder given", "use --dir DIR, or set CENOTE_DIR").into()
        })
    }
}
