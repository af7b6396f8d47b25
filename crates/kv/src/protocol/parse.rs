//! Takes requests from the front of what a connection has received.
//!
//! The caller keeps the bytes. It calls [`Parser::parse`], drops what was taken, and calls again
//! until [`Step::More`]; then it appends what comes next. At most one request's bytes are waited
//! for: [`Limits`] bounds them.
//!
//! Invariant: the steps of a stream depend on its bytes, not on the pieces that they came in;
//! [`Step::Skipped`] alone may be one or many.

use super::binary;
use super::classic::{self, Outcome, Pending};
use super::error::Error;
use super::key::MetaKey;
use super::limits::Limits;
use super::request::Request;

/// Spaces that may stand before a retrieval in a line longer than others may be.
const LEADING_SPACES_MAX: usize = 100;

/// What the front of a buffer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'a> {
    /// Not whole: with fewer than `needed` bytes in the buffer another call tells nothing new.
    More {
        /// Bytes, those that are there included.
        needed: usize,
    },
    /// A request.
    Request {
        /// Which.
        request: Request<'a>,
        /// Its bytes.
        taken: usize,
    },
    /// A line, or a line and a value, that are no request. The connection goes on.
    Refused {
        /// What to answer.
        refusal: Refusal<'a>,
        /// Its bytes.
        taken: usize,
    },
    /// Bytes of a value that belongs to a refused request.
    Skipped {
        /// How many.
        taken: usize,
    },
    /// The connection is of no more use.
    Close(CloseReason),
}

/// An error, and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal<'a> {
    /// The line to answer.
    pub error: Error,
    /// Nothing is answered: the request said `noreply`.
    pub is_silent: bool,
    /// A key to delete, so that no value older than the refused one is read under it.
    pub forget: Option<MetaKey<'a>>,
    /// Bytes to pass over. The parser does.
    pub(super) skips: u64,
}

impl Refusal<'_> {
    pub(super) fn new(error: Error) -> Self {
        Self {
            error,
            is_silent: false,
            forget: None,
            skips: 0,
        }
    }
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// No end of a line in as many bytes as a line may have. memcached answers nothing, either.
    LineTooLong,
    /// A request of HTTP: a browser was made to send it, and what follows may look like commands.
    Http,
}

/// The parser of one connection.
#[derive(Clone, Debug)]
pub struct Parser {
    limits: Limits,
    /// Bytes of a refused value that are still to come.
    skip: u64,
    /// Bytes at the front of the buffer that have been looked through for a line end.
    searched: usize,
}

impl Parser {
    /// A parser at the start of a stream.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            skip: 0,
            searched: 0,
        }
    }

    /// What the front of `buffer` is: all bytes that were received and not taken.
    ///
    /// Costs time in the length of the line, and of a value the last two bytes.
    pub fn parse<'a>(&mut self, buffer: &'a [u8]) -> Step<'a> {
        if self.skip > 0 {
            return self.pass_over(buffer);
        }
        let searched = self.searched.min(buffer.len());
        let end = buffer[searched..]
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|at| searched + at);
        self.searched = end.unwrap_or(buffer.len());
        if self.searched > self.line_bytes_max(buffer) {
            return Step::Close(CloseReason::LineTooLong);
        }
        let Some(end) = end else {
            return Step::More {
                needed: buffer.len() + 1,
            };
        };
        // A return alone before the line end is a word, and no command.
        let has_return = end > 1 && buffer[end - 1] == b'\r';
        let line = &buffer[..end - usize::from(has_return)];
        let outcome = classic::command(line, &self.limits);
        let step = finish(outcome, buffer, end + 1);
        if let Step::Refused { refusal, .. } = &step {
            self.skip = refusal.skips;
        }
        if !matches!(step, Step::More { .. }) {
            self.searched = 0;
        }
        step
    }

    fn pass_over<'a>(&mut self, buffer: &[u8]) -> Step<'a> {
        let taken = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if taken == 0 {
            return Step::More { needed: 1 };
        }
        self.skip -= taken as u64;
        Step::Skipped { taken }
    }

    /// Bytes that the line at the front of the buffer may have.
    fn line_bytes_max(&self, buffer: &[u8]) -> usize {
        let spaces = buffer.iter().take_while(|byte| **byte == b' ').count();
        let text = &buffer[spaces..];
        let retrievals: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];
        let is_retrieval = retrievals.iter().any(|word| text.starts_with(word));
        if spaces <= LEADING_SPACES_MAX && is_retrieval {
            self.limits
                .multiget_bytes_max
                .max(self.limits.line_bytes_max)
        } else {
            self.limits.line_bytes_max
        }
    }
}

/// The request of a text that is one whole, of either protocol: from who has read it before, another
/// worker or node.
pub fn whole(text: &[u8], limits: Limits) -> Option<Request<'_>> {
    if text.first() == Some(&binary::REQUEST_MAGIC) {
        let message = binary::whole(text, limits);
        return message
            .filter(binary::Message::is_for_item)
            .map(Request::Binary);
    }
    match Parser::new(limits).parse(text) {
        Step::Request { request, .. } => Some(request),
        _ => None,
    }
}

/// Adds the value, whose first byte is at `start`, to a line that has one.
fn finish<'a>(outcome: Outcome<'a>, buffer: &'a [u8], start: usize) -> Step<'a> {
    let (pending, length) = match outcome {
        Outcome::Whole(request) => {
            return Step::Request {
                request,
                taken: start,
            };
        }
        Outcome::Refused(refusal) => {
            return Step::Refused {
                refusal,
                taken: start,
            };
        }
        Outcome::Close(reason) => return Step::Close(reason),
        Outcome::Value(pending, length) => (pending, length),
    };
    let taken = start + length + 2;
    if buffer.len() < taken {
        return Step::More { needed: taken };
    }
    let (value, end) = buffer[start..taken].split_at(length);
    if end != b"\r\n" {
        let is_silent = matches!(&pending, Pending::Store(store) if store.noreply);
        let refusal = Refusal {
            is_silent,
            ..Refusal::new(Error::BadChunk)
        };
        return Step::Refused { refusal, taken };
    }
    let request = match pending {
        Pending::Store(mut store) => {
            store.value = value;
            Request::Store(store)
        }
        Pending::Meta(mut set) => {
            set.value = value;
            Request::MetaSet(set)
        }
    };
    Step::Request { request, taken }
}

#[cfg(test)]
mod tests;
