//! Pages whose write was acknowledged before all of it had landed: which splits of each may be read.
//!
//! The writer holds the page's claim until the rest has landed. Meanwhile an entry says which of its
//! splits hold the new page, and in which state of the stripe; readers look here only when they find
//! a page claimed, so pages that are not in flight cost nobody anything.
//!
//! Invariants:
//! - An entry is written under its page's claim, and empty before the claim goes.
//! - What a reader finds is of one write: the claim's word was the same before and after.
//! - A split named here landed whole, in the slab that had its seat in the stripe named.
//!
//! Concurrency: lock-free, any thread; one writer per entry, since claims that share a word exclude
//! each other and share an entry. Paper: \[hydra22\] 4.1. Decision 29.

mod entry;

use std::io;
use std::sync::Arc;

use memmap2::MmapOptions;

use crate::claims::{Claims, WORD_COUNT};
use crate::marks::Words;
pub use entry::Flight;
use entry::{ENTRY_WORDS, Entry};

/// The entries of one volume. Takes memory where pages have been in flight.
pub struct Flights {
    words: Words,
}

impl Flights {
    /// Nothing is in flight.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new() -> io::Result<Self> {
        let count = WORD_COUNT * ENTRY_WORDS;
        let map = Arc::new(MmapOptions::new().len(count * 8).map_anon()?.into());
        Ok(Self {
            words: Words::new(&map, 0, count),
        })
    }

    fn entry(&self, page: u64) -> Entry<'_> {
        Entry(&self.words.as_slice()[Claims::index(page) * ENTRY_WORDS..][..ENTRY_WORDS])
    }

    /// Says which splits of `page` have landed. Under its claim.
    pub fn publish(&self, page: u64, writer: usize, changed_in: u64, splits: u64) {
        self.entry(page).publish(page, writer, changed_in, splits);
    }

    /// Nothing may be read of the page any more. Under its claim, before it goes.
    pub fn withdraw(&self, page: u64) {
        self.entry(page).withdraw();
    }

    /// What may be read of a page that is claimed; `None`: it was not acknowledged, or has landed.
    pub fn find(&self, claims: &Claims, page: u64) -> Option<Flight> {
        self.entry(page).find(claims.word(page), page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_in_flight() -> (Claims, Flights) {
        let (claims, flights) = (Claims::new(), Flights::new().unwrap());
        assert!(claims.try_claim(7));
        flights.publish(7, 300, 5, 0b1011);
        (claims, flights)
    }

    #[test]
    fn a_page_is_found_while_it_is_in_flight_and_no_longer() {
        let (claims, flights) = page_in_flight();
        let found = flights.find(&claims, 7).unwrap();
        assert_eq!(
            (found.writer, found.changed_in, found.splits),
            (300, 5, 0b1011)
        );
        flights.publish(7, 300, 5, 0b1111);
        assert_eq!(flights.find(&claims, 7).unwrap().splits, 0b1111);
        flights.withdraw(7);
        assert_eq!(flights.find(&claims, 7), None);
        claims.release(7);
        assert_eq!(flights.find(&claims, 7), None);
    }

    #[test]
    fn what_was_found_is_good_until_another_writer_begins() {
        let (claims, flights) = page_in_flight();
        let Flight { version, .. } = flights.find(&claims, 7).unwrap();
        assert!(claims.unchanged_in_flight(7, version));
        flights.withdraw(7);
        claims.release(7);
        assert!(
            claims.unchanged_in_flight(7, version),
            "its own writer ended"
        );
        assert!(claims.try_claim(7));
        assert!(!claims.unchanged_in_flight(7, version));
    }

    #[test]
    fn a_page_that_shares_its_entry_with_another_is_not_taken_for_it() {
        let (claims, flights) = page_in_flight();
        let other = (WORD_COUNT as u64..)
            .find(|&page| Claims::index(page) == Claims::index(7))
            .unwrap();
        assert_eq!(flights.find(&claims, other), None);
    }
}
