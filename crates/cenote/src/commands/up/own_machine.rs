//! The machine that each host of a local cluster believes to be on.

use anyhow::Result;
use cenote_cli::size::Size;
use cenote_host::slab_bytes_default;
use cenote_pool::pressure::Settings;

use super::Args;
use crate::commands::host::room::Switch;

/// The machine that each host of this cluster believes to be on, so that they do not all give way
/// at once: with nothing else on it, it holds what the host lends and what the host leaves free.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct OwnMachine {
    total_bytes: u64,
    pub headroom_bytes: u64,
    floor_bytes: Option<u64>,
}

/// In the host's folder.
pub(super) const FILE: &str = "meminfo";

impl OwnMachine {
    /// `None` when the hosts lend whatever happens.
    pub(super) fn of(args: &Args) -> Result<Option<Self>> {
        let Some(headroom) = args.room.headroom(None)? else {
            return Ok(None);
        };
        let memory_bytes = args.memory.bytes();
        let slab_bytes = args
            .slab
            .map_or_else(|| slab_bytes_default(memory_bytes), Size::bytes);
        let headroom_bytes = headroom.keep.of(memory_bytes);
        let floor_bytes = headroom.floor.map(|floor| floor.of(memory_bytes));
        let settings = Settings {
            slab_bytes,
            slabs_total: 0,
            headroom_bytes,
            floor_bytes: 0,
        };
        // A host takes memory back when there is more than the headroom by the slack, and an
        // average comes near its end and never to it: a slab more than that is enough.
        let free_bytes = headroom_bytes
            .saturating_add(settings.slack_bytes())
            .saturating_add(slab_bytes);
        Ok(Some(Self {
            total_bytes: memory_bytes.saturating_add(free_bytes),
            headroom_bytes,
            floor_bytes,
        }))
    }

    /// The file that stands for it.
    pub(super) fn meminfo(&self) -> String {
        let kib = self.total_bytes.div_ceil(1024);
        format!("MemTotal:     {kib:>12} kB\nMemAvailable: {kib:>12} kB\n")
    }

    /// What the host is told.
    pub(super) fn flags(&self, args: &Args) -> Vec<String> {
        let mut flags = vec!["--headroom".to_owned(), self.headroom_bytes.to_string()];
        if let Some(floor_bytes) = self.floor_bytes {
            flags.extend(["--floor".to_owned(), floor_bytes.to_string()]);
        }
        if let Some(extra) = args.room.evict_extra {
            flags.extend(["--evict-extra".to_owned(), extra.to_string()]);
        }
        if args.room.reclaim == Some(Switch::On) {
            flags.extend(["--reclaim".to_owned(), "on".to_owned()]);
        }
        flags
    }
}
