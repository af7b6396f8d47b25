//! What members of a group say to each other.
//!
//! Between two processes messages arrive in order or the link breaks; [`Member::connected`] begins
//! again then. Each message is sent with the number of its sender's view.
//!
//! [`Member::connected`]: super::member::Member::connected

use bytes::Bytes;

use super::operation::Operation;
use super::replica::{Basis, Xid};
use super::view::View;
use crate::memory::table::Entry;

/// Longest message: the largest item of 1 MiB, and what else one message says of it.
pub const MESSAGE_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes of a unit, the smallest part of an address space that is recovered by itself.
pub const UNIT_BYTES: u64 = 4096;
/// Units that are recovered or sent together at most: 256 KiB.
pub const RUN_UNITS_MAX: u32 = 64;

/// Some units in a row, all in the same aligned [`RUN_UNITS_MAX`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Run {
    /// The first one.
    pub first: u64,
    /// How many.
    pub units: u32,
}

impl Run {
    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.first * UNIT_BYTES
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.units as usize * UNIT_BYTES as usize
    }

    /// Whether the two have a unit in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.first < other.first + u64::from(other.units)
            && other.first < self.first + u64::from(self.units)
    }
}

/// The part of a change that concerns units which are there: the others, from `units_from` on, come with it.
pub(super) fn told_part(units_from: Option<u64>, address: u64, change: &[u8]) -> &[u8] {
    let told = units_from.map(|unit| (unit * UNIT_BYTES).saturating_sub(address));
    let told = told.and_then(|told| usize::try_from(told).ok());
    &change[..told.map_or(change.len(), |told| told.min(change.len()))]
}

/// An item, as it is sent to who is told what there is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Item {
    /// Its key.
    pub key: Bytes,
    /// What is known of it.
    pub entry: Entry,
}

/// One message. `partition` is the number of a partition in the group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// The sender's view; comes before anything else that is said in it.
    View(View),
    /// From a backup: the last operation that it has, and how far it has been told what there is. From here
    /// on it takes what the owner sends.
    Have {
        /// Whose operations.
        partition: usize,
        /// The last without gaps.
        xid: Xid,
        /// What it lacks.
        lacks: Lacks,
    },
    /// An operation, the next one.
    Update {
        /// Whose.
        partition: usize,
        /// Its number.
        xid: Xid,
        /// The last one that all backups have.
        stable: Xid,
        /// What it does.
        operation: Operation,
    },
    /// All operations up to here are stable, though none follows.
    Stable {
        /// Whose.
        partition: usize,
        /// The last one.
        stable: Xid,
    },
    /// From a backup: it has all operations up to here.
    Ack {
        /// Whose.
        partition: usize,
        /// The last one.
        xid: Xid,
    },
    /// From who takes over: what is behind this operation was never acknowledged, and is dropped.
    Settle {
        /// Whose.
        partition: usize,
        /// The last one that is kept.
        stable: Xid,
    },
    /// From a backup: done.
    Settled {
        /// Whose.
        partition: usize,
    },
    /// To the leader: the partition is served, and every parity agrees about it.
    Ready {
        /// Which.
        partition: usize,
    },
    /// To the leader: the units are wanted.
    Want {
        /// Which.
        run: Run,
    },
    /// From the leader to every owner: send the units to all who recover.
    Fetch {
        /// Which attempt.
        attempt: u64,
        /// Which units.
        run: Run,
    },
    /// To who recovers: the units of a partition.
    Units {
        /// Which attempt.
        attempt: u64,
        /// Which units.
        run: Run,
        /// Whose.
        partition: usize,
        /// What they hold, or that they are lost.
        content: Content,
    },
    /// To the leader: what is left of the sender's parity without all data that are known.
    Residual {
        /// Which attempt.
        attempt: u64,
        /// Which units.
        run: Run,
        /// Bit per partition: what it is made of.
        lost: u32,
        /// The bytes.
        bytes: Bytes,
    },
    /// To the leader: owners have some of the units and lack some; ask for them one by one.
    Mixed {
        /// Which attempt.
        attempt: u64,
        /// Which units.
        run: Run,
    },
    /// From the leader: units of the receiver's partition.
    Solved {
        /// Which units.
        run: Run,
        /// Whose.
        partition: usize,
        /// The bytes.
        bytes: Bytes,
    },
    /// To who is told what there is: keys, in the order of their hashes.
    Items {
        /// Whose.
        partition: usize,
        /// The operation after which they were so.
        at: Xid,
        /// What does not depend on keys.
        basis: Basis,
        /// The receiver's cursor, if it is what the sender thinks.
        from: u64,
        /// Those from the receiver's cursor up to `end`.
        items: Vec<Item>,
        /// Where the next ones begin; none: that was all.
        end: Option<u64>,
    },
    /// To a parity that joins: units, in their order.
    Copy {
        /// Whose.
        partition: usize,
        /// The operation after which they were so.
        at: Xid,
        /// Which units.
        run: Run,
        /// Their bytes; empty: zeroes.
        bytes: Bytes,
    },
    /// An `Items` or a `Copy` has been taken.
    Taken {
        /// Whose.
        partition: usize,
    },
    /// From who has taken a partition over to who has its values: send these.
    Pull {
        /// Whose.
        partition: usize,
        /// Which units.
        run: Run,
    },
    /// The answer.
    Pulled {
        /// Whose.
        partition: usize,
        /// Which units.
        run: Run,
        /// Their bytes; empty: zeroes.
        bytes: Bytes,
    },
    /// From an owner: are we in the same view?
    Probe {
        /// Which time it is asked.
        number: u64,
    },
    /// Yes. The owner may serve reads for as long as a lease lasts from when it asked.
    Answer {
        /// That of the probe.
        number: u64,
    },
}

/// What a backup has not been told yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lacks {
    /// Keys whose hashes are not below this.
    pub keys_from: Option<u64>,
    /// Units from this one on.
    pub units_from: Option<u64>,
}

impl Lacks {
    /// It has everything.
    pub const NOTHING: Self = Self {
        keys_from: None,
        units_from: None,
    };
}

/// What an owner has of some units.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Content {
    /// Their bytes, after an operation; empty: zeroes.
    Known {
        /// Which operation.
        at: Xid,
        /// The bytes.
        bytes: Bytes,
    },
    /// They are lost.
    Lost,
}

impl Message {
    /// The partition that it is about.
    pub fn partition(&self) -> Option<usize> {
        match self {
            Self::Have { partition, .. }
            | Self::Update { partition, .. }
            | Self::Stable { partition, .. }
            | Self::Ack { partition, .. }
            | Self::Settle { partition, .. }
            | Self::Settled { partition }
            | Self::Ready { partition }
            | Self::Units { partition, .. }
            | Self::Solved { partition, .. }
            | Self::Items { partition, .. }
            | Self::Copy { partition, .. }
            | Self::Taken { partition }
            | Self::Pull { partition, .. }
            | Self::Pulled { partition, .. } => Some(*partition),
            Self::View(_)
            | Self::Want { .. }
            | Self::Fetch { .. }
            | Self::Residual { .. }
            | Self::Mixed { .. }
            | Self::Probe { .. }
            | Self::Answer { .. } => None,
        }
    }

    /// Whether only the owner of its partition says so.
    pub(super) fn is_from_owner(&self) -> bool {
        matches!(
            self,
            Self::Update { .. }
                | Self::Stable { .. }
                | Self::Settle { .. }
                | Self::Units { .. }
                | Self::Items { .. }
                | Self::Copy { .. }
        )
    }
}
