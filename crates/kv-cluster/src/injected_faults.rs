//! Mistakes made on purpose, to prove that the simulator's checks find them.
//! See [`cenote_pool::injected_faults`](mod@cenote_pool::injected_faults).

cenote_pool::injected_faults! {
    /// A mistake that the rules of nodes exist to prevent: registrations, views, and etcd.
    enum InjectedFault
    /// Every mistake of nodes, by the name that people use.
    const ALL {
        /// A registration that has run out counts as a death, and what is lost by that is given up.
        ExpiryIsDeath = "expiry-is-death",
        /// A group of whose view nobody is registered starts from scratch by itself, empty.
        BeginsByItself = "begins-by-itself",
        /// A node serves on, whatever became of its registration.
        NeverCloses = "never-closes",
        /// A node whose lanes stand still stays registered.
        DeafLease = "deaf-lease",
        /// Two processes of one name may get the same incarnation.
        BlindClaim = "blind-claim",
        /// That the store has lost its data is not noticed.
        LossUnseen = "loss-unseen",
        /// A partition goes to another node for balance, whatever is missing and has just changed.
        HastyBalance = "hasty-balance",
    }
}
