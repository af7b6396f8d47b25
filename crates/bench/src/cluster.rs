//! A local cluster for a benchmark or a demonstration: real host processes of this program.
//!
//! It is started and stopped by the program's own `up` and `down`, so that what is measured
//! is what a user runs. Dropping it stops the hosts and removes its folder.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail};
use cenote_cli::program;
use cenote_fabric::{Address, ClusterKey, Connector};
use cenote_pool::cluster::Cluster;
use cenote_volume::{
    Backing, HostConfig, Kept, Mode, Placement, Protection, RETURN_MAX, Resilience, Scheme, Volume,
    VolumeConfig,
};

use crate::swap_rig::fresh;

/// Running hosts and the folder they live in.
pub struct LocalCluster {
    folder: PathBuf,
    hosts: Vec<HostConfig>,
    connector: Arc<dyn Connector>,
}

impl LocalCluster {
    /// Starts `hosts` hosts of `memory_mib` each; `transport` is `shm` or `tcp`.
    ///
    /// # Errors
    /// When `up` fails; its own words are in the error.
    pub fn start(hosts: usize, memory_mib: u64, transport: &str) -> anyhow::Result<Self> {
        let folder = fresh(&std::env::temp_dir(), transport);
        Self::start_in(&folder, hosts, memory_mib, transport, &[])
    }

    /// As [`start`](Self::start), in a folder of the caller's, with further arguments of `up`.
    ///
    /// # Errors
    /// When `up` fails; its own words are in the error.
    pub fn start_in(
        folder: &Path,
        hosts: usize,
        memory_mib: u64,
        transport: &str,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let program = program::cenote()?;
        let output = Command::new(&program)
            .args([
                "up",
                "--hosts",
                &hosts.to_string(),
                "--memory",
                &format!("{memory_mib}M"),
            ])
            .args(["--transport", transport, "--dir"])
            .arg(folder)
            .args(more)
            .stdin(Stdio::null())
            // Ctrl-C is for this process: half a cluster would be left to nobody.
            .process_group(0)
            .output()
            .context("start a local cluster")?;
        if !output.status.success() {
            bail!(
                "cenote up: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let (hosts, connector) = open_cluster(&folder.join("cluster.toml"))?;
        Ok(Self {
            folder: folder.to_owned(),
            hosts,
            connector,
        })
    }

    /// Opens a fresh volume on it.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn volume(&self, scheme: Scheme, size_bytes: u64) -> anyhow::Result<Arc<Volume>> {
        let config = self.volume_config(scheme, size_bytes);
        Ok(Arc::new(Volume::open(config, Arc::clone(&self.connector))?))
    }

    /// Opens a fresh volume that expects this of its hosts.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn volume_expecting(
        &self,
        resilience: Resilience,
        size_bytes: u64,
    ) -> anyhow::Result<Arc<Volume>> {
        let config = VolumeConfig {
            resilience,
            ..self.volume_config(resilience.scheme(), size_bytes)
        };
        Ok(Arc::new(Volume::open(config, Arc::clone(&self.connector))?))
    }

    /// Opens a fresh volume whose pages are protected.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn protected_volume(
        &self,
        scheme: Scheme,
        protection: Protection,
        size_bytes: u64,
    ) -> anyhow::Result<Arc<Volume>> {
        let config = VolumeConfig {
            protection,
            ..self.volume_config(scheme, size_bytes)
        };
        Ok(Arc::new(Volume::open(config, Arc::clone(&self.connector))?))
    }

    /// Opens a fresh volume that outlives its owner, as one with a name does: what it leaves is in the
    /// cluster's folder.
    ///
    /// # Errors
    /// As [`Volume::open_kept`].
    pub fn kept_volume(&self, scheme: Scheme, size_bytes: u64) -> anyhow::Result<Arc<Volume>> {
        let config = self.volume_config(scheme, size_bytes);
        let file = |kind| self.dir().join(format!("{}.{kind}", config.id));
        let kept = Kept::in_files(&file("journal"), &file("pages"), &file("images"))?;
        let connector = Arc::clone(&self.connector);
        Ok(Arc::new(Volume::open_kept(config, kept, connector)?))
    }

    /// Opens a fresh volume with a backing store on it.
    ///
    /// # Errors
    /// As [`Volume::open_backed`].
    pub fn backed_volume(
        &self,
        scheme: Scheme,
        size_bytes: u64,
        backing: Backing,
    ) -> anyhow::Result<Arc<Volume>> {
        let config = self.volume_config(scheme, size_bytes);
        let connector = Arc::clone(&self.connector);
        Ok(Arc::new(Volume::open_backed(config, backing, connector)?))
    }

    fn volume_config(&self, scheme: Scheme, size_bytes: u64) -> VolumeConfig {
        volume_config(self.hosts.clone(), scheme, size_bytes)
    }

    /// What connects to the hosts.
    #[must_use]
    pub fn connector(&self) -> &Arc<dyn Connector> {
        &self.connector
    }

    /// Address of a host, by its place in the cluster file.
    #[must_use]
    pub fn address(&self, index: usize) -> &Address {
        &self.hosts[index].address
    }

    /// How many hosts were started.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Name of a host, by its place in the cluster file.
    #[must_use]
    pub fn name(&self, index: usize) -> &str {
        &self.hosts[index].name
    }

    /// Kills a host as a machine that loses power ends it: with SIGKILL.
    ///
    /// # Errors
    /// When it has no process any more.
    pub fn kill(&self, index: usize) -> anyhow::Result<()> {
        self.signal(index, libc::SIGKILL)
    }

    /// Kills `count` hosts at once, spread over the cluster; their names.
    ///
    /// # Errors
    /// When one has no process any more; then none was killed.
    pub(crate) fn kill_spread(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let step = (self.host_count() / count.max(1)).max(1);
        let victims = (1..self.host_count()).step_by(step).take(count);
        let mut named = Vec::new();
        for index in victims.clone() {
            let name = self.name(index);
            let pid = self.pid(index).with_context(|| format!("pid of {name}"))?;
            if pid <= 1 {
                bail!("{name} has no process of its own");
            }
            named.push(name.to_owned());
        }
        for index in victims {
            self.kill(index)?;
        }
        Ok(named)
    }

    /// Tells a host that its machine is taken back, as clouds and Kubernetes do: with SIGTERM.
    ///
    /// # Errors
    /// When it has no process any more.
    pub fn take_back(&self, index: usize) -> anyhow::Result<()> {
        self.signal(index, libc::SIGTERM)
    }

    /// Has a host stand still, or go on.
    ///
    /// # Errors
    /// When it has no process any more.
    pub fn stop(&self, index: usize, stopped: bool) -> anyhow::Result<()> {
        self.signal(
            index,
            if stopped {
                libc::SIGSTOP
            } else {
                libc::SIGCONT
            },
        )
    }

    fn signal(&self, index: usize, signal: libc::c_int) -> anyhow::Result<()> {
        let pid = self.pid(index).context("the host has no process")?;
        let pid = libc::pid_t::try_from(pid).context("a pid")?;
        // SAFETY: a host that this run started, by the id that it wrote down; no memory.
        if unsafe { libc::kill(pid, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("signal a host");
        }
        Ok(())
    }

    /// The folder it lives in, as `--dir` of this program's commands.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.folder
    }

    /// CPU time that the host processes have used, in ns.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.pids().iter().map(|pid| process_cpu_ns(*pid)).sum()
    }

    fn pids(&self) -> Vec<u32> {
        (0..self.hosts.len())
            .filter_map(|index| self.pid(index))
            .collect()
    }

    /// Process id of a host, by its place in the cluster file; `None` when its file is gone.
    #[must_use]
    pub fn pid(&self, index: usize) -> Option<u32> {
        let file = self
            .folder
            .join("hosts")
            .join(&self.hosts[index].name)
            .join("pid");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// The cluster file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join("cluster.toml")
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        let down = program::cenote().and_then(|program| {
            let output = Command::new(program)
                .arg("down")
                .arg("--dir")
                .arg(&self.folder)
                .stdin(Stdio::null())
                .output();
            Ok(output?)
        });
        if !down.is_ok_and(|output| output.status.success()) {
            eprintln!(
                "cluster in {} could not be stopped; run cenote down",
                self.folder.display()
            );
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("remove {}: {error}", self.folder.display());
        }
    }
}

/// A fresh volume as the command line makes them.
pub(crate) fn volume_config(
    hosts: Vec<HostConfig>,
    scheme: Scheme,
    size_bytes: u64,
) -> VolumeConfig {
    let resilience = Resilience::new(scheme, Mode::default(), 0);
    VolumeConfig {
        name: format!("bench {scheme}"),
        id: u128::from(std::process::id()) << 64 | u128::from(cenote_fabric::Time::now().0),
        protection: Protection::None,
        resilience: resilience.expect("every scheme has it"),
        placement: Placement::over_all_hosts(scheme.r()),
        size_bytes,
        size_bytes_max: size_bytes,
        hosts,
        return_max: RETURN_MAX,
    }
}

/// Hosts and connector of a cluster file.
///
/// # Errors
/// When the file, its key or an address in it is wrong.
pub fn open_cluster(file: &Path) -> anyhow::Result<(Vec<HostConfig>, Arc<dyn Connector>)> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let cluster = Cluster::parse(&text).with_context(|| format!("parse {}", file.display()))?;
    let key = file.parent().unwrap_or(Path::new(".")).join(&cluster.key);
    let key = ClusterKey::load(&key)?;
    let parse = |host: cenote_pool::cluster::HostEntry| -> anyhow::Result<HostConfig> {
        Ok(HostConfig {
            lends: true,
            name: host.name,
            address: host.address.parse()?,
            domain: host.domain,
            power: host.power,
            retired: host.retired,
        })
    };
    let hosts = cluster
        .hosts
        .into_iter()
        .map(parse)
        .collect::<anyhow::Result<_>>()?;
    Ok((hosts, Arc::new(cenote_fabric::connector(key))))
}

/// CPU time of all threads of a process, in ns; 0 when it is gone.
pub(crate) fn process_cpu_ns(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}
