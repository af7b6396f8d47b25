//! The look for cheaper machines: when, and whether what is found is taken.

use std::time::Duration;

use cenote_fabric::Time;

use super::{Allocation, Catalogue, Move, Need, Price};

/// What a cache uses, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holding {
    /// What its machines cost now.
    pub price: Price,
    /// How long it is expected to go on.
    pub remaining: Duration,
    /// How long it takes to copy all of it.
    pub copying: Duration,
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub struct Lookout {
    every: Duration,
    next: Time,
}

impl Lookout {
    /// Looks for the first time after `every`: the machines were chosen just now.
    #[must_use]
    pub fn new(now: Time, every: Duration) -> Self {
        Self {
            every,
            next: now.after(every),
        }
    }

    /// Looks so often from the next look on.
    pub fn set_every(&mut self, every: Duration) {
        self.every = every;
    }

    /// When it wants to look next.
    #[must_use]
    pub fn due(&self) -> Time {
        self.next
    }

    /// Looks, if it is time to: the machines to move to, if that pays. `catalogue` has the prices of
    /// now, and what can still be had.
    pub fn look(
        &mut self,
        now: Time,
        need: &Need,
        catalogue: &Catalogue,
        holding: &Holding,
    ) -> Option<Allocation> {
        if now < self.next {
            return None;
        }
        self.next = now.after(self.every);
        // Without any there is nothing to move to, and the cache stays where it is.
        let offered = need.allocate(catalogue).ok()?;
        let candidate = Move {
            current: holding.price,
            offered: offered.price,
            remaining: holding.remaining,
            copying: holding.copying,
            disturbance_micros: 0,
        };
        candidate.is_worth_it().then_some(offered)
    }
}

#[cfg(test)]
mod tests {
    use super::super::EVERY;
    use super::*;

    const TEXT: &str = "\
[[machine]]
name = \"small\"
provider = \"cloud\"
cores = 2
memory_mib = 4096
price_per_hour = 0.1
count = 3
";

    fn holding(micros: u64) -> Holding {
        Holding {
            price: Price::from_micros(micros),
            remaining: Duration::from_secs(7200),
            copying: Duration::from_secs(10),
        }
    }

    #[test]
    fn it_looks_now_and_then_and_takes_what_pays() {
        let catalogue: Catalogue = TEXT.parse().unwrap();
        let need = Need::new(4 << 30, 1 << 30, 0, 0).unwrap();
        let mut lookout = Lookout::new(Time(0), EVERY);
        let dear = holding(1_000_000);
        let at = |looks: u64| Time(0).after(EVERY * u32::try_from(looks).unwrap());
        let early = Time(at(1).0 - 1);
        assert_eq!(lookout.look(early, &need, &catalogue, &dear), None);
        let found = lookout.look(at(1), &need, &catalogue, &dear).unwrap();
        assert_eq!(
            (found.price, found.shares.len()),
            (Price::from_micros(100_000), 1)
        );
        assert_eq!(lookout.look(at(1), &need, &catalogue, &dear), None, "once");
        assert_eq!(lookout.due(), at(2));
        let same = holding(100_000);
        assert_eq!(lookout.look(at(2), &need, &catalogue, &same), None);
        let too_much = Need::new(64 << 30, 1 << 30, 0, 0).unwrap();
        assert_eq!(lookout.look(at(3), &too_much, &catalogue, &dear), None);
        let over = Holding {
            remaining: Duration::from_secs(5),
            ..dear
        };
        assert_eq!(lookout.look(at(4), &need, &catalogue, &over), None);
    }
}
