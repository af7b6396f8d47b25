//! Requests that are served although unread answers have used up their memory: those of a few
//! bytes that are answered by a few, which fit in what each connection has in any case.
//!
//! A client may have one such answer unsent. How large an item is only its own worker knows:
//! another worker is asked for the answer if that is small, and otherwise tells that it is not. A
//! request whose answer may be large keeps its place in the replies and waits for memory.

use cenote_kv::engine::Partition;
use cenote_kv::memory::key_hash::place_hash;
use cenote_kv::protocol::Request;
use cenote_kv::protocol::binary::{Command, Message};

use super::backend::{Backend, Route};
use super::batch::Ticket;
use super::core::Core;
use super::session::{Session, Text};
use super::times::Operation;

/// Bytes of such a request, and of the value that answers it. A key and what else an answer shows
/// are less again, and the two lie in what a connection keeps of its buffers.
const SMALL_BYTES: usize = 1 << 10;
/// An answer that is not small counts as this until it is there: what items have at the most.
const VALUE_BYTES: usize = 1 << 20;
/// Before a request that is to be served if its answer is small. No request begins so.
const ASKS_FOR_SMALL: &[u8] = b"\0";
/// What is told otherwise. No answer begins so.
const IS_LARGE: &[u8] = b"\0";

/// A request whose answer may be large.
#[derive(Debug)]
pub(super) enum Doubtful {
    /// Another worker is asked whether it is.
    Asked(Ticket, Vec<u8>),
    /// It waits for memory.
    Waits(Ticket, Vec<u8>),
}

impl Doubtful {
    /// What becomes of it when its slot is answered; nothing if that is its answer.
    pub(super) fn after(self, answer: &[u8]) -> Option<Self> {
        match self {
            Self::Asked(ticket, text) if answer == IS_LARGE => Some(Self::Waits(ticket, text)),
            _ => None,
        }
    }
}

/// Whether a request of so many bytes may be answered by much only if it shows an item.
pub(super) fn is_brief(request: &Request<'_>, bytes: usize) -> bool {
    let lists = matches!(
        request,
        Request::Stats(_) | Request::Watch(_) | Request::Crawler(_)
    );
    bytes <= SMALL_BYTES && !lists
}

/// The same of a message.
pub(super) fn is_brief_message(message: &Message<'_>, bytes: usize) -> bool {
    bytes <= SMALL_BYTES && !matches!(message.command, Command::Stat)
}

/// Whether a request is answered by a value.
pub(super) fn shows_value(request: &Request<'_>) -> bool {
    match request {
        Request::Get(_) | Request::MetaGet(_) => true,
        Request::Binary(message) => matches!(message.command, Command::Get { .. }),
        _ => false,
    }
}

/// A request as its client made it, and whether it is to be served only if its answer is small.
pub(super) fn asked(text: &[u8]) -> (&[u8], bool) {
    match text.strip_prefix(ASKS_FOR_SMALL) {
        Some(request) => (request, true),
        None => (text, false),
    }
}

impl Session {
    /// Whether a request waits for memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        matches!(self.doubtful, Some(Doubtful::Waits(..)))
    }

    /// Serves the request that waited for memory, which there is.
    pub(super) fn go_on_with_doubtful<B: Backend>(&mut self, core: &mut Core<B>) {
        if let Some(Doubtful::Waits(ticket, text)) = self.doubtful.take() {
            // Or all that wait would ask at once, before the first value is there.
            self.replies.expect(VALUE_BYTES);
            core.serve(ticket, &text);
        }
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
        let route = core.backend.route(place_hash(key));
        if let Route::Here(partition) = route
            && core.has_small(partition, key)
        {
            return false;
        }
        let text = text.bytes();
        let ticket = self.hold_up(core, &text, false, operation);
        let text = text.into_owned();
        self.doubtful = Some(match route {
            Route::Worker(worker) => {
                let asked = [ASKS_FOR_SMALL, &text].concat();
                core.ask_worker(worker, ticket, &asked);
                Doubtful::Asked(ticket, text)
            }
            Route::Here(_) | Route::Node(_) => Doubtful::Waits(ticket, text),
        });
        true
    }
}

impl<B: Backend> Core<B> {
    /// Whether a key of a partition here can be answered with a small value, or with none.
    pub(super) fn has_small(&mut self, partition: usize, key: &[u8]) -> bool {
        let may_serve = self.backend.may_serve(partition);
        may_serve && value_bytes(self.backend.partition(partition), key) <= SMALL_BYTES
    }

    /// Tells that the answer to a request is not small.
    pub(super) fn deliver_large(&mut self, ticket: Ticket) {
        self.deliver(ticket, IS_LARGE);
    }
}

/// Length of the longest value that may be shown of a key.
fn value_bytes<P: Partition>(partition: &P, key: &[u8]) -> usize {
    let hash = partition.hash_of(key);
    let newest = partition.newest(hash, key).found;
    let found = newest.into_iter().chain(partition.committed(hash, key));
    let bytes = found.map(|found| P::item(&found).value_bytes as usize);
    bytes.max().unwrap_or(0)
}
