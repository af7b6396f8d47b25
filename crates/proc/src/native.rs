//! Procedures that are linked into a host.

use std::marker::PhantomData;

use cenote_proc_sdk::{Frame, Memory, Procedure, Verdict};

/// A native procedure without its type; the interface is the one of WebAssembly guests.
pub trait Native: Send + Sync {
    /// Runs a step.
    fn step(&self, memory: &mut dyn Memory, frame: &mut Frame) -> Verdict;
}

/// Any procedure as a native one.
pub(crate) struct Linked<P>(PhantomData<fn() -> P>);

impl<P> Linked<P> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<P: Procedure> Native for Linked<P> {
    fn step(&self, memory: &mut dyn Memory, frame: &mut Frame) -> Verdict {
        P::step(memory, frame)
    }
}
