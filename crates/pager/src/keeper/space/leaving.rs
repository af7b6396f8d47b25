//! Pages on their way out: the program's agent drops them in batches, and says when they are gone.
//!
//! The books do not count them, while they are in memory still. So no other page comes while there
//! are as many as the address space's share has room for: an agent that gets no processor holds its
//! program up, and does not let it have more.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use cenote_preload::wire;
use cenote_volume::PAGE_BYTES;

use super::super::kernel::is_again;
use super::super::socket::{self, Packet};
use super::super::store::Store;
use super::{Space, UNBOUNDED};
use crate::shares::LEAVING_MAX;

/// Pages on their way out.
pub(super) struct Leaving {
    all: HashSet<u32>,
    /// No other page comes while there are so many.
    pub most: u32,
    /// Of these, those that the agent is not told of, in the order in which they came.
    pending: VecDeque<u32>,
    /// The others, which it is told of.
    sent: Vec<u32>,
    /// Those that are poisoned.
    poisoned: HashSet<u32>,
}

impl Leaving {
    pub fn new() -> Self {
        Self {
            all: HashSet::new(),
            most: LEAVING_MAX,
            pending: VecDeque::new(),
            sent: Vec::new(),
            poisoned: HashSet::new(),
        }
    }

    /// Whether a page is on its way out.
    pub fn has(&self, page: u32) -> bool {
        self.all.contains(&page)
    }

    /// Whether a page may not come: it is on its way out, or too many are.
    pub fn holds(&self, page: u32) -> bool {
        self.all.len() >= self.most as usize || self.has(page)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether some page of a range is on its way out.
    pub fn has_any(&self, pages: &Range<u32>) -> bool {
        self.all.iter().any(|page| pages.contains(page))
    }

    /// Whether the agent can be told something.
    pub fn is_unsent(&self) -> bool {
        !self.pending.is_empty() && self.sent.is_empty()
    }

    /// Whether there is as much to be told as can be told at once.
    pub fn is_batch(&self) -> bool {
        self.pending.len() >= wire::RANGES_MAX
    }

    /// A page is on its way out from now on.
    pub fn enter(&mut self, page: u32) {
        if self.all.insert(page) {
            self.pending.push_back(page);
        }
    }

    /// The same of a page that is poisoned.
    pub fn enter_poisoned(&mut self, page: u32) {
        self.poisoned.insert(page);
        self.enter(page);
    }

    /// Pages that are poisoned until they are gone.
    pub fn poisoned(&self) -> impl Iterator<Item = u32> {
        self.poisoned.iter().copied()
    }

    /// What the agent is to be told next, in the order of the pages.
    fn next_batch(&self) -> Vec<u32> {
        let mut pages: Vec<u32> = self
            .pending
            .iter()
            .take(wire::RANGES_MAX)
            .copied()
            .collect();
        pages.sort_unstable();
        pages
    }

    /// The agent is told of the next batch.
    fn note_sent(&mut self, batch: Vec<u32>) {
        self.pending.drain(..batch.len());
        self.sent = batch;
    }

    /// What it was told of is gone.
    fn end_batch(&mut self) {
        for page in self.sent.drain(..) {
            self.all.remove(&page);
            self.poisoned.remove(&page);
        }
    }

    /// Whether the agent is told to drop a page, and has not answered.
    #[cfg(test)]
    pub fn is_sent(&self, page: u32) -> bool {
        self.sent.contains(&page)
    }
}

impl Space {
    /// Sends what is left to be dropped.
    pub fn flush(&mut self) {
        if !self.leaving.is_unsent() || self.put_off.is_some() {
            return;
        }
        let Some(agent) = &self.agent else { return };
        let pages = self.leaving.next_batch();
        let mut list = vec![0];
        for page in &pages {
            let (address, bytes) = (self.layout.address(*page), PAGE_BYTES as u64);
            // Of what the program took away, nothing is dropped: it may have something else there.
            match self.kernel.is_there(address, bytes) {
                Ok(()) => {}
                Err(error) if is_again(&error) => return,
                Err(_) => continue,
            }
            match list.len().checked_sub(2) {
                Some(last) if last > 0 && list[last] + list[last + 1] == address => {
                    list[last + 1] += bytes;
                }
                _ => list.extend([address, bytes]),
            }
        }
        list[0] = (list.len() as u64 - 1) / 2;
        self.leaving.note_sent(pages);
        if !socket::send(agent, &list, None) {
            // Nobody drops them. If the agent is there still, it ends the program now.
            self.agent = None;
        }
    }

    /// Hears the agent: pages that left are gone.
    pub(super) fn hear(&mut self, store: &mut Store) -> bool {
        let mut word = [0; 1];
        let packet = match &self.agent {
            _ if self.is_ending => return false,
            Some(agent) => socket::receive(agent, &mut word),
            // A list could not be sent.
            None if !self.leaving.is_empty() => Packet::End,
            None => return false,
        };
        match packet {
            Packet::Nothing => return false,
            // An agent sends no descriptors.
            Packet::End | Packet::Cut => {
                self.is_ending = true;
                self.leaving = Leaving::new();
                self.pages.set_room(UNBOUNDED, store.now());
            }
            Packet::Words(..) => self.leaving.end_batch(),
        }
        self.release(store);
        true
    }
}
