//! The background core: makes versions durable in the order of the log, and cleans the log.
//!
//! It does one unit at a time: one version, or one entry of a cleaning; while the log is cleaned
//! these take turns by the batch. A version whose value is not there is tried again a batch
//! later, or when nothing else waits.

use std::collections::VecDeque;

use super::parameters::Parameters;
use super::price::Prices;
use super::versions::{Version, Versions};

/// What it does next, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its time.
    pub ns: f64,
    /// What.
    pub job: Job,
}

/// A unit of the background core's work.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Job {
    /// Verify a version and make it durable if its value is there.
    Persist {
        /// Which.
        version: Version,
        /// When it was allocated, in picoseconds.
        allocated_ps: u64,
        /// Whether its value was there.
        is_whole: bool,
    },
    /// Move a key's newest durable version to the other half of the log.
    Move {
        /// Whose.
        key: u32,
    },
    /// Look at an entry that is done, or that has to wait.
    Look,
}

/// Entries on their way to the other half of the log.
#[derive(Clone, Debug)]
pub struct Cleaning {
    /// Versions from this one on went to the other half at once.
    began_at: Version,
    is_moved: Vec<bool>,
    /// Keys still to be looked at, in the order of the index.
    left: VecDeque<u32>,
}

impl Cleaning {
    /// Of all keys, in an order that `order` has.
    #[must_use]
    pub fn new(order: Vec<u32>, began_at: Version) -> Self {
        Self {
            began_at,
            is_moved: vec![false; order.len()],
            left: order.into(),
        }
    }

    /// Whether an entry leads to the other half.
    #[must_use]
    pub fn is_moved(&self, key: u32, newest: Version) -> bool {
        newest >= self.began_at || self.is_moved[key as usize]
    }
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Background {
    /// Not verified yet, with when they were allocated.
    waiting: VecDeque<(Version, u64)>,
    /// Tried without success.
    later: Vec<(Version, u64)>,
    /// Units since those were tried, or since cleaning and persisting changed turns.
    tried: u32,
    turn: u32,
    is_cleaning_turn: bool,
    cleaning: Option<Cleaning>,
    is_busy: bool,
    busy_ps: u64,
}

impl Background {
    /// A version waits to be made durable.
    pub fn wait(&mut self, version: Version, allocated_ps: u64) {
        self.waiting.push_back((version, allocated_ps));
    }

    /// The log is to be cleaned.
    pub fn clean(&mut self, cleaning: Cleaning) {
        self.cleaning = Some(cleaning);
    }

    /// Entries that are being moved, if there are.
    #[must_use]
    pub fn cleaning(&self) -> Option<&Cleaning> {
        self.cleaning.as_ref()
    }

    /// Time spent working.
    #[must_use]
    pub fn busy_ps(&self) -> u64 {
        self.busy_ps
    }

    /// What it begins now, if it is idle and there is something.
    pub fn begin(&mut self, versions: &Versions, prices: &Prices<'_>) -> Option<Unit> {
        if self.is_busy {
            return None;
        }
        let batch = prices.parameters.batch;
        if self.turn == batch {
            self.turn = 0;
            self.is_cleaning_turn = !self.is_cleaning_turn;
        }
        let unit =
            match self.is_cleaning_turn {
                true => (self.next_entry(versions, prices))
                    .or_else(|| self.next_version(versions, prices)),
                false => (self.next_version(versions, prices))
                    .or_else(|| self.next_entry(versions, prices)),
            }?;
        self.turn += 1;
        self.is_busy = true;
        Some(unit)
    }

    /// It has done so after so long.
    pub fn end(&mut self, job: Job, took_ps: u64) {
        self.is_busy = false;
        self.busy_ps += took_ps;
        match job {
            Job::Move { key } => {
                if let Some(cleaning) = &mut self.cleaning {
                    cleaning.is_moved[key as usize] = true;
                }
            }
            Job::Persist {
                version,
                allocated_ps,
                is_whole: false,
            } => self.later.push((version, allocated_ps)),
            Job::Persist { .. } | Job::Look => {}
        }
        if (self.cleaning.as_ref()).is_some_and(|cleaning| cleaning.left.is_empty()) {
            self.cleaning = None;
        }
    }

    fn next_version(&mut self, versions: &Versions, prices: &Prices<'_>) -> Option<Unit> {
        // Those that a read settled meanwhile cost nothing.
        while (self.waiting.front()).is_some_and(|&(version, _)| versions.is_durable(version)) {
            self.waiting.pop_front();
        }
        if self.waiting.is_empty() || self.tried >= prices.parameters.batch {
            self.later
                .retain(|&(version, _)| !versions.is_durable(version));
            for one in self.later.drain(..).rev() {
                self.waiting.push_front(one);
            }
            self.tried = 0;
        }
        self.tried += 1;
        let (version, allocated_ps) = self.waiting.pop_front()?;
        let is_whole = versions.is_whole(version);
        let (copied_ns, summed_ns) = prices.verify_ns();
        let settle_ns = if is_whole { prices.settle_ns() } else { 0.0 };
        Some(Unit {
            ns: prices.parameters.background_ns + copied_ns + summed_ns + settle_ns,
            job: Job::Persist {
                version,
                allocated_ps,
                is_whole,
            },
        })
    }

    fn next_entry(&mut self, versions: &Versions, prices: &Prices<'_>) -> Option<Unit> {
        let cleaning = self.cleaning.as_mut()?;
        let key = cleaning.left.pop_front()?;
        let newest = versions.newest(key);
        if !versions.is_durable(newest) {
            // It may be the newest soon, and if not the one before has to be there.
            cleaning.left.push_back(key);
            return Some(Unit {
                ns: prices.parameters.look_ns,
                job: Job::Look,
            });
        }
        if cleaning.is_moved(key, newest) {
            return Some(Unit {
                ns: prices.parameters.look_ns,
                job: Job::Look,
            });
        }
        Some(Unit {
            ns: move_ns(prices.parameters, prices.value_bytes),
            job: Job::Move { key },
        })
    }
}

/// Moving an object: looked at, copied, flushed, named.
fn move_ns(costs: &Parameters, value_bytes: u64) -> f64 {
    let bytes = costs.header_bytes + value_bytes;
    costs.look_ns + costs.copy_ns(bytes) + costs.flush_ns(bytes) + costs.flush_word_ns()
}

#[cfg(test)]
mod tests;
