//! Mistakes injected on purpose, to prove that the crash and model tests find them.

cenote_pool::injected_faults! {
    /// A mistake that the order of a file system's steps exists to prevent.
    enum InjectedFault
    /// Each of them, by the name that people use.
    const MISTAKES {
        /// An extent that was given to a file stays on the list of free ones.
        ExtentGivenTwice = "extent-given-twice",
        /// Metadata is committed without a sync of the data that it points at.
        MetadataBeforeData = "metadata-before-data",
        /// A freed extent is given again before the transaction that freed it is durable.
        FreedTooEarly = "freed-too-early",
        /// A write of a part of a new block leaves what the block held before around it.
        HoleShowsOldBytes = "hole-shows-old-bytes",
        /// A file that grows shows what lay behind its former end.
        TailShowsOldBytes = "tail-shows-old-bytes",
        /// Space that was set aside by fallocate is read as if it had been written.
        UnwrittenIsRead = "unwritten-is-read",
        /// A file that was unlinked while it was open is forgotten about by the next mount.
        OrphanForgotten = "orphan-forgotten",
        /// A rename takes the old name away in one transaction and adds the new one in the next.
        RenameInTwo = "rename-in-two",
    }
}
