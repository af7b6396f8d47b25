//! One end of a connection for calls over a queue pair.
//!
//! Each side has a ring in registered memory that the other WRITEs messages into, at the places
//! where they are in its own copy of that ring. Behind the messages of a flush goes one WRITE with
//! immediate, the *notice*: its number says how far messages are in the ring, its bytes how much
//! was taken out of the ring of the other direction. A notice takes a receive, which is what wakes
//! a side that sleeps; who does not sleep finds it in the completion queue without a system call.
//!
//! Nobody runs out of receives: a notice has a call or an answer, of which 256 are under way, or it
//! gives back a quarter of a ring, and more than four such are never on their way.
//!
//! Pairs are named over the encrypted TCP connection, as on data connections; its end is the end.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_verbs::{
    Access, Act, Completed, Completions, Device, Ended, Local, Pages, Pair, Registered, Request,
};

use super::Tuning;
use super::counts::{Incoming, Outgoing, RING_BYTES, parts};
use crate::calls::{Broken, CALL_BYTES_MAX, CALLS_UNDER_WAY_MAX};
use crate::calls::{HEADER_BYTES, decode_header, encode_header};
use crate::channel::Channel;
use crate::frame::{Frame, PairName};
use crate::socket::{Epoll, Interest};
use crate::{Error, Generation, Result, Rights, WindowDescriptor, WindowId, wait};

/// Both rings of one side, and what moves their bytes.
pub(crate) struct PairedRings {
    // Dropped first: it works on what follows.
    pair: Pair,
    completions: Completions,
    /// Written by the peer: its count, then its messages.
    inbound: Registered<Pages>,
    /// What this side writes into the peer's memory, at the same places.
    outbound: Registered<Pages>,
    channel: Channel,
    /// Readable when the channel or the completion queue has something.
    epoll: Epoll,
    side: Side,
    stage: Stage,
    out: Outgoing,
    come: Incoming,
    /// Requests given to the pair, and those that are known to be done.
    posted: u64,
    done: u64,
    /// Notices sent: each has its bytes in a place of its own.
    notices: u64,
    /// The message that was taken last.
    message: Box<[u8]>,
    taken: Vec<Completed>,
    tuning: Tuning,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Client,
    Host,
}

/// How far the two ends know each other.
enum Stage {
    Strange,
    /// The peer's pair is known, its memory is not.
    Named(PairName),
    Joined(Remote),
}

/// The peer's memory.
#[derive(Clone, Copy)]
struct Remote {
    address: u64,
    key: u32,
}

impl PairedRings {
    /// The host's end, on a connection that was welcomed. It waits for its client's name.
    ///
    /// # Errors
    /// `Os`: the device refuses.
    pub(crate) fn of_host(device: &Arc<Device>, channel: Channel) -> Result<Self> {
        Self::new(device, channel, Side::Host, Tuning::default())
    }

    /// The client's end; returns when the host has joined it.
    ///
    /// # Errors
    /// `Os`: the device refuses; `Timeout`, `Closed`, `Protocol`: the host does not join.
    pub(crate) fn connect(
        device: &Arc<Device>,
        channel: Channel,
        tuning: Tuning,
        timeout: Duration,
    ) -> Result<Self> {
        let deadline = Instant::now() + timeout;
        let mut rings = Self::new(device, channel, Side::Client, tuning)?;
        rings.say_name()?;
        loop {
            rings.hear()?;
            if let Stage::Joined(_) = rings.stage {
                return Ok(rings);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout(timeout));
            }
            wait(&[rings.channel.as_raw_fd()], Some(left))?;
        }
    }

    fn new(device: &Arc<Device>, channel: Channel, side: Side, tuning: Tuning) -> Result<Self> {
        let os = |e| Error::os(format!("use the RDMA device {}", device.name()), e);
        let completions = Completions::new(device, WORK_COUNT_MAX + RECEIVE_COUNT).map_err(os)?;
        let registered =
            |access| Registered::new(device, Pages::new(MEMORY_BYTES), access).map_err(os);
        let (inbound, outbound) = (registered(Rights::WRITE.into())?, registered(Access::NONE)?);
        let pair = Pair::new(&completions, WORK_COUNT_MAX, RECEIVE_COUNT).map_err(os)?;
        for place in 0..RECEIVE_COUNT as u64 {
            pair.receive_notice(RECEIVE | place).map_err(os)?;
        }
        let watch = || {
            let epoll = Epoll::new()?;
            epoll.add(channel.as_fd(), 0, Interest::READ)?;
            epoll.add(completions.fd(), 0, Interest::READ)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(os)?;
        Ok(Self {
            pair,
            completions,
            inbound,
            outbound,
            channel,
            epoll,
            side,
            stage: Stage::Strange,
            out: Outgoing::default(),
            come: Incoming::default(),
            posted: 0,
            done: 0,
            notices: 0,
            message: vec![0; CALL_BYTES_MAX].into(),
            taken: Vec::new(),
            tuning,
        })
    }

    /// Says what the peer needs to write here.
    fn say_name(&mut self) -> Result<()> {
        let memory = Frame::Keyed {
            descriptor: WindowDescriptor {
                id: WindowId(0),
                generation: Generation(0),
                len_bytes: MEMORY_BYTES as u64,
                rights: Rights::WRITE,
            },
            address: self.inbound.address(),
            key: self.inbound.remote_key(),
        };
        self.channel
            .queue(&Frame::Join(self.pair.address().into()), None)?;
        self.channel.queue(&memory, None)?;
        self.channel.flush()
    }

    /// Takes what the peer says beside the pair.
    fn hear(&mut self) -> Result<()> {
        self.channel.flush()?;
        loop {
            match (self.channel.next()?, &self.stage) {
                (Some(Frame::Join(peer)), Stage::Strange) => self.stage = Stage::Named(peer),
                (
                    Some(Frame::Keyed {
                        descriptor,
                        address,
                        key,
                    }),
                    Stage::Named(peer),
                ) => {
                    if descriptor.len_bytes != MEMORY_BYTES as u64 {
                        return Err(Error::Protocol("rings of another size"));
                    }
                    let connected = self.pair.connect(&(*peer).into());
                    connected.map_err(|e| Error::os("connect a queue pair", e))?;
                    self.stage = Stage::Joined(Remote { address, key });
                    // Not before: what comes to a pair that is not connected is lost.
                    if self.side == Side::Host {
                        self.say_name()?;
                    }
                }
                (Some(_), _) => return Err(Error::Protocol("not on a connection for calls")),
                (None, _) => {
                    if !self.channel.fill()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Looks beside the pair: for the peer's name, and for its end.
    pub(crate) fn fill(&mut self) -> std::result::Result<(), Broken> {
        self.hear().map_err(|error| match error {
            Error::Protocol(what) => Broken::Protocol(what),
            _ => Broken::Closed,
        })
    }

    /// Puts a message in, untold; false: there is no room for it now.
    pub(crate) fn push(&mut self, id: u32, body: &[u8]) -> std::result::Result<bool, Broken> {
        if self.out.room() < HEADER_BYTES + body.len() {
            self.reap()?;
            if self.out.room() < HEADER_BYTES + body.len() {
                return Ok(false);
            }
        }
        self.put(&encode_header(id, body.len()));
        self.put(body);
        Ok(true)
    }

    fn put(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for (at, len) in parts(self.out.tail(), bytes.len()) {
            let (part, after) = rest.split_at(len);
            // The peer has taken what was there, so no request that is still carried out reads it.
            self.outbound.write(RING_START + at, part);
            rest = after;
        }
        self.out.put(bytes.len());
    }

    /// Writes what was put in, and tells of it, with one call of the device.
    pub(crate) fn flush(&mut self) -> std::result::Result<(), Broken> {
        let Stage::Joined(remote) = self.stage else {
            return Ok(());
        };
        let (told, tail) = (self.out.told(), self.out.tail());
        if told == tail && !self.come.owes_room() {
            return Ok(());
        }
        if self.posted - self.done + WORKS_OF_FLUSH > WORK_COUNT_MAX as u64 {
            self.reap()?;
            if self.posted - self.done + WORKS_OF_FLUSH > WORK_COUNT_MAX as u64 {
                // The next flush; a completion wakes whoever sleeps until then.
                return Ok(());
            }
        }
        let key = remote.key;
        for (at, len) in parts(told, (tail - told) as usize) {
            if len > 0 {
                let address = remote.address.wrapping_add((RING_START + at) as u64);
                self.request(Act::Write { address, key }, RING_START + at, len);
            }
        }
        let immediate = self.out.tell();
        let at = (self.notices % NOTICE_PLACES) as usize * 8;
        self.notices += 1;
        let said = self.come.say().to_le_bytes();
        // Requests that are not done have other places.
        self.outbound.write(at, &said);
        let notice = Act::WriteNotice {
            address: remote.address,
            key,
            immediate,
        };
        self.request(notice, at, said.len());
        let posted = self.pair.post(self.tuning.signal_every());
        posted.map_err(|error| {
            tracing::warn!(%error, "give requests to an RDMA device");
            Broken::Closed
        })
    }

    fn request(&mut self, act: Act, at: usize, len_bytes: usize) {
        let is_inline = self.tuning.inline_writes && len_bytes <= self.pair.inline_bytes();
        let local = match is_inline {
            true => Local::InlinePages {
                pages: self.outbound.memory(),
                at,
                len_bytes,
            },
            false => Local::Part(self.outbound.part(at, len_bytes)),
        };
        self.pair.add(&Request {
            id: self.posted,
            act,
            local,
            fence: false,
        });
        self.posted += 1;
    }

    /// Takes the next message that is here.
    pub(crate) fn next(&mut self) -> std::result::Result<Option<(u32, &[u8])>, Broken> {
        if self.come.there() == 0 {
            self.reap()?;
        }
        if self.come.there() == 0 {
            return Ok(None);
        }
        if self.come.there() < HEADER_BYTES {
            return Err(Broken::Protocol("half a header was told of"));
        }
        let mut header = [0; HEADER_BYTES];
        self.copy(self.come.head(), &mut header);
        let (len, id) = decode_header(header)?;
        if self.come.there() < HEADER_BYTES + len {
            return Err(Broken::Protocol("half a message was told of"));
        }
        let mut message = std::mem::take(&mut self.message);
        self.copy(self.come.head() + HEADER_BYTES as u64, &mut message[..len]);
        self.message = message;
        self.come.take(HEADER_BYTES + len);
        Ok(Some((id, &self.message[..len])))
    }

    /// Copies bytes out of the ring here, at a count.
    fn copy(&self, count: u64, bytes: &mut [u8]) {
        let mut rest = bytes;
        let len = rest.len();
        for (at, len) in parts(count, len) {
            let (part, after) = rest.split_at_mut(len);
            // A peer that writes there meanwhile breaks its own message, which is checked after it
            // was copied.
            self.inbound.memory().read(RING_START + at, part);
            rest = after;
        }
    }

    /// Gives room back, once it is worth a notice.
    pub(crate) fn release(&mut self) -> std::result::Result<(), Broken> {
        if self.come.owes_room() {
            return self.flush();
        }
        Ok(())
    }

    /// Has the descriptor become readable with the next completion. False: one came meanwhile, or
    /// the connection is over, which the next look finds.
    pub(crate) fn sleep(&mut self) -> bool {
        match self.completions.arm() {
            Ok(false) => true,
            // What came before the queue was armed is not told.
            Ok(true) => matches!(self.reap(), Ok(false)),
            Err(_) => false,
        }
    }

    /// Takes completions until there are none; whether there was one.
    fn reap(&mut self) -> std::result::Result<bool, Broken> {
        let mut any = false;
        let mut taken = std::mem::take(&mut self.taken);
        let ended = loop {
            taken.clear();
            match self.completions.take(&mut taken) {
                Ok(0) => break Ok(any),
                Ok(_) => any = true,
                Err(error) => {
                    tracing::warn!(%error, "look for completions");
                    break Err(Broken::Closed);
                }
            }
            if let Some(broken) = taken.iter().find_map(|one| self.complete(one).err()) {
                break Err(broken);
            }
        };
        self.taken = taken;
        ended
    }

    fn complete(&mut self, completed: &Completed) -> std::result::Result<(), Broken> {
        match completed.ended {
            Ended::Ok => {}
            Ended::Refused => return Err(Broken::Protocol("the peer's ring was taken away")),
            Ended::Silent | Ended::Flushed => return Err(Broken::Closed),
            Ended::Broken(status) => {
                tracing::warn!(status, "a request broke its queue pair");
                return Err(Broken::Closed);
            }
        }
        if completed.id & RECEIVE == 0 {
            self.done = self.done.max(completed.id + 1);
            return Ok(());
        }
        let notice = completed.immediate;
        let tail = notice.ok_or(Broken::Protocol("a message that is no notice"))?;
        let mut said = [0; 8];
        // The peer may write there meanwhile, and what is read is checked.
        self.inbound.memory().read(0, &mut said);
        self.out.hear(u64::from_le_bytes(said))?;
        self.come.hear(tail)?;
        let offered = self.pair.receive_notice(completed.id);
        offered.map_err(|error| {
            tracing::warn!(%error, "offer a receive to an RDMA device");
            Broken::Closed
        })
    }

    pub(crate) fn system_calls(&self) -> u64 {
        self.completions.system_calls()
    }
}

impl AsFd for PairedRings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The peer's count, or bytes of this side's notices; then the ring.
const RING_START: usize = 4096;
const MEMORY_BYTES: usize = RING_START + RING_BYTES;
/// Requests that the device has at a time, and what a flush adds to them at most.
const WORK_COUNT_MAX: usize = 256;
const WORKS_OF_FLUSH: u64 = 3;
/// Places of notices' bytes: more than there are requests.
const NOTICE_PLACES: u64 = (RING_START / 8) as u64;
const _: () = assert!(NOTICE_PLACES > WORK_COUNT_MAX as u64);
/// Notices that may wait here: one for each call or answer, and those that give room back.
const RECEIVE_COUNT: usize = CALLS_UNDER_WAY_MAX + 8;
/// Marks completions of receives.
const RECEIVE: u64 = 1 << 63;
