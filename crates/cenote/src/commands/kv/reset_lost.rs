//! `cenote kv reset-lost`: has partitions that are gone for good start from scratch, empty; by the operator's word alone.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::span;
use cenote_kv::group::process::Process;
use cenote_kv::group::view::{self, View};
use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::config::Scheme;
use cenote_kv_cluster::reset::{Reset, Sight};

use super::place::{Found, Which};
use super::status::{self, Report};

/// `kv reset-lost` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv reset-lost --dir ~/.cenote/well

When more nodes of a group are missing than the code tolerates, requests to its partitions are refused
until the nodes are back: a node that does not answer may be alive and have the data. This command
declares them dead. Partitions that only unregistered nodes had are lost and restart empty on nodes
without a slot in the group; the whole group restarts if none of its nodes is left. Start such nodes
first with cenote kv join. Make sure that the lost nodes are dead: writes that they accept until they
return are dropped. A node that other nodes still hear is not declared lost.

Exit code: 0: nothing is lost any more; 3: a node is missing, or the rest of the group is not
ready.")]
pub struct Args {
    /// Group number [default: all groups with lost partitions]
    #[arg(long, value_name = "NUMBER")]
    group: Option<usize>,
    /// How long to wait until the rest of a group is ready
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::within("0s", "1d"))]
    timeout: Duration,
    #[command(flatten)]
    pub which: Which,
}

/// Between two looks.
const STEP: Duration = Duration::from_millis(50);
/// How long nodes may take to say what they see.
const ASK_LIMIT: Duration = Duration::from_secs(1);

pub fn run(args: &Args) -> Result<u8> {
    let found = args.which.load()?.patient();
    let config = found.config()?;
    if let Some(group) = args.group.filter(|group| *group >= config.groups) {
        let what = format!(
            "there is no group {group} in cluster {}",
            found.known.cluster
        );
        return Err(Failure::new(what, format!("0 to {}", config.groups - 1)).into());
    }
    let scheme = match config.scheme {
        Scheme::Coded => view::Scheme::Coded,
        Scheme::Replicated => view::Scheme::Replicated,
    };
    let nothing = View::nothing(scheme, config.code.data(), config.code.parities());
    let names = found.keys.numbers(&found.etcd)?;
    let plan = config.plan(&names);
    let homes = |group: usize| -> Vec<u32> {
        let seats = plan.as_ref().map(|plan| plan.group(group));
        let nodes = seats.unwrap_or_default().iter();
        nodes.map(|node| node.0).collect()
    };
    let groups = args
        .group
        .map_or(0..config.groups, |group| group..group + 1);
    let deadline = Instant::now() + args.timeout;
    let mut left: Vec<usize> = groups.collect();
    let mut changes = 0;
    loop {
        let mut reasons = Vec::new();
        let report = status::report(&found, ASK_LIMIT)?;
        for group in std::mem::take(&mut left) {
            if let Some(why) = reset(
                &found,
                group,
                &homes(group),
                &names,
                &nothing,
                &report,
                &mut changes,
            )? {
                left.push(group);
                reasons.push(format!("group {group}: {why}"));
            }
        }
        if left.is_empty() {
            match changes {
                0 => println!("nothing is lost; nothing was changed"),
                _ => println!("nothing is lost any more"),
            }
            return Ok(DONE);
        }
        if Instant::now() >= deadline {
            reasons.iter().for_each(|why| println!("{why}"));
            return Ok(NOT_WHOLE);
        }
        std::thread::sleep(STEP);
    }
}

/// Why something of a group is lost still; none: nothing is. What was changed is said, and counted.
fn reset(
    found: &Found,
    group: usize,
    homes: &[u32],
    names: &[(NodeId, String)],
    nothing: &View,
    report: &Report,
    changes: &mut usize,
) -> Result<Option<String>> {
    let name = |process: &Process| {
        let name = names.iter().find(|(node, _)| node.0 == process.node);
        name.map_or_else(|| process.to_string(), |(_, name)| name.clone())
    };
    let all = |processes: &[Process]| processes.iter().map(name).collect::<Vec<_>>().join(", ");
    let sight = Sight {
        homes,
        latest: report.latest_view(group),
        nothing: nothing.clone(),
        is_heard: &|process| report.is_heard(process),
    };
    loop {
        return Ok(match found.keys.begin_reset(&found.etcd, group, &sight)? {
            Reset::Nothing => None,
            Reset::Begun { partition, process } => {
                println!("{group}.{partition} restarts empty on {}", name(&process));
                *changes += 1;
                continue;
            }
            Reset::AllBegun(processes) => {
                println!("group {group} restarts empty on {}", all(&processes));
                *changes += 1;
                continue;
            }
            Reset::GivenUp(gone) => {
                println!("group {group}: data that only {} had is lost", all(&gone));
                *changes += 1;
                continue;
            }
            Reset::Restored(view) => {
                println!("group {group}: its view is in etcd again, as {view}");
                *changes += 1;
                continue;
            }
            Reset::Lives(process) => Some(format!(
                "{} is not registered, but other nodes hear it: check why it cannot reach etcd",
                name(&process)
            )),
            Reset::NoNode => {
                Some("no node without a place in it is running; try: cenote kv join".to_owned())
            }
            Reset::NotCalm => Some("the rest of it is not ready; try: cenote kv status".to_owned()),
        });
    }
}
