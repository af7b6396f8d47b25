//! Reaching the hosts of a volume that is opened.
//!
//! All at once; those that do not answer in time are dialled again while the volume cannot do without
//! them. Whoever refuses has answered.

use std::sync::Arc;

use cenote_fabric::{Connector, Error, FAILURE_TIMEOUT, Hello};

use crate::control::{HostConfig, Link, dial};

/// How often hosts that do not answer are dialled, [`FAILURE_TIMEOUT`] each time, while too few have answered.
pub(super) const DIALS_MAX: usize = 5;

/// The hosts of a volume that is opened.
pub(super) struct Dialled {
    pub links: Vec<(usize, Link)>,
    /// Those that are yet to answer. Who refused is not among them.
    pub silent: Vec<usize>,
    /// What the first said that cannot be reached.
    pub complaint: Option<String>,
}

impl Dialled {
    pub fn all(hosts: &[HostConfig]) -> Self {
        Self {
            links: Vec::new(),
            silent: (0..hosts.len()).collect(),
            complaint: None,
        }
    }

    /// Connects to those that have not answered, at once.
    pub fn dial_silent(
        &mut self,
        hosts: &[HostConfig],
        connector: &Arc<dyn Connector>,
        hello: &Hello,
    ) {
        /// Connects under way at a time; bounds threads on large clusters.
        const BATCH: usize = 64;
        for some in std::mem::take(&mut self.silent).chunks(BATCH) {
            let answers: Vec<_> = std::thread::scope(|scope| {
                let dial = |&host: &usize| {
                    let address = &hosts[host].address;
                    scope.spawn(|| dial(&**connector, address, hello))
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
                if matches!(error, Error::Timeout(_)) {
                    self.silent.push(host);
                }
            }
        }
        tracing::debug!(answered = self.links.len(), asked = hosts.len(), timeout = ?FAILURE_TIMEOUT, "dialled");
    }
}
