//! Which machines a cache takes, and what each of them gets.
//!
//! Regions are spread over machines, and server threads by regions: a machine with a share of the
//! regions gets that share of the requests, so it runs that share of the threads, rounded up, each on a core
//! of its own. So what a machine can hold is bounded by its memory and by its cores.

use super::cover::{Offer, cover};
use super::{Catalogue, MachineType, Price};

/// Most regions of a cache.
const REGIONS_MAX: u64 = 1 << 32;
/// Most server threads of a cache.
const THREADS_MAX: u32 = 1024;

/// What a cache needs of machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Need {
    regions: u64,
    region_bytes: u64,
    server_threads: u32,
    distance_ns_max: u64,
    is_spot_allowed: bool,
}

/// A cache that cannot be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0} is out of range")]
pub struct NeedError(&'static str);

impl Need {
    /// A cache of `size_bytes` in whole regions of `region_bytes`, with `server_threads` in all (0: one-sided
    /// verbs), at most `distance_ns_max` away.
    ///
    /// # Errors
    /// The sizes give no region or more than 2^32, or there are more than 1024 threads.
    pub fn new(
        size_bytes: u64,
        region_bytes: u64,
        server_threads: u32,
        distance_ns_max: u64,
    ) -> Result<Self, NeedError> {
        if region_bytes == 0 {
            return Err(NeedError("a region's size"));
        }
        let regions = size_bytes.div_ceil(region_bytes);
        if !(1..=REGIONS_MAX).contains(&regions) {
            return Err(NeedError("the number of regions"));
        }
        if server_threads > THREADS_MAX {
            return Err(NeedError("the number of server threads"));
        }
        Ok(Self {
            regions,
            region_bytes,
            server_threads,
            distance_ns_max,
            is_spot_allowed: false,
        })
    }

    /// Machines that their owner may want back at any time are as good as others.
    #[must_use]
    pub fn with_spot(self, is_allowed: bool) -> Self {
        Self {
            is_spot_allowed: is_allowed,
            ..self
        }
    }

    /// Regions in all.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.regions
    }

    /// The cheapest machines that hold the cache. At the least price there is as long as types of
    /// machines times regions are some ten million, and else at most 5 % above it, as far as
    /// [`Allocation::price_least`] says.
    ///
    /// # Errors
    /// All machines that may be taken are too few.
    pub fn allocate(&self, catalogue: &Catalogue) -> Result<Allocation, NoMachines> {
        let types = catalogue.types();
        let offers: Vec<Offer> = types.iter().map(|one| self.offer(one)).collect();
        let Some(cover) = cover(&offers, self.regions) else {
            let held = offers
                .iter()
                .map(|offer| offer.capacity.saturating_mul(u64::from(offer.count)));
            return Err(NoMachines {
                regions: self.regions,
                at_most: held.fold(0, u64::saturating_add),
            });
        };
        let mut shares = Vec::new();
        let mut left = self.regions;
        for ((one, offer), count) in types.iter().zip(&offers).zip(cover.counts) {
            let full = (left / offer.capacity.max(1)).min(u64::from(count));
            let full = u32::try_from(full).expect("at most the count");
            left -= u64::from(full) * offer.capacity;
            shares.extend(self.share(one, full, offer.capacity));
            // The last machine has the rest.
            if full < count && left > 0 {
                shares.extend(self.share(one, 1, left));
                left = 0;
            }
        }
        debug_assert_eq!(left, 0);
        let price = shares
            .iter()
            .map(|share| Price::from_micros(share.price.micros() * u64::from(share.machines)))
            .sum();
        Ok(Allocation {
            shares,
            price,
            price_least: Price::from_micros(cover.price_least).min(price),
        })
    }

    /// What a type of machine is worth to this cache.
    fn offer(&self, one: &MachineType) -> Offer {
        let by_memory = one.memory_bytes / self.region_bytes;
        // Of r regions of R a machine runs ceil(s * r / R) threads.
        let by_cores = match self.server_threads {
            0 => u64::MAX,
            threads => {
                let wide = u128::from(one.cores) * u128::from(self.regions) / u128::from(threads);
                u64::try_from(wide).unwrap_or(u64::MAX)
            }
        };
        let is_near = one.distance_ns <= self.distance_ns_max;
        Offer {
            capacity: if is_near { by_memory.min(by_cores) } else { 0 },
            price: self.price(one).0.micros(),
            count: one.count,
        }
    }

    /// What one of them costs, and whether that is the spot price.
    fn price(&self, one: &MachineType) -> (Price, bool) {
        match one.spot_price {
            Some(spot) if self.is_spot_allowed && spot < one.price => (spot, true),
            _ => (one.price, false),
        }
    }

    fn share(&self, one: &MachineType, machines: u32, regions: u64) -> Option<Share> {
        let (price, is_spot) = self.price(one);
        let threads = u128::from(self.server_threads) * u128::from(regions);
        let threads = threads.div_ceil(u128::from(self.regions));
        (machines > 0).then(|| Share {
            machine: one.name.clone(),
            provider: one.provider.clone(),
            machines,
            is_spot,
            price,
            regions,
            server_threads: u32::try_from(threads).expect("at most all threads"),
        })
    }
}

/// Machines that hold a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// At most two of each type: machines that are full, and one that has the rest.
    pub shares: Vec<Share>,
    /// Of all machines.
    pub price: Price,
    /// No allocation is cheaper than this; equal to `price` where that is known to be the least.
    pub price_least: Price,
}

/// Machines of one type that get as much each.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Share {
    /// The type's name in the catalogue.
    pub machine: String,
    /// Who has them.
    pub provider: String,
    /// How many.
    pub machines: u32,
    /// Whether they may be wanted back.
    pub is_spot: bool,
    /// Of one of them.
    pub price: Price,
    /// Regions on each.
    pub regions: u64,
    /// Server threads on each, at most its cores.
    pub server_threads: u32,
}

/// All machines that may be taken do not hold the cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the machines that may be taken hold {at_most} of {regions} regions")]
pub struct NoMachines {
    /// What was needed.
    pub regions: u64,
    /// What there is.
    pub at_most: u64,
}

#[cfg(test)]
mod tests;
