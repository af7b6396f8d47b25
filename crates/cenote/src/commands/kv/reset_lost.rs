//! `cenote kv reset-lost`: has partitions that are gone for good begin anew, empty.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_kv::cluster::NodeId;
use cenote_kv::cluster::anew::Anew;

use super::place::{Found, Which};
use crate::failure::{DONE, Failure, NOT_WHOLE};

/// `kv reset-lost` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv reset-lost --dir /tmp/well

A partition is lost where more nodes of its group are gone for good than the code bears (cenote kv
status says so): its items cannot come back, gets find nothing and changes are refused. This gives
each such partition to a node that has no place in its group, without items. Start nodes for it
first: cenote kv join. And see that the lost nodes have ended: a part of the cluster that was only
cut off would still serve what it has, and drops what it took since when it is back.

Exit code: 0: nothing is lost any more; 3: a node is missing, or the rest of the group is not ready.")]
pub struct Args {
    /// The group [default: all that lost something]
    #[arg(long, value_name = "NUMBER")]
    group: Option<usize>,
    /// How long to wait until what is left of a group is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    limit: u64,
    #[command(flatten)]
    which: Which,
}

/// Between two looks.
const STEP: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<u8> {
    let found = args.which.load()?;
    let config = found.place.read_config(&found.etcd)?;
    if let Some(group) = args.group.filter(|group| *group >= config.groups) {
        let what = format!("no group {group} in cluster {}", found.known.cluster);
        return Err(Failure::new(what, format!("0 to {}", config.groups - 1)).into());
    }
    let names = found.place.numbers(&found.etcd)?;
    let plan = config.plan(&names);
    let homes = |group: usize| -> Vec<u32> {
        let seats = plan.as_ref().map(|plan| plan.group(group));
        let nodes = seats.unwrap_or_default().iter();
        nodes.map_while(|node| Some((*node)?.0)).collect()
    };
    let groups = args
        .group
        .map_or(0..config.groups, |group| group..group + 1);
    let deadline = Instant::now() + Duration::from_secs(args.limit);
    let mut left: Vec<usize> = groups.collect();
    loop {
        let mut reasons = Vec::new();
        for group in std::mem::take(&mut left) {
            if let Some(why) = reset(&found, group, &homes(group), &names)? {
                left.push(group);
                reasons.push(format!("group {group}: {why}"));
            }
        }
        if left.is_empty() {
            return Ok(DONE);
        }
        if Instant::now() >= deadline {
            reasons.iter().for_each(|why| println!("{why}"));
            return Ok(NOT_WHOLE);
        }
        std::thread::sleep(STEP);
    }
}

/// Why something of a group is lost still; none: nothing is.
fn reset(
    found: &Found,
    group: usize,
    homes: &[u32],
    names: &[(NodeId, String)],
) -> Result<Option<&'static str>> {
    loop {
        return Ok(match found.place.begin_anew(&found.etcd, group, homes)? {
            Anew::Nothing => None,
            Anew::Begun { partition, process } => {
                let name = names.iter().find(|(node, _)| node.0 == process.node);
                let name = name.map_or("a node", |(_, name)| name.as_str());
                println!("{group}.{partition} begins anew on {name}, empty");
                continue;
            }
            Anew::NoNode => Some("no node without a place in it; try: cenote kv join"),
            Anew::NotCalm => Some("what is left of it is not whole; try: cenote kv status"),
        });
    }
}
