//! What an owner expects of hosts, changed for a volume that is in use.

use std::collections::BTreeSet;

use super::Volume;
use crate::command::Command;
use crate::config::HostConfig;
use crate::extents::EXTENTS_MAX;
use crate::restripe_orders::Orders;
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
        self.check(resilience, &self.core.helpers.restripe_orders.lock())
    }

    fn check(&self, resilience: Resilience, orders: &Orders) -> Result<(), VolumeError> {
        let (from, to) = (self.scheme(), resilience.scheme());
        if orders.is_new(Cut::of(to)) && !self.is_cut_to(to, orders) {
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

    /// Whether pages can be cut so while the volume is in use.
    fn is_cut_to(&self, to: Scheme, orders: &Orders) -> bool {
        let (layouts, cut) = (&self.core.layouts, Cut::of(to));
        if !self.may_restripe || !layouts.fits(cut) {
            return false;
        }
        let extents = layouts.layout_with(cut).extents_of(layouts.page_count());
        extents <= EXTENTS_MAX && orders.admit(cut, layouts.at_rest())
    }

    /// Expects something else of hosts from now on, while requests go on. Operations that are under
    /// way end by what was expected before; parities are made and given up extent by extent, until the
    /// status shows no change any more. Another call in between takes the change from where it is.
    ///
    /// # Errors
    /// As [`Volume::check_resilience`], and `Closed`.
    pub fn set_resilience(&self, resilience: Resilience) -> Result<(), VolumeError> {
        let cut = Cut::of(resilience.scheme());
        let is_new = {
            let orders = self.core.helpers.restripe_orders.lock();
            self.check(resilience, &orders)?;
            orders.is_new(cut)
        };
        if is_new {
            // Without the lock: the control thread, which it waits for, takes that too.
            self.start_migrator()?;
        }
        // Until the order is sent: two that come together are in one order.
        let mut orders = self.core.helpers.restripe_orders.lock();
        self.check(resilience, &orders)?;
        self.command(Command::Reshape(resilience))?;
        orders.note_sent(cut, self.core.layouts.at_rest());
        Ok(())
    }
}

/// Failure domains of the hosts that lend.
pub(super) fn domains(hosts: &[HostConfig]) -> usize {
    let lending = hosts.iter().filter(|host| host.lends && !host.retired);
    let domains: BTreeSet<&str> = lending.map(|host| host.domain.as_str()).collect();
    domains.len()
}
