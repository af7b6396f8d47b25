//! One client's data connection as the host serves it: requests in, effects, responses out.
//!
//! Requests are executed in the order of the stream. Without records a WRITE's payload that arrived
//! with its header is copied out of the inbox, still in the first-level cache, and the rest is
//! received straight into the window. With records all of it is copied out of the inbox, where its
//! record's tag was checked. Responses are [`Answers`]'.
//!
//! Every access to window memory, system calls included, happens under a
//! [`WindowGuard`](crate::windows::WindowGuard), and no guard outlives the call that took it. A
//! connection that does not take its responses is not read any further, so all of its memory is
//! what [`Connection::new`] allots.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::squeue;

use super::agent::AgentEvent;
use super::answers::{Answer, Answers, is_fault};
use super::bench::{Bench, SCRATCH_BYTES};
use super::gather::Patience;
use super::inbox::Inbox;
use super::wire::{REQUEST_BYTES, Request, Verb};
use crate::record::{RecordError, RecordOpener, RecordSealer};
use crate::{ClientId, MESSAGE_BYTES_MAX, Rights, Status, WindowId};

/// Room for requests that arrived and are not executed. Holds the longest message, and a burst
/// of 32 pages: what does not fit costs a receive of its own, and wakes the client in between.
const INBOX_BYTES: usize = 160 * 1024;

/// A payload of which more than that is missing is received where it goes, by calls of its own.
const BULK_BYTES: usize = 64 * 1024;

/// Receives per turn, so that one busy connection cannot starve the others.
const ROUNDS: usize = 4;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Interest {
    /// More requests.
    Requests,
    /// Room for responses; requests are left in the socket meanwhile.
    Room,
}

/// What a ring does next for a connection.
pub(super) enum Turn {
    /// Sends this, and receives.
    Send(squeue::Entry),
    /// Receives.
    Receive,
    /// Waits for room for responses; nothing is executed meanwhile.
    Room,
}

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum End {
    Closed,
    Protocol(&'static str),
    /// What came is not what the client sent.
    Record(RecordError),
    Os(io::Error),
}

/// The state of one connection.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) client: ClientId,
    inbox: Inbox,
    /// The WRITE whose payload is arriving.
    writing: Option<Writing>,
    answers: Answers,
}

struct Writing {
    request: Request,
    done_bytes: usize,
    status: Status,
}

impl Connection {
    /// `records`: what goes over it is protected by them. `has_ring`: it is served by
    /// [`Connection::take`] and what follows there.
    pub(super) fn new(
        stream: TcpStream,
        client: ClientId,
        records: Option<(RecordSealer, RecordOpener)>,
        has_ring: bool,
    ) -> Self {
        const { assert!(INBOX_BYTES >= REQUEST_BYTES + MESSAGE_BYTES_MAX) };
        let (sealer, opener) = records.unzip();
        Self {
            stream,
            client,
            inbox: Inbox::new(INBOX_BYTES, opener),
            writing: None,
            answers: Answers::new(sealer, has_ring),
        }
    }

    /// Does what can be done without blocking, up to a fair share.
    pub(super) fn serve(&mut self, bench: &mut Bench<'_>) -> Result<Interest, End> {
        let mut is_drained = false;
        for round in 0..=ROUNDS {
            if !self.execute(bench)? || !self.respond(bench)? {
                return Ok(Interest::Room);
            }
            if is_drained || round == ROUNDS {
                break;
            }
            is_drained = self.receive(bench, Patience::None)?;
        }
        Ok(Interest::Requests)
    }

    /// Waits in the socket for the next requests, up to its timeout, and serves them: one
    /// system call where waiting for readiness first takes two. `None`: none came, or what comes next
    /// is not to be waited for here.
    ///
    /// Never waits inside a window: only between requests.
    pub(super) fn await_requests(
        &mut self,
        bench: &mut Bench<'_>,
    ) -> Result<Option<Interest>, End> {
        if self.writing.is_some() {
            let interest = self.serve(bench)?;
            let is_owed = self.writing.is_some() && interest == Interest::Requests;
            return Ok((!is_owed).then_some(interest));
        }
        let waiting = self.inbox.unread_bytes();
        self.receive(bench, Patience::Socket)?;
        if self.inbox.unread_bytes() == waiting {
            return Ok(None);
        }
        self.answer(bench).map(Some)
    }

    /// Executes what has come, and responds.
    pub(super) fn answer(&mut self, bench: &mut Bench<'_>) -> Result<Interest, End> {
        match self.execute(bench)? && self.respond(bench)? {
            true => Ok(Interest::Requests),
            false => Ok(Interest::Room),
        }
    }

    /// Where a ring receives next. `None`: the socket's bytes go straight into a window, by
    /// [`Connection::serve`] once there are any.
    ///
    /// Until what came is told to [`Connection::take`] nothing but [`Connection::take_sent`] and
    /// [`Connection::respond`] may be called.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        let owed = self.writing.as_ref().map_or(0, Writing::missing_bytes);
        if owed > BULK_BYTES && !self.inbox.has_records() {
            return None;
        }
        self.inbox.make_room();
        Some(self.inbox.room())
    }

    /// Notes that `bytes` came into the room.
    pub(super) fn take(&mut self, bytes: usize) {
        self.inbox.add(bytes);
    }

    /// Executes what has come, and stages the responses.
    pub(super) fn go_on(&mut self, bench: &mut Bench<'_>) -> Result<Turn, End> {
        if !self.execute(bench)? {
            return Ok(Turn::Room);
        }
        let socket = self.stream.as_raw_fd();
        if let Some(list) = self.answers.stage(bench) {
            return Ok(Turn::Send(list.send_entry(socket)));
        }
        Ok(if self.respond(bench)? {
            Turn::Receive
        } else {
            Turn::Room
        })
    }

    /// Notes what the socket took of what was staged. False: it is full.
    pub(super) fn take_sent(&mut self, sent: io::Result<usize>) -> Result<bool, End> {
        self.answers.take_sent(sent)
    }

    /// Receives once. True: the socket is empty now.
    fn receive(&mut self, bench: &mut Bench<'_>, patience: Patience) -> Result<bool, End> {
        self.inbox.make_room();
        loop {
            bench.list.clear();
            let payload_bytes = self.list_payload(bench);
            let owed = self.writing.as_ref().map_or(0, Writing::missing_bytes);
            if self.inbox.has_records() || payload_bytes == owed {
                self.inbox.list_room(&mut bench.list);
            }
            bench.count_system_call();
            // SAFETY: the list holds window memory under a guard, scratch, and the inbox.
            let received = unsafe { bench.list.receive(self.stream.as_raw_fd(), patience) };
            bench.guards.clear();
            return match received {
                Ok(0) => Err(End::Closed),
                Ok(bytes) => {
                    let paid = bytes.min(payload_bytes);
                    if let Some(writing) = &mut self.writing {
                        writing.done_bytes += paid;
                    }
                    self.inbox.add(bytes - paid);
                    Ok(bytes < bench.list.bytes())
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
                Err(error) if is_fault(&error) && self.lose_window() => continue,
                Err(error) => Err(End::Os(error)),
            };
        }
    }

    /// Lists where the payload of the arriving WRITE goes; returns how much of it was listed.
    /// Nothing in records: no byte of one is in a window before its tag was checked.
    fn list_payload(&mut self, bench: &mut Bench<'_>) -> usize {
        let Some(writing) = &mut self.writing else {
            return 0;
        };
        if self.inbox.has_records() {
            return 0;
        }
        let missing = writing.missing_bytes();
        if writing.status == Status::Ok {
            match bench.enter(&writing.request, Rights::WRITE) {
                Ok(guard) => {
                    bench
                        .list
                        .push(guard.ptr().wrapping_add(writing.done_bytes), missing);
                    bench.guards.push(guard);
                    return missing;
                }
                Err(_) => writing.status = Status::Revoked,
            }
        }
        let listed = missing.min(SCRATCH_BYTES);
        bench.list.push(bench.scratch.as_mut_ptr(), listed);
        listed
    }

    /// Notes that the memory of the arriving WRITE is gone without having been revoked.
    fn lose_window(&mut self) -> bool {
        match &mut self.writing {
            Some(writing) if writing.status == Status::Ok => {
                writing.status = Status::Revoked;
                true
            }
            _ => false,
        }
    }

    /// Executes what is whole in the inbox. False: stopped until responses can be sent.
    fn execute(&mut self, bench: &mut Bench<'_>) -> Result<bool, End> {
        loop {
            if self.answers.is_full() && !self.respond(bench)? {
                return Ok(false);
            }
            if let Some(writing) = self.writing.take() {
                if let Some(unfinished) = self.write(writing, bench) {
                    self.writing = Some(unfinished);
                    if !self.next_record()? {
                        return Ok(true);
                    }
                }
                continue;
            }
            if self.inbox.waiting().is_empty() && !self.next_record()? {
                return Ok(true);
            }
            let waiting = self.inbox.waiting();
            let Some(header) = waiting.first_chunk::<REQUEST_BYTES>() else {
                return self.await_rest();
            };
            let request =
                Request::decode(header).map_err(|malformed| End::Protocol(malformed.0))?;
            if request.verb == Verb::Send
                && waiting.len() < REQUEST_BYTES + request.len_bytes as usize
            {
                return self.await_rest();
            }
            if self.answers.holds_back(&request) && !self.respond(bench)? {
                return Ok(false);
            }
            self.inbox.consume(REQUEST_BYTES);
            match request.verb {
                Verb::Read => self.answers.push(Answer {
                    read: Some(request),
                    status: Status::Ok,
                    value: 0,
                }),
                Verb::Write => self.writing = Some(Writing::begin(request, bench)),
                Verb::Send => self.take_message(&request, bench),
                Verb::CompareSwap | Verb::FetchAdd => {
                    let (status, value) = atomic(&request, bench);
                    self.answers.push(Answer {
                        read: None,
                        status,
                        value,
                    });
                }
            }
        }
    }

    fn next_record(&mut self) -> Result<bool, End> {
        self.inbox.next_record().map_err(End::Record)
    }

    /// A header or message has come in part: in records none does.
    fn await_rest(&self) -> Result<bool, End> {
        if self.inbox.has_records() {
            return Err(End::Protocol("a request is split over two records"));
        }
        Ok(true)
    }

    /// Sends responses. False: the socket is full.
    pub(super) fn respond(&mut self, bench: &mut Bench<'_>) -> Result<bool, End> {
        self.answers.respond(bench, &self.stream)
    }

    /// Copies what the inbox holds of the payload; gives `writing` back when that was not all.
    fn write(&mut self, mut writing: Writing, bench: &mut Bench<'_>) -> Option<Writing> {
        let arrived = self.inbox.waiting();
        let taken = writing.missing_bytes().min(arrived.len());
        if taken > 0 && writing.status == Status::Ok {
            match bench.enter(&writing.request, Rights::WRITE) {
                Ok(guard) => {
                    // SAFETY: the guard covers the request's range, `taken` more bytes fit behind
                    // `done_bytes`, and the inbox is memory of our own.
                    unsafe {
                        let target = guard.ptr().wrapping_add(writing.done_bytes);
                        std::ptr::copy_nonoverlapping(arrived.as_ptr(), target, taken);
                    }
                    if guard.is_dead() {
                        writing.status = Status::Revoked;
                    }
                }
                Err(status) if writing.done_bytes == 0 => writing.status = status,
                Err(_) => writing.status = Status::Revoked,
            }
        }
        writing.done_bytes += taken;
        self.inbox.consume(taken);
        if writing.missing_bytes() > 0 {
            return Some(writing);
        }
        let Request {
            window,
            offset,
            len_bytes,
            immediate,
            ..
        } = writing.request;
        if let (Status::Ok, Some(value)) = (writing.status, immediate) {
            let (client, window) = (self.client, WindowId(window));
            if !bench.tell(AgentEvent::Immediate {
                client,
                window,
                offset,
                len_bytes,
                value,
            }) {
                writing.status = Status::ReceiverNotReady;
            }
        }
        self.answers.push(Answer {
            read: None,
            status: writing.status,
            value: 0,
        });
        None
    }

    fn take_message(&mut self, request: &Request, bench: &mut Bench<'_>) {
        let len_bytes = request.len_bytes as usize;
        let bytes = self.inbox.waiting()[..len_bytes].to_vec();
        self.inbox.consume(len_bytes);
        let told = bench.tell(AgentEvent::Message {
            client: self.client,
            bytes,
        });
        let status = if told {
            Status::Ok
        } else {
            Status::ReceiverNotReady
        };
        self.answers.push(Answer {
            read: None,
            status,
            value: 0,
        });
    }
}

impl Writing {
    /// Decides, before any byte is taken, whether the WRITE is allowed.
    fn begin(request: Request, bench: &Bench<'_>) -> Self {
        let status = bench
            .enter(&request, Rights::WRITE)
            .err()
            .unwrap_or(Status::Ok);
        Self {
            request,
            done_bytes: 0,
            status,
        }
    }

    fn missing_bytes(&self) -> usize {
        self.request.len_bytes as usize - self.done_bytes
    }
}

fn atomic(request: &Request, bench: &Bench<'_>) -> (Status, u64) {
    let guard = match bench.enter(request, Rights::ATOMIC) {
        Ok(guard) => guard,
        Err(status) => return (status, 0),
    };
    if !request.offset.is_multiple_of(8) {
        return (Status::OutOfBounds, 0);
    }
    // SAFETY: the guard covers 8 bytes; windows start on a page, so the address is aligned;
    // all concurrent access by verbs is atomic or allowed to see torn bytes.
    let cell = unsafe { AtomicU64::from_ptr(guard.ptr().cast()) };
    let before = match request.verb {
        Verb::CompareSwap => {
            let (expected, new) = (request.operand.to_le(), request.swap.to_le());
            match cell.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(before) | Err(before) => u64::from_le(before),
            }
        }
        _ => {
            let add = |value: u64| Some(u64::from_le(value).wrapping_add(request.operand).to_le());
            match cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add) {
                Ok(before) | Err(before) => u64::from_le(before),
            }
        }
    };
    match guard.is_dead() {
        true => (Status::Revoked, 0),
        false => (Status::Ok, before),
    }
}
