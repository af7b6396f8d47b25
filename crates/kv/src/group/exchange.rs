//! The owner of a partition and a parity of its group change places, so that owners are spread over nodes though
//! no node is outside of the group.
//!
//! While it goes on the parity stays one, and is sent the partition's values besides ([`Taking`]); the owner stays
//! one, and is told as a parity that joins what all other partitions have. Once each has all of that and nothing is
//! under way one view swaps them. The owner adds its own values to its parity then. Where a process is lost
//! meanwhile both drop what they were told, and nothing has changed.
//!
//! Invariant: until the view that swaps them the group bears as many losses as without the exchange.
//! Memory: a region more at each of the two while it goes on, of which what values take is touched.

use std::sync::Arc;

use super::arrival::Arrival;
use super::member::{Member, Owned};
use super::message::{Lacks, RUN_UNITS_MAX, Run, UNIT_BYTES};
use super::parity::{Parity, Stream};
use super::sender::bytes_of;
use super::view::{self, Partition, Scheme, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::region::Region;

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
        let end = self
            .units_from
            .map_or(region.bytes(), |unit| unit * UNIT_BYTES);
        let here = end.saturating_sub(address);
        let here = usize::try_from(here).map_or(change.len(), |here| here.min(change.len()));
        if !is_injected(InjectedFault::HandoffOutdated) {
            region.xor(address, &change[..here]);
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

    /// Adds the values of the partition that its process owned.
    fn fold(&mut self, partition: usize, values: &Arc<Region>) {
        match self.scheme {
            _ if is_injected(InjectedFault::UnfoldedExchange) => {}
            Scheme::Replicated => self.regions[partition] = Arc::clone(values),
            Scheme::Coded => {
                let total = values.bytes().div_ceil(UNIT_BYTES);
                for first in (0..total).step_by(RUN_UNITS_MAX as usize) {
                    let units = (total - first).min(u64::from(RUN_UNITS_MAX));
                    let units = u32::try_from(units).expect("a run");
                    let run = Run { first, units };
                    let bytes = bytes_of(values, run);
                    if !bytes.is_empty() {
                        self.add(partition, run.address(), &bytes);
                    }
                }
            }
        }
    }
}

impl Member {
    /// Begins, keeps or ends what a view says of an exchange, when the parity is as the view has it.
    pub(super) fn adopt_exchange(&mut self, view: &View) {
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
            // Its own operations come to it by no stream.
            Some(exchange) if exchange.owner == me && parity.own.is_none() => {
                parity.own = Some(exchange.partition);
                let stream = &mut parity.streams[exchange.partition];
                (stream.replica, stream.units_from) = (None, None);
            }
            _ => {}
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
        let values = Arc::clone(&owned.owner.region);
        parity.fold(index, &values);
        let stream = &mut parity.streams[index];
        let replica = owned.owner.into_replica();
        stream.discard(0);
        stream.latest = replica.applied();
        stream.replica = Some(replica);
        None
    }
}
