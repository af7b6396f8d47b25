//! What a program asks by its mailbox and its doorbell: to have pages forgotten.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use cenote_preload::wire;

use super::super::store::Store;
use super::Space;
use super::change::Change;

/// The page that programs ask by.
const DOORBELL: u32 = 0;

/// Pages that are forgotten before others are served again: some hundred microseconds.
pub(super) const FORGET_MAX: u32 = 4096;

type Words = [u64; wire::MAILBOX_WORDS];

/// A program has forgotten pages, and waits for the answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pages: Range<u32>,
    /// The first of them that is still to be forgotten.
    pub next: u32,
    /// Its number.
    sequence: u64,
}

impl Request {
    pub fn new(pages: Range<u32>, sequence: u64) -> Self {
        Self {
            next: pages.start,
            pages,
            sequence,
        }
    }
}

/// Reads a mailbox, by a function that reads bytes from one of its words on.
///
/// Its program may be writing its next request meanwhile: a signal makes a doorbell be touched
/// twice, and the second touch may be heard when the first is answered. The number of a request is
/// written last, so it is read first: what is read after it is of that request.
fn read_mailbox(read: impl Fn(usize, &mut [u8]) -> io::Result<()>) -> io::Result<Words> {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    let mut sequence = [0; 8];
    read(wire::AT_SEQUENCE, &mut sequence)?;
    let mut bytes = [0; size_of::<Words>()];
    read(0, &mut bytes)?;
    let mut words = [0; wire::MAILBOX_WORDS];
    for (to, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *to = word(bytes);
    }
    words[wire::AT_SEQUENCE] = word(&sequence);
    Ok(words)
}

impl Space {
    /// The program asks something: its mailbox says what.
    pub(super) fn doorbell(&mut self, store: &mut Store) {
        let mailbox = self.layout.mailbox();
        let words = self.memory.as_ref().and_then(|memory| {
            let read = |at, bytes: &mut [u8]| memory.read_exact_at(bytes, mailbox + 8 * at as u64);
            read_mailbox(read).ok()
        });
        let Some(words) = words else {
            // A child that has not introduced itself asks who it is.
            return self.answer(0, store);
        };
        let sequence = words[wire::AT_SEQUENCE];
        if self.request.is_some() {
            // A signal made it ask again.
            return;
        }
        if sequence == self.answered {
            return self.answer(sequence, store);
        }
        self.request = Some(Request::new(self.layout.clip(&words), sequence));
    }

    pub(super) fn answer(&mut self, sequence: u64, store: &mut Store) {
        let mut page = store.buffer();
        page.fill(0);
        let mut set = |at: usize, word: u64| {
            page[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
        };
        set(wire::AT_SPACE, u64::from(self.id));
        set(wire::AT_ANSWERED, sequence);
        self.change(Change::Install(DOORBELL, page, false), store);
    }

    /// Forgets some pages of a request, up to one that is not quiet; and answers when nothing else
    /// will touch any of the request's. Whether others can be forgotten at once.
    pub(super) fn go_on_forgetting(&mut self, store: &mut Store) -> bool {
        if self.put_off.is_some() {
            return false;
        }
        let Some(mut request) = self.request.take() else {
            return false;
        };
        let end = request.pages.end;
        let some = end.min(request.next.saturating_add(FORGET_MAX));
        while request.next < some {
            self.disown_write(request.next, store);
            self.forgetting = Some(request.next);
            let is_done = self.pages.discard(request.next, store.now());
            self.act(store);
            self.forgetting = None;
            request.next += u32::from(is_done);
            if !is_done || self.put_off.is_some() {
                self.request = Some(request);
                return false;
            }
        }
        let has_more = request.next < end;
        if has_more || self.leaving.has_any(&request.pages) {
            self.request = Some(request);
            self.flush();
            return has_more;
        }
        let sequence = request.sequence;
        self.answered = sequence;
        self.answer(sequence, store);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What a mailbox reads as when its program writes `next` in the place of `last` meanwhile:
    /// `written[n]` of the words are written before the n-th word is read. Words are read and
    /// written upwards.
    fn read(last: Words, next: Words, written: &[usize]) -> Words {
        let reads = Cell::new(0);
        let words = read_mailbox(|first, bytes| {
            for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
                let at = first + at;
                let is_written = at < written[reads.replace(reads.get() + 1)];
                let value = if is_written { next[at] } else { last[at] };
                word.copy_from_slice(&value.to_ne_bytes());
            }
            Ok(())
        });
        words.expect("nothing refuses it")
    }

    #[test]
    fn a_request_that_is_being_written_is_no_request() {
        const READS: u32 = 1 + wire::MAILBOX_WORDS as u32;
        const STEPS: usize = 1 + wire::MAILBOX_WORDS;
        let (last, next) = ([1, 10, 20, 7], [1, 500, 600, 8]);
        let mut both = [0, 0];
        for mut case in 0..STEPS.pow(READS) {
            let mut written = [0; READS as usize];
            for step in &mut written {
                (*step, case) = (case % STEPS, case / STEPS);
            }
            if !written.is_sorted() {
                continue;
            }
            let words = read(last, next, &written);
            match words[wire::AT_SEQUENCE] {
                // That one is answered: its words are not looked at.
                7 => both[0] += 1,
                _ => {
                    assert_eq!(words, next, "{written:?}");
                    both[1] += 1;
                }
            }
        }
        assert!(both.iter().all(|count| *count > 0), "{both:?}");
    }
}
