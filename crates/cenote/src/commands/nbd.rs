//! `cenote nbd`: a volume as a network block device, in the foreground.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use cenote_block::nbd::{Address, Config, Export, Remote, Server};
use cenote_block::volume::VolumeDisk;

use crate::failure::{DONE, Failure};
use crate::place::Which;
use crate::serving::{End, Serving, WhichVolume};
use crate::volume_metrics::VolumeMetrics;
use crate::{metrics, service, signals};

/// `nbd` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote nbd --cluster /tmp/well/cluster.toml --size 2G --scheme rs:8+2 --socket /tmp/well/nbd
  cenote nbd --dir /tmp/well --volume v0 --listen 127.0.0.1:10809 --metrics 127.0.0.1:9101
  nbdinfo 'nbd+unix:///?socket=/tmp/well/nbd'

It prints one line when it is ready and runs until SIGTERM or SIGINT. A volume with a name keeps
its content then, and when the server is killed: start it again, and clients that reconnect go on.
Without --volume the content ends with the server. FLUSH and FUA promise what every acknowledgement
does: as many host losses as the scheme survives, and the end of the server, not a power cut.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Listen on a unix socket
    #[arg(long, value_name = "PATH", required_unless_present = "listen")]
    socket: Option<PathBuf>,
    /// Listen on TCP; NBD has no password, so loopback only unless --allow-remote
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Let other machines reach --listen and --metrics: whoever does reads and writes
    #[arg(long)]
    allow_remote: bool,
    /// Serve Prometheus metrics here
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// Worker threads [default: one per core, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    threads: Option<u8>,
}

pub fn run(args: &Args) -> Result<u8> {
    let (tell, told) = mpsc::channel::<()>();
    signals::on_stop(move || drop(tell))?;
    let loaded = args.which.load()?;
    let serving = Serving::open(&loaded, &args.volume, End::Keep)?;
    let server = Server::start(config(args, &serving)?).map_err(|error| {
        let error = anyhow::Error::new(error);
        Failure::new(
            format!("{error:#}"),
            "another --socket or --listen, or --allow-remote to mean it",
        )
    })?;
    let server = Arc::new(server);
    if let Some(address) = args.metrics {
        let mut registry = prometheus_client::registry::Registry::default();
        let source = VolumeMetrics::new(&serving.volume, Some(&server));
        registry.register_collector(Box::new(source));
        let bound = metrics::serve(address, args.allow_remote, registry)?;
        eprintln!("metrics at http://{bound}/metrics");
    }
    let uris: Vec<String> = server
        .addresses()
        .iter()
        .map(|a| a.uri(&serving.name))
        .collect();
    let mut out = std::io::stdout();
    let (spec, name) = (&serving.spec, &serving.name);
    writeln!(
        out,
        "ready {name} {} {} at {}",
        spec.size,
        spec.scheme,
        uris.join(" ")
    )
    .and_then(|()| out.flush())
    .context("announce on standard output")?;
    service::tell("READY=1");
    // Nothing is ever sent: this ends when a signal drops the other end.
    assert!(told.recv().is_err(), "the channel carries its end only");
    service::tell("STOPPING=1");
    drop(server);
    let name = args.volume.volume.is_some().then(|| serving.name.clone());
    drop(serving);
    match name {
        Some(name) => eprintln!(
            "stopped; hosts keep what volume {name} holds: serve it again, or cenote volume delete {name}"
        ),
        None => eprintln!("stopped; the volume's content is gone"),
    }
    Ok(DONE)
}

fn config(args: &Args, serving: &Serving) -> Result<Config> {
    let disk = VolumeDisk::new(Arc::clone(&serving.volume));
    let export = Export {
        name: serving.name.clone(),
        disk: Arc::new(disk),
    };
    let mut addresses = Vec::new();
    if let Some(path) = &args.socket {
        addresses.push(Address::Unix(
            std::path::absolute(path).context("--socket")?,
        ));
    }
    addresses.extend(args.listen.map(Address::Tcp));
    let mut config = Config::new(vec![export], addresses);
    if args.allow_remote {
        config.remote = Remote::Allow;
    }
    if let Some(count) = args.threads {
        config.worker_count = usize::from(count);
    }
    Ok(config)
}
