//! Requests for values whose length is not known here, and what they may be answered.
//!
//! How large an item is only its own worker knows. So another worker, or node, is asked for a value
//! of so many bytes at the most; a longer one waits in its place among the client's replies until
//! there is memory for it. What cannot be served yet waits where it is served, as one that may be
//! answered by a small value, and has no memory meanwhile.
//!
//! Small values are given although unread answers have used up their memory: each connection has
//! room for one in any case.

use cenote_kv::engine::Partition;
use cenote_kv::group::owner::Refusal;
use cenote_kv::memory::key_hash::place_hash;
use cenote_kv::protocol::Request;
use cenote_kv::protocol::binary::{Command, Message};

use super::backend::{Backend, Route};
use super::batch::Ticket;
use super::core::Core;
use super::replies::FORESEEN_FIRST;
use super::session::{Session, Text};
use super::times::Operation;

/// Bytes of such a request, and of the value that answers it. A key and what else an answer shows
/// are less again, and the two lie in what a connection keeps of its buffers.
pub(super) const SMALL_BYTES: u32 = 1 << 10;
/// The first value that a client is shown by another worker may have so many bytes: what there was
/// room for when it asked.
const FIRST_BYTES: u32 = FORESEEN_FIRST as u32;
/// A value of any length counts as this until it is there: what items have at the most.
const VALUE_BYTES: usize = 1 << 20;
/// What stands before a request that is to be served only up to a length: this and, in four bytes,
/// the length. No request begins so.
const LIMIT: u8 = 0;
/// What is told of a longer value. No answer begins so.
const IS_LARGE: &[u8] = b"\0";
/// What is told where it cannot be served yet, and more than a small value may be answered: whoever
/// asks keeps memory for it.
const NOT_NOW: &[u8] = b"\x01";

/// A request whose answer may be longer than there is memory for.
#[derive(Debug)]
pub(super) struct Doubtful {
    ticket: Ticket,
    text: Vec<u8>,
    state: State,
}

/// What becomes of it next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// It is answered, or said to be too long.
    Asked,
    /// It is asked again, for a small value: there is no use in memory for it now.
    AskedTooEarly,
    /// It waits for memory.
    Waits,
}

impl Doubtful {
    /// One that was asked for.
    pub(super) fn asked(ticket: Ticket, text: Vec<u8>) -> Self {
        let state = State::Asked;
        Self {
            ticket,
            text,
            state,
        }
    }

    /// What becomes of it when its slot is answered; nothing if that is its answer.
    pub(super) fn after(self, answer: &[u8]) -> Option<Self> {
        let state = match answer {
            IS_LARGE => State::Waits,
            NOT_NOW => State::AskedTooEarly,
            _ => return None,
        };
        Some(Self { state, ..self })
    }
}

/// Whether a request of so many bytes may be answered by much only if it shows an item.
pub(super) fn is_brief(request: &Request<'_>, bytes: usize) -> bool {
    let lists = matches!(
        request,
        Request::Stats(_) | Request::Watch(_) | Request::Crawler(_)
    );
    bytes <= SMALL_BYTES as usize && !lists
}

/// The same of a message.
pub(super) fn is_brief_message(message: &Message<'_>, bytes: usize) -> bool {
    bytes <= SMALL_BYTES as usize && !matches!(message.command, Command::Stat)
}

/// Whether a request is answered by a value.
pub(super) fn shows_value(request: &Request<'_>) -> bool {
    match request {
        Request::Get(_) => true,
        Request::MetaGet(get) => get.wants_value,
        Request::Binary(message) => matches!(message.command, Command::Get { .. }),
        _ => false,
    }
}

/// A request as its client made it, and how long the value may be that is shown, where that is
/// limited.
pub fn limited(text: &[u8]) -> (&[u8], Option<u32>) {
    match text {
        [LIMIT, a, b, c, d, request @ ..] => (request, Some(u32::from_le_bytes([*a, *b, *c, *d]))),
        _ => (text, None),
    }
}

/// The text of a request with a limit.
fn with_limit(limit: u32, request: &[u8]) -> Vec<u8> {
    [&[LIMIT][..], &limit.to_le_bytes(), request].concat()
}

impl Session {
    /// Whether a request waits until it can be served, as all that there is, and has no memory.
    pub(super) fn waits_without_memory(&self) -> bool {
        self.parked.is_some() && self.replies.waits_without_memory()
    }

    /// Whether a request waits for memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        let doubtful = self.doubtful.as_ref();
        doubtful.is_some_and(|doubtful| doubtful.state == State::Waits)
    }

    /// Serves the request that waited for memory, which there is.
    pub(super) fn go_on_with_doubtful<B: Backend>(&mut self, core: &mut Core<B>) {
        if let Some(doubtful) = self.doubtful.take() {
            // Or all that wait would ask at once, before the first value is there.
            self.replies.expect(VALUE_BYTES);
            self.ask(core, u32::MAX, doubtful.ticket, doubtful.text);
        }
    }

    /// Asks again for what was asked for when it could not be served; whether there is such.
    pub(super) fn asks_again<B: Backend>(&mut self, core: &mut Core<B>) -> bool {
        let is_too_early = |one: &mut Doubtful| one.state == State::AskedTooEarly;
        let Some(doubtful) = self.doubtful.take_if(is_too_early) else {
            return false;
        };
        self.ask(core, SMALL_BYTES, doubtful.ticket, doubtful.text);
        true
    }

    /// Takes what its doubtful request was told; whether that is no answer yet.
    pub(super) fn is_put_off(&mut self, answer: &[u8]) -> bool {
        let asked = self.doubtful.take();
        self.doubtful = asked.and_then(|asked| asked.after(answer));
        if self.doubtful.is_some() {
            self.replies.expect(0);
        }
        self.doubtful.is_some()
    }

    /// Keeps a request that shows an item for when there is memory, unless its answer is known to
    /// be small; says whether it was kept.
    pub(super) fn doubt<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        key: &[u8],
        text: &Text<'_>,
        operation: Option<Operation>,
    ) -> bool {
        if let Route::Here(partition) = core.backend.route(place_hash(key))
            && core.has_small(partition, key)
        {
            return false;
        }
        self.ask_small(core, &text.bytes(), operation);
        true
    }

    /// Asks for a value if it is small, and holds up what stands behind it. One that cannot be
    /// served yet waits without memory.
    pub(super) fn ask_small<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        text: &[u8],
        operation: Option<Operation>,
    ) {
        let ticket = self.hold_up(core, text, false, operation);
        self.replies.expect(0);
        self.ask(core, SMALL_BYTES, ticket, text.to_vec());
    }

    /// Asks for the first value of a client that is not this worker's: how long those are is not
    /// known, and many clients may ask for their first at once.
    pub(super) fn ask_first<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        text: &[u8],
        operation: Option<Operation>,
    ) {
        let ticket = self.hold_up(core, text, false, operation);
        self.replies.expect(FIRST_BYTES as usize);
        self.ask(core, FIRST_BYTES, ticket, text.to_vec());
    }

    fn ask<B: Backend>(&mut self, core: &mut Core<B>, limit: u32, ticket: Ticket, text: Vec<u8>) {
        core.serve(ticket, &with_limit(limit, &text));
        self.doubtful = Some(Doubtful::asked(ticket, text));
    }
}

impl<B: Backend> Core<B> {
    /// Whether a key of a partition here can be answered with a small value, or with none.
    fn has_small(&mut self, partition: usize, key: &[u8]) -> bool {
        let may_serve = self.backend.may_serve(partition);
        may_serve && longest(self.backend.partition(partition), key).0 <= SMALL_BYTES
    }

    /// A request cannot be served now. Says so where memory is kept for its answer, and otherwise
    /// that it is to be kept.
    pub(super) fn is_told_later(&mut self, ticket: Ticket, limit: Option<u32>) -> bool {
        let is_told = limit.is_some_and(|limit| limit > SMALL_BYTES);
        if is_told {
            self.deliver(ticket, NOT_NOW);
        }
        is_told
    }

    /// Compares a value with a limit, at a partition that is served. Nothing where it may be shown;
    /// otherwise whether that has been told, or the request is to be kept.
    pub(super) fn is_refused_by_limit(
        &mut self,
        ticket: Ticket,
        partition: usize,
        key: &[u8],
        limit: Option<u32>,
    ) -> Option<bool> {
        let limit = limit?;
        let (bytes, at_hand) = longest(self.backend.partition(partition), key);
        if bytes <= SMALL_BYTES {
            return None;
        }
        // Or memory would be kept for it while it is recovered.
        if let Err(refusal) = at_hand {
            self.backend.on_refusal(partition, refusal);
            return Some(self.is_told_later(ticket, Some(limit)));
        }
        (bytes > limit).then(|| {
            self.deliver(ticket, IS_LARGE);
            true
        })
    }
}

/// Length of the longest value that may be shown of a key, and whether it is at hand.
fn longest<P: Partition>(partition: &P, key: &[u8]) -> (u32, Result<(), Refusal>) {
    let hash = partition.hash_of(key);
    let newest = partition.newest(hash, key).found;
    let found = newest.into_iter().chain(partition.committed(hash, key));
    let longest = found.max_by_key(|found| P::item(found).value_bytes);
    longest.map_or((0, Ok(())), |found| {
        let bytes = P::item(&found).value_bytes;
        let is_long = bytes > SMALL_BYTES;
        let at_hand = is_long.then(|| partition.value(&found, |_| ()));
        (bytes, at_hand.unwrap_or(Ok(())))
    })
}
