//! READs that are fetched in two parts, with time between: what a network card may do.
//!
//! Verbs of one connection take effect in their order all the same: what came behind such a READ
//! waits until its second part was fetched.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::clock::Event;
use super::message::{Body, MessageId};
use super::net::{Net, NodeId, Serving};
use super::state::State;
use super::trace::Kind;

/// READs whose bytes are not of one moment. Words of 8 bytes are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Torn {
    /// Those that are, of a million.
    pub chance_ppm: u32,
    /// Longest time between the two parts.
    pub delay_ns_max: u64,
}

/// A READ of which one part was fetched, and what waits behind it.
pub(super) struct Tearing {
    message: MessageId,
    rest: Range<usize>,
    behind: VecDeque<MessageId>,
}

/// What a message may do now.
pub(super) enum Turn {
    /// It comes for the first time.
    First,
    /// The rest of a READ is to be fetched.
    Rest(Range<usize>, VecDeque<MessageId>),
    /// It waits.
    Later,
}

impl Net {
    /// Says which READs are torn; `None`, as at first: none is.
    pub fn set_torn_reads(&self, torn: Option<Torn>) {
        self.lock().torn_reads = torn;
    }
}

impl State {
    /// Whether a message for a host can be taken now.
    pub(super) fn turn_of(&mut self, id: MessageId) -> Turn {
        let connection_id = self.messages.at(id).connection;
        let connection = self.connections.at_mut(connection_id);
        let host = connection.host;
        let is_alive = connection.host_open;
        let data = connection.data();
        let is_data = data.is_some();
        let tearing = data.and_then(|data| data.tearing.as_mut());
        if let Some(tearing) = tearing
            && tearing.message != id
        {
            tearing.behind.push_back(id);
            return Turn::Later;
        }
        let node = &mut self.nodes[host.0 as usize];
        if is_alive && is_data && node.is_up && node.is_paused && node.serving == Serving::Agent {
            node.held.push(Event::Served(id));
            return Turn::Later;
        }
        let data = self.connections.at_mut(connection_id).data();
        match data.and_then(|data| data.tearing.take()) {
            Some(tearing) => Turn::Rest(tearing.rest, tearing.behind),
            None => Turn::First,
        }
    }

    /// What of a verb takes effect now. The rest of a READ that is torn does later.
    pub(super) fn part_of(&mut self, host: NodeId, id: MessageId) -> (Range<usize>, bool) {
        let message = self.messages.at(id);
        let len = message.len_bytes;
        let whole = (0..len, true);
        let Some(torn) = self.torn_reads.filter(|_| message.body == Body::Read) else {
            return whole;
        };
        // Where a word begins.
        let first = (8 - message.offset % 8) as usize % 8;
        let words = len.saturating_sub(first) / 8;
        let connection_id = message.connection;
        if words < 2 || !self.random.happens(torn.chance_ppm) {
            return whole;
        }
        let cut = first + 8 * (1 + self.random.below(words as u64 - 1) as usize);
        let (now, rest) = match self.random.below(2) {
            0 => (0..cut, cut..len),
            _ => (cut..len, 0..cut),
        };
        let delay = Duration::from_nanos(1 + self.random.below(torn.delay_ns_max.max(1)));
        self.trace(Kind::Fault, host, 15, cut as u64);
        let tearing = Tearing {
            message: id,
            rest,
            behind: VecDeque::new(),
        };
        self.connections
            .at_mut(connection_id)
            .data()
            .expect("verbs travel on data connections")
            .tearing = Some(tearing);
        self.events.push(self.now.after(delay), Event::Served(id));
        (now, false)
    }
}

impl Tearing {
    /// The connection is over: what waited is lost.
    pub(super) fn into_behind(self) -> VecDeque<MessageId> {
        self.behind
    }
}
