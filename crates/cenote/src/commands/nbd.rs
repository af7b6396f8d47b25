//! `cenote nbd`: a volume as a network block device, in the foreground or in the background.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use cenote_block::nbd::{Address, Config, Export, Remote, Server};
use cenote_block::volume::VolumeDisk;
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::{signals, stderr};
use cenote_fabric::HostPort;
use cenote_memcached::tls::{self, Verify};

use crate::folder::Folder;
use crate::place::Which;
use crate::volume_metrics::VolumeMetrics;
use crate::volume_server::{End, Serving, WhichVolume};
use crate::{background, listen_addresses, service};

/// `nbd` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote nbd --dir ~/.cenote/well --volume v0 --size 2G --socket ~/.cenote/well/nbd --background
  cenote nbd --dir ~/.cenote/well --volume v0 --listen 127.0.0.1:10809 --metrics 127.0.0.1:9641
  cenote nbd --dir ~/.cenote/well --volume v0 --listen 0.0.0.0:10809 --allow-remote \\
      --tls-cert server.pem --tls-key server.key --tls-ca clients.pem
  nbdinfo \"nbd+unix:///?socket=$HOME/.cenote/well/nbd\"
  nbdcopy -- [ cenote nbd --dir ~/.cenote/well --volume v0 ] copy.img

It prints one line when it is ready, and runs until SIGTERM or SIGINT. With --background it returns when
it is ready; the line also has the pid and the log of the server, which are in servers/VOLUME/{pid,log}
beside the cluster file. A failure to start is reported here, with an exit code. A named volume keeps
its content after that, also when the server is killed: start it again, and clients that reconnect
continue. Without --volume the content is deleted with the server. FLUSH and FUA promise what every
acknowledgement promises: the data survives as many host losses as the scheme tolerates and the end of
the server, in any order, but not a power failure. After a kill, a page that was being written is old
or new, never an error. For this, up to 64 MiB of pages in flight (1 MiB for each worker) are kept on
disk beside the volume's file; those of a sealed volume are encrypted.

Sockets passed by a service manager or an NBD client (LISTEN_FDS) are served as well, and need neither
--socket nor --listen; the line then goes to stderr.

With --tls-cert, TCP connections must use TLS; clients of the unix socket may. With --tls-ca, clients
must present a certificate signed by that CA. See docs/guides/nbd.md.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Listen on this unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on this TCP address; loopback only unless --allow-remote
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<HostPort>,
    /// Allow other machines to reach --listen and --metrics; without --tls-ca, whoever connects can
    /// read and write
    #[arg(long)]
    allow_remote: bool,
    #[command(flatten)]
    tls: Tls,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Return when clients can connect, and serve in the background
    #[arg(long)]
    background: bool,
    /// Worker threads [default: one per core, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    threads: Option<u8>,
}

/// Certificates, as `--tls-*` names them.
#[derive(clap::Args, Debug)]
struct Tls {
    /// PEM file with this server's certificate chain; TCP connections must then use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file of the CA that signs client certificates
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Whether clients need a certificate; an invalid one is always refused
    #[arg(
        long,
        value_name = "WHETHER",
        requires = "tls_ca",
        default_value = "required"
    )]
    tls_verify: Verified,
}

/// Which clients have to show a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Verified {
    Required,
    Optional,
}

impl Tls {
    fn load(&self) -> Result<Option<Arc<rustls::ServerConfig>>> {
        let (Some(chain), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let verify = match (&self.tls_ca, self.tls_verify) {
            (None, _) => Verify::None,
            (Some(_), Verified::Optional) => Verify::Optional,
            (Some(_), Verified::Required) => Verify::Required,
        };
        let config = tls::configuration(chain, key, self.tls_ca.as_deref(), verify);
        let config = config.map_err(|error| {
            Failure::new(
                format!("TLS: {error}"),
                "give PEM files: --tls-cert, the matching --tls-key, and --tls-ca for clients",
            )
        })?;
        Ok(Some(Arc::new(config)))
    }

    /// What whoever starts this server has to know of an address: who reads and writes there.
    fn warning(&self, address: &Address) -> Option<String> {
        let Address::Tcp(tcp) = address else {
            return None;
        };
        let who = match tcp.ip().is_loopback() {
            true => "every user and program on this machine",
            false => "anyone who can reach it",
        };
        if self.tls_cert.is_none() {
            return Some(format!(
                "NBD at {tcp} has neither password nor TLS: {who} can read and write the volume. \
                 --socket restricts it to one user, --tls-cert and --tls-ca to clients with a \
                 certificate"
            ));
        }
        (self.tls_ca.is_none() || self.tls_verify == Verified::Optional).then(|| {
            format!(
                "NBD at {tcp} is encrypted but does not authenticate clients: {who} can read and \
                 write the volume. --tls-ca restricts it to clients with a certificate"
            )
        })
    }
}

impl Args {
    /// Whether this process is what answers clients.
    pub fn serves(&self) -> bool {
        !self.background
    }
}

pub fn run(args: &Args) -> Result<u8> {
    if args.background {
        return in_background(args);
    }
    let passed = passed_sockets(args)?;
    let is_activated = !passed.is_empty();
    let tls = args.tls.load()?;
    let (tell, told) = mpsc::channel::<()>();
    signals::on_stop(move || drop(tell))?;
    let loaded = args.which.load()?;
    let mut serving = Serving::open(&loaded, &args.volume, End::Keep)?;
    let is_tls = tls.is_some();
    let mut config = config(args, &serving)?;
    (config.passed, config.tls) = (passed, tls);
    let server = Server::start(config)?;
    let server = Arc::new(server);
    if let Some(address) = &args.metrics {
        VolumeMetrics::new(&serving.volume, Some(&server)).serve(address, args.allow_remote)?;
    }
    for address in server.addresses() {
        if let Some(warning) = args.tls.warning(address) {
            stderr::say(format_args!("warning: {warning}"));
        }
    }
    let uris: Vec<String> = server
        .addresses()
        .iter()
        .map(|address| match address {
            Address::Tcp(_) if is_tls => address.tls_uri(&serving.name),
            _ => address.uri(&serving.name),
        })
        .collect();
    let (spec, name) = (&serving.spec, &serving.name);
    let line = format!(
        "ready {name} {} {} at {}",
        spec.size,
        spec.scheme,
        uris.join(" ")
    );
    if is_activated {
        // Standard output is the client's, which may be writing the volume to it.
        stderr::say(&line);
    } else {
        let mut out = std::io::stdout();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .context("announce on standard output")?;
    }
    serving.announced();
    service::tell("READY=1");
    // Nothing is ever sent: this ends when a signal drops the other end.
    assert!(told.recv().is_err(), "the channel carries its end only");
    service::tell("STOPPING=1");
    // Before its workers go.
    serving.volume.announce_end();
    drop(server);
    let (name, is_named) = (serving.name.clone(), args.volume.volume.is_some());
    let status = serving.volume.status();
    let lost_bytes = status.map_or(0, |status| status.lost_bytes());
    drop(serving);
    background::ends(&loaded.dir, &name);
    match is_named.then_some(name) {
        Some(name) if lost_bytes > 0 => stderr::say(format_args!(
            "stopped; {lost_bytes} bytes of volume {name} are lost unless missing hosts return \
             with their memory: more are missing than its scheme tolerates; hosts keep the rest"
        )),
        Some(name) => stderr::say(format_args!(
            "stopped; hosts keep the content of volume {name}: serve it again, or run cenote \
             volume delete {name}"
        )),
        None => stderr::say("stopped; the volume's content was deleted"),
    }
    Ok(DONE)
}

/// Starts this command again without `--background`, and returns once clients can connect.
fn in_background(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    let mut command = background::this_program()?;
    command.arg("nbd").args(args.which.absolute()?);
    let tls = &args.tls;
    let files = [
        ("--socket", &args.socket),
        ("--tls-cert", &tls.tls_cert),
        ("--tls-key", &tls.tls_key),
        ("--tls-ca", &tls.tls_ca),
    ];
    for (flag, path) in files {
        if let Some(path) = path {
            command
                .arg(flag)
                .arg(std::path::absolute(path).context(flag)?);
        }
    }
    if tls.tls_verify == Verified::Optional {
        command.args(["--tls-verify", "optional"]);
    }
    let texts = [
        ("--listen", args.listen.as_ref().map(ToString::to_string)),
        ("--metrics", args.metrics.as_ref().map(ToString::to_string)),
        ("--threads", args.threads.map(|count| count.to_string())),
    ];
    for (flag, text) in texts {
        if let Some(text) = text {
            command.args([flag, &text]);
        }
    }
    if args.allow_remote {
        command.arg("--allow-remote");
    }
    background::start_volume(&mut command, &loaded.dir, &args.volume)
}

/// Sockets that whoever started this process listens on for it.
fn passed_sockets(args: &Args) -> Result<Vec<OwnedFd>> {
    let passed: Vec<_> = service::stored().into_iter().map(|(_, fd)| fd).collect();
    if passed.is_empty() && args.socket.is_none() && args.listen.is_none() {
        return Err(Failure::usage(
            "no address to listen on: no --socket, no --listen, and no socket passed by LISTEN_FDS",
            "use --socket PATH, or --listen 127.0.0.1:10809",
        )
        .into());
    }
    Ok(passed)
}

fn config(args: &Args, serving: &Serving) -> Result<Config> {
    let disk = VolumeDisk::new(Arc::clone(&serving.volume));
    let export = Export {
        name: serving.name.clone(),
        disk: Arc::new(disk),
    };
    let mut addresses = Vec::new();
    if let Some(path) = &args.socket {
        let path = std::path::absolute(path).context("--socket")?;
        Folder::check_for_socket(&path).context("--socket")?;
        addresses.push(Address::Unix(path));
    }
    if let Some(at) = &args.listen {
        addresses.push(Address::Tcp(listen_addresses::resolved("--listen", at)?));
    }
    let mut config = Config::new(vec![export], addresses);
    if args.allow_remote {
        config.remote = Remote::Allow;
    }
    if let Some(count) = args.threads {
        config.worker_count = usize::from(count);
    }
    Ok(config)
}
