//! `cenote kv join`: one more node on this machine, in the background.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::signals;
use cenote_fabric::{Host, HostPort};

use super::node::node_name;
use super::place::{KvDir, Which};
use super::service_flags::Serving;
use super::start::{Addresses, Starting};
use crate::folder::Folder;
use crate::listen_addresses::resolved;
use crate::process::Identity;

/// How long the node before may take to end. One that was killed needs a moment to give its memory
/// back, one that was told to end hands over what it has.
const END_LIMIT: Duration = Duration::from_secs(10);
/// How long its address may be in use after it: a connection of somebody else's may have got the
/// port meanwhile.
const ADDRESS_LIMIT: Duration = Duration::from_secs(15);
/// Between two looks.
const STEP: Duration = Duration::from_millis(50);

/// `kv join` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote kv join --name n05 --dir ~/.cenote/well
  cenote kv join --name n07 --etcd http://10.0.0.1:2379 --key cluster.key --listen 10.0.0.7 \\
      --clients 10.0.0.7:11211 --dir /var/lib/cenote-kv

The first example joins a cluster on this machine; the second, one on several machines, given its etcd
and key. The same command restarts a stopped node at its old address; a node that is stopping is waited
for.")]
pub struct Args {
    /// Permanent name of the node
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    name: String,
    /// Address or name of this machine for other nodes [default: as last time, else 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    listen: Option<Host>,
    /// Address for clients; port 0 picks a free port [default: as last time, else 127.0.0.1:0]
    #[arg(long, value_name = "HOST:PORT")]
    clients: Option<HostPort>,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    serving: Serving,
}

pub fn run(args: &Args) -> Result<u8> {
    let stop = signals::on_stop(|| ())?;
    let found = args.which.load()?.patient();
    // Fails here, with what is wrong, and not in the node's log.
    found.config()?;
    let number = found.keys.claim_number(&found.etcd, &args.name)?;
    let dir = KvDir::create(args.which.dir()?)?;
    let _lock = dir.lock()?;
    let folder = dir.make_node(&args.name)?;
    wait_for_the_end(&args.name, &folder, &stop)?;
    if dir.known()?.is_none() {
        dir.set_known(&found.known)?;
    }
    let key = found.key_file.canonicalize()?;
    let mut starting = Starting::default();
    let last = Addresses::load(&folder)?;
    let last = last.unwrap_or_else(|| Addresses::local(0));
    let at = Addresses {
        listen: args.listen.clone().unwrap_or(last.listen),
        clients: args.clients.clone().unwrap_or(last.clients),
    };
    wait_for_address(&at.clients, &stop)?;
    let flags = args.serving.flags(folder.path(), &found.at_etcd)?;
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

/// Waits until no process of the node is left that could hold its addresses or answer in its name.
fn wait_for_the_end(name: &str, folder: &Folder, stop: &AtomicBool) -> Result<()> {
    let Some(identity) = Identity::load(folder)? else {
        return Ok(());
    };
    let Some(process) = identity.open()? else {
        return Ok(());
    };
    let pid = identity.pid;
    eprintln!("node {name} is still running here, pid {pid}: waiting for it to exit");
    let deadline = Instant::now() + END_LIMIT;
    while !process.wait(deadline.min(Instant::now() + STEP))? {
        if stop.load(Ordering::SeqCst) {
            bail!("interrupted; nothing was started");
        }
        if Instant::now() >= deadline {
            let what = format!("node {name} is running here, pid {pid}");
            return Err(
                Failure::new(what, format!("use another --name, or kill {pid} first")).into(),
            );
        }
    }
    Ok(())
}

/// Waits until the address for clients can be listened on.
fn wait_for_address(clients: &HostPort, stop: &AtomicBool) -> Result<()> {
    let address = resolved("--clients", clients)?;
    let deadline = Instant::now() + ADDRESS_LIMIT;
    loop {
        match TcpListener::bind(address) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(error).with_context(|| format!("listen on {address}"));
            }
            Err(_) if stop.load(Ordering::SeqCst) => bail!("interrupted; nothing was started"),
            Err(_) if Instant::now() >= deadline => {
                let what = format!("{clients} is in use by another program");
                return Err(Failure::new(what, "use --clients HOST:0 to pick a free port").into());
            }
            Err(_) => std::thread::sleep(STEP),
        }
    }
}
