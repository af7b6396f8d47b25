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

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::completions::{Completed, Completions, Ended};
use super::device::Device;
use super::pair::{Act, Local, Pair, Request};
use super::registered::{Pages, Registered};
use super::ring::Ring;
use super::slots::{Slot, Slots, Verb};
use crate::channel::Channel;
use crate::frame::Frame;
use crate::socket::{Epoll, Interest};
use crate::{
    Completion, CompletionQueue, Endpoint, Error, FAILURE_TIMEOUT, MESSAGE_BYTES_MAX, QUEUE_DEPTH,
    QueueFull, RemoteWindow, Result, Rights, Status, Time, Token, wait,
};

/// One worker's queue pair to one host.
pub(crate) struct RdmaEndpoint {
    // Dropped first: it works on what follows.
    pair: Option<Pair>,
    completions: Completions,
    pages: Registered<Pages>,
    ring: Ring,
    device: Arc<Device>,
    channel: Channel,
    epoll: Epoll,
    /// The session's, which no other session shares.
    session: Arc<AtomicBool>,
    slots: Slots,
    /// Requests that the device has, oldest first.
    works: VecDeque<Work>,
    /// Number of the next request.
    sequence: u64,
    /// Messages that the host has a place for.
    credits: u32,
    /// Whether the host has connected its end of the pair.
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
        timeout: Duration,
    ) -> Result<Self> {
        let os = |e| Error::os(format!("use the RDMA device {}", device.name), e);
        let completions = Completions::new(&device, 2 * WORK_COUNT_MAX).map_err(os)?;
        let pages = Registered::new(&device, Pages::new(RING_BYTES), Rights(0)).map_err(os)?;
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
            pages,
            ring: Ring::new(RING_BYTES),
            device,
            channel,
            epoll,
            session,
            slots: Slots::new(),
            works: VecDeque::with_capacity(WORK_COUNT_MAX),
            sequence: 0,
            credits: 0,
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

    /// Makes a pair and asks the host for its own; [`RdmaEndpoint::hear`] connects them.
    fn join(&mut self) -> Result<()> {
        let os = |e| Error::os("make a queue pair", e);
        // First the old one, so that its requests leave the ring.
        self.pair = None;
        self.works.clear();
        self.ring.clear();
        self.is_joined = false;
        // What the old pair left behind would take the new one's places.
        let mut left = Vec::new();
        while self.completions.take(&mut left).map_err(os)? > 0 {}
        let pair = Pair::new(&self.device, &self.completions, WORK_COUNT_MAX, 1).map_err(os)?;
        self.channel.queue(&Frame::Join(pair.name()), None)?;
        self.pair = Some(pair);
        self.system_calls += 1;
        self.channel.flush()
    }

    /// Takes what the host says beside the pair.
    fn hear(&mut self) -> Result<()> {
        self.channel.flush()?;
        loop {
            match self.channel.next()? {
                Some(Frame::Credits(count)) => {
                    self.credits = self.credits.saturating_add(count).min(CREDITS_MAX);
                }
                Some(Frame::Join(host)) if !self.is_joined => {
                    let pair = self.pair.as_ref().ok_or(Error::Closed)?;
                    pair.connect(&host)
                        .map_err(|e| Error::os("connect a queue pair", e))?;
                    self.is_joined = true;
                    self.credits = 0;
                    self.heard_at = None;
                }
                Some(_) => return Err(Error::Protocol("not on a data connection")),
                None => {
                    self.system_calls += 1;
                    if !self.channel.fill()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn post(
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

    /// Makes requests of posted verbs, as many as there is room for, and gives them to the device.
    fn issue(&mut self, queue: &mut CompletionQueue) {
        if !self.is_joined || self.dead.is_some() {
            return;
        }
        let before = self.works.len();
        while let Some(position) = self.slots.next_to_issue() {
            match self.issue_one(position) {
                Ok(true) => {}
                Ok(false) => break,
                Err(status) => {
                    if let Some(pair) = &mut self.pair {
                        pair.forget();
                    }
                    return self.fail(status, queue);
                }
            }
        }
        if self.works.len() > before {
            self.system_calls += 1;
            // SAFETY: every request's bytes are in the registered ring, where they stay until it
            // is retired, or are a caller's that live until the verb completes, or a slot's.
            let posted = self
                .pair
                .as_mut()
                .map_or(Ok(()), |pair| unsafe { pair.post() });
            if let Err(error) = posted {
                tracing::warn!(%error, "give requests to an RDMA device");
                return self.fail(Status::Disconnected, queue);
            }
        }
        self.slots.finish(queue);
    }

    /// Issues what is left of one verb. False: there is no room for all of it now.
    fn issue_one(&mut self, position: u64) -> std::result::Result<bool, Status> {
        let slot = self.slots.get(position);
        let Some(memory) = slot.memory.clone() else {
            return self.issue_send(position);
        };
        if slot.issued_bytes == 0
            && slot.works == 0
            && memory.stale.load(std::sync::atomic::Ordering::Relaxed)
        {
            slot.decide(Status::StaleGeneration);
            return Ok(true);
        }
        let start = memory.address + slot.offset;
        let key = memory.key;
        let len_bytes = slot.len_bytes;
        let act_at = |slot: &Slot, address| match slot.verb {
            Verb::Read { .. } => Act::Read { address, key },
            Verb::Write { .. } => Act::Write { address, key },
            Verb::CompareSwap { expected, new } => Act::CompareSwap {
                address,
                key,
                expected,
                new,
            },
            Verb::FetchAdd { addend } => Act::FetchAdd {
                address,
                key,
                addend,
            },
            Verb::Send { .. } => unreachable!("a SEND has no window"),
        };
        loop {
            let slot = self.slots.get(position);
            let offset = slot.issued_bytes;
            if offset == len_bytes {
                break;
            }
            let act = act_at(slot, start + offset as u64);
            let piece = (len_bytes - offset).min(PIECE_BYTES);
            let (source, answer) = match slot.verb {
                Verb::Write { source, .. } => (source.wrapping_add(offset), Answer::None),
                Verb::Read { .. } => (std::ptr::null(), Answer::Bytes),
                _ => (std::ptr::null(), Answer::Value),
            };
            if !self.request(position, act, source, piece, offset, answer) {
                return Ok(false);
            }
            self.slots.get(position).issued_bytes += piece;
        }
        self.issue_immediate(position)
    }

    /// The second request of a WRITE with immediate: a message that says where it went. What a
    /// device can carry with the WRITE itself has no room for that.
    fn issue_immediate(&mut self, position: u64) -> std::result::Result<bool, Status> {
        let slot = self.slots.get(position);
        let Verb::Write {
            immediate: Some(value),
            ..
        } = slot.verb
        else {
            slot.is_issued = true;
            return Ok(true);
        };
        let mut message = Vec::with_capacity(40);
        Frame::Immediate {
            id: slot.window.id,
            generation: slot.window.generation,
            offset: slot.offset,
            len_bytes: u32::try_from(slot.len_bytes).unwrap_or(u32::MAX),
            value,
        }
        .encode(&mut message);
        if !self.has_credit()? {
            self.slots.get(position).decide(Status::ReceiverNotReady);
            return Ok(true);
        }
        Ok(self.message(position, &message))
    }

    fn issue_send(&mut self, position: u64) -> std::result::Result<bool, Status> {
        if !self.has_credit()? {
            self.slots.get(position).decide(Status::ReceiverNotReady);
            return Ok(true);
        }
        let slot = self.slots.get(position);
        let Verb::Send { message } = &mut slot.verb else {
            return Err(Status::Protocol);
        };
        let message = std::mem::take(message);
        let mut bytes = Vec::with_capacity(1 + message.len());
        Frame::Message(&message).encode(&mut bytes);
        let is_issued = self.message(position, &bytes);
        // Kept for another try, after a refusal or for want of room.
        if let Verb::Send { message: kept } = &mut self.slots.get(position).verb {
            *kept = message;
        }
        Ok(is_issued)
    }

    /// Whether the host has a place for a message; looks for news of that.
    fn has_credit(&mut self) -> std::result::Result<bool, Status> {
        if self.credits == 0 {
            self.hear().map_err(|_| Status::Disconnected)?;
        }
        Ok(self.credits > 0)
    }

    /// Issues a message as the last request of its verb.
    fn message(&mut self, position: u64, bytes: &[u8]) -> bool {
        let is_issued = self.request(
            position,
            Act::Send,
            bytes.as_ptr(),
            bytes.len(),
            0,
            Answer::None,
        );
        if is_issued {
            self.credits -= 1;
            self.slots.get(position).is_issued = true;
        }
        is_issued
    }

    /// Adds one request, with its place in the ring. False: there is no room.
    fn request(
        &mut self,
        position: u64,
        act: Act,
        source: *const u8,
        len_bytes: usize,
        offset: usize,
        answer: Answer,
    ) -> bool {
        let Some(pair) = &mut self.pair else {
            return false;
        };
        if self.works.len() == WORK_COUNT_MAX {
            return false;
        }
        // A message's bytes are gone when this returns, before the device copies them.
        let is_inline = len_bytes <= pair.inline_bytes && matches!(act, Act::Write { .. });
        let (at, end, local) = if is_inline {
            let local = Local {
                start: source,
                len_bytes,
                key: None,
            };
            (0, self.ring.end(), local)
        } else {
            let Some(range) = self.ring.take(len_bytes) else {
                return false;
            };
            let start = self.pages.memory().at(range.at, len_bytes);
            if !source.is_null() {
                // SAFETY: the range is ours until it is released, `source` the caller's until the
                // verb completes.
                unsafe { std::ptr::copy_nonoverlapping(source, start, len_bytes) };
            }
            let key = Some(self.pages.local_key());
            let local = Local {
                start,
                len_bytes,
                key,
            };
            (range.at, range.end, local)
        };
        let fence = self.slots.needs_fence(position);
        pair.add(&Request {
            id: self.sequence,
            act,
            local,
            fence,
        });
        self.sequence += 1;
        self.slots.get(position).works += 1;
        self.works.push_back(Work {
            position,
            offset,
            at,
            len_bytes,
            end,
            answer,
        });
        true
    }

    /// Takes completions until there are none. True: there was one.
    fn reap(&mut self, queue: &mut CompletionQueue) -> bool {
        let mut is_any = false;
        let mut taken = std::mem::take(&mut self.taken);
        loop {
            taken.clear();
            match self.completions.take(&mut taken) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "look for completions");
                    self.fail(Status::Disconnected, queue);
                    break;
                }
            }
            is_any = true;
            for completed in &taken {
                self.complete(*completed, queue);
            }
        }
        self.taken = taken;
        self.slots.finish(queue);
        is_any
    }

    fn complete(&mut self, completed: Completed, queue: &mut CompletionQueue) {
        // Requests of an earlier pair have lower numbers than all that are under way.
        let first = self.sequence - self.works.len() as u64;
        if self.dead.is_some() || completed.id < first || completed.id >= self.sequence {
            return;
        }
        self.heard_at = None;
        for _ in first..completed.id {
            self.retire();
        }
        match completed.ended {
            Ended::Ok => self.retire(),
            Ended::Refused => self.refused(queue),
            Ended::Silent => self.fail(Status::Timeout, queue),
            Ended::Flushed => self.fail(Status::Disconnected, queue),
            Ended::Broken(status) => {
                tracing::warn!(status, "a request broke its queue pair");
                self.fail(Status::Disconnected, queue);
            }
        }
    }

    /// The oldest request was carried out.
    fn retire(&mut self) {
        let Some(work) = self.works.pop_front() else {
            return;
        };
        let slot = self.slots.get(work.position);
        let place = || self.pages.memory().at(work.at, work.len_bytes);
        match (&slot.verb, work.answer) {
            (Verb::Read { landing }, Answer::Bytes) if !landing.is_null() => {
                // SAFETY: the device is done with the ring's range; the landing is the caller's
                // promise until the verb completes or it is revoked, and then it is null.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        place(),
                        landing.wrapping_add(work.offset),
                        work.len_bytes,
                    );
                }
            }
            (_, Answer::Value) => {
                // SAFETY: 8 aligned bytes of the ring that the device is done with.
                slot.value = unsafe { place().cast::<u64>().read() };
            }
            _ => {}
        }
        slot.works -= 1;
        self.ring.release(work.end);
    }

    /// The host's device refused the oldest request, and with it all that follow.
    fn refused(&mut self, queue: &mut CompletionQueue) {
        let Some(work) = self.works.front() else {
            return;
        };
        let position = work.position;
        if self.slots.get(position).memory.is_none() {
            return self.fail(Status::Protocol, queue);
        }
        self.slots.refuse(position);
        if let Err(error) = self.join() {
            tracing::debug!(%error, "make another queue pair");
            self.fail(Status::Disconnected, queue);
        }
    }

    /// Ends the connection: everything outstanding completes with `status`.
    fn fail(&mut self, status: Status, queue: &mut CompletionQueue) {
        self.pair = None;
        self.works.clear();
        self.slots.finish(queue);
        self.slots.fail(status, queue);
        self.is_joined = false;
        self.dead = Some(status);
    }

    /// Looks beside the pair: a host that is gone has closed the connection.
    fn look(&mut self, now: Time, queue: &mut CompletionQueue) {
        self.looked_at = now;
        if let Err(error) = self.hear() {
            tracing::debug!(%error, "the connection beside a queue pair ended");
            self.reap(queue);
            if self.dead.is_none() {
                self.fail(
                    match error {
                        Error::Protocol(_) => Status::Protocol,
                        _ => Status::Disconnected,
                    },
                    queue,
                );
            }
        }
    }
}

impl Endpoint for RdmaEndpoint {
    unsafe fn post_read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        landing: *mut u8,
        len_bytes: usize,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let verb = Verb::Read { landing };
        let slot = Slot::on_window(verb, window, offset, len_bytes, token, &self.session);
        self.post(slot, queue)
    }

    unsafe fn post_write(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        source: *const u8,
        len_bytes: usize,
        immediate: Option<u32>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let verb = Verb::Write { source, immediate };
        let slot = Slot::on_window(verb, window, offset, len_bytes, token, &self.session);
        self.post(slot, queue)
    }

    fn post_send(
        &mut self,
        message: &[u8],
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        assert!(
            message.len() <= MESSAGE_BYTES_MAX,
            "a message of {} bytes",
            message.len()
        );
        self.post(Slot::send(message, token), queue)
    }

    fn post_compare_swap(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        expected: u64,
        new: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let verb = Verb::CompareSwap { expected, new };
        let slot = Slot::on_window(verb, window, offset, 8, token, &self.session);
        self.post(slot, queue)
    }

    fn post_fetch_add(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        addend: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let verb = Verb::FetchAdd { addend };
        let slot = Slot::on_window(verb, window, offset, 8, token, &self.session);
        self.post(slot, queue)
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
        self.system_calls + self.completions.system_calls
    }
}

impl RdmaEndpoint {
    /// Whoever waits now is told of the next completion.
    fn arm(&mut self, queue: &mut CompletionQueue) {
        if self.works.is_empty() {
            return self.completions.settle();
        }
        while !self.works.is_empty() {
            match self.completions.arm() {
                Ok(false) => return,
                Ok(true) => {
                    // What came before the queue was armed is not told.
                    if !self.reap(queue) {
                        return;
                    }
                    self.issue(queue);
                }
                Err(error) => {
                    let status = io_status(&error);
                    return self.fail(status, queue);
                }
            }
        }
    }
}

fn io_status(error: &io::Error) -> Status {
    tracing::warn!(%error, "wait for an RDMA device");
    Status::Disconnected
}

/// What is on its way at a time, cut into pieces of at most `PIECE_BYTES`. More than a 100 Gbit/s
/// link holds in 50 us; each endpoint has that much memory pinned.
const RING_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 128 << 10;
/// Most requests that the device has at a time.
const WORK_COUNT_MAX: usize = 256;
/// More than any host offers.
const CREDITS_MAX: u32 = 1 << 16;
/// How often `poll` looks at the socket, 0.3 us each time.
const LOOK_EVERY: Duration = Duration::from_micros(100);
/// And at every so many polls where the clock stands still.
const LOOK_POLLS: u32 = 64;
