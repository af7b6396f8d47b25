//! Items that went without being asked to, counted: all of an owner's, and by class.

use crate::memory::classes::CLASSES;

/// Items that went without being asked to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// They made room for others.
    pub evictions: u64,
    /// Of these those that nobody had fetched.
    pub evicted_unfetched: u64,
    /// They had ended.
    pub reclaimed: u64,
    /// Of these those that nobody had fetched.
    pub expired_unfetched: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.reclaimed += other.reclaimed;
        self.expired_unfetched += other.expired_unfetched;
    }
}

impl std::ops::SubAssign for Counts {
    /// What was counted by another owner may be missing.
    fn sub_assign(&mut self, other: Self) {
        self.evictions = self.evictions.saturating_sub(other.evictions);
        self.evicted_unfetched = self
            .evicted_unfetched
            .saturating_sub(other.evicted_unfetched);
        self.reclaimed = self.reclaimed.saturating_sub(other.reclaimed);
        self.expired_unfetched = self
            .expired_unfetched
            .saturating_sub(other.expired_unfetched);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Went {
    all: Counts,
    of: Box<[Counts; CLASSES]>,
    /// Classes of which some went since this was last asked, as bits.
    changed: u64,
}

impl Default for Went {
    fn default() -> Self {
        Self {
            all: Counts::default(),
            of: Box::new([Counts::default(); CLASSES]),
            changed: 0,
        }
    }
}

impl Went {
    pub(super) fn all(&self) -> Counts {
        self.all
    }

    pub(super) fn of(&self, class: usize) -> Counts {
        self.of[class]
    }

    pub(super) fn take_changed(&mut self) -> u64 {
        std::mem::take(&mut self.changed)
    }

    /// An item made room for others.
    pub(super) fn note_evicted(&mut self, class: usize, was_hit: bool) {
        self.note(
            class,
            Counts {
                evictions: 1,
                evicted_unfetched: u64::from(!was_hit),
                ..Counts::default()
            },
        );
    }

    /// An item that had ended was removed.
    pub(super) fn note_reclaimed(&mut self, class: usize, was_hit: bool) {
        self.note(
            class,
            Counts {
                reclaimed: 1,
                expired_unfetched: u64::from(!was_hit),
                ..Counts::default()
            },
        );
    }

    fn note(&mut self, class: usize, counts: Counts) {
        self.all += counts;
        self.of[class] += counts;
        self.changed |= 1 << class;
    }
}
