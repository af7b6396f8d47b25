//! `cost` and `revenue`.

use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::number::{amount, share};
use cenote_cli::span::Span;
use cenote_papers::infiniswap::cost::{
    CostModel, RevenueModel, cost_csv, cost_plot, revenue_csv, revenue_plot,
};

use super::super::output::Output;

const PAPER: CostModel = CostModel::PAPER;

#[derive(clap::Args, Debug)]
struct Parameters {
    /// Power of a machine's network card
    #[arg(long, value_name = "W", default_value_t = PAPER.nic_watts, value_parser = amount)]
    nic_watts: f64,
    /// Power of the switch
    #[arg(long, value_name = "W", default_value_t = PAPER.switch_watts, value_parser = amount)]
    switch_watts: f64,
    /// Machines that share the switch
    #[arg(long, value_name = "N", default_value_t = PAPER.switch_ports, value_parser = clap::value_parser!(u32).range(1..))]
    switch_ports: u32,
    /// Datacenter power for each watt of its machines (PUE)
    #[arg(long, value_name = "RATIO", default_value_t = PAPER.pue, value_parser = amount)]
    pue: f64,
    /// Length of a billing month
    #[arg(long, value_name = "DURATION", default_value = "730h")]
    month: Span,
    /// Price of energy
    #[arg(long, value_name = "USD", default_value_t = PAPER.usd_per_kwh, value_parser = amount)]
    usd_per_kwh: f64,
    /// Monthly datacenter cost for each watt
    #[arg(long, value_name = "USD", default_value_t = PAPER.datacenter_usd_per_watt, value_parser = amount)]
    datacenter_usd_per_watt: f64,
}

impl Parameters {
    fn model(&self) -> CostModel {
        CostModel {
            nic_watts: self.nic_watts,
            switch_watts: self.switch_watts,
            switch_ports: self.switch_ports,
            pue: self.pue,
            hours: Duration::from(self.month).as_secs_f64() / 3600.0,
            usd_per_kwh: self.usd_per_kwh,
            datacenter_usd_per_watt: self.datacenter_usd_per_watt,
        }
    }
}

#[derive(clap::Args, Debug)]
pub struct Cost {
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args, Debug)]
pub struct Revenue {
    /// Monthly price of a machine
    #[arg(long, value_name = "USD", value_parser = amount)]
    machine_usd: f64,
    /// Monthly price of all its memory
    #[arg(long, value_name = "USD", value_parser = amount)]
    memory_usd: f64,
    /// Share of the memory that is lent out
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = share)]
    share: f64,
    /// Price of lent memory relative to its own; below 1 it is discounted
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    discounted_to: f64,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    output: Output,
}

pub fn cost(args: &Cost) -> Result<u8> {
    let model = args.parameters.model();
    let cost = model.cost()?;
    if args.output.wants_files() {
        let rows = model.by_ports()?;
        args.output
            .write_files(&cost_csv(&rows), &cost_plot(&rows))?;
    }
    args.output.print(&[cost.figure()], |out| {
        writeln!(out, "Monthly network cost per machine")?;
        writeln!(out, "power       {:>8.2} W", cost.watts)?;
        writeln!(out, "energy      {:>8.3} USD", cost.energy_usd)?;
        writeln!(out, "building    {:>8.3} USD", cost.datacenter_usd)?;
        writeln!(out, "both        {:>8.2} USD   the paper: 1.45", cost.usd())
    })?;
    Ok(DONE)
}

pub fn revenue(args: &Revenue) -> Result<u8> {
    let model = RevenueModel {
        machine_usd: args.machine_usd,
        memory_usd: args.memory_usd,
        share: args.share,
        discounted_to: args.discounted_to,
        cost_usd: args.parameters.model().cost()?.usd(),
    };
    let revenue = model.revenue()?;
    if args.output.wants_files() {
        let rows = model.by_share()?;
        args.output
            .write_files(&revenue_csv(&rows), &revenue_plot(&rows))?;
    }
    args.output.print(&[revenue], |out| {
        writeln!(
            out,
            "{:+.1} % of the machine's price   the paper, at prices that it does not give: up to \
             +24.7 % regular, about +2 % discounted",
            revenue.gain_percent
        )
    })?;
    Ok(DONE)
}
