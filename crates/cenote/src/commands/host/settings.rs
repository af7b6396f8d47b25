//! The settings of a host: from its file, then from the command line, which wins.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_fabric::{Address, ClusterKey, HostPort, WireProtection};
use cenote_host::{Config, LockMemory, slab_bytes_default};
use serde::{Deserialize, Deserializer};

use super::room;
use crate::folder::Folder;
use crate::share::Share;

/// What a host is told on the command line. All of it may stand in the file instead.
#[derive(clap::Args, Debug, Default)]
pub struct Given {
    /// TOML file with these settings; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the host in the cluster file
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Failure domain; a page has at most one split in each domain [default: the host's name]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Address to listen on, shm:/path/to/socket, tcp:HOST:PORT or rdma:HOST:PORT; may be repeated.
    /// Names are resolved once, at startup
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Address>,
    /// Amount of memory to lend
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Size of a slab, the unit of lending [default: 1 GiB, at most 1/64 of the memory]
    #[arg(long, value_name = "SIZE")]
    slab: Option<Size>,
    /// File with the cluster's key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Allow other machines to reach --metrics
    #[arg(long)]
    allow_remote: bool,
    /// Maximum number of clients with slabs [default: 256]
    #[arg(long, value_name = "N")]
    clients_max: Option<u32>,
    /// Server threads that execute batches of reads and writes for caches; they block when idle. 0:
    /// none [default: 1]
    #[arg(long, value_name = "N")]
    cache_threads: Option<usize>,
    /// Folder that keeps procedure modules over a restart [default: none, modules are lost]
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Lock lent memory into RAM [default: auto]
    #[arg(long, value_enum)]
    lock: Option<Lock>,
    /// Minimum protection of pages over tcp: encrypted, authenticated or plain. Clients that ask
    /// for less are refused; pages that this host reads from others get the same [default:
    /// encrypted]
    #[arg(long, value_name = "HOW")]
    page_traffic: Option<WireProtection>,
    /// On SIGTERM hand lent memory to systemd, for the next start of the service
    #[arg(long)]
    keep_slabs: bool,
    /// On SIGTERM tell clients to move their data, and exit once they have or after this time; set
    /// it a little below the notice that your cloud gives [default: 0s]
    #[arg(long, value_name = "DURATION", conflicts_with = "keep_slabs")]
    grace: Option<Span>,
    #[command(flatten)]
    room: room::Lending,
    /// File like /proc/meminfo to read in its place, which excludes this host's slabs
    #[arg(long, value_name = "FILE")]
    meminfo: Option<PathBuf>,
}

/// Whether lent memory is locked into RAM, so that it is never itself swapped out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Lock {
    /// Lock if the system allows it, else warn
    #[default]
    Auto,
    /// Lock, or fail to start
    Always,
    /// Do not lock, for machines without swap
    Never,
}

/// The file: each setting has the name of its flag.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    name: Option<String>,
    domain: Option<String>,
    #[serde(default, deserialize_with = "addresses")]
    listen: Vec<Address>,
    #[serde(default, deserialize_with = "parsed")]
    memory: Option<Size>,
    #[serde(default, deserialize_with = "parsed")]
    slab: Option<Size>,
    key: Option<PathBuf>,
    #[serde(default, deserialize_with = "parsed")]
    metrics: Option<HostPort>,
    allow_remote: Option<bool>,
    clients_max: Option<u32>,
    cache_threads: Option<usize>,
    modules: Option<PathBuf>,
    lock: Option<Lock>,
    #[serde(default, deserialize_with = "parsed")]
    page_traffic: Option<WireProtection>,
    keep_slabs: Option<bool>,
    #[serde(default, deserialize_with = "parsed")]
    grace: Option<Span>,
    #[serde(rename = "yield")]
    giving: Option<room::Yield>,
    #[serde(default, deserialize_with = "parsed")]
    headroom: Option<Share>,
    #[serde(default, deserialize_with = "parsed")]
    floor: Option<Share>,
    evict_extra: Option<u32>,
    reclaim: Option<room::Switch>,
    meminfo: Option<PathBuf>,
}

/// Everything that a host needs to know.
#[derive(Debug)]
pub struct Settings {
    pub name: String,
    domain: String,
    listen: Vec<Address>,
    memory: Size,
    slab: Option<Size>,
    /// Relative to the file that names it.
    pub key: PathBuf,
    pub metrics: Option<HostPort>,
    pub allow_remote: bool,
    clients_max: u32,
    cache_threads: usize,
    modules: Option<PathBuf>,
    lock: Lock,
    page_traffic: WireProtection,
    /// Whether lent memory outlives the process, in systemd's hands.
    pub keep_slabs: bool,
    /// Between SIGTERM and the end, for clients.
    pub grace: Duration,
    room: room::Lending,
    meminfo: Option<PathBuf>,
}

const CLIENTS_MAX_DEFAULT: u32 = 256;
/// One that blocks costs nothing, and any cache may use it.
const CACHE_THREADS_DEFAULT: usize = 1;

impl Given {
    /// Reads the file, if one is named, and puts both together.
    ///
    /// # Errors
    /// The file cannot be read or makes no sense, or something is said nowhere.
    pub fn settings(&self) -> Result<Settings> {
        let file = match &self.config {
            Some(path) => FileSettings::load(path)?,
            None => FileSettings::default(),
        };
        let name = self
            .name
            .clone()
            .or(file.name)
            .ok_or_else(|| missing("name"))?;
        let listen = if self.listen.is_empty() {
            file.listen
        } else {
            self.listen.clone()
        };
        if listen.is_empty() {
            return Err(missing("listen").into());
        }
        let metrics = self.metrics.clone().or(file.metrics);
        let allow_remote = self.allow_remote || file.allow_remote.unwrap_or(false);
        if allow_remote && metrics.is_none() {
            let what = "allow_remote has no effect without metrics";
            return Err(Failure::usage(what, "add --metrics HOST:PORT").into());
        }
        let keep_slabs = self.keep_slabs || file.keep_slabs.unwrap_or(false);
        let grace = self.grace.or(file.grace);
        let grace = Duration::from_nanos(grace.map_or(0, Span::ns));
        if keep_slabs && !grace.is_zero() {
            let what = "keep_slabs and grace exclude each other: slabs stay with systemd, or \
                        clients move them away";
            return Err(Failure::usage(what, "use keep_slabs or grace").into());
        }
        Ok(Settings {
            domain: self
                .domain
                .clone()
                .or(file.domain)
                .unwrap_or_else(|| name.clone()),
            listen,
            memory: self
                .memory
                .or(file.memory)
                .ok_or_else(|| missing("memory"))?,
            slab: self.slab.or(file.slab),
            key: self
                .key
                .clone()
                .or(file.key)
                .ok_or_else(|| missing("key"))?,
            metrics,
            allow_remote,
            clients_max: self
                .clients_max
                .or(file.clients_max)
                .unwrap_or(CLIENTS_MAX_DEFAULT),
            cache_threads: self
                .cache_threads
                .or(file.cache_threads)
                .unwrap_or(CACHE_THREADS_DEFAULT),
            modules: self.modules.clone().or(file.modules),
            lock: self.lock.or(file.lock).unwrap_or_default(),
            page_traffic: self.page_traffic.or(file.page_traffic).unwrap_or_default(),
            keep_slabs,
            grace,
            room: self.room.clone().or(room::Lending {
                giving: file.giving,
                headroom: file.headroom,
                floor: file.floor,
                evict_extra: file.evict_extra,
                reclaim: file.reclaim,
            }),
            meminfo: self.meminfo.clone().or(file.meminfo),
            name,
        })
    }
}

fn missing(what: &str) -> Failure {
    Failure::usage(
        format!("no {what} given"),
        format!("use --{what}, or set {what} in the file given with --config"),
    )
}

impl FileSettings {
    fn load(path: &Path) -> Result<Self> {
        let what = || format!("settings of the host, {}", path.display());
        let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{}: not a file name", what()))?;
        // Whoever may write it decides which key is believed and where this host listens.
        let text = match Folder::open(folder).and_then(|folder| folder.read(name)) {
            Ok(text) => text,
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error).with_context(what),
        };
        let text = text.ok_or_else(|| {
            Failure::new(
                format!("{}: there is no such file", what()),
                "see docs/deploy.md and dist/host.toml for examples",
            )
        })?;
        let mut file: Self = toml::from_str(&text).with_context(what)?;
        file.key = file.key.map(|key| folder.join(key));
        file.modules = file.modules.map(|path| folder.join(path));
        file.meminfo = file.meminfo.map(|path| folder.join(path));
        Ok(file)
    }
}

impl Settings {
    /// As the daemon takes them.
    ///
    /// # Errors
    /// They contradict each other.
    pub fn host_config(&self, key: &ClusterKey) -> Result<Config> {
        let memory_bytes = self.memory.bytes();
        if let Some(modules) = &self.modules {
            // Whoever may write there decides what runs here.
            Folder::create(modules).context("--modules")?;
        }
        Ok(Config {
            name: self.name.clone(),
            domain: self.domain.clone(),
            addresses: self.listen.clone(),
            memory_bytes,
            slab_bytes: self
                .slab
                .map_or_else(|| slab_bytes_default(memory_bytes), Size::bytes),
            key: key.clone(),
            huge_pages: true,
            lock_memory: match self.lock {
                Lock::Auto => LockMemory::Auto,
                Lock::Always => LockMemory::Always,
                Lock::Never => LockMemory::Never,
            },
            clients_max: self.clients_max,
            cache_threads: self.cache_threads,
            modules: self.modules.clone(),
            headroom: self.room.headroom(self.meminfo.clone())?,
            page_traffic: self.page_traffic,
        })
    }
}

fn parsed<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(input)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn addresses<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Address>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    let parse = |text: &String| text.parse().map_err(serde::de::Error::custom);
    texts.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, Given) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.toml");
        std::fs::write(&path, text).unwrap();
        let args = Given {
            config: Some(path),
            ..Given::default()
        };
        (folder, args)
    }

    const WHOLE: &str = r#"
        name = "h03"
        domain = "rack2"
        listen = ["tcp:10.0.0.7:7000", "shm:/run/cenote/socket"]
        memory = "8G"
        slab = "64M"
        key = "cluster.key"
        metrics = "127.0.0.1:9640"
        clients_max = 9
        lock = "always"
        page_traffic = "authenticated"
        keep_slabs = true
        headroom = "25%"
        evict_extra = 3
    "#;

    #[test]
    fn a_file_says_all_and_the_command_line_wins() {
        let (folder, mut args) = written(WHOLE);
        let settings = args.settings().unwrap();
        let key = ClusterKey::generate().unwrap();
        let config = settings.host_config(&key).unwrap();
        assert_eq!(
            (config.name.as_str(), config.domain.as_str()),
            ("h03", "rack2")
        );
        assert_eq!(config.addresses.len(), 2);
        assert_eq!(
            (config.memory_bytes, config.slab_bytes),
            (8 << 30, 64 << 20)
        );
        assert_eq!(
            (config.lock_memory, config.clients_max),
            (LockMemory::Always, 9)
        );
        assert_eq!(config.page_traffic, WireProtection::Authenticated);
        assert_eq!(settings.key, folder.path().join("cluster.key"));
        assert!(settings.keep_slabs && !settings.allow_remote);
        let headroom = config.headroom.unwrap();
        assert_eq!(headroom.keep, cenote_host::Share::PerMille(250));
        assert_eq!((headroom.evict_extra, headroom.floor), (3, None));

        args.memory = Some(Size(1 << 20));
        args.listen = vec!["tcp:127.0.0.1:0".parse().unwrap()];
        args.name = Some("other".into());
        let config = args.settings().unwrap().host_config(&key).unwrap();
        assert_eq!(
            (config.memory_bytes, config.slab_bytes),
            (1 << 20, 64 << 20)
        );
        assert_eq!((config.addresses.len(), config.name.as_str()), (1, "other"));
    }

    #[test]
    fn a_file_that_others_may_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, args) = written(WHOLE);
        let path = folder.path().join("host.toml");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(&path, 0o664);
        let error = format!("{:#}", args.settings().unwrap_err());
        assert!(error.contains("writable by others"), "{error}");
        mode(&path, 0o644);
        args.settings().unwrap();
        mode(folder.path(), 0o777);
        let error = format!("{:#}", args.settings().unwrap_err());
        assert!(error.contains("writable by others"), "{error}");
        mode(folder.path(), 0o700);
        let target = folder.path().join("target");
        std::fs::rename(&path, &target).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let error = format!("{:#}", args.settings().unwrap_err());
        assert!(error.contains("a symbolic link"), "{error}");
    }

    #[test]
    fn what_a_file_does_not_know_or_gets_wrong_is_named_with_its_line() {
        let said = |text: &str| {
            let (_folder, args) = written(text);
            format!("{:#}", args.settings().unwrap_err())
        };
        let unknown = said("name = \"h\"\nmemorry = \"8G\"\n");
        assert!(
            unknown.contains("line 2") && unknown.contains("memorry"),
            "{unknown}"
        );
        let wrong = said("name = \"h\"\n\nmemory = \"8GB\"\n");
        assert!(wrong.contains("line 3"), "{wrong}");
        let wrong = said("listen = [\"pigeon:7\"]\n");
        assert!(
            wrong.contains("line 1") && wrong.contains("pigeon:7"),
            "{wrong}"
        );
        let wrong = said("page_traffic = \"none\"\n");
        assert!(
            wrong.contains("use encrypted, authenticated or plain"),
            "{wrong}"
        );
        let both = WHOLE.to_owned() + "grace = \"30s\"";
        assert!(said(&both).contains("exclude each other"));
        assert!(said("name = \"h\"").contains("no listen given"));
        assert!(said("listen = [\"tcp:10.0.0.7:7000\"]").contains("no name given"));
        let remote = WHOLE.replace("metrics =", "# ").to_owned() + "allow_remote = true";
        assert!(said(&remote).contains("without metrics"));
    }
}
