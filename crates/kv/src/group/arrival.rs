//! A partition that is on its way to a new owner: its keys and, where the present one has all of its
//! values and leaves, those as well.

use std::sync::Arc;

use super::member::{Member, Shape};
use super::message::{Run, told_part};
use super::operation::Effect;
use super::parity::{Parity, Stream};
use super::process::Process;
use super::replica::{Diverged, Xid};
use super::view::{self, GroupSlot, Partition, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::region::Region;

/// See the [module](self).
pub(super) struct Arrival {
    pub(super) partition: usize,
    /// The view in which it began.
    pub(super) since: u32,
    pub(super) stream: Stream,
    /// Where its values come to; none: they are pulled later.
    pub(super) region: Option<Arc<Region>>,
}

impl Arrival {
    /// Begins what a view says of a process and a partition.
    pub(super) fn begin(view: &View, partition: usize, me: Process, shape: &Shape) -> Option<Self> {
        let (since, with_values) = match (view.partitions[partition], view.handoff) {
            (Partition::Arriving { process, since, .. }, _) if process == me => (since, false),
            // A parity is told as one: see `exchange`.
            (_, Some(handoff))
                if handoff.process == me
                    && handoff.place == GroupSlot::Data(partition)
                    && view.slot_of(me).is_none() =>
            {
                (handoff.since, true)
            }
            _ => return None,
        };
        Some(Self {
            partition,
            since,
            stream: Stream::joining(
                shape.hasher,
                shape.region_bytes,
                view.begun[partition],
                with_values,
            ),
            region: with_values.then(|| Arc::new(Region::new(shape.region_bytes))),
        })
    }

    /// Whether it goes on in a view, or has come to its end there.
    pub(super) fn is_of(&self, view: &View, me: Process) -> bool {
        // In a group that began again everybody else came later.
        let is_later = |parity: &view::Parity| matches!(parity, view::Parity::Full { since, .. } if *since > self.since);
        match view.partitions[self.partition] {
            Partition::Arriving { process, since, .. }
            | Partition::Migrating { process, since, .. } => process == me && since == self.since,
            Partition::Home(process) if process == me => {
                self.region.is_some() && !view.parities.iter().any(is_later)
            }
            Partition::Home(_) => view.handoff.is_some_and(|handoff| {
                let place = GroupSlot::Data(self.partition);
                (handoff.place, handoff.process, handoff.since) == (place, me, self.since)
            }),
            Partition::Recovering(_) | Partition::Lost => false,
        }
    }

    /// Applies what is stable: to keys, and to values that are here.
    pub(super) fn apply(&mut self, stable: Xid) -> Result<(), Diverged> {
        while let Some((xid, operation)) = self.stream.next(stable) {
            if let (Some(region), Effect::Put(entry)) = (&self.region, operation.effect())
                && !is_injected(InjectedFault::HandoffOutdated)
            {
                let (address, change) = (entry.address, operation.change());
                region.xor(address, told_part(self.stream.units_from, address, change));
            }
            if let Some(replica) = &mut self.stream.replica {
                replica.apply(xid, &operation, false)?;
            }
        }
        Ok(())
    }

    /// Takes values as they were after an operation.
    pub(super) fn copy(&mut self, at: Xid, run: Run, bytes: &[u8]) -> Result<(), Diverged> {
        self.apply(at)?;
        if self.stream.units_from != Some(run.first) {
            return Ok(());
        }
        let Some(region) = &self.region else {
            return Ok(());
        };
        if !bytes.is_empty() {
            region.write(run.address(), bytes);
        }
        let region_bytes = region.bytes();
        self.stream.note_units(run, region_bytes);
        Ok(())
    }
}

impl Member {
    /// Bytes that this process is still to be told before it has a place whole.
    pub fn joining_bytes(&self) -> u64 {
        let parity = self.parity.iter().flat_map(|parity| &parity.streams);
        let arrival = self.arriving.iter().map(|arrival| &arrival.stream);
        let streams = parity.chain(arrival);
        let taking = self.parity.as_ref().map_or(0, Parity::taking_bytes);
        let told = streams.map(|stream| stream.missing_bytes(self.shape.region_bytes));
        taking + told.sum::<u64>()
    }
}
