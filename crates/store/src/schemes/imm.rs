//! WRITE with immediate, as Orion does: the completion tells the server to flush, then it answers.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// As send after write, with one message less.
#[derive(Clone, Copy, Debug)]
pub struct Imm;

impl Scheme for Imm {
    fn name(&self) -> &'static str {
        "imm"
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[
            PutStep::CallForSpace,
            PutStep::WriteImmediate,
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
