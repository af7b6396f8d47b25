//! Where a local cluster keeps its files, and how a command is told which cluster is meant.
//!
//! ```text
//! DIR/cluster.toml               the hosts; there while the cluster is up
//! DIR/cluster.key                its key, mode 0600; kept when the cluster goes down
//! DIR/lock                       held by `up` and `down` while they work
//! DIR/hosts/NAME/{pid,started}   which process the host is
//! DIR/hosts/NAME/{log,socket}    what it says, where it listens (shm)
//! DIR/hosts/NAME/meminfo         the memory of the machine that it believes to be on (--headroom)
//! DIR/hosts/NAME/modules/        modules of procedures, for its next process
//! DIR/servers/NAME/{pid,started} which process serves volume NAME in the background
//! DIR/servers/NAME/log           what it says
//! DIR/swap/                      the log of the swap space's server, and where it answers
//! DIR/caches/NAME/cache.toml     a cache's size and configuration, and what was asked of it
//! DIR/caches/NAME/lock           held by its one manager
//! DIR/caches/NAME/journal        what a manager leaves to the next
//! DIR/caches/NAME/checkpoint     regions as they were, to restore those that are lost
//! DIR/caches/NAME/machines/      machines that were started here for the cache
//! DIR/caches/NAME/{pid,started}  which process the manager is
//! DIR/caches/NAME/{log,socket}   what it says, where it listens
//! DIR/volumes/NAME.toml          a volume's size and scheme
//! DIR/volumes/NAME.{lock,sock}   held by its one owner; where the owner answers
//! DIR/volumes/NAME.journal       what an owner leaves to the next: which slabs are current,
//! DIR/volumes/NAME.pages         and which pages hold data and were being written
//! DIR/volumes/NAME.images        what those that were being written will be (decision 46)
//! DIR/volumes/NAME.tags          checksums or seals of its pages, if it has them (decision 27)
//! DIR/volumes/NAME.sides         once its K changed, which pages are cut how (decision 32)
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_cli::stderr;
use cenote_fabric::{Address, ClusterKey, HostPort, WireProtection};
use cenote_pool::Cluster;

use crate::folder::{Folder, FolderError};
use crate::lock::try_lock;
use crate::shell::quoted;

/// The folder of a local cluster, which nobody else can change.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    folder: Folder,
}

/// Name of the cluster file.
pub const CLUSTER_FILE: &str = "cluster.toml";
/// Name of the key beside the cluster file.
pub const KEY_FILE: &str = "cluster.key";
/// The folder with one for each host, ...
const HOSTS: &str = "hosts";
/// ... the one with the volumes ...
const VOLUMES: &str = "volumes";
/// ... and the one with one for each cache.
const CACHES: &str = "caches";

impl ClusterDir {
    /// An existing folder.
    ///
    /// # Errors
    /// It is not there, or others may change it.
    pub fn open(path: &Path) -> Result<Self> {
        match Folder::open(path) {
            Err(error) if error.is_missing() => {
                Err(Failure::new(format!("cluster folder {error}"), up_command(path)).into())
            }
            other => Ok(Self {
                folder: other.context("cluster folder")?,
            }),
        }
    }

    /// Makes the folder where there is none, for this user alone.
    ///
    /// # Errors
    /// The system refuses, or others may change it.
    pub fn create(path: &Path) -> Result<Self> {
        let folder = Folder::create(path).context("cluster folder")?;
        Ok(Self { folder })
    }

    /// The folder by its handle.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Where the folder is.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Where the cluster file is.
    pub fn cluster_file(&self) -> PathBuf {
        self.folder.join(CLUSTER_FILE)
    }

    /// Where the cluster's key is.
    pub fn key_file(&self) -> PathBuf {
        self.folder.join(KEY_FILE)
    }

    /// The folder of one host; `None`: it has none.
    ///
    /// # Errors
    /// Others may change it.
    pub fn host(&self, name: &str) -> Result<Option<Folder>> {
        match self.folder.sub(HOSTS)? {
            Some(hosts) => Ok(hosts.sub(name)?),
            None => Ok(None),
        }
    }

    /// The folder of one host, made where there is none.
    ///
    /// # Errors
    /// As [`ClusterDir::create`].
    pub fn make_host(&self, name: &str) -> Result<Folder> {
        Ok(self.folder.make(HOSTS)?.make(name)?)
    }

    /// The hosts that have a folder, by name.
    ///
    /// # Errors
    /// Others may change one of them, or the system refuses.
    pub fn hosts(&self) -> Result<Vec<(String, Folder)>> {
        Ok(self.folder.subs(HOSTS)?)
    }

    /// The same, each with what is wrong with its folder.
    ///
    /// # Errors
    /// The folder that they are in cannot be read.
    pub fn each_host(&self) -> Result<Vec<(String, Result<Folder, FolderError>)>> {
        Ok(self.folder.each_sub(HOSTS)?)
    }

    /// The folder of the caches; `None`: there is none.
    ///
    /// # Errors
    /// Others may change it.
    pub fn caches(&self) -> Result<Option<Folder>, FolderError> {
        self.folder.sub(CACHES)
    }

    /// The folder of the caches, made where there is none.
    ///
    /// # Errors
    /// As [`ClusterDir::create`].
    pub fn make_caches(&self) -> Result<Folder, FolderError> {
        self.folder.make(CACHES)
    }

    /// The folder of the volumes; `None`: there is none.
    ///
    /// # Errors
    /// Others may change it.
    pub fn volumes(&self) -> Result<Option<Folder>, FolderError> {
        self.folder.sub(VOLUMES)
    }

    /// The folder of the volumes, made where there is none.
    ///
    /// # Errors
    /// As [`ClusterDir::create`].
    pub fn make_volumes(&self) -> Result<Folder, FolderError> {
        self.folder.make(VOLUMES)
    }

    /// Keeps other `up` and `down` commands out of this folder until the file is dropped.
    ///
    /// # Errors
    /// Another one is at work here.
    pub fn lock(&self) -> Result<File> {
        try_lock(&self.folder, "lock")?.ok_or_else(|| {
            Failure::new(
                format!(
                    "{}: another cenote up or down is running here",
                    self.root().display()
                ),
                "wait until it ends",
            )
            .into()
        })
    }
}

/// Which cluster: its folder, or its file.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub struct Which {
    /// Cluster folder, as given to cenote up [env: CENOTE_DIR]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Cluster file; the key and the volumes are in the same folder
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
            // It would be the current folder.
            (None, Some(dir)) if dir.as_os_str().is_empty() => Err(Failure::usage(
                "CENOTE_DIR is empty",
                "set it to the cluster's folder, or unset it",
            )
            .into()),
            (None, Some(dir)) => Ok(dir.join("cluster.toml")),
            (None, None) => Err(Failure::usage(
                "no cluster given",
                "use --dir DIR or --cluster FILE, or set CENOTE_DIR",
            )
            .into()),
        }
    }

    /// Whether any is named, here or in the environment.
    pub fn is_named(&self) -> bool {
        self.cluster.is_some() || self.dir.is_some() || std::env::var_os("CENOTE_DIR").is_some()
    }

    /// The same choice as arguments of another process, wherever that runs.
    ///
    /// # Errors
    /// No cluster is named, or there is no current folder.
    pub fn absolute(&self) -> Result<[std::ffi::OsString; 2]> {
        let file = std::path::absolute(self.file()?).context("--cluster")?;
        Ok(["--cluster".into(), file.into()])
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
    /// A file is missing, makes no sense, or others may read the key.
    pub fn load(&self) -> Result<Loaded> {
        let dir = self.directory()?;
        let file = self.file()?;
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{}: not a file name", file.display()))?;
        let (cluster, places) = read_cluster_and_places(&dir, name)?;
        let page_traffic = cluster.page_traffic.as_deref().map(str::parse);
        let page_traffic = page_traffic.transpose().with_context(|| {
            let path = file.display();
            format!("{path}: page_traffic")
        })?;
        warn_of_names(&file, &places);
        let key = load_key(&dir.root().join(&cluster.key))?;
        Ok(Loaded {
            dir,
            file,
            cluster,
            key,
            page_traffic: page_traffic.unwrap_or_default(),
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
    /// How pages over tcp are protected unless a command says otherwise.
    pub page_traffic: WireProtection,
}

impl Loaded {
    /// The cluster file as it is now, for those that stay.
    ///
    /// # Errors
    /// It is gone, or makes no sense.
    pub fn cluster_now(&self) -> Result<Cluster> {
        let name = self.file.file_name().and_then(|name| name.to_str());
        read_cluster(&self.dir, name.context("a cluster file has a file name")?)
    }
}

/// A command that starts a cluster in a folder, as a shell takes it.
fn up_command(dir: &Path) -> String {
    format!("cenote up --dir {} --hosts 12 --memory 512M", quoted(dir))
}

/// Says which names of a cluster file have no address now. That is no error: the other hosts are there,
/// and a host whose name has one later is reached then.
fn warn_of_names(file: &Path, places: &[(usize, HostPort)]) {
    let hosts: Vec<HostPort> = places.iter().map(|(_, host)| host.clone()).collect();
    for (index, error) in cenote_fabric::unresolved(&hosts, NAMES_LIMIT) {
        let ((line, _), host) = (&places[index], &hosts[index]);
        stderr::say(format_args!(
            "warning: {}: line {line}: {host} is unreachable: cannot resolve its name: {error}",
            file.display()
        ));
    }
}

/// How long a command may take to look at the names in a cluster file.
const NAMES_LIMIT: Duration = Duration::from_secs(2);

/// Reads and checks a cluster file.
///
/// # Errors
/// It is not there, or makes no sense.
pub fn read_cluster(dir: &ClusterDir, name: &str) -> Result<Cluster> {
    read_cluster_and_places(dir, name).map(|(cluster, _)| cluster)
}

/// As [`read_cluster`]; also hosts and ports in the file, with their lines.
fn read_cluster_and_places(
    dir: &ClusterDir,
    name: &str,
) -> Result<(Cluster, Vec<(usize, HostPort)>)> {
    let path = dir.folder().join(name);
    let text = dir.folder().read(name)?.ok_or_else(|| {
        Failure::new(
            format!("there is no cluster file {}", path.display()),
            format!(
                "{} starts a cluster on this machine",
                up_command(dir.root())
            ),
        )
    })?;
    let mut places = Vec::new();
    let check = |address: &str, line| match address.parse::<Address>() {
        Ok(Address::Shm(_)) => Ok(()),
        Ok(Address::Tcp(host) | Address::Rdma(host)) if host.port() == 0 => {
            Err(format!("{address:?} is not an address: the port is 0"))
        }
        Ok(Address::Tcp(host) | Address::Rdma(host)) => {
            places.push((line, host));
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    };
    let cluster = Cluster::parse_with(&text, check).with_context(|| path.display().to_string())?;
    Ok((cluster, places))
}

/// Reads the key of a cluster.
///
/// # Errors
/// It is not there, holds no key, or others may read it.
pub fn load_key(path: &Path) -> Result<ClusterKey> {
    ClusterKey::load(path).with_context(|| format!("key {}", path.display()))
}
