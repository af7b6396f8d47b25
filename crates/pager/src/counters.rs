//! What happened to the pages of a region.

use std::ops::AddAssign;

/// Counts since the region was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Faults of pages that were not resident.
    pub faults: u64,
    /// Faults that a page had to go for first.
    pub waits: u64,
    /// Faults of the first write to a clean page.
    pub write_faults: u64,
    /// Pages of zeros that were installed.
    pub zeroed: u64,
    /// Pages read because of a fault.
    pub reads: u64,
    /// Pages read ahead.
    pub reads_ahead: u64,
    /// Of these, pages in runs that were reached to the end.
    pub reads_ahead_useful: u64,
    /// Pages written.
    pub writes: u64,
    /// Writes that failed, and were tried again.
    pub write_failures: u64,
    /// Pages that went.
    pub drops: u64,
    /// Pages that could not be read when they were touched: their bytes were lost, or out of reach.
    pub lost: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, some: Self) {
        self.faults += some.faults;
        self.waits += some.waits;
        self.write_faults += some.write_faults;
        self.zeroed += some.zeroed;
        self.reads += some.reads;
        self.reads_ahead += some.reads_ahead;
        self.reads_ahead_useful += some.reads_ahead_useful;
        self.writes += some.writes;
        self.write_failures += some.write_failures;
        self.drops += some.drops;
        self.lost += some.lost;
    }
}
