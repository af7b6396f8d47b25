//! Compares the members of a group when nothing is under way: for tests, and for who doubts.

use super::member::Member;
use super::message::UNIT_BYTES;
use super::view::{Parity, Partition, Scheme, View};

/// What does not agree.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// A process does not do what the view says.
    #[error("{what} has no process that plays it")]
    Absent {
        /// A partition or a parity.
        what: String,
    },
    /// Operations are under way, or not applied everywhere.
    #[error("partition {partition}: parity {slot} has applied {applied} of {committed} operations")]
    Behind {
        /// Whose operations.
        partition: usize,
        /// Where.
        slot: usize,
        /// There.
        applied: u64,
        /// At the owner.
        committed: u64,
    },
    /// Keys, facts or space differ.
    #[error("partition {partition}: {what} of parity {slot} are not the owner's")]
    Replica {
        /// Which.
        partition: usize,
        /// Where.
        slot: usize,
        /// What differs.
        what: &'static str,
    },
    /// A parity is not the sum of the data.
    #[error("parity {slot} is not the sum of the data in unit {unit}")]
    Parity {
        /// Which.
        slot: usize,
        /// Where.
        unit: u64,
    },
    /// The space of values that live is not the space that is taken.
    #[error("partition {partition}: {taken} bytes are taken, of which items have {used}")]
    Leak {
        /// Which.
        partition: usize,
        /// Bytes.
        taken: u64,
        /// Bytes.
        used: u64,
    },
}

/// Compares everything. Every partition has to be at home, or lost, and every parity full.
///
/// # Errors
/// The first [`Disagreement`].
pub fn audit(view: &View, members: &[&Member]) -> Result<(), Disagreement> {
    let owner_of = |index: usize| {
        let Partition::Home(process) = view.partitions[index] else {
            return None;
        };
        let member = members.iter().find(|member| member.me == process)?;
        Some(&member.owners.get(&index)?.owner)
    };
    let owners: Vec<&super::owner::Owner> = (0..view.partitions.len())
        .filter(|index| !view.is_lost(*index))
        .map(|index| {
            owner_of(index).ok_or_else(|| Disagreement::Absent {
                what: format!("partition {index}"),
            })
        })
        .collect::<Result<_, _>>()?;
    for owner in &owners {
        check_space(owner)?;
    }
    for (slot, place) in view.parities.iter().enumerate() {
        let Parity::Full { process, .. } = place else {
            continue;
        };
        let member = members.iter().find(|member| member.me == *process);
        let parity = member.and_then(|member| member.parity.as_ref());
        let parity = parity.ok_or_else(|| Disagreement::Absent {
            what: format!("parity {slot}"),
        })?;
        for owner in &owners {
            check_replica(owner, parity, slot)?;
        }
        check_parity(view, &owners, parity, slot)?;
    }
    Ok(())
}

fn check_space(owner: &super::owner::Owner) -> Result<(), Disagreement> {
    let allocator = owner.replica().allocator();
    let taken = allocator.region_bytes() - allocator.free_bytes();
    let mut used = 0;
    let mut from = Some(0);
    while let Some(hash) = from {
        let stretch = owner.replica().table().stretch(hash);
        for (_, _, entry) in &stretch.items {
            let space = super::replica::space_of(entry);
            used += space.end - space.start;
        }
        from = stretch.next;
    }
    let partition = owner.partition;
    if taken == used || !owner.is_drained() {
        Ok(())
    } else {
        Err(Disagreement::Leak {
            partition,
            taken,
            used,
        })
    }
}

fn check_replica(
    owner: &super::owner::Owner,
    parity: &super::parity::Parity,
    slot: usize,
) -> Result<(), Disagreement> {
    let partition = owner.partition;
    let stream = &parity.streams[partition];
    let (applied, committed) = (stream.applied(), owner.committed_xid());
    let replica = stream.replica.as_ref().filter(|_| applied == committed);
    let replica = replica.ok_or(Disagreement::Behind {
        partition,
        slot,
        applied,
        committed,
    })?;
    let differs = |what| Disagreement::Replica {
        partition,
        slot,
        what,
    };
    if !replica.table().same_items(owner.replica().table()) {
        return Err(differs("the keys"));
    }
    if replica.allocator() != owner.replica().allocator() {
        return Err(differs("the places of values"));
    }
    if replica.basis() != owner.replica().basis() {
        return Err(differs("the time and the flushes"));
    }
    Ok(())
}

fn check_parity(
    view: &View,
    owners: &[&super::owner::Owner],
    parity: &super::parity::Parity,
    slot: usize,
) -> Result<(), Disagreement> {
    let size = usize::try_from(UNIT_BYTES).expect("a unit fits memory");
    let (mut own, mut data) = (vec![0; size], vec![0; size]);
    for unit in 0..parity.regions[0].bytes() / UNIT_BYTES {
        let address = unit * UNIT_BYTES;
        let mut is_right = true;
        if view.scheme == Scheme::Coded {
            parity.regions[0].copy_out(address, &mut own);
            for owner in owners {
                owner.region.copy_out(address, &mut data);
                parity.code.update(slot, owner.partition, &data, &mut own);
            }
            is_right = own.iter().all(|byte| *byte == 0);
        } else {
            for owner in owners {
                owner.region.copy_out(address, &mut data);
                parity.regions[owner.partition].copy_out(address, &mut own);
                is_right &= own == data;
            }
        }
        if !is_right {
            return Err(Disagreement::Parity { slot, unit });
        }
    }
    Ok(())
}
