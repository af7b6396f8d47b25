//! A volume with calls that wait.

use std::path::Path;
use std::sync::Arc;

use cenote_pool::placement::Placement;
use cenote_volume::{
    Health, Protection, RETURN_MAX, Resilience, Scheme, VolumeConfig, VolumeError, WorkerGuard,
    Workers,
};

use crate::cluster::Cluster;
use crate::options::usual_scheme;
use crate::{AccessError, Error, Options};

/// Memory of a cluster's hosts: bytes at offsets, zeros until they are written. A write that has returned
/// survives the loss of as many hosts as the scheme bears. What is in it ends with this value.
pub struct Volume {
    // Before the volume, which outlives its workers.
    workers: Workers,
    inner: cenote_volume::Volume,
}

/// How a volume is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// As `--scheme` takes it.
    pub scheme: String,
    /// Every split of every page is where it should be.
    pub is_whole: bool,
    /// Every page can be read.
    pub is_readable: bool,
    /// Pages that hold data, in bytes.
    pub stored_bytes: u64,
    /// Memory that hosts lend to it.
    pub lent_bytes: u64,
    /// Hosts of the cluster.
    pub hosts: usize,
    /// Those of them that are connected.
    pub hosts_connected: usize,
}

impl Volume {
    /// Opens a new, empty volume of 1 GiB on the hosts of a cluster file; [`Volume::options`] for others.
    ///
    /// # Errors
    /// The file or its key makes no sense, or too few hosts answer.
    pub fn open(cluster_file: impl AsRef<Path>) -> Result<Self, Error> {
        Self::options().open(cluster_file)
    }

    /// What may be said of a volume that is opened.
    #[must_use]
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn open_with(cluster_file: &Path, options: &Options) -> Result<Self, Error> {
        let cluster = Cluster::load(cluster_file)?;
        let said = options.scheme.as_deref();
        let said = said.unwrap_or_else(|| usual_scheme(cluster.domain_count()));
        let scheme = said.parse::<Scheme>();
        let scheme = scheme.map_err(|error| Error::Options(format!("scheme {said}: {error}")))?;
        let is_size = options.size_bytes > 0 && options.size_bytes.is_multiple_of(PAGE_BYTES);
        if !is_size {
            let size = options.size_bytes;
            return Err(Error::Options(format!(
                "a volume of {size} bytes: it has whole pages of {PAGE_BYTES} bytes, at least one"
            )));
        }
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| Error::Open(format!("random bytes: {error}")))?;
        let config = VolumeConfig {
            name: options.name.clone(),
            id: u128::from_ne_bytes(id),
            protection: Protection::None,
            resilience: Resilience::of(scheme),
            placement: Placement::usual(scheme.k(), scheme.r(), cluster.hosts.len()),
            size_bytes: options.size_bytes,
            size_bytes_max: options.size_bytes,
            hosts: cluster.hosts,
            return_max: RETURN_MAX,
        };
        let connector = cenote_fabric::connector_with(cluster.key, cluster.page_traffic);
        let inner = cenote_volume::Volume::open(config, Arc::new(connector)).map_err(refused)?;
        let workers = Workers::new(&inner, options.threads).map_err(refused)?;
        Ok(Self { workers, inner })
    }

    /// Bytes of the volume.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    /// Fills `buffer` from the bytes at `offset`.
    ///
    /// # Errors
    /// [`AccessError`] says why; the buffer may have been written to.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), AccessError> {
        Ok(self.worker().read(offset, buffer)?)
    }

    /// Writes `bytes` at `offset`. Whole pages, at multiples of 4096, are fastest.
    ///
    /// # Errors
    /// [`AccessError`] says why; each page is as it was or as written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), AccessError> {
        Ok(self.worker().write(offset, bytes)?)
    }

    /// Has so many bytes at `offset` read as zeros, and gives their memory back.
    ///
    /// # Errors
    /// [`AccessError`] says why.
    pub fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), AccessError> {
        Ok(self.worker().discard(offset, len_bytes)?)
    }

    /// How it is. Costs a pass over what is known of its pages.
    ///
    /// # Errors
    /// It has ended.
    pub fn status(&self) -> Result<Status, Error> {
        let status = self.inner.status().map_err(refused)?;
        let is_lost = status.health == Health::Lost || status.torn_pages > 0;
        Ok(Status {
            is_whole: status.health == Health::Healthy && !is_lost,
            is_readable: !is_lost,
            scheme: status.scheme,
            stored_bytes: status.stored_bytes,
            lent_bytes: status.lent_bytes,
            hosts: status.hosts.len(),
            hosts_connected: status.hosts.iter().filter(|host| host.connected).count(),
        })
    }

    fn worker(&self) -> WorkerGuard<'_> {
        self.workers.get()
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Volume");
        shown
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

/// The unit of access.
const PAGE_BYTES: u64 = cenote_volume::PAGE_BYTES as u64;

fn refused(error: VolumeError) -> Error {
    match error {
        VolumeError::TooFewHosts { .. } => Error::TooFewHosts(error.to_string()),
        _ => Error::Open(error.to_string()),
    }
}
