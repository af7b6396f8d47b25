//! The file that names the hosts of a cluster.
//!
//! Text in, checked values out; reading the file and resolving the key's path against
//! the file's folder are the caller's.

use std::collections::HashSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::{ADDRESS_BYTES_MAX, NAME_BYTES_MAX};

/// Most hosts in one cluster file.
pub const HOSTS_MAX: usize = 4096;

/// A checked cluster file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cluster {
    /// The cluster's key file; relative to the folder of the cluster file.
    pub key: PathBuf,
    /// How pages over tcp are protected unless a client says otherwise, in the fabric's words.
    pub page_traffic: Option<String>,
    /// 1 to [`HOSTS_MAX`] hosts, no name and no address twice.
    pub hosts: Vec<HostEntry>,
}

/// One host of the cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostEntry {
    /// For people and for file names: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// As the fabric writes it: `shm:/path/to/socket`, `tcp:HOST:PORT` or `rdma:HOST:PORT`.
    pub address: String,
    /// Failure domain: of one stripe at most one member is placed on each.
    pub domain: String,
    /// What feeds it, where that is known: of one stripe no more members are placed on each than
    /// it has parities.
    pub power: Option<String>,
    /// It gets no new slab. Its line keeps its place in a group for the host that follows it.
    pub retired: bool,
    /// Whether slabs are asked of it. The host of the client's own machine may be named for what
    /// it says of that machine's memory alone.
    pub lends: bool,
}

/// What a text that should be an address is not; for people.
pub type NoAddress = String;

/// Why a text is not a cluster file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Not TOML, or not with the fields of a cluster file.
    #[error("cluster file: {0}")]
    Syntax(#[from] toml::de::Error),
    /// No host, or more than [`HOSTS_MAX`].
    #[error("cluster file: {count} hosts, must be 1 to {HOSTS_MAX}")]
    HostCount {
        /// Hosts found.
        count: usize,
    },
    /// Two hosts with one name or one address.
    #[error("cluster file: {what} {value:?} is used twice")]
    Duplicate {
        /// `name` or `address`.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// An address that nobody can be reached at.
    #[error("line {line}: {why}")]
    Address {
        /// Of the file, from 1.
        line: usize,
        /// What is wrong with it.
        why: NoAddress,
    },
    /// A value that is empty, too long or has a character that is not allowed.
    #[error("cluster file: {what} {value:?} must have 1 to {bytes_max} bytes{also}")]
    Value {
        /// The field.
        what: &'static str,
        /// What was given.
        value: String,
        /// The bound on its length.
        bytes_max: usize,
        /// Rule on its characters, as a continuation of the sentence.
        also: &'static str,
    },
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FileCluster {
    key: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page_traffic: Option<String>,
    #[serde(default)]
    host: Vec<FileHost>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FileHost {
    name: String,
    address: toml::Spanned<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retired: bool,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    lends: bool,
}

fn yes() -> bool {
    true
}

fn is_yes(lends: &bool) -> bool {
    *lends
}

impl Cluster {
    /// Parses and checks the text of a cluster file. A host without a domain is its own.
    ///
    /// # Errors
    /// [`ClusterError`] names the line or the value that is wrong.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        Self::parse_with(text, |_, _| Ok(()))
    }

    /// As [`Cluster::parse`], with addresses and their lines, from 1, looked at by who knows what they
    /// are.
    ///
    /// # Errors
    /// As [`Cluster::parse`], and those of `check` with the line of the address.
    pub fn parse_with(
        text: &str,
        mut check: impl FnMut(&str, usize) -> Result<(), NoAddress>,
    ) -> Result<Self, ClusterError> {
        let file: FileCluster = toml::from_str(text)?;
        if file.host.is_empty() || file.host.len() > HOSTS_MAX {
            return Err(ClusterError::HostCount {
                count: file.host.len(),
            });
        }
        let mut names = HashSet::new();
        let mut addresses = HashSet::new();
        let mut hosts = Vec::with_capacity(file.host.len());
        for host in file.host {
            check_word("name", &host.name)?;
            let domain = host.domain.unwrap_or_else(|| host.name.clone());
            check_word("domain", &domain)?;
            if let Some(power) = &host.power {
                check_word("power", power)?;
            }
            let at = host.address.span().start;
            let address = host.address.into_inner();
            check_length("address", &address, ADDRESS_BYTES_MAX, "")?;
            let before = text.as_bytes()[..at].iter();
            let line = 1 + before.filter(|&&byte| byte == b'\n').count();
            check(&address, line).map_err(|why| ClusterError::Address { line, why })?;
            if !names.insert(host.name.clone()) {
                return Err(ClusterError::Duplicate {
                    what: "name",
                    value: host.name,
                });
            }
            if !addresses.insert(address.clone()) {
                return Err(ClusterError::Duplicate {
                    what: "address",
                    value: address,
                });
            }
            hosts.push(HostEntry {
                name: host.name,
                address,
                domain,
                power: host.power,
                retired: host.retired,
                lends: host.lends,
            });
        }
        Ok(Self {
            key: file.key,
            page_traffic: file.page_traffic,
            hosts,
        })
    }

    /// The text of this cluster's file; [`Cluster::parse`] gives the same cluster back.
    ///
    /// # Panics
    /// If the key's path is not UTF-8; a parsed one always is.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let host = self.hosts.iter().map(|host| FileHost {
            name: host.name.clone(),
            address: toml::Spanned::new(0..0, host.address.clone()),
            domain: (host.domain != host.name).then(|| host.domain.clone()),
            power: host.power.clone(),
            retired: host.retired,
            lends: host.lends,
        });
        let file = FileCluster {
            key: self.key.clone(),
            page_traffic: self.page_traffic.clone(),
            host: host.collect(),
        };
        toml::to_string(&file).expect("text and tables after values always serialize")
    }
}

fn check_word(what: &'static str, value: &str) -> Result<(), ClusterError> {
    let also = ", of letters, digits, '.', '_' and '-', and not begin with '.' or '-'";
    check_length(what, value, NAME_BYTES_MAX, also)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if value.starts_with(['.', '-']) || !value.bytes().all(allowed) {
        return Err(ClusterError::Value {
            what,
            value: value.into(),
            bytes_max: NAME_BYTES_MAX,
            also,
        });
    }
    Ok(())
}

fn check_length(
    what: &'static str,
    value: &str,
    bytes_max: usize,
    also: &'static str,
) -> Result<(), ClusterError> {
    if value.is_empty() || value.len() > bytes_max {
        return Err(ClusterError::Value {
            what,
            value: value.into(),
            bytes_max,
            also,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        key = "cluster.key"
        [[host]]
        name = "h00"
        address = "shm:/dir/hosts/h00/socket"
        domain = "rack-1"
        [[host]]
        name = "h01"
        address = "tcp:127.0.0.1:7000"
    "#;

    #[test]
    fn a_file_is_read_as_written_and_the_domain_defaults_to_the_name() {
        let cluster = Cluster::parse(TWO).unwrap();
        assert_eq!(cluster.key, PathBuf::from("cluster.key"));
        let seen: Vec<_> = cluster
            .hosts
            .iter()
            .map(|h| (h.name.as_str(), h.address.as_str(), h.domain.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("h00", "shm:/dir/hosts/h00/socket", "rack-1"),
                ("h01", "tcp:127.0.0.1:7000", "h01")
            ]
        );
    }

    #[test]
    fn written_text_parses_to_the_same_cluster() {
        let mut cluster = Cluster::parse(TWO).unwrap();
        assert!(cluster.hosts[0].lends, "unless it says otherwise");
        assert!(!cluster.to_toml().contains("lends"));
        cluster.hosts[0].lends = false;
        cluster.hosts[1].address = "shm:/a \"quoted\" \\ path".into();
        assert_eq!(Cluster::parse(&cluster.to_toml()).unwrap(), cluster);
        cluster.hosts[0].power = Some("feed-a".into());
        cluster.hosts[1].retired = true;
        cluster.page_traffic = Some("plain".into());
        assert_eq!(Cluster::parse(&cluster.to_toml()).unwrap(), cluster);
    }

    #[test]
    fn an_address_that_is_none_is_named_by_its_line() {
        let check = |address: &str, _| match address.starts_with("shm:") {
            true => Ok(()),
            false => Err(format!("{address:?} is none")),
        };
        let error = Cluster::parse_with(TWO, check).unwrap_err();
        assert!(matches!(error, ClusterError::Address { line: 9, .. }));
        assert_eq!(error.to_string(), "line 9: \"tcp:127.0.0.1:7000\" is none");
        assert!(Cluster::parse_with(TWO, |_, _| Ok(())).is_ok());
    }

    #[test]
    fn each_mistake_is_named() {
        let message = |text: &str| Cluster::parse(text).unwrap_err().to_string();
        let host = |name: &str, address: &str| {
            format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\n")
        };
        let file = |hosts: &[String]| format!("key = \"k\"\n{}", hosts.concat());
        assert!(message("key = \"k\"").contains("0 hosts"));
        let crowd: Vec<_> = (0..=HOSTS_MAX)
            .map(|i| host(&format!("h{i}"), &format!("shm:/{i}")))
            .collect();
        assert!(message(&file(&crowd)).contains("4097 hosts"));
        assert!(Cluster::parse(&file(&crowd[1..])).is_ok());
        assert!(message(&file(&[host("a", "shm:/x"), host("a", "shm:/y")])).contains("name \"a\""));
        assert!(
            message(&file(&[host("a", "shm:/x"), host("b", "shm:/x")]))
                .contains("address \"shm:/x\"")
        );
        assert!(message(&file(&[host("../a", "shm:/x")])).contains("name \"../a\""));
        assert!(message(&file(&[host("", "shm:/x")])).contains("name \"\""));
        let fed = format!("{}power = \"a b\"\n", file(&[host("a", "shm:/x")]));
        assert!(message(&fed).contains("power \"a b\""));
        assert!(message(&file(&[host("a", &"x".repeat(256))])).contains("1 to 255 bytes"));
        assert!(message("key = \"k\"\nkye = 1").contains("kye"));
        assert!(message(&format!("{}color = 1", file(&[host("a", "shm:/x")]))).contains("color"));
    }
}
