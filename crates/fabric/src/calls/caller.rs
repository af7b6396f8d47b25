//! A client thread's end over sockets: calls by id, answers, and the failure timeout.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::pipe::Awaited;
use super::{Broken, CALLS_UNDER_WAY_MAX, Caller, CallsFull, OnAnswer, Pipe};
use crate::channel::Channel;
use crate::frame::Frame;
use crate::memory::Mapping;
use crate::socket::{Epoll, Interest};
use crate::{Error, FAILURE_TIMEOUT, Result, Status, Time, Token, Waker};

/// Takes the rings that a host grants on a fresh connection, if they are here; `channel` has no
/// more to say then.
///
/// # Errors
/// `Protocol`: it is something else; `Os`: they cannot be mapped; `Closed`.
pub(crate) fn receive_rings(channel: &mut Channel) -> Result<Option<Mapping>> {
    let descriptor = loop {
        let granted = match channel.next()? {
            Some(Frame::Attached {
                descriptor,
                granted: true,
            }) => Some(descriptor),
            Some(_) => return Err(Error::Protocol("no rings were granted")),
            None => None,
        };
        if let Some(descriptor) = granted {
            break descriptor;
        }
        if !channel.fill()? {
            return Ok(None);
        }
    };
    if descriptor.len_bytes != super::ring::MEMORY_BYTES as u64 {
        return Err(Error::Protocol("rings of another size"));
    }
    let fd = channel.take_descriptor()??;
    Mapping::new(fd.as_fd(), descriptor).map(Some)
}

/// A connection over `shm` or `tcp`.
pub(crate) struct SocketCaller {
    pipe: Pipe,
    /// Calls under way, by the low byte of their id.
    slots: Vec<Option<Slot>>,
    free: Vec<u8>,
    /// Calls made so far: the upper bytes of ids, so that no answer is taken for another's.
    made: u32,
    dead: Option<Status>,
    /// When the host last answered, or was first owed an answer of.
    heard_at: Option<Time>,
    /// A call was refused for want of room, so this thread waits for some.
    wants_room: bool,
    looked_at: Time,
    polls: u32,
    /// Readable when the socket is readable or writable; made when a send first blocks.
    both_ways: Option<Epoll>,
    /// Always readable; made once, for waits that are to end at once.
    ready: Waker,
    /// Shared with the session, which finds out when the host is gone. The end of this connection
    /// alone says nothing of it.
    host_lost: Arc<AtomicBool>,
}

struct Slot {
    id: u32,
    token: Token,
}

impl SocketCaller {
    /// A caller on a connection whose handshake is done.
    ///
    /// # Errors
    /// `Os`: no descriptor is left.
    pub(crate) fn new(pipe: Pipe, host_lost: Arc<AtomicBool>) -> Result<Self> {
        let ready = Waker::new()?;
        ready.wake();
        Ok(Self {
            pipe,
            slots: Vec::new(),
            free: Vec::new(),
            made: 0,
            dead: None,
            heard_at: None,
            wants_room: false,
            looked_at: Time(0),
            polls: 0,
            both_ways: None,
            ready,
            host_lost,
        })
    }

    /// A free slot for a call; made while there are fewer than may be under way.
    fn slot(&mut self) -> Option<u8> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = u8::try_from(self.slots.len()).ok()?;
        self.slots.push(None);
        Some(slot)
    }

    fn fail(&mut self, status: Status) {
        if let Status::Protocol | Status::Forged = status {
            tracing::warn!(?status, "a connection for calls ended");
        }
        self.dead = Some(status);
    }

    /// Ends everything under way.
    fn end_all(&mut self, status: Status, on_answer: OnAnswer<'_>) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(Slot { token, .. }) = slot.take() {
                self.free
                    .push(u8::try_from(index).expect("there are 256 slots at most"));
                on_answer(token, Err(status));
            }
        }
    }

    /// Takes the answers that are here; whether there were any.
    fn take(&mut self, now: Time, on_answer: OnAnswer<'_>) -> std::result::Result<bool, Broken> {
        let mut any = false;
        loop {
            while let Some((id, body)) = self.pipe.next()? {
                let index = (id & 0xFF) as usize;
                let place = self.slots.get_mut(index);
                let slot = place
                    .and_then(|slot| slot.take_if(|slot| slot.id == id))
                    .ok_or(Broken::Protocol("an answer that nobody waits for"))?;
                self.free.push((id & 0xFF) as u8);
                any = true;
                on_answer(slot.token, Ok(body));
            }
            self.pipe.release()?;
            if self.pipe.is_ring() && !self.is_look_due(now) {
                return Ok(any);
            }
            let is_ring = self.pipe.is_ring();
            if !self.pipe.fill()? || is_ring {
                return Ok(any);
            }
        }
    }

    /// Whether the socket beside rings is to be looked at: it tells of the host's end alone.
    fn is_look_due(&mut self, now: Time) -> bool {
        self.polls = self.polls.wrapping_add(1);
        let due = now.since(self.looked_at) >= LOOK_EVERY || self.polls.is_multiple_of(LOOK_POLLS);
        if due {
            self.looked_at = now;
        }
        due
    }

    /// Sends; makes what tells of room once the socket is full.
    fn send(&mut self) -> std::result::Result<(), Broken> {
        self.pipe.flush()?;
        if self.pipe.wants_write() && self.both_ways.is_none() {
            let epoll = Epoll::new().and_then(|epoll| {
                epoll.add(self.pipe.as_fd(), 0, BOTH)?;
                Ok(epoll)
            });
            self.both_ways = Some(epoll.map_err(|_| Broken::Closed)?);
        }
        Ok(())
    }
}

impl Caller for SocketCaller {
    fn call(&mut self, request: &[u8], token: Token) -> std::result::Result<(), CallsFull> {
        if self.outstanding() == CALLS_UNDER_WAY_MAX {
            return Err(CallsFull);
        }
        if self.outstanding() == 0 {
            self.heard_at = None;
        }
        let index = self.slot().ok_or(CallsFull)?;
        let id = self.made << 8 | u32::from(index);
        if self.dead.is_none() {
            match self.pipe.push(id, request) {
                Ok(true) => self.made = self.made.wrapping_add(1),
                Ok(false) => {
                    self.free.push(index);
                    self.wants_room = true;
                    return Err(CallsFull);
                }
                Err(broken) => self.fail(broken.status()),
            }
        }
        self.slots[usize::from(index)] = Some(Slot { id, token });
        Ok(())
    }

    fn flush(&mut self) {
        if self.dead.is_none()
            && let Err(broken) = self.send()
        {
            self.fail(broken.status());
        }
    }

    fn poll(&mut self, now: Time, on_answer: OnAnswer<'_>) {
        self.flush();
        self.wants_room = false;
        if self.dead.is_none() {
            let taken = if self.pipe.wake() {
                self.pipe.fill().map(drop)
            } else {
                Ok(())
            };
            match taken.and_then(|()| self.take(now, on_answer)) {
                Ok(true) => self.heard_at = Some(now),
                Ok(false) => {}
                Err(broken) => self.fail(broken.status()),
            }
        }
        if self.outstanding() > 0 && self.dead.is_none() {
            // Taken first: a client that was itself stopped finds the answers, not the silence.
            let heard_at = *self.heard_at.get_or_insert(now);
            if now.since(heard_at) >= FAILURE_TIMEOUT {
                self.fail(Status::Timeout);
            } else if self.host_lost.load(Ordering::Relaxed) {
                self.fail(Status::Disconnected);
            }
        }
        if let Some(status) = self.dead {
            self.end_all(status, on_answer);
        }
    }

    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_dead(&self) -> bool {
        self.dead.is_some() || self.host_lost.load(Ordering::Relaxed)
    }

    fn fd(&self) -> Option<RawFd> {
        let awaited = if self.wants_room {
            Awaited::MessagesAndRoom
        } else {
            Awaited::Messages
        };
        if self.dead.is_some() || !self.pipe.sleep(awaited) {
            return Some(self.ready.as_fd().as_raw_fd());
        }
        match &self.both_ways {
            Some(epoll) if self.pipe.wants_write() => Some(epoll.as_fd().as_raw_fd()),
            _ => Some(self.pipe.as_raw_fd()),
        }
    }

    fn system_calls(&self) -> u64 {
        self.pipe.system_calls()
    }
}

const BOTH: Interest = Interest {
    read: true,
    write: true,
};
/// How often the socket beside rings is looked at: a fraction of a percent of the thread's time.
const LOOK_EVERY: Duration = Duration::from_micros(100);
/// And at every so many polls where the clock stands still.
const LOOK_POLLS: u32 = 64;
