//! Mistakes injected on purpose, to prove that the crash tests find them.

cenote_pool::injected_faults! {
    /// A mistake that the order of writes, fences and checks exists to prevent.
    enum InjectedFault
    /// Each of them, by the name that people use.
    const MISTAKES {
        /// The flag is set before the value is written back.
        FlagBeforeValue = "flag-before-value",
        /// No fence between the value and the flag.
        NoFenceBeforeFlag = "no-fence-before-flag",
        /// A value that was copied into the log ahead of its group is not written back.
        TakenNotWrittenBack = "taken-not-written-back",
        /// A new version's header is not written back.
        HeaderNotWrittenBack = "header-not-written-back",
        /// What an earlier object left is taken for a version's flag.
        AnyFlagCounts = "any-flag-counts",
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
        /// Recovery takes what an earlier life left behind the log's end for a part of it.
        IncarnationIgnored = "incarnation-ignored",
        /// A read tells a verified value that is not durable.
        ReadNotPersisted = "read-not-persisted",
        /// The index names a version before it is durable, under schemes whose readers go by that.
        NamedTooEarly = "named-too-early",
        /// A client reads the value before the flag.
        ValueBeforeFlag = "value-before-flag",
        /// A client reads flag and value in one READ.
        FlagInOneRead = "flag-in-one-read",
        /// A client does not look whether what it read was overwritten meanwhile.
        EpochUnread = "epoch-unread",
        /// A sequence number is used again after a crash.
        SequenceReused = "sequence-reused",
        /// A half of the log counts as empty although copies of what it held are not fenced.
        CopyUnfenced = "copy-unfenced",
        /// A half of the log counts as empty although versions there wait for their values.
        EmptiedTooEarly = "emptied-too-early",
        /// Cleaning copies what is not the newest version.
        OldVersionCopied = "old-version-copied",
        /// A change goes by the version below one whose value is on its way, or is not named yet.
        UnwrittenPassedOver = "unwritten-passed-over",
        /// A change of an object with copies is told once the first store has it.
        CopyAcknowledgedFirst = "copy-acknowledged-first",
        /// A store takes a copy whatever it has by now.
        CopyUnconditional = "copy-unconditional",
        /// A copy replaces one of a larger number.
        CopyOverNewer = "copy-over-newer",
        /// A change that its client left on its way is not brought to the end by who meets it.
        CopyLeftBehind = "copy-left-behind",
    }
}
