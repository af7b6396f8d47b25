//! Hosts that come after the owner began, and what is told of each to whoever gets and releases machines.

use super::host::{Host, HostIndex};
use super::region::Copy;
use super::{HOSTS_MAX, Owner};

/// A host, as whoever pays for its machine has to know it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HostSummary {
    /// It is connected.
    pub is_up: bool,
    /// Its process has ended, or it was out of reach for too long: nothing of the cache is there.
    pub has_ended: bool,
    /// The same, or it is out of reach for so long and not given up, as no other host is up.
    pub is_missing: bool,
    /// It is to go.
    pub is_leaving: bool,
    /// Slabs of the cache there, and those that it could lend besides; 0 of one that is not connected.
    pub slabs: u32,
    /// No region has a copy there, has one on its way there, or gives one back.
    pub is_empty: bool,
}

impl Owner {
    /// Hosts that it knows.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Regions that the cache is to hold: those not cut off.
    #[must_use]
    pub fn wanted_regions(&self) -> u32 {
        let wanted = self.regions.iter().filter(|region| !region.is_cut());
        u32::try_from(wanted.count()).expect("at most 2^16 regions")
    }

    /// One more host; `domain` as for [`Owner::new`]. `None`: there are as many as may be.
    pub fn handle_host_added(&mut self, domain: u32) -> Option<HostIndex> {
        if self.hosts.len() >= HOSTS_MAX {
            return None;
        }
        self.hosts.push(Host::new(domain));
        Some(self.hosts.len() - 1)
    }

    /// How a host stands; that of one that is not there for another number.
    #[must_use]
    pub fn summary(&self, host: HostIndex) -> HostSummary {
        let Some(known) = self.hosts.get(host) else {
            return HostSummary::default();
        };
        let is_there = |copy: &Copy| copy.host == host;
        let is_used = self
            .regions
            .iter()
            .any(|region| region.holds(is_there) || region.target_host() == Some(host));
        // While nothing is concluded no silence counts.
        let patience = self.settings.give_up_after;
        let is_silent = self.recording.is_none() && known.is_silent_for(self.looked_at, patience);
        let per_region = self.settings.slabs_per_region;
        let regions = self.regions.iter();
        let there = regions.map(|region| region.copies_on(host)).sum::<u32>() * per_region;
        HostSummary {
            slabs: match known.is_up() {
                true => there.saturating_add(known.slabs_free()),
                false => 0,
            },
            is_up: known.is_up(),
            has_ended: known.has_ended(),
            is_missing: known.has_ended() || is_silent,
            is_leaving: known.is_leaving(),
            is_empty: !is_used,
        }
    }
}
