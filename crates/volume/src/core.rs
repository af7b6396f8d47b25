//! What the workers and the control thread of one volume share. No lock on the page path.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::{Time, Waker};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use crate::backing::Store;
use crate::claims::Claims;
use crate::directory::Directory;
use crate::extents::{ByExtent, EXTENTS_MAX, LayoutId};
use crate::flights::Flights;
use crate::integrity::{Integrity, Tags};
use crate::layout::Layout;
use crate::layouts::Layouts;
use crate::mailboxes::Mailboxes;
use crate::marks::{Marks, Soundness};
use crate::migrator::Migrator;
use crate::restripe_orders::RestripeOrders;
use crate::scheme::{Codes, Cut};
use crate::scrub::Scrub;
use crate::spare::Spare;
use crate::status::CounterValues;
use crate::timings::Timings;
use crate::{PAGE_BYTES, Resilience};

/// Shared state of one volume.
pub struct Core {
    pub layouts: Layouts,
    pub codes: Codes,
    /// Size of the volume in bytes; grows by resize.
    pub size_bytes: AtomicU64,
    pub directory: Arc<Directory>,
    pub pages: Pages,
    /// Every change of the directory up to this epoch is in the journal; the end of time without one.
    pub journaled: AtomicU64,
    /// What stands behind the slabs, if anything does.
    pub backing: Option<Arc<Store>>,
    pub demand: Demand,
    pub mailboxes: Mailboxes,
    pub life: Life,
    pub wake: Waker,
    pub measures: Measures,
    pub helpers: Helpers,
    pub limits: Limits,
    /// The clock; virtual under simulation.
    pub clock: fn() -> Time,
}

/// What is known of each page.
pub struct Pages {
    pub claims: Claims,
    /// Pages that were acknowledged and have not landed everywhere.
    pub flights: Flights,
    pub marks: Marks,
    pub integrity: Integrity,
}

/// Which extents are to have slabs.
pub struct Demand {
    /// Page operations on each extent since the control thread last looked.
    pub touched: ByExtent<AtomicU32>,
    mapping: ByExtent<AtomicU8>,
    wanted: Mutex<Vec<usize>>,
    /// Set when a discard may have emptied an extent.
    pub discarded: AtomicBool,
    /// Set when every extent was mapped ahead: empty ones then stay mapped.
    pub mapped_ahead: AtomicBool,
}

/// Weight of the newest second in an extent's activity.
pub const ACTIVITY_ALPHA: f32 = 0.2;

/// Whether the volume ends.
#[derive(Default)]
pub struct Life {
    /// Set before the workers of a volume that ends go: what they leave is the next owner's.
    pub ending: AtomicBool,
    pub closed: AtomicBool,
}

/// What it did so far, and how long that took.
#[derive(Default)]
pub struct Measures {
    pub counters: Counters,
    pub timings: Timings,
}

/// Threads beside the workers, and what is asked of them.
pub struct Helpers {
    pub scrub: Scrub,
    pub migrator: Migrator,
    pub restripe_orders: RestripeOrders,
}

/// What bounds it.
pub struct Limits {
    /// How fast slabs may be rebuilt.
    pub pace: Pace,
    /// What the client's own machine has to spare.
    pub spare: Spare,
    /// Longest that a host which says that it will be back is waited for.
    pub return_max: Duration,
}

/// How fast slabs may be rebuilt and moved, as the volume's owner wants it.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second at most; 0: no limit.
    pub limit: AtomicU64,
    /// Whether requests slow it down.
    pub yields: AtomicBool,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            limit: AtomicU64::new(0),
            yields: AtomicBool::new(true),
        }
    }
}

/// What the volume did so far; for status and metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub pages_read: AtomicU64,
    pub pages_written: AtomicU64,
    /// Writes acknowledged before all their splits had landed.
    pub writes_early: AtomicU64,
    /// Reads that had to decode because a data split was missing, or came later than others.
    pub pages_decoded: AtomicU64,
    /// Reads taken again because a writer was in the way or a host failed.
    pub reads_repeated: AtomicU64,
    pub requests_failed: AtomicU64,
    pub rebuilt_bytes: AtomicU64,
    /// Chunks rebuilt once more because a write went through their fence.
    pub chunks_void: AtomicU64,
    /// Writes that did so at once.
    pub fence_passes: AtomicU64,
    pub slabs_rebuilt: AtomicU64,
    /// Slabs copied to another host because theirs wanted them back.
    pub slabs_moved: AtomicU64,
    /// Slabs given up because their pages are in the backing store.
    pub slabs_dropped: AtomicU64,
    /// Pages brought to the volume's other layout.
    pub pages_moved: AtomicU64,
    /// Extents that went back to the disk because the client's machine has memory to spare.
    pub extents_reclaimed: AtomicU64,
}

impl Counters {
    /// As they are now; `reclaims_heard`: times that a host of this machine had memory to spare.
    pub fn values(&self, reclaims_heard: u64) -> CounterValues {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterValues {
            pages_read: value(&self.pages_read),
            pages_written: value(&self.pages_written),
            writes_early: value(&self.writes_early),
            pages_decoded: value(&self.pages_decoded),
            reads_repeated: value(&self.reads_repeated),
            requests_failed: value(&self.requests_failed),
            rebuilt_bytes: value(&self.rebuilt_bytes),
            slabs_rebuilt: value(&self.slabs_rebuilt),
            slabs_moved: value(&self.slabs_moved),
            pages_moved: value(&self.pages_moved),
            slabs_dropped: value(&self.slabs_dropped),
            extents_reclaimed: value(&self.extents_reclaimed),
            reclaims_heard,
        }
    }
}

/// How a volume is laid out. Sizes in bytes.
pub struct Shape {
    pub layouts: Layouts,
    pub resilience: Resilience,
    pub slab_bytes: u64,
    pub size_bytes: u64,
    pub host_count: usize,
    pub return_max: Duration,
}

/// Where an extent stands with the control thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Mapping {
    /// Nobody asked.
    Idle = 0,
    /// The control thread is at it.
    Wanted = 1,
    /// Too few hosts had memory; the next ask after a pause tries again.
    Refused = 2,
}

impl Core {
    pub fn new(
        shape: Shape,
        marks: Marks,
        tags: Option<Tags>,
        flights: Flights,
        backing: Option<Arc<Store>>,
        wake: Waker,
        clock: fn() -> Time,
    ) -> Self {
        let Shape {
            layouts,
            resilience,
            slab_bytes,
            size_bytes,
            host_count,
            return_max,
        } = shape;
        let scheme = resilience.scheme();
        let pages = layouts.page_count();
        let codes = Codes::new();
        // Not by the first who codes a page.
        codes.with(Cut::of(scheme), scheme.r());
        let extent_counts = LayoutId::BOTH.map(|layout_id| match layouts.has(layout_id) {
            true => layouts.layout(layout_id).extents_of(pages),
            false => 0,
        });
        // Whatever k one of the layouts may come to have.
        let slabs = (pages * PAGE_BYTES as u64).div_ceil(slab_bytes);
        let most = extent_counts.iter().copied().max().unwrap_or(0);
        let slabs = fit(slabs.min(EXTENTS_MAX).max(most));
        Self {
            helpers: Helpers {
                scrub: Scrub::default(),
                migrator: Migrator::default(),
                restripe_orders: RestripeOrders::new(Cut::of(scheme), &layouts),
            },
            layouts,
            codes,
            size_bytes: AtomicU64::new(size_bytes),
            directory: Arc::new(Directory::new(
                extent_counts.map(fit),
                resilience,
                backing.is_none(),
            )),
            pages: Pages {
                claims: Claims::new(),
                flights,
                marks,
                integrity: Integrity::new(host_count, tags),
            },
            journaled: AtomicU64::new(u64::MAX),
            backing,
            demand: Demand {
                touched: ByExtent::new([slabs; 2], || AtomicU32::new(0)),
                mapping: ByExtent::new([slabs; 2], || AtomicU8::new(0)),
                wanted: Mutex::default(),
                discarded: AtomicBool::new(false),
                mapped_ahead: AtomicBool::new(false),
            },
            mailboxes: Mailboxes::new(),
            life: Life::default(),
            wake,
            measures: Measures::default(),
            limits: Limits {
                pace: Pace::default(),
                spare: Spare::default(),
                return_max,
            },
            clock,
        }
    }

    /// What is expected of hosts, for whoever begins now. Takes the directory's lock.
    pub fn resilience(&self) -> Resilience {
        self.directory.snapshot().resilience
    }

    /// Whether the next owner would know of every change up to this epoch.
    pub fn is_journaled(&self, epoch: u64) -> bool {
        self.journaled.load(Ordering::Acquire) >= epoch || is_injected(InjectedFault::JournalLate)
    }

    /// Makes sure that what is known of the pages of so large a volume has room.
    pub fn reserve(&self, size_bytes: u64) -> std::io::Result<()> {
        let pages = pages_of(self.layout(), size_bytes);
        if let Some(tags) = &self.pages.integrity.tags {
            tags.reserve(pages)?;
        }
        self.pages.marks.reserve(pages)
    }

    /// The pages of an extent.
    pub fn pages(&self, extent: usize) -> Range<u64> {
        self.layouts.pages(extent)
    }

    /// The first page at or after `from` and before `end` of which an extent holds data.
    pub fn held(&self, extent: usize, from: u64, end: u64) -> Option<u64> {
        self.held_pages(extent, from..end).next()
    }

    fn held_pages(&self, extent: usize, pages: Range<u64>) -> impl Iterator<Item = u64> {
        let layout_id = LayoutId::of(extent);
        let end = pages.end.min(self.pages(extent).end);
        let written = self.pages.marks.written.range(pages.start..end);
        written.filter(move |&page| self.layouts.id_of(page) == layout_id)
    }

    /// An extent has lost a data split of these pages: those of it that are doubtful are torn. Others may
    /// be whole in the other layout.
    pub fn tear_doubtful(&self, extent: usize, pages: Range<u64>) {
        let layout_id = LayoutId::of(extent);
        for page in self.pages.marks.doubtful_pages(pages.start, pages.end) {
            if self.layouts.id_of(page) == layout_id {
                self.pages.marks.tear_doubtful(page, page + 1);
            }
        }
    }

    /// A data split of an extent is lost, and may be decoded from what remains: its doubtful pages are torn.
    pub fn lose_data_split(&self, extent: usize) {
        // Copies do not depend on each other.
        if self.layout_of(extent).cut().k() > 1 {
            self.tear_doubtful(extent, self.pages(extent));
        }
    }

    /// What an extent has of a page is not what was written: the page is torn, if it is that extent's still
    /// and holds data. False when somebody is at it, who may write or discard it, or bring it to the other
    /// layout, whole.
    pub fn tear(&self, extent: usize, page: u64) -> bool {
        if !self.pages.claims.try_claim(page) {
            return false;
        }
        if self.layouts.id_of(page) == LayoutId::of(extent)
            && self.pages.marks.written.contains(page)
        {
            self.pages.marks.tear(page);
        }
        self.pages.claims.release(page);
        true
    }

    /// No page of an extent can be read any more: those that it holds are torn. How many became so; `None` while
    /// somebody is at one, who may bring it to the other layout. Writes of the extent are fenced off.
    pub fn lose(&self, extent: usize) -> Option<u64> {
        let (mut lost, mut is_whole) = (0, true);
        for page in self.held_pages(extent, self.pages(extent)) {
            if self.pages.marks.soundness(page) == Soundness::Torn {
                continue;
            }
            if !self.tear(extent, page) {
                is_whole = false;
                continue;
            }
            if !self.pages.marks.written.contains(page) {
                // It was discarded meanwhile.
                self.pages.marks.heal(page);
                continue;
            }
            lost += 1;
        }
        is_whole.then_some(lost)
    }

    /// Whether an extent holds data.
    pub fn holds(&self, extent: usize) -> bool {
        let pages = self.pages(extent);
        self.held(extent, pages.start, pages.end).is_some()
    }

    /// Pages of which an extent holds data.
    pub fn held_count(&self, extent: usize) -> u64 {
        let (layout_id, pages) = (LayoutId::of(extent), self.pages(extent));
        let written = &self.pages.marks.written;
        self.layouts
            .count_in(layout_id, written, pages.start, pages.end)
    }

    /// Pages that the volume may have.
    pub fn page_count(&self) -> u64 {
        self.layouts.page_count()
    }

    /// How the pages of an extent lie.
    pub fn layout_of(&self, extent: usize) -> Layout {
        self.layouts.layout(LayoutId::of(extent))
    }

    /// How pages lie, or are to lie.
    pub fn layout(&self) -> Layout {
        self.layouts.layout(self.layouts.target())
    }

    /// Asks the control thread to map an extent and says where that stands.
    pub fn want(&self, extent: usize) -> Mapping {
        let state = &self.demand.mapping[extent];
        match state.compare_exchange(
            Mapping::Idle as u8,
            Mapping::Wanted as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => {
                self.demand
                    .wanted
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(extent);
                self.wake.wake();
                Mapping::Wanted
            }
            Err(seen) if seen == Mapping::Refused as u8 => Mapping::Refused,
            Err(_) => Mapping::Wanted,
        }
    }

    /// Whether what was done to an extent since the control thread last looked makes it hot by itself: what comes
    /// until it looks again only adds to that. With a HotSlab of 0 the next write does.
    pub fn is_hot_already(&self, extent: usize) -> bool {
        let touched = self.demand.touched[extent].load(Ordering::Relaxed);
        let activity = f64::from(ACTIVITY_ALPHA * touched as f32);
        let store = self.backing.as_ref();
        store.is_some_and(|store| store.hot_slab == 0.0 || store.is_hot(activity))
    }

    /// Whether too few hosts had memory for an extent a moment ago.
    pub fn is_refused(&self, extent: usize) -> bool {
        self.demand.mapping[extent].load(Ordering::Acquire) == Mapping::Refused as u8
    }

    /// Says how mapping an extent ended.
    pub fn mapping_ended(&self, extent: usize, state: Mapping) {
        self.demand.mapping[extent].store(state as u8, Ordering::Release);
    }

    /// Takes the extents asked for since the last call.
    pub fn take_wanted(&self) -> Vec<usize> {
        std::mem::take(
            &mut self
                .demand
                .wanted
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

fn fit(count: u64) -> usize {
    usize::try_from(count).expect("volume sizes fit the address space")
}

/// Pages of a volume of up to `size_max` bytes, in whole extents: the control thread looks at each
/// to its end.
pub fn pages_of(layout: Layout, size_max: u64) -> u64 {
    let pages = size_max.div_ceil(PAGE_BYTES as u64);
    pages.next_multiple_of(layout.extent_pages())
}

#[cfg(test)]
pub mod tests;
