//! Machines, what they cost, and which of them a cache takes.
//!
//! - [`Catalogue`]: what can be had.
//! - [`Need`] and [`Need::allocate`]: the machines that cost least.
//! - [`Move`]: whether cheaper machines are worth moving to; [`Lookout`]: when that is asked.
//! - [`Source`]: where machines come from; [`crate::providers`] gets them.
//!
//! Paper: \[redy22\], VM allocation.

mod allocation;
mod catalogue;
mod cover;
mod lookout;
mod relocation;
mod source;

pub use allocation::{Allocation, Need, NeedError, NoMachines, Share};
pub use catalogue::{Catalogue, CatalogueError, EVERY, MachineType};
pub use lookout::{Holding, Lookout};
pub use relocation::Move;
pub use source::{Source, SourceKind};

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// An amount of money per hour, in millionths of the catalogue's currency. Displays in that currency.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Price(u64);

impl Price {
    /// Nothing.
    pub const FREE: Self = Self(0);

    /// So many millionths per hour.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Millionths per hour.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// From a number as people write it, rounded to a millionth; from 0 to a million.
    #[must_use]
    pub fn new(per_hour: f64) -> Option<Self> {
        let is_price = (0.0..=1e6).contains(&per_hour);
        is_price.then(|| Self((per_hour * 1e6).round() as u64))
    }

    /// In the catalogue's currency.
    #[must_use]
    pub fn per_hour(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Price {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Price {
    fn sum<I: Iterator<Item = Self>>(prices: I) -> Self {
        prices.fold(Self::FREE, Add::add)
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let text = format!("{whole}.{rest:06}");
        // Cents are always shown.
        let shown = text.trim_end_matches('0').len().max(text.len() - 4);
        f.write_str(&text[..shown])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_to_a_millionth_and_shown_with_cents() {
        for (given, shown) in [
            (0.0, "0.00"),
            (2.28, "2.28"),
            (0.0000014, "0.000001"),
            (12.5, "12.50"),
        ] {
            assert_eq!(Price::new(given).unwrap().to_string(), shown);
        }
        for wrong in [-0.01, f64::NAN, f64::INFINITY, 1e6 + 1.0] {
            assert_eq!(Price::new(wrong), None);
        }
    }
}
