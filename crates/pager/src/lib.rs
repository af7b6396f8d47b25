//! A paged heap: ordinary memory to the program, of which only a part is resident on this machine.
//!
//! A [`Region`] is a range of addresses. Its resident pages are bounded; a thread that touches
//! another page waits in a page fault while a handler thread brings the page from a
//! [`Volume`](cenote_volume::Volume). Each handler has a **shard** of the pages, with a userfaultfd
//! and a worker of the volume; all that handlers share is the bound ([`Rooms`]). Cold pages are
//! written ahead of need, so that a fault rarely waits for a write. A page that the volume lost
//! raises SIGBUS in the thread that touches it; wrong bytes are never returned.
//!
//! [`Pages`] is a pure core: it takes faults and I/O completions and returns [`Action`]s, so that a
//! simulation can drive the same code as the handler. [`Streams`] predicts which pages are touched
//! next, [`Queues`] chooses pages to evict.
//!
//! Paper: \[hydra22\] section 6 (a VMM front end), and Al Maruf, Chowdhury: Effectively
//! Prefetching Remote Memory with Leap, USENIX ATC 2020.

mod allocator;
mod counters;
mod handler;
mod handlers;
mod injected_faults;
mod keeper;
mod memory;
mod pages;
mod queues;
mod region;
mod reports;
mod rooms;
mod shares;
mod stream;

pub use allocator::RegionAllocator;
pub use counters::Counters;
pub use handlers::{Handlers, NoHandlers};
#[cfg(feature = "injected-faults")]
pub use injected_faults::inject;
pub use injected_faults::{InjectedFault, MISTAKES};
pub use keeper::{Keeper, SERVED_RESIDENT_MIN_BYTES, Served};
pub use memory::{MemoryError, works};
pub use pages::{Action, Pages, WRITES_MAX};
pub use queues::{EvictionQueue, Queues};
pub use region::{RESIDENT_MIN_BYTES, Region, RegionConfig, RegionError, RegionStatus};
pub use rooms::{Held, Next, ROOM_MIN, Room, Rooms};
pub use stream::{RUN_MAX, Run, Streams};
