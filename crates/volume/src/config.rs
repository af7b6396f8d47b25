//! What a volume is to be, and the hosts that it is to be on.

use std::time::Duration;

use cenote_fabric::Address;
use cenote_pool::placement::Placement;

use crate::{Protection, Resilience};

/// What a volume is to be.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Shown by `cenote status` on the hosts.
    pub name: String,
    /// Identity; hosts lend to one live owner of it at a time.
    pub id: u128,
    /// What is kept of every page, so that other bytes are never taken for it.
    pub protection: Protection,
    /// Redundancy, and what is done about slow, lost and wrong hosts.
    pub resilience: Resilience,
    /// How the hosts of its stripes are chosen.
    pub placement: Placement,
    /// Size in bytes, a multiple of the page.
    pub size_bytes: u64,
    /// Size that it may grow to by [`crate::Volume::resize`]; its tables are laid out for this much.
    pub size_bytes_max: u64,
    /// The cluster.
    pub hosts: Vec<HostConfig>,
    /// Longest that a host which says that it will be back is waited for, whatever it says. So long do
    /// requests wait for it at most, and a worker that ends; [`RETURN_MAX`] is usual.
    pub return_max: Duration,
}

/// How long a host that is replaced is waited for at most. Arbitrary: a process takes another's place within a
/// second, and programs put up with requests that take ten.
pub const RETURN_MAX: Duration = Duration::from_secs(10);

/// A host of the cluster file, with its text parsed.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// For people.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// Failure domain; hosts that fail together share it.
    pub domain: String,
    /// Power domain, where it is known.
    pub power: Option<String>,
    /// Gets no new slab.
    pub retired: bool,
    /// Whether slabs are asked of it.
    pub lends: bool,
}
