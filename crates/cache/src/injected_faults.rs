//! Mistakes made on purpose, to prove that the simulator of caches finds them.
//! See [`cenote_pool::injected_faults`](mod@cenote_pool::injected_faults).

cenote_pool::injected_faults! {
    /// A mistake that the rules of the cache exist to prevent.
    enum InjectedFault
    /// Every mistake, by the name that people use.
    const ALL {
        /// A client writes to a region that moves.
        WriteDuringMove = "write-during-move",
        /// A client says that its writes have ended while some are under way.
        NoDrain = "no-drain",
        /// The owner does not wait until its clients know what holds.
        NoBarrier = "no-barrier",
        /// A copy that was left goes on being read, and its memory is kept for that.
        StaleServed = "stale-served",
        /// The table is flipped before the copy.
        FlipBeforeCopy = "flip-before-copy",
        /// A new copy is read before it is filled.
        ReadBeforeFilled = "read-before-filled",
        /// A write is acknowledged when its first copy has it.
        AckFirstCopy = "ack-first-copy",
        /// Writes that waited for a move go in the wrong order.
        QueueReordered = "queue-reordered",
        /// Writes that waited for a move are acknowledged and dropped.
        QueueDropped = "queue-dropped",
        /// A write that failed counts as done.
        ErrorAsAck = "error-as-ack",
        /// Clients are not told that a region lost its bytes.
        LossUntold = "loss-untold",
        /// Two copies are put on one failure domain.
        SameDomain = "same-domain",
        /// A client goes on with what it was told after its lease.
        LeaseIgnored = "lease-ignored",
        /// Windows are not renewed when a client is gone, nor copies made equal.
        NoFence = "no-fence",
        /// Copies that may differ are left so.
        CopiesDiverge = "copies-diverge",
        /// A write whose connection broke is done again at once, beside what may still land of it.
        RedoneUnfenced = "redone-unfenced",
        /// Hosts that answer nothing are waited for.
        WaitForEver = "wait-for-ever",
        /// An owner goes on although another may have followed, and hosts say so.
        SupersededGoesOn = "superseded-goes-on",
        /// Two hosts that do not reach each other are tried again at once, for ever.
        ApartForgotten = "apart-forgotten",
        /// Copies that cannot be made equal count as equal.
        ApartTakenForEqual = "apart-taken-for-equal",
        /// A region whose copies differ is sure as soon as there is memory for another copy.
        SureTooSoon = "sure-too-soon",
        /// Of copies that cannot be made equal the second is replaced, also where no host reaches the
        /// first.
        PartedFromFirst = "parted-from-first",
        /// A host that leaves waits for a copy of the other one, which no host reaches.
        LeavingFirst = "leaving-first",
    }
}
