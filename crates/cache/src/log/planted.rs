//! Mistakes made on purpose, to prove that the tests of the log store find them.
//!
//! Without the feature `planted` every question is answered "no" at compile time and the hooks
//! vanish. With it one mistake at a time is chosen per thread, at run time.

/// A mistake that the rules of the log store exist to prevent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Planted {
    /// A page waits for `commit_point + 1` tiers though fewer of them hold it.
    TierCountdown,
    /// Whole pages behind the last cut count, up to the first that is torn.
    TornTail,
    /// Records are changed in place although their page is read-only.
    InPlaceReadOnly,
    /// The index of a checkpoint is taken after its cut, and is not rolled back to it.
    IndexAhead,
    /// The index of a checkpoint is not brought forward with the log behind it.
    NoReplay,
    /// What stands behind the cut that was recovered to is left in the file.
    StaleTail,
    /// Space is given back before the checkpoint that no longer needs it is on the disk.
    PunchEarly,
    /// A commit does not wait for the disk to have synced.
    NoSync,
    /// Compaction drops records whose key has another record before it in the chain.
    ChainForgotten,
    /// A read below the head takes the first record of the chain without comparing the key.
    KeyUnchecked,
    /// A tier with a hole goes on as if it held what it failed to write.
    HoleServed,
    /// What a read returns from a tier is not checked.
    SkipChecksum,
    /// A merge below the head does not look whether the key was written meanwhile.
    MergeOverNewer,
    /// Who replaces a record leaves the old one open for changes in place.
    NoSeal,
}

/// Every mistake, by the name that people use.
pub const ALL: [(&str, Planted); 14] = [
    ("tier-countdown", Planted::TierCountdown),
    ("torn-tail", Planted::TornTail),
    ("in-place-read-only", Planted::InPlaceReadOnly),
    ("index-ahead", Planted::IndexAhead),
    ("no-replay", Planted::NoReplay),
    ("stale-tail", Planted::StaleTail),
    ("punch-early", Planted::PunchEarly),
    ("no-sync", Planted::NoSync),
    ("chain-forgotten", Planted::ChainForgotten),
    ("key-unchecked", Planted::KeyUnchecked),
    ("hole-served", Planted::HoleServed),
    ("skip-checksum", Planted::SkipChecksum),
    ("merge-over-newer", Planted::MergeOverNewer),
    ("no-seal", Planted::NoSeal),
];

/// Whether this thread's code is to make the mistake.
#[inline(always)]
#[must_use]
pub fn is_planted(mistake: Planted) -> bool {
    #[cfg(feature = "planted")]
    return CHOSEN.get() == Some(mistake);
    #[cfg(not(feature = "planted"))]
    {
        let _ = mistake;
        false
    }
}

/// Chooses the mistake of this thread.
#[cfg(feature = "planted")]
pub fn plant(mistake: Option<Planted>) {
    CHOSEN.set(mistake);
}

#[cfg(feature = "planted")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}
