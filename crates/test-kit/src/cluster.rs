//! Hosts for the tests of a volume: real daemons on real sockets, each on a thread.
//!
//! What cannot be had is a panic: a test has nothing to do about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_fabric::{Address, ClusterKey, Connector};
use cenote_host::{Config, OnThread};
use cenote_volume::{
    Backing, Health, HostConfig, Kept, Mode, Placement, Protection, RETURN_MAX, Resilience, Scheme,
    Volume, VolumeConfig, VolumeError, VolumeStatus,
};

use crate::guard::{Guard, Guarded};
use crate::{host_config, page, wait_until};

/// A running cluster; dropping it stops the hosts.
pub struct Cluster {
    key: ClusterKey,
    memory_bytes: u64,
    slab_bytes: u64,
    hosts: Vec<Option<OnThread>>,
    /// What a volume is told of the hosts.
    pub configs: Vec<HostConfig>,
    // Dropped last: hosts have their sockets in it.
    folder: tempfile::TempDir,
}

/// How hosts are reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Their memory is mapped.
    Shm,
    /// Loopback.
    Tcp,
}

impl Cluster {
    /// So many hosts, each with `memory_bytes` to lend in slabs.
    pub fn start(count: usize, transport: Transport, memory_bytes: u64, slab_bytes: u64) -> Self {
        let mut cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            key: ClusterKey::generate().unwrap(),
            memory_bytes,
            slab_bytes,
            hosts: Vec::new(),
            configs: Vec::new(),
        };
        for index in 0..count {
            let address = match transport {
                Transport::Shm => Address::Shm(socket(cluster.folder.path(), index)),
                Transport::Tcp => "tcp:127.0.0.1:0".parse().unwrap(),
            };
            let (host, address) = cluster.run(index, address);
            cluster.hosts.push(Some(host));
            cluster.configs.push(HostConfig {
                lends: true,
                name: format!("h{index:02}"),
                address,
                domain: format!("h{index:02}"),
                power: None,
                retired: false,
            });
        }
        cluster
    }

    fn run(&self, index: usize, address: Address) -> (OnThread, Address) {
        let config = Config {
            memory_bytes: self.memory_bytes,
            ..host_config(
                &format!("h{index:02}"),
                address,
                0,
                self.slab_bytes,
                &self.key,
            )
        };
        let host = OnThread::start(config).unwrap();
        let address = host.addresses()[0].clone();
        (host, address)
    }

    /// Opens sessions with the hosts' key.
    pub fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(cenote_fabric::connector(self.key.clone()))
    }

    /// A volume on all hosts.
    pub fn volume(&self, scheme: &str, size_bytes: u64) -> Volume {
        self.volume_over(scheme, size_bytes, self.connector())
    }

    /// A volume whose sessions to `addresses` are guarded.
    pub fn guarded_volume<G: Guard>(
        &self,
        scheme: &str,
        size_bytes: u64,
        addresses: Vec<Address>,
        guard: G,
    ) -> Volume {
        let inner = self.connector();
        let connector = Guarded {
            inner,
            addresses,
            guard,
        };
        self.volume_over(scheme, size_bytes, Arc::new(connector))
    }

    /// A volume with a disk behind it.
    pub fn backed_volume(&self, scheme: &str, size_bytes: u64, backing: Backing) -> Volume {
        let config = self.config(scheme, size_bytes);
        Volume::open_backed(config, backing, self.connector()).unwrap()
    }

    fn volume_over(&self, scheme: &str, size_bytes: u64, connector: Arc<dyn Connector>) -> Volume {
        Volume::open(self.config(scheme, size_bytes), connector).unwrap()
    }

    /// What the tests' volume is to be.
    pub fn config(&self, scheme: &str, size_bytes: u64) -> VolumeConfig {
        let scheme: Scheme = scheme.parse().unwrap();
        VolumeConfig {
            name: "test".into(),
            id: 7,
            protection: Protection::None,
            resilience: Resilience::of(scheme),
            placement: Placement::over_all_hosts(scheme.r()),
            size_bytes,
            size_bytes_max: size_bytes * 2,
            hosts: self.configs.clone(),
            return_max: RETURN_MAX,
        }
    }

    /// A volume of a mode.
    pub fn volume_in_mode(&self, scheme: &str, mode: Mode, size_bytes: u64) -> Volume {
        let resilience = Resilience::new(scheme.parse().unwrap(), mode, 1).unwrap();
        let config = VolumeConfig {
            resilience,
            ..self.config(scheme, size_bytes)
        };
        Volume::open(config, self.connector()).unwrap()
    }

    /// A protected volume.
    pub fn protected_volume(
        &self,
        scheme: &str,
        protection: Protection,
        size_bytes: u64,
    ) -> Volume {
        let config = VolumeConfig {
            protection,
            ..self.config(scheme, size_bytes)
        };
        Volume::open(config, self.connector()).unwrap()
    }

    /// A protected volume that outlives its owner, from what the last one left.
    pub fn kept_protected(
        &self,
        scheme: &str,
        protection: Protection,
        size_bytes: u64,
    ) -> Result<Volume, VolumeError> {
        let config = VolumeConfig {
            protection,
            ..self.config(scheme, size_bytes)
        };
        let kept = self
            .kept()
            .with_tags(&self.folder.path().join("volume.tags"));
        Volume::open_kept(config, kept.unwrap(), self.connector())
    }

    /// The folder of sockets, and of what owners leave.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What survives the volume's owner.
    pub fn kept(&self) -> Kept {
        let path = |kind| self.folder.path().join(format!("volume.{kind}"));
        Kept::in_files(&path("journal"), &path("pages"), &path("images")).unwrap()
    }

    /// A volume that outlives its owner, from what the last one left.
    pub fn kept_volume(&self, scheme: &str, size_bytes: u64) -> Result<Volume, VolumeError> {
        let config = self.config(scheme, size_bytes);
        Volume::open_kept(config, self.kept(), self.connector())
    }

    /// Ends a host; its memory is gone.
    pub fn stop(&mut self, index: usize) {
        if let Some(mut host) = self.hosts[index].take() {
            host.stop().unwrap();
        }
    }

    /// Starts a stopped host at its old address, empty.
    pub fn restart(&mut self, index: usize) {
        assert!(self.hosts[index].is_none());
        let (host, _) = self.run(index, self.configs[index].address.clone());
        self.hosts[index] = Some(host);
    }

    /// Whether the host was not stopped, or was started again.
    pub fn is_running(&self, index: usize) -> bool {
        self.hosts[index].is_some()
    }
}

fn socket(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("h{index:02}.socket"))
}

/// Waits until what a volume says of itself is right.
pub fn wait_for(volume: &Volume, mut is_right: impl FnMut(&VolumeStatus) -> bool) {
    wait_until(
        || is_right(&volume.status().unwrap()),
        || format!("{:#?}", volume.status()),
    );
}

/// Waits until every extent has the wanted health.
pub fn wait_for_health(volume: &Volume, wanted: Health) {
    wait_for(volume, |status| status.health == wanted);
}

/// Waits until no change of the volume's resilience is under way.
pub fn wait_changed(volume: &Volume) {
    wait_for(volume, |status| status.change.is_none());
}

/// Reads the first `pages` pages, which were all written as `round` has them.
pub fn assert_pages(volume: &Volume, pages: u64, round: u64) {
    let mut worker = volume.worker().unwrap();
    for index in 0..pages {
        let mut bytes = vec![0; cenote_volume::PAGE_BYTES];
        worker.read(index * bytes.len() as u64, &mut bytes).unwrap();
        assert!(bytes == page(index, round), "page {index}");
    }
}
