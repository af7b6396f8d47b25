//! A set of sequences that come in turn, as a client's versions do, and of which most go in turn.
//!
//! Far from all that there are: a ring with a place for each, as [`Sequenced`](crate::sequenced::Sequenced)
//! has, would be nearly empty. So it is one run of memory in order, in place of a tree whose nodes one
//! thread makes and another takes apart.

use std::collections::VecDeque;

/// Sequences, ascending. What comes last and goes first costs the same however many there are; what goes
/// from between leaves an empty place until half of them are empty. What comes between has others move.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceSet {
    /// Ascending; the first and the last are there.
    places: VecDeque<Place>,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    sequence: u64,
    is_there: bool,
}

/// Empty places that are no reason to look for them.
const EMPTY_MAX: usize = 64;

impl SequenceSet {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn first(&self) -> Option<u64> {
        Some(self.places.front()?.sequence)
    }

    pub fn last(&self) -> Option<u64> {
        Some(self.places.back()?.sequence)
    }

    /// Adds one, the newest as a rule.
    pub fn insert(&mut self, sequence: u64) {
        let is_there = true;
        let place = Place { sequence, is_there };
        if self.last() < Some(sequence) {
            self.places.push_back(place);
            self.count += 1;
            return;
        }
        match self.find(sequence) {
            Ok(at) => self.count += usize::from(!self.set(at, true)),
            Err(at) => {
                self.places.insert(at, place);
                self.count += 1;
            }
        }
    }

    /// Takes one away, the oldest as a rule; `false`: it was not there.
    pub fn remove(&mut self, sequence: u64) -> bool {
        let Ok(at) = (match self.first() == Some(sequence) {
            true => Ok(0),
            false => self.find(sequence),
        }) else {
            return false;
        };
        let was_there = self.set(at, false);
        self.count -= usize::from(was_there);
        self.trim();
        was_there
    }

    /// All, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> {
        let places = self.places.iter().filter(|place| place.is_there);
        places.map(|place| place.sequence)
    }

    fn find(&self, sequence: u64) -> Result<usize, usize> {
        let places = &self.places;
        places.binary_search_by_key(&sequence, |place| place.sequence)
    }

    /// Whether one is there from now on; whether it was.
    fn set(&mut self, at: usize, is_there: bool) -> bool {
        std::mem::replace(&mut self.places[at].is_there, is_there)
    }

    fn trim(&mut self) {
        let is_empty = |place: &mut Place| !place.is_there;
        while self.places.pop_front_if(is_empty).is_some() {}
        while self.places.pop_back_if(is_empty).is_some() {}
        if self.places.len() > 2 * self.count + EMPTY_MAX {
            self.places.retain(|place| place.is_there);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_tree_does(steps in prop::collection::vec((0..5_u8, 0..300_u64), 1..400)) {
            let (mut ours, mut tree) = (SequenceSet::default(), BTreeSet::new());
            let mut next = 1;
            for (step, number) in steps {
                match step {
                    0 => for _ in 0..number {
                        ours.insert(next);
                        tree.insert(next);
                        next += 1 + number % 3;
                    },
                    1 => {
                        let some = next.saturating_sub(number);
                        ours.insert(some);
                        tree.insert(some);
                        next = next.max(some + 1);
                    }
                    2 => prop_assert_eq!(ours.remove(number), tree.remove(&number)),
                    _ => {
                        let some: Vec<u64> = match step {
                            3 => tree.iter().take(number as usize).copied().collect(),
                            _ => tree.iter().rev().skip(1).step_by(3).copied().collect(),
                        };
                        for sequence in some {
                            prop_assert!(ours.remove(sequence) && tree.remove(&sequence));
                            prop_assert!(!ours.remove(sequence));
                        }
                    }
                }
                prop_assert_eq!(ours.len(), tree.len());
                prop_assert_eq!(ours.first(), tree.first().copied());
                prop_assert_eq!(ours.last(), tree.last().copied());
                prop_assert!(ours.iter().eq(tree.iter().copied()));
                prop_assert!(ours.places.len() <= 2 * ours.count + EMPTY_MAX);
            }
        }
    }
}
