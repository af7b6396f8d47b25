//! `cache plan`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use cenote_cache::market::{Allocation, Catalogue, Need};
use cenote_cache::tuner::{Found, Model, Transport};
use cenote_cache::{Slo, Writes};
use cenote_cli::failure::{DONE, NOT_WHOLE};
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_cli::stdout;
use cenote_cli::table::Table;
use cenote_measurer::files;
use clap::ArgGroup;
use serde::Serialize;

use super::slo::{Best, Choice, ModelArgs, refused, told, transport_of};

#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("how").args(["model", "server_threads"]))]
pub struct Args {
    /// TOML file of machine types and prices
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,
    /// Size of the cache
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Size of a region, the part of a cache on one machine
    #[arg(long, value_name = "SIZE", default_value_t = Size(1 << 30))]
    region: Size,
    /// Also use spot machines, which may be taken back
    #[arg(long)]
    spot: bool,
    /// Total server threads, without a model [default: 0, one-sided verbs]
    #[arg(long, value_name = "N")]
    server_threads: Option<u32>,
    /// Maximum distance of a machine
    #[arg(long, value_name = "DURATION")]
    distance: Option<Span>,
    #[command(flatten)]
    model: ModelArgs,
    /// Share of requests that write, as measured
    #[arg(long, value_name = "PERCENT", default_value_t)]
    writes: Writes,
    /// Transport of requests [default: the only one in the model]
    #[arg(long, value_name = "NAME", requires = "model")]
    transport: Option<Transport>,
    /// Print one JSON line
    #[arg(long)]
    json: bool,
}

/// The JSON line of a plan.
#[derive(Serialize)]
struct Line {
    price_per_hour: f64,
    price_least_per_hour: f64,
    regions: u64,
    configuration: Option<Choice>,
    machines: Vec<ShareLine>,
}

#[derive(Serialize)]
struct ShareLine {
    machine: String,
    provider: String,
    machines: u32,
    spot: bool,
    price_per_hour: f64,
    regions: u64,
    server_threads: u32,
}

/// The JSON line of a refusal.
#[derive(Serialize)]
struct Refused {
    error: String,
    best: Option<Best>,
}

/// A way to have the cache.
struct Plan {
    need: Need,
    found: Option<Found>,
    allocation: Allocation,
}

/// Why there is none.
struct NoPlan {
    said: String,
    best: Option<Best>,
}

pub fn run(args: &Args) -> Result<u8> {
    let catalogue = files::catalogue(&args.catalogue)?;
    let plan = match args.model.asked()? {
        Some((path, slo)) => {
            let model = files::model(path)?;
            let transport = transport_of(&model, args.transport, path)?;
            of_model(args, &catalogue, &model, transport, &slo)?
        }
        None => {
            let distance_ns = args.distance.map_or(u64::MAX, Span::ns);
            let threads = args.server_threads.unwrap_or(0);
            of_threads(args, &catalogue, threads, distance_ns, None)?
        }
    };
    let mut out = stdout::lock();
    match plan {
        Ok(plan) => {
            print(&mut out, args, plan)?;
            Ok(DONE)
        }
        Err(no_plan) => {
            if args.json {
                let NoPlan { said: error, best } = no_plan;
                serde_json::to_writer(&mut out, &Refused { error, best })?;
                writeln!(out)?;
            } else {
                writeln!(out, "{}", no_plan.said)?;
            }
            Ok(NOT_WHOLE)
        }
    }
}

fn of_threads(
    args: &Args,
    catalogue: &Catalogue,
    threads: u32,
    distance_ns_max: u64,
    found: Option<Found>,
) -> Result<Result<Plan, NoPlan>> {
    let need = Need::new(
        args.size.bytes(),
        args.region.bytes(),
        threads,
        distance_ns_max,
    )?;
    let need = need.with_spot(args.spot);
    Ok(match need.allocate(catalogue) {
        Ok(allocation) => Ok(Plan {
            need,
            found,
            allocation,
        }),
        Err(error) => Err(NoPlan {
            said: error.to_string(),
            best: None,
        }),
    })
}

/// The cheapest plan of all distances that were measured, within the one that was asked for.
fn of_model(
    args: &Args,
    catalogue: &Catalogue,
    model: &Model,
    transport: Transport,
    slo: &Slo,
) -> Result<Result<Plan, NoPlan>> {
    let of_transport = model.tables().filter(|(key, _)| key.transport == transport);
    let distances: BTreeSet<u64> = of_transport.map(|(key, _)| key.distance_ns).collect();
    // Without one at least the first is asked, for its error.
    let nearest = distances.first().copied().unwrap_or(0);
    let farthest = args.distance.map_or(u64::MAX, Span::ns);
    let mut best: Option<Result<Plan, NoPlan>> = None;
    for distance_ns in distances
        .into_iter()
        .filter(|one| *one == nearest || *one <= farthest)
    {
        let mix = model.of_writes(args.writes);
        let surface = mix.surface(transport, distance_ns, slo.record_bytes, slo.latency_of)?;
        let plan = match surface.search(slo) {
            Ok(found) => {
                let threads = found.configuration.s;
                let distance_ns_max = distance_ns.min(farthest);
                of_threads(args, catalogue, threads, distance_ns_max, Some(found))?
            }
            Err(refusal) => Err(NoPlan {
                said: refused(&refusal, slo),
                best: Some(Best::from(&*refusal)),
            }),
        };
        let is_better = match (&best, &plan) {
            (None, _) | (Some(Err(_)), Ok(_)) => true,
            (Some(Ok(best)), Ok(plan)) => plan.allocation.price < best.allocation.price,
            (Some(_), Err(_)) => false,
        };
        if is_better {
            best = Some(plan);
        }
    }
    Ok(best.unwrap_or_else(|| {
        Err(NoPlan {
            said: format!("the model has no measurements for {transport}"),
            best: None,
        })
    }))
}

fn print(out: &mut impl Write, args: &Args, plan: Plan) -> Result<()> {
    let Plan {
        need,
        found,
        allocation,
    } = plan;
    if args.json {
        let shares = allocation.shares.into_iter();
        let line = Line {
            price_per_hour: allocation.price.per_hour(),
            price_least_per_hour: allocation.price_least.per_hour(),
            regions: need.regions(),
            configuration: found.map(Choice::from),
            machines: shares
                .map(|share| ShareLine {
                    machine: share.machine,
                    provider: share.provider,
                    machines: share.machines,
                    spot: share.is_spot,
                    price_per_hour: share.price.per_hour(),
                    regions: share.regions,
                    server_threads: share.server_threads,
                })
                .collect(),
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
        return Ok(());
    }
    if let Some(found) = &found {
        writeln!(out, "{}", told(found, args.model.latency_of))?;
    }
    let mut table = Table::new([
        "MACHINE", "PROVIDER", "COUNT", "PRICE", "REGIONS", "THREADS",
    ]);
    for share in &allocation.shares {
        let spot = if share.is_spot { " spot" } else { "" };
        table.row(vec![
            share.machine.clone(),
            share.provider.clone(),
            share.machines.to_string(),
            format!("{}{spot}", share.price),
            share.regions.to_string(),
            share.server_threads.to_string(),
        ]);
    }
    table.write(out)?;
    let (price, least) = (allocation.price, allocation.price_least);
    let least = match price == least {
        true => "no plan is cheaper".to_owned(),
        false => format!("no plan is cheaper than {least}"),
    };
    writeln!(
        out,
        "{price} per hour; {least}. PRICE and REGIONS are per machine"
    )?;
    Ok(())
}
