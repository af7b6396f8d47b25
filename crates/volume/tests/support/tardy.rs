//! Data connections whose answers to READs a test holds back, and lands torn, and twice; and whose
//! WRITEs it holds back.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cenote_fabric::{
    Completion, CompletionQueue, Endpoint, QueueFull, RemoteWindow, Time, Token, Verb,
};

use super::guard::Guard;

/// While it is set, READs of the guarded hosts do not complete. What they read is written to their
/// landings by halves, with other bytes between, whenever the connection is polled.
#[derive(Clone, Default)]
pub struct Tardy {
    pub holds: Arc<AtomicBool>,
    /// READs held back so far.
    pub held: Arc<AtomicUsize>,
    /// READs that were posted so far, held back or not.
    pub posted: Arc<AtomicUsize>,
    /// While it is set, WRITEs of the guarded hosts are not sent: their bytes are taken later.
    pub holds_writes: Arc<AtomicBool>,
    /// WRITEs held back so far.
    pub held_writes: Arc<AtomicUsize>,
    /// While it is set, WRITEs are held back even when their connection ends: nobody hears of them.
    pub holds_ended: Arc<AtomicBool>,
}

struct TardyEndpoint {
    inner: Box<dyn Endpoint>,
    tardy: Tardy,
    /// By token: where it lands, null once that is revoked, and what was read meanwhile.
    reads: HashMap<Token, (*mut u8, Box<[u8]>)>,
    answers: CompletionQueue,
    kept: Vec<Completion>,
    writes: Vec<HeldWrite>,
}

struct HeldWrite {
    window: RemoteWindow,
    offset: u64,
    source: *const u8,
    len_bytes: usize,
    token: Token,
}

// SAFETY: landings and sources belong to posted verbs, by the contract of `post`.
unsafe impl Send for TardyEndpoint {}

impl Guard for Tardy {
    fn endpoint(&self, inner: Box<dyn Endpoint>) -> Box<dyn Endpoint> {
        Box::new(TardyEndpoint {
            inner,
            tardy: self.clone(),
            reads: HashMap::new(),
            answers: CompletionQueue::default(),
            kept: Vec::new(),
            writes: Vec::new(),
        })
    }
}

impl TardyEndpoint {
    /// Sends what is held back, once it is let go, or its connection has ended and it fails.
    fn send_held(&mut self) {
        let is_over = self.inner.is_dead() && !self.tardy.holds_ended.load(Ordering::Acquire);
        if self.tardy.holds_writes.load(Ordering::Acquire) && !is_over {
            return;
        }
        for held in self.writes.drain(..) {
            let queue = &mut self.answers;
            // SAFETY: the source is as it was posted: the verb has not completed.
            let posted = unsafe {
                self.inner.post_write(
                    &held.window,
                    held.offset,
                    held.source,
                    held.len_bytes,
                    None,
                    held.token,
                    queue,
                )
            };
            posted.expect("few are held");
        }
    }

    fn hand_out(&mut self, queue: &mut CompletionQueue) {
        while let Some(answer) = self.answers.pop() {
            if self.reads.contains_key(&answer.token) {
                self.tardy.held.fetch_add(1, Ordering::AcqRel);
                self.kept.push(answer);
            } else {
                queue.push(answer);
            }
        }
        let holds = self.tardy.holds.load(Ordering::Acquire);
        for (landing, bytes) in self
            .reads
            .values()
            .filter(|(landing, _)| !landing.is_null())
        {
            let garbage = vec![0xdb; bytes.len()];
            let half = if holds { bytes.len() / 2 } else { bytes.len() };
            // SAFETY: a landing that is not revoked is valid for the verb's length.
            unsafe {
                landing.copy_from_nonoverlapping(garbage.as_ptr(), bytes.len());
                landing.copy_from_nonoverlapping(bytes.as_ptr(), half);
            }
        }
        if !holds {
            for answer in self.kept.drain(..) {
                self.reads.remove(&answer.token);
                queue.push(answer);
            }
        }
    }
}

impl Endpoint for TardyEndpoint {
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        _queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        let verb = match verb {
            Verb::Read {
                window,
                offset,
                landing,
                len_bytes,
            } => {
                self.tardy.posted.fetch_add(1, Ordering::AcqRel);
                let mut bytes = vec![0; len_bytes].into_boxed_slice();
                // Kept until the verb completes.
                let own = bytes.as_mut_ptr();
                self.reads.insert(token, (landing, bytes));
                Verb::Read {
                    window,
                    offset,
                    landing: own,
                    len_bytes,
                }
            }
            Verb::Write {
                window,
                offset,
                source,
                len_bytes,
                ..
            } if self.tardy.holds_writes.load(Ordering::Acquire) && !self.inner.is_dead() => {
                self.tardy.held_writes.fetch_add(1, Ordering::AcqRel);
                self.writes.push(HeldWrite {
                    window: window.clone(),
                    offset,
                    source,
                    len_bytes,
                    token,
                });
                return Ok(());
            }
            other => other,
        };
        // SAFETY: as the caller promises, and as above.
        unsafe { self.inner.post(verb, token, &mut self.answers) }
    }

    fn flush(&mut self, queue: &mut CompletionQueue) {
        self.send_held();
        self.inner.flush(&mut self.answers);
        self.hand_out(queue);
    }

    fn poll(&mut self, now: Time, queue: &mut CompletionQueue) {
        self.send_held();
        self.inner.poll(now, &mut self.answers);
        self.hand_out(queue);
    }

    fn revoke_landing(&mut self, token: Token) {
        if let Some((landing, _)) = self.reads.get_mut(&token) {
            *landing = std::ptr::null_mut();
        }
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding() + self.kept.len() + self.writes.len()
    }

    fn is_dead(&self) -> bool {
        self.inner.is_dead()
    }

    /// What is held back is no event of a descriptor: it is looked at whenever the worker polls.
    fn fd(&self) -> Option<RawFd> {
        None
    }
}
