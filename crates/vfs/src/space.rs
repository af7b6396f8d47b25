//! Which blocks of the data area are free.
//!
//! Nothing of it is stored: what no extent has is free when a file system is mounted. Freed blocks
//! go through two waiting rooms before they are given again: `freed`, until a commit takes them,
//! and the caller's hands, until that commit is durable and their memory was given back. Where that was
//! refused they are free all the same, and `held`: their memory is given back later, as long as they are.

use std::collections::{BTreeMap, VecDeque};

use crate::injected_faults::{InjectedFault, is_injected};

/// A run of blocks.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Blocks.
    pub len: u64,
}

/// Whether a block has memory, and the first one after it of which that may be otherwise.
pub trait Memory: Fn(u64) -> (bool, u64) {}

impl<T: Fn(u64) -> (bool, u64)> Memory for T {}

/// The parts of `run` that have memory and that have none.
fn parts(run: Run, memory: &impl Memory) -> impl Iterator<Item = (Run, bool)> {
    let (mut at, end) = (run.start, run.start + run.len);
    std::iter::from_fn(move || {
        let start = at;
        (start < end).then(|| {
            let (has_memory, until) = memory(start);
            at = until.clamp(start + 1, end);
            let len = at - start;
            (Run { start, len }, has_memory)
        })
    })
}

/// Free and freed blocks.
#[derive(Debug, Default)]
pub struct Space {
    /// Free runs by first block; neighbours are merged.
    free: BTreeMap<u64, u64>,
    free_blocks: u64,
    total_blocks: u64,
    /// Freed by changes that no commit has taken yet.
    freed: Vec<Run>,
    /// Blocks that were freed and are not free yet.
    waiting_blocks: u64,
    /// Where the search goes on when a file has no wish of its own.
    cursor: u64,
    /// Given to the change that is being made.
    given: Vec<Run>,
    /// How many of `freed` are of changes that are made.
    kept: usize,
    /// Runs whose memory was not given back; some of their blocks may have been given since.
    held: VecDeque<Run>,
    /// Free blocks before this one had no memory when that was looked for.
    bare: u64,
}

/// Runs that are looked at for one as long as is wanted; arbitrary.
const LOOKED_AT: usize = 32;
/// Runs whose memory was not given back that are remembered; arbitrary. The next mount finds the others.
const HELD_MAX: usize = 4096;

impl Space {
    /// All of `total_blocks` free.
    pub fn new(total_blocks: u64) -> Self {
        let mut space = Self::default();
        space.grow(total_blocks);
        space
    }

    /// The data area has grown.
    pub fn grow(&mut self, total_blocks: u64) {
        if let Some(len) = total_blocks.checked_sub(self.total_blocks)
            && len > 0
        {
            let start = self.total_blocks;
            self.total_blocks = total_blocks;
            self.add(Run { start, len });
        }
    }

    /// Blocks of the data area.
    pub fn total_blocks(&self) -> u64 {
        self.total_blocks
    }

    /// Blocks that can be given now.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Blocks that will be free.
    pub fn waiting_blocks(&self) -> u64 {
        self.waiting_blocks
    }

    /// Takes `run` off the free blocks, at the mount; false when some of it was taken already, or
    /// is outside.
    pub fn claim(&mut self, run: Run) -> bool {
        let Some(end) = run.start.checked_add(run.len) else {
            return false;
        };
        let before = self.free.range(..=run.start).next_back();
        let Some((&start, &len)) = before.filter(|(start, len)| *start + **len >= end) else {
            return false;
        };
        self.cut(start, len, run);
        true
    }

    /// Gives up to `wanted` blocks in a row, at `goal` if they are free there.
    pub fn give(&mut self, wanted: u64, goal: Option<u64>) -> Option<Run> {
        if wanted == 0 {
            return None;
        }
        let from = goal.unwrap_or(self.cursor);
        let found = self.at(from, wanted).or_else(|| {
            let after = self.free.range(from..).map(|(start, len)| (*start, *len));
            let around = self.free.range(..from).map(|(start, len)| (*start, *len));
            let mut longest = None;
            for (start, len) in after.chain(around).take(LOOKED_AT) {
                if longest.is_none_or(|(_, most)| most < len) {
                    longest = Some((start, len));
                }
                if len >= wanted {
                    break;
                }
            }
            longest.map(|(start, len)| {
                let run = Run {
                    start,
                    len: len.min(wanted),
                };
                (start, len, run)
            })
        });
        let (start, len, run) = found?;
        self.cursor = run.start + run.len;
        if is_injected(InjectedFault::ExtentGivenTwice) && run.start % 3 == 0 {
            return Some(run);
        }
        self.cut(start, len, run);
        self.given.push(run);
        Some(run)
    }

    /// Gives up to `wanted` blocks in a row that have memory.
    pub fn give_with_memory(&mut self, wanted: u64, memory: &impl Memory) -> Option<Run> {
        let before = self.free.range(..self.bare).next_back();
        let first = before.map_or(self.bare, |(start, _)| *start);
        let found = self.free.range(first..).find_map(|(&start, &len)| {
            let from = start.max(self.bare);
            let left = (start + len).saturating_sub(from);
            let mut parts = parts(
                Run {
                    start: from,
                    len: left,
                },
                memory,
            );
            let (part, _) = parts.find(|(_, has_memory)| *has_memory)?;
            let run = Run {
                start: part.start,
                len: part.len.min(wanted),
            };
            Some((start, len, run))
        });
        self.bare = found.map_or(self.total_blocks, |(_, _, run)| run.start);
        let (start, len, run) = found?;
        self.cut(start, len, run);
        self.given.push(run);
        Some(run)
    }

    /// `run` was given, and no file gets it: it is free at once. Some of it may have been written.
    pub fn take_back(&mut self, run: Run, memory: &impl Memory) {
        self.add(run);
        let written = parts(run, memory).filter(|(_, has_memory)| *has_memory);
        written.for_each(|(part, _)| self.hold(part));
    }

    /// The free run around `from`, and what of it is given.
    fn at(&self, from: u64, wanted: u64) -> Option<(u64, u64, Run)> {
        let (&start, &len) = self.free.range(..=from).next_back()?;
        let left = (start + len).checked_sub(from).filter(|left| *left > 0)?;
        let run = Run {
            start: from,
            len: left.min(wanted),
        };
        Some((start, len, run))
    }

    fn cut(&mut self, start: u64, len: u64, run: Run) {
        self.free.remove(&start);
        if run.start > start {
            self.free.insert(start, run.start - start);
        }
        let (end, run_end) = (start + len, run.start + run.len);
        if end > run_end {
            self.free.insert(run_end, end - run_end);
        }
        self.free_blocks -= run.len;
    }

    /// Makes what was given and freed since the last call, or the last [`Self::roll_back`], stay.
    pub fn keep(&mut self) {
        self.given.clear();
        self.kept = self.freed.len();
    }

    /// Undoes what was given, and never used, and what was freed since the last [`Self::keep`].
    pub fn roll_back(&mut self) {
        for run in std::mem::take(&mut self.given) {
            self.add(run);
        }
        for run in self.freed.drain(self.kept..) {
            self.waiting_blocks -= run.len;
        }
    }

    /// `run` is freed by the change that is being made.
    pub fn free(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        if is_injected(InjectedFault::FreedTooEarly) {
            return self.add(run);
        }
        self.waiting_blocks += run.len;
        self.freed.push(run);
    }

    /// Whether a commit would free something.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// What the commit that begins now frees.
    pub fn take_freed(&mut self) -> Vec<Run> {
        self.kept = 0;
        std::mem::take(&mut self.freed)
    }

    /// `runs` of a durable commit can be given again, and are before what lies behind them: a volume
    /// has memory for whole extents, which one block of a file keeps. A search that only went on would
    /// leave such a block in each, and take all of the hosts' memory for almost nothing.
    pub fn settle(&mut self, runs: &[Run]) {
        for run in runs {
            self.waiting_blocks -= run.len;
            self.add(*run);
            self.cursor = self.cursor.min(run.start);
        }
        self.bare = 0;
    }

    /// The memory of these blocks, which are free, was not given back.
    pub fn hold(&mut self, run: Run) {
        if self.held.len() < HELD_MAX {
            self.held.push_back(run);
        }
    }

    /// Blocks whose memory may be given back now: they are not given before they are settled.
    pub fn take_held(&mut self) -> Option<Run> {
        while let Some(run) = self.held.pop_front() {
            let end = run.start + run.len;
            let before = self.free.range(..=run.start).next_back();
            let before = before.filter(|(start, len)| *start + **len > run.start);
            let found = before.or_else(|| self.free.range(run.start..end).next());
            let Some((&start, &len)) = found else {
                continue;
            };
            let (from, to) = (start.max(run.start), (start + len).min(end));
            if to < end {
                let rest = Run {
                    start: to,
                    len: end - to,
                };
                self.held.push_front(rest);
            }
            let taken = Run {
                start: from,
                len: to - from,
            };
            self.cut(start, len, taken);
            self.waiting_blocks += taken.len;
            return Some(taken);
        }
        None
    }

    fn add(&mut self, run: Run) {
        self.bare = self.bare.min(run.start);
        let (mut start, mut end) = (run.start, run.start + run.len);
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        self.free.insert(start, end - start);
        self.free_blocks += run.len;
    }

    /// Free runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.free.iter().map(|(start, len)| Run {
            start: *start,
            len: *len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_held_blocks_those_are_taken_that_are_free_still() {
        let run = |start, len| Run { start, len };
        let mut space = Space::new(100);
        space.hold(run(10, 20));
        space.hold(run(50, 5));
        // 12 .. 15 and 28 .. 32 and 50 .. 55 were given meanwhile.
        for given in [run(12, 3), run(28, 4), run(50, 5)] {
            assert_eq!(space.give(given.len, Some(given.start)), Some(given));
        }
        space.keep();
        assert_eq!(space.take_held(), Some(run(10, 2)));
        assert_eq!(space.free_blocks(), 100 - 12 - 2);
        assert_eq!(space.take_held(), Some(run(15, 13)));
        assert_eq!(space.take_held(), None);
        assert_eq!(space.waiting_blocks(), 15);
        // Nobody is given them meanwhile.
        assert_eq!(space.give(1, Some(10)), Some(run(32, 1)));
        space.settle(&[run(10, 2), run(15, 13)]);
        assert_eq!((space.waiting_blocks(), space.free_blocks()), (0, 87));
    }

    #[test]
    fn files_that_stay_do_not_scatter_over_all_blocks() {
        const PASSING: u64 = 1000;
        let mut space = Space::new(1 << 20);
        let mut last = 0;
        for round in 0..500 {
            // One file that goes, and one of a block that stays.
            let passing = space.give(PASSING, None).expect("there is room");
            let staying = space.give(1, None).expect("there is room");
            space.keep();
            space.free(passing);
            space.keep();
            let freed = space.take_freed();
            space.settle(&freed);
            last = last.max(passing.start + passing.len).max(staying.start + 1);
            assert!(
                last <= 2 * PASSING + round + 1,
                "round {round} is at block {last}"
            );
        }
    }
}
