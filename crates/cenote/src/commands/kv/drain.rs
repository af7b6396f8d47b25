//! `cenote kv drain`: has other nodes take over what one has, and says what came of it.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::{progress, span};
use cenote_kv::group::process::Process;
use cenote_kv::group::view::{Parity, Partition, View};
use cenote_kv_cluster::NodeId;

use super::place::Which;

/// `kv drain` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv drain n03 --wait --dir ~/.cenote/well

The node hands each of its places to a node that has none in that group and is not draining; requests
are served meanwhile. If there is no such node, and the group is otherwise complete, it gives the place
up: the group runs with one node fewer until another joins. A restarted node is no longer drained.

Exit code with --wait: 0: the node has no place, and every place has a node; 3: some place has no node,
or the node still has places.")]
pub struct Args {
    /// Name of the node
    node: String,
    /// Wait until the node has no places
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "10m", requires = "wait", value_parser = span::within("0s", "1d"))]
    timeout: Duration,
    #[command(flatten)]
    pub which: Which,
}

/// Between two looks.
const STEP: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<u8> {
    let found = args.which.load()?.patient();
    found.config()?;
    let names = found.keys.numbers(&found.etcd)?;
    let Some((number, _)) = names.iter().find(|(_, name)| *name == args.node) else {
        let known: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        let what = format!(
            "there is no node {} in cluster {}",
            args.node, found.known.cluster
        );
        return Err(Failure::new(what, format!("use one of {}", known.join(", "))).into());
    };
    let before = places_of(&found.keys.read_views(&found.etcd)?, *number);
    if !found.keys.drain(&found.etcd, *number)? {
        let what = format!("node {} is down: nothing to drain", args.node);
        return Err(Failure::new(what, "cenote kv status").into());
    }
    println!("draining: {}, which has {} places", args.node, before.len());
    if !args.wait {
        return Ok(DONE);
    }
    let deadline = Instant::now() + args.timeout;
    let bar = progress::steps(before.len() as u64, "places taken over");
    loop {
        let views = found.keys.read_views(&found.etcd)?;
        let left = places_of(&views, *number);
        bar.set_position(before.len().saturating_sub(left.len()) as u64);
        if left.is_empty() {
            bar.finish_and_clear();
            return Ok(told(&args.node, &before, &views));
        }
        if Instant::now() >= deadline {
            bar.finish_and_clear();
            println!("{} still has {}", args.node, listed(&left));
            println!(
                "try: cenote kv status; no node gives up a place in a group that is already \
                 incomplete"
            );
            return Ok(NOT_WHOLE);
        }
        std::thread::sleep(STEP);
    }
}

/// A place of a group, by the number of its slot: data first.
type Slot = (usize, usize);

/// Says where the places are.
fn told(name: &str, before: &[Slot], views: &[(usize, View)]) -> u8 {
    let is_taken = |(group, slot): &&Slot| {
        let view = views.iter().find(|(known, _)| known == group);
        view.is_some_and(|(_, view)| is_filled(view, *slot))
    };
    let (taken, given_up): (Vec<&Slot>, Vec<&Slot>) = before.iter().partition(is_taken);
    println!("drained: {name} has no place; others took {}", taken.len());
    if given_up.is_empty() {
        return DONE;
    }
    let given_up: Vec<Slot> = given_up.into_iter().copied().collect();
    println!("no node could take {}", listed(&given_up));
    println!("these groups tolerate one failure fewer until a node joins");
    NOT_WHOLE
}

fn listed(slots: &[Slot]) -> String {
    let words = slots.iter().map(|(group, slot)| format!("{group}.{slot}"));
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a slot has a process of its own that is whole.
fn is_filled(view: &View, slot: usize) -> bool {
    match slot.checked_sub(view.partitions.len()) {
        None => matches!(view.partitions[slot], Partition::Home(_)),
        Some(slot) => matches!(view.parities[slot], Parity::Full { .. }),
    }
}

/// The places of a node. One that it is only about to have counts, too.
fn places_of(views: &[(usize, View)], node: NodeId) -> Vec<Slot> {
    let of_view = |(group, view): &(usize, View)| {
        let data = (0..view.partitions.len()).map(|index| view.owner(index));
        let parities = view.parities.iter().map(Parity::process);
        let slots = data.chain(parities).enumerate();
        let is_its =
            |process: Option<Process>| process.is_some_and(|process| process.node == node.0);
        let own = slots.filter(|(_, process)| is_its(*process));
        let mut own: Vec<Slot> = own.map(|(slot, _)| (*group, slot)).collect();
        let is_inside = view
            .processes()
            .iter()
            .any(|process| process.node == node.0);
        if own.is_empty() && is_inside {
            own.push((*group, 0));
        }
        own
    };
    views.iter().flat_map(of_view).collect()
}
