//! Faults planted on purpose, to prove that the simulator's checks find them.
//!
//! Without the feature `planted` every question is answered "no" at compile time and the
//! hooks vanish. With it one fault at a time is chosen per thread, at run time.

/// A mistake that this project's rules exist to prevent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Planted {
    /// A worker keeps using the directory that it knows while others acknowledge without a host.
    StaleSnapshot,
    /// Two writers work on one page at the same time.
    TwoWriters,
    /// A write is acknowledged with its data splits alone.
    AckAtK,
    /// A chunk is rebuilt while writers may enter it.
    NoFence,
    /// A chunk is rebuilt while writers from before the fence are still in it.
    NoDrain,
    /// A chunk that a write went into while it was rebuilt counts as rebuilt.
    KeepVoid,
    /// A slab is published before it is filled.
    PublishEarly,
    /// What is under way to a host is forgotten when the host is reached anew.
    ForgetInFlight,
    /// Splits of a slab that is still being filled are read.
    DecodeStale,
    /// A verb that failed counts as done.
    ErrorAsAck,
    /// A read that met a writer is not taken again.
    TornRead,
    /// A discarded page still reads as it was.
    LateBit,
    /// A slab goes to its next client with its former bytes.
    NoZero,
    /// A host takes back slabs that its clients use.
    EvictUnasked,
    /// A slab that is asked back goes before its client is done with it.
    FreeBeforeDone,
    /// A slab whose client lost its lease is freed before its window is closed.
    DoubleFree,
    /// A write is acknowledged before the journal says which slabs it is on.
    JournalLate,
    /// A slab that missed writes stays in the journal.
    KeepStale,
    /// Pages that the last owner was writing count as sound.
    ForgetListed,
    /// Pages whose last write ended unknown, or that were lost, are decoded from whatever splits are there.
    MendByParity,
    /// Writes that the last owner did not end are not redone.
    SkipRedo,
    /// What a page under way will be is not noted for the next owner.
    StaleImage,
    /// A write that goes on without its late splits shares its place in the list with whatever comes next.
    ShareSlot,
    /// Bits of pages are cleared while writes that set them are under way.
    EarlyClear,
    /// A read of the disk does not wait for writes that come before it.
    DiskOvertakes,
    /// A buffer is used again while the disk refers to it.
    FreeEarly,
    /// Splits that are read are not compared.
    SkipCompare,
    /// Of splits that disagree another one is taken for wrong.
    HealWrong,
    /// A page is not asked for its checksum.
    SkipTag,
    /// Slabs are rebuilt from as few sources as it takes, though the pages' tags tell which are right.
    BelieveSources,
    /// Slabs pass to the next owner under the generations that the last one knew.
    NoRenew,
    /// What a read did not wait for lands after its end.
    LateSplitLands,
    /// The page of a write that is acknowledged early is given back before the write has landed.
    ReleaseEarly,
    /// A read of a page in flight uses splits that have not landed.
    ReadUnlanded,
    /// A read of a page in flight does not look whether another write began meanwhile.
    ReadOvertaken,
    /// The next owner takes a page whose write was acknowledged early for one whose was not.
    ForgetEarly,
    /// A write does without slabs that its extent is yet to give up.
    AheadOfStripe,
    /// As many parities are made of a page as the volume's scheme has, not its extent.
    EncodeByScheme,
    /// A page counts as moved to its new cut before every member has it.
    SkipSideMark,
    /// A page is moved to its new cut while others write it.
    MoveOverNewer,
    /// The next owner looks for every page where it was before the change of k began.
    ForgetSides,
    /// An extent that lost more than it survives stays lost.
    LeaveLost,
    /// An extent is given up when it can lose nothing more, and not only when it has.
    DespairEarly,
    /// A slab that is of no use any more is forgotten and not given back.
    KeepSlabs,
    /// What a host says that its client holds there is not compared with what the client knows.
    ForgetHeld,
}

/// Every fault of this crate's users, by the name that people use.
pub const ALL: [(&str, Planted); 45] = [
    ("stale-snapshot", Planted::StaleSnapshot),
    ("two-writers", Planted::TwoWriters),
    ("ack-at-k", Planted::AckAtK),
    ("no-fence", Planted::NoFence),
    ("no-drain", Planted::NoDrain),
    ("keep-void", Planted::KeepVoid),
    ("publish-early", Planted::PublishEarly),
    ("forget-in-flight", Planted::ForgetInFlight),
    ("decode-stale", Planted::DecodeStale),
    ("error-as-ack", Planted::ErrorAsAck),
    ("torn-read", Planted::TornRead),
    ("late-bit", Planted::LateBit),
    ("no-zero", Planted::NoZero),
    ("evict-unasked", Planted::EvictUnasked),
    ("free-before-done", Planted::FreeBeforeDone),
    ("double-free", Planted::DoubleFree),
    ("journal-late", Planted::JournalLate),
    ("keep-stale", Planted::KeepStale),
    ("forget-listed", Planted::ForgetListed),
    ("mend-by-parity", Planted::MendByParity),
    ("skip-redo", Planted::SkipRedo),
    ("stale-image", Planted::StaleImage),
    ("share-slot", Planted::ShareSlot),
    ("no-renew", Planted::NoRenew),
    ("skip-compare", Planted::SkipCompare),
    ("heal-wrong", Planted::HealWrong),
    ("skip-tag", Planted::SkipTag),
    ("believe-sources", Planted::BelieveSources),
    ("early-clear", Planted::EarlyClear),
    ("disk-overtakes", Planted::DiskOvertakes),
    ("free-early", Planted::FreeEarly),
    ("late-split-lands", Planted::LateSplitLands),
    ("release-early", Planted::ReleaseEarly),
    ("read-unlanded", Planted::ReadUnlanded),
    ("read-overtaken", Planted::ReadOvertaken),
    ("forget-early", Planted::ForgetEarly),
    ("ahead-of-stripe", Planted::AheadOfStripe),
    ("encode-by-scheme", Planted::EncodeByScheme),
    ("skip-side-mark", Planted::SkipSideMark),
    ("move-over-newer", Planted::MoveOverNewer),
    ("forget-sides", Planted::ForgetSides),
    ("leave-lost", Planted::LeaveLost),
    ("despair-early", Planted::DespairEarly),
    ("keep-slabs", Planted::KeepSlabs),
    ("forget-held", Planted::ForgetHeld),
];

/// Whether this thread's code is to make the mistake.
#[inline(always)]
#[must_use]
pub fn is_planted(fault: Planted) -> bool {
    #[cfg(feature = "planted")]
    return CHOSEN.get() == Some(fault);
    #[cfg(not(feature = "planted"))]
    {
        let _ = fault;
        false
    }
}

/// Chooses the fault of this thread.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Planted>) {
    CHOSEN.set(fault);
}

#[cfg(feature = "planted")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}
