//! A view: who does what in a group, agreed on outside and numbered.
//!
//! Everything that members say to each other carries the number of their view, and what carries an
//! older one is refused. Whose acknowledgements an operation needs changes by a view alone
//! ([`View::backups`]), and so does who counts when another takes over.

use super::process::Process;
use crate::injected_faults::{InjectedFault, is_injected};

/// Most partitions of a group: sets of them are 32 bits.
pub const PARTITIONS_MAX: usize = 32;
/// Most parities of a group.
pub const PARITIES_MAX: usize = 4;

/// How a group survives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    /// Values are erasure-coded: a parity is as large as one partition.
    Coded,
    /// Every parity has a copy of every partition (primary-backup).
    Replicated,
}

/// One agreed arrangement of a group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct View {
    /// Greater than that of every view before.
    pub number: u32,
    /// How values are kept.
    pub scheme: Scheme,
    /// K of them.
    pub partitions: Vec<Partition>,
    /// By partition: the view in which its operations began. Those of a lost one begin when it is lost, though
    /// nobody has it yet.
    pub begun: Vec<u32>,
    /// M of them.
    pub parities: Vec<Parity>,
    /// Who is to take a place over from a process that is whole, and leaves or owns more than others.
    pub handoff: Option<Handoff>,
    /// The partitions, bit per partition, whose owners of the view before served nothing any more when
    /// this one was proposed: whoever owns them now need not wait for leases.
    pub let_go: u32,
}

/// A place in a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GroupSlot {
    /// That of a partition's data process.
    Data(usize),
    /// That of a parity.
    Parity(usize),
}

/// A process that is being told what the one at a place has. It acknowledges, and counts for nothing else, unless
/// it is a parity that is to [change places](Exchange).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Handoff {
    /// The place that it is to have.
    pub place: GroupSlot,
    /// The process that is told.
    pub process: Process,
    /// The view in which it came.
    pub since: u32,
}

/// The owner of a partition and a parity of its group that are to change places. Each is told what the other has,
/// and keeps its own until it has all of that: the group bears as many losses as ever meanwhile.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exchange {
    /// The partition that the parity is to own.
    pub partition: usize,
    /// The parity's slot, which the owner is to have.
    pub slot: usize,
    /// Who owns the partition.
    pub owner: Process,
    /// Who has the slot.
    pub parity: Process,
    /// The view in which it began.
    pub since: u32,
}

/// Who has a partition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Partition {
    /// A data process with all of its values.
    Home(Process),
    /// The parity of this slot, which recovers the values to where its parity was.
    Recovering(usize),
    /// The same, while a new data process takes over the keys.
    Arriving {
        /// The slot whose process still has the partition.
        slot: usize,
        /// Who is to have it.
        process: Process,
        /// The view in which it came: with another one it starts from scratch.
        since: u32,
    },
    /// A new data process, which takes the values from the parity of the slot.
    Migrating {
        /// The slot whose process has the values.
        slot: usize,
        /// Who has the partition.
        process: Process,
        /// The view in which it came.
        since: u32,
    },
    /// Nobody: more was lost than the code bears.
    Lost,
}

/// Who has a parity slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parity {
    /// Nobody.
    Vacant,
    /// A process that is still being told what there is. It acknowledges, and counts for nothing else.
    Joining {
        /// Its process.
        process: Process,
        /// The view in which it came: with another one it starts from scratch.
        since: u32,
    },
    /// A process that has its parity whole, but for units that it recovers.
    Full {
        /// Its process.
        process: Process,
        /// The view in which it came.
        since: u32,
    },
}

impl Parity {
    /// Who it is.
    pub fn process(&self) -> Option<Process> {
        match self {
            Self::Vacant => None,
            Self::Joining { process, .. } | Self::Full { process, .. } => Some(*process),
        }
    }

    /// The view in which the slot's process came.
    pub fn since(&self) -> u32 {
        match self {
            Self::Vacant => 0,
            Self::Joining { since, .. } | Self::Full { since, .. } => *since,
        }
    }
}

impl View {
    /// The first view of a group, with everybody at home.
    pub fn first(scheme: Scheme, data: &[Process], parities: &[Process]) -> Self {
        Self::beginning(1, scheme, data, parities)
    }

    /// A view, before all others, of a group of which nobody has anything.
    pub fn nothing(scheme: Scheme, k: usize, m: usize) -> Self {
        Self {
            number: 0,
            scheme,
            partitions: vec![Partition::Lost; k],
            begun: vec![0; k],
            parities: vec![Parity::Vacant; m],
            handoff: None,
            let_go: 0,
        }
    }

    /// A view of this number in which all partitions begin, empty, with everybody at home.
    pub fn beginning(number: u32, scheme: Scheme, data: &[Process], parities: &[Process]) -> Self {
        let full = |process: &Process| Parity::Full {
            process: *process,
            since: number,
        };
        Self {
            number,
            scheme,
            partitions: data.iter().copied().map(Partition::Home).collect(),
            begun: vec![number; data.len()],
            parities: parities.iter().map(full).collect(),
            handoff: None,
            let_go: 0,
        }
    }

    /// Who serves a partition.
    pub fn owner(&self, partition: usize) -> Option<Process> {
        match self.partitions[partition] {
            Partition::Home(process) | Partition::Migrating { process, .. } => Some(process),
            Partition::Recovering(slot) | Partition::Arriving { slot, .. } => {
                self.parities[slot].process()
            }
            Partition::Lost => None,
        }
    }

    /// Whose acknowledgement an operation of the partition needs: every parity but the owner, who is
    /// about to be one, and who is about to own it.
    pub fn backups(&self, partition: usize) -> impl Iterator<Item = Process> + '_ {
        let owner = self.owner(partition);
        let arriving = match self.partitions[partition] {
            Partition::Arriving { process, .. } => Some(process),
            _ => None,
        };
        let is_told = |handoff: &Handoff| match handoff.place {
            GroupSlot::Data(index) => index == partition,
            GroupSlot::Parity(_) => true,
        };
        let exchange = self.exchange();
        let handoff = match exchange {
            // Its parity is one of the backups already; who owns another partition is told of this one.
            Some(exchange) => Some(exchange.owner).filter(|process| Some(*process) != owner),
            None => self.handoff.filter(is_told).map(|handoff| handoff.process),
        };
        let parities = self.parities.iter().filter_map(Parity::process);
        parities
            .filter(move |process| Some(*process) != owner)
            .chain(arriving)
            .chain(handoff)
    }

    /// Everybody, each once.
    pub fn processes(&self) -> Vec<Process> {
        let mut all: Vec<Process> = self.parities.iter().filter_map(Parity::process).collect();
        for partition in &self.partitions {
            match partition {
                Partition::Home(process)
                | Partition::Arriving { process, .. }
                | Partition::Migrating { process, .. } => all.push(*process),
                Partition::Recovering(_) | Partition::Lost => {}
            }
        }
        all.extend(self.handoff.map(|handoff| handoff.process));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Those who are on their way to a place.
    pub fn newcomers(&self) -> Vec<Process> {
        let arriving = self
            .partitions
            .iter()
            .filter_map(|partition| match partition {
                Partition::Arriving { process, .. } => Some(*process),
                _ => None,
            });
        let joining = self.parities.iter().filter_map(|parity| match parity {
            Parity::Joining { process, .. } => Some(*process),
            _ => None,
        });
        let is_new = |handoff: &Handoff| self.slot_of(handoff.process).is_none();
        let handoff = self.handoff.filter(is_new).map(|handoff| handoff.process);
        arriving.chain(joining).chain(handoff).collect()
    }

    /// The owner and the parity that are to change places: the handoff target of a partition is a parity.
    pub fn exchange(&self) -> Option<Exchange> {
        let handoff = self.handoff?;
        let GroupSlot::Data(partition) = handoff.place else {
            return None;
        };
        let Partition::Home(owner) = self.partitions[partition] else {
            return None;
        };
        Some(Exchange {
            partition,
            slot: self.slot_of(handoff.process)?,
            owner,
            parity: handoff.process,
            since: handoff.since,
        })
    }

    /// Whether a process is in it.
    pub fn has(&self, process: Process) -> bool {
        self.processes().contains(&process)
    }

    /// What a process is as a parity, and of which slot: who is to be one, instead of another or of an owner that it
    /// changes places with, is one that joins.
    pub fn parity_of(&self, process: Process) -> Option<(usize, Parity)> {
        if let Some(slot) = self.slot_of(process) {
            return Some((slot, self.parities[slot]));
        }
        let exchange = self.exchange().filter(|one| one.owner == process);
        if let Some(Exchange { slot, since, .. }) = exchange {
            return Some((slot, Parity::Joining { process, since }));
        }
        let handoff = self.handoff.filter(|handoff| handoff.process == process)?;
        let GroupSlot::Parity(slot) = handoff.place else {
            return None;
        };
        let since = handoff.since;
        Some((slot, Parity::Joining { process, since }))
    }

    /// The parity slot of a process.
    pub fn slot_of(&self, process: Process) -> Option<usize> {
        self.parities
            .iter()
            .position(|parity| parity.process() == Some(process))
    }

    /// The slot whose parity has taken a partition's data in place, if one has.
    pub fn slot_holding(&self, partition: usize) -> Option<usize> {
        match self.partitions[partition] {
            Partition::Recovering(slot)
            | Partition::Arriving { slot, .. }
            | Partition::Migrating { slot, .. } => Some(slot),
            Partition::Home(_) | Partition::Lost => None,
        }
    }

    /// The partition whose data a slot's parity has taken in place, if it has.
    pub fn held_by(&self, slot: usize) -> Option<usize> {
        (0..self.partitions.len()).find(|partition| self.slot_holding(*partition) == Some(slot))
    }

    /// The partitions that nobody has any more, bit per partition.
    pub fn lost(&self) -> u32 {
        let all = self.partitions.iter().enumerate();
        all.filter(|(_, partition)| matches!(partition, Partition::Lost))
            .fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Whether nobody has a partition any more.
    pub fn is_lost(&self, partition: usize) -> bool {
        self.partitions[partition] == Partition::Lost
    }

    /// Whether values of partitions that were lost since are in what the parity of a slot was made of: nothing
    /// can be recovered from it then.
    pub fn is_stale(&self, slot: usize) -> bool {
        let since = self.parities[slot].since();
        let is_in = |begun: &u32| *begun > since && !is_injected(InjectedFault::LostAsZero);
        self.scheme == Scheme::Coded && self.begun.iter().any(is_in)
    }

    /// The partitions that parities own, and their slots.
    pub fn recovering(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let slot = |partition: &Partition| match partition {
            Partition::Recovering(slot) | Partition::Arriving { slot, .. } => Some(*slot),
            _ => None,
        };
        let all = self.partitions.iter().enumerate();
        all.filter_map(move |(index, partition)| Some((index, slot(partition)?)))
    }

    /// Who starts and ends recoveries of units: the owner of the first partition that is recovered.
    pub fn leader(&self) -> Option<Process> {
        let (partition, _) = self.recovering().next()?;
        self.owner(partition)
    }
}
