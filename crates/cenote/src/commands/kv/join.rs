//! `cenote kv join`: one more node on this machine, in the background.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use super::place::{KvDir, Which};
use super::serving::Serving;
use super::start::{Addresses, Starting};
use crate::failure::{DONE, Failure};
use crate::process::Identity;
use crate::signals;

/// `kv join` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote kv join --name n05 --dir /tmp/well
  cenote kv join --name n07 --etcd http://10.0.0.1:2379 --key cluster.key --listen 10.0.0.7 \\
      --clients 10.0.0.7:11211 --dir /var/lib/cenote-kv

The first joins a cluster of this machine; the second one on several, whose etcd and key are named.
A node that ended comes back by the same command, where it was.")]
pub struct Args {
    /// Name of the node, its own for ever
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Address of this machine at which other nodes connect [default: as last time, else 127.0.0.1]
    #[arg(long, value_name = "IP")]
    listen: Option<IpAddr>,
    /// Address for clients; with port 0 one is found [default: as last time, else 127.0.0.1:0]
    #[arg(long, value_name = "IP:PORT")]
    clients: Option<SocketAddr>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    serving: Serving,
}

pub fn run(args: &Args) -> Result<u8> {
    let stop = signals::on_stop(|| ())?;
    let found = args.which.load()?;
    // Fails here, with what is wrong, and not in the node's log.
    found.place.read_config(&found.etcd)?;
    let number = found.place.claim_number(&found.etcd, &args.name)?;
    let dir = KvDir::create(args.which.dir()?)?;
    let _lock = dir.lock()?;
    if let Some(identity) = Identity::load(&dir.node(&args.name))?
        && identity.open()?.is_some()
    {
        let what = format!("node {} runs here", args.name);
        return Err(Failure::new(what, "another --name").into());
    }
    if dir.known()?.is_none() {
        dir.set_known(&found.known)?;
    }
    let key = found.key_file.canonicalize()?;
    let mut starting = Starting::default();
    let last = Addresses::load(&dir.node(&args.name))?;
    let last = last.unwrap_or_else(|| Addresses::local(0));
    let at = Addresses {
        listen: args.listen.unwrap_or(last.listen),
        clients: args.clients.unwrap_or(last.clients),
    };
    let flags = args
        .serving
        .flags(&dir.node(&args.name), &args.which.at_etcd)?;
    starting.start(&dir, &args.name, &found.known, &key, at, &flags)?;
    let mut clients = String::new();
    starting.ready_when(&stop, |said| {
        clients = said.concat();
        Ok(())
    })?;
    println!(
        "joined: {} as node {number} of {}, for clients at {clients}",
        args.name, found.known.cluster
    );
    Ok(DONE)
}
