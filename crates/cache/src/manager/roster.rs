//! Hosts that come and go while a manager runs.

use cenote_fabric::Time;

use super::Manager;
use super::host::HostLink;
use crate::links::HostConfig;
use crate::owner::HostIndex;

impl Manager {
    /// The host of this name.
    #[must_use]
    pub fn find_host(&self, name: &str) -> Option<HostIndex> {
        self.hosts.iter().position(|host| host.config.name == name)
    }

    /// Connects to one more host, or again to one of that name, wherever that is now. Its number;
    /// `None`: there are as many as may be.
    pub fn add_host(&mut self, now: Time, config: HostConfig) -> Option<HostIndex> {
        if let Some(host) = self.find_host(&config.name) {
            if self.hosts[host].config.address != config.address {
                self.lose(now, host);
                self.hosts[host].config.address = config.address;
            }
            self.hosts[host].take_in(now);
            self.owner.handle_kept_out(host, false);
            return Some(host);
        }
        // One that an earlier owner knew and this list does not would have its number.
        if self.owner.host_count() != self.hosts.len() {
            return None;
        }
        let same = |other: &HostLink| other.config.domain == config.domain;
        let domain = self.hosts.iter().position(same).unwrap_or(self.hosts.len());
        let domain = u32::try_from(domain).expect("at most 4096 hosts");
        let host = self.owner.handle_host_added(domain)?;
        self.hosts.push(HostLink::new(config));
        Some(host)
    }

    /// The same host, by another name.
    pub fn rename_host(&mut self, host: HostIndex, name: String) {
        self.hosts[host].config.name = name;
    }

    /// Whether it was given up for good.
    #[must_use]
    pub fn is_put_aside(&self, host: HostIndex) -> bool {
        self.hosts[host].is_put_aside()
    }

    /// Gives a host up for good, and what is there: its machine is not the cache's any more.
    pub fn drop_host(&mut self, now: Time, host: HostIndex) {
        self.hosts[host].put_aside();
        self.owner.handle_host_ended(now, host);
        self.carry_out(now);
    }
}
