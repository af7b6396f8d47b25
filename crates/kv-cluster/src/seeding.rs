//! What a node knows of losses of the store's data, and how far the [seeder](super::seeder) is with giving it back.

use std::collections::BTreeMap;

use super::NodeId;

/// What a process says of itself when it is asked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Testimony {
    /// The seed of which all its lanes have heard; 0: none.
    pub seed: u64,
    /// By group: the number of its view.
    pub views: BTreeMap<usize, u32>,
}

/// How far the seeding is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum State {
    /// The store has what it is to have.
    #[default]
    Kept,
    /// It seemed to lack some of it: what was told may be older than what is known, so it is asked.
    Doubted,
    /// It lacks some of it.
    Lost,
    /// It is another cluster's of the same name: nothing in it is this one's.
    Foreign,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Seeding {
    pub(super) state: State,
    /// Of the marks that this node writes: each loss has one of its own.
    random: u64,
    /// How many losses it has noticed.
    pub(super) losses: u64,
    /// The mark of the last seeding that this node has heard of.
    pub(super) seed: Option<u64>,
    /// The greatest incarnation of each node that was ever heard of.
    pub(super) incarnations: BTreeMap<NodeId, u64>,
    /// When this node may next try to write views.
    pub(super) due: u64,
    pub(super) has_views_to_write: bool,
}

impl Seeding {
    /// `random` is of marks.
    pub(super) fn new(random: u64) -> Self {
        Self {
            random,
            ..Self::default()
        }
    }

    /// Whether the store is another cluster's now.
    pub(super) fn set_foreign(&mut self, is_foreign: bool) {
        match (self.state, is_foreign) {
            (State::Kept | State::Doubted | State::Lost, true) => {
                tracing::error!("etcd has another cluster of this name: nothing is changed there");
                self.state = State::Foreign;
            }
            (State::Foreign, false) => self.state = State::Kept,
            _ => {}
        }
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.state == State::Foreign
    }

    /// The store seems to have lost its data.
    pub(super) fn doubt(&mut self) {
        if self.state == State::Kept {
            self.state = State::Doubted;
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        matches!(self.state, State::Doubted | State::Lost) || self.has_views_to_write
    }

    /// The mark of the loss that was noticed last: nobody has heard of it before.
    pub(super) fn mark(&self) -> u64 {
        let bytes = [self.random, self.losses].map(u64::to_le_bytes).concat();
        // Zero says that there was none.
        cenote_codec::xxh3(&bytes) | 1
    }

    /// Whether the store was seeded once: what it does not have may have been there.
    pub(super) fn is_seeded(&self) -> bool {
        self.seed.is_some()
    }

    pub(super) fn note_incarnation(&mut self, node: NodeId, incarnation: u64) {
        let known = self.incarnations.entry(node).or_default();
        *known = incarnation.max(*known);
    }

    /// Takes the mark; it is returned if it is another one.
    pub(super) fn take(&mut self, value: &[u8]) -> Option<u64> {
        let seed = std::str::from_utf8(value).ok()?.parse().ok()?;
        let before = self.seed.replace(seed);
        (before != Some(seed)).then_some(seed)
    }
}
