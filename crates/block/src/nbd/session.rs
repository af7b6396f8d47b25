//! The transmission phase of one connection: requests in, replies out.
//!
//! A request takes a slot, runs in its export's queue and leaves its reply in
//! the outbox; the slot is free again when the reply is sent. No socket is
//! touched here: `connection` feeds headers and payloads and sends the outbox.
//!
//! Invariants: slots, bytes and replies in flight are bounded ([`Session::try_take`]),
//! and above a bound no further request is taken. A FLUSH is answered after every
//! write that came before it on this connection; those of other connections need
//! no wait, since an acknowledged write is safe already. A request goes to the queue when
//! it is its turn among those of other connections to its bytes ([`Claim`]).

mod holes;
mod writes;

use std::collections::VecDeque;

use cenote_volume::{Done, IoError, Op, Request};

use super::budget::Account;
use super::claims::{Access, Claim, Place};
use super::engine::Engine;
use super::handshake::Agreed;
use super::outbox::{Body, Outbox, Piece};
use super::roster::Member;
use super::wire::{Errno, Framing, Head, PAYLOAD_BYTES_MAX, RequestHeader, command, command_flag};
use writes::Payload;

/// The state of one connection's requests.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) outbox: Outbox,
    /// Among those of the export whose requests may still come.
    pub(crate) member: Member,
    agreed: Agreed,
    /// Upper half of every tag: which connection of the worker this is.
    tag_base: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Buffer bytes of requests in flight.
    account: Account,
    /// Requests inside the queue.
    submitted: usize,
    /// Requests that the queue had no room for, or that wait for their turn, oldest first.
    held: VecDeque<Request>,
    /// Among the connections of the export.
    place: Place,
    /// Writes, discards and zeroings not yet answered.
    writes_in_flight: usize,
    flushes: VecDeque<Flush>,
    /// FLUSH requests so far.
    flush_count: u64,
    payload: Payload,
    /// No further request is taken; the connection closes after the last reply.
    ending: bool,
}

/// What became of a request that a client sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Taking {
    /// It is under way or answered, and its payload, if any, is next.
    Taken,
    /// There is no room for it: offer it again.
    Later,
    /// It announces more than can be read or thrown away: the connection is of no use.
    Hopeless,
}

/// A request that was taken and whose reply is not out yet.
#[derive(Debug)]
struct Slot {
    header: RequestHeader,
    /// A READ's data, or the answer to BLOCK_STATUS.
    buffer: Vec<u8>,
    /// Bytes of the account that go back with the slot.
    taken_bytes: usize,
    /// FLUSH requests before this one.
    flush_count: u64,
    /// What WRITE_ZEROES with NO_HOLE has still to write, and CACHE to read.
    steps_left: u64,
    /// Of a WRITE: pieces in the queue, and one more until all of its payload came.
    pieces: u32,
    /// Why a piece of it failed.
    failed: Option<IoError>,
    /// Requests for it in the queue.
    queued: u32,
    /// To what these change, or the rest of its steps will, or to what it waits to read.
    claim: Option<Claim>,
}

/// A FLUSH that waits for the writes before it.
#[derive(Debug)]
struct Flush {
    header: RequestHeader,
    /// FLUSH requests before this one.
    number: u64,
    writes_left: usize,
}

/// Limits of one connection.
/// Slots: twice the deepest queue that common clients use.
const SLOTS_MAX: usize = 256;
/// Buffer bytes, if the server has them to spare; one request of the largest size.
pub(super) const IN_FLIGHT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX as usize;
/// Unsent pieces, above which no request is taken (one reply may pass it).
const PIECES_MAX: usize = 1024;
/// Zeros written at once for NO_HOLE, and bytes read at once for CACHE; arbitrary.
const STEP_BYTES: u64 = 1 << 20;

impl Session {
    pub(crate) fn new(
        agreed: Agreed,
        tag_base: u64,
        account: Account,
        place: Place,
        member: Member,
    ) -> Self {
        Self {
            outbox: Outbox::default(),
            member,
            agreed,
            tag_base,
            slots: Vec::new(),
            free: Vec::new(),
            account,
            submitted: 0,
            held: VecDeque::new(),
            place,
            writes_in_flight: 0,
            flushes: VecDeque::new(),
            flush_count: 0,
            payload: Payload::None,
            ending: false,
        }
    }

    /// How requests and replies are framed.
    pub(crate) fn framing(&self) -> Framing {
        self.agreed.framing
    }

    /// Whether `header` would be taken now, as far as can be told without trying.
    pub(crate) fn has_room(&self, header: &RequestHeader) -> bool {
        self.has_slots() && self.account.has_room(needed_bytes(header))
    }

    /// Whether others wait for memory that this client's requests have.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.account.is_in_the_way()
    }

    fn has_slots(&self) -> bool {
        let slots_used = self.slots.len() - self.free.len();
        self.held.is_empty()
            && slots_used < SLOTS_MAX
            && self.flushes.len() < SLOTS_MAX
            && self.outbox.len() < PIECES_MAX
    }

    /// No request will be taken any more; what runs is finished and answered.
    pub(crate) fn end(&mut self) {
        self.ending = true;
        self.member.leave();
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Whether every reply is out after the end.
    pub(crate) fn is_over(&self) -> bool {
        self.ending && self.is_idle()
    }

    /// Requests of this session inside the queue.
    pub(crate) fn submitted_count(&self) -> usize {
        self.submitted
    }

    /// Whether every request that came whole is answered, and the answer sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.submitted == 0
            && self.held.is_empty()
            && self.flushes.is_empty()
            && self.outbox.is_empty()
    }

    /// Whether requests wait for room in the queue, or for other connections.
    pub(crate) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes a request whose payload, if any, follows.
    pub(crate) fn try_take(&mut self, header: RequestHeader, engine: &mut Engine) -> Taking {
        let payload_bytes = header.payload_bytes(self.agreed.framing);
        if payload_bytes > u64::from(u32::MAX) {
            return Taking::Hopeless;
        }
        if header.command == command::DISC {
            // It needs no room, and its client may not wait for the end.
            self.end();
            return Taking::Taken;
        }
        if !self.has_slots() {
            return Taking::Later;
        }
        let verdict = self.check(&header);
        let taken_bytes = match verdict {
            Ok(()) => needed_bytes(&header),
            Err(_) => 0,
        };
        if !self.account.try_take(taken_bytes) {
            return Taking::Later;
        }
        count_request(&header, engine);
        match verdict {
            Ok(()) => self.begin(header, taken_bytes, engine),
            Err((errno, text)) => {
                engine.counters.errors.add(1);
                let answer = self.error_piece(&header, errno, text);
                if payload_bytes > 0 {
                    let left = payload_bytes as usize;
                    self.payload = Payload::Skip { left, answer };
                } else {
                    self.outbox.push(answer);
                }
            }
        }
        Taking::Taken
    }

    /// Starts a request that is as it should be; `taken_bytes` of the account are its own.
    fn begin(&mut self, header: RequestHeader, taken_bytes: usize, engine: &mut Engine) {
        match header.command {
            command::FLUSH => self.flush(header),
            command::BLOCK_STATUS => self.block_status(header, engine),
            command::READ if self.answer_as_hole(&header, engine) => {
                self.account.give(taken_bytes);
            }
            command::READ => {
                let buffer = engine.buffers.take(taken_bytes);
                let slot = self.take_slot(header, taken_bytes);
                self.submit(slot, header.offset, Op::Read(buffer), engine);
            }
            _ if header.len_bytes == 0 => self.answer_done(&header),
            command::WRITE => self.begin_write(header, taken_bytes, engine),
            command::CACHE => self.begin_cache(header, taken_bytes, engine),
            _ => self.discard(header, taken_bytes, engine),
        }
    }

    /// Offers requests to the queue again that are held.
    pub(crate) fn submit_held(&mut self, engine: &mut Engine) {
        // One that waits for its turn must not stop those behind it: it may be them that another
        // connection waits for, which it waits for itself.
        for _ in 0..self.held.len() {
            if let Some(request) = self.held.pop_front()
                && let Err(request) = self.offer(request, engine)
            {
                self.held.push_back(request);
            }
        }
    }

    /// Takes the end of one of this session's requests.
    pub(crate) fn complete(&mut self, done: Done, engine: &mut Engine) {
        self.submitted -= 1;
        let slot = done.tag as u32;
        let taken = &mut self.slots[slot as usize];
        taken.queued -= 1;
        if taken.queued == 0 && taken.steps_left == 0 {
            taken.claim = None;
        }
        let header = taken.header;
        match (done.op, header.command) {
            (Op::Read(buffer), command::READ) if done.result.is_ok() => {
                engine.counters.read_bytes.add(buffer.len() as u64);
                self.slots[slot as usize].buffer = buffer;
                self.answer_read(slot, engine);
                return;
            }
            (Op::Write(buffer), command::WRITE) => {
                self.end_piece(slot, buffer, done.result, engine);
                return;
            }
            (op @ (Op::Read(_) | Op::Write(_)), _)
                if done.result.is_ok() && self.slots[slot as usize].steps_left > 0 =>
            {
                if !self.ending {
                    self.step(slot, op, engine);
                    return;
                }
                // Its client is leaving, or gone and back on another connection: what is written there from
                // now on is not to be zeroed by this one.
                let (Op::Read(buffer) | Op::Write(buffer)) = op else {
                    unreachable!("matched above");
                };
                engine.buffers.give(buffer);
                return self.finish(slot, Err(IoError::Closed), engine);
            }
            (Op::Read(buffer) | Op::Write(buffer), _) => engine.buffers.give(buffer),
            (Op::Discard { .. }, _) => {}
        }
        self.finish(slot, done.result, engine);
    }

    /// Answers a request that has no data for its client, and ends it.
    fn finish(&mut self, slot: u32, result: Result<(), IoError>, engine: &mut Engine) {
        let header = self.slots[slot as usize].header;
        match result {
            Ok(()) => self.answer_done(&header),
            Err(error) => {
                engine.counters.errors.add(1);
                let (errno, text) = errno_of(error, &header);
                let answer = self.error_piece(&header, errno, text);
                self.outbox.push(answer);
            }
        }
        self.end_write(&header, slot);
        self.free_slot(slot, engine);
    }

    /// Frees the slots of replies that are out.
    pub(crate) fn release(&mut self, slots: &mut Vec<u32>, engine: &mut Engine) {
        for slot in slots.drain(..) {
            self.free_slot(slot, engine);
        }
    }

    /// A slot's buffer and the outbox, for sending.
    pub(crate) fn outgoing<'a>(&'a mut self) -> (&'a mut Outbox, impl Fn(u32) -> &'a [u8]) {
        let slots = &self.slots;
        (&mut self.outbox, |slot| &slots[slot as usize].buffer[..])
    }

    /// Gives back what is not in the queue; call when the connection is gone.
    pub(crate) fn abandon(&mut self) {
        self.end();
        self.payload = Payload::None;
        self.held.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.queued == 0) {
            slot.claim = None;
        }
        self.flushes.clear();
        self.outbox = Outbox::default();
    }

    fn check(&self, header: &RequestHeader) -> Result<(), (Errno, &'static str)> {
        let is_extended = self.agreed.framing == Framing::Extended;
        let allowed = match header.command {
            command::READ => command_flag::DF,
            command::WRITE if is_extended => command_flag::PAYLOAD_LEN,
            command::DISC => u16::MAX,
            command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS if self.agreed.block_status => command_flag::REQ_ONE,
            command::BLOCK_STATUS => return Err((Errno::Invalid, "no metadata context chosen")),
            _ => return Err((Errno::Invalid, "unknown command")),
        };
        // FUA is allowed everywhere once offered; every write is as safe as FUA asks.
        if header.flags & !(allowed | command_flag::FUA) != 0 {
            return Err((Errno::Invalid, "unknown command flag"));
        }
        if header.flags & command_flag::DF != 0 && !self.agreed.framing.has_chunks() {
            return Err((Errno::Invalid, "DF without structured replies"));
        }
        if matches!(header.command, command::FLUSH | command::DISC) {
            return Ok(());
        }
        if header.command == command::WRITE
            && header.payload_bytes(self.agreed.framing) != header.len_bytes
        {
            return Err((Errno::Invalid, "a write without its payload"));
        }
        let end = header.offset.checked_add(header.len_bytes);
        if end.is_none_or(|end| end > self.agreed.size_bytes) {
            let errno = match header.command {
                command::WRITE | command::WRITE_ZEROES => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            return Err((errno, "range passes the end"));
        }
        match header.command {
            command::READ | command::WRITE if header.len_bytes > u64::from(PAYLOAD_BYTES_MAX) => {
                Err((Errno::Invalid, "longer than the announced maximum"))
            }
            command::BLOCK_STATUS if header.len_bytes == 0 => {
                Err((Errno::Invalid, "block status of nothing"))
            }
            command::WRITE_ZEROES
                if header.flags & command_flag::FAST_ZERO != 0
                    && header.flags & command_flag::NO_HOLE != 0 =>
            {
                Err((Errno::NotSupported, "zeros that stay are no faster"))
            }
            _ => Ok(()),
        }
    }

    fn flush(&mut self, header: RequestHeader) {
        let number = self.flush_count;
        self.flush_count += 1;
        if self.writes_in_flight == 0 {
            self.answer_done(&header);
            return;
        }
        self.flushes.push_back(Flush {
            header,
            number,
            writes_left: self.writes_in_flight,
        });
    }

    fn answer_done(&mut self, header: &RequestHeader) {
        let head = Head::done(self.agreed.framing, header);
        self.outbox.push(Piece::head_only(head));
    }

    /// Counts a write as answered and answers the flushes that waited for it.
    fn end_write(&mut self, header: &RequestHeader, slot: u32) {
        if !is_write(header) {
            return;
        }
        self.writes_in_flight -= 1;
        let earlier = self.slots[slot as usize].flush_count;
        for flush in &mut self.flushes {
            if flush.number >= earlier {
                flush.writes_left -= 1;
            }
        }
        while let Some(flush) = self.flushes.pop_front_if(|flush| flush.writes_left == 0) {
            self.answer_done(&flush.header);
        }
    }

    fn error_piece(&self, header: &RequestHeader, errno: Errno, text: &'static str) -> Piece {
        let framing = self.agreed.framing;
        let has_chunks = match framing {
            Framing::Simple => false,
            Framing::Structured => {
                matches!(header.command, command::READ | command::BLOCK_STATUS)
            }
            Framing::Extended => true,
        };
        if !has_chunks {
            return Piece::head_only(Head::simple(header.cookie, Some(errno)));
        }
        Piece {
            head: Head::error(framing, header, errno, text.len() as u16),
            body: Body::Text(text),
            releases: None,
        }
    }

    fn submit(&mut self, slot: u32, offset: u64, op: Op, engine: &mut Engine) {
        let request = Request {
            tag: self.tag_base | u64::from(slot),
            offset,
            op,
        };
        if let Err(request) = self.offer(request, engine) {
            self.held.push_back(request);
        }
    }

    /// Gives a request to the queue; gives it back if the queue is full, or it is not its turn.
    fn offer(&mut self, request: Request, engine: &mut Engine) -> Result<(), Request> {
        if !self.is_turn_of(&request) {
            engine.note_refusal();
            return Err(request);
        }
        let slot = request.tag as u32;
        let only_reads = matches!(request.op, Op::Read(_));
        engine.submit(self.agreed.export, request)?;
        self.submitted += 1;
        let taken = &mut self.slots[slot as usize];
        taken.queued += 1;
        if only_reads {
            taken.claim = None;
        }
        Ok(())
    }

    /// Whether a request may go to the queue as far as other connections are concerned.
    fn is_turn_of(&mut self, request: &Request) -> bool {
        let slot = &mut self.slots[request.tag as u32 as usize];
        let whole = slot.header.offset..slot.header.offset + slot.header.len_bytes;
        let part_of = |len| request.offset..request.offset + len as u64;
        let (bytes, access) = match &request.op {
            Op::Read(buffer) => (part_of(buffer.len()), Access::Read),
            Op::Write(piece) if slot.header.command == command::WRITE => {
                (part_of(piece.len()), Access::Change)
            }
            // All of it at once: what others wrote between two steps would be zeroed by the next.
            _ => (whole, Access::Change),
        };
        if let Some(claim) = &slot.claim {
            return claim.has_turn(&bytes);
        }
        if access == Access::Read && self.place.may_read(&bytes) {
            return true;
        }
        let (claim, is_turn) = self.place.claim(bytes, access);
        slot.claim = Some(claim);
        is_turn
    }

    /// A slot for a request that has `taken_bytes` of the account.
    fn take_slot(&mut self, header: RequestHeader, taken_bytes: usize) -> u32 {
        let slot = Slot {
            header,
            buffer: Vec::new(),
            taken_bytes,
            flush_count: self.flush_count,
            steps_left: 0,
            pieces: 0,
            failed: None,
            queued: 0,
            claim: None,
        };
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = slot;
            return index;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    fn free_slot(&mut self, slot: u32, engine: &mut Engine) {
        let taken = &mut self.slots[slot as usize];
        taken.claim = None;
        self.account.give(std::mem::take(&mut taken.taken_bytes));
        engine.buffers.give(std::mem::take(&mut taken.buffer));
        self.free.push(slot);
    }
}

/// Buffer bytes that a request has to have before it is taken.
fn needed_bytes(header: &RequestHeader) -> usize {
    let most = match header.command {
        command::READ => u64::from(PAYLOAD_BYTES_MAX),
        command::WRITE => writes::PIECE_BYTES as u64,
        command::WRITE_ZEROES if header.flags & command_flag::NO_HOLE != 0 => STEP_BYTES,
        command::CACHE => STEP_BYTES,
        _ => 0,
    };
    header.len_bytes.min(most) as usize
}

/// Whether the request changes bytes, so that a FLUSH after it waits for it.
fn is_write(header: &RequestHeader) -> bool {
    matches!(
        header.command,
        command::WRITE | command::TRIM | command::WRITE_ZEROES
    )
}

fn count_request(header: &RequestHeader, engine: &Engine) {
    let counters = &engine.counters;
    match header.command {
        command::READ => counters.reads.add(1),
        command::WRITE => counters.writes.add(1),
        command::TRIM | command::WRITE_ZEROES => counters.discards.add(1),
        command::FLUSH => counters.flushes.add(1),
        command::CACHE => counters.caches.add(1),
        command::BLOCK_STATUS => counters.block_statuses.add(1),
        _ => {}
    }
}

fn errno_of(error: IoError, header: &RequestHeader) -> (Errno, &'static str) {
    match error {
        IoError::NoSpace => (Errno::NoSpace, "too few hosts have memory left"),
        IoError::OutOfRange if header.command == command::READ => {
            (Errno::Invalid, "range passes the end")
        }
        IoError::OutOfRange => (Errno::NoSpace, "range passes the end"),
        IoError::Corrupt => (Errno::Io, "splits of a page disagree"),
        IoError::Disk => (Errno::Io, "the backing store's disk failed"),
        IoError::Closed => (Errno::Shutdown, "the volume was closed"),
        _ => (
            Errno::Io,
            "lost: more hosts failed, or do not answer, than the scheme survives",
        ),
    }
}
