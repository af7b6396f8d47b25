//! Reaching the hosts of a volume that is opened.
//!
//! All at once; those that do not answer in time, or hang up before they proved the key, are dialled
//! again while the volume cannot do without them. Whoever refuses with a word has answered.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_fabric::{Address, Connector, Error, FAILURE_TIMEOUT, Hello};

use crate::VolumeError;
use crate::config::{HostConfig, VolumeConfig};
use crate::control::{Link, dial};

/// Connects to a host that takes data connections as this client protects them. One that does not would
/// be a host without memory: its slabs could not be written.
fn reach(connector: &dyn Connector, address: &Address, hello: &Hello) -> Result<Link, Error> {
    let link = dial(connector, address, hello)?;
    if matches!(address, Address::Tcp(_)) {
        drop(link.session.endpoint(FAILURE_TIMEOUT)?);
    }
    Ok(link)
}

/// How often hosts that do not answer are dialled, [`FAILURE_TIMEOUT`] each time, while too few have answered.
const DIALS_MAX: usize = 5;

/// The hosts of a volume that is opened.
pub(super) struct Dialled {
    pub links: Vec<(usize, Link)>,
    /// Those that are yet to answer. Who refused with a word is not among them.
    silent: Vec<usize>,
    /// What the first said that cannot be reached.
    complaint: Option<String>,
}

impl Dialled {
    /// Dials the hosts of a volume until enough of them have answered, or were asked often enough. What
    /// `has_data` is opened with whoever answers, and waits for others then.
    ///
    /// # Errors
    /// `TooFewHosts`: fewer failure domains than data splits have answered.
    pub fn enough(
        config: &VolumeConfig,
        connector: &Arc<dyn Connector>,
        hello: &Hello,
        has_data: bool,
    ) -> Result<Self, VolumeError> {
        let (scheme, hosts) = (config.resilience.scheme(), &config.hosts);
        let mut dialled = Self::all(hosts);
        for _ in 0..DIALS_MAX {
            dialled.dial_silent(hosts, connector, hello);
            let is_enough = has_data || dialled.domains(hosts) >= scheme.k();
            if is_enough || dialled.silent.is_empty() {
                break;
            }
        }
        let answered = dialled.domains(hosts);
        if answered >= scheme.k() || has_data {
            return Ok(dialled);
        }
        let complaint = dialled.complaint.map(|text| format!(" ({text})"));
        Err(VolumeError::TooFewHosts {
            scheme,
            needed: scheme.k(),
            answered,
            complaint: complaint.unwrap_or_default(),
        })
    }

    /// Size of slabs that all have; `None`: nobody who lends has answered.
    pub fn slab_bytes(&self, hosts: &[HostConfig]) -> Option<u64> {
        self.lenders(hosts).map(|(_, link)| link.slab_bytes).min()
    }

    /// Failure domains that have answered.
    fn domains(&self, hosts: &[HostConfig]) -> usize {
        let domains = self.lenders(hosts);
        let domains = domains.map(|(host, _)| hosts[*host].domain.as_str());
        domains.collect::<BTreeSet<&str>>().len()
    }

    fn lenders(&self, hosts: &[HostConfig]) -> impl Iterator<Item = &(usize, Link)> {
        self.links.iter().filter(|link| hosts[link.0].lends)
    }

    fn all(hosts: &[HostConfig]) -> Self {
        Self {
            links: Vec::new(),
            silent: (0..hosts.len()).collect(),
            complaint: None,
        }
    }

    /// Connects to those that have not answered, at once.
    fn dial_silent(&mut self, hosts: &[HostConfig], connector: &Arc<dyn Connector>, hello: &Hello) {
        /// Connects under way at a time; bounds threads on large clusters.
        const BATCH: usize = 64;
        for some in std::mem::take(&mut self.silent).chunks(BATCH) {
            let answers: Vec<_> = std::thread::scope(|scope| {
                let dial = |&host: &usize| {
                    let address = &hosts[host].address;
                    scope.spawn(|| reach(&**connector, address, hello))
                };
                let dials: Vec<_> = some.iter().map(dial).collect();
                let answers = dials.into_iter();
                answers
                    .map(|dial| dial.join().expect("dial does not panic"))
                    .collect()
            });
            for (&host, answer) in some.iter().zip(answers) {
                let error = match answer {
                    Ok(link) => {
                        self.links.push((host, link));
                        continue;
                    }
                    Err(error) => error,
                };
                let complain = || format!("{}: {error}", hosts[host].name);
                self.complaint.get_or_insert_with(complain);
                // A host hangs up on another key, and on who was slow to prove it as well.
                if matches!(error, Error::Timeout(_) | Error::Unauthenticated { .. }) {
                    self.silent.push(host);
                }
            }
        }
        tracing::debug!(answered = self.links.len(), asked = hosts.len(), timeout = ?FAILURE_TIMEOUT, "dialled");
    }
}
