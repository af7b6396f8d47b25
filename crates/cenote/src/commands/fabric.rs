//! `cenote fabric`: over which fabrics this program reaches memory on this machine, and why not.

use std::io::Write;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::stdout;
use cenote_cli::table::Table;
use cenote_fabric::rdma::{self, Support};
use serde::Serialize;

/// `fabric` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote fabric list
  cenote fabric list --json | jq -r '.[] | select(.usable) | .fabric'")]
pub struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// List the transports, whether each is usable, and why
    #[command(after_help = "Example:\n  cenote fabric list --json")]
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
}

/// One fabric.
#[derive(Serialize)]
struct Row {
    fabric: &'static str,
    usable: bool,
    reason: String,
    /// Names of devices, where the fabric has any.
    devices: Vec<String>,
}

pub fn run(args: &Args) -> Result<u8> {
    let Action::List { json } = args.command;
    let rows = rows();
    let mut out = stdout::lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
        return Ok(DONE);
    }
    let mut table = Table::new(["FABRIC", "USABLE", "WHY"]);
    for row in rows {
        let usable = if row.usable { "yes" } else { "no" };
        table.row(vec![row.fabric.into(), usable.into(), row.reason]);
    }
    table.write(&mut out)?;
    Ok(DONE)
}

fn rows() -> [Row; 3] {
    let always = |fabric, reason: &str| Row {
        fabric,
        usable: true,
        reason: reason.to_owned(),
        devices: Vec::new(),
    };
    let support = rdma::support();
    let devices = match &support {
        Support::Devices(devices) => devices.iter().map(|device| device.name.clone()).collect(),
        _ => Vec::new(),
    };
    [
        always("shm", "on every Linux, between processes of one machine"),
        always("tcp", "on every Linux"),
        Row {
            fabric: "rdma",
            usable: matches!(support, Support::Devices(_)),
            reason: support.to_string(),
            devices,
        },
    ]
}
