//! Requests between machines: those that went away, those that came, and the calls that carry them.
//!
//! A request has one home, the machine that answers its client, and a ticket there. Whoever ends it
//! tells its home, which answers once: with what came first, or after a while with
//! [`Status::Lost`].

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use cenote_fabric::calls::CallId;
use cenote_fabric::{FAILURE_TIMEOUT, Time};
use cenote_proc::message::{Data, Message, Moved, Refusal};
use cenote_proc::{ClientId, Machine, Request, Response, State, Status};

/// A client of this thread whose request is elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abroad {
    pub client: ClientId,
    pub number: u64,
    /// Where it went; it may be further by now.
    to: Machine,
    give_up: Time,
}

/// Where the client of a request is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub user: u128,
    /// [`super::directory::ME`] after a round trip.
    pub machine: Machine,
    pub ticket: u64,
}

/// What a call to another machine was for.
#[derive(Debug)]
pub(super) enum Sent {
    /// Bytes for a request here, by the executor's token.
    Fetch(u64),
    /// A request, kept until it is known to be there, and until when it is worth sending again.
    Move(Box<Moved>, Home, Time),
    /// Bytes that another machine asked this one for, of a third, and when it is told to ask again.
    Relay(u32, Time),
    /// Answers, kept until they are known to be there.
    Answers(Late),
    /// Stores for second copies, by the executor's token.
    Replicate(u64),
}

/// Answers for another machine, on their way.
#[derive(Debug)]
pub(super) struct Late {
    pub to: Machine,
    /// By their tickets.
    pub responses: Vec<Response>,
    pub give_up: Time,
}

/// See the module's text.
pub(super) struct Journeys {
    thread: usize,
    abroad: HashMap<u64, Abroad>,
    foreign: HashMap<u64, Home>,
    incoming: HashMap<u32, CallId>,
    sent: HashMap<u64, Sent>,
    /// Answers that could not be sent, to be sent again.
    late: Vec<Late>,
    /// Of the names of users here; secret, so that nobody can make two that are one.
    hasher: RandomState,
    serial: u64,
    came: u32,
}

impl Journeys {
    pub(super) fn new(thread: usize) -> Self {
        let hasher = RandomState::new();
        Self {
            thread,
            abroad: HashMap::new(),
            foreign: HashMap::new(),
            incoming: HashMap::new(),
            sent: HashMap::new(),
            late: Vec::new(),
            // Other machines outlive this process: what they still say of its predecessor's tickets
            // is to find nobody.
            serial: hasher.hash_one(thread) >> (u64::BITS - SERIAL_BITS),
            hasher,
            came: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.abroad.is_empty() && self.sent.is_empty() && self.late.is_empty()
    }

    /// The thread of this host that a ticket is of.
    pub(super) fn thread_of(ticket: u64) -> usize {
        usize::try_from(ticket >> THREAD_SHIFT).unwrap_or(usize::MAX)
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Makes a request of another home one of this thread: its number is ours until it goes.
    pub(super) fn admit(&mut self, request: &mut Request, home: Home) -> bool {
        if self.foreign.len() >= FOREIGN_MAX {
            return false;
        }
        request.number = self.next();
        // What a user of many homes has under way is counted together, and hinders nobody else.
        request.client = ClientId(FOREIGN | self.hasher.hash_one(home.user));
        self.foreign.insert(request.number, home);
        true
    }

    /// Whether a client is another machine.
    pub(super) fn is_foreign(client: ClientId) -> bool {
        client.0 & FOREIGN != 0
    }

    /// The home of a request that leaves this thread; `user` is who asked for it if it is from
    /// here.
    pub(super) fn depart(
        &mut self,
        request: &Request,
        to: Machine,
        user: impl FnOnce() -> u128,
        now: Time,
    ) -> Option<Home> {
        if Self::is_foreign(request.client) {
            return self.foreign.remove(&request.number);
        }
        let ticket = (self.thread as u64) << THREAD_SHIFT | self.next();
        let abroad = Abroad {
            client: request.client,
            number: request.number,
            to,
            give_up: now.after(PATIENCE),
        };
        self.abroad.insert(ticket, abroad);
        Some(Home {
            user: user(),
            machine: super::directory::ME,
            ticket,
        })
    }

    /// A request came back unused.
    pub(super) fn take_back(&mut self, request: &mut Request, home: Home) -> bool {
        let is_own = home.machine == super::directory::ME
            && Self::thread_of(home.ticket) == self.thread
            && !Self::is_foreign(request.client);
        if !is_own {
            return self.admit(request, home);
        }
        // Answered meanwhile: then it is over.
        self.abroad.remove(&home.ticket).is_some()
    }

    /// The home of a request that ended here.
    pub(super) fn end(&mut self, number: u64) -> Option<Home> {
        self.foreign.remove(&number)
    }

    /// The client of a ticket, once.
    pub(super) fn redeem(&mut self, ticket: u64) -> Option<Abroad> {
        self.abroad.remove(&ticket)
    }

    /// Tickets that nothing was heard of for too long.
    pub(super) fn overdue(&mut self, now: Time) -> Vec<Abroad> {
        let overdue = self.abroad.extract_if(|_, abroad| abroad.give_up <= now);
        overdue.map(|(_, abroad)| abroad).collect()
    }

    /// Requests that went to a machine whose connection ended.
    pub(super) fn gone(&mut self, machine: Machine) -> Vec<Abroad> {
        let gone = self.abroad.extract_if(|_, abroad| abroad.to == machine);
        gone.map(|(_, abroad)| abroad).collect()
    }

    /// A call of another machine that is not answered yet, as the machine that a message is from.
    pub(super) fn came(&mut self, call: CallId) -> Machine {
        self.came = self.came.wrapping_add(1) & !INCOMING;
        self.incoming.insert(self.came, call);
        Machine(INCOMING | self.came)
    }

    /// The number of such a call.
    pub(super) fn incoming(machine: Machine) -> Option<u32> {
        (machine.0 & INCOMING != 0).then_some(machine.0 & !INCOMING)
    }

    /// Such a call, to be answered now.
    pub(super) fn take_incoming(&mut self, number: u32) -> Option<CallId> {
        self.incoming.remove(&number)
    }

    /// Calls for bytes of a third machine that is silent; it may be gone, and this one is not.
    pub(super) fn overdue_relays(&mut self, now: Time) -> Vec<CallId> {
        let overdue = |_: &u64, sent: &mut Sent| matches!(sent, Sent::Relay(_, at) if *at <= now);
        let incoming = &mut self.incoming;
        let numbers = self.sent.extract_if(overdue).filter_map(|(_, sent)| {
            let Sent::Relay(number, _) = sent else {
                return None;
            };
            incoming.remove(&number)
        });
        numbers.collect()
    }

    /// Keeps answers that did not arrive.
    pub(super) fn keep(&mut self, late: Late) {
        if self.late.len() < LATE_MAX {
            self.late.push(late);
        }
    }

    /// The answers that are to be sent again. A home that was not reached for so long has answered.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<Late> {
        let mut late = std::mem::take(&mut self.late);
        late.retain(|late| now < late.give_up);
        late
    }

    /// A call is made: the token that names it.
    pub(super) fn sent(&mut self, sent: Sent) -> u64 {
        let token = self.next();
        self.sent.insert(token, sent);
        token
    }

    /// What a call was for that has ended.
    pub(super) fn called(&mut self, token: u64) -> Option<Sent> {
        self.sent.remove(&token)
    }
}

/// The answer to a client whose request is lost.
pub(super) fn lost(number: u64) -> Response {
    Response {
        number,
        status: Status::Lost,
        state: State::new(),
    }
}

/// To a fetch that a third machine is to answer: ask again.
pub(super) fn early() -> Vec<u8> {
    let mut bytes = Vec::new();
    let data = Data {
        token: 0,
        bytes: Err(Refusal::Early),
    };
    Message::Data(data).write(&mut bytes);
    bytes
}

/// How long a fetch that was sent on may keep the machine waiting that asked for it: a machine that
/// is silent for the whole timeout is taken for dead, and this one is not.
pub(super) const RELAY: Duration = FAILURE_TIMEOUT.checked_div(2).expect("not by 0");
/// Of clients that are other machines.
const FOREIGN: u64 = 1 << 63;
/// Of machines that are calls of other machines.
const INCOMING: u32 = 1 << 31;
/// Where in a ticket its thread is: there are 256 at most.
const THREAD_SHIFT: u32 = 56;
/// Of the first serial number. All that a process can count fits between it and the thread.
const SERIAL_BITS: u32 = THREAD_SHIFT - 1;
/// Requests of other homes on one thread at most; more are answered `Refused` and tried again.
const FOREIGN_MAX: usize = 1 << 16;
/// Messages with answers that one thread keeps for homes that are not there.
const LATE_MAX: usize = 4096;
/// Longer than a request waits on any one machine for bytes ([`cenote_proc::executor::Limits`]).
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
