//! The reference: the value travels in the call, and the server does everything before it answers.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// Acknowledged is durable; each PUT costs the server a copy and a flush.
#[derive(Clone, Copy, Debug)]
pub struct Rpc;

impl Scheme for Rpc {
    fn name(&self) -> &'static str {
        "rpc"
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[PutStep::CallWithValue]
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
