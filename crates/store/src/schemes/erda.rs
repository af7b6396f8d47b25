//! Erda: the index word names the newest version at once, and readers verify what they read.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// Readers pay for a checksum each time; what was read may still be lost by a crash.
#[derive(Clone, Copy, Debug)]
pub struct Erda;

impl Scheme for Erda {
    fn name(&self) -> &'static str {
        "erda"
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[PutStep::CallForSpace, PutStep::Write]
    }

    fn get_steps(&self) -> &'static [GetStep] {
        &[GetStep::ReadEntry, GetStep::ReadObject, GetStep::CheckValue]
    }

    fn durable(&self) -> Durable {
        Durable::Never
    }

    fn named(&self) -> Named {
        Named::AtAllocation
    }
}
