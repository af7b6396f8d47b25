//! `cenote kv drain`: writes into a node's registration that it is to take no new roles.

use anyhow::{Result, bail};
use cenote_kv::cluster::config::{NodeState, Registration};
use cenote_kv::cluster::etcd::Swap;

use super::place::Which;
use crate::failure::{DONE, Failure};

/// `kv drain` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv drain n03 --dir /tmp/well

The node is marked; what it holds stays with it until it ends. One that starts anew is not marked.")]
pub struct Args {
    /// Name of the node
    node: String,
    #[command(flatten)]
    which: Which,
}

/// Tries, should the registration change meanwhile.
const TRIES: usize = 10;

pub fn run(args: &Args) -> Result<u8> {
    let found = args.which.load()?;
    let names = found.place.numbers(&found.etcd)?;
    let Some((number, _)) = names.iter().find(|(_, name)| *name == args.node) else {
        let known: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        let what = format!("no node {} in cluster {}", args.node, found.known.cluster);
        return Err(Failure::new(what, format!("one of {}", known.join(", "))).into());
    };
    let key = found.place.node(*number);
    for _ in 0..TRIES {
        let Some(entry) = found.etcd.read(&key)? else {
            bail!("node {} is down: there is nothing to drain", args.node);
        };
        let mut registration = Registration::parse(&key, &entry.value)?;
        registration.state = NodeState::Draining;
        let bytes = registration.to_bytes();
        let swapped = found.etcd.swap_value(&key, entry.mod_revision, &bytes)?;
        if let Swap::Done(_) = swapped {
            println!("draining: {}", args.node);
            return Ok(DONE);
        }
    }
    bail!(
        "the registration of node {} changes all the time",
        args.node
    );
}
