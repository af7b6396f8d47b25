//! A server thread's end: it takes calls of all its connections in turn, and answers them.
//!
//! The listener proves clients and gives each connection to the server thread that has the fewest.
//! From then on it is that thread's alone. Each connection has a share of each turn. One whose
//! answers wait for room is not read until they are out.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::pipe::Awaited;
use super::spinner::{Spin, Spinner};
use super::{Answering, Broken, CALL_BYTES_MAX, CALLS_UNDER_WAY_MAX, Handler, Pipe};
use crate::socket::{Epoll, Interest};
use crate::{ClientId, Error, Result, Time, Waker};

/// A call under way at the host, for an answer that comes later.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CallId {
    place: u32,
    /// Which connection of those that had the place.
    connection: u64,
    id: u32,
}

#[cfg(feature = "sim")]
impl CallId {
    /// Of a connection of the simulated network.
    pub(crate) fn simulated(connection: u64, position: u64) -> Self {
        Self {
            place: (position >> 32) as u32,
            connection,
            id: position as u32,
        }
    }

    /// Connection and position.
    pub(crate) fn of_simulation(self) -> (u64, u64) {
        let position = u64::from(self.place) << 32 | u64::from(self.id);
        (self.connection, position)
    }
}

impl CallId {
    /// The connection that the call came by; its server thread uses the number for no other.
    #[must_use]
    pub fn connection(&self) -> u64 {
        self.connection
    }
}

/// What a handler is given.
#[derive(Debug)]
pub struct Call<'a> {
    /// Whose: it has proven the key, and holds a session under this name.
    pub client: ClientId,
    /// For [`Answerer::answer`], when it is answered later.
    pub id: CallId,
    /// Its bytes, at most [`CALL_BYTES_MAX`]. A private copy.
    pub request: &'a [u8],
}

/// What a handler has done with a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answered {
    /// The answer is in the buffer.
    Now,
    /// [`Answerer::answer`] will be called. The client's failure timeout runs meanwhile.
    Later,
    /// No such call: the connection is closed.
    Never(&'static str),
}

/// What a client's session and its connections for calls share: it ends them, and counts them.
#[derive(Clone, Debug)]
pub(crate) struct Membership(Arc<Member>);

#[derive(Debug)]
struct Member {
    client: ClientId,
    ended: AtomicBool,
}

impl Membership {
    pub(crate) fn new(client: ClientId) -> Self {
        Self(Arc::new(Member {
            client,
            ended: AtomicBool::new(false),
        }))
    }

    /// Connections that hold a share, if the caller holds the only other one.
    pub(crate) fn connections(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }
}

/// A proven connection on its way to its server thread.
pub(crate) struct Adopted {
    pub(crate) pipe: Pipe,
    pub(crate) member: Membership,
}

/// The listener's view of its server threads.
#[derive(Default)]
pub(crate) struct Answerers(Vec<Handle>);

struct Handle {
    inbox: Sender<Adopted>,
    waker: Waker,
    connections: Arc<AtomicUsize>,
}

impl Answerers {
    /// Makes the end of one more server thread.
    pub(crate) fn add(&mut self) -> Result<Answerer> {
        let (sender, inbox) = channel();
        let waker = Waker::new()?;
        let epoll = Epoll::new()
            .and_then(|epoll| {
                epoll.add(waker.as_fd(), WAKER_ID, Interest::READ)?;
                Ok(epoll)
            })
            .map_err(|e| Error::os("watch connections for calls", e))?;
        let connections = Arc::new(AtomicUsize::new(0));
        self.0.push(Handle {
            inbox: sender,
            waker: waker.clone(),
            connections: Arc::clone(&connections),
        });
        Ok(Answerer {
            inbox,
            waker,
            epoll,
            count: connections,
            served: Vec::new(),
            adopted: 0,
            ended: Vec::new(),
            answer: Vec::new(),
            turns: 0,
        })
    }

    /// Whether nobody answers calls here.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives a connection to the thread with the fewest; closes it when all are gone.
    pub(crate) fn adopt(&mut self, mut adopted: Adopted) {
        loop {
            let load = |handle: &Handle| handle.connections.load(Ordering::Relaxed);
            let least = (0..self.0.len()).min_by_key(|&index| load(&self.0[index]));
            let Some(index) = least else { return };
            let handle = &self.0[index];
            handle.connections.fetch_add(1, Ordering::Relaxed);
            match handle.inbox.send(adopted) {
                Ok(()) => return handle.waker.wake(),
                Err(refused) => {
                    adopted = refused.0;
                    self.0.swap_remove(index);
                }
            }
        }
    }

    /// Ends all connections that share `member`.
    pub(crate) fn end(&self, member: &Membership) {
        member.0.ended.store(true, Ordering::Release);
        if member.connections() > 0 {
            self.0.iter().for_each(|handle| handle.waker.wake());
        }
    }
}

/// One server thread's end of its connections. Belongs to that thread.
pub struct Answerer {
    inbox: Receiver<Adopted>,
    waker: Waker,
    epoll: Epoll,
    /// Connections here and on their way, for the listener's choice.
    count: Arc<AtomicUsize>,
    served: Vec<Option<Box<Served>>>,
    /// Connections taken in so far.
    adopted: u64,
    /// Connections that ended, for who keeps books of them.
    ended: Vec<u64>,
    /// The answer that is being made.
    answer: Vec<u8>,
    turns: u32,
}

struct Served {
    pipe: Pipe,
    member: Membership,
    number: u64,
    /// Taken and not answered.
    under_way: usize,
    /// Answers without room, oldest first.
    owed: VecDeque<(u32, Vec<u8>)>,
    /// The socket may have something; looked at for streams, where it costs a system call.
    is_ready: bool,
    interest: Interest,
}

impl Answerer {
    /// Ends another thread's [`Answerer::run`] wait, or a waiting [`Answerer::turn`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Connections served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.served.iter().flatten().count()
    }

    /// Answers calls until `stop` is set, and somebody wakes it then. Looks for work without
    /// blocking for as long as that pays, `spin` at most, then blocks: an idle host costs nothing.
    ///
    /// # Errors
    /// `Os`: the system refuses to wait.
    pub fn run(&mut self, stop: &AtomicBool, spin: Spin, handler: Handler<'_>) -> Result<()> {
        let mut spinner = Spinner::new(spin);
        let mut patience = Some(Duration::ZERO);
        while !stop.load(Ordering::Acquire) {
            self.ended.clear();
            if self.turn(patience, handler)? {
                spinner.found();
                patience = Some(Duration::ZERO);
            } else {
                patience = spinner.looks_on(Time::now()).then_some(Duration::ZERO);
            }
        }
        Ok(())
    }

    /// The connections that ended since the last time, as [`CallId::connection`] says. Whoever calls
    /// [`Answerer::turn`] takes them, so that they do not pile up.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    fn has_streams(&self) -> bool {
        let mut served = self.served.iter().flatten();
        served.any(|served| !served.pipe.is_ring())
    }

    /// Waits for sockets and the waker, and notes which have something.
    fn look(&mut self, patience: Option<Duration>) -> Result<()> {
        let ready = self
            .epoll
            .wait(patience)
            .map_err(|e| Error::os("wait for calls", e))?;
        for ready in ready {
            if ready.id == WAKER_ID {
                self.waker.clear();
                self.adopt();
                self.end_members();
            } else if let Some(Some(served)) = usize::try_from(ready.id)
                .ok()
                .and_then(|place| self.served.get_mut(place))
            {
                served.is_ready = true;
            }
        }
        Ok(())
    }

    fn adopt(&mut self) {
        while let Ok(Adopted { pipe, member }) = self.inbox.try_recv() {
            let free = self.served.iter().position(Option::is_none);
            let place = free.unwrap_or(self.served.len());
            if let Err(error) = self.epoll.add(pipe.as_fd(), place as u64, Interest::READ) {
                tracing::warn!(%error, "watch a connection for calls");
                self.count.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            if free.is_none() {
                self.served.push(None);
            }
            self.adopted += 1;
            self.served[place] = Some(Box::new(Served {
                pipe,
                member,
                number: self.adopted,
                under_way: 0,
                owed: VecDeque::new(),
                is_ready: true,
                interest: Interest::READ,
            }));
        }
    }

    fn end_members(&mut self) {
        for place in 0..self.served.len() {
            let served = self.served[place].as_ref();
            if served.is_some_and(|served| served.member.has_ended()) {
                self.end(place, Broken::Closed);
            }
        }
    }

    /// One connection's share of a turn; whether there was anything to do.
    fn serve(&mut self, place: usize, handler: Handler<'_>) -> bool {
        let Some(served) = &mut self.served[place] else {
            return false;
        };
        let number = u32::try_from(place).expect("connections are bounded by clients");
        let turn = served
            .serve(number, &mut self.answer, handler)
            .and_then(|any| served.watch(&self.epoll, place as u64).map(|()| any));
        match turn {
            Ok(any) => any,
            Err(broken) => {
                self.end(place, broken);
                true
            }
        }
    }

    fn end(&mut self, place: usize, why: Broken) {
        let Some(served) = self.served[place].take() else {
            return;
        };
        let client = served.member.0.client;
        self.ended.push(served.number);
        match why {
            Broken::Closed => tracing::debug!(?client, "a connection for calls closed"),
            Broken::Protocol(what) => {
                tracing::warn!(?client, what, "a connection for calls broke the protocol");
            }
            Broken::Forged => {
                tracing::warn!(
                    ?client,
                    "a connection for calls ended: its bytes were changed"
                );
            }
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Answering for Answerer {
    fn turn(&mut self, patience: Option<Duration>, handler: Handler<'_>) -> Result<bool> {
        self.turns = self.turns.wrapping_add(1);
        let mut any = false;
        for place in 0..self.served.len() {
            any |= self.serve(place, handler);
        }
        if any {
            // Sockets are looked at also under load, but seldom.
            if self.turns.is_multiple_of(LOOK_TURNS) || self.has_streams() {
                self.look(Some(Duration::ZERO))?;
            }
            return Ok(true);
        }
        if patience == Some(Duration::ZERO) {
            if self.turns.is_multiple_of(LOOK_TURNS) || self.has_streams() {
                self.look(patience)?;
            } else {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        let mut may_sleep = true;
        for served in self.served.iter().flatten() {
            may_sleep &= served.sleep();
        }
        let looked = self.look(if may_sleep {
            patience
        } else {
            Some(Duration::ZERO)
        });
        for served in self.served.iter().flatten() {
            served.pipe.wake();
        }
        looked.map(|()| false)
    }

    fn answer(&mut self, call: CallId, answer: &[u8]) {
        assert!(
            answer.len() <= CALL_BYTES_MAX,
            "an answer of {} bytes",
            answer.len()
        );
        let place = self.served.get_mut(call.place as usize);
        if let Some(Some(served)) = place
            && served.number == call.connection
        {
            served.owed.push_back((call.id, answer.to_vec()));
            served.is_ready = true;
        }
    }
}

impl Served {
    fn serve(
        &mut self,
        place: u32,
        answer: &mut Vec<u8>,
        handler: Handler<'_>,
    ) -> std::result::Result<bool, Broken> {
        if self.member.has_ended() {
            return Err(Broken::Closed);
        }
        let mut any = self.pay()?;
        let mut may_fill = std::mem::take(&mut self.is_ready);
        if may_fill && self.pipe.is_ring() && !self.owed.is_empty() {
            // Wakes and the peer's end are taken also of one that is not read.
            self.pipe.fill()?;
            may_fill = false;
        }
        for taken in 0..CALLS_PER_TURN {
            if !self.owed.is_empty() {
                break;
            }
            if taken > 0 && taken.is_multiple_of(ANSWERS_AT_ONCE) && self.pipe.shares_memory() {
                self.pipe.release()?;
                self.pipe.flush()?;
            }
            let Some((id, request)) = self.pipe.next()? else {
                // Of a stream more is taken; of rings only wakes, and the end.
                if may_fill && self.pipe.fill()? {
                    may_fill = !self.pipe.is_ring();
                    continue;
                }
                may_fill = false;
                break;
            };
            any = true;
            if self.under_way == CALLS_UNDER_WAY_MAX {
                return Err(Broken::Protocol("too many calls under way"));
            }
            self.under_way += 1;
            answer.clear();
            let call = Call {
                client: self.member.0.client,
                id: CallId {
                    place,
                    connection: self.number,
                    id,
                },
                request,
            };
            match handler(call, answer) {
                Answered::Now if self.pipe.push(id, answer)? => self.under_way -= 1,
                Answered::Now => self.owed.push_back((id, answer.clone())),
                Answered::Later => {}
                Answered::Never(why) => return Err(Broken::Protocol(why)),
            }
        }
        // What the share did not reach is taken in the next turn.
        self.is_ready |= may_fill;
        self.pipe.release()?;
        self.pipe.flush()?;
        Ok(any)
    }

    /// Sends answers that had no room; whether any went out.
    fn pay(&mut self) -> std::result::Result<bool, Broken> {
        let mut any = false;
        while let Some((id, answer)) = self.owed.front() {
            if !self.pipe.push(*id, answer)? {
                self.pipe.flush()?;
                if !self.pipe.push(*id, answer)? {
                    break;
                }
            }
            self.owed.pop_front();
            self.under_way -= 1;
            any = true;
        }
        Ok(any)
    }

    /// Prepares for a wait; false: there is something to do already. Call it after a turn that found
    /// nothing: answers that wait then have no room.
    fn sleep(&self) -> bool {
        if self.owed.is_empty() {
            !self.is_ready && self.pipe.sleep(Awaited::Messages)
        } else {
            // What could be read stays unread until they are out. A peer that takes none would keep
            // this thread awake with it.
            self.pipe.sleep(Awaited::Room)
        }
    }

    /// Tells the kernel what to wait for: of a stream whose answers wait, room alone.
    fn watch(&mut self, epoll: &Epoll, place: u64) -> std::result::Result<(), Broken> {
        let interest = Interest {
            read: self.pipe.is_ring() || self.owed.is_empty(),
            write: self.pipe.wants_write(),
        };
        if interest != self.interest {
            let changed = epoll.change(self.pipe.as_fd(), place, interest);
            changed.map_err(|_| Broken::Closed)?;
            self.interest = interest;
        }
        Ok(())
    }
}

/// Calls of one connection in a turn: long enough that a system call is shared, short enough that
/// the others do not wait for long.
const CALLS_PER_TURN: usize = 32;
/// Answers that a peer is given together where that takes no system call: it works on them while the
/// next are made.
const ANSWERS_AT_ONCE: usize = 8;
/// Turns without a look at sockets, where calls come through rings.
const LOOK_TURNS: u32 = 64;
const WAKER_ID: u64 = u64::MAX;
