//! What an owner expects of hosts anew, of a volume that is in use.

use std::collections::BTreeSet;

use super::Volume;
use crate::control::{Command, HostConfig};
use crate::extents::{EXTENTS_MAX, Side};
use crate::scheme::Cut;
use crate::{Resilience, Scheme, VolumeError};

impl Volume {
    /// What it expects of its hosts; extents that are still to come to it are shown by its status.
    #[must_use]
    pub fn resilience(&self) -> Resilience {
        self.core.resilience()
    }

    /// Whether the volume can come to expect this of its hosts while it is open.
    ///
    /// # Errors
    /// `Cut`: the scheme has another number of data splits, and pages are not cut so now. `TooFewDomains`:
    /// it has more splits than there are hosts for.
    pub fn check_resilience(&self, resilience: Resilience) -> Result<(), VolumeError> {
        let (from, to) = (self.scheme(), resilience.scheme());
        if from.k() != to.k() && !self.is_cut_to(to) {
            return Err(VolumeError::Cut { from, to });
        }
        let (needed, domains) = (to.members(), self.domain_count);
        if needed > from.members() && needed > domains {
            return Err(VolumeError::TooFewDomains {
                scheme: to,
                needed,
                domains,
            });
        }
        Ok(())
    }

    /// Whether pages can be cut so while the volume is in use. While they are on their way from one k to
    /// another, these two are all there are.
    fn is_cut_to(&self, to: Scheme) -> bool {
        let (sides, cut) = (&self.core.sides, Cut::of(to));
        let extents = sides.layout_with(cut).extents_of(sides.page_count());
        let is_one_of_two = || {
            Side::BOTH
                .map(|side| sides.layout(side).cut())
                .contains(&cut)
        };
        self.may_recut && extents <= EXTENTS_MAX && (!sides.is_mixed() || is_one_of_two())
    }

    /// Expects something else of hosts from now on, while requests go on. Operations that are under
    /// way end by what was expected before; parities are made and given up extent by extent, until the
    /// status shows no change any more. Another call in between takes the change from where it is.
    ///
    /// # Errors
    /// As [`Volume::check_resilience`], and `Closed`.
    pub fn set_resilience(&self, resilience: Resilience) -> Result<(), VolumeError> {
        self.check_resilience(resilience)?;
        if resilience.scheme().k() != self.scheme().k() {
            self.start_mover()?;
        }
        self.command(Command::Reshape(resilience))
    }
}

/// Failure domains of the hosts that lend.
pub(super) fn domains(hosts: &[HostConfig]) -> usize {
    let lending = hosts.iter().filter(|host| host.lends && !host.retired);
    let domains: BTreeSet<&str> = lending.map(|host| host.domain.as_str()).collect();
    domains.len()
}
