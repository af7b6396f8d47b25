//! Datagrams: each request in one has a reply of its own, in as many datagrams as it takes.
//!
//! What a reply cannot wait for (room in the socket, memory, a place among those under way) it is lost
//! for, as a datagram may be lost anywhere else.
//!
//! Anybody can send datagrams in another's name. So a line that is no request is not answered, and nothing
//! behind it is: it may be another server's reply, which that server would answer in its turn.

use std::collections::VecDeque;
use std::net::SocketAddr;

use cenote_kv::protocol::udp::{datagrams, request};
use cenote_kv::protocol::{Error, Parser, Step, binary};
use mio::net::UdpSocket;

use super::backend::Backend;
use super::binary::Gate;
use super::core::Core;
use super::session::Session;

/// Datagrams of which not all requests are served ...
const ARRIVALS_MAX: usize = 64;
/// ... and their bytes, with which no more are taken from the sockets.
const ARRIVED_BYTES_MAX: usize = 4 * DATAGRAM_BYTES_MAX;
/// Longest datagram that there can be.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// A request under way, and where its reply goes.
pub(super) struct Exchange {
    socket: usize,
    peer: SocketAddr,
    request_id: u16,
    pub(super) session: Session,
    /// Memory that is counted for it.
    pub(super) counted: usize,
    /// It is in the queue of those that have a turn.
    pub(super) is_queued: bool,
}

/// A datagram that has come.
pub(super) struct Arrival {
    socket: usize,
    peer: SocketAddr,
    request_id: u16,
    requests: Vec<u8>,
    taken: usize,
    parser: Parser,
    messages: binary::Parser,
}

/// The sockets of a worker.
pub(super) struct Sockets {
    sockets: Vec<UdpSocket>,
    is_readable: Vec<bool>,
    buffer: Vec<u8>,
    /// What has come and is not served to its end.
    pub(super) arrivals: VecDeque<Arrival>,
}

impl Sockets {
    pub(super) fn new(sockets: Vec<UdpSocket>) -> Self {
        let is_readable = vec![true; sockets.len()];
        let length = if sockets.is_empty() {
            0
        } else {
            DATAGRAM_BYTES_MAX
        };
        Self {
            sockets,
            is_readable,
            buffer: vec![0; length],
            arrivals: VecDeque::new(),
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut UdpSocket> {
        self.sockets.iter_mut()
    }

    pub(super) fn note_readable(&mut self, socket: usize) {
        self.is_readable[socket] = true;
    }

    /// Whether there is more to serve, or some socket may have more.
    pub(super) fn has_more(&self) -> bool {
        !self.arrivals.is_empty() || self.is_readable.contains(&true)
    }

    /// Takes what has come, as far as there is room.
    pub(super) fn receive<B: Backend>(&mut self, core: &Core<B>) {
        let mut bytes: usize = self.arrivals.iter().map(Arrival::bytes).sum();
        for (index, socket) in self.sockets.iter().enumerate() {
            while self.is_readable[index]
                && self.arrivals.len() < ARRIVALS_MAX
                && bytes < ARRIVED_BYTES_MAX
            {
                let (length, peer) = match socket.recv_from(&mut self.buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        self.is_readable[index] = false;
                        break;
                    }
                    // Said of an earlier datagram that went out.
                    Err(_) => continue,
                };
                core.traffic().bytes_read.add(length as u64);
                let Some((request_id, requests)) = request(&self.buffer[..length]) else {
                    continue;
                };
                bytes += requests.len();
                self.arrivals.push_back(Arrival {
                    socket: index,
                    peer,
                    request_id,
                    requests: requests.to_vec(),
                    taken: 0,
                    parser: Parser::new(core.shared.settings.limits),
                    messages: binary::Parser::new(core.shared.settings.limits),
                });
            }
        }
    }

    /// Sends a reply that is whole.
    pub(super) fn send<B: Backend>(&self, core: &Core<B>, exchange: &Exchange) {
        let reply = exchange.session.replies.unsent();
        let Some(datagrams) = datagrams(exchange.request_id, reply) else {
            return;
        };
        for (header, part) in datagrams {
            let datagram = [&header[..], part].concat();
            let sent = self.sockets[exchange.socket].send_to(&datagram, exchange.peer);
            let Ok(length) = sent else {
                return;
            };
            core.traffic().bytes_written.add(length as u64);
        }
    }
}

impl Arrival {
    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.requests.len()
    }

    /// Serves the next request of the datagram; nothing where there is none any more.
    pub(super) fn next<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        session: impl FnOnce() -> Session,
    ) -> Option<Exchange> {
        if self.requests.get(self.taken) == Some(&binary::REQUEST_MAGIC) {
            return self.next_message(core, session);
        }
        loop {
            let bytes = &self.requests[self.taken..];
            let (step, taken) = match self.parser.parse(bytes) {
                Step::More { .. } | Step::Close(_) => return None,
                Step::Skipped { taken } => {
                    self.taken += taken;
                    continue;
                }
                Step::Refused { refusal, .. } if refusal.error == Error::Unknown => return None,
                step @ (Step::Request { taken, .. } | Step::Refused { taken, .. }) => (step, taken),
            };
            let mut session = session();
            match step {
                Step::Request { request, .. } => {
                    session.request(core, &request, &bytes[..taken], None);
                }
                Step::Refused { refusal, .. } => session.refuse(core, &refusal, &bytes[..taken]),
                Step::More { .. } | Step::Skipped { .. } | Step::Close(_) => {
                    unreachable!("was left above")
                }
            }
            self.taken += taken;
            return Some(self.exchange(session));
        }
    }

    /// The same where it is in the binary protocol.
    fn next_message<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        session: impl FnOnce() -> Session,
    ) -> Option<Exchange> {
        loop {
            let bytes = &self.requests[self.taken..];
            match self.messages.parse(bytes, true) {
                binary::Step::Skipped { taken } => self.taken += taken,
                binary::Step::Message { message, taken } => {
                    let mut session = session();
                    session.message(core, &message, &bytes[..taken], &mut Gate::Open);
                    self.taken += taken;
                    return Some(self.exchange(session));
                }
                binary::Step::Refused { refusal, taken } => {
                    let mut session = session();
                    session.refuse_message(core, &refusal);
                    let left = self.requests.len() - self.taken;
                    self.taken += if refusal.is_end { left } else { taken };
                    return Some(self.exchange(session));
                }
                binary::Step::More { .. } | binary::Step::Close => return None,
            }
        }
    }

    fn exchange(&self, session: Session) -> Exchange {
        Exchange {
            socket: self.socket,
            peer: self.peer,
            request_id: self.request_id,
            session,
            counted: 0,
            is_queued: false,
        }
    }
}

impl Exchange {
    /// Whether the reply is whole, or never will be.
    pub(super) fn is_over(&self) -> bool {
        self.session.replies.is_settled() && (!self.session.has_more() || self.is_too_long())
    }

    /// Whether more of the reply can be had now.
    pub(super) fn may_go_on(&self) -> bool {
        self.session.has_more() && !self.session.is_held_up()
    }

    /// Whether a reply that is over is not sent: one that is too long for a stream's buffer is too long for
    /// datagrams, whether it is whole or stopped in the middle.
    pub(super) fn is_too_long(&self) -> bool {
        self.session.is_held_up()
    }
}
