//! The path of a configuration with server threads: many requests in a message.
//!
//! Requests are packed until the batch has b of them, or until `flush`; q batches are under way at
//! most. The server thread carries a batch out and answers it with one message. What a read asked
//! for is copied out of the answer into the caller's buffer.
//!
//! Paper: \[redy22\] configuration (c, s, b, q) with s > 0.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::os::fd::RawFd;

use cenote_fabric::calls::{CALLS_UNDER_WAY_MAX, Caller};
use cenote_fabric::{RemoteWindow, Status, Time};
use cenote_pool::batch::{Answers, BatchWriter, OPERATION_BYTES_MAX, Outcome};

use super::{Completion, Failure, Full, Loss, Operation, Path, Refusal, Token, UnderWay, outcome};

/// Batches of requests over one connection to a server thread.
pub struct Batched {
    caller: Box<dyn Caller>,
    /// Most requests in a batch.
    batch_requests: usize,
    /// Most batches under way.
    depth: usize,
    /// The batch that is being packed, and its requests in order.
    packing: BatchWriter,
    packed: Vec<UnderWay>,
    /// It was to be sent, and had to wait.
    is_flushed: bool,
    /// Requests of each batch under way, by the call's token.
    under_way: Vec<Vec<UnderWay>>,
    free: Vec<usize>,
    /// Requests that were taken and whose completions were not given.
    outstanding: usize,
    /// Ended without a message.
    refused: VecDeque<Completion>,
}

impl Batched {
    /// A path with at most `depth` batches (q) of at most `batch_requests` requests each (b).
    ///
    /// # Panics
    /// If `batch_requests` is 0, or `depth` is not in `1..=CALLS_UNDER_WAY_MAX`.
    #[must_use]
    pub fn new(caller: Box<dyn Caller>, batch_requests: usize, depth: usize) -> Self {
        assert!(batch_requests > 0, "batches of no request");
        assert!(
            (1..=CALLS_UNDER_WAY_MAX).contains(&depth),
            "a depth of {depth}"
        );
        Self {
            caller,
            batch_requests,
            depth,
            packing: BatchWriter::default(),
            packed: Vec::with_capacity(batch_requests.min(4096)),
            is_flushed: false,
            under_way: (0..depth).map(|_| Vec::new()).collect(),
            free: (0..depth).collect(),
            outstanding: 0,
            refused: VecDeque::new(),
        }
    }

    /// Makes a call of what is packed; false: that has to wait.
    fn call(&mut self) -> bool {
        let Some(&slot) = self.free.last() else {
            return false;
        };
        if self.caller.call(self.packing.bytes(), slot as u64).is_err() {
            return false;
        }
        self.free.pop();
        self.packing.clear();
        self.is_flushed = false;
        mem::swap(&mut self.packed, &mut self.under_way[slot]);
        true
    }

    /// Puts an operation into the batch that is being packed; false: it does not fit.
    fn pack(&mut self, window: (u32, u64), offset: u64, operation: &Operation) -> bool {
        if self.packed.len() == self.batch_requests {
            return false;
        }
        match operation {
            Operation::Read(buffer) => self.packing.read(window, offset, buffer.len()),
            Operation::Write(bytes) => self.packing.write(window, offset, bytes),
        }
    }
}

impl Path for Batched {
    fn submit(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        operation: Operation,
        token: Token,
    ) -> Result<(), Full> {
        if operation.len_bytes() > OPERATION_BYTES_MAX {
            self.outstanding += 1;
            let refused = Err(Failure::Refused(Refusal::TooLong));
            self.refused
                .push_back(UnderWay { operation, token }.end(refused));
            return Ok(());
        }
        let name = (window.descriptor.id.0, window.descriptor.generation.0);
        let is_packed = self.pack(name, offset, &operation)
            || self.call() && self.pack(name, offset, &operation);
        if !is_packed {
            return Err(Full(operation));
        }
        self.packed.push(UnderWay { operation, token });
        self.outstanding += 1;
        if self.packed.len() == self.batch_requests {
            // If it has to wait, the next poll or flush calls.
            self.call();
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.is_flushed = !self.packed.is_empty() && !self.call();
        self.caller.flush();
    }

    fn poll(&mut self, now: Time, completions: &mut VecDeque<Completion>) {
        let before = completions.len();
        completions.append(&mut self.refused);
        let (under_way, free) = (&mut self.under_way, &mut self.free);
        self.caller.poll(now, &mut |slot, answer| {
            let slot = usize::try_from(slot).expect("a slot's index");
            end(&mut under_way[slot], answer, completions);
            free.push(slot);
        });
        self.outstanding -= completions.len() - before;
        // A batch that is full, or was flushed, and had to wait goes now.
        let waits = self.packed.len() == self.batch_requests || self.is_flushed;
        if waits && !self.packed.is_empty() && self.call() {
            self.caller.flush();
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn request_bytes_max(&self) -> usize {
        OPERATION_BYTES_MAX
    }

    fn is_lost(&self) -> bool {
        self.caller.is_dead()
    }

    fn fd(&self) -> Option<RawFd> {
        self.caller.fd()
    }
}

/// Ends the requests of a batch with its answer.
fn end(
    batch: &mut Vec<UnderWay>,
    answer: Result<&[u8], Status>,
    completions: &mut VecDeque<Completion>,
) {
    let mut answers = answer
        .map_err(|status| outcome(status).expect_err("a call that was answered has its answer"))
        .and_then(|bytes| Answers::new(bytes).map_err(|_| BROKEN));
    for mut request in batch.drain(..) {
        let result = match &mut answers {
            Ok(answers) => one(answers, &mut request.operation),
            Err(failure) => Err(*failure),
        };
        if result == Err(BROKEN) {
            // Nothing after it is to be believed.
            answers = Err(BROKEN);
        }
        completions.push_back(request.end(result));
    }
}

fn one(answers: &mut Answers<'_>, operation: &mut Operation) -> Result<(), Failure> {
    let len_bytes = match operation {
        Operation::Read(buffer) => buffer.len(),
        Operation::Write(_) => 0,
    };
    let (outcome, bytes) = answers.next_answer(len_bytes).map_err(|_| BROKEN)?;
    match outcome {
        Outcome::Done => {
            if let Operation::Read(buffer) = operation {
                buffer.copy_from_slice(bytes);
            }
            Ok(())
        }
        Outcome::Stale | Outcome::Revoked => Err(Failure::Stale),
        Outcome::OutOfBounds => Err(Failure::Refused(Refusal::OutOfBounds)),
        Outcome::NoRights => Err(Failure::Refused(Refusal::NoRights)),
    }
}

const BROKEN: Failure = Failure::Lost(Loss::Broken);

impl fmt::Debug for Batched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched")
            .field("outstanding", &self.outstanding)
            .field("batches", &(self.depth - self.free.len()))
            .field("packed", &self.packed.len())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
