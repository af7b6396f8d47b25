//! Getting one record, or one page, back from tiers: the fastest that has it, then the next.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::Error;
use super::page::Page;
use super::record::{self, Parsed, Record};
use super::store::Store;
use super::tiers::{End, Inbox, Request, Started};

/// How many bytes are read where a record's length is not known: as many as most had that were read
/// lately. A longer one takes a second read; of a shorter one the rest is read in vain. On a cache
/// line of its own: readers change it.
#[repr(align(128))]
pub struct LikelyLength(AtomicU64);

impl Default for LikelyLength {
    fn default() -> Self {
        Self(AtomicU64::new(512))
    }
}

impl LikelyLength {
    /// Below, what is read in vain costs nothing beside the read; above, a second read costs
    /// little.
    const RANGE_BYTES: std::ops::RangeInclusive<u64> = 64..=4096;

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A record had so many bytes. Longer ones count four times: they cost more.
    fn note(&self, len_bytes: usize) {
        let (least, most) = (*Self::RANGE_BYTES.start(), *Self::RANGE_BYTES.end());
        let len_bytes = (len_bytes as u64)
            .next_multiple_of(least)
            .clamp(least, most);
        let likely = self.bytes();
        let nearer = match len_bytes.checked_sub(likely) {
            Some(more) => likely + more.div_ceil(16),
            None => likely - (likely - len_bytes) / 64,
        };
        // Of two threads one may be forgotten.
        if nearer != likely {
            self.0.store(nearer, Ordering::Relaxed);
        }
    }
}

/// What is wanted at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wanted {
    Record,
    Page,
}

/// A read of one record or page, from tier to tier.
pub struct Fetch {
    address: u64,
    wanted: Wanted,
    len_bytes: u64,
    /// Faster tiers were asked already.
    from: usize,
    /// The tier that is asked, and its token.
    asked: Option<(usize, u64)>,
    /// What is wanted, once it is here.
    bytes: Option<Vec<u8>>,
    /// The last tier that failed to read, and why.
    failed: Option<(usize, io::Error)>,
    /// Whether bytes came that are not what was written.
    is_refused: bool,
}

/// How far a fetch is.
pub enum Progress {
    /// Poll, and look again.
    UnderWay,
    /// [`Fetch::record`] or [`Fetch::page`] has it.
    Here,
    /// The log begins behind it now: it was moved, or nobody needs it.
    Gone,
}

impl Fetch {
    /// Of the record at `address`, below the head.
    pub fn record(store: &Store, address: u64) -> Self {
        let end = store.page_start(address) + store.page_bytes();
        Self::new(
            address,
            Wanted::Record,
            store.likely_length.bytes().min(end - address),
        )
    }

    /// Of the page at `address`.
    pub fn page(store: &Store, address: u64) -> Self {
        Self::new(address, Wanted::Page, store.page_bytes())
    }

    fn new(address: u64, wanted: Wanted, len_bytes: u64) -> Self {
        Self {
            address,
            wanted,
            len_bytes,
            from: 0,
            asked: None,
            bytes: None,
            failed: None,
            is_refused: false,
        }
    }

    /// The address that is fetched.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether the answer with this token is its.
    pub fn asked_with(&self) -> Option<u64> {
        self.asked.map(|(_, token)| token)
    }

    /// Takes the answer that was asked for.
    pub fn take(&mut self, store: &Store, end: End) {
        let Some((tier, _)) = self.asked.take() else {
            return;
        };
        match end.result {
            Ok(bytes) => {
                if self.accept(store, bytes) {
                    return;
                }
                self.is_refused = true;
                store.tiers.note_fault(tier);
            }
            Err(error) => match error.kind() {
                // The tier was lost meanwhile, or let go of it.
                io::ErrorKind::NotConnected | io::ErrorKind::NotFound => {}
                _ => {
                    self.failed = Some((tier, error));
                    store.tiers.note_fault(tier);
                }
            },
        }
        self.from = tier + 1;
    }

    /// Looks at bytes that came. `false`: they are not what was written.
    fn accept(&mut self, store: &Store, bytes: Vec<u8>) -> bool {
        let number = store.secret.store;
        match self.wanted {
            Wanted::Page => {
                let is_whole = bytes.len() as u64 == self.len_bytes;
                if !is_whole || Page::parse(&bytes, self.address, number).is_none() {
                    return false;
                }
            }
            Wanted::Record => match record::parse(&bytes, self.address, number) {
                Parsed::Whole(record) => store.likely_length.note(record.len_bytes),
                Parsed::Wrong => return false,
                Parsed::Longer(len) => {
                    let end = store.page_start(self.address) + store.page_bytes();
                    let is_sane = len as u64 <= end - self.address;
                    let is_news = len as u64 > self.len_bytes;
                    if is_sane && is_news {
                        self.len_bytes = len as u64;
                    }
                    return is_sane && is_news;
                }
            },
        }
        self.bytes = Some(bytes);
        true
    }

    /// Goes on: asks a tier if none is asked.
    ///
    /// # Errors
    /// No tier returns it.
    pub fn advance(&mut self, store: &Store, inbox: Inbox) -> Result<Progress, Error> {
        loop {
            if self.bytes.is_some() {
                return Ok(Progress::Here);
            }
            if self.asked.is_some() {
                return Ok(Progress::UnderWay);
            }
            let Some(tier) = store.tiers.holder(self.address, self.from) else {
                return self.without_tiers(store);
            };
            let token = store.tiers.token(inbox);
            let request = Request::Read {
                address: self.address,
                len_bytes: self.len_bytes as usize,
            };
            match store.tiers.start(tier, token, request) {
                Started::UnderWay => self.asked = Some((tier, token)),
                Started::Busy => return Ok(Progress::UnderWay),
                Started::Lost => self.from = tier + 1,
            }
        }
    }

    /// No tier has it: it may be on its way to one, or have been given up.
    fn without_tiers(&mut self, store: &Store) -> Result<Progress, Error> {
        if store.is_given_up(self.address) {
            return Ok(Progress::Gone);
        }
        if let Some((start, image)) = store.flow.wait().image(self.address) {
            let from = (self.address - start) as usize;
            if self.accept(store, image[from..].to_vec()) {
                return Ok(Progress::Here);
            }
        }
        // The page may have arrived while the flow was looked at.
        if let Some(tier) = store.tiers.holder(self.address, self.from) {
            self.from = tier;
            return Ok(Progress::UnderWay);
        }
        let address = self.address;
        Err(match self.failed.take() {
            Some((tier, source)) => Error::Read {
                tier: store.tiers.name(tier),
                address,
                source,
            },
            None if self.is_refused => Error::Corrupt { address },
            None => Error::Lost { address },
        })
    }

    /// The record, once [`Progress::Here`] was said.
    pub fn fetched_record<'a>(&'a self, store: &Store) -> Option<Record<'a>> {
        let bytes = self.bytes.as_deref()?;
        match record::parse(bytes, self.address, store.secret.store) {
            Parsed::Whole(record) => Some(record),
            _ => None,
        }
    }

    /// The page, once [`Progress::Here`] was said.
    pub fn fetched_page<'a>(&'a self, store: &Store) -> Option<Page<'a>> {
        Page::parse(self.bytes.as_deref()?, self.address, store.secret.store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read after records of these lengths.
    fn after(lens: impl Iterator<Item = usize>) -> u64 {
        let likely = LikelyLength::default();
        lens.for_each(|len_bytes| likely.note(len_bytes));
        likely.bytes()
    }

    #[test]
    fn records_of_one_length_are_read_at_once_and_hardly_more_than_they_are() {
        for len_bytes in [16, 48, 64, 512, 1040, 4096] {
            let read = after(std::iter::repeat_n(len_bytes, 1000)) as usize;
            assert!(read >= len_bytes, "{read} of {len_bytes}");
            assert!(
                read < len_bytes.next_multiple_of(64) + 64,
                "{read} of {len_bytes}"
            );
        }
        assert_eq!(after(std::iter::repeat_n(1 << 20, 1000)), 4096);
    }

    #[test]
    fn a_long_record_now_and_then_does_not_make_all_reads_long() {
        let lens = (0..10_000).map(|index| if index % 100 == 0 { 4096 } else { 48 });
        assert!(after(lens) < 512);
    }
}
