//! `cenote nbd`: a volume as a network block device, in the foreground or in the background.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use cenote_block::nbd::{Address, Config, Export, Remote, Server};
use cenote_block::volume::VolumeDisk;
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::signals;
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

It prints one line when it is ready and runs until SIGTERM or SIGINT. With --background it returns
then; the line also says which process serves, and where its log is: beside the cluster file, in
servers/VOLUME/{pid,log}. What kept it from serving is said here, and is the exit code. A volume with a name keeps
its content then, and when the server is killed: start it again, and clients that reconnect go on.
Without --volume the content ends with the server. FLUSH and FUA promise what every acknowledgement
does: as many host losses as the scheme survives and the end of the server, in any order, not a power
cut. A page that was being written when the server was killed is as before or as written, never an
error. For that up to 64 MiB of pages under way are kept on the disk beside the volume's file (1 MiB
per worker); of a sealed volume they are encrypted.

Sockets that a service manager or an NBD client passes (LISTEN_FDS) are listened on, too, and need
neither --socket nor --listen; the line goes to standard error then.

With --tls-cert nothing is said over TCP but by TLS; clients of the unix socket may ask for it. With
--tls-ca a client has to have a certificate that this authority has signed. docs/guides/nbd.md.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Listen on a unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on TCP; loopback only unless --allow-remote
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<HostPort>,
    /// Let other machines reach --listen and --metrics: whoever does reads and writes
    #[arg(long)]
    allow_remote: bool,
    #[command(flatten)]
    tls: Tls,
    /// Serve Prometheus metrics here
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
    /// This server's certificate, and those that lead to its authority, as PEM: TCP is TLS only then
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificates of the authority that signs those of clients, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Whether a client without a certificate is turned away; one that shows a wrong one always is
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
                "PEM files: --tls-cert and the --tls-key that belongs to it, and --tls-ca of the clients",
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
            true => "every user and program of this machine",
            false => "whoever reaches it",
        };
        if self.tls_cert.is_none() {
            return Some(format!(
                "NBD at {tcp} has neither password nor TLS: {who} reads and writes the volume. \
                 --socket keeps it to one user, --tls-cert and --tls-ca to those with a certificate"
            ));
        }
        (self.tls_ca.is_none() || self.tls_verify == Verified::Optional).then(|| {
            format!(
                "NBD at {tcp} is enciphered, and asks no client who it is: {who} reads and writes the \
                 volume. --tls-ca keeps it to those with a certificate"
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
    let serving = Serving::open(&loaded, &args.volume, End::Keep)?;
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
            eprintln!("warning: {warning}");
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
        eprintln!("{line}");
    } else {
        let mut out = std::io::stdout();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .context("announce on standard output")?;
    }
    service::tell("READY=1");
    // Nothing is ever sent: this ends when a signal drops the other end.
    assert!(told.recv().is_err(), "the channel carries its end only");
    service::tell("STOPPING=1");
    // Before its workers go.
    serving.volume.announce_end();
    drop(server);
    let name = args.volume.volume.is_some().then(|| serving.name.clone());
    let status = serving.volume.status();
    let lost_bytes = status.map_or(0, |status| status.lost_bytes());
    drop(serving);
    match name {
        Some(name) if lost_bytes > 0 => eprintln!(
            "stopped; {lost_bytes} bytes of volume {name} are lost, unless hosts that are gone come back \
             with their memory: more are gone than its scheme bears; hosts keep the rest"
        ),
        Some(name) => eprintln!(
            "stopped; hosts keep what volume {name} holds: serve it again, or cenote volume delete {name}"
        ),
        None => eprintln!("stopped; the volume's content is gone"),
    }
    Ok(DONE)
}

/// Starts this command again without `--background`, and returns once clients can connect.
fn in_background(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    let mut command = background::this_program()?;
    command.arg("nbd").args(args.which.absolute()?);
    command.args(args.volume.arguments()?);
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
    let folder = background::folder_of(&loaded.dir, args.volume.volume.as_deref())?;
    background::start(&mut command, &folder)
}

/// Sockets that whoever started this process listens on for it.
fn passed_sockets(args: &Args) -> Result<Vec<OwnedFd>> {
    let passed: Vec<_> = service::stored().into_iter().map(|(_, fd)| fd).collect();
    if passed.is_empty() && args.socket.is_none() && args.listen.is_none() {
        return Err(Failure::usage(
            "nowhere to listen: no --socket, no --listen, and no socket was passed (LISTEN_FDS)",
            "--socket PATH, or --listen 127.0.0.1:10809",
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
