//! Resilient remote memory for one client.
//!
//! A [`Volume`] is a linear range of pages, divided into extents. Each extent is a stripe of k+r
//! slabs on as many hosts, and each page has k splits in k of them plus r parities (or copies).
//! Threads read and write through their own [`Worker`]s; a control thread maps extents, detects
//! dead hosts and rebuilds their slabs.
//!
//! Guarantee: acknowledged data is readable as long as its stripe has not lost more than r slabs.
//! After that, its pages return errors, never wrong bytes. The guarantee ends with the owner, or
//! with its machine if the owner keeps its state for the next one ([`Kept`]).
//!
//! Not here: protocols (`block`), and a host's decisions about its memory (`host`, `pool`). Papers:
//! \[hydra22\], \[infiniswap17\]; `docs/papers/`.

mod backing;
mod claims;
mod command;
mod config;
mod control;
mod core;
mod directory;
mod error;
mod extents;
mod fence;
mod flights;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod integrity;
mod journal;
mod kept;
mod layout;
mod layouts;
mod limits;
mod mailboxes;
mod marks;
mod migrator;
mod request;
mod resilience;
mod restripe_orders;
mod scheme;
mod scrub;
mod spare;
mod status;
mod stepped;
mod sync;
mod timings;
mod volume;
mod worker;
mod workers;

pub use cenote_fabric::Waker;
pub use cenote_pool::placement::{Placement, PlacementError};

pub use backing::{Backing, BackingError, Device, FLIGHTS_MAX, Transfer, backing_works};
pub use config::{HostConfig, RETURN_MAX, VolumeConfig};
pub use control::{Dialer, Greeted, Greeting, Link, Relocation, RelocationStage};
pub use error::VolumeError;
pub use integrity::{IntegrityStatus, Protection, Reputation, SealKey, SealKeyError, TagsError};
pub use journal::{JournalError, JournalFile, Log};
pub use kept::{Kept, Left, NamedSlab};
pub use limits::{REQUESTS_MAX, WORKERS_MAX};
pub use marks::{MarksError, Unfinished};
pub use request::{Done, IoError, Op, PAGE_BYTES, REQUEST_BYTES_MAX, Request};
pub use resilience::{Mode, ModeError, Resilience, ResilienceError};
pub use scheme::{Scheme, SchemeError};
pub use scrub::{ScrubReport, ScrubStatus};
pub use status::{
    BackingStatus, ChangeStatus, CounterValues, ExtentStatus, Health, HostState, JournalStatus,
    LatencyStatus, RepairStatus, VolumeStatus,
};
pub use stepped::{Seat, Stepped, Whole};
pub use timings::{HistogramValues, Latency, TimingValues};
pub use volume::{SIZE_BYTES_MAX, Volume};
pub use worker::{Switches, Work, Worker};
pub use workers::{WorkerGuard, Workers};
