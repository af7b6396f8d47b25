//! Responses of one connection that are not sent yet, in the order of the requests.
//!
//! Without records READs are gathered from window memory by the `sendmsg` that carries a whole
//! batch; with records they are copied out of it, protected and sent. Either way a later verb that
//! could change what such a READ sees waits until then ([`Answers::holds_back`]).
//!
//! Where a ring sends, few bytes are copied in any case ([`Answers::stage`]): the call that sends
//! them also waits, and nothing waits inside a window.
//!
//! Every access to window memory happens under a [`WindowGuard`], and no guard outlives the call that
//! took it.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::bench::{Bench, SCRATCH_BYTES};
use super::connection::End;
use super::gather::Gather;
use super::inbox::PAGE_BYTES;
use super::outbox::{Outbox, Sent};
use super::wire::{RESPONSE_BYTES, Request, Response, Verb};
use crate::record::{RECORD_BODY_BYTES_MAX, RecordSealer};
use crate::windows::WindowGuard;
use crate::{Rights, Status};

/// Most responses that wait to be sent on one connection.
const ANSWERS: usize = 256;

/// Records that wait for the socket: a burst of 32 pages.
const OUTBOX_RECORDS: usize = 5;

/// As much waits without records, where a ring sends.
const COPIED_RECORDS: usize = 1;

/// Bytes that one connection is sent before it is the turn of others: a peer may take them faster
/// than they are made.
const TURN_BYTES: usize = 1 << 20;
/// As many in records, by full outboxes.
const TURN_OUTBOXES: usize = TURN_BYTES / (OUTBOX_RECORDS * RECORD_BODY_BYTES_MAX);

/// READs of more bytes than that together are sent from where they lie. They are worth a call.
const COPIED_BYTES_MAX: usize = 16 * 1024;

static ZEROS: [u8; SCRATCH_BYTES] = [0; SCRATCH_BYTES];

/// A ring of fixed size.
pub(super) struct Answers {
    ring: Box<[Answer]>,
    /// Encoded when listed, apart from the answers so that neighbours are one range to send.
    trailers: Box<[[u8; RESPONSE_BYTES]]>,
    /// Answers, by position, that are not sent, or not in the outbox.
    first: u64,
    next: u64,
    /// Bytes of answer `first` that are.
    done_bytes: usize,
    /// READs among the answers.
    reads: usize,
    /// Where what is sent is copied: in records always, else where a ring sends it.
    outbox: Option<Outbox>,
}

#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// READ: the request, whose bytes precede the trailer.
    pub(super) read: Option<Request>,
    pub(super) status: Status,
    pub(super) value: u64,
}

impl Answers {
    /// `has_ring`: a ring is going to send what [`Answers::stage`] lists.
    pub(super) fn new(sealer: Option<RecordSealer>, has_ring: bool) -> Self {
        let idle = Answer {
            read: None,
            status: Status::Ok,
            value: 0,
        };
        Self {
            ring: vec![idle; ANSWERS].into(),
            trailers: vec![[0; RESPONSE_BYTES]; ANSWERS].into(),
            first: 0,
            next: 0,
            done_bytes: 0,
            reads: 0,
            outbox: match sealer {
                Some(sealer) => Some(Outbox::new(Some(sealer), OUTBOX_RECORDS)),
                None => has_ring.then(|| Outbox::new(None, COPIED_RECORDS)),
            },
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.next - self.first == ANSWERS as u64
    }

    pub(super) fn push(&mut self, answer: Answer) {
        self.reads += usize::from(answer.read.is_some());
        self.ring[index(self.next)] = answer;
        self.next += 1;
    }

    /// Whether an earlier READ, not sent yet, could see what `request` does.
    pub(super) fn holds_back(&self, request: &Request) -> bool {
        if self.reads == 0 || request.verb == Verb::Read {
            return false;
        }
        let is_seen_by_host = request.verb == Verb::Send || request.immediate.is_some();
        is_seen_by_host
            || (self.first..self.next).any(|position| {
                self.ring[index(position)]
                    .read
                    .is_some_and(|read| overlap(&read, request))
            })
    }

    /// Sends responses. False: the socket is full, or it is the turn of other connections.
    pub(super) fn respond(
        &mut self,
        bench: &mut Bench<'_>,
        socket: &TcpStream,
    ) -> Result<bool, End> {
        match &mut self.outbox {
            Some(outbox) if outbox.has_records() => self.respond_in_records(bench, socket),
            Some(outbox) if !outbox.is_empty() => {
                bench.count_system_call();
                if outbox.send(socket).map_err(End::Os)? != Sent::All {
                    return Ok(false);
                }
                self.respond_in_place(bench, socket)
            }
            _ => self.respond_in_place(bench, socket),
        }
    }

    /// Copies all answers and lists them for a ring to send. `None`: there is nothing to send, or
    /// more than is copied, for [`Answers::respond`] to send.
    ///
    /// The list stays as it is until [`Answers::take_sent`], which comes before any other call.
    pub(super) fn stage(&mut self, bench: &Bench<'_>) -> Option<&mut Gather> {
        let is_copied = match &self.outbox {
            None => false,
            Some(outbox) if outbox.has_records() => true,
            // A trailer of which a part is sent is sent from its place.
            Some(_) => self.done_bytes == 0 && self.waiting_bytes() <= COPIED_BYTES_MAX,
        };
        if !is_copied {
            return None;
        }
        self.fill_outbox(bench);
        let is_whole = self.first == self.next;
        let outbox = self.outbox.as_mut().filter(|outbox| !outbox.is_empty())?;
        is_whole.then(|| outbox.list())
    }

    /// Notes what the socket took of what was staged. False: it is full.
    pub(super) fn take_sent(&mut self, sent: io::Result<usize>) -> Result<bool, End> {
        let outbox = self.outbox.as_mut().expect("it was staged there");
        Ok(outbox.take_sent(sent).map_err(End::Os)? == Sent::All)
    }

    /// Bytes of READs that wait.
    fn waiting_bytes(&self) -> usize {
        if self.reads == 0 {
            return 0;
        }
        let waiting = (self.first..self.next).map(|position| &self.ring[index(position)]);
        waiting.map(Answer::payload_bytes).sum()
    }

    fn respond_in_records(
        &mut self,
        bench: &mut Bench<'_>,
        socket: &TcpStream,
    ) -> Result<bool, End> {
        for _ in 0..TURN_OUTBOXES {
            self.fill_outbox(bench);
            let outbox = self.outbox.as_mut().expect("there are records");
            if outbox.is_empty() {
                return Ok(true);
            }
            bench.count_system_call();
            if outbox.send(socket).map_err(End::Os)? != Sent::All {
                return Ok(false);
            }
        }
        Ok(self.first == self.next)
    }

    /// Copies answers into the outbox while there is room.
    fn fill_outbox(&mut self, bench: &Bench<'_>) {
        let Some(outbox) = &mut self.outbox else {
            return;
        };
        while self.first != self.next {
            let answer = &mut self.ring[index(self.first)];
            let payload_bytes = answer.payload_bytes();
            loop {
                // In one record where it fits into one; its trailer is never split.
                let missing = payload_bytes - self.done_bytes;
                let wanted = (missing + RESPONSE_BYTES).min(RECORD_BODY_BYTES_MAX);
                if !outbox.make_room(wanted) {
                    return;
                }
                if wanted == missing + RESPONSE_BYTES {
                    answer.copy_payload(self.done_bytes, outbox.place(missing), bench);
                    break;
                }
                let part = missing.min(RECORD_BODY_BYTES_MAX);
                answer.copy_payload(self.done_bytes, outbox.place(part), bench);
                self.done_bytes += part;
            }
            let trailer = answer.trailer().encode();
            outbox.place(RESPONSE_BYTES).copy_from_slice(&trailer);
            self.done_bytes = 0;
            self.reads -= usize::from(answer.read.is_some());
            self.first += 1;
        }
    }

    fn respond_in_place(&mut self, bench: &mut Bench<'_>, socket: &TcpStream) -> Result<bool, End> {
        let mut turn_bytes = 0;
        while self.first != self.next {
            if turn_bytes >= TURN_BYTES {
                return Ok(false);
            }
            self.list_answers(bench);
            bench.count_system_call();
            // SAFETY: the list holds window memory under guards, trailers and zeros.
            let sent = unsafe { bench.list.send(socket.as_raw_fd()) };
            let is_lost = bench.guards.iter().any(WindowGuard::has_lost_memory);
            bench.guards.clear();
            match sent {
                // Another thread found that out meanwhile, and zeros may have been sent for it as good.
                Ok(_) if is_lost => {
                    return Err(End::Os(io::Error::from_raw_os_error(libc::EFAULT)));
                }
                Ok(bytes) => {
                    self.advance_sent(bytes);
                    turn_bytes += bytes;
                    if bytes < bench.list.bytes() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if is_fault(&error) && self.lose_sources(bench) => {}
                Err(error) => return Err(End::Os(error)),
            }
        }
        Ok(true)
    }

    fn list_answers(&mut self, bench: &mut Bench<'_>) {
        bench.list.clear();
        let mut done = self.done_bytes;
        for position in self.first..self.next {
            if bench.list.is_short_of(2) {
                break;
            }
            let answer = &mut self.ring[index(position)];
            let payload_bytes = answer.payload_bytes();
            let missing = payload_bytes.saturating_sub(done);
            let left = TURN_BYTES.saturating_sub(bench.list.bytes());
            let listed = answer.list_payload(done, missing.min(left), bench);
            if listed < missing {
                break;
            }
            let trailer = &mut self.trailers[index(position)];
            *trailer = answer.trailer().encode();
            let trailer_done = done.saturating_sub(payload_bytes);
            bench.list.push(
                trailer[trailer_done..].as_ptr(),
                RESPONSE_BYTES - trailer_done,
            );
            done = 0;
        }
    }

    fn advance_sent(&mut self, bytes: usize) {
        self.done_bytes += bytes;
        while self.first != self.next {
            let answer = &self.ring[index(self.first)];
            let whole = answer.payload_bytes() + RESPONSE_BYTES;
            if self.done_bytes < whole {
                break;
            }
            self.done_bytes -= whole;
            self.reads -= usize::from(answer.read.is_some());
            self.first += 1;
        }
    }

    /// Notes that listed READs' memory is gone without having been revoked. Which ones the kernel does not
    /// say, so all are touched; if none shows it, the oldest that still counts as good is given up.
    fn lose_sources(&mut self, bench: &Bench<'_>) -> bool {
        let mut oldest = None;
        let mut has_lost = false;
        for position in self.first..self.next {
            let is_first = position == self.first;
            let sent = if is_first { self.done_bytes } else { 0 };
            let answer = &mut self.ring[index(position)];
            let read = answer.read.filter(|read| sent < read.len_bytes as usize);
            let Some(read) = read.filter(|_| answer.status == Status::Ok) else {
                continue;
            };
            if is_whole(&read, bench) {
                oldest = oldest.or(Some(position));
            } else {
                answer.status = Status::Revoked;
                has_lost = true;
            }
        }
        if let Some(position) = oldest.filter(|_| !has_lost) {
            self.ring[index(position)].status = Status::Revoked;
            has_lost = true;
        }
        has_lost
    }
}

/// Whether all pages of a READ's memory are there, as far as touching them tells.
fn is_whole(read: &Request, bench: &Bench<'_>) -> bool {
    let Ok(guard) = bench.enter(read, Rights::READ) else {
        return false;
    };
    let len_bytes = read.len_bytes as usize;
    for at in (0..len_bytes).step_by(PAGE_BYTES).chain([len_bytes - 1]) {
        // SAFETY: the guard covers the request's range. Others may write it meanwhile: it is not looked at.
        unsafe { guard.ptr().wrapping_add(at).read_volatile() };
    }
    !guard.is_dead()
}

impl Answer {
    fn payload_bytes(&self) -> usize {
        self.read.map_or(0, |read| read.len_bytes as usize)
    }

    fn trailer(&self) -> Response {
        Response {
            status: self.status,
            len_bytes: self.read.map_or(0, |read| read.len_bytes),
            value: self.value,
        }
    }

    /// Copies the READ's bytes from `done` on; zeros where it is refused. An empty one is checked
    /// as well.
    fn copy_payload(&mut self, done: usize, target: &mut [u8], bench: &Bench<'_>) {
        let Some(read) = &self.read else {
            return;
        };
        if self.status == Status::Ok {
            match bench.enter(read, Rights::READ) {
                Ok(guard) => {
                    // SAFETY: the guard covers the request's range, and `target` is no longer than
                    // what is left of it behind `done`. Others may write it meanwhile: a torn copy.
                    unsafe {
                        let source = guard.ptr().wrapping_add(done);
                        std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len());
                    }
                    if !guard.is_dead() {
                        return;
                    }
                    self.status = Status::Revoked;
                }
                Err(status) if done == 0 => self.status = status,
                Err(_) => self.status = Status::Revoked,
            }
        }
        target.fill(0);
    }

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

fn overlap(a: &Request, b: &Request) -> bool {
    let end = |request: &Request| request.offset.saturating_add(u64::from(request.len_bytes));
    a.window == b.window && a.offset < end(b) && b.offset < end(a)
}

/// Whether memory that was listed is gone.
pub(super) fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

#[inline]
fn index(position: u64) -> usize {
    const { assert!(ANSWERS.is_power_of_two()) };
    (position % ANSWERS as u64) as usize
}
