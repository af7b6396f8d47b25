//! The cheapest machines that hold so many regions together: the covering form of the knapsack problem.
//!
//! Exact, by a table over regions, as long as that has at most [`CELLS_MAX`] cells. Above that
//! machines are taken in the order of price by region with branch and bound, which passes over what cannot
//! lower the price by 5 %, and ends after [`NODES_MAX`] steps.

/// Machines of one kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Offer {
    /// Regions that one of them holds; 0 is no use.
    pub capacity: u64,
    /// Price of one of them.
    pub price: u64,
    /// How many there are.
    pub count: u32,
}

/// How many of each offer are taken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Cover {
    pub counts: Vec<u32>,
    pub price: u64,
    /// Nothing is cheaper than this.
    pub price_least: u64,
}

/// Most cells of the table, of 12 bytes and a bit each; a fifth of a second or so.
const CELLS_MAX: u64 = 1 << 25;
/// Most steps of branch and bound.
const NODES_MAX: u32 = 1 << 20;

/// The cheapest that hold `regions`; `None` if all together do not.
pub(super) fn cover(offers: &[Offer], regions: u64) -> Option<Cover> {
    let all = offers
        .iter()
        .map(|offer| u128::from(offer.capacity) * u128::from(offer.count));
    if all.sum::<u128>() < u128::from(regions) {
        return None;
    }
    let bundles = bundles(offers, regions);
    let cells = (bundles.len() as u64).saturating_mul(regions + 1);
    if cells <= CELLS_MAX {
        return Some(by_table(offers, &bundles, regions));
    }
    Some(Bounded::new(offers, regions).run())
}

/// So many machines of one offer, taken together or not at all.
struct Bundle {
    offer: usize,
    count: u32,
    capacity: u64,
    price: u64,
}

/// Any number of an offer's machines up to its count, as a choice of bundles of 1, 2, 4, ...
fn bundles(offers: &[Offer], regions: u64) -> Vec<Bundle> {
    let mut bundles = Vec::new();
    for (index, offer) in offers.iter().enumerate() {
        if offer.capacity == 0 {
            continue;
        }
        let enough = regions.div_ceil(offer.capacity);
        let mut left = u64::from(offer.count).min(enough);
        let mut size = 1;
        while left > 0 {
            let taken = left.min(size);
            bundles.push(Bundle {
                offer: index,
                count: u32::try_from(taken).expect("at most the count"),
                capacity: offer.capacity.saturating_mul(taken),
                price: offer.price.saturating_mul(taken),
            });
            left -= taken;
            size *= 2;
        }
    }
    bundles
}

/// For each number of regions the least price, and of equal prices the fewest machines.
fn by_table(offers: &[Offer], bundles: &[Bundle], regions: u64) -> Cover {
    let regions = usize::try_from(regions).expect("a table fits into memory");
    let nothing_holds = (u64::MAX, u32::MAX);
    let mut best = vec![nothing_holds; regions + 1];
    best[0] = (0, 0);
    let words = regions / 64 + 1;
    let mut taken = vec![0_u64; bundles.len() * words];
    for (index, bundle) in bundles.iter().enumerate() {
        let capacity = usize::try_from(bundle.capacity).unwrap_or(usize::MAX);
        // Downwards: what a bundle is added to does not hold it already.
        for held in (1..=regions).rev() {
            let (price, machines) = best[held.saturating_sub(capacity)];
            if (price, machines) == nothing_holds {
                continue;
            }
            let with = (
                price.saturating_add(bundle.price),
                machines.saturating_add(bundle.count),
            );
            if with < best[held] {
                best[held] = with;
                taken[index * words + held / 64] |= 1 << (held % 64);
            }
        }
    }
    let mut counts = vec![0; offers.len()];
    let mut held = regions;
    for (index, bundle) in bundles.iter().enumerate().rev() {
        if taken[index * words + held / 64] >> (held % 64) & 1 == 1 {
            counts[bundle.offer] += bundle.count;
            held = held.saturating_sub(usize::try_from(bundle.capacity).unwrap_or(usize::MAX));
        }
    }
    let price = best[regions].0;
    Cover {
        counts,
        price,
        price_least: price,
    }
}

/// Branch and bound over offers in the order of price by region.
struct Bounded<'a> {
    offers: &'a [Offer],
    regions: u64,
    /// Indexes of offers.
    order: Vec<usize>,
    /// Regions and prices of all machines of the first offers of `order`, by how many offers.
    capacity_before: Vec<u128>,
    price_before: Vec<u128>,
}

impl<'a> Bounded<'a> {
    fn new(offers: &'a [Offer], regions: u64) -> Self {
        let mut order: Vec<usize> = (0..offers.len()).collect();
        order.retain(|&index| offers[index].capacity > 0 && offers[index].count > 0);
        order.sort_by(|&one, &other| {
            let (one, other) = (offers[one], offers[other]);
            let ours = u128::from(one.price) * u128::from(other.capacity);
            let theirs = u128::from(other.price) * u128::from(one.capacity);
            // Of equal ones the larger first: the smaller fill up.
            ours.cmp(&theirs).then(other.capacity.cmp(&one.capacity))
        });
        let sums = |of: fn(Offer) -> u64| {
            let mut sum = 0;
            let all = order.iter().map(|&index| {
                let offer = offers[index];
                sum += u128::from(of(offer)) * u128::from(offer.count);
                sum
            });
            std::iter::once(0).chain(all).collect()
        };
        Self {
            offers,
            regions,
            capacity_before: sums(|offer| offer.capacity),
            price_before: sums(|offer| offer.price),
            order,
        }
    }

    /// What `regions` cost at least with offers from `from` on, could machines be had in parts; `None` if they do
    /// not hold so many.
    fn at_least(&self, from: usize, regions: u64) -> Option<u128> {
        let wanted = self.capacity_before[from] + u128::from(regions);
        let whole = self.capacity_before.partition_point(|sum| *sum < wanted);
        if whole == self.capacity_before.len() {
            return None;
        }
        if whole <= from {
            return Some(0);
        }
        let offer = self.offers[self.order[whole - 1]];
        let rest = wanted - self.capacity_before[whole - 1];
        let part = (rest * u128::from(offer.price)).div_ceil(u128::from(offer.capacity));
        Some(self.price_before[whole - 1] - self.price_before[from] + part)
    }

    fn run(&self) -> Cover {
        let least = self.at_least(0, self.regions).unwrap_or(0);
        let mut best: Option<(u128, Vec<u32>)> = None;
        // How many of each offer, in their order, so far.
        let mut chosen: Vec<u32> = Vec::with_capacity(self.order.len());
        let (mut price, mut held) = (0_u128, 0_u128);
        let mut is_whole = false;
        for _ in 0..NODES_MAX {
            let left = u128::from(self.regions).saturating_sub(held);
            let left = u64::try_from(left).expect("at most the regions");
            let best_price = best.as_ref().map(|(price, _)| *price);
            if left == 0 && best_price.is_none_or(|best| price < best) {
                best = Some((price, chosen.clone()));
            }
            let goes_on = left > 0
                && self.at_least(chosen.len(), left).is_some_and(|more| {
                    best_price.is_none_or(|best| is_better(price + more, best))
                });
            if goes_on {
                let offer = self.offers[self.order[chosen.len()]];
                let enough = left.div_ceil(offer.capacity);
                let count = u64::from(offer.count).min(enough);
                price += u128::from(offer.price) * u128::from(count);
                held += u128::from(offer.capacity) * u128::from(count);
                chosen.push(u32::try_from(count).expect("at most the offer's count"));
                continue;
            }
            // Back to the last offer of which one less can be taken.
            while chosen.last() == Some(&0) {
                chosen.pop();
            }
            let Some(last) = chosen.last_mut() else {
                is_whole = true;
                break;
            };
            *last -= 1;
            let offer = self.offers[self.order[chosen.len() - 1]];
            price -= u128::from(offer.price);
            held -= u128::from(offer.capacity);
        }
        let (price, chosen) = best.expect("the first way down holds everything");
        let mut counts = vec![0; self.offers.len()];
        for (&index, count) in self.order.iter().zip(chosen) {
            counts[index] = count;
        }
        let proven = if is_whole { price * 100 / 105 } else { 0 };
        let saturated = |price: u128| u64::try_from(price).unwrap_or(u64::MAX);
        Cover {
            counts,
            price: saturated(price),
            price_least: saturated(least.max(proven)),
        }
    }
}

/// Whether `price` is lower than `best` by more than the 5 % that are left on the table.
fn is_better(price: u128, best: u128) -> bool {
    price * 105 < best * 100
}

#[cfg(test)]
mod tests;
