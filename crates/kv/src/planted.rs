//! Mistakes made on purpose, to prove that the simulator's checks find them.
//!
//! Without the feature `planted` every question is answered "no" at compile time and the hooks
//! vanish. With it one mistake at a time is chosen per thread, at run time.

/// A mistake that the rules of the group exist to prevent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Planted {
    /// A parity picks the place of a value itself when it applies the operation.
    ChooseAtApply,
    /// Known data are subtracted from the parity itself, not from a copy.
    ResidualInPlace,
    /// A parity takes operations of the view before the one that it has reported in.
    NoFence,
    /// Reads are served without asking the parities, and at once by who recovers.
    NoLease,
    /// Units are asked for before every parity has applied what is stable.
    UnitsBeforeSettled,
    /// Units come on another way than operations, and nobody compares how old they are.
    UnitsOvertake,
    /// A parity that joins is not sent what is under way.
    JoinWithoutInFlight,
    /// The acknowledgement of a parity that joins is not waited for, and counts when another recovers.
    JoinUncounted,
    /// A partition is handed over while operations are under way.
    HandOverUndrained,
    /// The parity that has held a partition's data counts as a parity right after it.
    SpentAsFull,
    /// A unit that comes late goes over what has been written since.
    LateDataOverwrites,
    /// A read that waited for units goes on with the address that it found before.
    StaleAddress,
    /// What an operation frees is looked up when it is proposed.
    OldAtIssue,
    /// An owner that lets a partition go reads on for as long as its lease lasts.
    LeaseKept,
    /// Changes of values that an heir has been told do not reach it.
    HeirOutdated,
    /// What was lost counts as zeroes in parities that were made of it.
    LostAsZero,
    /// A registration that has run out counts as a death, and what is lost by that is given up.
    ExpiryIsDeath,
    /// A group of whose view nobody is registered begins anew by itself, empty.
    BeginsByItself,
    /// A node serves on, whatever became of its registration.
    NeverCloses,
    /// A node whose lanes stand still stays registered.
    DeafLease,
    /// Two processes of one name may get the same incarnation.
    BlindClaim,
    /// That the store has lost its data is not noticed.
    LossUnseen,
    /// A partition goes to another node for balance, whatever is missing and has just changed.
    HastyBalance,
    /// An owner that changes places with a parity does not add its values to what it has of that.
    UnfoldedExchange,
}

/// Every mistake of a group, by the name that people use.
pub const ALL: [(&str, Planted); 17] = [
    ("choose-at-apply", Planted::ChooseAtApply),
    ("residual-in-place", Planted::ResidualInPlace),
    ("no-fence", Planted::NoFence),
    ("no-lease", Planted::NoLease),
    ("units-before-settled", Planted::UnitsBeforeSettled),
    ("units-overtake", Planted::UnitsOvertake),
    ("join-without-in-flight", Planted::JoinWithoutInFlight),
    ("join-uncounted", Planted::JoinUncounted),
    ("hand-over-undrained", Planted::HandOverUndrained),
    ("spent-as-full", Planted::SpentAsFull),
    ("late-data-overwrites", Planted::LateDataOverwrites),
    ("stale-address", Planted::StaleAddress),
    ("old-at-issue", Planted::OldAtIssue),
    ("lease-kept", Planted::LeaseKept),
    ("heir-outdated", Planted::HeirOutdated),
    ("lost-as-zero", Planted::LostAsZero),
    ("unfolded-exchange", Planted::UnfoldedExchange),
];

/// The same of what is around groups: registrations, views, and etcd.
pub const OF_NODES: [(&str, Planted); 7] = [
    ("expiry-is-death", Planted::ExpiryIsDeath),
    ("begins-by-itself", Planted::BeginsByItself),
    ("never-closes", Planted::NeverCloses),
    ("deaf-lease", Planted::DeafLease),
    ("blind-claim", Planted::BlindClaim),
    ("loss-unseen", Planted::LossUnseen),
    ("hasty-balance", Planted::HastyBalance),
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

/// Chooses the mistake of this thread.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Planted>) {
    CHOSEN.set(fault);
}

#[cfg(feature = "planted")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}
