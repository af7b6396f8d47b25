//! A client's end of an `rdma` data connection.
//!
//! The device moves bytes between the host's window and a ring of this endpoint, registered once;
//! they are copied from the ring into the caller's landing inside [`Endpoint::poll`], so nothing
//! can land after [`Endpoint::revoke_landing`] returned, and the queue pair never hears of it.
//!
//! A verb is cut into pieces, each one work request. Completions come in order, so one stands for
//! all requests before it. When the host's device refuses a request (the window is gone) the pair
//! is in error and no later request was carried out: the verb ends, another pair is made, and the
//! later ones go again.
//!
//! `handshake` makes pairs, `submission` gives verbs to the device, `completion` takes their ends.

mod completion;
mod handshake;
mod submission;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use cenote_verbs::{Access, Completed, Completions, Device, Pages, Pair, Registered, Span};

use super::Tuning;
use super::ring::Ring;
use super::slots::{Slot, Slots};
use crate::channel::Channel;
use crate::socket::{Epoll, Interest};
use crate::{
    Completion, CompletionQueue, Endpoint, Error, FAILURE_TIMEOUT, QUEUE_DEPTH, QueueFull, Result,
    Status, Time, Token, Verb, wait,
};

/// One worker's queue pair to one host.
pub(crate) struct RdmaEndpoint {
    // Dropped first: it works on what follows.
    pair: Option<Pair>,
    completions: Completions,
    /// Requests that the device has, oldest first. Their registrations end before the pages.
    works: VecDeque<Work>,
    pages: Registered<Arc<Pages>>,
    ring: Ring,
    device: Arc<Device>,
    channel: Channel,
    epoll: Epoll,
    /// The session's, which no other session shares.
    session: Arc<AtomicBool>,
    slots: Slots,
    tuning: Tuning,
    /// Number of the next request.
    sequence: u64,
    /// Messages that the host has a place for.
    credits: u32,
    /// Whether the pair is connected to the host's.
    is_connected: bool,
    /// And whether the host has said how many messages it has places for.
    is_joined: bool,
    /// When something was last done, or first waited for.
    heard_at: Option<Time>,
    looked_at: Time,
    polls: u32,
    dead: Option<Status>,
    taken: Vec<Completed>,
    system_calls: u64,
}

/// One request under way.
struct Work {
    position: u64,
    /// READ: where in the verb; its bytes are at `at` of the ring.
    offset: usize,
    at: usize,
    len_bytes: usize,
    end: u64,
    answer: Answer,
    /// Of its bytes alone, where memory is not registered once.
    _registered: Option<Registered<Span>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    None,
    Bytes,
    Value,
}

// SAFETY: the raw pointers in slots belong to posted verbs; `post_read` and `post_write` demand
// that they stay valid until completion, whichever thread polls.
unsafe impl Send for RdmaEndpoint {}

impl RdmaEndpoint {
    /// Takes over a connection whose handshake is done, and connects a queue pair beside it.
    ///
    /// # Errors
    /// `Os`: the device refuses; `Timeout`, `Closed`: the host does not answer.
    pub(crate) fn connect(
        channel: Channel,
        device: Arc<Device>,
        session: Arc<AtomicBool>,
        tuning: Tuning,
        timeout: Duration,
    ) -> Result<Self> {
        let os = |e| Error::os(format!("use the RDMA device {}", device.name()), e);
        let completions = Completions::new(&device, 2 * WORK_COUNT_MAX).map_err(os)?;
        let pages = Arc::new(Pages::new(RING_BYTES));
        let pages = Registered::new(&device, pages, Access::NONE).map_err(os)?;
        let watch = || {
            let epoll = Epoll::new()?;
            epoll.add(channel.as_fd(), 0, Interest::READ)?;
            epoll.add(completions.fd(), 0, Interest::READ)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(os)?;
        let mut endpoint = Self {
            pair: None,
            completions,
            works: VecDeque::with_capacity(WORK_COUNT_MAX),
            pages,
            ring: Ring::new(RING_BYTES),
            device,
            channel,
            epoll,
            session,
            slots: Slots::new(),
            tuning,
            sequence: 0,
            credits: 0,
            is_connected: false,
            is_joined: false,
            heard_at: None,
            looked_at: Time(0),
            polls: 0,
            dead: None,
            taken: Vec::new(),
            system_calls: 0,
        };
        endpoint.join()?;
        let deadline = Instant::now() + timeout;
        while !endpoint.is_joined {
            endpoint.hear()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout(timeout));
            }
            if !endpoint.is_joined {
                wait(&[endpoint.channel.as_raw_fd()], Some(left))?;
            }
        }
        Ok(endpoint)
    }

    fn queue(
        &mut self,
        slot: Slot,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        if let Some(status) = self.dead {
            queue.push(Completion {
                token: slot.token,
                status,
                value: 0,
            });
            return Ok(());
        }
        if self.slots.len() == QUEUE_DEPTH {
            return Err(QueueFull);
        }
        if self.slots.len() == 0 {
            self.heard_at = None;
        }
        self.slots.push(slot);
        Ok(())
    }
}

impl Endpoint for RdmaEndpoint {
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let slot = Slot::of(verb, token, &self.session);
        self.queue(slot, queue)
    }

    fn flush(&mut self, queue: &mut CompletionQueue) {
        self.issue(queue);
        self.arm(queue);
    }

    fn poll(&mut self, now: Time, queue: &mut CompletionQueue) {
        if self.dead.is_some() {
            return;
        }
        self.polls = self.polls.wrapping_add(1);
        self.reap(queue);
        if !self.is_joined
            || now.since(self.looked_at) >= LOOK_EVERY
            || self.polls.is_multiple_of(LOOK_POLLS)
        {
            self.look(now, queue);
        }
        self.issue(queue);
        self.arm(queue);
        if self.slots.len() == 0 || self.dead.is_some() {
            return;
        }
        // Reaped first: a client that was itself stopped finds the completions, not the silence.
        let heard_at = *self.heard_at.get_or_insert(now);
        if now.since(heard_at) >= FAILURE_TIMEOUT {
            self.fail(Status::Timeout, queue);
        }
    }

    fn revoke_landing(&mut self, token: Token) {
        self.slots.revoke_landing(token);
    }

    fn outstanding(&self) -> usize {
        self.slots.len()
    }

    fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    fn fd(&self) -> Option<RawFd> {
        self.dead.is_none().then(|| self.epoll.as_fd().as_raw_fd())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls + self.completions.system_calls()
    }
}

/// What is on its way at a time, cut into pieces of at most `PIECE_BYTES`. More than a 100 Gbit/s
/// link holds in 50 us; each endpoint has that much memory pinned.
const RING_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 128 << 10;
/// Most requests that the device has at a time.
const WORK_COUNT_MAX: usize = 256;
/// How often `poll` looks at the socket, 0.3 us each time.
const LOOK_EVERY: Duration = Duration::from_micros(100);
/// And at every so many polls where the clock stands still.
const LOOK_POLLS: u32 = 64;
