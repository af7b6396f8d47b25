//! What a host leaves to the rest of its machine, as it is told.

use std::path::PathBuf;

use cenote_pool::eviction;

/// Free memory to keep on the machine, and how to get it back from clients.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Headroom {
    /// Free memory to keep.
    pub keep: Share,
    /// Free memory below which a slab is taken from a client that does not answer: a quarter of
    /// what is to be kept, where none is given.
    pub floor: Option<Share>,
    /// Slabs that are looked at beyond those that must go, at most as many as those.
    pub evict_extra: u32,
    /// A file like `/proc/meminfo` that stands for the machine. What it says is in use is others'
    /// use: this host's slabs are not in it.
    pub meminfo: Option<PathBuf>,
    /// Whether clients of this machine are told when it has memory to spare (RECLAIM), and come
    /// before those for whom slabs are prepared.
    pub reclaim: bool,
}

/// A part of the machine's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Share {
    /// So much of it, whatever it has.
    Bytes(u64),
    /// Of each thousand bytes.
    PerMille(u16),
}

impl Headroom {
    /// As the paper has it: 8 GiB of 64.
    #[must_use]
    pub fn infiniswap() -> Self {
        Self {
            keep: Share::PerMille(125),
            floor: None,
            evict_extra: u32::try_from(eviction::EXTRA).expect("a small number"),
            meminfo: None,
            reclaim: false,
        }
    }

    /// As Hydra's paper has it: a quarter of the machine, E' = 2, and pages are reclaimed when there
    /// is more.
    #[must_use]
    pub fn hydra() -> Self {
        Self {
            keep: Share::PerMille(250),
            reclaim: true,
            ..Self::infiniswap()
        }
    }
}

impl Share {
    /// In bytes, of a machine that has `total_bytes`.
    #[must_use]
    pub fn of(self, total_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::PerMille(share) => {
                let bytes = u128::from(total_bytes) * u128::from(share) / 1000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}
