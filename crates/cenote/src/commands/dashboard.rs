//! `cenote dashboard`: serves the web page that shows a cluster.

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::{signals, span};
use cenote_fabric::{Address, ClusterKey, Error, HostPort, KeyError};
use cenote_memcached::tls::{self, Verify};
use serde_json::json;

use super::kv::place::Which as KvWhich;
use crate::at_etcd::AtEtcd;
use crate::dashboard::access::{Access, Token};
use crate::dashboard::actions::Actions;
use crate::dashboard::server::{self, Config};
use crate::dashboard::watcher::{Watched, Watcher};
use crate::place::{Loaded, Which};
use crate::shell::quoted;
use crate::{hints, listen_addresses, service};

/// `dashboard` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote dashboard --dir ~/.cenote/well
  cenote dashboard --cluster /etc/cenote/cluster.toml --kv ~/.cenote/kv --store tcp:10.0.0.7:7100
  cenote key new --out dashboard.token
  cenote dashboard --dir ~/.cenote/well --token-file dashboard.token
  cenote dashboard --cluster /etc/cenote/cluster.toml --listen 10.0.0.7:7780 --name pool.example.org \\
      --tls-cert pool.pem --tls-key pool.key --token-file dashboard.token

The page shows hosts, volumes, key-value groups, caches and stores, and the rates and latencies of the
last hour, which are kept in memory only. It is read-only without --token-file. With it, whoever
enters the token (cat dashboard.token) can drain hosts, scrub volumes and limit repair rates. An
address beyond loopback needs TLS and a token, and the page shows nothing without the token. See
docs/guides/dashboard.md.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7780")]
    listen: HostPort,
    /// Additional host name that browsers use for this server; may be repeated
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// File with the token that permits changes, made by cenote key new
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with this server's certificate chain; enables https
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How often to poll each part
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = span::within("500ms", "1m"))]
    interval: Duration,
    /// Timeout for answers of a host, volume owner, node or store
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = span::within("100ms", "60s"))]
    timeout: Duration,
    /// Address of an object store, tcp:HOST:PORT or shm:PATH; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    store: Vec<Address>,
    /// Folder of the key-value store, as given to cenote kv up [default: the cluster's folder]
    #[arg(long, value_name = "DIR", conflicts_with = "etcd")]
    kv: Option<PathBuf>,
    /// Comma-separated etcd addresses of the key-value store
    #[arg(long, value_name = "URLS", requires = "kv_key")]
    etcd: Option<String>,
    /// File with the cluster key of the key-value store at --etcd
    #[arg(long, value_name = "FILE", requires = "etcd")]
    kv_key: Option<PathBuf>,
    /// Name of the key-value store at --etcd [default: kv]
    #[arg(long, value_name = "NAME", requires = "etcd")]
    cluster_name: Option<String>,
    #[command(flatten)]
    at_etcd: AtEtcd,
}

pub fn run(args: &Args) -> Result<u8> {
    let (tell, told) = mpsc::channel::<()>();
    signals::on_stop(move || drop(tell))?;
    let kv = args.key_value_store()?;
    let loaded = match args.which.load() {
        Ok(loaded) => Some(Arc::new(loaded)),
        // A folder may have a key-value store alone.
        Err(_) if kv.is_some() && args.store.is_empty() => None,
        Err(error) => return Err(error),
    };
    let address = listen_addresses::resolved("--listen", &args.listen)?;
    let tls = args.tls()?;
    let access = args.access(address, loaded.as_deref(), tls.is_some())?;
    let listener = TcpListener::bind(address).map_err(|error| {
        let remedy = hints::of_listening(error.kind()).unwrap_or_default();
        Failure::new(format!("--listen {}: {error}", args.listen), remedy)
    })?;
    let bound = listener.local_addr()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let title = loaded.as_ref().map(|loaded| loaded.file.display());
    let about = json!({
        "cluster": title.map(|file| file.to_string()),
        "version": env!("CARGO_PKG_VERSION"),
        "interval_ms": args.interval.as_millis() as u64,
        "orders": access.token.is_some(),
        "parts": {
            "hosts": loaded.is_some(), "volumes": loaded.is_some(), "caches": loaded.is_some(),
            "kv": kv.is_some(), "stores": !args.store.is_empty(),
        },
    });
    let watcher = Watcher::start(Watched {
        loaded: loaded.clone(),
        kv,
        stores: args.store.clone(),
        interval: args.interval,
        timeout: args.timeout,
    })?;
    watcher.show("about", &about);
    let actions = Actions::new(loaded);
    let config = Config {
        access,
        tls,
        watcher,
        actions,
    };
    server::serve(listener, config)?;
    let shown = match args.listen.socket() {
        Some(_) => bound.to_string(),
        None => args.listen.with_port(bound.port()).to_string(),
    };
    let mut out = std::io::stdout();
    writeln!(out, "ready dashboard at {scheme}://{shown}/")
        .and_then(|()| out.flush())
        .context("announce on standard output")?;
    service::tell("READY=1");
    // Nothing is ever sent: this ends when a signal drops the other end.
    assert!(told.recv().is_err(), "the channel carries its end only");
    service::tell("STOPPING=1");
    Ok(DONE)
}

/// Reads the token, which looks like a key, and is none of a cluster.
fn load_token(path: &Path) -> Result<ClusterKey> {
    ClusterKey::load(path).map_err(|error| {
        let new = format!("cenote key new --out {}", quoted(path));
        let (why, remedy) = match error {
            Error::Key(error) => {
                let remedy = match error {
                    KeyError::Shared { .. } => format!(
                        "chmod 600 {}; if others may have read it, remove it and make another: {new}",
                        quoted(path)
                    ),
                    KeyError::Foreign { .. } => {
                        "run as its owner, or make your own: cenote key new --out FILE".to_owned()
                    }
                    _ => format!("remove it and make another: {new}"),
                };
                (error.to_string(), remedy)
            }
            Error::Os { source, .. } if source.kind() == ErrorKind::NotFound => {
                (source.to_string(), new)
            }
            Error::Os { source, .. } => (source.to_string(), String::new()),
            error => (error.to_string(), String::new()),
        };
        Failure::new(format!("--token-file {}: {why}", path.display()), remedy).into()
    })
}

impl Args {
    /// The key-value store that is named, or that is up in the cluster's folder.
    fn key_value_store(&self) -> Result<Option<KvWhich>> {
        if let (Some(etcd), Some(key)) = (&self.etcd, &self.kv_key) {
            let (name, at) = (self.cluster_name.clone(), self.at_etcd.clone());
            return Ok(Some(KvWhich::at(etcd.clone(), name, key.clone(), at)));
        }
        if let Some(folder) = &self.kv {
            return Ok(Some(KvWhich::of_folder(folder)));
        }
        let folder = self.which.directory()?;
        let which = KvWhich::of_folder(folder.root());
        Ok(which.is_up().then_some(which))
    }

    fn tls(&self) -> Result<Option<Arc<rustls::ServerConfig>>> {
        let (Some(chain), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let config = tls::configuration(chain, key, None, Verify::None).map_err(|error| {
            let remedy = "give PEM files: --tls-cert and the matching --tls-key";
            Failure::new(format!("TLS: {error}"), remedy)
        })?;
        Ok(Some(Arc::new(config)))
    }

    /// Who may do what. Beyond loopback TLS and a token are no choice.
    fn access(&self, at: SocketAddr, loaded: Option<&Loaded>, is_tls: bool) -> Result<Access> {
        let is_remote = !at.ip().is_loopback();
        if is_remote && (!is_tls || self.token_file.is_none()) {
            let what = format!("--listen {}: reachable from other machines", self.listen);
            let remedy = "add --tls-cert, --tls-key and --token-file, or use a loopback address";
            return Err(Failure::usage(what, remedy).into());
        }
        let token = self.token_file.as_ref().map(|path| {
            let key = load_token(path)?.to_hex();
            if loaded.is_some_and(|loaded| loaded.key.to_hex() == key) {
                let what = format!("--token-file {}: this is the cluster's key", path.display());
                let remedy = "make another: cenote key new --out dashboard.token";
                return Err(Failure::usage(what, remedy).into());
            }
            anyhow::Ok(Token::new(key))
        });
        let mut names = self.name.clone();
        if self.listen.socket().is_none() {
            let text = self.listen.to_string();
            names.extend(text.rsplit_once(':').map(|(name, _)| name.to_owned()));
        }
        Ok(Access {
            names,
            is_tls,
            is_remote,
            token: token.transpose()?,
        })
    }
}
