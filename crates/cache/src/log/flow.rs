//! The flow of pages from memory to tiers: what becomes read-only, is written, and leaves memory.
//!
//! ```text
//! read-only raised -> everybody has seen it -> page copied and written to all tiers at once
//!   -> acknowledged at the commit point -> head raised -> everybody has seen it -> frame zeroed
//! ```
//!
//! Whoever polls moves it on; one thread at a time, others pass by. A page's copy is kept until
//! every tier that is to have it has it, and is read from meanwhile.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::commitment::{Commitment, Share};
use super::error::Error;
use super::injected_faults::{InjectedFault, is_injected};
use super::page;
use super::store::Store;
use super::tiers::{Buffer, Inbox, Request, Started};

/// The flow's inbox of answers.
const INBOX: Inbox = Inbox(0);

/// State of the flow. See the module.
pub struct Flow {
    /// A read-only address that not everybody has seen, and the epoch that ends with it.
    read_only_wait: Option<(u64, u64)>,
    /// Everybody has seen a read-only address that is at least this.
    safe_read_only: u64,
    /// Pages below this are written, or on their way.
    issued: u64,
    writes: VecDeque<PageWrite>,
    /// Whose answer a token is: the page, and the tier.
    tokens: HashMap<u64, (u64, usize)>,
    /// Pages below this are acknowledged.
    written: u64,
    head_wait: Option<(u64, u64)>,
    /// The frames of pages below this were passed on.
    passed_on: u64,
    /// Ends of pages up to which the log is a consistent prefix.
    cuts: BTreeSet<u64>,
    /// The newest of them, or where the log began.
    last_cut: u64,
    /// What a page's last tier said when it refused the page, until that tier takes one or is lost.
    refusal: Option<(usize, io::Error)>,
}

/// A page on its way.
struct PageWrite {
    address: u64,
    image: Arc<Buffer>,
    commitment: Commitment,
}

/// The flow, for one thread at a time.
pub struct FlowLock(Mutex<Flow>);

impl FlowLock {
    /// Waits for the thread that has it, which never blocks.
    pub fn wait(&self) -> MutexGuard<'_, Flow> {
        self.0.lock().expect("nobody panics with it")
    }
}

impl Flow {
    /// A flow of which everything below `end` has been written.
    pub fn lock_at(end: u64) -> FlowLock {
        FlowLock(Mutex::new(Self {
            read_only_wait: None,
            safe_read_only: end,
            issued: end,
            writes: VecDeque::new(),
            tokens: HashMap::new(),
            written: end,
            head_wait: None,
            passed_on: end,
            cuts: BTreeSet::new(),
            last_cut: end,
            refusal: None,
        }))
    }

    /// Pages below this are written, or on their way.
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// The copy of the page that has `address`, if it is on its way.
    pub fn image(&self, address: u64) -> Option<(u64, Arc<Buffer>)> {
        let holds = |page: &&PageWrite| {
            (page.address..page.address + page.image.len() as u64).contains(&address)
        };
        let page = self.writes.iter().find(holds)?;
        Some((page.address, Arc::clone(&page.image)))
    }

    fn take_answers(&mut self, store: &Store) {
        (self.refusal).take_if(|(tier, _)| store.tiers.is_lost(*tier));
        for end in store.tiers.take(INBOX) {
            let Some((address, tier)) = self.tokens.remove(&end.token) else {
                continue;
            };
            let page = self.writes.iter_mut().find(|page| page.address == address);
            let commitment = &mut page.expect("kept until all have ended").commitment;
            match end.result {
                Ok(_) => {
                    commitment.set(tier, Share::Done);
                    self.refusal.take_if(|(refusing, _)| *refusing == tier);
                }
                // No slower tier will have the page: this one is asked again, until it is lost.
                Err(error) if commitment.is_last(tier, |slower| store.tiers.is_lost(slower)) => {
                    commitment.set(tier, Share::Waiting);
                    self.refusal = Some((tier, error));
                }
                Err(_) => commitment.set(tier, Share::Failed),
            }
        }
    }

    /// Raises the read-only address so that `mutable_pages` are left, and learns who has seen it.
    fn advance_read_only(&mut self, store: &Store) {
        let mutable = store.settings.mutable_pages as u64 * store.page_bytes();
        let open = store.page_start(store.addresses.tail.load()) + store.page_bytes();
        store
            .addresses
            .read_only
            .raise(open.saturating_sub(mutable));
        if let Some((address, epoch)) = self.read_only_wait
            && store.epochs.is_past(epoch)
        {
            self.safe_read_only = address;
            self.read_only_wait = None;
        }
        let read_only = store.addresses.read_only.load();
        if self.read_only_wait.is_none() && read_only > self.safe_read_only {
            self.read_only_wait = Some((read_only, store.epochs.bump()));
        }
    }

    /// Copies pages that are read-only for everybody, and starts writes.
    fn issue(&mut self, store: &Store) {
        // A page that was closed by a cut may be ahead of a tail that has not moved yet.
        let end = self.safe_read_only.min(store.addresses.tail.load());
        let count = store.tiers.count();
        while self.issued + store.page_bytes() <= end
            && self.writes.len() < store.settings.writes_max
            && count > 0
        {
            let mut image = Buffer::zeroed(store.settings.page_bytes);
            store.memory.copy_page(self.issued, &mut image);
            let is_cut = self.cuts.contains(&(self.issued + store.page_bytes()));
            page::seal(&mut image, self.issued, store.secret.store, is_cut);
            let holds = (0..count).map(|tier| !store.tiers.is_lost(tier));
            self.writes.push_back(PageWrite {
                address: self.issued,
                image: Arc::new(image),
                commitment: Commitment::new(holds, store.settings.commit_point),
            });
            self.issued += store.page_bytes();
        }
        for page in &mut self.writes {
            for tier in 0..count {
                if page.commitment.share(tier) != Share::Waiting {
                    continue;
                }
                // Another tier is in the place of the one that was to have it, and begins behind it.
                let held = store.tiers.range(tier);
                if held.is_none_or(|held| page.address < held.start) {
                    page.commitment.set(tier, Share::Failed);
                    continue;
                }
                let token = store.tiers.token(INBOX);
                let request = Request::Write {
                    address: page.address,
                    page: Arc::clone(&page.image),
                };
                match store.tiers.start(tier, token, request) {
                    Started::UnderWay => {
                        self.tokens.insert(token, (page.address, tier));
                        page.commitment.set(tier, Share::UnderWay);
                    }
                    Started::Lost => page.commitment.set(tier, Share::Failed),
                    Started::Busy => {}
                }
            }
        }
    }

    /// Learns how far each tier has the log, and what is acknowledged.
    fn settle(&mut self, store: &Store) {
        for tier in 0..store.tiers.count() {
            let mut is_gapless = true;
            for page in &self.writes {
                let end = page.address + page.image.len() as u64;
                match page.commitment.share(tier) {
                    Share::Done if is_gapless => store.tiers.extend(tier, end),
                    // A tail of the log has no hole: it begins behind this one.
                    Share::Failed if is_gapless && !is_injected(InjectedFault::HoleServed) => {
                        store.tiers.forget_below(tier, end);
                    }
                    Share::Failed if is_gapless => store.tiers.extend(tier, end),
                    // It was lost when the page was started, and begins behind it.
                    Share::Absent => {}
                    _ => is_gapless = false,
                }
            }
            if let Some(start) = store.tiers.start_in_capacity(tier) {
                store.tiers.forget_below(tier, start);
                // One that is too busy gives the space back the next time.
                let request = Request::Drop { address: start };
                let _started = store.tiers.start(tier, store.tiers.token(INBOX), request);
            }
        }
        for page in &self.writes {
            if page.address >= self.written && page.commitment.is_acknowledged() {
                if page.address != self.written {
                    break;
                }
                self.written += page.image.len() as u64;
            }
        }
        while let Some(page) = self.writes.front()
            && page.commitment.is_over()
            && page.address < self.written
        {
            self.cuts.remove(&(page.address + page.image.len() as u64));
            self.writes.pop_front();
        }
    }

    /// Raises the head so that there is a frame for the page behind the tail's, and passes on the
    /// frames of pages that nobody reads in memory any more.
    fn evict(&mut self, store: &Store) {
        if let Some((address, epoch)) = self.head_wait
            && store.epochs.is_past(epoch)
        {
            while self.passed_on < address {
                store.memory.pass_on(self.passed_on / store.page_bytes());
                self.passed_on += store.page_bytes();
            }
            self.head_wait = None;
        }
        let memory = store.settings.pages as u64 * store.page_bytes();
        let next = store.page_start(store.addresses.tail.load()) + 2 * store.page_bytes();
        let head = next.saturating_sub(memory).min(self.written);
        self.raise_head(store, head);
    }

    fn raise_head(&mut self, store: &Store, head: u64) {
        if self.head_wait.is_none() && head > store.addresses.head.load() {
            store.addresses.head.raise(head);
            self.head_wait = Some((head, store.epochs.bump()));
        }
    }

    /// Closes the page at the tail, so that the log up to the result is a consistent prefix: who
    /// works behind it has seen everything before it, and changes nothing before it.
    ///
    /// # Errors
    /// [`Error::Busy`], or why there is no room: the page that is to end with it has no frame.
    pub fn cut(&mut self, store: &Store) -> Result<u64, Error> {
        loop {
            let tail = store.addresses.tail.load();
            if tail == self.last_cut {
                return Ok(tail);
            }
            let end = store.page_start(tail) + store.page_bytes();
            if !store.memory.is_ready(tail / store.page_bytes()) {
                return Err(store.why_full_with(self));
            }
            // First this, then the tail: who has a record behind `end` changes none before it.
            store.addresses.read_only.raise(end);
            if store.move_tail(tail, end) {
                self.cuts.insert(end);
                self.last_cut = end;
                return Ok(end);
            }
        }
    }
}

impl Store {
    /// Moves pages on, as far as it goes without waiting. The caller is not pinned.
    pub(super) fn advance(&self) {
        self.tiers.poll();
        if let Ok(mut flow) = self.flow.0.try_lock() {
            flow.take_answers(self);
            flow.advance_read_only(self);
            // What was bumped may be past at once.
            flow.advance_read_only(self);
            flow.issue(self);
            flow.settle(self);
            flow.evict(self);
            flow.evict(self);
        }
    }

    /// Why there is no frame for another page.
    pub(super) fn why_full(&self) -> Error {
        match self.flow.0.try_lock() {
            Ok(flow) => self.why_full_with(&flow),
            Err(_) => Error::Busy,
        }
    }

    fn why_full_with(&self, flow: &Flow) -> Error {
        // No tier will have this page: some failed to write it, the others are lost. It stays in memory.
        let is_stuck =
            |page: &PageWrite| page.commitment.is_over() && !page.commitment.is_acknowledged();
        if self.tiers.last().is_none() || flow.writes.front().is_some_and(is_stuck) {
            return Error::NoTier;
        }
        self.refusal_of(flow).unwrap_or(Error::Busy)
    }

    /// Why the last tier of a page does not take it, which it is asked to again and again.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.refusal_of(&*self.flow.0.try_lock().ok()?)
    }

    fn refusal_of(&self, flow: &Flow) -> Option<Error> {
        let (tier, error) = flow.refusal.as_ref()?;
        Some(Error::Storage {
            tier: self.tiers.name(*tier),
            source: match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            },
        })
    }
}
