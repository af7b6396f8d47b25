//! The transmission phase of one connection: requests in, replies out.
//!
//! A request takes a slot, runs in its export's queue and leaves its reply in
//! the outbox; the slot is free again when the reply is sent. No socket is
//! touched here: `connection` feeds headers and payloads and sends the outbox.
//!
//! Invariants: slots, bytes and replies in flight are bounded ([`Session::has_room`]),
//! and above a bound no further request is taken. A FLUSH is answered after every
//! write that came before it on this connection; those of other connections need
//! no wait, since an acknowledged write is safe already.

mod holes;

use std::collections::VecDeque;

use cenote_volume::{Done, IoError, Op, Request};

use super::engine::Engine;
use super::handshake::Agreed;
use super::outbox::{Body, Outbox, Piece};
use super::wire::{Errno, Head, PAYLOAD_BYTES_MAX, RequestHeader, command, command_flag};

/// The state of one connection's requests.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) outbox: Outbox,
    agreed: Agreed,
    /// Upper half of every tag: which connection of the worker this is.
    tag_base: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Buffer bytes of taken slots.
    in_flight_bytes: usize,
    /// Requests inside the queue.
    submitted: usize,
    /// Requests that the queue had no room for, oldest first.
    held: VecDeque<Request>,
    /// Writes, discards and zeroings not yet answered.
    writes_in_flight: usize,
    flushes: VecDeque<Flush>,
    /// FLUSH requests so far.
    flush_count: u64,
    payload: Payload,
    /// No further request is taken; the connection closes after the last reply.
    ending: bool,
}

/// What the bytes after a header are for.
#[derive(Debug)]
enum Payload {
    /// The next header.
    None,
    /// The buffer of a WRITE.
    Fill { slot: u32, filled: usize },
    /// Nothing: the WRITE was refused, and this is its answer.
    Skip { left: usize, answer: Piece },
}

/// A request that was taken and whose reply is not out yet.
#[derive(Debug)]
struct Slot {
    header: RequestHeader,
    /// Holds a WRITE's payload until it is submitted, and a READ's data after.
    buffer: Vec<u8>,
    /// Bytes counted in `in_flight_bytes`.
    charged_bytes: usize,
    /// FLUSH requests before this one.
    flush_count: u64,
    /// What WRITE_ZEROES with NO_HOLE has still to write.
    zeros_left: u64,
}

/// A FLUSH that waits for the writes before it.
#[derive(Debug)]
struct Flush {
    cookie: u64,
    /// FLUSH requests before this one.
    number: u64,
    writes_left: usize,
}

/// Limits of one connection.
/// Slots: twice the deepest queue that common clients use.
const SLOTS_MAX: usize = 256;
/// Buffer bytes; two requests of the largest size.
const IN_FLIGHT_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX as usize;
/// Unsent pieces, above which no request is taken (one reply may pass it).
const PIECES_MAX: usize = 1024;
/// Zeros written at once for NO_HOLE; arbitrary.
const ZEROS_STEP_BYTES: u64 = 1 << 20;

impl Session {
    pub(crate) fn new(agreed: Agreed, tag_base: u64) -> Self {
        Self {
            outbox: Outbox::default(),
            agreed,
            tag_base,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight_bytes: 0,
            submitted: 0,
            held: VecDeque::new(),
            writes_in_flight: 0,
            flushes: VecDeque::new(),
            flush_count: 0,
            payload: Payload::None,
            ending: false,
        }
    }

    /// Whether `header` may be taken now; if not, reading pauses.
    pub(crate) fn has_room(&self, header: &RequestHeader) -> bool {
        let payload_bytes = match header.command {
            command::READ | command::WRITE => header.len_bytes.min(PAYLOAD_BYTES_MAX) as usize,
            _ => 0,
        };
        let slots_used = self.slots.len() - self.free.len();
        self.held.is_empty()
            && slots_used < SLOTS_MAX
            && self.flushes.len() < SLOTS_MAX
            && self.outbox.len() < PIECES_MAX
            && (slots_used == 0 || self.in_flight_bytes + payload_bytes <= IN_FLIGHT_BYTES_MAX)
    }

    /// No request will be taken any more; what runs is finished and answered.
    pub(crate) fn end(&mut self) {
        self.ending = true;
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

    /// Whether requests wait for room in the queue.
    pub(crate) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes a request whose payload, if any, follows.
    pub(crate) fn take(&mut self, header: RequestHeader, engine: &mut Engine) {
        if header.command == command::DISC {
            self.end();
            return;
        }
        count_request(&header, engine);
        if let Err((errno, text)) = self.check(&header) {
            engine.counters.errors.add(1);
            let answer = self.error_piece(&header, errno, text);
            match header.command {
                command::WRITE if header.len_bytes > 0 => {
                    let left = header.len_bytes as usize;
                    self.payload = Payload::Skip { left, answer };
                }
                _ => self.outbox.push(answer),
            }
            return;
        }
        match header.command {
            command::FLUSH => self.flush(header.cookie),
            command::BLOCK_STATUS => self.block_status(header, engine),
            command::READ if self.answer_as_hole(&header, engine) => {}
            command::READ => {
                let buffer = engine.buffers.take(header.len_bytes as usize);
                let slot = self.take_slot(header, buffer.len());
                self.submit(slot, header.offset, Op::Read(buffer), engine);
            }
            _ if header.len_bytes == 0 => {
                self.outbox
                    .push(Piece::head_only(Head::simple(header.cookie, None)));
            }
            command::WRITE => {
                let buffer = engine.buffers.take(header.len_bytes as usize);
                let slot = self.take_slot(header, buffer.len());
                self.slots[slot as usize].buffer = buffer;
                self.writes_in_flight += 1;
                self.payload = Payload::Fill { slot, filled: 0 };
            }
            _ => self.discard(header, engine),
        }
    }

    /// Copies or skips payload from the front of `input`; returns the bytes used.
    pub(crate) fn feed(&mut self, input: &[u8], engine: &mut Engine) -> usize {
        match &mut self.payload {
            Payload::None => 0,
            Payload::Fill { slot, filled } => {
                let target = &mut self.slots[*slot as usize].buffer[*filled..];
                let used = target.len().min(input.len());
                target[..used].copy_from_slice(&input[..used]);
                self.filled(used, engine);
                used
            }
            Payload::Skip { left, .. } => {
                let used = (*left).min(input.len());
                *left -= used;
                if *left == 0
                    && let Payload::Skip { answer, .. } =
                        std::mem::replace(&mut self.payload, Payload::None)
                {
                    self.outbox.push(answer);
                }
                used
            }
        }
    }

    /// Where the rest of a WRITE's payload goes; empty when none is awaited.
    pub(crate) fn landing(&mut self) -> &mut [u8] {
        match self.payload {
            Payload::Fill { slot, filled } => &mut self.slots[slot as usize].buffer[filled..],
            _ => &mut [],
        }
    }

    /// Whether payload bytes come next.
    pub(crate) fn awaits_payload(&self) -> bool {
        !matches!(self.payload, Payload::None)
    }

    /// Says that `count` bytes were received into [`Session::landing`].
    pub(crate) fn filled(&mut self, count: usize, engine: &mut Engine) {
        let Payload::Fill { slot, filled } = &mut self.payload else {
            return;
        };
        *filled += count;
        let (slot, filled) = (*slot, *filled);
        if filled < self.slots[slot as usize].buffer.len() {
            return;
        }
        self.payload = Payload::None;
        let taken = &mut self.slots[slot as usize];
        let (offset, buffer) = (taken.header.offset, std::mem::take(&mut taken.buffer));
        self.submit(slot, offset, Op::Write(buffer), engine);
    }

    /// Offers requests to the queue again that it had no room for.
    pub(crate) fn submit_held(&mut self, engine: &mut Engine) {
        while let Some(request) = self.held.pop_front() {
            if let Err(request) = engine.submit(self.agreed.export, request) {
                self.held.push_front(request);
                return;
            }
            self.submitted += 1;
        }
    }

    /// Takes the end of one of this session's requests.
    pub(crate) fn complete(&mut self, done: Done, engine: &mut Engine) {
        self.submitted -= 1;
        let slot = done.tag as u32;
        let header = self.slots[slot as usize].header;
        if let Err(error) = done.result {
            if let Op::Read(buffer) | Op::Write(buffer) = done.op {
                engine.buffers.give(buffer);
            }
            engine.counters.errors.add(1);
            let (errno, text) = errno_of(error, &header);
            let answer = self.error_piece(&header, errno, text);
            self.outbox.push(answer);
            self.end_write(&header, slot);
            self.free_slot(slot, engine);
            return;
        }
        match done.op {
            Op::Read(buffer) => {
                engine.counters.read_bytes.add(buffer.len() as u64);
                self.slots[slot as usize].buffer = buffer;
                self.answer_read(slot, engine);
            }
            Op::Write(buffer) if self.slots[slot as usize].zeros_left > 0 => {
                self.write_zeros(slot, buffer, engine);
            }
            Op::Write(buffer) => {
                if header.command == command::WRITE {
                    engine.counters.written_bytes.add(buffer.len() as u64);
                }
                engine.buffers.give(buffer);
                self.answer_write(slot, engine);
            }
            Op::Discard { .. } => self.answer_write(slot, engine),
        }
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
        self.ending = true;
        self.payload = Payload::None;
        self.held.clear();
        self.flushes.clear();
        self.outbox = Outbox::default();
    }

    fn check(&self, header: &RequestHeader) -> Result<(), (Errno, &'static str)> {
        let allowed = match header.command {
            command::READ => command_flag::DF,
            command::WRITE | command::FLUSH | command::TRIM => 0,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS if self.agreed.block_status => command_flag::REQ_ONE,
            command::BLOCK_STATUS => return Err((Errno::Invalid, "no metadata context chosen")),
            _ => return Err((Errno::Invalid, "unknown command")),
        };
        // FUA is allowed everywhere once offered; every write is as safe as FUA asks.
        if header.flags & !(allowed | command_flag::FUA) != 0 {
            return Err((Errno::Invalid, "unknown command flag"));
        }
        if header.flags & command_flag::DF != 0 && !self.agreed.structured {
            return Err((Errno::Invalid, "DF without structured replies"));
        }
        if header.command == command::FLUSH {
            return Ok(());
        }
        let end = header.offset.checked_add(u64::from(header.len_bytes));
        if end.is_none_or(|end| end > self.agreed.size_bytes) {
            let errno = match header.command {
                command::WRITE | command::WRITE_ZEROES => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            return Err((errno, "range passes the end"));
        }
        match header.command {
            command::READ | command::WRITE if header.len_bytes > PAYLOAD_BYTES_MAX => {
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

    fn flush(&mut self, cookie: u64) {
        let number = self.flush_count;
        self.flush_count += 1;
        if self.writes_in_flight == 0 {
            self.outbox
                .push(Piece::head_only(Head::simple(cookie, None)));
            return;
        }
        self.flushes.push_back(Flush {
            cookie,
            number,
            writes_left: self.writes_in_flight,
        });
    }

    fn discard(&mut self, header: RequestHeader, engine: &mut Engine) {
        self.writes_in_flight += 1;
        let len_bytes = u64::from(header.len_bytes);
        let stays =
            header.command == command::WRITE_ZEROES && header.flags & command_flag::NO_HOLE != 0;
        if !stays {
            let slot = self.take_slot(header, 0);
            self.submit(slot, header.offset, Op::Discard { len_bytes }, engine);
            return;
        }
        let step_bytes = len_bytes.min(ZEROS_STEP_BYTES) as usize;
        let slot = self.take_slot(header, step_bytes);
        self.slots[slot as usize].zeros_left = len_bytes;
        let mut zeros = engine.buffers.take(step_bytes);
        zeros.fill(0);
        self.write_zeros(slot, zeros, engine);
    }

    /// Writes the next step of a NO_HOLE zeroing; a queue leaves a written buffer's bytes alone.
    fn write_zeros(&mut self, slot: u32, mut zeros: Vec<u8>, engine: &mut Engine) {
        let taken = &mut self.slots[slot as usize];
        let end = taken.header.offset + u64::from(taken.header.len_bytes);
        let offset = end - taken.zeros_left;
        let step_bytes = taken.zeros_left.min(zeros.len() as u64);
        taken.zeros_left -= step_bytes;
        zeros.truncate(step_bytes as usize);
        self.submit(slot, offset, Op::Write(zeros), engine);
    }

    fn answer_write(&mut self, slot: u32, engine: &mut Engine) {
        let header = self.slots[slot as usize].header;
        self.outbox
            .push(Piece::head_only(Head::simple(header.cookie, None)));
        self.end_write(&header, slot);
        self.free_slot(slot, engine);
    }

    /// Counts a write as answered and answers the flushes that waited for it.
    fn end_write(&mut self, header: &RequestHeader, slot: u32) {
        if header.command == command::READ {
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
            self.outbox
                .push(Piece::head_only(Head::simple(flush.cookie, None)));
        }
    }

    fn error_piece(&self, header: &RequestHeader, errno: Errno, text: &'static str) -> Piece {
        let chunked = matches!(header.command, command::READ | command::BLOCK_STATUS);
        if !(self.agreed.structured && chunked) {
            return Piece::head_only(Head::simple(header.cookie, Some(errno)));
        }
        Piece {
            head: Head::error(header.cookie, errno, text.len() as u16),
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
        match engine.submit(self.agreed.export, request) {
            Ok(()) => self.submitted += 1,
            Err(request) => self.held.push_back(request),
        }
    }

    fn take_slot(&mut self, header: RequestHeader, charged_bytes: usize) -> u32 {
        self.in_flight_bytes += charged_bytes;
        let slot = Slot {
            header,
            buffer: Vec::new(),
            charged_bytes,
            flush_count: self.flush_count,
            zeros_left: 0,
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
        self.in_flight_bytes -= taken.charged_bytes;
        engine.buffers.give(std::mem::take(&mut taken.buffer));
        self.free.push(slot);
    }
}

fn count_request(header: &RequestHeader, engine: &Engine) {
    let counters = &engine.counters;
    match header.command {
        command::READ => counters.reads.add(1),
        command::WRITE => counters.writes.add(1),
        command::TRIM | command::WRITE_ZEROES => counters.discards.add(1),
        command::FLUSH => counters.flushes.add(1),
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
            "lost: more hosts failed than the scheme survives",
        ),
    }
}
