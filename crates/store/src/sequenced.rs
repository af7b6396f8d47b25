//! Things by sequence, of which most come and go in turn: a ring, and beside it a tree of the few that stay.
//!
//! A tree alone moves its leaves' contents for each that goes at its front, and one thread's nodes are
//! another's: puts of small values took a quarter of the server's time there.

use std::collections::{BTreeMap, VecDeque};

/// Things by ascending sequences. Takes memory for so many as are there, about, whatever goes first.
#[derive(Clone, Debug)]
pub(crate) struct Sequenced<T> {
    /// Those that stayed when most of what came after them had gone: all are before the ring's.
    stragglers: BTreeMap<u64, T>,
    /// Sequences from `first` on. Begins with one that is there.
    ring: VecDeque<Option<T>>,
    first: u64,
    /// How many of the ring are there.
    count: usize,
}

/// Places of the ring that may be empty beside as many as are not.
const EMPTY_MAX: usize = 1024;

impl<T> Default for Sequenced<T> {
    fn default() -> Self {
        Self {
            stragglers: BTreeMap::new(),
            ring: VecDeque::new(),
            first: 0,
            count: 0,
        }
    }
}

impl<T> Sequenced<T> {
    pub fn len(&self) -> usize {
        self.stragglers.len() + self.count
    }

    /// Adds one, which is most often the newest, or puts it in another's place.
    pub fn insert(&mut self, sequence: u64, one: T) {
        if self.count == 0 && self.stragglers.keys().next_back() < Some(&sequence) {
            self.first = sequence;
        }
        let Some(place) = self.place(sequence) else {
            self.stragglers.insert(sequence, one);
            return;
        };
        if place > self.ring.len() + EMPTY_MAX {
            self.leave_behind(self.ring.len());
            self.first = sequence;
        }
        let place = (sequence - self.first) as usize;
        if place >= self.ring.len() {
            self.ring.resize_with(place + 1, || None);
        }
        if self.ring[place].replace(one).is_none() {
            self.count += 1;
        }
        self.trim();
    }

    pub fn get(&self, sequence: u64) -> Option<&T> {
        match self.place(sequence) {
            Some(place) => self.ring.get(place)?.as_ref(),
            None => self.stragglers.get(&sequence),
        }
    }

    pub fn get_mut(&mut self, sequence: u64) -> Option<&mut T> {
        match self.place(sequence) {
            Some(place) => self.ring.get_mut(place)?.as_mut(),
            None => self.stragglers.get_mut(&sequence),
        }
    }

    pub fn remove(&mut self, sequence: u64) -> Option<T> {
        let Some(place) = self.place(sequence) else {
            return self.stragglers.remove(&sequence);
        };
        let one = self.ring.get_mut(place)?.take()?;
        self.count -= 1;
        self.trim();
        Some(one)
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        self.from(0)
    }

    /// Those from a sequence on, the oldest first.
    pub fn from(&self, start: u64) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        let stragglers = self.stragglers.range(start..);
        let stragglers = stragglers.map(|(sequence, one)| (*sequence, one));
        let skipped = self.place(start).unwrap_or(0).min(self.ring.len());
        let first = self.first + skipped as u64;
        let ring = self.ring.range(skipped..).enumerate();
        let ring = ring.filter_map(move |(place, one)| Some((first + place as u64, one.as_ref()?)));
        stragglers.chain(ring)
    }

    /// Where in the ring; `None`: it is no place of the ring.
    fn place(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.first)?).ok()
    }

    /// Ends what is empty at the front, and leaves the first behind while most of the others are empty.
    fn trim(&mut self) {
        if self.count == 0 {
            self.ring.clear();
        }
        while let Some(front) = self.ring.front()
            && (front.is_none() || self.ring.len() > 2 * self.count + EMPTY_MAX)
        {
            self.leave_behind(1);
        }
    }

    /// The ring begins so many places later.
    fn leave_behind(&mut self, places: usize) {
        for _ in 0..places {
            if let Some(one) = self.ring.pop_front().flatten() {
                self.stragglers.insert(self.first, one);
                self.count -= 1;
            }
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_that_stays_takes_no_room_for_those_that_went_after_it() {
        let mut all = Sequenced::default();
        for sequence in 1..=100_000 {
            all.insert(sequence, sequence);
            if sequence % 1000 != 1 {
                assert_eq!(all.remove(sequence), Some(sequence));
            }
            assert!(all.ring.len() <= 2 * all.count + EMPTY_MAX);
        }
        assert_eq!(all.len(), 100);
        let left: Vec<u64> = all.iter().map(|(sequence, _)| sequence).collect();
        assert_eq!(left, (1..=100_000).step_by(1000).collect::<Vec<_>>());
        // A restart begins far behind.
        all.insert(1 << 40, 0);
        assert_eq!(all.iter().next_back(), Some((1 << 40, &0)));
        assert!(all.ring.len() <= 2 * all.count + EMPTY_MAX);
    }

    proptest! {
        #[test]
        fn it_does_what_a_tree_does(steps in prop::collection::vec((0..6_u8, 0..3000_u64), 1..400)) {
            let (mut ours, mut tree) = (Sequenced::default(), BTreeMap::new());
            let mut next = 1;
            for (step, number) in steps {
                match step {
                    0 => next += number,
                    5 => {
                        let some = next.saturating_sub(number);
                        ours.insert(some, number);
                        tree.insert(some, number);
                        next = next.max(some + 1);
                    }
                    1 | 2 => {
                        for _ in 0..number % 64 {
                            ours.insert(next, next);
                            tree.insert(next, next);
                            next += 1;
                        }
                    }
                    _ => {
                        let some: Vec<u64> = match step {
                            3 => tree.keys().take(number as usize % 64).copied().collect(),
                            _ => tree.keys().rev().skip(1).step_by(3).copied().collect(),
                        };
                        for sequence in some {
                            prop_assert_eq!(ours.remove(sequence), tree.remove(&sequence));
                            prop_assert_eq!(ours.remove(sequence), None);
                        }
                    }
                }
                let asked = next.saturating_sub(number);
                prop_assert_eq!(ours.get(asked), tree.get(&asked));
                prop_assert_eq!(ours.get_mut(asked), tree.get_mut(&asked));
                prop_assert_eq!(ours.len(), tree.len());
                prop_assert!(ours.iter().eq(tree.iter().map(|(sequence, one)| (*sequence, one))));
                let those = tree.range(asked..).map(|(sequence, one)| (*sequence, one));
                prop_assert!(ours.from(asked).eq(those));
                prop_assert!(ours.iter().rev().eq(tree.iter().rev().map(|(one, other)| (*one, other))));
                prop_assert!(ours.ring.len() <= 2 * ours.count + EMPTY_MAX);
            }
        }
    }
}
