//! What a program uses of a cache: reads and writes of any length, many under way.
//!
//! A [`Client`] belongs to one thread. It knows the region table as its owner told it, holds one
//! [`Path`] to each host, and cuts each request into pieces of one slab. Pure but for its paths:
//! time is passed in, connections are handed in, and what the owner is to hear is taken by
//! [`Client::take_known`].
//!
//! Order: requests of one client that overlap take effect in the order of their submission when one
//! of them is a write; all others in any order. Requests for a region that moves, or has no memory,
//! wait.
//!
//! Invariants: nothing is started or counted as done after the lease is over, by the clock when it
//! ended; a generation is called known when no write under an older one is under way; a write is
//! done when every copy of its entry has it, and the copy that is read gets it last; after one whose
//! connection broke none is begun in its region until the window is renewed that it went to, or not
//! used any more: that fences off what may still land.
//!
//! Order of stores on `shm`: a verb is a copy by this thread, complete when posted. [`Path::flush`]
//! orders its stores before all that follow. [`Client::poll`] flushes before it gives out what has
//! ended, and before the owner can be told of it ([`Client::take_known`]), so whoever hears of
//! either finds the bytes.

mod admission;
mod patience;
mod piece;
mod queue;
mod region;
#[cfg(test)]
mod tests;
mod verbs;
mod windows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::{RemoteWindow, Time};
use cenote_pool::control::Window;
use smallvec::SmallVec;

use crate::owner::{Entry, HostIndex};
use crate::path::{Completion, Path, Token};
use patience::Patience;
use piece::{Piece, PieceKind};
use region::{RegionView, WindowName};

/// How a cache is cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Slabs of a region.
    pub slabs_per_region: u32,
}

impl Geometry {
    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.slab_bytes * u64::from(self.slabs_per_region)
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range passes the cache's end. Nothing was changed.
    #[error("region {region} is past the cache's end")]
    OutOfRange {
        /// The first region that is not there.
        region: u32,
    },
    /// The region was out of reach for too long; a write may have happened in part. Try again.
    #[error("region {region} is out of reach; try again")]
    Unavailable {
        /// The region.
        region: u32,
    },
    /// The region lost its bytes when a part of the write was there and another was not yet. Try
    /// again.
    #[error("region {region} lost its bytes while the write was under way; try again")]
    Lost {
        /// The region.
        region: u32,
    },
    /// A host refuses what no table should lead to. Trying again is no use.
    #[error("region {region}: {refusal}")]
    Refused {
        /// The region.
        region: u32,
        /// As the host said.
        refusal: crate::path::Refusal,
    },
    /// As many requests, or parts of requests, are under way as there may be. Poll, then try again.
    #[error("as many requests are under way as there may be")]
    Full,
}

impl Error {
    /// Whether the same request can succeed later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. } | Self::Lost { .. } | Self::Full
        )
    }
}

/// Most requests under way in one client.
pub const REQUESTS_MAX: usize = 4096;

/// Most parts of requests, those of one request excepted: a long one is taken while nothing else is
/// under way. Arbitrary; a part costs some 300 bytes of memory here.
pub const PARTS_MAX: usize = 1 << 16;

/// Longest request in bytes.
pub const REQUEST_BYTES_MAX: usize = 1 << 30;

/// The end of a request.
#[derive(Debug)]
pub struct Ended {
    /// As submitted.
    pub token: Token,
    /// How it went.
    pub result: Result<(), Error>,
    /// The buffer of a read, whole; unspecified content after an error. Empty of a write.
    pub buffer: BytesMut,
}

/// A region whose bytes were lost: it holds zeros, or what a checkpoint has of it, and what is written from
/// then on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lost {
    /// The region.
    pub region: u32,
    /// How many times it was, in all.
    pub losses: u32,
}

/// A region that came back from a checkpoint after a loss.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FellBack {
    /// The region.
    pub region: u32,
    /// When its bytes were as they are now, in milliseconds since 1970.
    pub taken_ms: u64,
}

#[derive(Debug)]
struct Request {
    token: Token,
    pieces_left: usize,
    /// Parts of a read's buffer, in order.
    parts: SmallVec<[Option<BytesMut>; 1]>,
    result: Result<(), Error>,
    /// Regions that parts of a write are in, with their losses then.
    written: Vec<(usize, u32)>,
}

#[derive(Default)]
struct Link {
    path: Option<Box<dyn Path>>,
    /// Windows that can be used, by id and generation.
    windows: BTreeMap<WindowName, RemoteWindow>,
    /// Windows that were wanted, and the region and slab that they are.
    asked: BTreeMap<WindowName, (usize, usize)>,
    /// Copies of regions there, and copies to come. Kept by [`Client::change_entry`].
    copies: usize,
    /// Nothing more is started on it.
    is_ending: bool,
}

/// See the module's text.
pub struct Client {
    geometry: Geometry,
    patience: Patience,
    lease_until: Time,
    /// Leases that did not follow one another without a gap.
    leases: u64,
    regions: Vec<RegionView>,
    links: Vec<Link>,
    requests: BTreeMap<u64, Request>,
    requests_made: u64,
    pieces: BTreeMap<u64, Piece>,
    pieces_made: u64,
    /// Pieces that wait, by when they were submitted.
    waiting_since: BTreeSet<(Time, u64)>,
    /// Regions where something changed since they were looked at, or the path had no room.
    touched: BTreeSet<usize>,
    ended: VecDeque<Ended>,
    lost: VecDeque<Lost>,
    fallen: VecDeque<FellBack>,
    known: VecDeque<(u32, u64)>,
    doubts: BTreeSet<(u32, u64)>,
    /// Writes that some copies have, and the next had no room for.
    half_done: VecDeque<u64>,
    clock: fn() -> Time,
    wanted: VecDeque<(HostIndex, Window)>,
    /// Regions with windows that were not to be had, and when these are wanted again.
    wanted_again: BTreeSet<(Time, usize)>,
    troubled: BTreeSet<HostIndex>,
    completions: VecDeque<Completion>,
    /// Longest part of a request: what one request of a path may have.
    piece_bytes_max: usize,
}

impl Client {
    /// A client that was told nothing yet. A request that cannot go on for `patience` fails.
    #[must_use]
    pub fn new(geometry: Geometry, hosts: usize, patience: Duration) -> Self {
        Self {
            geometry,
            patience: Patience::new(patience),
            lease_until: Time(0),
            leases: 0,
            regions: Vec::new(),
            links: (0..hosts).map(|_| Link::default()).collect(),
            requests: BTreeMap::new(),
            requests_made: 0,
            pieces: BTreeMap::new(),
            pieces_made: 0,
            waiting_since: BTreeSet::new(),
            touched: BTreeSet::new(),
            ended: VecDeque::new(),
            lost: VecDeque::new(),
            fallen: VecDeque::new(),
            known: VecDeque::new(),
            doubts: BTreeSet::new(),
            half_done: VecDeque::new(),
            clock: Time::now,
            wanted: VecDeque::new(),
            wanted_again: BTreeSet::new(),
            troubled: BTreeSet::new(),
            completions: VecDeque::new(),
            piece_bytes_max: usize::MAX,
        }
    }

    /// Cuts requests into parts of at most so many bytes, for paths that take no longer ones.
    ///
    /// # Panics
    /// If it is 0.
    #[must_use]
    pub fn with_pieces(self, piece_bytes_max: usize) -> Self {
        assert!(piece_bytes_max > 0, "parts of no byte");
        Self {
            piece_bytes_max,
            ..self
        }
    }

    /// With another clock than the machine's, that of the times which are passed in.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> Time) -> Self {
        self.clock = clock;
        self
    }

    /// Fills `buffer`, all of its length, from `address` on. Ends with [`Client::poll`].
    ///
    /// # Errors
    /// `OutOfRange`, `Full`: nothing was submitted.
    pub fn submit_read(
        &mut self,
        now: Time,
        address: u64,
        mut buffer: BytesMut,
        token: Token,
    ) -> Result<(), Error> {
        self.admit(address, buffer.len())?;
        let ranges = self.cut(address, buffer.len())?;
        let request = self.add_request(token, ranges.len());
        for (index, (slab, offset, len_bytes)) in ranges.into_iter().enumerate() {
            // The last, or only, part has the buffer itself.
            let part = match buffer.len() == len_bytes {
                true => std::mem::take(&mut buffer),
                false => buffer.split_to(len_bytes),
            };
            self.add_piece(now, request, index, slab, offset, PieceKind::Read(part));
        }
        Ok(())
    }

    /// Stores `bytes` from `address` on. Ends with [`Client::poll`].
    ///
    /// # Errors
    /// `OutOfRange`, `Full`: nothing was submitted.
    pub fn submit_write(
        &mut self,
        now: Time,
        address: u64,
        mut bytes: Bytes,
        token: Token,
    ) -> Result<(), Error> {
        self.admit(address, bytes.len())?;
        let ranges = self.cut(address, bytes.len())?;
        let request = self.add_request(token, ranges.len());
        for (index, (slab, offset, len_bytes)) in ranges.into_iter().enumerate() {
            let part = bytes.split_to(len_bytes);
            self.add_piece(now, request, index, slab, offset, PieceKind::Write(part));
        }
        Ok(())
    }

    /// Goes on without blocking, and appends what ended. `now` also ends requests that waited too
    /// long.
    pub fn poll(&mut self, now: Time, ended: &mut Vec<Ended>) {
        self.patience.note_poll(now);
        let mut completions = std::mem::take(&mut self.completions);
        for link in 0..self.links.len() {
            if let Some(path) = &mut self.links[link].path {
                path.poll(now, &mut completions);
            }
            // This thread may have been stopped since `now`: what counts is the lease when it
            // looks.
            let now = match completions.is_empty() {
                true => now,
                false => now.max((self.clock)()),
            };
            while let Some(completion) = completions.pop_front() {
                self.take_completion(now, link, completion);
            }
            self.drop_lost_path(link);
        }
        self.completions = completions;
        self.want_again(now);
        self.post_half_done(now);
        for region in std::mem::take(&mut self.touched) {
            if self.start_waiting(now, region) {
                self.touched.insert(region);
            }
            self.tell_known(region);
            self.end_cut_off(region);
        }
        self.end_overdue(now);
        for link in &mut self.links {
            if let Some(path) = &mut link.path {
                path.flush();
            }
        }
        ended.extend(self.ended.drain(..));
    }

    /// The owner granted the lease that was asked for at `asked_at`.
    pub fn handle_lease(&mut self, now: Time, asked_at: Time) {
        let until = asked_at.after(crate::owner::LEASE);
        if now >= self.lease_until {
            // Regions may have moved meanwhile: what is under way does not count.
            self.leases += 1;
        }
        self.lease_until = self.lease_until.max(until);
    }

    /// The owner says what holds for a region.
    pub fn handle_entry(&mut self, entry: Entry) {
        let region = entry.region as usize;
        if region >= crate::owner::REGIONS_MAX as usize || !self.is_sound(&entry) {
            return;
        }
        if self.regions.len() <= region {
            self.regions.resize_with(region + 1, RegionView::default);
        }
        let generation = entry.generation;
        let before = self.regions[region].fell_back_ms();
        let (losses, has_news) = self.change_entry(region, |view| view.learn(entry));
        self.regions[region].queue.note_windows();
        self.touched.insert(region);
        let taken_ms = self.regions[region].fell_back_ms();
        if let (Some(before), Some(taken_ms)) = (before, taken_ms)
            && taken_ms != 0
            && (before != taken_ms || losses.is_some())
        {
            let region = u32::try_from(region).expect("at most 2^16");
            self.fallen.push_back(FellBack { region, taken_ms });
        }
        if !has_news {
            return;
        }
        let doubts_on = self.regions[region].is_late() && self.regions[region].is_readable();
        if doubts_on || self.regions[region].doubted_at == generation {
            // Told again, after another connection to the owner: it may not have heard of it. Or
            // told again, and nothing was fenced off.
            self.regions[region].doubted_at = generation;
            self.doubt(region, generation);
        }
        if let Some(losses) = losses {
            let region = u32::try_from(region).expect("at most 2^16");
            self.lost.push_back(Lost { region, losses });
        }
        self.want_windows(region);
        self.tell_known(region);
    }

    /// A connection to a host, with nothing on it. It has none yet: what is under way on another one would
    /// never end.
    pub fn handle_path(&mut self, host: HostIndex, path: Box<dyn Path>) {
        let Some(link) = self.links.get_mut(host) else {
            return;
        };
        debug_assert!(link.path.is_none(), "requests may be under way on it");
        link.path = Some(path);
        link.is_ending = false;
        link.windows.clear();
        link.asked.clear();
        for region in 0..self.regions.len() {
            self.regions[region].blocked_at = 0;
            self.touched.insert(region);
            self.want_windows(region);
        }
    }

    /// The session to a host ended: no more windows come. Its path goes when nothing is under way
    /// on it, which the end of the session brings about.
    pub fn handle_session_ended(&mut self, host: HostIndex) {
        if let Some(link) = self.links.get_mut(host) {
            link.is_ending = true;
        }
    }

    /// A region, and the generation of a write there that may land late, or be in one copy alone:
    /// the owner is to hear of it, before what is known.
    pub fn take_doubt(&mut self) -> Option<(u32, u64)> {
        self.doubts.pop_first()
    }

    /// One more host, with the next number.
    pub fn add_host(&mut self) {
        self.links.push(Link::default());
    }

    /// Whether it may act on what it was told.
    #[must_use]
    pub fn has_lease(&self, now: Time) -> bool {
        now < self.lease_end()
    }

    /// What the owner is to hear: a region, and the generation that this client acts on alone.
    pub fn take_known(&mut self) -> Option<(u32, u64)> {
        self.known.pop_front()
    }

    /// A window to attach on the session to a host.
    pub fn take_wanted(&mut self) -> Option<(HostIndex, Window)> {
        self.wanted.pop_front()
    }

    /// A host where something did not go as the table has it: the owner is to compare its books.
    pub fn take_trouble(&mut self) -> Option<HostIndex> {
        self.troubled.pop_first()
    }

    /// A region whose bytes were lost, oldest first.
    pub fn take_lost(&mut self) -> Option<Lost> {
        self.lost.pop_front()
    }

    /// A region that came back from a checkpoint, oldest first.
    pub fn take_fallen_back(&mut self) -> Option<FellBack> {
        self.fallen.pop_front()
    }

    /// How many times the region's bytes were lost, as far as the client was told.
    #[must_use]
    pub fn losses(&self, region: usize) -> u32 {
        self.regions.get(region).map_or(0, RegionView::losses)
    }

    /// Whether the host has no path, though some region is there. Costs the same with any number of regions.
    #[must_use]
    pub fn lacks_path(&self, host: HostIndex) -> bool {
        self.links[host].path.is_none() && self.links[host].copies > 0
    }

    /// Whether the host has a path, be it one that ends, with requests under way.
    #[must_use]
    pub fn has_path(&self, host: HostIndex) -> bool {
        self.links[host].path.is_some()
    }

    /// Requests under way or waiting.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Regions that the client was told of and that are not cut off.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.iter().filter(|r| r.is_there()).count()
    }

    /// Bytes of the cache, as far as the client was told.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.regions() as u64 * self.geometry.region_bytes()
    }

    /// What to wait for: descriptors of its paths.
    pub fn fds(&self) -> impl Iterator<Item = std::os::fd::RawFd> {
        self.links
            .iter()
            .filter_map(|link| link.path.as_ref()?.fd())
    }

    /// Whether the entry fits what is known of the cache; an owner is trusted with no more than
    /// that.
    fn is_sound(&self, entry: &Entry) -> bool {
        let slabs = self.geometry.slabs_per_region as usize;
        entry.places().all(|copy| {
            copy.host < self.links.len()
                && copy.windows.len() == slabs
                && copy
                    .windows
                    .iter()
                    .all(|w| w.len_bytes == self.geometry.slab_bytes)
        })
    }

    fn add_request(&mut self, token: Token, pieces: usize) -> u64 {
        self.requests_made += 1;
        let request = Request {
            token,
            pieces_left: pieces,
            parts: (0..pieces).map(|_| None).collect(),
            result: Ok(()),
            written: Vec::new(),
        };
        self.requests.insert(self.requests_made, request);
        if pieces == 0 {
            self.end_request(self.requests_made);
        }
        self.requests_made
    }

    fn add_piece(
        &mut self,
        now: Time,
        request: u64,
        part: usize,
        slab: u64,
        offset: u64,
        kind: PieceKind,
    ) {
        let slabs = u64::from(self.geometry.slabs_per_region);
        let index = |number: u64| usize::try_from(number).expect("checked to be there");
        let region = index(slab / slabs);
        self.pieces_made += 1;
        let number = self.pieces_made;
        let piece = Piece::new(
            request,
            part,
            index(slab % slabs),
            offset,
            kind,
            self.patience.counted(now),
        );
        let piece = piece.of(region);
        let is_first = self.regions[region].queue.add(number, piece.span());
        self.waiting_since.insert((piece.submitted_at, number));
        self.pieces.insert(number, piece);
        // Behind others of its kind it waits for their turn.
        if is_first && self.start_waiting(now, region) {
            self.touched.insert(region);
        }
    }

    fn end_request(&mut self, number: u64) {
        let mut request = self.requests.remove(&number).expect("it has ended now");
        let is_gone = |&&(region, losses): &&(usize, u32)| self.regions[region].losses() != losses;
        if let Some(&(region, _)) = request.written.iter().find(is_gone) {
            let region = u32::try_from(region).expect("at most 2^16");
            request.result = request.result.and(Err(Error::Lost { region }));
        }
        let mut buffer = BytesMut::new();
        for part in request.parts.into_iter().flatten() {
            buffer.unsplit(part);
        }
        self.ended.push_back(Ended {
            token: request.token,
            result: request.result,
            buffer,
        });
    }

    fn drop_lost_path(&mut self, host: HostIndex) {
        let link = &mut self.links[host];
        let is_ending = link.is_ending;
        let is_over = |path: &dyn Path| (path.is_lost() || is_ending) && path.outstanding() == 0;
        if link.path.as_deref().is_some_and(is_over) {
            link.path = None;
            link.windows.clear();
            link.asked.clear();
            self.troubled.insert(host);
        }
    }
}
