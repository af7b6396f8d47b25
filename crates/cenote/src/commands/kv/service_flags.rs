//! How a node serves its clients: the flags that `kv node`, `join` and `up` share.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::Failure;
use cenote_cli::size::{Size, SizeError};
use cenote_cli::span::{self, Span};
use cenote_fabric::HostPort;
use cenote_kv::protocol::{Dialect, Limits};
use cenote_memcached::files::{Files, TlsFiles, UsersFile};
use cenote_memcached::tls::Verify;
use cenote_memcached::{Settings, TcpAddress};

use crate::at_etcd::AtEtcd;

/// Sizes of items that frames between nodes carry.
const ITEM_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 20;

/// See the [module](self).
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Clients")]
pub struct Serving {
    /// Also serve UDP, at the same address
    #[arg(long)]
    udp: bool,
    /// Also serve a Unix socket; relative to the node's folder for up and join
    #[arg(long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, in octal
    #[arg(
        long,
        value_name = "MODE",
        default_value = "700",
        requires = "unix_socket"
    )]
    unix_mask: String,
    /// Serve only TLS on TCP, with the certificate in this PEM file
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key [default: the certificate file]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file of CAs whose client certificates are accepted
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Refuse clients without a certificate
    #[arg(long, requires = "tls_ca")]
    tls_required: bool,
    /// File of USER:PASSWORD lines; clients must authenticate
    #[arg(long, value_name = "FILE", conflicts_with = "udp")]
    users: Option<PathBuf>,
    /// Maximum item size, including memcached's overhead
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = item_size)]
    max_item_size: Size,
    /// Maximum number of client connections
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Close connections idle for this long
    #[arg(long, value_name = "DURATION", value_parser = span::within("1s", "36500d"))]
    idle_timeout: Option<Duration>,
    /// Return an error when memory is full, in place of evicting items
    #[arg(long)]
    no_evictions: bool,
    /// Use the meta commands as memcached after 1.6.18 does
    #[arg(long)]
    later_meta: bool,
    /// Serve Prometheus metrics at this address, with up at that of the first node: the others get
    /// the ports after it; port 0 picks a free port and prints it on stderr
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<HostPort>,
    /// Allow other machines to reach --metrics
    #[arg(long, requires = "metrics")]
    pub allow_remote: bool,
}

fn item_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
    match ITEM_BYTES.contains(&size.bytes()) {
        true => Ok(size),
        false => Err("must be 1K to 1M".to_owned()),
    }
}

impl Serving {
    /// What is to be said where clients are not asked who they are.
    pub fn warning(&self) -> Option<&'static str> {
        // Certificates of clients are asked for by TLS alone.
        match (
            self.users.is_some() || self.tls_required,
            self.tls_cert.is_some(),
        ) {
            (true, true) => None,
            (true, false) => {
                Some("Clients' passwords and items travel unencrypted: see --tls-cert.")
            }
            (false, _) => Some(
                "Anyone who can reach the client ports can read and change every item: see --users \
                 and --tls-required.",
            ),
        }
    }

    /// What a server at this address is to be, and the files that may be read again.
    pub fn settings(&self, clients: SocketAddr) -> Result<(Settings, Files)> {
        if self.udp && clients.port() == 0 {
            let what = "--udp needs a port: free ports are picked for TCP only";
            return Err(Failure::usage(what, "give a client port").into());
        }
        let mode = u32::from_str_radix(&self.unix_mask, 8)
            .map_err(|_| Failure::usage("--unix-mask is an octal number", "--unix-mask 700"))?;
        let verify = match (&self.tls_ca, self.tls_required) {
            (None, _) => Verify::None,
            (Some(_), false) => Verify::Optional,
            (Some(_), true) => Verify::Required,
        };
        let files = Files {
            users: self.users.clone().map(UsersFile::Plain),
            tls: self.tls_cert.clone().map(|chain| TlsFiles {
                chain,
                key: self.tls_key.clone(),
                authority: self.tls_ca.clone(),
                verify,
            }),
        };
        let mut settings = Settings {
            tcp: vec![TcpAddress {
                address: clients,
                is_plain: false,
            }],
            udp: self.udp.then_some(clients).into_iter().collect(),
            unix: self.unix_socket.clone().map(|path| (path, mode)),
            connections_max: self.connections as usize,
            idle_timeout: self.idle_timeout,
            limits: Limits {
                item_bytes_max: self.max_item_size.bytes(),
                dialect: if self.later_meta {
                    Dialect::Later
                } else {
                    Dialect::V1_6_18
                },
                ..Limits::default()
            },
            evicts: !self.no_evictions,
            ..Settings::default()
        };
        files.load(&mut settings)?;
        Ok((settings, files))
    }

    /// Those of one node of several that are started on this machine: each has a port for metrics of
    /// its own.
    pub fn of_node(&self, index: u16) -> Self {
        let metrics = self.metrics.as_ref().map(|first| match first.port() {
            0 => first.clone(),
            port => first.with_port(port + index),
        });
        Self {
            metrics,
            ..self.clone()
        }
    }

    /// The same flags, and who we are at etcd, for a node of its own process, whose folder is `folder`.
    pub fn flags(&self, folder: &Path, at_etcd: &AtEtcd) -> Result<Vec<std::ffi::OsString>> {
        let mut flags = at_etcd.flags()?;
        let files = [
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
            ("--tls-ca", &self.tls_ca),
            ("--users", &self.users),
        ];
        for (flag, file) in files {
            if let Some(file) = file {
                let found = file.canonicalize().map_err(|error| {
                    let what = format!("{flag} {}: {error}", file.display());
                    Failure::usage(what, "name an existing file")
                })?;
                flags.extend([flag.into(), found.into()]);
            }
        }
        if let Some(socket) = &self.unix_socket {
            flags.extend(["--unix-socket".into(), folder.join(socket).into()]);
            flags.extend(["--unix-mask".into(), (&self.unix_mask).into()]);
        }
        let switches = [
            ("--udp", self.udp),
            ("--tls-required", self.tls_required),
            ("--no-evictions", self.no_evictions),
            ("--later-meta", self.later_meta),
            ("--allow-remote", self.allow_remote),
        ];
        let given = switches.iter().filter(|(_, is_given)| *is_given);
        flags.extend(given.map(|(flag, _)| flag.into()));
        let idle = self.idle_timeout.map(|time| Span::from(time).to_string());
        let metrics = self.metrics.as_ref().map(ToString::to_string);
        let numbers = [
            (
                "--max-item-size",
                Some(self.max_item_size.bytes().to_string()),
            ),
            ("--connections", Some(self.connections.to_string())),
            ("--idle-timeout", idle),
            ("--metrics", metrics),
        ];
        for (flag, number) in numbers {
            if let Some(number) = number {
                flags.extend([flag.into(), number.into()]);
            }
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        serving: Serving,
    }

    #[test]
    fn each_node_has_a_port_for_metrics_of_its_own() {
        for (given, third) in [("127.0.0.1:9000", "127.0.0.1:9002"), ("[::1]:0", "[::1]:0")] {
            let flags = Flags::parse_from(["up", "--metrics", given]);
            let metrics = flags.serving.of_node(2).metrics.expect("it is given");
            assert_eq!(metrics.to_string(), third);
        }
    }
}
