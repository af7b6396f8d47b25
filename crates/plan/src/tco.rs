//! What memory that is leased a second time saves of a machine's price: the paper's table 5.
//!
//! `(price of 1 % of the memory x share x months / copies - network - persistent memory) /
//! (price of the machine x months)`, where copies is what a byte takes: 1 + r/k for a code, their
//! number for replicas, 1 with persistent memory beside. The paper takes the persistent memory of
//! a whole machine of 240 GB, for all three clouds alike. Paper: \[hydra22\] 7.4, 7.5.

use anyhow::{Result, ensure};
use serde::Serialize;

/// A machine and the price of its memory, a month.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// For people.
    pub name: String,
    /// Of the whole machine, in USD.
    pub machine_usd: f64,
    /// Of one hundredth of its memory, in USD.
    pub percent_usd: f64,
}

/// What does not depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Share of the memory that is leased, from 0 to 1.
    pub share: f64,
    /// How long.
    pub months: f64,
    /// Data splits.
    pub k: usize,
    /// Parities.
    pub r: usize,
    /// Replicas.
    pub copies: usize,
    /// A machine's network adapter, in USD.
    pub adapter_usd: f64,
    /// Its part of the switch.
    pub switch_usd: f64,
    /// Running both for all months.
    pub operation_usd: f64,
    /// Persistent memory, in USD for a GB.
    pub pm_usd_per_gb: f64,
    /// How much of it, in GB.
    pub pm_gb: f64,
}

/// Savings of one machine, in percent of its price. The JSON object has exactly these keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Savings {
    /// The machine.
    pub machine: String,
    /// With a code of k+r.
    pub hydra: f64,
    /// With replicas.
    pub replication: f64,
    /// With persistent memory behind one copy.
    pub pm: f64,
}

impl Model {
    /// The paper's.
    pub const PAPER: Self = Self {
        share: 0.3,
        months: 36.0,
        k: 8,
        r: 2,
        copies: 2,
        adapter_usd: 600.0,
        switch_usd: 318.0,
        operation_usd: 52.0,
        pm_usd_per_gb: 11.13,
        pm_gb: 240.0,
    };

    /// What a machine saves.
    ///
    /// # Errors
    /// Nothing is paid for, or nothing is held.
    pub fn savings(&self, machine: &Machine) -> Result<Savings> {
        ensure!(
            machine.machine_usd > 0.0 && self.months > 0.0,
            "{}: savings are a part of a price, which is above 0",
            machine.name
        );
        ensure!(self.k > 0 && self.copies > 0, "a byte is held once or more");
        let revenue = machine.percent_usd * 100.0 * self.share * self.months;
        let network = self.adapter_usd + self.switch_usd + self.operation_usd;
        let price = machine.machine_usd * self.months;
        let of = |copies: f64, beside: f64| (revenue / copies - network - beside) / price * 100.0;
        Ok(Savings {
            machine: machine.name.clone(),
            hydra: of(1.0 + self.r as f64 / self.k as f64, 0.0),
            replication: of(self.copies as f64, 0.0),
            pm: of(1.0, self.pm_usd_per_gb * self.pm_gb),
        })
    }
}

/// The paper's machines.
#[must_use]
pub fn machines() -> Vec<Machine> {
    let prices = [
        ("Google", 1553.0, 5.18),
        ("Amazon", 2304.0, 9.21),
        ("Microsoft", 1572.0, 5.92),
    ];
    let machine = |(name, machine_usd, percent_usd): (&str, f64, f64)| Machine {
        name: name.to_owned(),
        machine_usd,
        percent_usd,
    };
    prices.map(machine).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed from the paper's formula, of which its table has one digit less.
    #[test]
    fn table_5() {
        let expected = [(6.27, 3.27, 3.49), (8.42, 4.83, 7.60), (7.32, 3.93, 4.86)];
        for (machine, (hydra, replication, pm)) in machines().iter().zip(expected) {
            let found = Model::PAPER.savings(machine).unwrap();
            for (found, expected) in [
                (found.hydra, hydra),
                (found.replication, replication),
                (found.pm, pm),
            ] {
                assert!((found - expected).abs() <= 0.005, "{found} {expected}");
            }
        }
    }

    #[test]
    fn other_prices_shares_and_codes_give_other_savings() {
        let machine = Machine {
            name: "ours".to_owned(),
            machine_usd: 100.0,
            percent_usd: 1.0,
        };
        let model = Model {
            share: 0.5,
            months: 10.0,
            k: 4,
            r: 1,
            copies: 4,
            adapter_usd: 20.0,
            switch_usd: 10.0,
            operation_usd: 10.0,
            pm_usd_per_gb: 2.0,
            pm_gb: 30.0,
        };
        // 500 USD in ten months, of 1000: 40 for the network, 60 for persistent memory.
        let found = model.savings(&machine).unwrap();
        let figures = [found.hydra, found.replication, found.pm];
        assert_eq!(
            figures.map(|figure| (figure * 10.0).round()),
            [360.0, 85.0, 400.0]
        );
        assert!(Model { copies: 0, ..model }.savings(&machine).is_err());
        let free = Machine {
            machine_usd: 0.0,
            ..machine
        };
        assert!(model.savings(&free).is_err());
    }
}
