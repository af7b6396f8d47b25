//! Where the nodes of this machine keep their files, and how a command is told which cluster is meant.
//!
//! ```text
//! DIR/kv.json                   the cluster's name and its etcd; there while it is up
//! DIR/cluster.key               its key, mode 0600; kept when it goes down
//! DIR/lock                      held by `up`, `join` and `down` while they work
//! DIR/etcd/{pid,started}        which process our etcd is
//! DIR/etcd/{data,log}           what it keeps, what it says
//! DIR/nodes/NAME/{pid,started}  which process the node is
//! DIR/nodes/NAME/addresses      where it was to be found
//! DIR/nodes/NAME/log            what it says
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_fabric::ClusterKey;
use cenote_kv::cluster::config::Place;
use cenote_kv::cluster::etcd::{Credentials, Etcd};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::place::{ClusterDir, KEY_FILE};
use crate::process;

/// Name of the cluster where none is given.
pub const NAME: &str = "kv";

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
        let root = path.canonicalize().map_err(|error| {
            let what = format!("folder {}: {error}", path.display());
            Failure::new(what, format!("cenote kv up --dir {}", path.display()))
        })?;
        let inner = ClusterDir::open(&root)?;
        Ok(Self { inner })
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

    pub fn etcd(&self) -> PathBuf {
        self.root().join("etcd")
    }

    pub fn node(&self, name: &str) -> PathBuf {
        self.root().join("nodes").join(name)
    }

    /// The nodes that have a folder, by name.
    pub fn node_names(&self) -> Result<Vec<String>> {
        let path = self.root().join("nodes");
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.with_context(|| path.display().to_string())?,
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn known_file(&self) -> PathBuf {
        self.root().join("kv.json")
    }

    /// The cluster of this folder; `None`: none is up.
    pub fn known(&self) -> Result<Option<Known>> {
        let path = self.known_file();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.with_context(|| path.display().to_string())?,
        };
        let known = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(Some(known))
    }

    pub fn set_known(&self, known: &Known) -> Result<()> {
        let path = self.known_file();
        let beside = path.with_extension("new");
        fs::write(&beside, serde_json::to_string(known)? + "\n")
            .with_context(|| beside.display().to_string())?;
        fs::rename(&beside, &path).with_context(|| path.display().to_string())
    }

    pub fn forget_known(&self) -> Result<()> {
        process::remove_if_there(&self.known_file())
    }
}

/// Who we are at etcd, where it asks.
#[derive(Clone, Debug, clap::Args)]
pub struct AtEtcd {
    /// User at etcd; the password is in the variable CENOTE_ETCD_PASSWORD
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,
}

impl AtEtcd {
    pub fn credentials(&self) -> Result<Option<Credentials>> {
        let Some(name) = self.etcd_user.clone() else {
            return Ok(None);
        };
        let password = std::env::var("CENOTE_ETCD_PASSWORD").map_err(|_| {
            Failure::usage(
                format!("no password for the user {name} at etcd"),
                "set CENOTE_ETCD_PASSWORD",
            )
        })?;
        Ok(Some(Credentials { name, password }))
    }

    /// What the process of a node is told.
    pub fn flags(&self) -> Vec<String> {
        let user = self.etcd_user.iter();
        user.flat_map(|name| ["--etcd-user".to_owned(), name.clone()])
            .collect()
    }
}

/// Which cluster: that of a folder, or that of an etcd.
#[derive(Clone, Debug, clap::Args)]
pub struct Which {
    /// Folder of nodes of this machine, as given to `cenote kv up` or `join`
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: Option<PathBuf>,
    /// Addresses of etcd, with commas [default: that of the folder]
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    /// Name of the cluster [default: that of the folder, else kv]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// File with the cluster's key [default: DIR/cluster.key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    pub at_etcd: AtEtcd,
}

/// A cluster that a command works with.
pub struct Found {
    pub known: Known,
    pub place: Place,
    pub etcd: Etcd,
    pub key: ClusterKey,
    pub key_file: PathBuf,
}

impl Which {
    pub fn load(&self) -> Result<Found> {
        let dir = self.dir.as_deref();
        let there = dir.filter(|dir| dir.exists() || self.etcd.is_none());
        let folder = there.map(KvDir::open).transpose()?;
        let known = folder.as_ref().map(KvDir::known).transpose()?.flatten();
        let etcd = self.etcd.clone();
        let Some(etcd) = etcd.or_else(|| known.as_ref().map(|known| known.etcd.clone())) else {
            return Err(match dir {
                Some(dir) => Failure::new(
                    format!("{}: no cluster is up here", dir.display()),
                    format!("cenote kv up --dir {}", dir.display()),
                ),
                None => Failure::usage(
                    "no cluster is named",
                    "--dir DIR, or --etcd URLS and --key FILE, or set CENOTE_DIR",
                ),
            }
            .into());
        };
        let cluster = self.cluster.clone();
        let cluster = cluster.or_else(|| known.map(|known| known.cluster));
        let cluster = cluster.unwrap_or_else(|| NAME.to_owned());
        let key_file = self.key.clone();
        let key_file = key_file.or_else(|| folder.map(|folder| folder.key_file()));
        let key_file = key_file.ok_or_else(|| {
            Failure::usage("no key of the cluster is named", "--key FILE or --dir DIR")
        })?;
        Ok(Found {
            place: Place::of(&cluster)?,
            etcd: Etcd::new(&etcd, self.at_etcd.credentials()?)?,
            key: load_key(&key_file)?,
            key_file,
            known: Known { cluster, etcd },
        })
    }

    /// The folder, for commands that need one.
    pub fn dir(&self) -> Result<&Path> {
        self.dir.as_deref().ok_or_else(|| {
            Failure::usage("no folder is named", "--dir DIR, or set CENOTE_DIR").into()
        })
    }
}

/// Reads a key, and says how to make it one's own.
pub fn load_key(path: &Path) -> Result<ClusterKey> {
    ClusterKey::load(path).map_err(|error| {
        let remedy = format!(
            "chmod 600 {0}, or cenote key new --out {0} for a new cluster",
            path.display()
        );
        Failure::new(format!("{}: {error}", path.display()), remedy).into()
    })
}
