//! One client's operation: which step of its scheme it is at, and what it knows so far.
//!
//! The steps are those of `cenote_store::schemes`; what each costs and what it waits for is the
//! world's business.

use cenote_store::schemes::{GetStep, PutStep, Scheme};

use super::tally::{Ended, Kind, Taken};
use super::versions::Version;

/// What is under way.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What it is.
    pub kind: Kind,
    /// Its key.
    pub key: u32,
    /// When it began.
    pub began_ps: u64,
    /// The version that it writes, or that it was told of last.
    pub version: Option<Version>,
    /// What it saw last.
    pub seen: Seen,
    /// Checksums that it waited for.
    pub check_ns: f64,
    /// Copies and flushes that it waited for.
    pub persist_ns: f64,
    step: usize,
    has_called: bool,
}

/// An object as a READ found it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Seen {
    /// All of its value was there.
    pub is_whole: bool,
    /// So was its flag.
    pub is_durable: bool,
}

impl Operation {
    /// At its first step.
    #[must_use]
    pub fn new(kind: Kind, key: u32, now_ps: u64) -> Self {
        Self {
            kind,
            key,
            began_ps: now_ps,
            version: None,
            seen: Seen {
                is_whole: true,
                is_durable: true,
            },
            check_ns: 0.0,
            persist_ns: 0.0,
            step: 0,
            has_called: false,
        }
    }

    /// The step that it is at; none: it is done.
    #[must_use]
    pub fn step(&self, scheme: &dyn Scheme) -> Option<Taken> {
        match self.kind {
            Kind::Put => scheme.put_steps().get(self.step).copied().map(Taken::Put),
            Kind::Get => scheme.get_steps().get(self.step).copied().map(Taken::Get),
        }
    }

    /// Goes on to the next one.
    pub fn next(&mut self) {
        self.step += 1;
    }

    /// Reads the object again, of the version before: it is at the check behind a READ.
    pub fn again(&mut self, older: Version) {
        self.version = Some(older);
        self.step -= 1;
    }

    /// Goes on to the call, where the scheme has one behind the step that it is at.
    pub fn skip_to_call(&mut self, scheme: &dyn Scheme) {
        let steps = scheme.get_steps();
        let call = steps.iter().position(|step| *step == GetStep::CallForPlace);
        if self.kind == Kind::Get {
            self.step = call.unwrap_or(self.step);
        }
    }

    /// Nothing more is to be done: what it saw will do.
    pub fn finish(&mut self) {
        self.step = usize::MAX;
    }

    /// Notes that it called the server.
    pub fn note_call(&mut self) {
        self.has_called = true;
    }

    /// How it went.
    #[must_use]
    pub fn ended(&self, now_ps: u64) -> Ended {
        let is_get = self.kind == Kind::Get;
        Ended {
            kind: self.kind,
            took_ps: now_ps - self.began_ps,
            check_ns: self.check_ns,
            persist_ns: self.persist_ns,
            has_called: is_get && self.has_called,
            is_torn: is_get && !self.seen.is_whole,
            is_undurable: is_get && !self.seen.is_durable,
        }
    }
}

/// Whether a step's verb is posted without waiting for its completion, since the next step's
/// follows on the same connection or is the server's answer to it.
#[must_use]
pub fn is_pipelined(step: PutStep, next: Option<Taken>) -> bool {
    match step {
        PutStep::WriteImmediate | PutStep::Send => true,
        PutStep::Write => next == Some(Taken::Put(PutStep::Send)),
        PutStep::CallForSpace | PutStep::CallWithValue | PutStep::AwaitAck => false,
    }
}
