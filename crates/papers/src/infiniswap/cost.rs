//! What the network of remote memory costs, and what the memory earns.
//!
//! Formulas only. The paper gives the parameters but for the ports of the switch, whose power
//! is shared by the machines on it: 36 are those of the switch that it cites, and the number that
//! makes its $1.45 come out. Prices of vendors are not in it, so revenue has no defaults.
//! Units: watts, hours, US dollars. Paper: \[infiniswap17\] appendix C, table 2.

use anyhow::{Result, ensure};
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use serde::Serialize;

/// Parameters of what a machine's part of the network costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Power of the machine's network card.
    pub nic_watts: f64,
    /// Power of the switch.
    pub switch_watts: f64,
    /// Machines that share the switch.
    pub switch_ports: u32,
    /// Power of the whole building for each watt of its machines.
    pub pue: f64,
    /// Of a month.
    pub hours: f64,
    /// Price of energy.
    pub usd_per_kwh: f64,
    /// What the building costs a month for each watt in it.
    pub datacenter_usd_per_watt: f64,
}

/// What it comes to for one machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The card and a port, as the building draws it.
    pub watts: f64,
    /// Energy of a month.
    pub energy_usd: f64,
    /// The building's part of a month.
    pub datacenter_usd: f64,
}

/// The JSON of [`Cost`]: exactly this key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostFigure {
    /// In full precision.
    pub usd_per_machine_month: f64,
}

impl Cost {
    /// Of a machine in a month.
    #[must_use]
    pub fn usd(&self) -> f64 {
        self.energy_usd + self.datacenter_usd
    }

    /// For JSON.
    #[must_use]
    pub fn figure(&self) -> CostFigure {
        CostFigure {
            usd_per_machine_month: self.usd(),
        }
    }
}

impl CostModel {
    /// Table 2 of the paper; a month is a twelfth of 8760 hours.
    pub const PAPER: Self = Self {
        nic_watts: 8.41,
        switch_watts: 231.0,
        switch_ports: 36,
        pue: 1.1,
        hours: 730.0,
        usd_per_kwh: 0.067,
        datacenter_usd_per_watt: 0.04,
    };

    /// Adds it up.
    ///
    /// # Errors
    /// A switch without ports.
    pub fn cost(&self) -> Result<Cost> {
        ensure!(self.switch_ports > 0, "a switch has a port at least");
        let watts = (self.nic_watts + self.switch_watts / f64::from(self.switch_ports)) * self.pue;
        Ok(Cost {
            watts,
            energy_usd: watts * self.hours / 1000.0 * self.usd_per_kwh,
            datacenter_usd: watts * self.datacenter_usd_per_watt,
        })
    }

    /// Costs by how many machines share the switch, up to twice as many as the model says.
    ///
    /// # Errors
    /// As [`CostModel::cost`].
    pub fn by_ports(&self) -> Result<Vec<(u32, Cost)>> {
        (1..=self.switch_ports.saturating_mul(2).min(PORTS_MAX))
            .map(|switch_ports| {
                let model = Self {
                    switch_ports,
                    ..*self
                };
                Ok((switch_ports, model.cost()?))
            })
            .collect()
    }
}

/// Most ports that are listed. Arbitrary.
const PORTS_MAX: u32 = 1024;

/// One row for each number of machines on the switch.
#[must_use]
pub fn cost_csv(rows: &[(u32, Cost)]) -> Csv {
    let mut csv = Csv::new("switch_ports,watts,energy_usd,datacenter_usd,usd_per_machine_month");
    for (ports, cost) in rows {
        let cells: [&dyn std::fmt::Display; 5] = [
            ports,
            &cost.watts,
            &cost.energy_usd,
            &cost.datacenter_usd,
            &cost.usd(),
        ];
        csv.row(&cells);
    }
    csv
}

/// The same as a picture.
#[must_use]
pub fn cost_plot(rows: &[(u32, Cost)]) -> Plot {
    let line = |name: &str, value: fn(&Cost) -> f64| {
        let points = rows.iter();
        let points = points.map(|(ports, cost)| (f64::from(*ports), value(cost)));
        Line::new(name, points.collect())
    };
    Plot {
        title: "Cost of the network for a machine and month".to_owned(),
        x_label: "machines on the switch",
        y_label: "US dollars",
        x: 1.0..rows.last().map_or(2.0, |(ports, _)| f64::from(*ports)),
        x_scale: Scale::Linear,
        y: 0.0..rows.first().map_or(1.0, |(_, cost)| cost.usd() * 1.05),
        lines: vec![
            line("both", Cost::usd),
            line("energy", |cost| cost.energy_usd),
            line("building", |cost| cost.datacenter_usd),
        ],
        legend: Legend::UpperRight,
    }
}

/// What a vendor takes for a machine, and how much of its memory is lent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RevenueModel {
    /// Price of the machine, a month.
    pub machine_usd: f64,
    /// Price of all its memory, a month.
    pub memory_usd: f64,
    /// Share of the memory that is sold a second time, 0 to 1. The paper: 0.2.
    pub share: f64,
    /// Of what memory costs otherwise, 0 to 1: 1 is the paper's regular pricing.
    pub discounted_to: f64,
    /// What the network costs, a month.
    pub cost_usd: f64,
}

/// The JSON of a revenue: exactly this key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Revenue {
    /// More than the machine brings by itself, in percent of that.
    pub gain_percent: f64,
}

impl RevenueModel {
    /// The gain.
    ///
    /// # Errors
    /// A machine without a price.
    pub fn revenue(&self) -> Result<Revenue> {
        ensure!(self.machine_usd > 0.0, "the machine has no price");
        let sold_usd = self.share * self.memory_usd * self.discounted_to;
        Ok(Revenue {
            gain_percent: 100.0 * (sold_usd - self.cost_usd) / self.machine_usd,
        })
    }

    /// Gains by the share that is sold, in steps of a hundredth up to a half.
    ///
    /// # Errors
    /// As [`RevenueModel::revenue`].
    pub fn by_share(&self) -> Result<Vec<(f64, Revenue)>> {
        (0..=50_u32)
            .map(|hundredths| {
                let share = f64::from(hundredths) / 100.0;
                Ok((share, Self { share, ..*self }.revenue()?))
            })
            .collect()
    }
}

/// One row for each share.
#[must_use]
pub fn revenue_csv(rows: &[(f64, Revenue)]) -> Csv {
    let mut csv = Csv::new("share,gain_percent");
    for (share, revenue) in rows {
        csv.row(&[share, &revenue.gain_percent]);
    }
    csv
}

/// The same as a picture.
#[must_use]
pub fn revenue_plot(rows: &[(f64, Revenue)]) -> Plot {
    let gains = rows.iter().map(|(_, revenue)| revenue.gain_percent);
    let (low, high) = gains.fold((0.0_f64, 1.0_f64), |(low, high), gain| {
        (low.min(gain), high.max(gain))
    });
    Plot {
        title: "Revenue by memory sold a second time".to_owned(),
        x_label: "share of the memory",
        y_label: "gain, percent of the machine's price",
        x: 0.0..0.5,
        x_scale: Scale::Linear,
        y: low..high,
        lines: vec![Line::new(
            "gain",
            rows.iter()
                .map(|(share, revenue)| (*share, revenue.gain_percent))
                .collect(),
        )],
        legend: Legend::UpperLeft,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's words: "around $1.45 per month".
    #[test]
    fn a_machine_costs_a_dollar_and_45_cents() {
        let cost = CostModel::PAPER.cost().unwrap();
        assert_eq!(format!("{:.2}", cost.usd()), "1.45");
        // By hand: 8.41 + 6.4166.. = 14.8266..; times 1.1.
        assert_eq!(format!("{:.2}", cost.watts), "16.31");
        assert_eq!(format!("{:.3}", cost.energy_usd), "0.798");
        assert_eq!(format!("{:.3}", cost.datacenter_usd), "0.652");
    }

    #[test]
    fn without_a_port_there_is_no_cost() {
        let model = CostModel {
            switch_ports: 0,
            ..CostModel::PAPER
        };
        assert!(model.cost().is_err());
    }

    #[test]
    fn the_table_has_the_models_own_row() {
        let model = CostModel::PAPER;
        let rows = model.by_ports().unwrap();
        assert_eq!(rows.len(), 72);
        assert_eq!(rows[35], (36, model.cost().unwrap()));
        assert!(rows.is_sorted_by(|a, b| a.1.usd() > b.1.usd()));
        assert_eq!(cost_csv(&rows).text().lines().count(), 73);
        assert!(cost_plot(&rows).svg().is_ok());
    }

    #[test]
    fn revenue_is_what_is_sold_less_what_it_costs() {
        // A fifth of 100 is 20, less 2 is 18, of 200 is 9 percent; at half price 4 percent.
        let model = RevenueModel {
            machine_usd: 200.0,
            memory_usd: 100.0,
            share: 0.2,
            discounted_to: 1.0,
            cost_usd: 2.0,
        };
        assert!((model.revenue().unwrap().gain_percent - 9.0).abs() < 1e-12);
        let cheap = RevenueModel {
            discounted_to: 0.5,
            ..model
        };
        assert!((cheap.revenue().unwrap().gain_percent - 4.0).abs() < 1e-12);
        let nothing = RevenueModel {
            share: 0.0,
            ..model
        };
        assert!((nothing.revenue().unwrap().gain_percent + 1.0).abs() < 1e-12);
        let rows = model.by_share().unwrap();
        assert_eq!(rows.len(), 51);
        assert!(revenue_csv(&rows).text().contains("\n0.2,9\n"));
        assert!(revenue_plot(&rows).svg().is_ok());
        let free = RevenueModel {
            machine_usd: 0.0,
            ..model
        };
        assert!(free.revenue().is_err());
    }
}
