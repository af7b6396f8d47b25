//! Mistakes made on purpose, to prove that the simulator's checks find them.
//! See [`cenote_pool::injected_faults`](mod@cenote_pool::injected_faults).

cenote_pool::injected_faults! {
    /// A mistake that the rules of the group exist to prevent.
    enum InjectedFault
    /// Every mistake of a group, by the name that people use.
    const ALL {
        /// A parity picks the place of a value itself when it applies the operation.
        ChooseAtApply = "choose-at-apply",
        /// Known data are subtracted from the parity itself, not from a copy.
        ResidualInPlace = "residual-in-place",
        /// A parity takes operations of the view before the one that it has reported in.
        NoFence = "no-fence",
        /// Reads are served without asking the parities, and at once by who recovers.
        NoLease = "no-lease",
        /// Units are asked for before every parity has applied what is stable.
        UnitsBeforeSettled = "units-before-settled",
        /// Units come on another way than operations, and nobody compares how old they are.
        UnitsOvertake = "units-overtake",
        /// A parity that joins is not sent what is under way.
        JoinWithoutInFlight = "join-without-in-flight",
        /// The acknowledgement of a parity that joins is not waited for, and counts when another recovers.
        JoinUncounted = "join-uncounted",
        /// A partition is handed over while operations are under way.
        HandOverUndrained = "hand-over-undrained",
        /// The parity that has held a partition's data counts as a parity right after it.
        SpentAsFull = "spent-as-full",
        /// A unit that comes late goes over what has been written since.
        LateDataOverwrites = "late-data-overwrites",
        /// A read that waited for units goes on with the address that it found before.
        StaleAddress = "stale-address",
        /// What an operation frees is looked up when it is proposed.
        OldAtIssue = "old-at-issue",
        /// An owner that lets a partition go reads on for as long as its lease lasts.
        LeaseKept = "lease-kept",
        /// Changes of values that a handoff target has been told do not reach it.
        HandoffOutdated = "handoff-outdated",
        /// What was lost counts as zeroes in parities that were made of it.
        LostAsZero = "lost-as-zero",
        /// An owner that changes places with a parity does not add its values to what it has of that.
        UnfoldedExchange = "unfolded-exchange",
        /// The same of what is written while it adds them.
        FoldOutdated = "fold-outdated",
    }
}
