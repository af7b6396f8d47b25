//! Which view may follow a view. Each function gives the next one, or nothing where it does not apply.

use super::process::Process;
use super::view::{GroupSlot, Handoff, Parity, Partition, Scheme, View};

impl View {
    fn next(&self) -> Self {
        Self {
            number: self.number + 1,
            let_go: 0,
            ..self.clone()
        }
    }

    /// Without processes that are dead: other parities recover what they had.
    pub fn without(&self, is_dead: impl Fn(Process) -> bool) -> Option<Self> {
        if !self.processes().into_iter().any(&is_dead) {
            return None;
        }
        let mut view = self.next();
        let is_gone = |parity: &Parity| parity.process().is_none_or(&is_dead);
        let is_exchange = self.exchange().is_some();
        view.handoff
            .take_if(|handoff| is_exchange || is_dead(handoff.process));
        for (slot, parity) in view.parities.iter_mut().enumerate() {
            if is_gone(parity) {
                let handoff = view
                    .handoff
                    .take_if(|handoff| handoff.place == GroupSlot::Parity(slot));
                *parity = handoff.map_or(Parity::Vacant, |handoff| Parity::Joining {
                    process: handoff.process,
                    since: handoff.since,
                });
            }
        }
        let mut is_data_lost = false;
        for index in 0..view.partitions.len() {
            let before = view.partitions[index];
            let after = match before {
                Partition::Home(process) if is_dead(process) => None,
                Partition::Home(_) | Partition::Lost => Some(before),
                Partition::Recovering(slot) => view.keeps(slot).then_some(before),
                Partition::Arriving { slot, process, .. } => {
                    let kept = if is_dead(process) {
                        Partition::Recovering(slot)
                    } else {
                        before
                    };
                    view.keeps(slot).then_some(kept)
                }
                // Without the one the other has not everything.
                Partition::Migrating { slot, process, .. } => match view.keeps(slot) {
                    true if is_dead(process) => Some(Partition::Recovering(slot)),
                    true => Some(before),
                    false => None,
                },
            };
            is_data_lost |= after != Some(before);
            match after.or_else(|| view.free_slot().map(Partition::Recovering)) {
                Some(after) => view.partitions[index] = after,
                None => view.end(index),
            }
        }
        // Who was being told what there is cannot be told by who is gone.
        if is_data_lost {
            view.drop_newcomers();
        }
        Some(view)
    }

    fn drop_newcomers(&mut self) {
        self.handoff = None;
        for parity in &mut self.parities {
            if matches!(parity, Parity::Joining { .. }) {
                *parity = Parity::Vacant;
            }
        }
    }

    /// Nobody has a partition any more.
    fn end(&mut self, partition: usize) {
        self.partitions[partition] = Partition::Lost;
        self.begun[partition] = self.number;
    }

    /// Without a partition that is recovered and of which something is missing, where others are lost: it
    /// cannot be told apart from theirs. Its owner serves nothing any more.
    pub fn with_given_up(&self, partition: usize) -> Option<Self> {
        let Partition::Recovering(slot) = self.partitions[partition] else {
            return None;
        };
        if !self.is_stale(slot) {
            return None;
        }
        let mut view = self.next();
        let since = view.number;
        view.drop_newcomers();
        view.end(partition);
        let process = view.parities[slot].process()?;
        view.parities[slot] = Parity::Joining { process, since };
        Some(view)
    }

    /// A process begins a lost partition again: it has nothing, and all others forget what they had of it.
    pub fn with_reset(&self, partition: usize, process: Process) -> Option<Self> {
        if !self.is_lost(partition) || !self.is_calm() || self.has(process) {
            return None;
        }
        let mut view = self.next();
        view.partitions[partition] = Partition::Home(process);
        Some(view)
    }

    fn keeps(&self, slot: usize) -> bool {
        matches!(self.parities[slot], Parity::Full { .. })
    }

    /// A parity that can recover a partition.
    fn free_slot(&self) -> Option<usize> {
        let is_free = |slot: &usize| {
            let held = self.held_by(*slot).is_some();
            self.keeps(*slot) && (!held || self.scheme == Scheme::Replicated)
        };
        (0..self.parities.len()).find(is_free)
    }

    /// Whether nothing is on its way: no partition moves, no parity joins, nobody leaves.
    pub fn is_calm(&self) -> bool {
        let is_still = |partition: &Partition| {
            !matches!(
                partition,
                Partition::Arriving { .. } | Partition::Migrating { .. }
            )
        };
        let joins = |parity: &Parity| matches!(parity, Parity::Joining { .. });
        self.partitions.iter().all(is_still)
            && !self.parities.iter().any(joins)
            && self.handoff.is_none()
    }

    /// Whether it could lose as many processes as there are parities.
    pub fn is_whole(&self) -> bool {
        let at_home = |partition: &Partition| matches!(partition, Partition::Home(_));
        let is_full = |parity: &Parity| matches!(parity, Parity::Full { .. });
        self.partitions.iter().all(at_home) && self.parities.iter().all(is_full)
    }

    /// A process from outside begins to take a place over. Nothing is missing anywhere.
    pub fn with_handoff(&self, place: GroupSlot, process: Process) -> Option<Self> {
        if !self.is_whole() || !self.is_calm() || self.has(process) {
            return None;
        }
        let mut view = self.next();
        let since = view.number;
        view.handoff = Some(Handoff {
            place,
            process,
            since,
        });
        Some(view)
    }

    /// The owner of a partition and a parity begin to change places. Nothing is missing anywhere.
    pub fn with_exchange(&self, partition: usize, parity: Process) -> Option<Self> {
        if !self.is_whole() || !self.is_calm() {
            return None;
        }
        self.slot_of(parity)?;
        let mut view = self.next();
        view.handoff = Some(Handoff {
            place: GroupSlot::Data(partition),
            process: parity,
            since: view.number,
        });
        view.exchange().map(|_| view)
    }

    /// The handoff target has all that the one at its place has, who has nothing under way: it takes the place. Where it is a
    /// parity, whoever was at its place has all that it has, and takes its slot.
    pub fn with_succession(&self) -> Option<Self> {
        let mut view = self.next();
        if let Some(exchange) = self.exchange() {
            let (process, since) = (exchange.owner, exchange.since);
            view.parities[exchange.slot] = Parity::Full { process, since };
        }
        let Handoff {
            place,
            process,
            since,
        } = view.handoff.take()?;
        match place {
            GroupSlot::Data(index) => view.partitions[index] = Partition::Home(process),
            GroupSlot::Parity(slot) => view.parities[slot] = Parity::Full { process, since },
        }
        Some(view)
    }

    /// Without a process that leaves though nobody takes its places, and serves nothing any more. None
    /// where something would be lost, or is on its way.
    pub fn with_released(&self, process: Process) -> Option<Self> {
        if !self.is_calm() {
            return None;
        }
        let mut view = self.without(|other| other == process)?;
        for index in 0..self.partitions.len() {
            if self.owner(index) != Some(process) {
                continue;
            }
            view.owner(index)?;
            view.let_go |= 1 << index;
        }
        Some(view)
    }

    /// A new data process takes a recovered partition over. All of it has been recovered.
    pub fn with_arriving(&self, partition: usize, process: Process) -> Option<Self> {
        let Partition::Recovering(slot) = self.partitions[partition] else {
            return None;
        };
        if !self.is_calm() || self.has(process) {
            return None;
        }
        let mut view = self.next();
        view.partitions[partition] = Partition::Arriving {
            slot,
            process,
            since: view.number,
        };
        Some(view)
    }

    /// The new process has all keys and the former owner nothing under way: it becomes the owner.
    pub fn with_migrating(&self, partition: usize) -> Option<Self> {
        let Partition::Arriving {
            slot,
            process,
            since,
        } = self.partitions[partition]
        else {
            return None;
        };
        let mut view = self.next();
        view.partitions[partition] = Partition::Migrating {
            slot,
            process,
            since,
        };
        Some(view)
    }

    /// The new owner has all values. What the parity held is not parity: it joins again.
    pub fn with_home(&self, partition: usize, stays_full: bool) -> Option<Self> {
        let Partition::Migrating { slot, process, .. } = self.partitions[partition] else {
            return None;
        };
        let mut view = self.next();
        view.partitions[partition] = Partition::Home(process);
        if self.scheme == Scheme::Coded
            && !stays_full
            && let Some(process) = view.parities[slot].process()
        {
            let since = view.number;
            view.parities[slot] = Parity::Joining { process, since };
        }
        Some(view)
    }

    /// A process takes a vacant slot. All partitions have all of their values.
    pub fn with_joining(&self, slot: usize, process: Process) -> Option<Self> {
        if self.parities[slot] != Parity::Vacant || !self.is_calm() || self.has(process) {
            return None;
        }
        let mut view = self.next();
        let since = view.number;
        view.parities[slot] = Parity::Joining { process, since };
        Some(view)
    }

    /// A process that joined has been told all.
    pub fn with_full(&self, slot: usize) -> Option<Self> {
        let Parity::Joining { process, since } = self.parities[slot] else {
            return None;
        };
        let mut view = self.next();
        view.parities[slot] = Parity::Full { process, since };
        Some(view)
    }
}
