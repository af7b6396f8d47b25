//! `plan tco`.

use std::io::Write;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::number::{amount, share};
use cenote_cli::stdout;
use cenote_cli::table::Table;
use cenote_plan::tco::{Machine, Model, Savings, machines};

const PAPER: Model = Model::PAPER;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Monthly price of a machine, in place of the paper's three
    #[arg(long, value_name = "USD", requires = "percent_usd", value_parser = amount)]
    machine_usd: Option<f64>,
    /// Monthly price of 1 % of its memory
    #[arg(long, value_name = "USD", requires = "machine_usd", value_parser = amount)]
    percent_usd: Option<f64>,
    /// Share of the memory that is leased out
    #[arg(long, value_name = "SHARE", default_value_t = PAPER.share, value_parser = share)]
    share: f64,
    /// Number of months
    #[arg(long, value_name = "N", default_value_t = PAPER.months, value_parser = amount)]
    months: f64,
    /// Data splits of a page (k)
    #[arg(long, value_name = "N", default_value_t = PAPER.k)]
    k: usize,
    /// Parity splits of a page (r)
    #[arg(long, value_name = "N", default_value_t = PAPER.r)]
    r: usize,
    /// Copies of a page under replication
    #[arg(long, value_name = "N", default_value_t = PAPER.copies)]
    copies: usize,
    /// Price of a machine's network adapter
    #[arg(long, value_name = "USD", default_value_t = PAPER.adapter_usd, value_parser = amount)]
    adapter_usd: f64,
    /// A machine's share of the switch price
    #[arg(long, value_name = "USD", default_value_t = PAPER.switch_usd, value_parser = amount)]
    switch_usd: f64,
    /// Operating cost of both, over all months
    #[arg(long, value_name = "USD", default_value_t = PAPER.operation_usd, value_parser = amount)]
    operation_usd: f64,
    /// Price of persistent memory, per GB
    #[arg(long, value_name = "USD", default_value_t = PAPER.pm_usd_per_gb, value_parser = amount)]
    pm_usd_per_gb: f64,
    /// Persistent memory of a machine
    #[arg(long, value_name = "GB", default_value_t = PAPER.pm_gb, value_parser = amount)]
    pm_gb: f64,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let model = Model {
        share: args.share,
        months: args.months,
        k: args.k,
        r: args.r,
        copies: args.copies,
        adapter_usd: args.adapter_usd,
        switch_usd: args.switch_usd,
        operation_usd: args.operation_usd,
        pm_usd_per_gb: args.pm_usd_per_gb,
        pm_gb: args.pm_gb,
    };
    let machines = match args.machine_usd.zip(args.percent_usd) {
        Some((machine_usd, percent_usd)) => vec![Machine {
            name: "yours".to_owned(),
            machine_usd,
            percent_usd,
        }],
        None => machines(),
    };
    let savings: Vec<Savings> = machines
        .iter()
        .map(|machine| model.savings(machine))
        .collect::<Result<_>>()?;
    let mut out = stdout::lock();
    if args.json {
        serde_json::to_writer(&mut out, &savings)?;
        writeln!(out)?;
        return Ok(DONE);
    }
    let mut table = Table::new(["MACHINE", "HYDRA", "REPLICATION", "PERSISTENT MEMORY"]);
    let percent = |figure: f64| format!("{figure:.2} %");
    for row in savings {
        table.row(vec![
            row.machine,
            percent(row.hydra),
            percent(row.replication),
            percent(row.pm),
        ]);
    }
    table.write(&mut out)?;
    Ok(DONE)
}
