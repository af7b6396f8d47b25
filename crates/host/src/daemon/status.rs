//! A host's view of itself.

use cenote_fabric::strangers::Counts;
use cenote_pool::control::{
    ClientStatus, Counters, HostStatus, STATUS_CLIENTS_MAX, StrangerCounts,
};

use super::Daemon;

impl Daemon {
    /// What happened so far, here and in the processes before.
    pub(super) fn all_counters(&self) -> Counters {
        Counters {
            leases_expired: self.ledger.leases_expired(),
            orphans_taken: self.ledger.orphans_taken(),
            maps: self.ledger.granted(),
            unmaps: self.ledger.given_back(),
            ..self.counters
        }
    }

    /// Its view of itself.
    #[must_use]
    pub fn status(&self) -> HostStatus {
        let now = self.elapsed();
        let mut clients: Vec<_> = self
            .ledger
            .clients()
            .map(|(id, lease)| ClientStatus {
                name: lease.name.clone(),
                id,
                slabs: lease.slabs,
                last_seen_ms: now
                    .saturating_sub(lease.last_seen)
                    .as_millis()
                    .try_into()
                    .unwrap_or(u64::MAX),
                orphaned: lease.orphaned_since.is_some(),
                declined: self.ledger.declined(id),
                version: self.version(id),
            })
            .collect();
        clients.sort_by_key(|client| (std::cmp::Reverse(client.slabs), client.id));
        let clients_total = u32::try_from(clients.len()).unwrap_or(u32::MAX);
        clients.truncate(STATUS_CLIENTS_MAX);
        let slabs = self.ledger.counts();
        HostStatus {
            name: self.config.name.clone(),
            domain: self.config.domain.clone(),
            incarnation: self.incarnation,
            uptime_s: now.saturating_sub(self.started).as_secs(),
            slab_bytes: self.config.slab_bytes,
            memory_bytes: self.config.memory_bytes,
            lent_bytes: u64::from(slabs.mapped + slabs.orphaned) * self.config.slab_bytes,
            locked: self.locked,
            slabs,
            counters: self.all_counters(),
            clients_total,
            clients,
            draining: self.ledger.is_draining(),
            program: env!("CARGO_PKG_VERSION").into(),
            pressure: self.pressure_status(),
            strangers: self.strangers(),
        }
    }

    fn strangers(&self) -> StrangerCounts {
        let Counts {
            accepted,
            proven,
            wrong_key,
            wrong_version,
            hung_up,
            late,
            displaced,
            waiting,
        } = self.listener.strangers();
        StrangerCounts {
            accepted,
            proven,
            wrong_key,
            wrong_version,
            hung_up,
            late,
            displaced,
            waiting,
        }
    }
}
