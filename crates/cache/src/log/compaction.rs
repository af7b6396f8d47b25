//! Compaction: records of the oldest pages that are still the newest of their keys move to the
//! tail, and the log begins behind those pages.
//!
//! A record moves only if its chain is as it was when the record was found to be live, so a write
//! that comes meanwhile wins. Deletions are not moved: what they hide is older, and goes with them.
//! The space is given back when the next checkpoint is on the disk, or at once in a store without.

use super::error::Error;
use super::fetch::{Fetch, Progress};
use super::injected_faults::{InjectedFault, is_injected};
use super::operations::Completion;
use super::record::Record;
use super::session::Session;
use super::store::Traced;

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Compacted {
    /// The log's first address now.
    pub begin: u64,
    /// Records that moved to the tail.
    pub moved: u64,
    /// Records that were not needed any more.
    pub dropped: u64,
}

impl Session {
    /// Compacts pages that are wholly below `until` and below the head. Blocks, for as long as tiers
    /// take; ends of other operations go to `ended`. Other sessions work on.
    ///
    /// # Errors
    /// A page cannot be read, or there is no room at the tail. What moved has moved; the begin is
    /// where it was.
    pub fn compact(&mut self, until: u64, ended: &mut Vec<Completion>) -> Result<Compacted, Error> {
        let store = std::sync::Arc::clone(&self.store);
        let until = store.page_start(until).min(store.addresses.head.load());
        let mut done = Compacted::default();
        let mut address = store.addresses.begin.load();
        while address < until {
            let fetch = self.fetch(Fetch::page(&store, address), ended)?;
            // Somebody else compacted it meanwhile.
            if let Some(page) = fetch.as_ref().and_then(|fetch| fetch.fetched_page(&store)) {
                for record in page.records() {
                    let (at, record) = record.ok_or(Error::Corrupt { address })?;
                    if !record.link.is_deleted() && self.move_if_live(at, record, ended)? {
                        done.moved += 1;
                    } else {
                        done.dropped += 1;
                    }
                }
            }
            address += store.page_bytes();
        }
        store.addresses.begin.raise(until);
        store.index.sweep(until);
        if store.file.is_none() || is_injected(InjectedFault::PunchEarly) {
            store.give_back(until);
        }
        done.begin = store.addresses.begin.load();
        Ok(done)
    }

    /// Moves a record to the tail if it is its key's newest.
    fn move_if_live(
        &mut self,
        address: u64,
        record: Record<'_>,
        ended: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let store = std::sync::Arc::clone(&self.store);
        let place = store.place(record.key);
        'again: loop {
            let (front, mut below) = {
                let _pin = store.epochs.pin(self.slot);
                let first = store.first();
                let Some(entry) = store.index.find(place) else {
                    return Ok(false);
                };
                match store.trace(entry.address(), record.key, first, 0) {
                    Traced::Below(below) => (entry.address(), below),
                    Traced::InMemory(_) | Traced::Absent => return Ok(false),
                }
            };
            if below != address && is_injected(InjectedFault::ChainForgotten) {
                return Ok(false);
            }
            while below > address {
                let Some(fetch) = self.fetch(Fetch::record(&store, below), ended)? else {
                    continue 'again;
                };
                let newer = fetch.fetched_record(&store).expect("it was checked");
                if newer.key == record.key {
                    return Ok(false);
                }
                below = newer.link.previous();
            }
            if below < address {
                return Ok(false);
            }
            let is_moved = self.wait(ended, |session| {
                let _pin = session.store.epochs.pin(session.slot);
                match session.store.index.find(place) {
                    Some(entry) if entry.address() == front => {
                        session
                            .store
                            .append(&entry, record.key, record.value, false)
                    }
                    _ => Ok(false),
                }
            })?;
            if is_moved {
                return Ok(true);
            }
        }
    }

    /// Waits for a fetch. `None`: it is below the log's begin by now.
    fn fetch(
        &mut self,
        mut fetch: Fetch,
        ended: &mut Vec<Completion>,
    ) -> Result<Option<Fetch>, Error> {
        let is_here = self.until(ended, |session| {
            if let Some(token) = fetch.asked_with()
                && let Some(end) = session.answer(token)
            {
                fetch.take(&session.store, end);
            }
            match fetch.advance(&session.store, session.inbox()) {
                Ok(Progress::Here) => Ok(Some(true)),
                Ok(Progress::UnderWay) => {
                    fetch
                        .asked_with()
                        .into_iter()
                        .for_each(|it| session.expect(it));
                    Ok(None)
                }
                Ok(Progress::Gone) => Ok(Some(false)),
                Err(_) if session.store.is_given_up(fetch.address()) => Ok(Some(false)),
                Err(error) => Err(error),
            }
        })?;
        Ok(is_here.then_some(fetch))
    }
}
