//! Who was in trouble, and until when: what may explain a loss.

use cenote_fabric::Time;

/// Of every host and client, until when a fault of it may have had effects.
#[derive(Debug)]
pub struct Troubles {
    hosts: Vec<Time>,
    clients: Vec<Time>,
}

impl Troubles {
    pub fn new(host_count: usize, client_count: usize) -> Self {
        Self {
            hosts: vec![Time(0); host_count],
            clients: vec![Time(0); client_count],
        }
    }

    pub fn note_host(&mut self, host: usize, until: Time) {
        self.hosts[host] = until.max(self.hosts[host]);
    }

    /// A client that is stopped may lose its slabs on every host.
    pub fn note_client(&mut self, client: usize, until: Time) {
        self.clients[client] = until.max(self.clients[client]);
    }

    /// Whether a host was in trouble at some time from `since` on.
    pub fn has_host(&self, host: usize, since: Time) -> bool {
        self.hosts[host] >= since && self.hosts[host] > Time(0)
    }

    /// Whether a client was.
    pub fn has_client(&self, client: usize, since: Time) -> bool {
        self.clients[client] >= since && self.clients[client] > Time(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_counts_until_its_effects_are_over() {
        let mut troubles = Troubles::new(2, 1);
        assert!(!troubles.has_host(0, Time(0)));
        troubles.note_host(0, Time(10));
        troubles.note_host(0, Time(5));
        assert!(troubles.has_host(0, Time(10)) && !troubles.has_host(0, Time(11)));
        assert!(!troubles.has_host(1, Time(0)) && !troubles.has_client(0, Time(0)));
    }
}
