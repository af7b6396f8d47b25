//! The status for people.

use std::io::Write;

use anyhow::Result;
use cenote_cli::failure::colours_of_results;
use cenote_cli::size::Size;
use cenote_cli::table::Table;

use super::groups::{GroupStatus, Memory, PlaceStatus};
use super::{NodeStatus, Report, is_alive};

/// For people.
pub fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    writeln!(
        out,
        "{}: {} of {} nodes up, {} groups of {}, {} per place, etcd at {}",
        report.cluster,
        report.nodes_up,
        report.nodes_planned,
        report.groups,
        report.code,
        Size(report.region_bytes).rounded(),
        report.etcd
    )?;
    print_nodes(out, &report.nodes)?;
    for node in &report.nodes {
        if let Some(error) = &node.error {
            writeln!(out, "{}: {error}", node.name)?;
        }
    }
    writeln!(out)?;
    print_groups(out, &report.by_group)?;
    writeln!(out)?;
    print_memory(out, report)
}

fn print_nodes(out: &mut impl Write, nodes: &[NodeStatus]) -> Result<()> {
    let mut table = Table::new([
        "NODE",
        "NAME",
        "STATE",
        "CLIENTS AT",
        "SLOTS",
        "OWNS",
        "SEES",
        "MISSES",
        "ROUND TRIP",
        "UPTIME",
    ])
    .coloured(colours_of_results());
    for node in nodes {
        let clients = node.registration.as_ref().map(|found| {
            let clients = found.clients.iter().map(ToString::to_string);
            clients.collect::<Vec<_>>().join(",")
        });
        let mut row = vec![
            node.node.to_string(),
            node.name.clone(),
            format!("{:?}", node.state).to_lowercase(),
            clients.unwrap_or_else(|| "-".to_owned()),
            node.planned.len().to_string(),
            node.owned.to_string(),
        ];
        if let Some(seen) = &node.report {
            let alive = seen.peers.iter().filter(|peer| is_alive(peer)).count();
            let missed = seen.peers.iter().filter(|peer| !is_alive(peer));
            let missed: Vec<String> = missed
                .map(|peer| format!("{} ({})", peer.name, peer.state))
                .collect();
            let times = seen.peers.iter().filter(|peer| is_alive(peer));
            let slowest = times.filter_map(|peer| peer.round_trip_us).max();
            row.extend([
                alive.to_string(),
                if missed.is_empty() {
                    "-".to_owned()
                } else {
                    missed.join(", ")
                },
                slowest.map_or("-".to_owned(), |time| format!("{time} us")),
                format!("{}s", seen.uptime_ms / 1000),
            ]);
        }
        table.row(row);
    }
    Ok(table.write(out)?)
}

/// One line for each group; what is not as it should be is spelled out.
fn print_groups(out: &mut impl Write, groups: &[GroupStatus]) -> Result<()> {
    let mut table = Table::new([
        "GROUP", "VIEW", "DATA", "PARITY", "ITEMS", "STORED", "MISSING", "MOVING",
    ]);
    for group in groups {
        let mut row = vec![group.group.to_string()];
        if let Some(view) = group.view {
            let sum = |of: fn(&PlaceStatus) -> u64| group.data.iter().map(of).sum::<u64>();
            let places_of = group.data.iter().chain(&group.parity);
            let missing = places_of.clone().map(|place| place.missing_bytes).sum();
            let moving = places_of.map(|place| place.moving_bytes).sum();
            let bytes = |bytes| match bytes {
                0 => "-".to_owned(),
                bytes => Size(bytes).rounded(),
            };
            row.extend([
                view.to_string(),
                places(&group.data, "home"),
                places(&group.parity, "full"),
                sum(|place| place.items).to_string(),
                Size(sum(|place| place.stored_bytes)).rounded(),
                bytes(missing),
                bytes(moving),
            ]);
        } else {
            row.push("unknown to all nodes that answer".to_owned());
        }
        table.row(row);
    }
    Ok(table.write(out)?)
}

/// Who has the places, and how they are unless it is as it should be.
fn places(places: &[PlaceStatus], should_be: &str) -> String {
    let words = places.iter().map(|place| {
        let name = place.name.as_deref().unwrap_or("-");
        let mut word = name.to_owned();
        if place.state != should_be {
            word += &format!(":{}", place.state);
        }
        if let Some(handoff) = &place.handoff {
            word += &format!(":to-{handoff}");
        }
        if place.node.is_some() && !place.answers {
            word += ":gone";
        }
        word
    });
    words.collect::<Vec<_>>().join(" ")
}

fn print_memory(out: &mut impl Write, report: &Report) -> Result<()> {
    let mut table = Table::new(["MEMORY", "VALUES", "PARITY", "KEYS", "STORED"]);
    let row = |name: &str, memory: &Memory| {
        let sizes = [memory.values, memory.parity, memory.tables, memory.stored];
        let mut row = vec![name.to_owned()];
        row.extend(sizes.map(|bytes| Size(bytes).rounded()));
        row
    };
    for node in &report.nodes {
        if let Some(memory) = &node.memory {
            table.row(row(&node.name, memory));
        }
    }
    let all = &report.memory;
    table.row(row("all", all));
    table.write(out)?;
    let used = all.values + all.parity;
    if all.stored > 0 {
        let times = used as f64 / all.stored as f64;
        let (used, stored) = (Size(used).rounded(), Size(all.stored).rounded());
        writeln!(out, "{used} for {stored} of values: {times:.2} times")?;
    }
    Ok(())
}
