//! One region: its copies, what clients may do, and the relocation that is under way.

use std::collections::BTreeSet;

use cenote_fabric::Time;
use cenote_pool::control::Window;

use super::hosts::HostIndex;

/// The slabs of one host that hold a region.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Copy {
    /// The host.
    pub host: HostIndex,
    /// One window per slab, in the order of the region's bytes.
    pub windows: Vec<Window>,
    /// Its host wants it back.
    pub(super) is_wanted_back: bool,
    /// An earlier owner's, whose windows are not known yet.
    pub(super) is_recovered: bool,
}

impl Copy {
    /// Slabs of a host.
    #[must_use]
    pub fn new(host: HostIndex, windows: Vec<Window>) -> Self {
        Self {
            host,
            windows,
            is_wanted_back: false,
            is_recovered: false,
        }
    }
}

/// What clients may do with a region.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Access {
    /// Nothing: it has no memory. Requests wait.
    #[default]
    Absent = 0,
    /// Read. Writes wait.
    Frozen = 1,
    /// Read the first copy and write to all.
    Open = 2,
    /// Nothing, ever: it was cut off.
    Cut = 3,
}

/// What a client is told of a region. A higher generation replaces a lower one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The region.
    pub region: u32,
    /// Counts the changes of its entry, from 1.
    pub generation: u64,
    /// What a client may do.
    pub access: Access,
    /// Where it is, best first.
    pub copies: Vec<Copy>,
    /// How many times its bytes were lost. It holds zeros after each.
    pub losses: u32,
}

/// Where a region's relocation is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stage {
    /// Nothing is under way.
    Open,
    /// Memory is asked for.
    Placing,
    /// Memory is there; its hosts are busy with another region.
    Ready,
    /// Clients end their writes.
    Draining,
    /// The new host reads the old one.
    Filling,
    /// Clients turn to the new copies.
    Switching,
}

/// What is under way for a region.
#[derive(Debug, Default)]
pub(super) enum Task {
    #[default]
    None,
    Placing(Placing),
    Ready(Target),
    Draining(Target),
    Filling(Filling),
    Switching,
}

/// New memory for a region, with what it replaces.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub copy: Copy,
    /// The copy that goes once this is filled; none: it is one more.
    pub replaces: Option<HostIndex>,
}

/// Memory that is asked for.
#[derive(Debug)]
pub(super) struct Placing {
    pub host: HostIndex,
    pub replaces: Option<HostIndex>,
    /// Number of the request for the first slab; the others follow.
    pub first_request: u64,
    pub windows: Vec<Option<Window>>,
}

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct Filling {
    pub target: Target,
    /// First byte of the region that nobody was told to fill.
    pub next: u64,
    /// Fills under way: number and first byte of each.
    pub under_way: Vec<(u64, u64)>,
    /// First bytes of fills that failed.
    pub failed: BTreeSet<u64>,
    pub failures: u32,
    /// Nothing is asked for before.
    pub resume_at: Time,
}

/// One region.
#[derive(Debug, Default)]
pub(super) struct Region {
    pub generation: u64,
    pub access: Access,
    /// All of them hold the newest bytes.
    pub copies: Vec<Copy>,
    /// Given back once every client knows that they do not count.
    pub retiring: Vec<Copy>,
    pub losses: u32,
    pub task: Task,
    /// When clients were told of this generation; `None`: just now.
    pub told_at: Option<Time>,
}

impl Region {
    pub fn fresh() -> Self {
        Self {
            generation: 1,
            ..Self::default()
        }
    }

    pub fn recovered(entry: Entry) -> Self {
        let recover = |mut copy: Copy| {
            copy.is_recovered = true;
            copy
        };
        Self {
            // Another entry than the one that clients know.
            generation: entry.generation + 1,
            access: match entry.access {
                Access::Cut => Access::Cut,
                _ => Access::Absent,
            },
            copies: entry.copies.into_iter().map(recover).collect(),
            losses: entry.losses,
            task: Task::Switching,
            ..Self::default()
        }
    }

    pub fn stage(&self) -> Stage {
        match self.task {
            Task::None => Stage::Open,
            Task::Placing(_) => Stage::Placing,
            Task::Ready(_) => Stage::Ready,
            Task::Draining(_) => Stage::Draining,
            Task::Filling(_) => Stage::Filling,
            Task::Switching => Stage::Switching,
        }
    }

    pub fn entry(&self, region: usize) -> Entry {
        Entry {
            region: u32::try_from(region).expect("at most 2^16 regions"),
            generation: self.generation,
            access: self.access,
            copies: self.copies.clone(),
            losses: self.losses,
        }
    }

    pub fn is_cut(&self) -> bool {
        self.access == Access::Cut
    }

    /// The memory that is being filled, or is to be.
    pub fn target(&self) -> Option<&Target> {
        match &self.task {
            Task::Ready(target) | Task::Draining(target) => Some(target),
            Task::Filling(filling) => Some(&filling.target),
            Task::None | Task::Placing(_) | Task::Switching => None,
        }
    }

    /// The host that is to hold it.
    pub fn target_host(&self) -> Option<HostIndex> {
        match &self.task {
            Task::Placing(placing) => Some(placing.host),
            _ => self.target().map(|target| target.copy.host),
        }
    }

    /// The copy that a fill reads.
    pub fn source(&self) -> Option<&Copy> {
        self.copies.first()
    }

    /// Whether it has memory of this kind, of whatever use.
    pub fn holds(&self, is_meant: impl Fn(&Copy) -> bool) -> bool {
        let target = self.target().map(|target| &target.copy);
        self.copies
            .iter()
            .chain(&self.retiring)
            .chain(target)
            .any(is_meant)
    }
}
