//! Which view may follow a view. Each function gives the next one, or nothing where it does not apply.

use super::process::Process;
use super::view::{Parity, Partition, Scheme, View};

impl View {
    fn next(&self) -> Self {
        Self {
            number: self.number + 1,
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
        for parity in &mut view.parities {
            if is_gone(parity) {
                *parity = Parity::Vacant;
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
            view.partitions[index] = after.unwrap_or(Partition::Lost);
            if after.is_none()
                && before != Partition::Lost
                && let Some(slot) = view.free_slot()
            {
                view.partitions[index] = Partition::Recovering(slot);
            }
        }
        // Who was being told what there is cannot be told by who is gone.
        if is_data_lost {
            for parity in &mut view.parities {
                if matches!(parity, Parity::Joining { .. }) {
                    *parity = Parity::Vacant;
                }
            }
        }
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

    /// Whether nothing is on its way: every partition is somewhere, no parity joins.
    pub fn is_calm(&self) -> bool {
        let is_still = |partition: &Partition| {
            matches!(partition, Partition::Home(_) | Partition::Recovering(_))
        };
        let joins = |parity: &Parity| matches!(parity, Parity::Joining { .. });
        self.partitions.iter().all(is_still) && !self.parities.iter().any(joins)
    }

    /// A new data process takes a recovered partition over. All of it has been recovered.
    pub fn with_arriving(&self, partition: usize, process: Process) -> Option<Self> {
        let Partition::Recovering(slot) = self.partitions[partition] else {
            return None;
        };
        if !self.is_calm() || self.processes().contains(&process) {
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

    /// The new owner has all values. What the parity held is not parity: it joins anew.
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
        if self.parities[slot] != Parity::Vacant
            || !self.is_calm()
            || self.processes().contains(&process)
        {
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
