//! The order of one disk queue: which write may go to the disk now, and where a page's newest bytes are.
//!
//! A disk ends what it was given in any order, so a page has at most one write at the disk. Those
//! that come meanwhile wait; when the first ends, the newest of them is written and stands for
//! the others. A read that comes after a write is served from the newest write's buffer.
//!
//! Invariant I5: a read sees the newest write of its page that was put in the queue before it,
//! however late the disk is. No I/O here, and no allocation once made.

use std::collections::HashMap;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

/// Writes under way, by page.
pub struct Order {
    lines: HashMap<u64, Line>,
    /// The entry after each entry in its list.
    next: Box<[u32]>,
}

/// The writes of one page.
#[derive(Clone, Copy)]
struct Line {
    /// At the disk.
    flying: u32,
    /// Older ones that it stands for, as a list.
    riders: u32,
    /// Those that came since, oldest first, as a list and its last.
    waiting: u32,
    newest: u32,
}

const NONE: u32 = u32::MAX;

impl Order {
    /// For so many entries.
    pub fn new(entry_count: usize) -> Self {
        Self {
            // Twice what it ever holds: then it never grows.
            lines: HashMap::with_capacity(entry_count * 2),
            next: vec![NONE; entry_count].into(),
        }
    }

    /// Whether no write is under way.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// A write joins the queue; whether it may go to the disk at once.
    pub fn write(&mut self, page: u64, entry: u32) -> bool {
        self.next[entry as usize] = NONE;
        let Some(line) = self.lines.get_mut(&page) else {
            let line = Line {
                flying: entry,
                riders: NONE,
                waiting: NONE,
                newest: NONE,
            };
            self.lines.insert(page, line);
            return true;
        };
        match line.newest {
            NONE => line.waiting = entry,
            newest => self.next[newest as usize] = entry,
        }
        line.newest = entry;
        false
    }

    /// The entry of the page's write that is at the disk.
    pub fn flying(&self, page: u64) -> u32 {
        self.lines[&page].flying
    }

    /// The entry with the page's newest bytes, when they may not be on the disk yet.
    pub fn newest(&self, page: u64) -> Option<u32> {
        let line = self.lines.get(&page)?;
        Some(if line.newest == NONE {
            line.flying
        } else {
            line.newest
        })
    }

    /// The disk has ended the page's write: puts the entries that ended by it in `ended` and returns
    /// the one to write next.
    pub fn end(&mut self, page: u64, mut ended: impl FnMut(u32)) -> Option<u32> {
        let line = self.lines.get_mut(&page).expect("a write that was begun");
        let Line {
            flying,
            riders,
            waiting,
            newest,
        } = *line;
        let (next, rest) = match is_injected(InjectedFault::DiskReorders) {
            true if newest != NONE => (waiting, self.next[waiting as usize]),
            _ => (newest, waiting),
        };
        if newest == NONE {
            self.lines.remove(&page);
        } else {
            // The list of the waiting ends at its newest: the rest rides with that one.
            let riders = if rest == next { NONE } else { rest };
            *line = Line {
                flying: next,
                riders,
                waiting: NONE,
                newest: NONE,
            };
        }
        ended(flying);
        let mut rider = riders;
        while rider != NONE && rider != flying {
            let after = self.next[rider as usize];
            ended(rider);
            rider = after;
        }
        (next != NONE).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end(order: &mut Order, page: u64) -> (Vec<u32>, Option<u32>) {
        let mut ended = Vec::new();
        let next = order.end(page, |entry| ended.push(entry));
        ended.sort_unstable();
        (ended, next)
    }

    #[test]
    fn one_write_of_a_page_is_at_the_disk_and_the_newest_stands_for_the_rest() {
        let mut order = Order::new(8);
        assert!(order.write(5, 0));
        assert!(!order.write(5, 1));
        assert!(!order.write(5, 2));
        assert!(order.write(6, 3), "another page does not wait");
        assert_eq!(order.newest(5), Some(2));
        assert_eq!(end(&mut order, 5), (vec![0], Some(2)));
        assert_eq!(order.newest(5), Some(2));
        assert!(!order.write(5, 4));
        assert_eq!(end(&mut order, 5), (vec![1, 2], Some(4)));
        assert_eq!(end(&mut order, 5), (vec![4], None));
        assert_eq!(order.newest(5), None);
        assert!(!order.is_empty());
        assert_eq!(end(&mut order, 6), (vec![3], None));
        assert!(order.is_empty());
    }

    proptest! {
        /// Against a model that keeps a plain list of writes per page.
        #[test]
        fn every_entry_ends_once_and_never_before_a_write_as_new_as_it_reached_the_disk(
            steps in proptest::collection::vec((0_u64..4, any::<bool>()), 1..200),
        ) {
            let mut order = Order::new(32);
            let mut free: Vec<u32> = (0..32).collect();
            // Per page: entries not ended, oldest first, and the one at the disk.
            let mut open: Vec<Vec<u32>> = vec![Vec::new(); 4];
            let mut flying: Vec<Option<u32>> = vec![None; 4];
            for (page, is_write) in steps {
                let at = page as usize;
                if is_write {
                    let Some(entry) = free.pop() else { continue };
                    open[at].push(entry);
                    let now = order.write(page, entry);
                    prop_assert_eq!(now, flying[at].is_none());
                    if now {
                        flying[at] = Some(entry);
                    }
                } else if let Some(at_disk) = flying[at] {
                    let mut ended = Vec::new();
                    let next = order.end(page, |entry| ended.push(entry));
                    let reached = open[at].iter().position(|&entry| entry == at_disk).unwrap();
                    let mut expected: Vec<u32> = open[at].drain(..=reached).collect();
                    expected.sort_unstable();
                    ended.sort_unstable();
                    prop_assert_eq!(&ended, &expected);
                    free.extend(ended);
                    prop_assert_eq!(next, open[at].last().copied());
                    flying[at] = next;
                }
                prop_assert_eq!(order.newest(page), open[at].last().copied());
            }
        }
    }
}
