//! Faults injected on purpose, to prove that the simulator's checks find them.

/// Makes a list of mistakes that can be injected: an enum, names for people, and what asks and injects.
///
/// Without the feature `injected-faults` of the crate that calls it every question is answered "no"
/// at compile time and the hooks vanish. With it one mistake at a time is chosen per thread, at run
/// time.
#[macro_export]
macro_rules! injected_faults {
    (
        $(#[$of:meta])*
        enum $InjectedFault:ident
        $(
            $(#[$of_list:meta])*
            const $LIST:ident { $($(#[$of_one:meta])* $Mistake:ident = $name:literal,)* }
        )*
    ) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[non_exhaustive]
        pub enum $InjectedFault {
            $($($(#[$of_one])* $Mistake,)*)*
        }

        $(
            $(#[$of_list])*
            pub const $LIST: [(&str, $InjectedFault); [$($name),*].len()] =
                [$(($name, $InjectedFault::$Mistake)),*];
        )*

        /// Whether this thread's code is to make the mistake.
        #[inline(always)]
        #[must_use]
        pub fn is_injected(mistake: $InjectedFault) -> bool {
            #[cfg(feature = "injected-faults")]
            return CHOSEN.get() == Some(mistake);
            #[cfg(not(feature = "injected-faults"))]
            {
                let _ = mistake;
                false
            }
        }

        /// Chooses the mistake of this thread.
        #[cfg(feature = "injected-faults")]
        pub fn inject(mistake: Option<$InjectedFault>) {
            CHOSEN.set(mistake);
        }

        #[cfg(feature = "injected-faults")]
        thread_local! {
            static CHOSEN: std::cell::Cell<Option<$InjectedFault>> = const { std::cell::Cell::new(None) };
        }
    };
}

injected_faults! {
    /// A mistake that this project's rules exist to prevent.
    enum InjectedFault
    /// Every fault of this crate's users, by the name that people use.
    const ALL {
        /// A worker keeps using the directory that it knows while others acknowledge without a host.
        StaleSnapshot = "stale-snapshot",
        /// Two writers work on one page at the same time.
        TwoWriters = "two-writers",
        /// A write is acknowledged with its data splits alone.
        AckAtK = "ack-at-k",
        /// A chunk is rebuilt while writers may enter it.
        NoFence = "no-fence",
        /// A chunk is rebuilt while writers from before the fence are still in it.
        NoDrain = "no-drain",
        /// A chunk that a write went into while it was rebuilt counts as rebuilt.
        KeepVoid = "keep-void",
        /// A slab is published before it is filled.
        PublishEarly = "publish-early",
        /// What is under way to a host is forgotten when the host is reached again.
        ForgetInFlight = "forget-in-flight",
        /// Splits of a slab that is still being filled are read.
        DecodeStale = "decode-stale",
        /// A verb that failed counts as done.
        ErrorAsAck = "error-as-ack",
        /// A read that met a writer is not taken again.
        TornRead = "torn-read",
        /// A discarded page still reads as it was.
        LateBit = "late-bit",
        /// A slab goes to its next client with its former bytes.
        NoZero = "no-zero",
        /// A host takes back slabs that its clients use.
        EvictUnasked = "evict-unasked",
        /// A slab that is asked back goes before its client is done with it.
        FreeBeforeDone = "free-before-done",
        /// A slab whose client lost its lease goes to the next one before its window is closed.
        ReuseOpen = "reuse-open",
        /// A host asks for more slabs without counting those that are on their way back already.
        AskTwice = "ask-twice",
        /// A stripe whose group has no host left for a lost slab stays without it.
        StayInside = "stay-inside",
        /// A slab is given back while workers may still use it.
        GiveBackUnsettled = "give-back-unsettled",
        /// A write is acknowledged before the journal says which slabs it is on.
        JournalLate = "journal-late",
        /// A slab that missed writes stays in the journal.
        KeepStale = "keep-stale",
        /// Pages that the last owner was writing count as sound.
        ForgetListed = "forget-listed",
        /// Pages whose last write ended unknown, or that were lost, are decoded from whatever splits are there.
        MendByParity = "mend-by-parity",
        /// Writes that the last owner did not end are not redone.
        SkipRedo = "skip-redo",
        /// What a page under way will be is not noted for the next owner.
        StaleImage = "stale-image",
        /// A write that goes on without its late splits shares its place in the list with whatever comes next.
        ShareSlot = "share-slot",
        /// Slabs pass to the next owner under the generations that the last one knew.
        NoRenew = "no-renew",
        /// A slab that its client takes back after its session ended has the name that it had.
        RetakeUnrenewed = "retake-unrenewed",
        /// Splits that are read are not compared.
        SkipCompare = "skip-compare",
        /// Of splits that disagree another one is taken for wrong.
        HealWrong = "heal-wrong",
        /// A page is not asked for its checksum.
        SkipTag = "skip-tag",
        /// Slabs are rebuilt from as few sources as it takes, though the pages' tags tell which are right.
        BelieveSources = "believe-sources",
        /// Bits of pages are cleared while writes that set them are under way.
        EarlyClear = "early-clear",
        /// A read of the disk does not wait for writes that come before it.
        DiskOvertakes = "disk-overtakes",
        /// A buffer is used again while the disk refers to it.
        FreeEarly = "free-early",
        /// Of writes of a page that wait for the disk, an older one is the last to get there.
        DiskReorders = "disk-reorders",
        /// That the disk refused a page is not noted: it is read from there once its slabs are gone.
        ForgetRefusal = "forget-refusal",
        /// What a read did not wait for lands after its end.
        LateSplitLands = "late-split-lands",
        /// The page of a write that is acknowledged early is given back before the write has landed.
        ReleaseEarly = "release-early",
        /// A read of a page in flight uses splits that have not landed.
        ReadUnlanded = "read-unlanded",
        /// A read of a page in flight does not look whether another write began meanwhile.
        ReadOvertaken = "read-overtaken",
        /// The next owner takes a page whose write was acknowledged early for one whose was not.
        ForgetEarly = "forget-early",
        /// A write does without slabs that its extent is yet to give up.
        AheadOfStripe = "ahead-of-stripe",
        /// As many parities are made of a page as the volume's scheme has, not its extent.
        EncodeByScheme = "encode-by-scheme",
        /// A page counts as moved to its new cut before every member has it.
        SkipLayoutBit = "skip-layout-bit",
        /// A page is moved to its new cut while others write it.
        MoveOverNewer = "move-over-newer",
        /// The next owner looks for every page where it was before the change of k began.
        ForgetLayouts = "forget-layouts",
        /// An extent that lost more than it survives stays lost.
        LeaveLost = "leave-lost",
        /// An extent is given up when it can lose nothing more, and not only when it has.
        DespairEarly = "despair-early",
        /// A slab that is of no use any more is forgotten and not given back.
        KeepSlabs = "keep-slabs",
        /// What a host says that its client holds there is not compared with what the client knows.
        ForgetHeld = "forget-held",
        /// A host's process leaves the next one a slab less than it has lent.
        ForgetSlab = "forget-slab",
        /// A write that the disk alone took leaves the page to slabs that are away and will be back.
        KeepBitAway = "keep-bit-away",
        /// A write that failed at its hosts and that the disk took leaves the page to its slabs.
        KeepBitFailed = "keep-bit-failed",
        /// A write that the disk alone was to take, and refused, takes the page from its slabs.
        ClearBitRefused = "clear-bit-refused",
        /// A page counts as on all its slabs while one of them is away.
        MarkWhileUnreachable = "mark-while-unreachable",
    }
}
