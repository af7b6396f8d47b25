//! Mistakes injected on purpose, to prove that the model test finds them.

cenote_pool::injected_faults! {
    /// A mistake that the rules of [`Pages`](crate::Pages) and of [`Rooms`](crate::Rooms) exist to
    /// prevent.
    enum InjectedFault
    /// Each of them, by the name that people use.
    const MISTAKES {
        /// A page goes without a write although the program changed it.
        DirtyDropped = "dirty-dropped",
        /// A page goes as soon as its write has begun.
        DroppedBeforeWritten = "dropped-before-written",
        /// A page goes that was changed while it was being written.
        RedirtiedDropped = "redirtied-dropped",
        /// A page is not protected while it is copied for a write.
        NotProtected = "not-protected",
        /// A page that was read for a look ahead is installed as if it were not stored.
        PrefetchForgotten = "prefetch-forgotten",
        /// What was read before a discard is installed after it.
        StaleInstalled = "stale-installed",
        /// A page whose write failed counts as written.
        FailedWriteCounted = "failed-write-counted",
        /// A page that cannot be read becomes zeros.
        LostAsZeros = "lost-as-zeros",
        /// A lost page that can be read again stays poisoned.
        PoisonKept = "poison-kept",
        /// A page that is to get zeros may be chosen to go before it has them.
        ZerosUnawaited = "zeros-unawaited",
        /// A page that is all zeros is not written, although other bytes of it are stored.
        ZerosNotWritten = "zeros-not-written",
        /// A program's write to a protected page is let through without being noted.
        WriteUnseen = "write-unseen",
        /// A second thread that waits for the same page is not woken.
        WaiterForgotten = "waiter-forgotten",
        /// Pages are fetched although there is no room for them.
        BoundIgnored = "bound-ignored",
        /// A shard gets room that another has not given up.
        RoomGivenTwice = "room-given-twice",
    }
}
