//! `cache status`: how a cache is, for people and for scripts.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_cache::configuration::Configuration;
use cenote_cache::service::question::Status;
use cenote_cli::failure::{DONE, NOT_WHOLE, chain};
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_cli::table::Table;
use serde_json::json;

use super::create::wait_whole;
use super::manage::unix_seconds;
use crate::ask::side_by_side;
use crate::caches::{CacheDir, Spec};
use crate::place::{Loaded, Which};
use crate::watch::Watch;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the cache [default: all, one line each]
    name: Option<String>,
    /// How long to wait until every region has memory and no region is moving
    #[arg(long, value_name = "DURATION", default_value = "0s", requires = "name", value_parser = span::any)]
    timeout: Duration,
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: Watch,
}

pub fn run(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    let Some(name) = &args.name else {
        let show = |out: &mut Vec<u8>| list(&loaded, args.json, out);
        return args.watch.show(args.json, show);
    };
    let cache = CacheDir::open(&loaded.dir, name)?;
    args.watch.show(args.json, |out| {
        let status = wait_whole(&cache, &loaded, args.timeout)?;
        print(out, &cache, &cache.spec()?, &status, args.json)?;
        Ok(if status.whole { DONE } else { NOT_WHOLE })
    })
}

fn list(loaded: &Loaded, json: bool, out: &mut impl Write) -> Result<u8> {
    let mut table = Table::new(["CACHE", "SIZE", "COPIES", "CLIENTS", "STATE"]);
    let mut rows = Vec::new();
    let mut is_whole = true;
    let caches = CacheDir::each(&loaded.dir)?;
    let answers = side_by_side(&caches, |(_, cache)| {
        let cache = cache.as_ref().ok()?;
        Some(cache.status(&loaded.key))
    });
    for ((name, cache), status) in caches.into_iter().zip(answers) {
        let read = cache.map_err(anyhow::Error::from);
        let read = read.and_then(|cache| Ok((cache.spec()?, cache)));
        let ((spec, cache), status) = match (read, status) {
            (Ok(read), Some(status)) => (read, status),
            // The others are none the worse.
            (Err(error), _) => {
                is_whole = false;
                let error = chain(&error);
                rows.push(json!({ "name": name, "error": error }));
                let none = || "-".to_owned();
                table.row(vec![name, none(), none(), none(), error]);
                continue;
            }
            (Ok(_), None) => unreachable!("each that could be opened was asked"),
        };
        is_whole &= status.as_ref().is_ok_and(|status| status.whole);
        let state = match &status {
            Ok(status) => health(status),
            Err(_) if !cache.is_managed()? => "no manager".to_owned(),
            Err(_) => "its manager does not answer".to_owned(),
        };
        let size = status.as_ref().map_or(spec.size.clone(), |status| {
            Size(status.size_bytes).to_string()
        });
        let size_bytes = match &status {
            Ok(status) => Some(status.size_bytes),
            Err(_) => spec.size.parse().ok().map(|size: Size| size.bytes()),
        };
        let clients = status.as_ref().map_or(0, |status| status.clients);
        rows.push(json!({
            "name": cache.name(), "size": size, "size_bytes": size_bytes, "copies": spec.copies,
            "managed": cache.is_managed()?, "status": status.ok(),
        }));
        table.row(vec![
            cache.name().to_owned(),
            size,
            spec.copies.to_string(),
            clients.to_string(),
            state,
        ]);
    }
    if json {
        serde_json::to_writer(&mut *out, &rows)?;
        writeln!(out)?;
    } else {
        table.write(out)?;
    }
    Ok(if is_whole { DONE } else { NOT_WHOLE })
}

/// A line on how a cache is.
fn health(status: &Status) -> String {
    let regions = &status.regions;
    let mut text = match (status.ending, status.whole) {
        (true, _) => "is being deleted".to_owned(),
        (_, true) => format!("whole, {} regions", regions.total),
        (_, false) => format!("{} of {} regions writable", regions.open, regions.total),
    };
    let mut add = |many: usize, what: &str| {
        if many > 0 {
            write!(text, ", {many} {what}").expect("a string takes it");
        }
    };
    add(regions.frozen, "frozen");
    add(regions.absent, "without memory");
    add(status.moves.len(), "moving");
    if let Some(error) = &status.journal_error {
        write!(
            text,
            "; changes wait, the journal cannot be written ({error})"
        )
        .expect("a string takes it");
    }
    text
}

/// All of it.
pub fn print(
    out: &mut impl Write,
    cache: &CacheDir,
    spec: &Spec,
    status: &Status,
    json: bool,
) -> Result<()> {
    if json {
        let object = json!({
            "name": cache.name(), "whole": status.whole, "slo": spec.slo,
            "address": cache.socket().to_string(), "status": status,
        });
        serde_json::to_writer(&mut *out, &object)?;
        writeln!(out)?;
        return Ok(());
    }
    let copies = match status.copies {
        1 => "1 copy".to_owned(),
        copies => format!("{copies} copies"),
    };
    writeln!(
        out,
        "{}: {} in {} regions of {}, {copies}; {}",
        cache.name(),
        Size(status.size_bytes),
        status.regions.total,
        Size(status.region_bytes),
        health(status)
    )?;
    if let Some(slo) = &spec.slo {
        writeln!(
            out,
            "asked: {} requests of {} bytes a second, {} at most {} us",
            slo.throughput, slo.record_bytes, slo.latency_of, slo.latency_us
        )?;
        writeln!(
            out,
            "expected: at least {:.0} requests a second, {} at most {:.2} us",
            slo.predicted_throughput, slo.latency_of, slo.predicted_latency_us
        )?;
    }
    if let Some(configuration) = status.configuration {
        writeln!(out, "configuration: {}", described(configuration.into()))?;
    }
    let ends = match status.ends_at {
        Some(at) => format!(
            ", expires in {} s unless it is renewed",
            at.saturating_sub(unix_seconds())
        ),
        None => String::new(),
    };
    writeln!(
        out,
        "manager: the {} of this cache, {} clients, {}{ends}",
        ordinal(status.epoch),
        status.clients,
        match status.addresses.is_empty() {
            true => cache.socket().to_string(),
            false => status.addresses.join(" "),
        }
    )?;
    let mut table = Table::new(["HOST", "DOMAIN", "STATE", "REGIONS"]);
    for host in &status.hosts {
        let state = if host.up { "connected" } else { "out of reach" };
        table.row(vec![
            host.name.clone(),
            host.domain.clone(),
            state.to_owned(),
            host.regions.to_string(),
        ]);
    }
    table.write(out)?;
    print_machines(out, status)?;
    for moved in &status.moves {
        let from = match &moved.from[..] {
            [] => "nowhere".to_owned(),
            from => from.join(" and "),
        };
        writeln!(
            out,
            "region {}: {}, is on {from}",
            moved.region, moved.stage
        )?;
    }
    for loss in &status.losses {
        writeln!(
            out,
            "region {}: lost its data {} times",
            loss.region, loss.losses
        )?;
    }
    Ok(())
}

/// What was got for it, and what is wrong with that.
fn print_machines(out: &mut impl Write, status: &Status) -> Result<()> {
    if let Some(price) = status.price_per_hour {
        let mut table = Table::new(["MACHINE", "TYPE", "PROVIDER", "PRICE", "STATE"]);
        for machine in &status.machines {
            let spot = if machine.spot { " spot" } else { "" };
            let id = machine.id.clone();
            table.row(vec![
                id.unwrap_or_else(|| format!("order {}", machine.order)),
                machine.machine.clone(),
                machine.provider.clone(),
                format!("{:.2}{spot}", machine.price_per_hour),
                machine.state.clone(),
            ]);
        }
        table.write(out)?;
        writeln!(out, "machines: {price:.2} per hour")?;
    }
    for trouble in &status.troubles {
        writeln!(out, "{}: {}", trouble.with, trouble.what)?;
    }
    Ok(())
}

/// A configuration in words.
fn described(configuration: Configuration) -> String {
    let Configuration { c, s, b, q } = configuration;
    let threads = |many: u32| match many {
        1 => "1 thread".to_owned(),
        many => format!("{many} threads"),
    };
    let way = match s {
        0 => "one-sided verbs".to_owned(),
        s => format!("{} of the hosts, {b} requests in a message", threads(s)),
    };
    format!(
        "{configuration}: clients of {}, {way}, {q} under way on each",
        threads(c)
    )
}

fn ordinal(number: u64) -> String {
    let end = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_as_people_say_them() {
        let said: Vec<String> = [1, 2, 3, 4, 11, 12, 21, 112].map(ordinal).into();
        assert_eq!(
            said,
            ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "112th"]
        );
    }
}
