//! Virtual time: the clock that other crates read, and the queue of what happens next.
//!
//! Invariants: events come out by time, and those of one time in the order they were put in;
//! the clock never runs backwards within one network.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::connection::ConnectionId;
use super::message::MessageId;
use crate::Time;

thread_local! {
    static NOW: Cell<Time> = const { Cell::new(Time(0)) };
}

/// The virtual time of the network that moved last on this thread.
///
/// For crates that take their clock as a `fn() -> Time`.
#[must_use]
pub fn now() -> Time {
    NOW.get()
}

/// Shows this thread the time of the network that is at work.
pub(super) fn show(now: Time) {
    NOW.set(now);
}

/// Something that will happen.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Event {
    /// A message's last byte is at its receiver's card.
    Arrive(MessageId),
    /// The card has served it.
    Served(MessageId),
    /// A write whose connection broke meanwhile lands after all.
    Stray(MessageId),
    /// An endpoint that is owed answers looks how long the peer has been silent.
    Silence(ConnectionId),
    /// The client's machine gives up a connection whose other end is out of reach.
    ClientReach(ConnectionId),
    /// The host's machine does.
    HostReach(ConnectionId),
    /// The client hears that the host has closed a connection.
    Notice(ConnectionId),
}

/// What happens next, and after.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    next_number: u64,
}

impl Events {
    #[inline]
    pub(super) fn push(&mut self, time: Time, event: Event) {
        self.next_number += 1;
        self.heap.push(Reverse((time, self.next_number, event)));
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap
            .pop()
            .map(|Reverse((time, _, event))| (time, event))
    }

    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((time, ..))| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_come_in_the_order_they_were_put_in() {
        let mut events = Events::default();
        for number in [3, 1, 2] {
            events.push(Time(7), Event::Arrive(MessageId(number)));
        }
        events.push(Time(5), Event::Arrive(MessageId(9)));
        assert_eq!(events.next(), Some(Time(5)));
        let order: Vec<_> = std::iter::from_fn(|| events.pop())
            .map(|(_, event)| event)
            .collect();
        let expected = [9, 3, 1, 2].map(|number| Event::Arrive(MessageId(number)));
        assert_eq!(order, expected);
    }
}
