//! Where a local cluster keeps its files, and how a command is told which cluster is meant.
//!
//! ```text
//! DIR/cluster.toml               the hosts; there while the cluster is up
//! DIR/cluster.key                its key, mode 0600; kept when the cluster goes down
//! DIR/lock                       held by `up` and `down` while they work
//! DIR/hosts/NAME/{pid,started}   which process the host is
//! DIR/hosts/NAME/{log,socket}    what it says, where it listens (shm)
//! DIR/hosts/NAME/meminfo         the memory of the machine that it believes to be on (--headroom)
//! DIR/volumes/NAME.toml          a volume's size and scheme
//! DIR/volumes/NAME.{lock,sock}   held by its one owner; where the owner answers
//! DIR/volumes/NAME.journal       what an owner leaves to the next: which slabs are current,
//! DIR/volumes/NAME.pages         and which pages hold data and were being written
//! DIR/volumes/NAME.sides         and, once its K changed, which pages are cut how (decision 32)
//! ```

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_fabric::ClusterKey;
use cenote_pool::Cluster;

use crate::failure::Failure;

/// The folder of a local cluster; an absolute path.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    root: PathBuf,
}

impl ClusterDir {
    /// An existing folder.
    ///
    /// # Errors
    /// It is not there.
    pub fn open(path: &Path) -> Result<Self> {
        let root = path.canonicalize().map_err(|e| {
            Failure::new(
                format!("cluster folder {}: {e}", path.display()),
                format!("cenote up --dir {}", path.display()),
            )
        })?;
        Ok(Self { root })
    }

    /// Makes the folder where there is none, for this user alone.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(path: &Path) -> Result<Self> {
        create_private(path)?;
        Self::open(path)
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The cluster file.
    pub fn cluster_file(&self) -> PathBuf {
        self.root.join("cluster.toml")
    }

    /// The cluster's key.
    pub fn key_file(&self) -> PathBuf {
        self.root.join(KEY_FILE)
    }

    /// The folder of one host.
    pub fn host(&self, name: &str) -> PathBuf {
        self.root.join("hosts").join(name)
    }

    /// The hosts that have a folder, by name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn host_names(&self) -> Result<Vec<String>> {
        let path = self.root.join("hosts");
        let entries = match fs::read_dir(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
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

    /// Keeps other `up` and `down` commands out of this folder until the file is dropped.
    ///
    /// # Errors
    /// Another one is at work here.
    pub fn lock(&self) -> Result<File> {
        let path = self.root.join("lock");
        try_lock(&path)?.ok_or_else(|| {
            Failure::new(
                format!(
                    "{}: another cenote up or down is at work here",
                    self.root.display()
                ),
                "wait for it to end",
            )
            .into()
        })
    }
}

/// Name of the key beside the cluster file.
pub const KEY_FILE: &str = "cluster.key";

/// Takes an exclusive lock; `None` when somebody else holds it. Who only looks ([`is_locked`]) does
/// not count.
///
/// # Errors
/// The file cannot be opened.
pub fn try_lock(path: &Path) -> Result<Option<File>> {
    let file = open_lock(path)?;
    loop {
        if taken(file.try_lock(), path)? {
            return Ok(Some(file));
        }
        // A shared lock keeps company with those of lookers, and not with an owner's.
        if !taken(file.try_lock_shared(), path)? {
            return Ok(None);
        }
        file.unlock()
            .with_context(|| format!("unlock {}", path.display()))?;
        std::thread::sleep(LOOKED);
    }
}

/// How long somebody who looks at a lock may take before it is tried again.
const LOOKED: Duration = Duration::from_millis(1);

/// Whether somebody holds the exclusive lock.
///
/// # Errors
/// The file cannot be opened.
pub fn is_locked(path: &Path) -> Result<bool> {
    Ok(!taken(open_lock(path)?.try_lock_shared(), path)?)
}

fn open_lock(path: &Path) -> Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    file.with_context(|| path.display().to_string())
}

fn taken(tried: Result<(), TryLockError>, path: &Path) -> Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("lock {}", path.display())),
    }
}

/// Makes a folder and what is above it, mode 0700; one that is there stays as it is.
///
/// # Errors
/// The system refuses.
pub fn create_private(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("create {}", path.display()))
}

/// Which cluster: its folder, or its file.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub struct Which {
    /// Folder of a local cluster, as given to `cenote up` [env: CENOTE_DIR]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Cluster file; the key and the volumes are beside it
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
}

impl Which {
    fn file(&self) -> Result<PathBuf> {
        // The variable only fills in for both: it does not contradict --cluster.
        let dir = self
            .dir
            .clone()
            .or_else(|| std::env::var_os("CENOTE_DIR").map(PathBuf::from));
        match (&self.cluster, dir) {
            (Some(file), _) => Ok(file.clone()),
            (None, Some(dir)) => Ok(dir.join("cluster.toml")),
            (None, None) => Err(Failure::usage(
                "no cluster is named",
                "--dir DIR or --cluster FILE, or set CENOTE_DIR",
            )
            .into()),
        }
    }

    /// The folder that holds the cluster file.
    ///
    /// # Errors
    /// It is not there.
    pub fn directory(&self) -> Result<ClusterDir> {
        let file = self.file()?;
        let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
        ClusterDir::open(parent.unwrap_or(Path::new(".")))
    }

    /// Reads the cluster file and its key.
    ///
    /// # Errors
    /// A file is missing, makes no sense, or the key is readable by others.
    pub fn load(&self) -> Result<Loaded> {
        let dir = self.directory()?;
        let file = self.file()?;
        let cluster = read_cluster(&file)?;
        let key_file = dir.root().join(&cluster.key);
        let key = ClusterKey::load(&key_file).map_err(|e| {
            Failure::new(
                format!("{}: {e}", key_file.display()),
                format!(
                    "chmod 600 {0}, or cenote key new --out {0} for a new cluster",
                    key_file.display()
                ),
            )
        })?;
        Ok(Loaded {
            dir,
            file,
            cluster,
            key,
        })
    }
}

/// A cluster that a command works with.
pub struct Loaded {
    /// Folder of the file.
    pub dir: ClusterDir,
    /// The file as it was named.
    pub file: PathBuf,
    /// Its hosts.
    pub cluster: Cluster,
    /// Its key.
    pub key: ClusterKey,
}

/// Reads and checks a cluster file.
///
/// # Errors
/// It is not there, or makes no sense.
pub fn read_cluster(file: &Path) -> Result<Cluster> {
    let text = fs::read_to_string(file).map_err(|e| {
        let dir = file.parent().unwrap_or(Path::new("."));
        Failure::new(
            format!("cluster file {}: {e}", file.display()),
            format!(
                "cenote up --dir {} starts a cluster on this machine",
                dir.display()
            ),
        )
    })?;
    Cluster::parse(&text).with_context(|| file.display().to_string())
}
