//! What a host is told: checked once, at the start.

mod headroom;

use std::path::PathBuf;

use cenote_fabric::{Address, ClusterKey, WireProtection};
use cenote_pool::control::NAME_BYTES_MAX;
use cenote_pool::pressure;

use crate::machine::Machine;
use crate::{Error, Result};
pub use headroom::{Headroom, Share};

/// Settings of one host.
#[derive(Clone, Debug)]
pub struct Config {
    /// For people; at most 64 bytes.
    pub name: String,
    /// Failure domain, usually the name; at most 64 bytes.
    pub domain: String,
    /// Where to listen; at least one.
    pub addresses: Vec<Address>,
    /// Memory to lend, rounded down to whole slabs; with a headroom, at most.
    pub memory_bytes: u64,
    /// Size of a slab: a multiple of 4096, at most `memory_bytes`. See [`slab_bytes_default`].
    pub slab_bytes: u64,
    /// The cluster's key.
    pub key: ClusterKey,
    /// Whether slabs are put on 2 MiB pages where the system has them.
    pub huge_pages: bool,
    /// Whether lent memory is locked into RAM.
    pub lock_memory: LockMemory,
    /// Most clients with slabs.
    pub clients_max: u32,
    /// What it leaves to the rest of its machine; `None`: it lends its memory whatever happens.
    pub headroom: Option<Headroom>,
    /// The least protection of page traffic over `tcp`: clients that want less are turned away, and
    /// what is read from other hosts is protected so.
    pub page_traffic: WireProtection,
    /// Server threads that carry out batches for caches; 0: batches are turned away.
    pub cache_threads: usize,
    /// Folder in which modules of procedures outlive the process; it must be there. `None`: they do not.
    pub modules: Option<PathBuf>,
}

/// Whether lent memory is locked into RAM, so that it is never itself swapped out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LockMemory {
    /// Whenever the system allows it, also without swap: swap may be turned on later.
    #[default]
    Auto,
    /// A host that may not lock its memory does not start.
    Always,
    /// For machines that never have swap.
    Never,
}

/// The size of a slab where none is given: the largest power of two that is at most
/// 1 GiB and a 64th of the memory, but at least 1 MiB.
///
/// A 64th spreads a volume evenly and bounds what one eviction moves. A power of two is
/// the same for hosts that lend nearly the same, as the hosts of one volume must, and is
/// whole 2 MiB pages from 2 MiB up. Below 1 MiB, the step of a repair, a slab would cost
/// more in descriptors and mappings than it spreads.
#[must_use]
pub fn slab_bytes_default(memory_bytes: u64) -> u64 {
    let share = (memory_bytes / 64).clamp(1 << 20, 1 << 30);
    1 << share.ilog2()
}

impl Config {
    /// Slabs that fit the memory.
    #[must_use]
    pub fn slabs_total(&self) -> u32 {
        u32::try_from(self.memory_bytes / self.slab_bytes).unwrap_or(u32::MAX)
    }

    /// A headroom as the pool's decisions take it, on a machine that has `total_bytes`.
    ///
    /// # Errors
    /// `Config`: nothing would ever be lent, or the floor is above what is kept.
    pub(crate) fn pressure(
        &self,
        headroom: &Headroom,
        total_bytes: u64,
    ) -> Result<pressure::Settings> {
        let headroom_bytes = headroom.keep.of(total_bytes);
        let floor = headroom.floor.map(|floor| floor.of(total_bytes));
        let floor_bytes = floor.unwrap_or(headroom_bytes / 4);
        let wrong = |what, value: u64, rule| {
            Err(Error::Config {
                what,
                value: value.to_string(),
                rule,
            })
        };
        if headroom_bytes.saturating_add(self.slab_bytes) > total_bytes {
            let rule = "must leave the machine's memory room for a slab";
            return wrong("headroom", headroom_bytes, rule);
        }
        if floor_bytes > headroom_bytes {
            return wrong("floor", floor_bytes, "must be at most the headroom");
        }
        Ok(pressure::Settings {
            slab_bytes: self.slab_bytes,
            slabs_total: self.slabs_total(),
            headroom_bytes,
            floor_bytes,
        })
    }

    /// Holds the settings against each other and against the machine.
    ///
    /// # Errors
    /// `Config` names a setting that is wrong by itself; `OutOfMemory`.
    pub(crate) fn check(&self, machine: &Machine) -> Result<()> {
        self.check_values()?;
        // With a headroom it lends what there is room for, which may grow.
        if self.headroom.is_none() && self.memory_bytes > machine.available_bytes {
            return Err(Error::OutOfMemory {
                asked_bytes: self.memory_bytes,
                available_bytes: machine.available_bytes,
            });
        }
        Ok(())
    }

    /// Holds the settings against each other.
    ///
    /// # Errors
    /// `Config` names the one that is wrong.
    pub fn check_values(&self) -> Result<()> {
        let wrong = |what, value: String, rule| Err(Error::Config { what, value, rule });
        for (what, value) in [("name", &self.name), ("domain", &self.domain)] {
            if value.is_empty() || value.len() > NAME_BYTES_MAX {
                return wrong(what, format!("{value:?}"), "must have 1 to 64 bytes");
            }
        }
        if self.addresses.is_empty() {
            return wrong("addresses", "none".into(), "a host listens somewhere");
        }
        if self.slab_bytes == 0 || !self.slab_bytes.is_multiple_of(PAGE_BYTES) {
            return wrong(
                "slab size",
                self.slab_bytes.to_string(),
                "must be a multiple of 4096 bytes",
            );
        }
        let slabs = self.memory_bytes / self.slab_bytes;
        if slabs == 0 {
            let rule = "must be at least one slab";
            let value = format!(
                "{} bytes with slabs of {} bytes",
                self.memory_bytes, self.slab_bytes
            );
            return wrong("memory", value, rule);
        }
        if slabs > SLABS_MAX {
            let rule = "too small: the memory would be more than 1048576 slabs";
            return wrong("slab size", self.slab_bytes.to_string(), rule);
        }
        if self.cache_threads > CACHE_THREADS_MAX {
            let rule = "must be at most 256";
            return wrong("cache threads", self.cache_threads.to_string(), rule);
        }
        if self.clients_max == 0 {
            return wrong("clients at most", "0".into(), "must be at least 1");
        }
        Ok(())
    }

    /// Decides whether to lock, and says so where that is not what one would want.
    ///
    /// # Errors
    /// `CannotLock` under [`LockMemory::Always`].
    pub(crate) fn decide_lock(&self, machine: &Machine) -> Result<bool> {
        let allowed = machine.lockable_bytes >= self.memory_bytes;
        let limit_bytes = machine.lockable_bytes;
        match self.lock_memory {
            LockMemory::Never => Ok(false),
            _ if allowed => Ok(true),
            LockMemory::Always => Err(Error::CannotLock {
                asked_bytes: self.memory_bytes,
                limit_bytes,
            }),
            LockMemory::Auto => {
                tracing::warn!(
                    limit_bytes,
                    asked_bytes = self.memory_bytes,
                    swap = machine.has_swap,
                    "lent memory is not locked and would be swapped out under pressure; \
                     raise the limit (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK"
                );
                Ok(false)
            }
        }
    }
}

/// More than the cores of any machine.
const CACHE_THREADS_MAX: usize = 256;
const PAGE_BYTES: u64 = 4096;
/// Far above what descriptors allow; keeps counts well inside 32 bits.
const SLABS_MAX: u64 = 1 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of a host that is not started.
    pub(crate) fn config() -> Config {
        Config {
            name: "h00".into(),
            domain: "h00".into(),
            addresses: vec!["shm:/nowhere/socket".parse().unwrap()],
            memory_bytes: 64 << 20,
            slab_bytes: 1 << 20,
            key: ClusterKey::generate().unwrap(),
            huge_pages: false,
            lock_memory: LockMemory::Auto,
            clients_max: 8,
            headroom: None,
            page_traffic: WireProtection::default(),
            cache_threads: 0,
            modules: None,
        }
    }

    fn machine() -> Machine {
        Machine {
            available_bytes: 1 << 30,
            has_swap: false,
            lockable_bytes: 8 << 20,
        }
    }

    #[test]
    fn the_default_slab_is_a_power_of_two_within_its_bounds() {
        let cases: [(u64, u64); 6] = [
            (512 << 20, 8 << 20),
            (500 << 20, 4 << 20),
            (1 << 40, 1 << 30),
            (64 << 30, 1 << 30),
            (63 << 30, 512 << 20),
            (3 << 20, 1 << 20),
        ];
        for (memory, slab) in cases {
            assert_eq!(slab_bytes_default(memory), slab, "memory {memory}");
        }
    }

    #[test]
    fn contradictions_and_want_of_memory_are_named() {
        let message = |change: fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            config.check(&machine()).unwrap_err().to_string()
        };
        config().check(&machine()).unwrap();
        assert!(message(|c| c.name = "x".repeat(65)).starts_with("name"));
        assert!(message(|c| c.addresses.clear()).starts_with("addresses"));
        assert!(message(|c| c.slab_bytes = 1000).contains("multiple of 4096"));
        assert!(message(|c| c.slab_bytes = 1 << 30).contains("at least one slab"));
        let many = message(|c| (c.memory_bytes, c.slab_bytes) = (1 << 40, 4096));
        assert!(many.contains("more than 1048576"), "{many}");
        assert!(message(|c| c.clients_max = 0).contains("at least 1"));
        let mut flexible = config();
        flexible.memory_bytes = 2 << 30;
        flexible.headroom = Some(Headroom::infiniswap());
        flexible.check(&machine()).unwrap();
        let greedy = message(|c| c.memory_bytes = (1 << 30) + (1 << 20));
        assert!(
            greedy.contains("1074790400") && greedy.contains("only 1073741824"),
            "{greedy}"
        );
    }

    #[test]
    fn a_headroom_is_a_share_of_the_machine_and_leaves_room_for_a_slab() {
        let mut headroom = Headroom::infiniswap();
        let paper = config().pressure(&headroom, 64 << 30).unwrap();
        assert_eq!(
            (paper.headroom_bytes, paper.floor_bytes, paper.slabs_total),
            (8 << 30, 2 << 30, 64)
        );
        let message = |headroom: &Headroom| {
            let wrong = config().pressure(headroom, 1 << 30);
            wrong.unwrap_err().to_string()
        };
        headroom.keep = Share::Bytes(1 << 30);
        assert!(message(&headroom).starts_with("headroom 1073741824"));
        headroom.keep = Share::Bytes(1 << 20);
        headroom.floor = Some(Share::PerMille(1));
        assert!(message(&headroom).starts_with("floor 1073741"));
        headroom.floor = Some(Share::Bytes(1 << 20));
        config().pressure(&headroom, 1 << 30).unwrap();
    }

    #[test]
    fn memory_is_locked_where_that_is_allowed_and_always_means_always() {
        let mut config = config();
        let strict = machine();
        let free = Machine {
            lockable_bytes: u64::MAX,
            ..strict.clone()
        };
        assert!(!config.decide_lock(&strict).unwrap());
        assert!(config.decide_lock(&free).unwrap());
        config.lock_memory = LockMemory::Always;
        assert!(matches!(
            config.decide_lock(&strict),
            Err(Error::CannotLock { .. })
        ));
        config.lock_memory = LockMemory::Never;
        assert!(!config.decide_lock(&free).unwrap());
    }
}
