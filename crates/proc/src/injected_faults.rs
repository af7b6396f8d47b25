//! Mistakes made on purpose, to prove that the checks of moves find them; see `executor/tests`.
//!
//! Without the feature `injected-faults` every question is answered "no" at compile time.

/// A mistake that the rules of a move exist to prevent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum InjectedFault {
    /// A procedure writes to a region while it is copied.
    WriteLeaving,
    /// A machine goes on with its own bytes of a region that went away (R2).
    ServeOld,
    /// An older word about a region replaces a newer one (R1).
    OldWord,
    /// A stale request is forwarded however often it was.
    ForwardTwice,
    /// A request whose fetch was refused is never taken up again (R3).
    ForgetInactive,
    /// A machine that leaves keeps the requests that wait for bytes (R3).
    LeaveInactive,
    /// Bytes that come in two pieces count as whole after the first.
    HalfData,
    /// A word about a region wakes nobody who waits for it.
    SleepOn,
    /// A request that moved away is answered by the machine that it left, too.
    AnswerTwice,
    /// What was loaded counts, however late that was.
    LateLoad,
    /// A store counts whose copy may have ended too late.
    LateStore,
    /// Another machine gets bytes that were loaded too late.
    LateFetch,
    /// A store is in the first copy, and answered, before the second has it.
    FirstFirst,
    /// A store of which nobody knows whether the second copy has it counts as never made.
    ForgetDoubt,
    /// A second copy takes stores of a machine that goes by an older word.
    StaleSecond,
    /// A machine goes by a word while stores from before it are on their way.
    HastyWord,
    /// A step finds the first copy as it is, without what steps before it stored.
    BlindStep,
    /// A newer word ends a doubt, though no window was renewed.
    HastyTrust,
    /// Stores are sent before the owner knows that there are any.
    UnsaidStore,
}

#[cfg(feature = "injected-faults")]
thread_local! {
    static INJECTED: std::cell::Cell<Option<InjectedFault>> = const { std::cell::Cell::new(None) };
}

/// Makes one mistake from now on, on this thread; or none.
#[cfg(feature = "injected-faults")]
pub fn inject(mistake: Option<InjectedFault>) {
    INJECTED.set(mistake);
}

#[cfg(feature = "injected-faults")]
pub(crate) fn is(mistake: InjectedFault) -> bool {
    INJECTED.get() == Some(mistake)
}

#[cfg(not(feature = "injected-faults"))]
pub(crate) const fn is(_: InjectedFault) -> bool {
    false
}
