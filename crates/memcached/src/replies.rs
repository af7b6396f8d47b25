//! The replies of one client, in the order of its requests.
//!
//! A reply that is whole goes to the text that is to be sent; where an earlier one is still
//! awaited, it waits behind it in a slot. What has been taken from the front is never seen again.

use std::borrow::Cow;
use std::collections::VecDeque;

use cenote_kv::protocol::binary::{Head, REPLY_MAGIC, Status, reply};

use super::times::Timed;

/// A client that has so many bytes to read is asked for no more requests.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// The same while memory for clients is scarce.
const SHORT_BYTES_MAX: usize = 16 << 10;
/// Bytes of one client's requests that may lie at other workers and nodes, with those of values that
/// are awaited, as far as they can be foreseen.
const ELSEWHERE_BYTES_MAX: usize = 1 << 20;
/// Replies that may be awaited at once.
const AWAITED_MAX: usize = 128;
/// What a value counts at least that is awaited. Arbitrary: with less, more of one client's may be
/// long after short ones before that is seen, and with more, fewer short ones are under way.
const FORESEEN_MIN: usize = 1 << 10;
/// What the values before the first one count as: as long as that one may be.
pub(super) const FORESEEN_FIRST: usize = 16 << 10;
/// What is kept of a buffer that has been sent: part of what a connection costs in any case.
const KEPT_BYTES_MAX: usize = 2 << 10;

/// How an error begins that comes in place of a value.
const ERROR: &[u8] = b"SERVER_ERROR ";

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Replies {
    text: Vec<u8>,
    sent: usize,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: u64,
    /// Bytes of replies in slots.
    held_bytes: usize,
    /// Slots that are awaited.
    awaited: usize,
    /// Largest of the last values that came from elsewhere; nothing before the first.
    foreseen: Option<usize>,
    /// Bytes of requests, and of answers, that lie elsewhere for the client, or are expected.
    elsewhere_bytes: usize,
    /// The retrieval whose reply is written now; 0: none.
    retrieval: u64,
    /// How many there were.
    retrievals: u64,
    /// Its replies are to be short: memory for clients is scarce.
    pub(super) is_short: bool,
}

#[derive(Debug)]
struct Slot {
    text: Vec<u8>,
    is_awaited: bool,
    /// Bytes that lie elsewhere until it is filled.
    elsewhere_bytes: usize,
    /// Those of them that a value is expected to have; nothing where none is.
    expected_bytes: Option<usize>,
    /// Bytes of its text that are counted as held.
    held_bytes: usize,
    /// What comes is not for the client.
    is_silent: bool,
    /// The retrieval that it is a part of; 0: none.
    retrieval: u64,
    /// What it is timed as.
    timed: Option<Timed>,
}

/// A place in the replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    slots: usize,
    length: usize,
}

impl Replies {
    /// Where the next reply is written.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        if self.slots.is_empty() {
            return &mut self.text;
        }
        let is_other = |slot: &Slot| slot.is_awaited || slot.retrieval != self.retrieval;
        if self.slots.back().is_some_and(is_other) {
            self.push(false, false, 0);
        }
        &mut self.slots.back_mut().expect("was just seen").text
    }

    fn push(&mut self, is_awaited: bool, is_silent: bool, elsewhere_bytes: usize) {
        let open_bytes = self.open_bytes();
        if let Some(open) = self.slots.back_mut().filter(|slot| !slot.is_awaited) {
            self.held_bytes += open_bytes;
            open.held_bytes += open_bytes;
        }
        self.slots.push_back(Slot {
            text: Vec::new(),
            is_awaited,
            elsewhere_bytes,
            expected_bytes: None,
            held_bytes: 0,
            is_silent,
            retrieval: self.retrieval,
            timed: None,
        });
    }

    /// What is written and held from now on is one retrieval's reply: an error in it is the end of it.
    pub(super) fn begin_retrieval(&mut self) {
        self.retrievals += 1;
        self.retrieval = self.retrievals;
    }

    /// It is whole, with what is still awaited.
    pub(super) fn end_retrieval(&mut self) {
        self.retrieval = 0;
    }

    /// Whether the retrieval that began last has come to its end by an error.
    pub(super) fn has_ended_early(&self) -> bool {
        self.retrieval == 0
    }

    /// Where the next reply begins.
    pub(super) fn mark(&mut self) -> Mark {
        let length = self.tail().len();
        Mark {
            slots: self.slots.len(),
            length,
        }
    }

    /// Takes back what was written since a mark, which is one reply.
    pub(super) fn take_since(&mut self, mark: Mark) -> Vec<u8> {
        debug_assert_eq!(mark.slots, self.slots.len());
        self.tail().split_off(mark.length)
    }

    /// Makes a place for a reply that is awaited, and returns its number. Until then so many bytes of the
    /// request, or the answer, lie elsewhere.
    pub(super) fn hold(&mut self, is_silent: bool, elsewhere_bytes: usize) -> u64 {
        self.push(true, is_silent, elsewhere_bytes);
        self.awaited += 1;
        self.elsewhere_bytes += elsewhere_bytes;
        self.first + self.slots.len() as u64 - 1
    }

    /// The reply that is awaited last is expected to show a value of so many bytes.
    pub(super) fn expect(&mut self, bytes: usize) {
        if let Some(slot) = self.slots.iter_mut().rfind(|slot| slot.is_awaited) {
            let before = slot.expected_bytes.replace(bytes).unwrap_or(0);
            slot.elsewhere_bytes = slot.elsewhere_bytes - before + bytes;
            self.elsewhere_bytes = self.elsewhere_bytes - before + bytes;
        }
    }

    /// The same, of as many as the last ones had.
    pub(super) fn expect_as_before(&mut self) {
        self.expect(self.foreseen.unwrap_or(0).max(FORESEEN_MIN));
    }

    /// Whether no value has come from elsewhere yet.
    pub(super) fn knows_no_value(&self) -> bool {
        self.foreseen.is_none()
    }

    /// The place that was made last is timed.
    pub(super) fn time(&mut self, timed: Option<Timed>) {
        if let Some(slot) = self.slots.back_mut() {
            slot.timed = timed;
        }
    }

    /// Takes a reply that was awaited.
    #[cfg(test)]
    fn fill(&mut self, slot: u64, text: &[u8]) {
        self.fill_with(slot, text, is_error(text));
    }

    /// Takes a reply that was awaited, and may be an error that came in place of it; what it is timed as.
    /// One that is not awaited is a mistake of ours, and left out.
    pub(super) fn fill_with(&mut self, slot: u64, text: &[u8], is_error: bool) -> Option<Timed> {
        let at = slot.checked_sub(self.first);
        let at = at.and_then(|at| usize::try_from(at).ok());
        let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) else {
            debug_assert!(false, "no such slot");
            return None;
        };
        debug_assert!(slot.is_awaited);
        slot.is_awaited = false;
        let timed = slot.timed.take();
        self.awaited -= 1;
        self.elsewhere_bytes -= std::mem::take(&mut slot.elsewhere_bytes);
        let is_value = slot.expected_bytes.is_some();
        if is_value || self.foreseen.is_some() {
            // One short value says little of the next ones.
            let before = self.foreseen.unwrap_or(FORESEEN_FIRST);
            let shown = if is_value { text.len() } else { 0 };
            self.foreseen = Some(shown.max(before - before / 8));
        }
        let failed = if is_error { slot.retrieval } else { 0 };
        if at == Some(0) {
            let silent = slot.is_silent;
            if !silent {
                append(&mut self.text, text);
            }
        } else if !slot.is_silent {
            slot.text.extend_from_slice(text);
            slot.held_bytes += text.len();
            self.held_bytes += text.len();
        }
        if let Some(at) = at.filter(|_| failed > 0) {
            self.cut(failed, at);
        }
        while self.slots.front().is_some_and(|slot| !slot.is_awaited) {
            let slot = self.slots.pop_front().expect("was just seen");
            self.first += 1;
            self.held_bytes -= slot.held_bytes;
            append(&mut self.text, &slot.text);
        }
        timed
    }

    /// Leaves out what would follow an error in a retrieval's reply: a client takes the error for its end.
    fn cut(&mut self, retrieval: u64, at: usize) {
        let behind = self.slots.range_mut(at + 1..);
        for slot in behind.filter(|slot| slot.retrieval == retrieval) {
            slot.is_silent = true;
            slot.text.clear();
            self.held_bytes -= std::mem::take(&mut slot.held_bytes);
        }
        if self.retrieval == retrieval {
            self.retrieval = 0;
        }
    }

    /// Whether one request alone is awaited, no memory is kept for its answer, and there is nothing
    /// else to read but what each client has room for.
    pub(super) fn waits_without_memory(&self) -> bool {
        let text = self.unsent().len() + self.held_bytes + self.open_bytes();
        let is_expected = |slot: &Slot| slot.expected_bytes.unwrap_or(0) > 0;
        // Behind it may be the end of its reply.
        self.awaited == 1 && text <= KEPT_BYTES_MAX && !self.slots.iter().any(is_expected)
    }

    /// Whether no earlier reply is awaited.
    pub(super) fn is_settled(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether all replies are sent.
    pub(super) fn is_done(&self) -> bool {
        self.slots.is_empty() && self.sent == self.text.len()
    }

    /// Whether there is so much that requests have to wait.
    pub(super) fn is_full(&self) -> bool {
        let next = self.foreseen.unwrap_or(0);
        let text_max = if self.is_short {
            SHORT_BYTES_MAX
        } else {
            TEXT_BYTES_MAX
        };
        self.unsent().len() + self.held_bytes + self.open_bytes() >= text_max
            || self.awaited >= AWAITED_MAX
            || self.elsewhere_bytes >= ELSEWHERE_BYTES_MAX
            || self.elsewhere_bytes > 0 && self.elsewhere_bytes + next > ELSEWHERE_BYTES_MAX
    }

    /// Memory that is taken for the client, beyond what each has.
    pub(super) fn bytes(&self) -> usize {
        let text = self.text.capacity();
        let text = if text > KEPT_BYTES_MAX { text } else { 0 };
        text + self.held_bytes + self.open_bytes() + self.elsewhere_bytes
    }

    /// Bytes of the slot that is written to now, beyond those that are counted as held.
    fn open_bytes(&self) -> usize {
        let open = self.slots.back().filter(|slot| !slot.is_awaited);
        open.map_or(0, |slot| slot.text.len() - slot.held_bytes)
    }

    /// What is to be sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.text[self.sent..]
    }

    /// So many bytes of it have been sent.
    pub(super) fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        debug_assert!(self.sent <= self.text.len());
        if self.sent == self.text.len() {
            self.text.clear();
            self.text.shrink_to(KEPT_BYTES_MAX);
            self.sent = 0;
        } else if self.sent >= TEXT_BYTES_MAX {
            self.text.drain(..self.sent);
            self.sent = 0;
        }
    }
}

/// Whether an answer is an error of who could not serve its request.
pub(super) fn is_error(answer: &[u8]) -> bool {
    answer.starts_with(ERROR)
}

/// Appends a reply, a large one without making room for as much again.
fn append(text: &mut Vec<u8>, reply: &[u8]) {
    if reply.len() > SHORT_BYTES_MAX {
        text.reserve_exact(reply.len());
    }
    text.extend_from_slice(reply);
}

/// An answer as a client of the binary protocol is told it: what comes as text comes from who could
/// not serve its message, a node that is cut off for one.
pub(super) fn told(head: Head, answer: &[u8]) -> Cow<'_, [u8]> {
    if answer.is_empty() || answer[0] == REPLY_MAGIC {
        return Cow::Borrowed(answer);
    }
    let line = answer.trim_ascii_end();
    let text = line.strip_prefix(b"SERVER_ERROR ").unwrap_or(line);
    let mut out = Vec::new();
    reply::text(&mut out, head, Status::Internal, text);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(replies: &Replies) -> String {
        String::from_utf8(replies.unsent().to_vec()).unwrap()
    }

    #[test]
    fn replies_leave_in_the_order_of_requests() {
        let mut replies = Replies::default();
        replies.tail().extend(b"a");
        let b = replies.hold(false, 0);
        replies.tail().extend(b"c");
        replies.tail().extend(b"d");
        let e = replies.hold(false, 0);
        let silent = replies.hold(true, 0);
        replies.tail().extend(b"f");
        assert_eq!(text(&replies), "a");
        replies.fill(e, b"e");
        assert_eq!(text(&replies), "a");
        replies.note_sent(1);
        replies.fill(b, b"b");
        assert_eq!(text(&replies), "bcde");
        assert!(!replies.is_settled());
        replies.fill(silent, b"x");
        assert_eq!(text(&replies), "bcdef");
        assert!(replies.is_settled() && !replies.is_done());
        replies.note_sent(5);
        assert!(replies.is_done());
        replies.tail().extend(b"g");
        assert_eq!(text(&replies), "g");
    }

    #[test]
    fn an_error_is_the_end_of_its_retrieval_and_of_no_other() {
        let mut replies = Replies::default();
        replies.begin_retrieval();
        let first = replies.hold(false, 0);
        replies.tail().extend(b"here,");
        let second = replies.hold(false, 0);
        replies.tail().extend(b"END,");
        replies.end_retrieval();
        replies.tail().extend(b"between,");
        replies.begin_retrieval();
        let third = replies.hold(false, 0);
        assert!(!replies.has_ended_early());
        replies.fill(third, b"SERVER_ERROR three,");
        assert!(replies.has_ended_early());
        replies.tail().extend(b"STORED,");
        replies.fill(second, b"two,");
        replies.fill(first, b"SERVER_ERROR one,");
        let expected = "SERVER_ERROR one,between,SERVER_ERROR three,STORED,";
        assert_eq!(text(&replies), expected);
        assert!(replies.is_settled());
        replies.note_sent(expected.len());
        assert_eq!((replies.is_done(), replies.held_bytes), (true, 0));
        // One that is answered as it should is whole.
        replies.begin_retrieval();
        let value = replies.hold(false, 0);
        replies.tail().extend(b"END,");
        replies.end_retrieval();
        replies.fill(value, b"VALUE,");
        assert_eq!(text(&replies), "VALUE,END,");
    }

    #[test]
    fn a_reply_can_be_taken_back_to_wait() {
        let mut replies = Replies::default();
        replies.tail().extend(b"a");
        let mut held = Vec::new();
        for expected in [b"b", b"c"] {
            let mark = replies.mark();
            replies.tail().extend(expected);
            assert_eq!(replies.take_since(mark), expected);
            held.push(replies.hold(false, 0));
        }
        assert_eq!(text(&replies), "a");
        replies.fill(held[1], b"c");
        assert_eq!(text(&replies), "a");
        replies.fill(held[0], b"b");
        assert_eq!(text(&replies), "abc");
        assert!(replies.is_settled());
    }

    #[test]
    fn a_client_that_does_not_read_is_full_soon() {
        let mut replies = Replies::default();
        let mut held = 0;
        while !replies.is_full() {
            held = replies.hold(false, 0);
        }
        assert!((2..AWAITED_MAX as u64).contains(&held));
        let mut replies = Replies::default();
        let first = replies.hold(false, 0);
        let second = replies.hold(false, 0);
        replies.fill(second, &vec![0; TEXT_BYTES_MAX]);
        assert!(replies.is_full());
        replies.fill(first, b"");
        assert!(replies.is_full());
        replies.note_sent(TEXT_BYTES_MAX);
        assert!(!replies.is_full() && replies.is_done());
        assert!(replies.text.capacity() <= KEPT_BYTES_MAX);
    }

    #[test]
    fn requests_that_lie_elsewhere_count() {
        let mut replies = Replies::default();
        let first = replies.hold(false, ELSEWHERE_BYTES_MAX);
        assert!(replies.is_full());
        assert_eq!(replies.bytes(), ELSEWHERE_BYTES_MAX);
        replies.fill(first, b"a");
        assert!(!replies.is_full() && replies.bytes() < 1024);
        // What is written behind an awaited reply is held, too, and no more when it has left.
        let second = replies.hold(false, 0);
        replies.tail().resize(TEXT_BYTES_MAX, 0);
        assert!(replies.is_full());
        let third = replies.hold(false, 0);
        assert_eq!(replies.bytes(), TEXT_BYTES_MAX);
        replies.fill(second, b"");
        replies.fill(third, b"");
        assert_eq!(
            (replies.held_bytes, replies.unsent().len()),
            (0, TEXT_BYTES_MAX + 1)
        );
        replies.note_sent(TEXT_BYTES_MAX + 1);
        replies.is_short = true;
        replies.tail().resize(SHORT_BYTES_MAX, 0);
        assert!(replies.is_full());
        replies.is_short = false;
        assert!(!replies.is_full());
    }

    #[test]
    fn an_answer_in_text_becomes_an_error() {
        let head = Head {
            opcode: 1,
            opaque: 7,
        };
        assert!(told(head, b"").is_empty());
        assert_eq!(told(head, b"\x81rest").as_ref(), b"\x81rest");
        let error = told(head, b"SERVER_ERROR nodes are missing\r\n");
        assert_eq!(&error[..2], b"\x81\x01");
        assert_eq!(&error[6..8], &[0, 0x84]);
        assert!(error.ends_with(b"\0nodes are missing"));
    }

    /// Asks elsewhere for a value, and takes an answer of so many bytes.
    fn show(replies: &mut Replies, bytes: usize) {
        let slot = replies.hold(false, 10);
        replies.expect_as_before();
        replies.fill(slot, &vec![b'v'; bytes]);
        replies.note_sent(replies.unsent().len());
    }

    #[test]
    fn one_short_value_says_little_of_the_next_ones() {
        let mut replies = Replies::default();
        show(&mut replies, 5);
        replies.hold(false, 10);
        replies.expect_as_before();
        assert!(replies.bytes() > FORESEEN_FIRST / 2);
    }

    #[test]
    fn what_follows_a_long_value_is_taken_for_long_for_a_while_only() {
        let mut replies = Replies::default();
        show(&mut replies, 1 << 20);
        replies.hold(false, 10);
        assert!(replies.is_full());
        let mut replies = Replies::default();
        show(&mut replies, 1 << 20);
        for _ in 0..20 {
            let slot = replies.hold(false, 10);
            replies.fill(slot, b"STORED\r\n");
        }
        for _ in 0..AWAITED_MAX - 1 {
            replies.hold(false, 10);
            assert!(!replies.is_full());
        }
    }
}
