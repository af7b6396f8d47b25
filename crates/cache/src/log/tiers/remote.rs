//! A tier in a remote cache. Its bytes are a ring: a page is at its address modulo their length.
//!
//! What the ring has is known page by page. A region that the cache lost takes its pages with it:
//! they are read from the next tier, and the tier goes on. A read is answered only if its page is
//! there when the read begins and when it has ended, so that no page is taken for another; records
//! have checksums besides.
//! Paper: \[redy22\] section FASTER.

use std::io;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use foldhash::HashMap;

use super::{Buffer, Busy, Ended, Request, Tier};
use crate::client::{self, Error};
use crate::log::injected_faults::{InjectedFault, is_injected};

/// The bytes of a cache, as one client of it reaches them. Calls do not block.
pub trait Remote: Send {
    /// How many there are. A cache that becomes shorter fails requests for what it lost.
    fn len_bytes(&self) -> u64;

    /// Starts to fill `buffer` from `address` on. It ends by [`Remote::poll`].
    ///
    /// # Errors
    /// Nothing was started.
    fn submit_read(&mut self, address: u64, buffer: BytesMut, token: u64) -> Result<(), Error>;

    /// Starts to store `bytes` from `address` on.
    ///
    /// # Errors
    /// Nothing was started.
    fn submit_write(&mut self, address: u64, bytes: Bytes, token: u64) -> Result<(), Error>;

    /// Goes on, and adds what ended.
    ///
    /// # Errors
    /// The cache is gone for good.
    fn poll(&mut self, ended: &mut Vec<client::Ended>) -> io::Result<()>;

    /// A range whose bytes were lost, told before a request ends that saw them lost.
    fn take_lost(&mut self) -> Option<Range<u64>>;
}

/// What stands in one place of the ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slot {
    Empty,
    /// The page at this address is on its way here.
    Writing(u64),
    /// The page at this address.
    Holds(u64),
}

impl Slot {
    /// Forgets its page if that is at such an address.
    fn empty_if(&mut self, is_forgotten: impl Fn(u64) -> bool) {
        if let Self::Holds(address) | Self::Writing(address) = *self
            && is_forgotten(address)
        {
            *self = Self::Empty;
        }
    }
}

/// Places of a ring in which pages at these addresses may be, each once.
fn places(
    addresses: Range<u64>,
    page_bytes: u64,
    ring_pages: usize,
) -> impl Iterator<Item = usize> {
    let ring_pages = ring_pages as u64;
    let first = addresses.start / page_bytes;
    let end = addresses.end.div_ceil(page_bytes);
    let pages = first..end.min(first + ring_pages);
    pages.map(move |page| (page % ring_pages) as usize)
}

/// A request under way, and the address of its page.
#[derive(Clone, Copy)]
enum Flight {
    Read(u64),
    Write(u64),
}

/// See the module.
pub struct RemoteTier {
    name: String,
    remote: Box<dyn Remote>,
    page_bytes: u64,
    slots: Vec<Slot>,
    /// The pages below were forgotten. One that comes later nevertheless stays until another takes
    /// its place; nobody reads it.
    floor: u64,
    under_way: HashMap<u64, Flight>,
    /// Ended without the cache.
    ended: Vec<Ended>,
    replies: Vec<client::Ended>,
}

impl RemoteTier {
    /// A tier of as many pages as the cache has room for, none of them there yet.
    ///
    /// # Panics
    /// If the cache has no room for a page: the caller's mistake.
    #[must_use]
    pub fn new(name: &str, remote: Box<dyn Remote>, page_bytes: usize) -> Self {
        let page_bytes = page_bytes as u64;
        let pages = (remote.len_bytes() / page_bytes) as usize;
        assert!(pages > 0, "the cache is shorter than a page");
        Self {
            name: name.to_owned(),
            remote,
            page_bytes,
            slots: vec![Slot::Empty; pages],
            floor: 0,
            under_way: HashMap::default(),
            ended: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// The page that has `address`, its slot, and where that begins in the cache.
    fn locate(&self, address: u64) -> (u64, usize, u64) {
        let number = address / self.page_bytes;
        let slot = number % self.slots.len() as u64;
        (
            number * self.page_bytes,
            slot as usize,
            slot * self.page_bytes,
        )
    }

    fn holds(&self, slot: usize, address: u64) -> bool {
        self.slots[slot] == Slot::Holds(address) || is_injected(InjectedFault::PlaceUnchecked)
    }

    fn write(&mut self, token: u64, address: u64, page: Bytes) -> Result<(), Busy> {
        let (start, slot, at) = self.locate(address);
        if start != address || page.len() as u64 != self.page_bytes {
            self.end(token, Err(io::ErrorKind::InvalidInput.into()));
            return Ok(());
        }
        match self.remote.submit_write(at, page, token) {
            Ok(()) => {
                self.slots[slot] = Slot::Writing(start);
                self.under_way.insert(token, Flight::Write(start));
            }
            Err(Error::Full) => return Err(Busy),
            Err(error) => self.end(token, Err(refusal(error))),
        }
        Ok(())
    }

    fn read(&mut self, token: u64, address: u64, len_bytes: usize) -> Result<(), Busy> {
        let (start, slot, at) = self.locate(address);
        if !self.holds(slot, start) {
            self.end(token, Err(io::ErrorKind::NotFound.into()));
            return Ok(());
        }
        let offset = address - start;
        let len_bytes = len_bytes.min((self.page_bytes - offset) as usize);
        let buffer = BytesMut::zeroed(len_bytes);
        match self.remote.submit_read(at + offset, buffer, token) {
            Ok(()) => {
                self.under_way.insert(token, Flight::Read(start));
            }
            Err(Error::Full) => return Err(Busy),
            Err(error) => self.end(token, Err(refusal(error))),
        }
        Ok(())
    }

    /// Ends a request that the cache has no part in, or refuses, at the next poll.
    fn end(&mut self, token: u64, result: io::Result<Vec<u8>>) {
        self.ended.push(Ended { token, result });
    }

    /// Forgets the pages below `address`. It costs as much as there are pages since the last time,
    /// and the ring at most.
    fn forget_below(&mut self, address: u64) {
        for place in places(self.floor..address, self.page_bytes, self.slots.len()) {
            self.slots[place].empty_if(|page| page < address);
        }
        self.floor = self.floor.max(address);
    }

    /// Forgets the pages from `address` on.
    fn forget_from(&mut self, address: u64) {
        for slot in &mut self.slots {
            slot.empty_if(|page| page >= address);
        }
        self.floor = self.floor.min(address);
    }

    /// Forgets the pages that were in a range of the cache, those that were on their way there too.
    fn lose(&mut self, lost: &Range<u64>) {
        let pages = self.slots.len() as u64;
        let first = (lost.start / self.page_bytes).min(pages);
        let end = lost.end.div_ceil(self.page_bytes).min(pages);
        self.slots[first as usize..end as usize].fill(Slot::Empty);
    }

    /// What a request came to.
    fn settle(&mut self, reply: client::Ended) -> Option<Ended> {
        let token = reply.token;
        let result = reply.result.map_err(refusal);
        let result = match self.under_way.remove(&token)? {
            Flight::Write(address) => {
                let (_, slot, _) = self.locate(address);
                // It was lost while it was on its way, or another page has its place.
                if self.slots[slot] == Slot::Writing(address) {
                    self.slots[slot] = match result {
                        Ok(()) => Slot::Holds(address),
                        Err(_) => Slot::Empty,
                    };
                }
                result.map(|()| Vec::new())
            }
            Flight::Read(address) => {
                let (_, slot, _) = self.locate(address);
                match self.holds(slot, address) {
                    true => result.map(|()| reply.buffer.into()),
                    false => Err(io::ErrorKind::NotFound.into()),
                }
            }
        };
        Some(Ended { token, result })
    }
}

impl Tier for RemoteTier {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn capacity_bytes(&self) -> Option<u64> {
        Some(self.slots.len() as u64 * self.page_bytes)
    }

    fn block_bytes(&self) -> usize {
        self.page_bytes as usize
    }

    fn start(&mut self, token: u64, request: Request) -> Result<(), Busy> {
        match request {
            Request::Write { address, page } => {
                return self.write(token, address, Bytes::from_owner(Page(page)));
            }
            Request::Read { address, len_bytes } => return self.read(token, address, len_bytes),
            Request::Sync => {}
            Request::Drop { address } => self.forget_below(address),
            Request::Cut { address } => self.forget_from(address),
        }
        self.end(token, Ok(Vec::new()));
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        ended.append(&mut self.ended);
        let mut replies = std::mem::take(&mut self.replies);
        let polled = self.remote.poll(&mut replies);
        // First what was lost: a read that ended may have seen the zeroes that are there now.
        while let Some(lost) = self.remote.take_lost() {
            if !is_injected(InjectedFault::LossIgnored) {
                self.lose(&lost);
            }
        }
        ended.extend(replies.drain(..).filter_map(|reply| self.settle(reply)));
        self.replies = replies;
        polled
    }
}

/// A page that the cache's client reads while the flow keeps it.
struct Page(std::sync::Arc<Buffer>);

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Why a request failed, in the words of a tier: `NotFound` is no fault of it.
fn refusal(error: Error) -> io::Error {
    let kind = match error {
        Error::OutOfRange { .. } | Error::Lost { .. } => io::ErrorKind::NotFound,
        Error::Unavailable { .. } => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: u64 = 256;
    const PAGES: usize = 64;

    #[test]
    fn pages_of_a_full_ring_are_forgotten_with_one_look_each() {
        let ring_bytes = PAGES as u64 * PAGE_BYTES;
        let floors = (0..10 * ring_bytes).step_by(PAGE_BYTES as usize);
        let looks: Vec<usize> = floors
            .flat_map(|floor| places(floor..floor + PAGE_BYTES, PAGE_BYTES, PAGES))
            .collect();
        assert_eq!(
            looks,
            (0..PAGES).cycle().take(10 * PAGES).collect::<Vec<_>>()
        );
    }

    #[test]
    fn no_place_is_looked_at_twice_however_much_is_forgotten() {
        let looks: Vec<usize> = places(3 * PAGE_BYTES..1 << 40, PAGE_BYTES, PAGES).collect();
        assert_eq!(looks, (3..PAGES).chain(0..3).collect::<Vec<_>>());
    }
}
