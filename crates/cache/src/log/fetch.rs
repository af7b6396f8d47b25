//! Getting one record, or one page, back from tiers: the fastest that has it, then the next.

use std::io;

use super::error::Error;
use super::page::Page;
use super::record::{self, Parsed, Record};
use super::store::Store;
use super::tiers::{End, Inbox, Request, Started};

/// Bytes that are read where a record's length is not known: most records, and one block of a disk
/// at most twice.
const GUESS_BYTES: u64 = 512;

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
        Self::new(address, Wanted::Record, GUESS_BYTES.min(end - address))
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
                Parsed::Whole(_) => {}
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
