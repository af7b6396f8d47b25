//! The owner of a partition and a parity of its group change places, so that owners are spread over nodes though
//! no node is outside of the group.
//!
//! While it goes on the parity stays one, and is sent the partition's values besides ([`Taking`]); the owner stays
//! one, and is told as a parity that joins what all other partitions have. To that it adds its own values, a few in
//! each turn. Once each has all of that and nothing is under way one view swaps them. Where a process is lost
//! meanwhile both drop what they were told, and nothing has changed.
//!
//! Invariant: until the view that swaps them the group bears as many losses as without the exchange.
//! Memory: a region more at each of the two while it goes on, of which what values take is touched.

use std::sync::Arc;

use cenote_codec::Code;

use super::arrival::Arrival;
use super::member::{Member, Owned};
use super::message::{Lacks, RUN_UNITS_MAX, Run, UNIT_BYTES, told_part};
use super::parity::{Parity, Stream};
use super::sender::bytes_of;
use super::view::{self, Partition, Scheme, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::region::Region;

/// Units that an owner adds to its parity in one turn at most, 4 MiB: a millisecond's.
const UNITS_A_TURN: u64 = 1024;
/// Turns that a full region takes at least, so that small ones are as large ones.
const TURNS_MIN: u64 = 64;
/// Runs that one turn looks at, where they are all zero for sure.
const RUNS_A_TURN: usize = 4096;

/// What a parity is sent of the partition that it is to own. Its operations come by the parity's stream.
pub(super) struct Taking {
    pub(super) partition: usize,
    /// The view in which it began.
    since: u32,
    /// Where the values come to; none: they are among the parity's copies.
    region: Option<Arc<Region>>,
    /// Units from this one on are not here yet.
    units_from: Option<u64>,
}

impl Taking {
    /// Adds a change of the partition's bytes, as far as these are here: the others come with it.
    pub(super) fn add(&self, address: u64, change: &[u8]) {
        let Some(region) = &self.region else { return };
        if !is_injected(InjectedFault::HandoffOutdated) {
            region.xor(address, told_part(self.units_from, address, change));
        }
    }

    /// Takes values as they are by now. False if they are not the next ones.
    pub(super) fn copy(&mut self, run: Run, bytes: &[u8]) -> bool {
        let Some(region) = self
            .region
            .as_ref()
            .filter(|_| self.units_from == Some(run.first))
        else {
            return false;
        };
        if !bytes.is_empty() {
            region.write(run.address(), bytes);
        }
        let end = run.first + u64::from(run.units);
        let total = region.bytes().div_ceil(UNIT_BYTES);
        self.units_from = Some(end).filter(|end| *end < total);
        true
    }

    /// Memory of the values that are here, where they are apart from the parity.
    pub(super) fn touched_bytes(&self) -> u64 {
        self.region
            .as_ref()
            .map_or(0, |region| region.touched_bytes())
    }

    fn missing_bytes(&self) -> u64 {
        let bytes = self.region.as_ref().map_or(0, |region| region.bytes());
        self.units_from
            .map_or(0, |unit| bytes.saturating_sub(unit * UNIT_BYTES))
    }
}

impl Parity {
    /// What its process is still to be told of a partition.
    pub(super) fn lacks(&self, partition: usize) -> Lacks {
        let lacks = self.streams[partition].lacks();
        match &self.taking {
            Some(taking) if taking.partition == partition => Lacks {
                units_from: lacks.units_from.or(taking.units_from),
                ..lacks
            },
            _ => lacks,
        }
    }

    /// Bytes of a partition's values that it is still to be sent.
    pub(super) fn taking_bytes(&self) -> u64 {
        self.taking.as_ref().map_or(0, Taking::missing_bytes)
    }

    /// Begins to add the values of its process's own partition, where values are added and not copied.
    fn begin_folding(&mut self, partition: usize) -> Option<Folding> {
        let is_coded = self.scheme == Scheme::Coded;
        let stream = &mut self.streams[partition];
        // Its own operations come to it by no stream.
        (stream.replica, stream.units_from) = (None, is_coded.then_some(0));
        is_coded.then(|| Folding {
            parity: Arc::clone(&self.regions[0]),
            code: Arc::clone(&self.code),
            slot: self.slot,
            partition,
            units_from: Some(0),
        })
    }
}

/// An owner's values on their way into the parity that its process is to have: a few in each turn, for a region
/// takes seconds.
pub(super) struct Folding {
    parity: Arc<Region>,
    code: Arc<Code>,
    slot: usize,
    partition: usize,
    /// Units from this one on are not in the parity yet.
    units_from: Option<u64>,
}

impl Folding {
    /// Adds a change that was committed, as far as what it changes is in the parity: the rest comes with the values.
    pub(super) fn add(&self, address: u64, change: &[u8]) {
        if !is_injected(InjectedFault::FoldOutdated) {
            self.add_to_parity(address, told_part(self.units_from, address, change));
        }
    }

    fn add_to_parity(&self, address: u64, bytes: &[u8]) {
        if !is_injected(InjectedFault::UnfoldedExchange) {
            let (slot, partition) = (self.slot, self.partition);
            self.parity
                .add_scaled(&self.code, slot, partition, address, bytes);
        }
    }

    fn has_more(&self) -> bool {
        self.units_from.is_some()
    }

    /// Adds values, as many as a turn has time for.
    fn step(&mut self, values: &Region) {
        let total = values.bytes().div_ceil(UNIT_BYTES);
        let mut left = (total / TURNS_MIN).clamp(1, UNITS_A_TURN);
        for _ in 0..RUNS_A_TURN {
            let Some(first) = self.units_from.filter(|_| left > 0) else {
                return;
            };
            let units = (total - first).min(left).min(u64::from(RUN_UNITS_MAX));
            let run = Run {
                first,
                units: u32::try_from(units).expect("a run"),
            };
            let bytes = bytes_of(values, run);
            if !bytes.is_empty() {
                self.add_to_parity(run.address(), &bytes);
                left -= units;
            }
            self.units_from = Some(first + units).filter(|end| *end < total);
        }
    }
}

impl Member {
    /// Begins, keeps or ends what a view says of an exchange, when the parity is as the view has it.
    pub(super) fn adopt_exchange(&mut self, view: &View) {
        // What goes on into a parity that is there no more would keep all of its memory.
        let own = self.parity.as_ref().and_then(|parity| parity.own);
        for (index, owned) in &mut self.owners {
            owned.owner.folding.take_if(|_| own != Some(*index));
        }
        let exchange = view.exchange();
        let (me, region_bytes) = (self.me, self.shape.region_bytes);
        let Some(parity) = &mut self.parity else {
            return;
        };
        let since = exchange.map(|exchange| exchange.since);
        parity.taking.take_if(|taking| Some(taking.since) != since);
        match exchange {
            Some(exchange) if exchange.parity == me && parity.taking.is_none() => {
                let is_coded = view.scheme == Scheme::Coded;
                parity.taking = Some(Taking {
                    partition: exchange.partition,
                    since: exchange.since,
                    region: is_coded.then(|| Arc::new(Region::new(region_bytes))),
                    units_from: is_coded.then_some(0),
                });
            }
            Some(exchange) if exchange.owner == me && parity.own.is_none() => {
                parity.own = Some(exchange.partition);
                if let Some(owned) = self.owners.get_mut(&exchange.partition) {
                    owned.owner.folding = parity.begin_folding(exchange.partition);
                }
            }
            _ => {}
        }
    }

    /// Whether it adds its values to the parity that it is to have, and has more to add.
    pub fn is_folding(&self) -> bool {
        let mut owners = self.owners.values().map(|owned| &owned.owner);
        self.failure.is_none()
            && owners.any(|owner| owner.folding.as_ref().is_some_and(Folding::has_more))
    }

    /// Goes on adding its values to the parity that it is to have.
    pub(super) fn fold_on(&mut self) {
        let Some(parity) = &mut self.parity else {
            return;
        };
        for Owned { owner, .. } in self.owners.values_mut() {
            if let Some(folding) = owner.folding.as_mut().filter(|folding| folding.has_more()) {
                folding.step(&owner.region);
                parity.streams[folding.partition].units_from = folding.units_from;
            }
        }
    }

    /// A parity owns the partition that it was told of.
    pub(super) fn arrive_by_exchange(&mut self, view: &View) {
        let me = self.me;
        let Some(parity) = &mut self.parity else {
            return;
        };
        let owns = |taking: &mut Taking| view.partitions[taking.partition] == Partition::Home(me);
        let Some(taking) = parity.taking.take_if(owns) else {
            return;
        };
        let partition = taking.partition;
        let empty = Stream::new(self.shape.hasher, 0, view.begun[partition]);
        let mut stream = std::mem::replace(&mut parity.streams[partition], empty);
        stream.units_from = stream.units_from.or(taking.units_from);
        let region = taking.region;
        self.arriving = Some(Arrival {
            partition,
            since: taking.since,
            region: Some(region.unwrap_or_else(|| Arc::clone(parity.region(partition)))),
            stream,
        });
    }

    /// An owner has the slot of who owns its partition now: what it had becomes part of its parity. None: it does.
    pub(super) fn fold_by_exchange(
        &mut self,
        view: &View,
        index: usize,
        owned: Owned,
    ) -> Option<Owned> {
        let is_swapped = |parity: &&mut Parity| {
            let full = view::Parity::Full {
                process: self.me,
                since: self.parity_since,
            };
            parity.own == Some(index) && view.parities[parity.slot] == full
        };
        let Some(parity) = self.parity.as_mut().filter(is_swapped) else {
            return Some(owned);
        };
        parity.own = None;
        match parity.scheme {
            _ if is_injected(InjectedFault::UnfoldedExchange) => {}
            Scheme::Replicated => parity.regions[index] = Arc::clone(&owned.owner.region),
            // The view came when all were.
            Scheme::Coded => debug_assert_eq!(parity.streams[index].units_from, None),
        }
        let stream = &mut parity.streams[index];
        let replica = owned.owner.into_replica();
        stream.discard(0);
        stream.latest = replica.applied();
        stream.replica = Some(replica);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::{Service, Shape};
    use super::super::process::Process;
    use super::super::room::Bound;
    use super::*;
    use crate::memory::key_hash::KeyHasher;

    fn process(node: u32) -> Process {
        let incarnation = 1;
        Process { node, incarnation }
    }

    /// The owner of the first of two partitions, with so many units, as it begins to change places with the parity.
    fn exchanging(units: u64) -> (Member, View) {
        let shape = Shape {
            scheme: Scheme::Coded,
            k: 2,
            m: 1,
            region_bytes: units * UNIT_BYTES,
            evicts: false,
            service: Service::Online,
            bound: Bound::NONE,
            hasher: KeyHasher::new([7; 16]),
        };
        let mut owner = Member::new(process(0), shape);
        let view = View::first(Scheme::Coded, &[process(0), process(1)], &[process(2)]);
        owner.adopt(&view);
        let view = view.with_exchange(0, process(2)).expect("all are there");
        owner.adopt(&view);
        (owner, view)
    }

    #[test]
    fn values_are_added_a_few_in_each_turn() {
        let units = 4 * TURNS_MIN;
        let (mut owner, _) = exchanging(units);
        owner.owners[&0].owner.region.write(
            0,
            &vec![1; usize::try_from(units * UNIT_BYTES).expect("few")],
        );
        let mut turns = 0;
        while owner.is_folding() {
            owner.flush(1, false);
            turns += 1;
            let here = owner.owners[&0].owner.folding.as_ref().expect("it goes on");
            let told = here.units_from.unwrap_or(units);
            assert_eq!(told, turns * units / TURNS_MIN);
        }
        assert_eq!(turns, TURNS_MIN);
    }

    #[test]
    fn an_owner_whose_exchange_came_to_nothing_adds_its_values_no_more() {
        let (mut owner, view) = exchanging(4);
        assert!(owner.is_folding());
        let without = view.without(|dead| dead == process(2));
        owner.adopt(&without.expect("it is borne"));
        assert!(!owner.is_folding());
        assert!(owner.owners[&0].owner.folding.is_none());
    }
}
