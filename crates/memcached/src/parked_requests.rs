//! Requests that could not be served, in their order, and whose they are.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::batch::{Asker, Ticket};

/// What a request takes beside its text.
pub(super) const ENTRY_BYTES: usize = 128;

/// A client, wherever it is.
pub(super) type Who = (Asker, u32, u32);

/// Whose request it is.
pub(super) fn who(ticket: &Ticket) -> Who {
    (ticket.asker, ticket.client, ticket.generation)
}

/// A request that could not be served.
pub(super) struct Parked {
    pub(super) ticket: Ticket,
    pub(super) text: Vec<u8>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Parking {
    queue: VecDeque<Parked>,
    /// How many of each client's are parked.
    counts: HashMap<Who, usize>,
    /// Memory of the texts of this process's clients.
    bytes: usize,
}

impl Parked {
    fn counted(&self) -> usize {
        match self.ticket.asker {
            Asker::Worker(_) => ENTRY_BYTES + self.text.len(),
            Asker::Node(_) => 0,
        }
    }
}

impl Parking {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Memory of what clients of this process have asked; other nodes bound what they ask.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether one of this client's is parked.
    pub(super) fn has(&self, who: Who) -> bool {
        !self.counts.is_empty() && self.counts.contains_key(&who)
    }

    pub(super) fn push(&mut self, parked: Parked) {
        *self.counts.entry(who(&parked.ticket)).or_default() += 1;
        self.bytes += parked.counted();
        self.queue.push_back(parked);
    }

    /// The one that has been here for longest.
    pub(super) fn pop(&mut self) -> Option<Parked> {
        let parked = self.queue.pop_front()?;
        if let Entry::Occupied(mut count) = self.counts.entry(who(&parked.ticket)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.bytes -= parked.counted();
        Some(parked)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_whose_requests_it_has(steps in proptest::collection::vec((0_u8..6, 0_u32..4), 0..60)) {
            let mut parking = Parking::default();
            let mut expected = VecDeque::new();
            for (slot, (step, client)) in steps.into_iter().enumerate() {
                let asker = if step % 2 == 0 { Asker::Worker(0) } else { Asker::Node(0) };
                let ticket = Ticket { asker, client, generation: client / 2, slot: slot as u64 };
                if step < 4 {
                    expected.push_back(ticket);
                    parking.push(Parked { ticket, text: vec![0; 7] });
                } else {
                    let parked = parking.pop().map(|parked| parked.ticket);
                    prop_assert_eq!(parked, expected.pop_front());
                }
                let is_there = expected.iter().any(|other| who(other) == who(&ticket));
                prop_assert_eq!(parking.has(who(&ticket)), is_there);
                prop_assert_eq!(parking.is_empty(), expected.is_empty());
                let own = expected.iter().filter(|other| other.asker == Asker::Worker(0));
                prop_assert_eq!(parking.bytes(), (ENTRY_BYTES + 7) * own.count());
                prop_assert_eq!(parking.counts.values().sum::<usize>(), expected.len());
            }
        }
    }
}
