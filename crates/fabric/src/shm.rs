//! The `shm` data path: verbs are loads and stores on the mapped window, complete when posted.
//!
//! The host's CPU has no part in READ, WRITE and atomics. A unix connection beside the mapping
//! carries SEND, immediates and messages of the host, and tells of the host's death: memory of a
//! dead host counts as lost although it can still be read. A host that is merely stopped does not.
//!
//! Rights bind honest clients: a window without WRITE is mapped read-only, but whoever may open
//! this process's `/proc` entries can do more. The boundary is the cluster's key.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel::Channel;
use crate::endpoint::check_message;
use crate::frame::Frame;
use crate::memory::{Dead, Mapping, order_stores};
use crate::{
    Completion, CompletionQueue, Endpoint, QUEUE_DEPTH, QueueFull, RemoteWindow, Rights, Status,
    Time, Token, Verb,
};

/// One worker's end of the connection to a host whose memory it maps.
pub(crate) struct ShmEndpoint {
    channel: Channel,
    /// Shared with the session and its other endpoints.
    host_lost: Arc<AtomicBool>,
    dead: bool,
    looked_at: Time,
    polls: u32,
    system_calls: u64,
}

impl ShmEndpoint {
    pub(crate) fn new(channel: Channel, host_lost: Arc<AtomicBool>) -> Self {
        Self {
            channel,
            host_lost,
            dead: false,
            looked_at: Time(0),
            polls: 0,
            system_calls: 0,
        }
    }

    /// The mapping and where the range begins in it, if the verb may touch it.
    #[inline]
    fn enter<'w>(
        &self,
        window: &'w RemoteWindow,
        need: Rights,
        offset: u64,
        len_bytes: usize,
    ) -> Result<(&'w Mapping, usize), Status> {
        if self.is_dead() {
            return Err(Status::Disconnected);
        }
        let mapping = window.mapping.as_deref().ok_or(Status::Protocol)?;
        let start = mapping.admit(&window.descriptor, need, offset, len_bytes)?;
        Ok((mapping, start))
    }

    /// Says something to the host, or not at all.
    fn say(&mut self, frame: &Frame<'_>) -> Status {
        if self.is_dead() {
            return Status::Disconnected;
        }
        order_stores();
        // A frame that waits for the socket is the whole bound: the host does not read.
        let waited =
            !self.channel.wants_write() || (self.flush_channel() && !self.channel.wants_write());
        if self.dead {
            return Status::Disconnected;
        }
        if !waited || self.channel.queue(frame, None).is_err() {
            return Status::ReceiverNotReady;
        }
        if self.flush_channel() {
            Status::Ok
        } else {
            Status::Disconnected
        }
    }

    fn flush_channel(&mut self) -> bool {
        self.system_calls += 1;
        let flushed = self.channel.flush().is_ok();
        if !flushed {
            self.lose();
        }
        flushed
    }

    fn lose(&mut self) {
        self.dead = true;
        self.host_lost.store(true, Ordering::Relaxed);
    }

    /// Takes messages of the host, as many as the queue has room for.
    fn receive(&mut self, queue: &mut CompletionQueue) {
        while queue.received.len() < RECEIVED_COUNT_MAX {
            match self.channel.next() {
                Ok(Some(Frame::Message(bytes))) => queue.received.push_back(bytes.to_vec()),
                Ok(None) => {
                    self.system_calls += 1;
                    match self.channel.fill() {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(_) => return self.lose(),
                    }
                }
                Ok(Some(_)) | Err(_) => return self.lose(),
            }
        }
    }
}

impl Endpoint for ShmEndpoint {
    // Each of the trait's methods that call this one has a verb that is known, and keeps its arm alone.
    #[inline(always)]
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        let status = match verb {
            Verb::Read {
                window,
                offset,
                landing,
                len_bytes,
            } => match self.enter(window, Rights::READ, offset, len_bytes) {
                Ok((mapping, start)) => {
                    // SAFETY: `enter` bounds the range; the landing is the caller's promise.
                    ended(unsafe { mapping.view.read(start, landing, len_bytes) })
                }
                Err(status) => status,
            },
            Verb::Write {
                window,
                offset,
                source,
                len_bytes,
                immediate,
            } => {
                let status = match self.enter(window, Rights::WRITE, offset, len_bytes) {
                    Ok((mapping, start)) => {
                        // SAFETY: `enter` bounds the range and checks for WRITE, with which the mapping
                        // is writable; the source is the caller's promise.
                        ended(unsafe { mapping.view.write(start, source, len_bytes) })
                    }
                    Err(status) => status,
                };
                match (status, immediate) {
                    (Status::Ok, Some(value)) => self.tell(window, offset, len_bytes, value),
                    _ => status,
                }
            }
            Verb::Send { message } => {
                check_message(message);
                self.say(&Frame::Message(message))
            }
            Verb::CompareSwap {
                window,
                offset,
                expected,
                new,
            } => {
                self.atomic(window, offset, token, queue, |mapping, start| {
                    mapping.view.compare_swap(start, expected, new)
                });
                return Ok(());
            }
            Verb::FetchAdd {
                window,
                offset,
                addend,
            } => {
                self.atomic(window, offset, token, queue, |mapping, start| {
                    mapping.view.fetch_add(start, addend)
                });
                return Ok(());
            }
        };
        complete(queue, token, status, 0);
        Ok(())
    }

    #[inline]
    fn prefetch_read(&self, window: &RemoteWindow, offset: u64, len_bytes: usize) {
        if let (Some(mapping), Ok(start)) = (&window.mapping, usize::try_from(offset)) {
            mapping.view.prefetch(start, len_bytes);
        }
    }

    #[inline]
    fn prefetch_write(&self, window: &RemoteWindow, offset: u64, len_bytes: usize) {
        if let (Some(mapping), Ok(start)) = (&window.mapping, usize::try_from(offset)) {
            mapping.view.prefetch_address(start, len_bytes);
        }
    }

    fn completes_at_once(&self) -> bool {
        true
    }

    fn flush(&mut self, _queue: &mut CompletionQueue) {
        order_stores();
        if !self.dead && self.channel.wants_write() {
            self.flush_channel();
        }
    }

    fn poll(&mut self, now: Time, queue: &mut CompletionQueue) {
        self.polls = self.polls.wrapping_add(1);
        if self.dead
            || (now.since(self.looked_at) < LOOK_EVERY && !self.polls.is_multiple_of(LOOK_POLLS))
        {
            return;
        }
        self.looked_at = now;
        self.flush(queue);
        if !self.dead {
            self.receive(queue);
        }
    }

    fn revoke_landing(&mut self, _token: Token) {}

    fn outstanding(&self) -> usize {
        0
    }

    #[inline]
    fn is_dead(&self) -> bool {
        self.dead || self.host_lost.load(Ordering::Relaxed)
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.channel.as_raw_fd())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}

impl ShmEndpoint {
    /// The event of a write whose bytes are in place.
    fn tell(&mut self, window: &RemoteWindow, offset: u64, len_bytes: usize, value: u32) -> Status {
        let (id, generation) = (window.descriptor.id, window.descriptor.generation);
        match u32::try_from(len_bytes) {
            Ok(len_bytes) => self.say(&Frame::Immediate {
                id,
                generation,
                offset,
                len_bytes,
                value,
            }),
            Err(_) => Status::OutOfBounds,
        }
    }

    fn atomic(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        token: Token,
        queue: &mut CompletionQueue,
        act: impl FnOnce(&Mapping, usize) -> Result<u64, Dead>,
    ) {
        let entered = self.enter(window, Rights::ATOMIC.with(Rights::WRITE), offset, 8);
        let ended = entered.and_then(|(mapping, start)| {
            if !start.is_multiple_of(8) {
                return Err(Status::OutOfBounds);
            }
            act(mapping, start).map_err(|Dead| Status::Revoked)
        });
        match ended {
            Ok(before) => complete(queue, token, Status::Ok, before),
            Err(status) => complete(queue, token, status, 0),
        }
    }
}

#[inline]
fn ended(copied: Result<(), Dead>) -> Status {
    if copied.is_ok() {
        Status::Ok
    } else {
        Status::Revoked
    }
}

#[inline]
fn complete(queue: &mut CompletionQueue, token: Token, status: Status, value: u64) {
    queue.push(Completion {
        token,
        status,
        value,
    });
}

/// Most messages of the host that wait to be taken.
const RECEIVED_COUNT_MAX: usize = QUEUE_DEPTH;
/// How often `poll` looks at the socket, 0.3 us each time: a fraction of a percent of the worker's
/// time, and far below the failure timeout.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_micros(100);
/// And at every so many polls where the clock stands still.
const LOOK_POLLS: u32 = 64;
