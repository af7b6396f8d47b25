//! How many threads answer the faults of one heap.

use std::fmt::{Display, Formatter};
use std::str::FromStr;
use std::thread::available_parallelism;

use cenote_preload::stripes::SHARDS_MAX;

/// A number of fault handlers, from 1 to [`Handlers::MAX`]. Each has a shard of the pages to itself
/// and a worker of the volume. It costs a core while faults come, and some megabytes of buffers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Handlers(usize);

impl Handlers {
    /// One thread for all faults.
    pub const ONE: Self = Self(1);

    /// Most of them.
    pub const MAX: usize = SHARDS_MAX;

    /// So many, if that is a number of handlers.
    #[must_use]
    pub fn new(count: usize) -> Option<Self> {
        (1..=Self::MAX).contains(&count).then_some(Self(count))
    }

    /// How many.
    #[must_use]
    pub fn count(self) -> usize {
        self.0
    }

    /// As many as there are, or fewer, so that each has `least` of `room`; one at least.
    pub(crate) fn within(self, room: u64, least: u64) -> usize {
        let most = usize::try_from(room / least).unwrap_or(Self::MAX);
        self.0.min(most).max(1)
    }

    /// For a machine of so many cores.
    fn of_cores(cores: usize) -> Self {
        Self((cores / 2).clamp(1, HANDLERS_DEFAULT_MAX))
    }
}

/// Most handlers that there are without being asked for. Arbitrary: a volume's hosts are shared.
const HANDLERS_DEFAULT_MAX: usize = 4;

impl Default for Handlers {
    /// One for every two cores of this machine, four at most: the program needs cores, too.
    fn default() -> Self {
        Self::of_cores(available_parallelism().map_or(1, usize::from))
    }
}

impl Display for Handlers {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Display::fmt(&self.0, f)
    }
}

/// What is no number of handlers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("there may be 1 to {} handlers", Handlers::MAX)]
pub struct NoHandlers;

impl FromStr for Handlers {
    type Err = NoHandlers;

    fn from_str(text: &str) -> Result<Self, NoHandlers> {
        let count = text.parse().ok();
        count.and_then(Self::new).ok_or(NoHandlers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_bounds_are_refused() {
        for text in ["0", "9", "-1", "two", ""] {
            assert_eq!(text.parse::<Handlers>(), Err(NoHandlers), "{text}");
        }
        assert_eq!("8".parse::<Handlers>().map(Handlers::count), Ok(8));
    }

    #[test]
    fn there_is_one_at_least_and_room_for_each() {
        let default = |cores| Handlers::of_cores(cores).count();
        assert_eq!([1, 2, 3, 4, 9, 64].map(default), [1, 1, 1, 2, 4, 4]);
        let four = Handlers::new(4).expect("a number of handlers");
        assert_eq!(
            [0, 9, 20, 39, 40, 900].map(|room| four.within(room, 10)),
            [1, 1, 2, 3, 4, 4]
        );
    }
}
