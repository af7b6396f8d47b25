//! Mistakes made on purpose, to prove that the tests of a cache's service find them.
//! See [`cenote_pool::injected_faults`](mod@cenote_pool::injected_faults).

#[cfg(test)]
mod tests;

cenote_pool::injected_faults! {
    /// A mistake that the rules of the service exist to prevent.
    enum InjectedFault
    /// Every mistake, by the name that people use.
    #[cfg(test)]
    const ALL {
        /// A batch of the journal that is not whole counts as far as it goes.
        TornAccepted = "torn-accepted",
        /// A manager begins under the epoch of the one before it.
        EpochKept = "epoch-kept",
        /// The next manager does not know which hosts are to go.
        NoticeForgotten = "notice-forgotten",
        /// The next manager does not know which regions lost their bytes, so a client that was away
        /// is not told.
        LossUnkept = "loss-unkept",
        /// A region's generation is kept only when it has moved.
        GenerationUnkept = "generation-unkept",
        /// Clients are told of what the disk refused.
        ToldUnkept = "told-unkept",
        /// A lease is granted before the disk has what it depends on.
        LeaseUnkept = "lease-unkept",
        /// A client may say as much as it likes.
        NoAllowance = "no-allowance",
        /// A manager decides and gets machines while nothing proves that it is in charge.
        UnprovenActs = "unproven-acts",
        /// A client that reads no answers may go on asking.
        AnswersUnbounded = "answers-unbounded",
    }
}
