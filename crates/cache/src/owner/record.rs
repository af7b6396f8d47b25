//! What an owner leaves to the next: entries, with hosts by name.
//!
//! The list of hosts may be another one when the next owner comes: in another order, longer, or
//! without some.

use std::collections::BTreeMap;
use std::time::Duration;

use super::host::HostIndex;
use super::region::{Copy, Entry};
use super::settings::{REGIONS_MAX, Settings};

/// Most hosts of a cache, those of the record that are there no more among them.
pub const HOSTS_MAX: usize = 4096;

/// See the module's text.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record {
    /// Names of hosts; what follows says their positions in this list.
    pub hosts: Vec<String>,
    /// Hosts that are to go, besides those that say so themselves.
    pub leaving: Vec<HostIndex>,
    /// How long the cache is kept after it was renewed; `None`: until it is deleted.
    pub duration: Option<Duration>,
    /// Regions that were cut off and what a checkpoint may have of them: copies up to this time, in
    /// milliseconds since 1970, are not theirs any more.
    pub outdated: BTreeMap<u32, u64>,
    /// One for each region, in order.
    pub entries: Vec<Entry>,
}

/// What cannot be the record of this cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the cache's record: {0}")]
pub struct BadRecord(pub &'static str);

impl Record {
    /// The same with hosts by their position in `names`. Those that are not in it come behind it.
    ///
    /// # Errors
    /// It names hosts that it does not list, or lists one twice.
    pub fn for_hosts(mut self, names: &[String]) -> Result<Self, BadRecord> {
        let mut hosts = names.to_vec();
        let mut positions = Vec::with_capacity(self.hosts.len());
        for name in &self.hosts {
            let position = hosts.iter().position(|known| known == name);
            let position = position.unwrap_or(hosts.len());
            if position == hosts.len() {
                hosts.push(name.clone());
            }
            if positions.contains(&position) {
                return Err(BadRecord("a host that is listed twice"));
            }
            positions.push(position);
        }
        if hosts.len() > HOSTS_MAX {
            return Err(BadRecord("too many hosts"));
        }
        let copies = self.entries.iter_mut().flat_map(|entry| &mut entry.copies);
        for host in copies.map(|copy| &mut copy.host).chain(&mut self.leaving) {
            let position = positions.get(*host);
            *host = *position.ok_or(BadRecord("a host that is not listed"))?;
        }
        self.hosts = hosts;
        Ok(self)
    }

    /// Whether it can be that of a cache like this. It comes from a file.
    pub(super) fn check(&self, settings: &Settings) -> Result<(), BadRecord> {
        /// No cache counts so far.
        const FAR: u64 = u64::MAX / 2;
        let is_listed = |host: HostIndex| host < self.hosts.len();
        if self.entries.len() > REGIONS_MAX as usize || self.hosts.len() > HOSTS_MAX {
            return Err(BadRecord("too many regions or hosts"));
        }
        if !self.leaving.iter().all(|&host| is_listed(host)) {
            return Err(BadRecord("a host that is not listed"));
        }
        for (region, entry) in self.entries.iter().enumerate() {
            let slabs = settings.slabs_per_region as usize;
            let is_whole = |copy: &Copy| copy.windows.len() == slabs && is_listed(copy.host);
            if entry.region as usize != region {
                return Err(BadRecord("regions out of order"));
            }
            if !(1..FAR).contains(&entry.generation) || entry.losses > u32::MAX / 2 {
                return Err(BadRecord("a count that no cache comes to"));
            }
            if entry.copies.len() > 2 || !entry.copies.iter().all(is_whole) {
                return Err(BadRecord("copies that are none of this cache"));
            }
            if let [one, other] = &entry.copies[..]
                && one.host == other.host
            {
                return Err(BadRecord("two copies on one host"));
            }
        }
        Ok(())
    }
}
