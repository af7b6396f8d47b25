//! What a volume says about itself: `cenote volume status` and the metrics.

use serde::Serialize;

use crate::integrity::{IntegrityStatus, Reputation};
use crate::scrub::ScrubStatus;
use crate::timings::{HistogramValues, Latency, TimingValues};

/// A volume at one moment. Sizes in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeStatus {
    /// Size of the address range.
    pub size_bytes: u64,
    /// As written: `rs:8+2`.
    pub scheme: String,
    /// What it expects of its hosts: as `--mode` takes it.
    pub mode: String,
    /// Splits read besides those needed, or wrong splits to be found or put right.
    pub delta: usize,
    /// What of scheme, mode and delta is yet to come true; `null`: nothing.
    pub change: Option<ChangeStatus>,
    /// Bytes that each host lends to one extent.
    pub slab_bytes: u64,
    /// Bytes of the volume in one extent.
    pub extent_bytes: u64,
    /// Worst health of any extent.
    pub health: Health,
    /// Memory that hosts lend to this volume.
    pub lent_bytes: u64,
    /// Pages that hold data.
    pub stored_bytes: u64,
    /// Pages that are errors until they are written whole: more slabs of their extent were lost than it
    /// survives, or they were being written when an owner ended, and a split is lost besides.
    pub torn_pages: u64,
    /// Address range of the mapped extents.
    pub mapped_bytes: u64,
    /// Memory lent for each byte of mapped extents, the client's own tables included.
    pub overhead: f64,
    /// Hosts of the cluster.
    pub hosts: Vec<HostState>,
    /// Mapped extents, by address.
    pub extents: Vec<ExtentStatus>,
    /// What stands behind the slabs, if anything does.
    pub backing: Option<BackingStatus>,
    /// What the next owner will find, of a volume that outlives its owner.
    pub journal: Option<JournalStatus>,
    /// What was found wrong in the memory of hosts, and put right.
    pub integrity: IntegrityStatus,
    /// What is looked at before readers do.
    pub scrub: ScrubStatus,
    /// How long it took to map an extent lately.
    pub mapping: TimingValues,
    /// How long it took to give up a slab that its host wanted back lately.
    pub eviction: TimingValues,
    /// How slabs are rebuilt and moved.
    pub repair: RepairStatus,
    /// How long requests of one page took.
    pub latency: LatencyStatus,
    /// What happened so far.
    pub counters: CounterValues,
}

/// Of requests of one page that ended well, one of 16, since the volume was opened.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyStatus {
    /// Reads.
    pub read: Latency,
    /// Writes.
    pub write: Latency,
}

/// A change of scheme, mode or delta that is under way: those that the volume is said to have are
/// what it is to have.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ChangeStatus {
    /// The scheme of extents that are as they were.
    pub from: String,
    /// The scheme that all are to have.
    pub to: String,
    /// Mapped extents that have it, whole.
    pub extents_done: usize,
    /// Mapped extents.
    pub extents: usize,
    /// Of what these hold, or of all that is to be restriped, what is as it is to be.
    pub bytes_done: u64,
    /// All of that.
    pub bytes: u64,
}

/// How slabs are rebuilt and moved, and what that costs others.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RepairStatus {
    /// Slab bytes per second that may be rebuilt now; `null`: as fast as it goes.
    pub bytes_per_s: Option<u64>,
    /// From the request for a slab until a host granted it, lately.
    pub place: TimingValues,
    /// From there until it was whole and in use.
    pub fill: TimingValues,
    /// From there until the slab that it replaced was given back.
    pub leave: TimingValues,
    /// Writes that waited for a chunk that was being rebuilt, and how long.
    pub fence_waits: HistogramValues,
    /// Writes that went into such a chunk at once.
    pub fence_passes: u64,
    /// Chunks that were rebuilt once more because a write went into them.
    pub chunks_void: u64,
}

/// The journal that a volume's owner leaves to the next.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct JournalStatus {
    /// Why it cannot be written: writes wait, where hosts have come or gone, until it can; `null`: it
    /// can be.
    pub error: Option<String>,
    /// For how long.
    pub failing_s: Option<u64>,
}

/// A backing store.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BackingStatus {
    /// Pages of which hosts hold the newest bytes too, in bytes.
    pub remote_bytes: u64,
    /// Pages that are not on the disk yet, in bytes.
    pub pending_bytes: u64,
    /// Pages whose newest bytes the disk refused: only hosts have them, or nobody.
    pub stale_pages: u64,
    /// Pages read from the disk so far.
    pub pages_read: u64,
    /// Pages written to it so far.
    pub pages_written: u64,
    /// Pages read from it that hosts got as well.
    pub pages_promoted: u64,
    /// Transfers that they took.
    pub transfers: u64,
    /// Transfers that failed.
    pub errors: u64,
    /// Page reads and writes per second from which an extent is mapped.
    pub hot_slab: f64,
}

/// How an extent stands.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Every slab is there.
    Healthy,
    /// A lost slab is being rebuilt.
    Regenerating,
    /// Slabs are missing; every byte is readable.
    Degraded,
    /// More slabs are out of reach than the scheme survives; its pages are errors until hosts are back. Once
    /// none can come back they are counted in `torn_pages`, and the extent is mapped again.
    Lost,
}

/// A host as this volume sees it.
#[derive(Clone, Debug, Serialize)]
pub struct HostState {
    /// As in the cluster file.
    pub name: String,
    /// Whether the control connection stands, and what the host holds is in use.
    pub connected: bool,
    /// Slabs that it would still lend.
    pub slabs_free: u32,
    /// What its errors make of it.
    #[serde(rename = "standing")]
    pub reputation: Reputation,
    /// Splits of it that were found wrong.
    pub wrong_splits: u64,
}

/// One mapped extent.
#[derive(Clone, Debug, Serialize)]
pub struct ExtentStatus {
    /// Index; its first byte is `index * extent_bytes`.
    pub index: usize,
    /// How it stands.
    pub health: Health,
    /// Page reads and writes per second, smoothed.
    pub activity: f32,
    /// Pages that hold data, in bytes.
    pub stored_bytes: u64,
    /// Host of each split; `null` where the slab is missing.
    pub hosts: Vec<Option<String>>,
    /// Share rebuilt of the slab under regeneration, 0 to 1.
    pub regenerated: Option<f64>,
}

/// The volume's counters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CounterValues {
    /// Page operations that read.
    pub pages_read: u64,
    /// Page operations that wrote.
    pub pages_written: u64,
    /// Writes acknowledged before all their splits had landed.
    pub writes_early: u64,
    /// Reads that decoded, since a data split was missing or came later than others.
    pub pages_decoded: u64,
    /// Reads taken again because of a writer or a failure.
    pub reads_repeated: u64,
    /// Requests that ended in an error.
    pub requests_failed: u64,
    /// Slab bytes rebuilt.
    pub rebuilt_bytes: u64,
    /// Slabs made whole.
    pub slabs_rebuilt: u64,
    /// Slabs moved to another host because theirs wanted them back.
    pub slabs_moved: u64,
    /// Pages restriped for another k.
    pub pages_moved: u64,
    /// Slabs given up because their pages are in the backing store.
    pub slabs_dropped: u64,
    /// Extents given up because this machine has memory to spare.
    pub extents_reclaimed: u64,
    /// Times that a host on this machine said so.
    pub reclaims_heard: u64,
}

impl VolumeStatus {
    /// Bytes of pages that hold data and cannot be read: more of their hosts are gone than the scheme bears.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        let lost = |extent: &&ExtentStatus| extent.health == Health::Lost;
        let extents = self.extents.iter().filter(lost);
        extents.map(|extent| extent.stored_bytes).sum()
    }
}
