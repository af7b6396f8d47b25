//! `loss`.

use std::io::{Write, stdout};

use anyhow::Result;
use cenote_lab::hydra::loss::Case;
use serde::Serialize;

use super::super::output::share;
use crate::failure::DONE;

const PAPER: Case = Case::PAPER;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Data splits of a page
    #[arg(long, value_name = "N", default_value_t = PAPER.k)]
    k: usize,
    /// Parities of a page
    #[arg(long, value_name = "N", default_value_t = PAPER.r)]
    r: usize,
    /// Hosts of a group beyond k+r
    #[arg(long, value_name = "N", default_value_t = PAPER.l)]
    l: usize,
    /// Slabs that are used on each host
    #[arg(long, value_name = "N", default_value_t = PAPER.slabs_per_host)]
    slabs_per_host: u32,
    /// Share of the hosts that fails at once
    #[arg(long, value_name = "SHARE", default_value_t = PAPER.failed, value_parser = share)]
    failed: f64,
    /// Hosts of the cluster
    #[arg(long, value_name = "N", default_value_t = PAPER.hosts)]
    hosts: usize,
    /// JSON on standard output in place of text
    #[arg(long)]
    json: bool,
}

/// The JSON line.
#[derive(Serialize)]
struct Row {
    ec_cache: f64,
    coding_sets: f64,
}

pub fn run(args: &Args) -> Result<u8> {
    let case = Case {
        hosts: args.hosts,
        k: args.k,
        r: args.r,
        l: args.l,
        slabs_per_host: args.slabs_per_host,
        failed: args.failed,
    };
    case.check()?;
    let row = Row {
        ec_cache: case.random_groups(),
        coding_sets: case.coding_sets(),
    };
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &row)?;
        writeln!(out)?;
        return Ok(DONE);
    }
    writeln!(
        out,
        "Data is lost when {} hosts fail at once",
        case.failing()
    )?;
    writeln!(out, "EC-Cache    {:.3e}", row.ec_cache)?;
    writeln!(out, "CodingSets  {:.3e}", row.coding_sets)?;
    Ok(DONE)
}
