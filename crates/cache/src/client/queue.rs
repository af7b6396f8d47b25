//! The order of requests for one region: which of their parts may be started, and what each other
//! one waits for.
//!
//! Pure bookkeeping; whether the region takes requests at all is the client's to know. Parts that
//! overlap, one of them a write, go in the order of their submission. One that has to wait for
//! others waits behind the newest of these, and is looked at again when that one has ended: nobody
//! walks what waits, however much that is.
//!
//! ```text
//! BEHIND -> READY -> UNDER WAY -> ended      READY <-> LACKING: its slab's window is not attached
//!             ^----------'  done again
//! ```
//!
//! Invariant: a part is behind another exactly while an older one that it conflicts with has not
//! ended. So no two conflict of those that are ready, lacking or under way.

use std::collections::{BTreeMap, BTreeSet};

use crate::injected_faults::{InjectedFault, is_injected};

/// The bytes of a part, and what it does with them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span {
    pub slab: usize,
    pub offset: u64,
    pub len_bytes: u64,
    pub is_write: bool,
}

/// Which parts may be started now.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lets {
    pub reads: bool,
    pub writes: bool,
}

/// Slab, offset, end and number: parts of the same bytes stand together, in their order.
type PartKey = (usize, u64, u64, u64);

/// See the module's text. Parts are named by numbers that grow with each submission.
#[derive(Debug, Default)]
pub struct Queue {
    /// Parts that have not ended.
    reads: BTreeSet<PartKey>,
    writes: BTreeSet<PartKey>,
    /// At least the longest of them.
    longest: u64,
    ready_reads: BTreeSet<u64>,
    ready_writes: BTreeSet<u64>,
    /// By slab: those whose window is not attached, and whether they write.
    lacking: BTreeSet<(usize, u64, bool)>,
    /// What each waits behind.
    leaders: BTreeMap<u64, u64>,
    followers: BTreeMap<(u64, u64), Span>,
    under_way: BTreeSet<u64>,
}

impl Queue {
    /// A new part; whether it is ready, and nothing of its kind is ready before it.
    pub fn add(&mut self, number: u64, span: Span) -> bool {
        if self.reads.is_empty() && self.writes.is_empty() {
            self.longest = 0;
        }
        self.longest = self.longest.max(span.len_bytes);
        self.wait_or_be_ready(number, span);
        self.places(span.is_write).insert(place(number, span));
        self.ready(span.is_write).first() == Some(&number)
    }

    /// The first after `last` that is ready and may be started.
    pub fn next_ready(&self, last: Option<u64>, lets: Lets) -> Option<u64> {
        let kinds = [
            (lets.reads, &self.ready_reads),
            (lets.writes, &self.ready_writes),
        ];
        let ready = kinds
            .into_iter()
            .filter_map(|(is_let, of)| is_let.then_some(of));
        let next = if is_injected(InjectedFault::QueueReordered) {
            let end = last.unwrap_or(u64::MAX);
            ready.filter_map(|of| of.range(..end).next_back()).max()
        } else {
            let from = last.map_or(0, |last| last + 1);
            ready.filter_map(|of| of.range(from..).next()).min()
        };
        next.copied().inspect(|_| note_look())
    }

    pub fn has_ready(&self) -> bool {
        !self.ready_reads.is_empty() || !self.ready_writes.is_empty()
    }

    /// One that was ready was started.
    pub fn start(&mut self, number: u64, span: Span) {
        self.ready(span.is_write).remove(&number);
        self.under_way.insert(number);
    }

    /// One that was under way is to be started again.
    pub fn restart(&mut self, number: u64, span: Span) {
        self.under_way.remove(&number);
        self.ready(span.is_write).insert(number);
    }

    /// One that was ready lacks a window.
    pub fn lack(&mut self, number: u64, span: Span) {
        self.ready(span.is_write).remove(&number);
        self.lacking.insert((span.slab, number, span.is_write));
    }

    /// A slab's window may be there now.
    pub fn note_window(&mut self, slab: usize) {
        let of_slab = (slab, 0, false)..=(slab, u64::MAX, true);
        while let Some(&one) = self.lacking.range(of_slab.clone()).next() {
            self.be_ready_again(one);
        }
    }

    /// All windows may be others now.
    pub fn note_windows(&mut self) {
        while let Some(&one) = self.lacking.first() {
            self.be_ready_again(one);
        }
    }

    /// One has ended, wherever it was.
    pub fn end(&mut self, number: u64, span: Span) {
        self.places(span.is_write).remove(&place(number, span));
        let was_behind = self.leaders.remove(&number);
        if let Some(leader) = was_behind {
            self.followers.remove(&(leader, number));
        } else if !self.under_way.remove(&number) && !self.ready(span.is_write).remove(&number) {
            self.lacking.remove(&(span.slab, number, span.is_write));
        }
        let mine = (number, 0)..=(number, u64::MAX);
        while let Some((&(leader, follower), &span)) = self.followers.range(mine.clone()).next() {
            self.followers.remove(&(leader, follower));
            self.leaders.remove(&follower);
            self.wait_or_be_ready(follower, span);
        }
    }

    /// Those that were not started, or are to be started again.
    pub fn waiting(&self) -> impl Iterator<Item = u64> {
        let ready = self.ready_reads.iter().chain(&self.ready_writes).copied();
        let lacking = self.lacking.iter().map(|&(_, number, _)| number);
        ready.chain(lacking).chain(self.leaders.keys().copied())
    }

    pub fn under_way(&self) -> impl Iterator<Item = &u64> {
        self.under_way.iter()
    }

    fn wait_or_be_ready(&mut self, number: u64, span: Span) {
        match self.leader(number, span) {
            Some(leader) if !is_injected(InjectedFault::QueueReordered) => {
                self.leaders.insert(number, leader);
                self.followers.insert((leader, number), span);
            }
            _ => {
                self.ready(span.is_write).insert(number);
            }
        }
    }

    /// The newest of the older parts with which one conflicts.
    fn leader(&self, number: u64, span: Span) -> Option<u64> {
        let write = newest(&self.writes, number, span, self.longest);
        match span.is_write {
            true => write.max(newest(&self.reads, number, span, self.longest)),
            false => write,
        }
    }

    fn be_ready_again(&mut self, one: (usize, u64, bool)) {
        let (_, number, is_write) = one;
        self.lacking.remove(&one);
        self.ready(is_write).insert(number);
    }

    fn ready(&mut self, is_write: bool) -> &mut BTreeSet<u64> {
        match is_write {
            true => &mut self.ready_writes,
            false => &mut self.ready_reads,
        }
    }

    fn places(&mut self, is_write: bool) -> &mut BTreeSet<PartKey> {
        match is_write {
            true => &mut self.writes,
            false => &mut self.reads,
        }
    }
}

fn place(number: u64, span: Span) -> PartKey {
    (span.slab, span.offset, span.offset + span.len_bytes, number)
}

/// The newest part before `number` that shares bytes with its span. No part is longer than
/// `longest`.
fn newest(parts: &BTreeSet<PartKey>, number: u64, span: Span, longest: u64) -> Option<u64> {
    let (slab, offset, end, _) = place(number, span);
    let mut from = (slab, offset.saturating_sub(longest), 0, 0);
    let mut newest = None;
    while let Some(&(_, begin_here, end_here, _)) = parts.range(from..(slab, end, 0, 0)).next() {
        note_look();
        let same = (slab, begin_here, end_here, 0)..(slab, begin_here, end_here, number);
        if end_here > offset
            && let Some(&(_, _, _, one)) = parts.range(same).next_back()
        {
            newest = newest.max(Some(one));
        }
        from = (slab, begin_here, end_here, u64::MAX);
    }
    newest
}

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How many parts this thread looked at: what a test counts as work.
#[cfg(test)]
pub fn looks() -> u64 {
    LOOKS.get()
}

fn note_look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Lets = Lets {
        reads: true,
        writes: true,
    };

    /// Every part that was submitted, its state as a list would have it.
    #[derive(Default)]
    struct Model {
        parts: BTreeMap<u64, (Span, bool)>,
    }

    impl Model {
        fn conflicts(a: Span, b: Span) -> bool {
            (a.is_write || b.is_write)
                && a.slab == b.slab
                && a.offset < b.offset + b.len_bytes
                && b.offset < a.offset + a.len_bytes
        }

        fn startable(&self) -> Vec<u64> {
            let is_free = |(number, (span, is_under_way)): &(&u64, &(Span, bool))| {
                let mut older = self.parts.range(..**number);
                !is_under_way && !older.any(|(_, (other, _))| Self::conflicts(*span, *other))
            };
            self.parts.iter().filter(is_free).map(|(&n, _)| n).collect()
        }
    }

    fn all_ready(queue: &Queue, lets: Lets) -> Vec<u64> {
        let first = queue.next_ready(None, lets);
        std::iter::successors(first, |&last| queue.next_ready(Some(last), lets)).collect()
    }

    /// What is done, a slab, an offset, a length, and whether it writes.
    fn steps() -> impl Strategy<Value = Vec<(u8, usize, u64, u64, bool)>> {
        let step = (0..5_u8, 0..2_usize, 0..24_u64, 1..12_u64, any::<bool>());
        prop::collection::vec(step, 1..120)
    }

    proptest! {
        #[test]
        fn a_part_is_ready_exactly_when_nothing_older_conflicts(
            steps in steps()
        ) {
            let mut queue = Queue::default();
            let mut model = Model::default();
            let mut made = 0;
            for (step, slab, offset, len_bytes, is_write) in steps {
                let pick = |of: Vec<u64>| {
                    let at = usize::try_from(offset).unwrap();
                    (!of.is_empty()).then(|| of[at % of.len()])
                };
                let under_way = || queue.under_way().copied().collect::<Vec<_>>();
                match step {
                    0 | 1 => {
                        made += 1;
                        let span = Span { slab, offset, len_bytes, is_write };
                        queue.add(made, span);
                        model.parts.insert(made, (span, false));
                    }
                    2 => if let Some(number) = pick(all_ready(&queue, ALL)) {
                        let (span, is_under_way) = model.parts.get_mut(&number).unwrap();
                        *is_under_way = true;
                        queue.start(number, *span);
                    },
                    3 => if let Some(number) = pick(under_way()) {
                        let (span, is_under_way) = model.parts.get_mut(&number).unwrap();
                        if is_write {
                            *is_under_way = false;
                            queue.restart(number, *span);
                        } else {
                            queue.end(number, *span);
                            model.parts.remove(&number);
                        }
                    },
                    _ => if let Some(number) = pick(queue.waiting().collect()) {
                        // Somebody gives up one that waits.
                        let (span, _) = model.parts.remove(&number).unwrap();
                        queue.end(number, span);
                    },
                }
                prop_assert_eq!(all_ready(&queue, ALL), model.startable());
                let waiting: BTreeSet<u64> = queue.waiting().collect();
                let of_model = model.parts.iter().filter(|(_, (_, is_under_way))| !is_under_way);
                prop_assert_eq!(waiting, of_model.map(|(&number, _)| number).collect());
            }
        }
    }

    #[test]
    fn what_lacks_a_window_comes_back_in_its_place() {
        let mut queue = Queue::default();
        let span = |slab, is_write| Span {
            slab,
            offset: 0,
            len_bytes: 8,
            is_write,
        };
        assert!(queue.add(1, span(0, false)));
        assert!(queue.add(2, span(1, true)));
        assert!(!queue.add(3, span(0, false)), "one is ready before it");
        queue.lack(1, span(0, false));
        queue.lack(2, span(1, true));
        assert_eq!(all_ready(&queue, ALL), [3]);
        queue.note_window(0);
        assert_eq!(all_ready(&queue, ALL), [1, 3]);
        queue.note_windows();
        assert_eq!(all_ready(&queue, ALL), [1, 2, 3]);
        let reads = Lets {
            reads: true,
            writes: false,
        };
        assert_eq!(all_ready(&queue, reads), [1, 3]);
        assert!(!queue.add(4, span(1, false)), "behind the write");
        queue.lack(2, span(1, true));
        queue.end(2, span(1, true));
        assert_eq!(all_ready(&queue, reads), [1, 3, 4]);
    }
}
