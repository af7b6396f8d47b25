//! How work ends that is too slow for the control thread, as it is told.

use std::sync::Arc;

use cenote_fabric::{PeerId, Region};
use cenote_pool::control::FillResult;
use cenote_pool::ledger::SlabIndex;

/// The end of slow work.
pub(crate) enum Outcome {
    /// The slab has fresh memory.
    Prepared(SlabIndex, Arc<Region>),
    /// There was none.
    PrepareFailed(SlabIndex),
    /// The slab's memory is gone.
    GivenBack(SlabIndex),
    /// A fill ended.
    Filled {
        /// The session that asked.
        peer: PeerId,
        client: u128,
        /// What its target was a slab of.
        volume: u128,
        request: u64,
        len_bytes: u64,
        result: FillResult,
    },
}
