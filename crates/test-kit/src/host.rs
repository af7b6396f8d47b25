//! What a host of a test is.

use cenote_fabric::{Address, ClusterKey, WireProtection};
use cenote_host::{Config, LockMemory};

/// A host that lends so many slabs and answers no calls. Its memory is as any other's: a test has no
/// huge pages to count on, and locks nothing. The domain has the host's name.
#[must_use]
pub fn host_config(
    name: &str,
    address: Address,
    slab_count: u64,
    slab_bytes: u64,
    key: &ClusterKey,
) -> Config {
    Config {
        name: name.into(),
        domain: name.into(),
        addresses: vec![address],
        memory_bytes: slab_count * slab_bytes,
        slab_bytes,
        key: key.clone(),
        huge_pages: false,
        lock_memory: LockMemory::Never,
        clients_max: 64,
        headroom: None,
        page_traffic: WireProtection::default(),
        cache_threads: 0,
        modules: None,
    }
}
