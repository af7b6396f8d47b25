//! The path of a configuration without server threads: each request is one verb.
//!
//! The machine's processor has no part in it on `shm` and `rdma`; on `tcp` one agent thread per host
//! plays the NIC.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::RawFd;

use cenote_fabric::{CompletionQueue, Endpoint, QUEUE_DEPTH, RemoteWindow, Time};

use super::{Completion, Full, Operation, Path, Token, UnderWay, outcome};

/// One verb per request over one data connection.
pub struct OneSided {
    // Dropped first: from then on no byte lands in a buffer of `slots`.
    endpoint: Box<dyn Endpoint>,
    queue: CompletionQueue,
    /// What is under way, by the verb's token. Grows to `depth` and never shrinks.
    slots: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    depth: usize,
}

impl OneSided {
    /// A path over `endpoint` with at most `depth` requests under way (the configuration's q).
    ///
    /// # Panics
    /// If `depth` is not in `1..=QUEUE_DEPTH`, or something was posted on the endpoint already.
    #[must_use]
    pub fn new(endpoint: Box<dyn Endpoint>, depth: usize) -> Self {
        assert!((1..=QUEUE_DEPTH).contains(&depth), "a depth of {depth}");
        assert_eq!(endpoint.outstanding(), 0, "a path has its endpoint alone");
        Self {
            endpoint,
            queue: CompletionQueue::with_capacity(depth),
            slots: Vec::new(),
            free: Vec::new(),
            depth,
        }
    }

    fn admit(&mut self, under_way: UnderWay) -> usize {
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = Some(under_way);
            return slot;
        }
        self.slots.push(Some(under_way));
        self.slots.len() - 1
    }

    fn release(&mut self, slot: usize) -> UnderWay {
        let under_way = self.slots[slot].take();
        self.free.push(slot);
        under_way.expect("an endpoint completes once what was posted on it")
    }
}

impl Path for OneSided {
    fn submit(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        operation: Operation,
        token: Token,
    ) -> Result<(), Full> {
        if self.outstanding() == self.depth {
            return Err(Full(operation));
        }
        let slot = self.admit(UnderWay { operation, token });
        let operation = &mut self.slots[slot].as_mut().expect("just put there").operation;
        let verb = slot as u64;
        let posted = match operation {
            // SAFETY: the buffer's memory stays where it is while the slot holds it, nobody else has
            // access to it, and the slot is emptied only when the verb has completed. If the path is
            // dropped before, its endpoint goes first.
            Operation::Read(buffer) => unsafe {
                let landing = buffer.as_mut_ptr();
                let len_bytes = buffer.len();
                self.endpoint
                    .post_read(window, offset, landing, len_bytes, verb, &mut self.queue)
            },
            // SAFETY: as above; `Bytes` never change.
            Operation::Write(bytes) => unsafe {
                let (source, len_bytes) = (bytes.as_ptr(), bytes.len());
                let queue = &mut self.queue;
                self.endpoint
                    .post_write(window, offset, source, len_bytes, None, verb, queue)
            },
        };
        posted.map_err(|_| Full(self.release(slot).operation))
    }

    fn flush(&mut self) {
        self.endpoint.flush(&mut self.queue);
    }

    fn poll(&mut self, now: Time, completions: &mut VecDeque<Completion>) {
        self.endpoint.poll(now, &mut self.queue);
        // A host says nothing on the data connections of a cache; what it does say is dropped.
        self.queue.received.clear();
        while let Some(ended) = self.queue.pop() {
            let slot = usize::try_from(ended.token).expect("a slot's index");
            completions.push_back(self.release(slot).end(outcome(ended.status)));
        }
    }

    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_lost(&self) -> bool {
        self.endpoint.is_dead()
    }

    fn fd(&self) -> Option<RawFd> {
        self.endpoint.fd()
    }
}

impl fmt::Debug for OneSided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneSided")
            .field("outstanding", &self.outstanding())
            .field("depth", &self.depth)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
