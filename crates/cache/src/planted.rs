//! Mistakes made on purpose, to prove that the simulator of caches finds them.
//!
//! Without the feature `planted` every question is answered "no" at compile time and the hooks
//! vanish. With it one mistake at a time is chosen per thread, at run time.

/// A mistake that the rules of the cache exist to prevent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Planted {
    /// A client writes to a region that moves.
    WriteDuringMove,
    /// A client says that its writes have ended while some are under way.
    NoDrain,
    /// The owner does not wait until its clients know what holds.
    NoBarrier,
    /// A copy that was left goes on being read, and its memory is kept for that.
    StaleServed,
    /// The table is flipped before the copy.
    FlipBeforeCopy,
    /// A new copy is read before it is filled.
    ReadBeforeFilled,
    /// A write is acknowledged when its first copy has it.
    AckFirstCopy,
    /// Writes that waited for a move go in the wrong order.
    QueueReordered,
    /// Writes that waited for a move are acknowledged and dropped.
    QueueDropped,
    /// A write that failed counts as done.
    ErrorAsAck,
    /// Clients are not told that a region lost its bytes.
    LossUntold,
    /// Two copies are put on one failure domain.
    SameDomain,
    /// A client goes on with what it was told after its lease.
    LeaseIgnored,
}

/// Every mistake, by the name that people use.
pub const ALL: [(&str, Planted); 13] = [
    ("write-during-move", Planted::WriteDuringMove),
    ("no-drain", Planted::NoDrain),
    ("no-barrier", Planted::NoBarrier),
    ("stale-served", Planted::StaleServed),
    ("flip-before-copy", Planted::FlipBeforeCopy),
    ("read-before-filled", Planted::ReadBeforeFilled),
    ("ack-first-copy", Planted::AckFirstCopy),
    ("queue-reordered", Planted::QueueReordered),
    ("queue-dropped", Planted::QueueDropped),
    ("error-as-ack", Planted::ErrorAsAck),
    ("loss-untold", Planted::LossUntold),
    ("same-domain", Planted::SameDomain),
    ("lease-ignored", Planted::LeaseIgnored),
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
