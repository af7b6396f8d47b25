//! A cluster file and its key, as `cenote` reads them.

use std::path::Path;

use cenote_fabric::{Address, ClusterKey, WireProtection};
use cenote_volume::HostConfig;

use crate::Error;

/// What is needed to reach the hosts.
pub struct Cluster {
    pub hosts: Vec<HostConfig>,
    pub key: ClusterKey,
    pub page_traffic: WireProtection,
}

impl Cluster {
    /// Reads the file; the key is where it says, beside it.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        let refused = |why: String| Error::Cluster {
            path: path.to_owned(),
            why,
        };
        let file =
            cenote_pool::Cluster::parse(&text).map_err(|error| refused(error.to_string()))?;
        let page_traffic = match file
            .page_traffic
            .as_deref()
            .map(str::parse::<WireProtection>)
        {
            Some(said) => said.map_err(|error: cenote_fabric::Error| refused(error.to_string()))?,
            None => WireProtection::default(),
        };
        let hosts = file.hosts.into_iter().map(|host| {
            let address = host.address.parse::<Address>();
            Ok(HostConfig {
                address: address
                    .map_err(|error| refused(format!("host {}: {error}", host.name)))?,
                name: host.name,
                domain: host.domain,
                power: host.power,
                retired: host.retired,
                lends: host.lends,
            })
        });
        let hosts = hosts.collect::<Result<_, Error>>()?;
        let key_file = path.parent().unwrap_or(Path::new(".")).join(&file.key);
        let key = ClusterKey::load(&key_file).map_err(|error| Error::Key {
            why: error.to_string(),
        })?;
        Ok(Self {
            hosts,
            key,
            page_traffic,
        })
    }

    /// Failure domains that slabs may be asked of: no two splits of a page go to one.
    pub fn domain_count(&self) -> usize {
        let lend = self.hosts.iter().filter(|host| host.lends && !host.retired);
        let mut domains: Vec<&str> = lend.map(|host| host.domain.as_str()).collect();
        domains.sort_unstable();
        domains.dedup();
        domains.len()
    }
}
