//! Mistakes planted on purpose, to prove that the crash tests find them.

cenote_pool::mistakes! {
    /// A mistake that the order of writes, fences and checks exists to prevent.
    enum Planted
    /// Each of them, by the name that people use.
    const MISTAKES {
        /// The flag is set before the value is written back.
        FlagBeforeValue = "flag-before-value",
        /// No fence between the value and the flag.
        NoFenceBeforeFlag = "no-fence-before-flag",
        /// The index names an object whose header is not durable.
        IndexBeforeHeader = "index-before-header",
        /// A value is told although the index's word is not durable.
        IndexNotWrittenBack = "index-not-written-back",
        /// A value is not verified.
        ChecksumSkipped = "checksum-skipped",
        /// The landing is verified, and copied afterwards.
        CheckedThenCopied = "checked-then-copied",
        /// A version does not name the one before.
        BackLinkNotSet = "back-link-not-set",
        /// Recovery takes a version without its flag unverified.
        RecoveredUnverified = "recovered-unverified",
        /// Recovery looks at the newest version only.
        OldVersionForgotten = "old-version-forgotten",
        /// Recovery forgets deletions.
        DeletionForgotten = "deletion-forgotten",
        /// Recovery lets the log go on before its last object.
        TailTooEarly = "tail-too-early",
        /// A read tells a verified value that is not durable.
        ReadNotPersisted = "read-not-persisted",
        /// A sequence number is used again after a crash.
        SequenceReused = "sequence-reused",
        /// Cleaning has the index name copies that are not written.
        FlipBeforeCopy = "flip-before-copy",
        /// No fence between a copy and what names it.
        CopyUnfenced = "copy-unfenced",
        /// A half of the log counts as empty while words may lead there.
        EmptiedTooEarly = "emptied-too-early",
        /// Cleaning forgets the numbers of versions that it drops.
        NumbersForgotten = "numbers-forgotten",
    }
}
