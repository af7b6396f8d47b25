//! Mistakes made on purpose, to prove that the tests of the log store find them.
//! See [`cenote_pool::injected_faults`](mod@cenote_pool::injected_faults).

cenote_pool::injected_faults! {
    /// A mistake that the rules of the log store exist to prevent.
    enum InjectedFault
    /// Every mistake, by the name that people use.
    const ALL {
        /// A page waits for `commit_point + 1` tiers though fewer of them hold it.
        TierCountdown = "tier-countdown",
        /// Whole pages behind the last cut count, up to the first that is torn.
        TornTail = "torn-tail",
        /// Records are changed in place although their page is read-only.
        InPlaceReadOnly = "in-place-read-only",
        /// The index of a checkpoint is taken after its cut, and is not rolled back to it.
        IndexAhead = "index-ahead",
        /// The index of a checkpoint is not brought forward with the log behind it.
        NoReplay = "no-replay",
        /// What stands behind the cut that was recovered to is left in the file.
        StaleTail = "stale-tail",
        /// Space is given back before the checkpoint that no longer needs it is on the disk.
        PunchEarly = "punch-early",
        /// A commit does not wait for the disk to have synced.
        NoSync = "no-sync",
        /// Compaction drops records whose key has another record before it in the chain.
        ChainForgotten = "chain-forgotten",
        /// A read below the head takes the first record of the chain without comparing the key.
        KeyUnchecked = "key-unchecked",
        /// A tier with a hole goes on as if it held what it failed to write.
        HoleServed = "hole-served",
        /// A remote tier goes on with the pages of a region that was lost.
        LossIgnored = "loss-ignored",
        /// A remote tier reads a page's place whatever page has it.
        PlaceUnchecked = "place-unchecked",
        /// What a read returns from a tier is not checked.
        SkipChecksum = "skip-checksum",
        /// A merge below the head does not look whether the key was written meanwhile.
        MergeOverNewer = "merge-over-newer",
        /// A record that was read from a tier goes in front of what was written meanwhile.
        CopyOverNewer = "copy-over-newer",
        /// Who replaces a record leaves the old one open for changes in place.
        NoSeal = "no-seal",
    }
}
