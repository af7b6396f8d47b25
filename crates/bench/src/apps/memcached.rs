//! Debian's memcached under the mixes of [`super::mix`].

use std::time::Duration;

use cenote_block::swap::cgroup::MemoryCgroup;

use super::memcached_load::MemcachedLoad;
use super::mix::Mix;
use super::program::{Outcome, Program, Sizes};
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::memcached::Memcached;

pub(super) struct MemcachedMix {
    sizes: Sizes,
    load: MemcachedLoad,
    server: Option<Memcached>,
}

impl MemcachedMix {
    pub(super) fn new(kind: Mix, sizes: &Sizes) -> Self {
        // An item of ETC takes about a fifth more than its key and value, one of SYS a tenth.
        let payload = match kind {
            Mix::Etc => sizes.bytes / 6 * 5,
            Mix::Sys | Mix::Pages => sizes.bytes / 10 * 9,
        };
        let load = MemcachedLoad::new(kind, sizes.seed, payload);
        eprintln!(
            "memcached {kind:?}: {} items of {} MiB together",
            load.items().count(),
            load.items().total_bytes() >> 20
        );
        Self {
            sizes: sizes.clone(),
            load,
            server: None,
        }
    }
}

impl Program for MemcachedMix {
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.end();
        let socket = self.sizes.dir.join("memcached.sock");
        let room_mib = (self.sizes.bytes >> 20) * 4;
        let server = self
            .server
            .insert(Memcached::start(&socket, room_mib, group)?);
        self.load.fill(server.socket(), interrupt)
    }

    fn warm_up(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let time = Duration::from_secs_f64(self.sizes.seconds / 2.0);
        self.load.run_for(time, interrupt).map(drop)
    }

    fn measure(&mut self, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        let time = Duration::from_secs_f64(self.sizes.seconds);
        let stretch = self.load.run_for(time, interrupt)?;
        Ok(Outcome::Served {
            rate: stretch.rate(),
            p50_us: stretch.quantile_us(0.5),
            p99_us: stretch.quantile_us(0.99),
        })
    }

    fn end(&mut self) {
        self.server = None;
    }
}
