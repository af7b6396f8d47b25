//! Who waits for room in one part of the memory for clients, and whose turn is next.
//!
//! First come, first served among the clients of one source; sources take turns, one client each. So a
//! newcomer waits for one client of each other source at the most, however many clients those have.
//!
//! Pure. Every operation costs O(log n) of the clients that wait.

use std::collections::{BTreeMap, HashMap};

use cenote_fabric::strangers::Source;

/// A client that waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Waiter {
    pub(super) source: Source,
    pub(super) place: usize,
    /// Bytes that it is to hold then.
    pub(super) wanted: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When each client came, by its place.
    places: HashMap<usize, (Source, u64)>,
    queues: BTreeMap<Source, Queue>,
    /// Sources that wait, the next one first.
    rotation: BTreeMap<u64, Source>,
    /// Rises with each client that comes and each turn that is given.
    clock: u64,
}

/// Clients of one source, never none.
#[derive(Debug)]
struct Queue {
    /// Where it stands in the rotation.
    turn: u64,
    /// By when they came.
    waiters: BTreeMap<u64, Waiter>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.rotation.is_empty()
    }

    /// A client waits from now on.
    ///
    /// # Panics
    /// It does already.
    pub(super) fn push(&mut self, waiter: Waiter) {
        self.clock += 1;
        let now = self.clock;
        let before = self.places.insert(waiter.place, (waiter.source, now));
        assert!(before.is_none(), "a client waits once in each part");
        let queue = self.queues.entry(waiter.source).or_insert_with(|| {
            self.rotation.insert(now, waiter.source);
            Queue {
                turn: now,
                waiters: BTreeMap::new(),
            }
        });
        queue.waiters.insert(now, waiter);
    }

    /// The client that has waited longest of each source, in the order of the sources' turns.
    pub(super) fn fronts(&self) -> impl Iterator<Item = Waiter> {
        self.rotation.values().filter_map(|source| {
            let (_, first) = self.queues.get(source)?.waiters.first_key_value()?;
            Some(*first)
        })
    }

    /// Whose turn it is.
    pub(super) fn front(&self) -> Option<Waiter> {
        self.fronts().next()
    }

    /// A client has had its turn: its source's next one comes after those of all others.
    pub(super) fn take(&mut self, place: usize) {
        let Some(source) = self.remove(place) else {
            return;
        };
        if let Some(queue) = self.queues.get_mut(&source) {
            self.clock += 1;
            self.rotation.remove(&queue.turn);
            queue.turn = self.clock;
            self.rotation.insert(queue.turn, source);
        }
    }

    /// A client waits no more, and its source keeps its turn if others of it wait. Returns that source.
    pub(super) fn remove(&mut self, place: usize) -> Option<Source> {
        let (source, came) = self.places.remove(&place)?;
        let queue = self.queues.get_mut(&source)?;
        queue.waiters.remove(&came);
        if queue.waiters.is_empty() {
            self.rotation.remove(&queue.turn);
            self.queues.remove(&source);
        }
        Some(source)
    }

    /// Sources that wait.
    pub(super) fn sources(&self) -> impl Iterator<Item = Source> {
        self.queues.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn waiter(user: u32, place: usize) -> Waiter {
        Waiter {
            source: Source::User(user),
            place,
            wanted: place + 1,
        }
    }

    fn order(turns: &mut Turns) -> Vec<usize> {
        let mut order = Vec::new();
        while let Some(front) = turns.front() {
            turns.take(front.place);
            order.push(front.place);
        }
        order
    }

    #[test]
    fn sources_take_turns_and_each_has_its_own_order() {
        let mut turns = Turns::default();
        for (user, place) in [(1, 9), (1, 3), (1, 5), (2, 7), (2, 1), (3, 0)] {
            turns.push(waiter(user, place));
        }
        assert_eq!(order(&mut turns), [9, 7, 0, 3, 1, 5]);
        assert!(turns.is_empty() && turns.places.is_empty() && turns.queues.is_empty());
    }

    #[test]
    fn a_newcomer_comes_after_one_of_ten_thousand_of_another_source() {
        let mut turns = Turns::default();
        (0..10_000).for_each(|place| turns.push(waiter(1, place)));
        turns.push(waiter(2, 10_000));
        assert_eq!(turns.remove(0), Some(Source::User(1)), "it keeps its turn");
        let order = order(&mut turns);
        assert_eq!((order[0], order[1], order.len()), (1, 10_000, 10_000));
    }

    #[test]
    fn a_source_that_comes_again_and_again_gets_no_more_turns() {
        let mut turns = Turns::default();
        (0..4).for_each(|place| turns.push(waiter(1, place)));
        for place in 10..13 {
            turns.push(waiter(2, place));
            let fronts = [0, 1].map(|_| {
                let front = turns.front().expect("both wait").place;
                turns.take(front);
                front
            });
            assert_eq!(fronts, [place - 10, place]);
        }
    }

    proptest! {
        /// Against lists that are searched.
        #[test]
        fn equals_lists_of_lists(steps in proptest::collection::vec((0..3_u8, 0..4_u32, 0..20_usize), 0..200)) {
            let mut turns = Turns::default();
            let mut model: VecDeque<(u32, VecDeque<usize>)> = VecDeque::new();
            for (step, user, place) in steps {
                let waits = model.iter().any(|(_, places)| places.contains(&place));
                match step {
                    0 if !waits => {
                        turns.push(waiter(user, place));
                        match model.iter_mut().find(|(of, _)| *of == user) {
                            Some((_, places)) => places.push_back(place),
                            None => model.push_back((user, [place].into())),
                        }
                    }
                    1 => {
                        let front = turns.front();
                        prop_assert_eq!(front.is_some(), !model.is_empty());
                        if let Some((of, mut places)) = model.pop_front() {
                            let first = places.pop_front().unwrap();
                            prop_assert_eq!(front, Some(waiter(of, first)));
                            turns.take(first);
                            if !places.is_empty() {
                                model.push_back((of, places));
                            }
                        }
                    }
                    _ => {
                        prop_assert_eq!(turns.remove(place).is_some(), waits);
                        model.iter_mut().for_each(|(_, places)| places.retain(|one| *one != place));
                        model.retain(|(_, places)| !places.is_empty());
                    }
                }
                let fronts: Vec<_> = turns.fronts().map(|front| front.place).collect();
                let expected: Vec<_> = model.iter().map(|(_, places)| places[0]).collect();
                prop_assert_eq!(fronts, expected);
            }
        }
    }
}
