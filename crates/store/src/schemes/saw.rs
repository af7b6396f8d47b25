//! Send after write: a message behind the WRITE has the server flush the value, then it answers.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// Acknowledged is durable; PUTs wait for the server's processor twice.
#[derive(Clone, Copy, Debug)]
pub struct Saw;

impl Scheme for Saw {
    fn name(&self) -> &'static str {
        "saw"
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[
            PutStep::CallForSpace,
            PutStep::Write,
            PutStep::Send,
            PutStep::AwaitAck,
        ]
    }

    fn get_steps(&self) -> &'static [GetStep] {
        &[GetStep::ReadEntry, GetStep::ReadObject]
    }

    fn durable(&self) -> Durable {
        Durable::BeforeAck
    }

    fn named(&self) -> Named {
        Named::WhenDurable
    }
}
