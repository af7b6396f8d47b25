//! What a volume says about itself: `cenote volume status` and the metrics.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::PAGE_BYTES;
use crate::control::Control;
use crate::directory::{MemberState, Stripe};
use crate::extents::{LayoutId, index_of};
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

impl Control {
    /// Collects the status. Costs a pass over the bitmap.
    pub(crate) fn status(&self) -> VolumeStatus {
        let core = self.core();
        let snapshot = core.directory.snapshot();
        let resilience = snapshot.resilience;
        let extent_bytes = core.layout().extent_pages() * PAGE_BYTES as u64;
        let mapped = snapshot.extents.numbered();
        let extents: Vec<ExtentStatus> = mapped
            .filter_map(|(index, stripe)| Some(self.extent_status(index, stripe.as_ref()?)))
            .collect();
        let slabs: usize = extents
            .iter()
            .map(|extent| extent.hosts.iter().flatten().count())
            .sum();
        let lent_bytes = slabs as u64 * self.slab_bytes();
        let layout_bytes = |layout_id: LayoutId| {
            let pages = core.layouts.layout(layout_id).extent_pages();
            let count = snapshot.extents.numbered();
            let mapped = count
                .filter(|(extent, stripe)| LayoutId::of(*extent) == layout_id && stripe.is_some());
            mapped.count() as u64 * pages * PAGE_BYTES as u64
        };
        let mapped_bytes = LayoutId::BOTH.into_iter().map(layout_bytes).sum::<u64>();
        // The bitmap: one bit per page of the mapped range.
        let tags = core.integrity.status().tag_bytes;
        let tables =
            mapped_bytes / (8 * PAGE_BYTES as u64) + mapped_bytes / PAGE_BYTES as u64 * tags;
        VolumeStatus {
            size_bytes: core.size_bytes.load(Ordering::Relaxed),
            scheme: resilience.scheme().to_string(),
            mode: resilience.mode().to_string(),
            delta: resilience.delta(),
            change: self.change_status(&snapshot),
            slab_bytes: self.slab_bytes(),
            extent_bytes,
            health: extents
                .iter()
                .map(|extent| extent.health)
                .max()
                .unwrap_or(Health::Healthy),
            lent_bytes,
            torn_pages: core.marks.torn_count(0, core.page_count()),
            stored_bytes: self.stored_bytes(),
            mapped_bytes,
            overhead: if mapped_bytes == 0 {
                0.0
            } else {
                (lent_bytes + tables) as f64 / mapped_bytes as f64
            },
            hosts: self.host_states(),
            extents,
            backing: core.backing.as_ref().map(|_| self.backing_status()),
            journal: self.journal_status(),
            integrity: core.integrity.status(),
            scrub: core.scrub.status(),
            mapping: core.timings.map.values(),
            eviction: core.timings.evict.values(),
            repair: self.repair_status(),
            latency: LatencyStatus {
                read: core.timings.read.latency(),
                write: core.timings.write.latency(),
            },
            counters: self.counter_values(),
        }
    }

    /// Pages that hold data, mapped or not.
    fn stored_bytes(&self) -> u64 {
        let core = self.core();
        let pages = core
            .size_bytes
            .load(Ordering::Relaxed)
            .div_ceil(PAGE_BYTES as u64);
        core.marks.written.count(0, pages) * PAGE_BYTES as u64
    }

    fn backing_status(&self) -> BackingStatus {
        let core = self.core();
        let store = core.backing.as_ref().expect("asked for a backed volume");
        let pages = core
            .size_bytes
            .load(Ordering::Relaxed)
            .div_ceil(PAGE_BYTES as u64);
        let is_written = |&page: &u64| core.marks.written.contains(page);
        let value = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        BackingStatus {
            remote_bytes: store.pages.remote.count(0, pages) * PAGE_BYTES as u64,
            pending_bytes: (store.pending() * PAGE_BYTES) as u64,
            stale_pages: store.pages.stale.range(0..pages).filter(is_written).count() as u64,
            pages_read: value(&store.counters.pages_read),
            pages_written: value(&store.counters.pages_written),
            pages_promoted: value(&store.counters.pages_promoted),
            transfers: value(&store.counters.transfers),
            errors: value(&store.counters.errors),
            hot_slab: store.hot_slab,
        }
    }

    fn extent_status(&self, index: usize, stripe: &Stripe) -> ExtentStatus {
        let core = self.core();
        let readable = stripe.readable().count_ones() as usize;
        let splits = stripe.members.iter().take(stripe.splits());
        let filling = splits
            .flatten()
            .any(|member| member.state != MemberState::Live);
        let health = if !stripe.is_there() && core.backing.is_some() {
            Health::Degraded
        } else if !stripe.is_there() {
            Health::Lost
        } else if readable == stripe.splits() {
            Health::Healthy
        } else if filling {
            Health::Regenerating
        } else {
            Health::Degraded
        };
        let host_of = |session: crate::directory::Session| self.host_name(session.host);
        ExtentStatus {
            index: index_of(index),
            health,
            activity: self.activity_of(index),
            stored_bytes: core.held_count(index) * PAGE_BYTES as u64,
            hosts: stripe
                .members
                .iter()
                .take(stripe.splits())
                .map(|member| member.as_ref().map(|m| host_of(m.session)))
                .collect(),
            regenerated: self.progress(index),
        }
    }
}
