//! What comes of what is done to an extent.

use cenote_pool::control::Window;

use crate::directory::HostIndex;

/// Whether it goes on.
#[must_use]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    GoesOn,
    /// Nothing is done to the extent any more.
    Ended,
}

/// An extent that has no slabs any more.
pub(super) struct Unmapped {
    pub extent: usize,
    pub cause: Cause,
}

/// Why it has none.
pub(super) enum Cause {
    /// Too few of them were left.
    Lost,
    /// Its pages are in the backing store; these were its slabs.
    Dropped(Vec<(HostIndex, Window)>),
}
