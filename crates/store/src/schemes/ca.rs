//! Client-active without persistence: space by a call, the value by a WRITE, and nobody makes it durable.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// What the network allows at best. A read may find a value that is not, or only partly, there.
#[derive(Clone, Copy, Debug)]
pub struct Ca;

impl Scheme for Ca {
    fn name(&self) -> &'static str {
        "ca"
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[PutStep::CallForSpace, PutStep::Write]
    }

    fn get_steps(&self) -> &'static [GetStep] {
        &[GetStep::ReadEntry, GetStep::ReadObject]
    }

    fn durable(&self) -> Durable {
        Durable::Never
    }

    fn named(&self) -> Named {
        Named::AtAllocation
    }
}
