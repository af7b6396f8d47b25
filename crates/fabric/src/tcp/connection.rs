//! One client's data connection as the host serves it: requests in, effects, responses out.
//!
//! Requests are executed in the order of the stream. A WRITE's payload that arrived with its
//! header is copied out of the inbox, still in the first-level cache; the rest is received
//! straight into the window. READs are gathered from window memory by the `sendmsg` that
//! carries a whole batch of responses; a later verb that could change what such a READ sees
//! waits until it is sent.
//!
//! Every access to window memory, system calls included, happens under a [`WindowGuard`],
//! and no guard outlives the call that took it. A connection that does not take its
//! responses is not read any further, so all of its memory is what [`Connection::new`] allots.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use super::agent::AgentEvent;
use super::gather::{Gather, Patience};
use super::wire::{REQUEST_BYTES, RESPONSE_BYTES, Request, Response, Verb};
use crate::windows::{WindowGuard, WindowTable};
use crate::{ClientId, Generation, MESSAGE_BYTES_MAX, Rights, Status, WindowId};

/// Room for requests that arrived and are not executed. Holds the longest message, and a burst
/// of 32 pages: what does not fit costs a receive of its own, and wakes the client in between.
const INBOX_BYTES: usize = 160 * 1024;

/// Where the inbox starts, behind the start of a memory page: to the first 16 bytes of a page
/// AMD's Zen 3 copies at half the speed (`rep movsb`), and large allocations start just there.
const INBOX_SKEW: usize = 1024;

const PAGE_BYTES: usize = 4096;

/// Most responses that wait to be sent on one connection.
const ANSWERS: usize = 256;

/// Receives per turn, so that one busy connection cannot starve the others.
const ROUNDS: usize = 4;

/// Length of the ranges that stand in for the memory of a window that is out of reach.
const SCRATCH_BYTES: usize = 64 * 1024;

static ZEROS: [u8; SCRATCH_BYTES] = [0; SCRATCH_BYTES];

/// What the connections of one agent share; lives on the agent's thread.
pub(super) struct Bench<'t> {
    table: &'t WindowTable,
    /// Windows in use by the system call that is being prepared.
    guards: Vec<WindowGuard<'t>>,
    list: Gather,
    scratch: Box<[u8]>,
    outbox: SyncSender<AgentEvent>,
    system_calls: &'t AtomicU64,
    /// An event was put in the outbox since the control thread was last woken.
    pub(super) has_news: bool,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Interest {
    /// More requests.
    Requests,
    /// Room for responses; requests are left in the socket meanwhile.
    Room,
}

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum End {
    Closed,
    Protocol(&'static str),
    Os(io::Error),
}

/// The state of one connection.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) client: ClientId,
    inbox: Box<[u8]>,
    /// Where the inbox is filled from.
    base: usize,
    /// Unread bytes of the inbox.
    start: usize,
    end: usize,
    /// The WRITE whose payload is arriving.
    writing: Option<Writing>,
    answers: Box<[Answer]>,
    /// Encoded when listed, apart from the answers so that neighbours are one range to send.
    trailers: Box<[[u8; RESPONSE_BYTES]]>,
    /// Answers, by position, that are not sent.
    first: u64,
    next: u64,
    /// Bytes of answer `first` that are sent.
    sent_bytes: usize,
    /// READs among the answers.
    reads: usize,
}

struct Writing {
    request: Request,
    done_bytes: usize,
    status: Status,
}

#[derive(Clone, Copy)]
struct Answer {
    /// READ: the request, whose bytes precede the trailer.
    read: Option<Request>,
    status: Status,
    value: u64,
}

impl<'t> Bench<'t> {
    pub(super) fn new(
        table: &'t WindowTable,
        outbox: SyncSender<AgentEvent>,
        system_calls: &'t AtomicU64,
    ) -> Self {
        Self {
            table,
            guards: Vec::with_capacity(ANSWERS),
            list: Gather::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            outbox,
            system_calls,
            has_news: false,
        }
    }

    /// Hands an event to the control thread; false when its queue is full.
    pub(super) fn tell(&mut self, event: AgentEvent) -> bool {
        let told = self.outbox.try_send(event).is_ok();
        self.has_news |= told;
        told
    }

    pub(super) fn count_system_call(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, request: &Request, need: Rights) -> Result<WindowGuard<'t>, Status> {
        let (id, generation) = (WindowId(request.window), Generation(request.generation));
        self.table.enter(
            id,
            generation,
            need,
            request.offset,
            u64::from(request.len_bytes),
        )
    }
}

impl Connection {
    pub(super) fn new(stream: TcpStream, client: ClientId) -> Self {
        const { assert!(INBOX_BYTES >= REQUEST_BYTES + MESSAGE_BYTES_MAX) };
        let idle = Answer {
            read: None,
            status: Status::Ok,
            value: 0,
        };
        // Room to move the start to the wanted place in a page.
        let inbox: Box<[u8]> = vec![0; INBOX_BYTES + PAGE_BYTES + INBOX_SKEW].into();
        let base = inbox.as_ptr().align_offset(PAGE_BYTES) + INBOX_SKEW;
        Self {
            stream,
            client,
            inbox,
            base,
            start: base,
            end: base,
            writing: None,
            answers: vec![idle; ANSWERS].into(),
            trailers: vec![[0; RESPONSE_BYTES]; ANSWERS].into(),
            first: 0,
            next: 0,
            sent_bytes: 0,
            reads: 0,
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
    /// system call where waiting for readiness first takes two. `None`: none came.
    ///
    /// Never waits inside a window: only between requests.
    pub(super) fn await_requests(
        &mut self,
        bench: &mut Bench<'_>,
    ) -> Result<Option<Interest>, End> {
        if self.writing.is_some() {
            return self.serve(bench).map(Some);
        }
        let waiting = self.end - self.start;
        self.receive(bench, Patience::Socket)?;
        if self.end - self.start == waiting {
            return Ok(None);
        }
        if !self.execute(bench)? || !self.respond(bench)? {
            return Ok(Some(Interest::Room));
        }
        Ok(Some(Interest::Requests))
    }

    /// Receives once. True: the socket is empty now.
    fn receive(&mut self, bench: &mut Bench<'_>, patience: Patience) -> Result<bool, End> {
        self.inbox.copy_within(self.start..self.end, self.base);
        self.end -= self.start - self.base;
        self.start = self.base;
        loop {
            bench.list.clear();
            let payload_bytes = self.list_payload(bench);
            let owed = self.writing.as_ref().map_or(0, Writing::missing_bytes);
            if payload_bytes == owed {
                let room = &mut self.inbox[self.end..];
                bench.list.push(room.as_mut_ptr(), room.len());
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
                    self.end += bytes - paid;
                    Ok(bytes < bench.list.bytes())
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
                Err(error) if is_fault(&error) && self.lose_window() => continue,
                Err(error) => Err(End::Os(error)),
            };
        }
    }

    /// Lists where the payload of the arriving WRITE goes; returns how much of it was listed.
    fn list_payload(&mut self, bench: &mut Bench<'_>) -> usize {
        let Some(writing) = &mut self.writing else {
            return 0;
        };
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
            if self.next - self.first == ANSWERS as u64 && !self.respond(bench)? {
                return Ok(false);
            }
            if let Some(writing) = self.writing.take() {
                if let Some(unfinished) = self.write(writing, bench) {
                    self.writing = Some(unfinished);
                    return Ok(true);
                }
                continue;
            }
            let waiting = &self.inbox[self.start..self.end];
            let Some(header) = waiting.first_chunk::<REQUEST_BYTES>() else {
                return Ok(true);
            };
            let request =
                Request::decode(header).map_err(|malformed| End::Protocol(malformed.0))?;
            if request.verb == Verb::Send
                && waiting.len() < REQUEST_BYTES + request.len_bytes as usize
            {
                return Ok(true);
            }
            if self.must_wait(&request) && !self.respond(bench)? {
                return Ok(false);
            }
            self.start += REQUEST_BYTES;
            match request.verb {
                Verb::Read => self.answer(Answer {
                    read: Some(request),
                    status: Status::Ok,
                    value: 0,
                }),
                Verb::Write => self.writing = Some(Writing::begin(request, bench)),
                Verb::Send => self.take_message(&request, bench),
                Verb::CompareSwap | Verb::FetchAdd => {
                    let (status, value) = atomic(&request, bench);
                    self.answer(Answer {
                        read: None,
                        status,
                        value,
                    });
                }
            }
        }
    }

    /// Whether an earlier READ, not sent yet, could see what `request` does.
    fn must_wait(&self, request: &Request) -> bool {
        if self.reads == 0 || request.verb == Verb::Read {
            return false;
        }
        let is_seen_by_host = request.verb == Verb::Send || request.immediate.is_some();
        is_seen_by_host
            || (self.first..self.next).any(|position| {
                self.answers[index(position)]
                    .read
                    .is_some_and(|read| overlap(&read, request))
            })
    }

    /// Copies what the inbox holds of the payload; gives `writing` back when that was not all.
    fn write(&mut self, mut writing: Writing, bench: &mut Bench<'_>) -> Option<Writing> {
        let arrived = &self.inbox[self.start..self.end];
        let taken = writing.missing_bytes().min(arrived.len());
        if taken > 0 && writing.status == Status::Ok {
            match bench.enter(&writing.request, Rights::WRITE) {
                // SAFETY: the guard covers the request's range, `taken` more bytes fit behind
                // `done_bytes`, and the inbox is memory of our own.
                Ok(guard) => unsafe {
                    let target = guard.ptr().wrapping_add(writing.done_bytes);
                    std::ptr::copy_nonoverlapping(arrived.as_ptr(), target, taken);
                },
                Err(status) if writing.done_bytes == 0 => writing.status = status,
                Err(_) => writing.status = Status::Revoked,
            }
        }
        writing.done_bytes += taken;
        self.start += taken;
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
        self.answer(Answer {
            read: None,
            status: writing.status,
            value: 0,
        });
        None
    }

    fn take_message(&mut self, request: &Request, bench: &mut Bench<'_>) {
        let end = self.start + request.len_bytes as usize;
        let bytes = self.inbox[self.start..end].to_vec();
        self.start = end;
        let told = bench.tell(AgentEvent::Message {
            client: self.client,
            bytes,
        });
        let status = if told {
            Status::Ok
        } else {
            Status::ReceiverNotReady
        };
        self.answer(Answer {
            read: None,
            status,
            value: 0,
        });
    }

    fn answer(&mut self, answer: Answer) {
        self.reads += usize::from(answer.read.is_some());
        self.answers[index(self.next)] = answer;
        self.next += 1;
    }

    /// Sends responses. False: the socket is full.
    fn respond(&mut self, bench: &mut Bench<'_>) -> Result<bool, End> {
        while self.first != self.next {
            self.list_answers(bench);
            bench.count_system_call();
            // SAFETY: the list holds window memory under guards, trailers and zeros.
            let sent = unsafe { bench.list.send(self.stream.as_raw_fd()) };
            bench.guards.clear();
            match sent {
                Ok(bytes) => {
                    self.advance_sent(bytes);
                    if bytes < bench.list.bytes() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if is_fault(&error) && self.lose_source() => {}
                Err(error) => return Err(End::Os(error)),
            }
        }
        Ok(true)
    }

    fn list_answers(&mut self, bench: &mut Bench<'_>) {
        bench.list.clear();
        let mut done = self.sent_bytes;
        for position in self.first..self.next {
            if bench.list.is_short_of(2) {
                break;
            }
            let answer = &mut self.answers[index(position)];
            let len_bytes = answer.read.map_or(0, |read| read.len_bytes);
            let missing = (len_bytes as usize).saturating_sub(done);
            let listed = answer.list_payload(done, missing, bench);
            if listed < missing {
                break;
            }
            let response = Response {
                status: answer.status,
                len_bytes,
                value: answer.value,
            };
            let trailer = &mut self.trailers[index(position)];
            *trailer = response.encode();
            let trailer_done = done.saturating_sub(len_bytes as usize);
            bench.list.push(
                trailer[trailer_done..].as_ptr(),
                RESPONSE_BYTES - trailer_done,
            );
            done = 0;
        }
    }

    fn advance_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        while self.first != self.next {
            let read = self.answers[index(self.first)].read;
            let whole = read.map_or(0, |read| read.len_bytes as usize) + RESPONSE_BYTES;
            if self.sent_bytes < whole {
                break;
            }
            self.sent_bytes -= whole;
            self.reads -= usize::from(read.is_some());
            self.first += 1;
        }
    }

    /// Notes that a listed READ's memory is gone without having been revoked. Which one the
    /// kernel does not say: the oldest that still counts as good is given up.
    fn lose_source(&mut self) -> bool {
        for position in self.first..self.next {
            let sent = if position == self.first {
                self.sent_bytes
            } else {
                0
            };
            let answer = &mut self.answers[index(position)];
            let is_unsent = answer
                .read
                .is_some_and(|read| sent < read.len_bytes as usize);
            if is_unsent && answer.status == Status::Ok {
                answer.status = Status::Revoked;
                return true;
            }
        }
        false
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

impl Answer {
    /// Lists the READ's bytes behind the first `done`; returns how many of `missing` were listed.
    fn list_payload(&mut self, done: usize, missing: usize, bench: &mut Bench<'_>) -> usize {
        let Some(read) = &self.read else {
            return missing;
        };
        // An empty READ is checked as well, before the first byte of its trailer is sent.
        let is_open = missing > 0 || (read.len_bytes == 0 && done == 0);
        if self.status == Status::Ok && is_open {
            match bench.enter(read, Rights::READ) {
                Ok(guard) => {
                    bench.list.push(guard.ptr().wrapping_add(done), missing);
                    bench.guards.push(guard);
                    return missing;
                }
                Err(status) if done == 0 => self.status = status,
                Err(_) => self.status = Status::Revoked,
            }
        }
        let listed = missing.min(SCRATCH_BYTES);
        bench.list.push(ZEROS.as_ptr(), listed);
        listed
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
    (Status::Ok, before)
}

fn overlap(a: &Request, b: &Request) -> bool {
    let end = |request: &Request| request.offset.saturating_add(u64::from(request.len_bytes));
    a.window == b.window && a.offset < end(b) && b.offset < end(a)
}

fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

#[inline]
fn index(position: u64) -> usize {
    const { assert!(ANSWERS.is_power_of_two()) };
    (position % ANSWERS as u64) as usize
}
