//! Who a command is at etcd, where that asks, and whom it believes to be etcd.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_kv_cluster::etcd::{Credentials, Etcd, Tls};
use serde::{Deserialize, Serialize};

/// Where help shows the flags: on each of them, as a heading of the struct would go on to the flags
/// that follow it in a command.
const HEADING: &str = "etcd";

/// Who we are at etcd, where it asks, and who it is.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct AtEtcd {
    /// etcd user; the password is taken from the variable CENOTE_ETCD_PASSWORD, or from
    /// --etcd-password-file
    #[serde(skip_serializing_if = "Option::is_none")]
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    etcd_user: Option<String>,
    /// File with the etcd user's password; others must not be able to read it
    #[serde(skip_serializing_if = "Option::is_none")]
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    /// PEM file of CAs for etcd's certificate; the addresses must be https://
    #[serde(skip_serializing_if = "Option::is_none")]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// PEM file with the client certificate for etcd
    #[serde(skip_serializing_if = "Option::is_none")]
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "etcd_ca")]
    etcd_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key [default: the certificate file]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl AtEtcd {
    /// A user with the password in a file.
    pub fn with_password(user: &str, file: PathBuf) -> Self {
        Self {
            etcd_user: Some(user.to_owned()),
            etcd_password_file: Some(file),
            ..Self::default()
        }
    }

    /// Whether a user is named.
    pub fn has_user(&self) -> bool {
        self.etcd_user.is_some()
    }

    /// Whether nothing is said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The same, read from whatever folder a process is in.
    ///
    /// # Errors
    /// A file is not there.
    pub fn absolute(&self) -> Result<Self> {
        let mut absolute = self.clone();
        for (flag, file) in [
            ("--etcd-password-file", &mut absolute.etcd_password_file),
            ("--etcd-ca", &mut absolute.etcd_ca),
            ("--etcd-cert", &mut absolute.etcd_cert),
            ("--etcd-key", &mut absolute.etcd_key),
        ] {
            if let Some(path) = file {
                let found = path.canonicalize();
                *path = found.with_context(|| format!("{flag} {}", path.display()))?;
            }
        }
        Ok(absolute)
    }

    /// The client of an etcd.
    pub fn connect(&self, endpoints: &str) -> Result<Etcd> {
        Ok(Etcd::with(
            endpoints,
            self.credentials()?,
            self.tls().as_ref(),
        )?)
    }

    pub fn tls(&self) -> Option<Tls> {
        let own = self.etcd_cert.clone().map(|chain| {
            let key = self.etcd_key.clone();
            let key = key.unwrap_or_else(|| chain.clone());
            (chain, key)
        });
        let authority = self.etcd_ca.clone()?;
        Some(Tls { authority, own })
    }

    pub fn credentials(&self) -> Result<Option<Credentials>> {
        let Some(name) = self.etcd_user.clone() else {
            return Ok(None);
        };
        let password = match &self.etcd_password_file {
            Some(path) => read_secret(path)?,
            None => std::env::var("CENOTE_ETCD_PASSWORD").map_err(|_| {
                Failure::usage(
                    format!("no password for the user {name} at etcd"),
                    "set CENOTE_ETCD_PASSWORD, or --etcd-password-file FILE",
                )
            })?,
        };
        Ok(Some(Credentials { name, password }))
    }

    /// What the process of a node is told, which runs in another folder.
    pub fn flags(&self) -> Result<Vec<OsString>> {
        let mut flags: Vec<OsString> = Vec::new();
        if let Some(name) = &self.etcd_user {
            flags.extend(["--etcd-user".into(), name.into()]);
        }
        let absolute = self.absolute()?;
        for (flag, file) in [
            ("--etcd-password-file", absolute.etcd_password_file),
            ("--etcd-ca", absolute.etcd_ca),
            ("--etcd-cert", absolute.etcd_cert),
            ("--etcd-key", absolute.etcd_key),
        ] {
            if let Some(path) = file {
                flags.extend([flag.into(), path.into()]);
            }
        }
        Ok(flags)
    }
}

/// The first line of a file that nobody but its owner may read.
fn read_secret(path: &Path) -> Result<String> {
    let shown = path.display();
    let mut file = fs::File::open(path).with_context(|| shown.to_string())?;
    let mode = file.metadata().with_context(|| shown.to_string())?.mode();
    if mode & 0o077 != 0 {
        let what = format!("{shown}: readable by others (mode {:o})", mode & 0o777);
        return Err(Failure::new(what, format!("chmod 600 {shown}")).into());
    }
    let mut text = String::new();
    // Nobody's password is longer.
    (&mut file)
        .take(4096)
        .read_to_string(&mut text)
        .with_context(|| shown.to_string())?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
