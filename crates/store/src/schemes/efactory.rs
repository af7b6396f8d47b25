//! eFactory: written by the client, made durable behind its back, read one-sided once it is durable.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// Acknowledged is not durable yet; read is.
#[derive(Clone, Copy, Debug)]
pub struct EFactory;

impl Scheme for EFactory {
    fn name(&self) -> &'static str {
        "efactory"
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[PutStep::CallForSpace, PutStep::Write]
    }

    fn get_steps(&self) -> &'static [GetStep] {
        &[
            GetStep::ReadEntry,
            GetStep::ReadObject,
            GetStep::UnlessDurable,
            GetStep::CallForPlace,
            GetStep::ReadObject,
        ]
    }

    fn durable(&self) -> Durable {
        Durable::InBackground
    }

    fn named(&self) -> Named {
        Named::AtAllocation
    }

    fn lands_beside_log(&self) -> bool {
        true
    }
}
