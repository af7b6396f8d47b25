//! Which machines are ordered, and which are not needed any more.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::Time;

use super::{Action, Demand, Fleet, Held, KeptMachine, MACHINES_MAX, Order, Phase, ROOM, Stage};
use crate::market::{Allocation, Catalogue, Holding, Need, Price, Share};
use crate::owner::{HostIndex, HostSummary};
use crate::providers::Wish;

/// What is copied in a second when a cache moves, for the guess of what a move costs. Arbitrary, on the low side.
const COPIED_PER_SECOND: u64 = 256 << 20;
/// How long a cache is taken to go on of which nobody said how long.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Most moves that are noted as futile. Each cost a machine for a while; arbitrary.
const FUTILE_MAX: usize = 64;

impl Fleet {
    /// Orders what is lacking; without that gives back what is not needed, or looks for cheaper machines.
    pub(super) fn plan(
        &mut self,
        now: Time,
        summary: &dyn Fn(HostIndex) -> HostSummary,
        demand: Demand,
    ) {
        if demand.regions == 0 {
            return;
        }
        let wanted = self.wanted(demand);
        let counted = |one: &&Held| is_counted(one, summary);
        let counted: Vec<&KeptMachine> = self
            .machines
            .values()
            .filter(counted)
            .map(|one| &one.kept)
            .collect();
        let holds = self.holds(&counted, demand);
        if holds < wanted {
            // Beside other machines a move may come to something.
            self.futile.clear();
            return self.order_lacking(now, wanted - holds, demand);
        }
        self.forget_troubles(now);
        let is_coming = |one: &Held| match one.phase {
            Phase::Ordered => true,
            Phase::Used {
                was_up,
                host,
                is_surplus,
                ..
            } => !is_surplus && (!was_up || !summary(host).is_up),
            Phase::Releasing { .. } => false,
        };
        if self.machines.values().any(is_coming) {
            return;
        }
        if let Some(order) = self.dearest_unneeded(summary, demand) {
            self.note_futile(order, summary, demand);
            let one = self.machines.get_mut(&order).expect("it was found");
            if let Phase::Used {
                host, is_surplus, ..
            } = &mut one.phase
            {
                *is_surplus = true;
                self.actions.push_back(Action::Empty(*host));
            }
            return;
        }
        let is_leaving = |one: &Held| {
            matches!(
                one.phase,
                Phase::Used {
                    is_surplus: true,
                    ..
                }
            )
        };
        if !self.machines.values().any(is_leaving) {
            self.look(now, demand);
        }
    }

    /// Regions in all their copies.
    fn wanted(&self, demand: Demand) -> u64 {
        u64::from(demand.regions) * u64::from(self.shape.copies)
    }

    /// Regions that machines hold together: of each failure domain no more than one copy of each.
    fn holds(&self, machines: &[&KeptMachine], demand: Demand) -> u64 {
        let mut by_domain: BTreeMap<String, u64> = BTreeMap::new();
        for one in machines {
            // One that is not there yet fails with nobody else, as far as is known.
            let domain = match one.domain.is_empty() {
                true => format!("order {}", one.order),
                false => one.domain.clone(),
            };
            *by_domain.entry(domain).or_default() += self.capacity(one, demand);
        }
        let most = u64::from(demand.regions);
        by_domain.into_values().map(|one| one.min(most)).sum()
    }

    /// Whether a machine in `domain` adds nothing to what the cache lacks: other copies of all its regions
    /// are in that domain already. A cache that is whole lacks nothing: who moves keeps what comes.
    #[must_use]
    pub fn is_useless(
        &self,
        order: Order,
        domain: &str,
        summary: &dyn Fn(HostIndex) -> HostSummary,
        demand: Demand,
    ) -> bool {
        let Some(one) = self.machines.get(&order) else {
            return false;
        };
        if demand.regions == 0 {
            return false;
        }
        let others = self.machines.values();
        let others = others.filter(|of| of.kept.order != order && is_counted(of, summary));
        let mut machines: Vec<&KeptMachine> = others.map(|of| &of.kept).collect();
        let without = self.holds(&machines, demand);
        let mut here = one.kept.clone();
        domain.clone_into(&mut here.domain);
        machines.push(&here);
        without < self.wanted(demand) && self.holds(&machines, demand) <= without
    }

    /// Regions that a machine holds, by its memory and its cores.
    fn capacity(&self, one: &KeptMachine, demand: Demand) -> u64 {
        let by_memory = one.memory_bytes / self.shape.region_bytes;
        let named = |of: &&crate::market::MachineType| of.name == one.machine_type;
        let cores = self.catalogue.types().iter().find(named).map(|of| of.cores);
        match (self.shape.server_threads, cores) {
            (0, _) | (_, None) => by_memory,
            (threads, Some(cores)) => {
                let by_cores = u64::from(cores) * u64::from(demand.regions) / u64::from(threads);
                by_memory.min(by_cores)
            }
        }
    }

    /// What can be had besides what there is. Of one machine no more counts than a copy of each region.
    fn to_be_had(&self, now: Time, demand: Demand, is_taken: impl Fn(&Held) -> bool) -> Catalogue {
        let mut taken: BTreeMap<&str, u32> = BTreeMap::new();
        for one in self.machines.values().filter(|one| is_taken(one)) {
            *taken.entry(&one.kept.machine_type).or_default() += 1;
        }
        let most = u64::from(demand.regions) * self.shape.region_bytes;
        self.catalogue.narrowed(|one| {
            let penalty = self.penalties.get(&one.name);
            if self.is_not_taken_back(&one.name) {
                return false;
            }
            let taken = taken.get(&*one.name).copied().unwrap_or(0);
            one.count = one.count.saturating_sub(taken);
            one.memory_bytes = one.memory_bytes.min(most);
            penalty.is_none_or(|penalty| now >= penalty.until)
        })
    }

    /// Whether the provider fails to take machines of this type back: each further one could stay and cost.
    fn is_not_taken_back(&self, machine_type: &str) -> bool {
        let fails = |one: &Held| matches!(one.phase, Phase::Releasing { tries: 1.., .. });
        let mut of_it = self.machines.values();
        of_it.any(|one| one.kept.machine_type == machine_type && fails(one))
    }

    fn need(&self, regions: u64, demand: Demand) -> Option<Need> {
        let threads = u64::from(self.shape.server_threads) * regions;
        let threads = threads.div_ceil(u64::from(demand.regions));
        let threads = u32::try_from(threads).ok()?;
        let bytes = regions.checked_mul(self.shape.region_bytes)?;
        let need = Need::new(bytes, self.shape.region_bytes, threads, u64::MAX).ok()?;
        Some(need.with_spot(self.shape.is_spot_allowed))
    }

    /// Orders machines for so many regions, or for as many as there are machines for.
    fn order_lacking(&mut self, now: Time, lacking: u64, demand: Demand) {
        let catalogue = self.to_be_had(now, demand, |_| true);
        let allocated = |regions: u64| {
            self.need(regions, demand)
                .map(|need| need.allocate(&catalogue))
        };
        let allocation = match allocated(lacking) {
            Some(Ok(allocation)) => Some(allocation),
            Some(Err(none)) => {
                let what = format!("machines for {lacking} more regions are needed: {none}");
                self.troubles.insert(ROOM.to_owned(), what);
                // Some regions with memory are better than none.
                let some = self.need(none.at_most.min(lacking), demand);
                some.and_then(|need| need.allocate(&catalogue).ok())
            }
            None => None,
        };
        for share in allocation.iter().flat_map(|allocation| &allocation.shares) {
            self.order(share, share.machines);
        }
    }

    fn order(&mut self, share: &Share, count: u32) {
        let named = |one: &&crate::market::MachineType| one.name == share.machine;
        let Some(of) = self.catalogue.types().iter().find(named) else {
            return;
        };
        let (slab, threads) = (self.shape.slab_bytes, self.shape.server_threads);
        let (memory_bytes, cores) = (of.memory_bytes / slab * slab, of.cores.min(threads));
        for _ in 0..count {
            if self.machines.len() >= MACHINES_MAX {
                let what = format!("{MACHINES_MAX} are used, on their way, or not taken back yet");
                self.troubles.insert(ROOM.to_owned(), what);
                return;
            }
            self.orders += 1;
            let order = Order {
                epoch: self.epoch,
                number: self.orders,
            };
            let kept = KeptMachine {
                order,
                stage: Stage::Ordered,
                machine_type: share.machine.clone(),
                provider: share.provider.clone(),
                is_spot: share.is_spot,
                price_micros: share.price.micros(),
                memory_bytes,
                id: String::new(),
                address: String::new(),
                domain: String::new(),
                host: None,
            };
            let wish = Wish {
                order: order.name(self.shape.cache),
                machine_type: share.machine.clone(),
                memory_bytes,
                slab_bytes: slab,
                cores,
                is_spot: share.is_spot,
            };
            let phase = Phase::Ordered;
            self.machines.insert(order, Held { kept, phase });
            self.is_changed = true;
            let provider = share.provider.clone();
            self.actions
                .push_back(Action::Acquire(order, provider, wish));
        }
    }

    /// The dearest of the machines without which the others hold the cache, and cost least: those that it
    /// moves to, or the best value. To give the dearest back whatever stays would give back the one large
    /// machine for which many small ones are to go, and the move would begin again at each look.
    fn dearest_unneeded(
        &self,
        summary: &dyn Fn(HostIndex) -> HostSummary,
        demand: Demand,
    ) -> Option<Order> {
        let priced = |(one, is_aim)| (one, self.price_of(one).micros(), is_aim);
        let ranked = self.by_aim(summary).into_iter().map(priced);
        let ranked: Vec<(&KeptMachine, u64, bool)> = ranked.collect();
        let per_region = |one: &KeptMachine, price: u64| {
            u128::from(price) * u128::from(u32::MAX) / u128::from(self.capacity(one, demand)).max(1)
        };
        let mut by_aim = ranked.clone();
        by_aim.sort_by_key(|&(one, price, is_aim)| (is_aim, Reverse((price, one.order))));
        let mut by_value = ranked;
        by_value.sort_by_key(|&(one, price, _)| Reverse((per_region(one, price), one.order)));
        let ways = [by_aim, by_value].map(|order| self.without_unneeded(order, demand));
        let [by_aim, by_value] = ways;
        let unneeded = match by_value.saved > by_aim.saved {
            true => by_value,
            false => by_aim,
        };
        unneeded.dearest
    }

    /// The machines that count, and which of them it moves to.
    fn by_aim(&self, summary: &dyn Fn(HostIndex) -> HostSummary) -> Vec<(&KeptMachine, bool)> {
        let counted = self.machines.values();
        let counted = counted.filter(|one| is_counted(one, summary));
        let mut rest = self.aim.machines.clone();
        let ranked = counted.map(|one| {
            let kept = &one.kept;
            let left = rest.entry((kept.machine_type.clone(), kept.is_spot));
            let left = left.or_default();
            let is_aim = *left > 0;
            *left = left.saturating_sub(1);
            (kept, is_aim)
        });
        ranked.collect()
    }

    /// Notes a move that comes to nothing: the machines that it moves to do not hold the cache, as their failure
    /// domains are too few, and one of them goes again. At the next look the same move would begin again.
    fn note_futile(
        &mut self,
        unneeded: Order,
        summary: &dyn Fn(HostIndex) -> HostSummary,
        demand: Demand,
    ) {
        let aim = self.by_aim(summary).into_iter();
        let aim: Vec<&KeptMachine> = aim.filter(|of| of.1).map(|of| of.0).collect();
        let goes = aim.iter().any(|one| one.order == unneeded);
        if !goes || self.holds(&aim, demand) >= self.wanted(demand) {
            return;
        }
        if self.futile.len() >= FUTILE_MAX {
            self.futile.clear();
        }
        let aim = std::mem::take(&mut self.aim);
        self.futile.insert(aim.machines, aim.price);
    }

    /// Leaves out one machine after the other, where the rest still holds the cache.
    fn without_unneeded(&self, ranked: Vec<(&KeptMachine, u64, bool)>, demand: Demand) -> Unneeded {
        let mut staying: Vec<&KeptMachine> = ranked.iter().map(|(one, ..)| *one).collect();
        let mut unneeded = Unneeded::default();
        let mut dearest_price = 0;
        for (one, price, _) in ranked {
            let others = staying.iter().filter(|other| other.order != one.order);
            let others: Vec<&KeptMachine> = others.copied().collect();
            if self.holds(&others, demand) < self.wanted(demand) {
                continue;
            }
            staying = others;
            unneeded.saved += u128::from(price);
            if unneeded.dearest.is_none() || price > dearest_price {
                (unneeded.dearest, dearest_price) = (Some(one.order), price);
            }
        }
        unneeded
    }

    /// What the machines cost that stay unless cheaper ones come; not those that are being given back.
    fn price_in_use(&self) -> Price {
        let used = self.machines.values();
        let used = used.filter(|one| matches!(one.phase, Phase::Used { .. }));
        used.map(|one| self.price_of(&one.kept)).sum()
    }

    /// Orders cheaper machines now and then, where that pays. What they make unneeded goes when they are there.
    fn look(&mut self, now: Time, demand: Demand) {
        if now < self.lookout.due() || !self.is_fresh {
            return;
        }
        self.is_fresh = false;
        let is_going = |one: &Held| matches!(one.phase, Phase::Releasing { .. });
        let catalogue = self.to_be_had(now, demand, is_going);
        let wanted = self.wanted(demand);
        let Some(need) = self.need(wanted, demand) else {
            return;
        };
        let holding = Holding {
            price: self.price_in_use(),
            remaining: demand.remaining.unwrap_or(DAY),
            copying: Duration::from_secs(wanted * self.shape.region_bytes / COPIED_PER_SECOND),
        };
        if let Some(found) = self.lookout.look(now, &need, &catalogue, &holding) {
            let aim = Aim::new(&found);
            let tried_at = self.futile.get(&aim.machines);
            if tried_at.is_some_and(|&price| aim.price >= price) {
                return;
            }
            tracing::info!(from = %holding.price, to = %found.price, "moves to cheaper machines");
            self.aim = aim;
            self.order_beyond(&found);
        }
    }

    /// Orders what an allocation has and the cache has not.
    fn order_beyond(&mut self, found: &Allocation) {
        let mut have = Types::new();
        for one in self
            .machines
            .values()
            .filter(|one| matches!(one.phase, Phase::Used { .. }))
        {
            let of = (one.kept.machine_type.clone(), one.kept.is_spot);
            *have.entry(of).or_default() += 1;
        }
        for share in &found.shares {
            let have = have
                .entry((share.machine.clone(), share.is_spot))
                .or_default();
            let more = share.machines.saturating_sub(*have);
            *have = have.saturating_sub(share.machines);
            self.order(share, more);
        }
    }
}

/// What it moves to.
#[derive(Default)]
pub(super) struct Aim {
    machines: Types,
    /// Of all of them, when the move began.
    price: Price,
}

/// Numbers of machines, by type and whether they are spot ones.
pub(super) type Types = BTreeMap<(String, bool), u32>;

impl Aim {
    fn new(found: &Allocation) -> Self {
        let mut machines = Types::new();
        for share in &found.shares {
            let of = machines.entry((share.machine.clone(), share.is_spot));
            *of.or_default() += share.machines;
        }
        let price = found.price;
        Self { machines, price }
    }
}

/// Machines that can go.
#[derive(Default)]
struct Unneeded {
    /// The one that costs most.
    dearest: Option<Order>,
    /// What they cost together, in millionths per hour.
    saved: u128,
}

/// Whether a machine's room counts: it is used or comes, and stays.
fn is_counted(one: &Held, summary: &dyn Fn(HostIndex) -> HostSummary) -> bool {
    match one.phase {
        Phase::Ordered => true,
        Phase::Used {
            host,
            was_up,
            is_surplus,
            ..
        } => {
            let there = summary(host);
            !(is_surplus || there.is_leaving || was_up && there.is_missing)
        }
        Phase::Releasing { .. } => false,
    }
}
