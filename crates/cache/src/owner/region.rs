//! One region: its copies, what clients may do, and the relocation that is under way.

use std::collections::BTreeSet;

use cenote_fabric::Time;
use cenote_pool::control::Window;
use cenote_wire::{List, Malformed, Taken, messages};

use super::host::HostIndex;
use super::settings::REGIONS_MAX;

/// The slabs of one host that hold a region.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Copy {
    /// The host.
    pub host: HostIndex,
    /// One window per slab, in the order of the region's bytes.
    pub windows: Vec<Window>,
    pub(super) state: CopyState,
}

/// Whether a copy is to stay, and known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CopyState {
    Current,
    /// Its host wants it back, or it shares its failure domain with another copy.
    WantedBack,
    /// An earlier owner's, or its host fell silent while they were renewed: its windows are learned
    /// when the host is up.
    Unlearned,
}

impl Copy {
    /// Slabs of a host.
    #[must_use]
    pub fn new(host: HostIndex, windows: Vec<Window>) -> Self {
        Self {
            host,
            windows,
            state: CopyState::Current,
        }
    }

    pub(super) fn is_unlearned(&self) -> bool {
        self.state == CopyState::Unlearned
    }
}

messages! {
    /// What clients may do with a region.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Access | "no known access" {
        /// Nothing: it has no memory. Requests wait.
        #[default]
        0 => Absent,
        /// Read. Writes wait.
        1 => Frozen,
        /// Read the first copy and write to all.
        2 => Open,
        /// Nothing, ever: it was cut off.
        3 => Cut,
    }

    /// What a client is told of a region. A higher generation replaces a lower one.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Entry checked by Entry::check {
        /// The region.
        pub region: u32,
        /// Counts the changes of its entry, from 1.
        pub generation: u64,
        /// How many times its bytes were lost. It holds zeros after each, or what a checkpoint has of it.
        pub losses: u32,
        /// Of what it holds since the last loss, when it was so, in milliseconds since 1970; 0: zeros.
        pub fell_back_ms: u64,
        /// What a client may do.
        pub access: Access,
        /// Where it is, best first.
        pub copies: Vec<Copy> as List<u8, 0, 2> | "a region of no copy, or of too many",
        /// The copy that is being made, if one is. It does not count: clients connect to it ahead, and neither
        /// read nor write it. It may change while the generation does not.
        pub next: Vec<Copy> as List<u8, 0, 1> | "a region of too many copies to come",
    }
}

impl Entry {
    fn check(&self) -> Taken<()> {
        if self.region >= REGIONS_MAX {
            return Err(Malformed("no such region"));
        }
        let is_used = matches!(self.access, Access::Frozen | Access::Open);
        if is_used && self.copies.is_empty() {
            return Err(Malformed("a region of no copy, or of too many"));
        }
        Ok(())
    }

    /// Its copies, and the one to come.
    pub fn places(&self) -> impl Iterator<Item = &Copy> {
        self.copies.iter().chain(&self.next)
    }
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
    /// Windows get new generations: a client is gone that may have writes on their way.
    Fencing,
    /// The new host reads the old one.
    Filling,
    /// Clients turn to the new copies.
    Switching,
    /// Writes are held for a checkpoint.
    Held,
    /// New memory is filled from a checkpoint.
    Restoring,
}

/// What is under way for a region.
#[derive(Debug, Default)]
pub(super) enum Task {
    #[default]
    None,
    Placing(Placing),
    Ready(Target),
    Draining(Target),
    Fencing(Fencing),
    Filling(Filling),
    Switching(Switching),
    Held(Holding),
    Restoring(Restoring),
}

/// Memory that is to hold a region, and what for.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub copy: Copy,
    pub purpose: Purpose,
    /// The host whose copy is read, where it is not the one that clients read.
    pub source: Option<HostIndex>,
}

impl Target {
    /// One that is filled from the copy that clients read.
    pub fn new(copy: Copy, purpose: Purpose) -> Self {
        Self {
            copy,
            purpose,
            source: None,
        }
    }
}

/// What a copy is made for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// It is one more.
    Add,
    /// The copy on this host goes once it is filled.
    Replace(HostIndex),
    /// It is the region's own second copy, which may differ from the first.
    Converge,
}

impl Purpose {
    /// The host that is left.
    pub fn replaces(self) -> Option<HostIndex> {
        match self {
            Self::Replace(host) => Some(host),
            Self::Add | Self::Converge => None,
        }
    }
}

/// Memory that is asked for.
#[derive(Debug)]
pub(super) struct Placing {
    pub host: HostIndex,
    pub purpose: Purpose,
    /// Number of the request for the first slab; the others follow.
    pub first_request: u64,
    pub windows: Vec<Option<Window>>,
    /// When it was asked for, or the host answered last for any of this cache's.
    pub heard_at: Time,
}

/// Windows that get new generations.
#[derive(Debug)]
pub(super) struct Fencing {
    /// What is filled then; none: nothing, and writes never stopped.
    pub target: Option<Target>,
    /// The copies as clients know them: who comes before all windows are renewed is told no new one.
    pub told: Vec<Copy>,
}

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct Filling {
    pub target: Target,
    /// First byte of the region that nobody was told to fill.
    pub next: u64,
    /// Fills under way.
    pub under_way: Vec<Fill>,
    /// First bytes of fills that failed.
    pub failed: BTreeSet<u64>,
    /// Rounds of fills that failed.
    pub failures: u32,
    /// Nothing is asked for before.
    pub resume_at: Time,
    pub begun_at: Time,
    /// When it began, or the last answer came.
    pub heard_at: Time,
}

/// Clients turn to other copies.
#[derive(Debug, Default)]
pub(super) struct Switching {
    /// Fills of a copy that counts, which nobody waits for but may land: host and request of each.
    pub quiet: Vec<(HostIndex, u64)>,
    /// When the last of these were asked for or answered.
    pub heard_at: Option<Time>,
}

/// A region whose writes are held.
#[derive(Debug)]
pub(super) struct Holding {
    /// When it opens whatever the checkpoint does.
    pub until: Time,
}

/// Memory that is filled from a checkpoint.
#[derive(Debug)]
pub(super) struct Restoring {
    pub target: Target,
    pub request: u64,
}

/// A window that is being renewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewing {
    pub region: usize,
    pub host: HostIndex,
    pub slab: usize,
    pub asked_at: Time,
}

/// One fill under way.
#[derive(Debug)]
pub(super) struct Fill {
    pub request: u64,
    /// First byte in the region.
    pub begin: u64,
    /// Failures that were counted when it was asked for: those of one round count once.
    pub round: u32,
}

/// Whether copies are what clients were told that they are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Contents {
    /// All copies are equal but for writes under way, whose clients will tell of them.
    #[default]
    Sure,
    /// A write may be in some copies alone, or land late: nobody will end it.
    Doubtful,
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
    pub fell_back_ms: u64,
    pub task: Task,
    pub contents: Contents,
    /// Newest generation under which clients may write, 0: none yet.
    pub opened_at: u64,
    /// The generation since which the contents are sure.
    pub sure_since: u64,
    /// It is not made sure before, and what is begun before is of the same wish: what was tried
    /// failed.
    pub rest_until: Time,
    /// No memory is asked for before: what the last was for failed.
    pub place_at: Time,
    /// When clients were told of this generation; `None`: just now.
    pub told_at: Option<Time>,
    /// What traces have of its task, from when memory was asked for until it is open again.
    pub span: Option<tracing::Span>,
}

impl Region {
    pub fn fresh() -> Self {
        Self {
            generation: 1,
            ..Self::default()
        }
    }

    /// Of an earlier owner, whose clients may not have ended their writes.
    pub fn recovered(entry: Entry) -> Self {
        let recover = |mut copy: Copy| {
            copy.state = CopyState::Unlearned;
            copy
        };
        Self {
            // Another entry than the one that clients know.
            generation: entry.generation + 1,
            access: match entry.access {
                Access::Cut => Access::Cut,
                _ => Access::Absent,
            },
            contents: match entry.copies[..] {
                // Its window has another generation since its host has another owner.
                [] | [_] => Contents::Sure,
                _ => Contents::Doubtful,
            },
            copies: entry.copies.into_iter().map(recover).collect(),
            losses: entry.losses,
            fell_back_ms: entry.fell_back_ms,
            task: Task::Switching(Switching::default()),
            ..Self::default()
        }
    }

    pub fn stage(&self) -> Stage {
        match self.task {
            Task::None => Stage::Open,
            Task::Placing(_) => Stage::Placing,
            Task::Ready(_) => Stage::Ready,
            Task::Draining(_) => Stage::Draining,
            Task::Fencing(_) => Stage::Fencing,
            Task::Filling(_) => Stage::Filling,
            Task::Switching(_) => Stage::Switching,
            Task::Held(_) => Stage::Held,
            Task::Restoring(_) => Stage::Restoring,
        }
    }

    pub fn entry(&self, region: usize) -> Entry {
        let copies = match &self.task {
            Task::Fencing(fencing) => &fencing.told,
            _ => &self.copies,
        };
        Entry {
            region: u32::try_from(region).expect("at most 2^16 regions"),
            generation: self.generation,
            access: self.access,
            copies: copies.clone(),
            next: self.new_copy().cloned().into_iter().collect(),
            losses: self.losses,
            fell_back_ms: self.fell_back_ms,
        }
    }

    pub fn is_cut(&self) -> bool {
        self.access == Access::Cut
    }

    /// The memory that is being filled, or is to be.
    pub fn target(&self) -> Option<&Target> {
        match &self.task {
            Task::Ready(target) | Task::Draining(target) => Some(target),
            Task::Fencing(fencing) => fencing.target.as_ref(),
            Task::Filling(filling) => Some(&filling.target),
            Task::Restoring(restoring) => Some(&restoring.target),
            Task::None | Task::Placing(_) | Task::Switching(_) | Task::Held(_) => None,
        }
    }

    /// New memory that does not count yet, unlike a copy that is made equal where it is.
    pub fn new_copy(&self) -> Option<&Copy> {
        let target = self.target()?;
        (target.purpose != Purpose::Converge).then_some(&target.copy)
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
        match self.target().and_then(|target| target.source) {
            Some(host) => self.copies.iter().find(|copy| copy.host == host),
            None => self.copies.first(),
        }
    }

    /// Copies on a host, of whatever use: 0 to 2.
    pub fn copies_on(&self, host: HostIndex) -> u32 {
        let copies = self.copies.iter().chain(&self.retiring);
        let there = copies.filter(|copy| copy.host == host).count();
        let is_target = self.target_host() == Some(host);
        u32::try_from(there).expect("a copy or two") + u32::from(is_target)
    }

    /// Whether it has memory of this kind, of whatever use.
    pub fn holds(&self, is_meant: impl Fn(&Copy) -> bool) -> bool {
        let copies = self.copies.iter().chain(&self.retiring);
        copies.chain(self.new_copy()).any(is_meant)
    }

    /// Its windows on a host, of whatever use.
    pub fn windows(&self, host: HostIndex) -> impl Iterator<Item = Window> {
        self.windows_of(host, |_| true)
    }

    /// Numbers of its windows on a host, as far as they are known.
    pub fn window_ids(&self, host: HostIndex) -> impl Iterator<Item = u32> {
        let windows = self.windows_of(host, |copy| !copy.is_unlearned());
        windows.map(|window| window.id)
    }

    fn windows_of(
        &self,
        host: HostIndex,
        is_meant: impl Fn(&Copy) -> bool,
    ) -> impl Iterator<Item = Window> {
        let placed = match &self.task {
            Task::Placing(placing) if placing.host == host => &placing.windows[..],
            _ => &[],
        };
        let copies = self.copies.iter().chain(&self.retiring);
        let copies = copies.chain(self.new_copy());
        let meant = copies.filter(move |copy| copy.host == host && is_meant(copy));
        let windows = meant.flat_map(|copy| &copy.windows);
        placed.iter().flatten().chain(windows).copied()
    }

    /// A fill was answered: which one, if its copy is still wanted.
    pub fn take_answered(&mut self, now: Time, host: HostIndex, request: u64) -> Option<Fill> {
        match &mut self.task {
            Task::Filling(filling) if filling.target.copy.host == host => {
                let is_it = |fill: &Fill| fill.request == request;
                let at = filling.under_way.iter().position(is_it)?;
                filling.heard_at = now;
                Some(filling.under_way.swap_remove(at))
            }
            Task::Switching(switching) => {
                let asked = switching.quiet.len();
                switching.quiet.retain(|&fill| fill != (host, request));
                if switching.quiet.len() < asked {
                    switching.heard_at = Some(now);
                }
                None
            }
            _ => None,
        }
    }

    /// Nobody but clients that will tell of it writes there any more, and all copies are equal.
    pub fn make_sure(&mut self) {
        self.contents = Contents::Sure;
        self.sure_since = self.generation;
    }
}
