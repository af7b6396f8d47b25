//! Forca: reads go through the server, which verifies a version and makes it durable when it is read.

use super::{Durable, GetStep, Named, PutStep, Scheme};

/// What was read is durable; each GET costs the server a call, and a checksum until it was right once.
#[derive(Clone, Copy, Debug)]
pub struct Forca {
    /// Whether a version that was right once is not verified again, as the authors' code does. In the
    /// paper's breakdown each GET verifies.
    pub memo: bool,
}

impl Scheme for Forca {
    fn name(&self) -> &'static str {
        match self.memo {
            true => "forca",
            false => "forca-each",
        }
    }

    fn put_steps(&self) -> &'static [PutStep] {
        &[PutStep::CallForSpace, PutStep::Write]
    }

    fn get_steps(&self) -> &'static [GetStep] {
        &[GetStep::CallForPlace, GetStep::ReadObject]
    }

    fn durable(&self) -> Durable {
        Durable::AtFirstRead
    }

    fn named(&self) -> Named {
        Named::AtAllocation
    }

    fn verifies_each_read(&self) -> bool {
        !self.memo
    }
}
