//! The entry of a page in flight, which its writer changes under the claim and readers look at.
//!
//! Every interleaving of the two is tried by `tests/protocols_loom.rs`, which compiles this file with the
//! model's atomics as `crate::sync`.

use crate::claims::Word;
use crate::sync::{AtomicU64, Ordering, fence};

/// The words of one page's entry.
pub struct Entry<'a>(pub &'a [AtomicU64]);

/// What may be read of a page in flight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flight {
    /// The claim's version while the writer has it.
    pub version: u64,
    /// The writer's place in the list of pages in flight.
    pub writer: usize,
    /// `Stripe::changed_in`: elsewhere other slabs may have the splits' seats.
    pub changed_in: u64,
    /// Splits that have landed, as a bit set.
    pub splits: u64,
}

/// Page's number and 1, writer, epoch, splits; 0 splits: nothing.
pub const ENTRY_WORDS: usize = 4;

impl Entry<'_> {
    /// Says which splits of `page` have landed. Under its claim.
    #[inline]
    pub fn publish(&self, page: u64, writer: usize, changed_in: u64, splits: u64) {
        let entry = self.0;
        let said = [page + 1, writer as u64, changed_in];
        let is_same = said
            .iter()
            .zip(entry)
            .all(|(word, stored)| stored.load(Ordering::Relaxed) == *word);
        if !is_same {
            // A reader that sees one of the new words sees these splits no more.
            entry[3].store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            for (stored, word) in entry.iter().zip(said) {
                stored.store(word, Ordering::Relaxed);
            }
        }
        entry[3].store(splits, Ordering::Release);
    }

    /// Nothing may be read of the page any more. Under its claim, before it goes.
    #[inline]
    pub fn withdraw(&self) {
        self.0[3].store(0, Ordering::Release);
    }

    /// What may be read of a page that is claimed by its word; `None`: nothing.
    #[inline]
    pub fn find(&self, claim: &Word, page: u64) -> Option<Flight> {
        let version = claim.held_version()?;
        let entry = self.0;
        let splits = entry[3].load(Ordering::Acquire);
        let [named, writer, changed_in] = [0, 1, 2].map(|at| entry[at].load(Ordering::Relaxed));
        // What was loaded above belongs together if neither of these has changed.
        fence(Ordering::Acquire);
        let is_whole =
            entry[3].load(Ordering::Relaxed) == splits && claim.held_version() == Some(version);
        (is_whole && splits != 0 && named == page + 1).then_some(Flight {
            version,
            writer: usize::try_from(writer).expect("it was one"),
            changed_in,
            splits,
        })
    }
}
