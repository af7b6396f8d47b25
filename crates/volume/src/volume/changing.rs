//! What an owner expects of hosts anew, of a volume that is in use.

use std::collections::BTreeSet;

use super::Volume;
use crate::control::{Command, HostConfig};
use crate::{Resilience, VolumeError};

impl Volume {
    /// What it expects of its hosts; extents that are still to come to it are shown by its status.
    #[must_use]
    pub fn resilience(&self) -> Resilience {
        self.core.resilience()
    }

    /// Whether the volume can come to expect this of its hosts while it is open.
    ///
    /// # Errors
    /// `Cut`: the scheme has another number of data splits. `TooFewDomains`: it has more
    /// parities than there are hosts for.
    pub fn check_resilience(&self, resilience: Resilience) -> Result<(), VolumeError> {
        let (from, to) = (self.scheme(), resilience.scheme());
        if from.k() != to.k() {
            return Err(VolumeError::Cut { from, to });
        }
        let (needed, domains) = (to.members(), self.domain_count);
        if to.r() > from.r() && needed > domains {
            return Err(VolumeError::TooFewDomains {
                scheme: to,
                needed,
                domains,
            });
        }
        Ok(())
    }

    /// Expects something else of hosts from now on, while requests go on. Operations that are under
    /// way end by what was expected before; parities are made and given up extent by extent, until the
    /// status shows no change any more. Another call in between takes the change from where it is.
    ///
    /// # Errors
    /// As [`Volume::check_resilience`], and `Closed`.
    pub fn set_resilience(&self, resilience: Resilience) -> Result<(), VolumeError> {
        self.check_resilience(resilience)?;
        self.command(Command::Reshape(resilience))
    }
}

/// Failure domains of the hosts that lend.
pub(super) fn domains(hosts: &[HostConfig]) -> usize {
    let lending = hosts.iter().filter(|host| host.lends && !host.retired);
    let domains: BTreeSet<&str> = lending.map(|host| host.domain.as_str()).collect();
    domains.len()
}
