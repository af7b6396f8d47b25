//! One volume of one kind, one event: from `swap on` to `swap off`.

use cenote_block::swap::cgroup::MemoryCgroup;

use super::timeline::Timeline;
use super::trouble::{FLOW_BYTES, Trouble};
use super::{AFTER, BEFORE, DURING, Kind, Options, SETTLE};
use crate::apps::memcached_load::MemcachedLoad;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::our_swap::OurSwap;
use crate::swap_rig::squeeze::{LiftOnDrop, squeeze};

/// What every one has in common.
pub(super) struct Scene<'a> {
    pub(super) options: &'a Options,
    pub(super) interrupt: &'a Interrupt,
    pub(super) group: &'a MemoryCgroup,
    /// Of the program, in bytes.
    pub(super) limit: u64,
}

impl Scene<'_> {
    pub(super) fn play(
        &self,
        kind: Kind,
        trouble: Trouble,
        load: &mut MemcachedLoad,
        chance: u64,
    ) -> anyhow::Result<Timeline> {
        let swap_mib = self.options.program_mib * 2;
        // Two copies, half as much again for slabs that do not fit or are rebuilt, and the flows.
        let host_mib = (swap_mib * 3 + (FLOW_BYTES >> 20) * 2) / HOST_COUNT as u64;
        let cluster = LocalCluster::start_in(
            &self.options.dir.join("cluster"),
            HOST_COUNT,
            host_mib.next_multiple_of(SLAB_MIB) + SLAB_MIB,
            &self.options.transport,
            &["--slab", &format!("{SLAB_MIB}M")],
        )?;
        let size = format!("{swap_mib}M");
        let backing = self.options.dir.join("backing").display().to_string();
        let mut args = vec!["--size", &size];
        args.extend(kind.arguments());
        if kind == Kind::Backed {
            args.push(&backing);
        }
        let (swap, _) = OurSwap::on(cluster.dir(), &args)?;
        let limited = LiftOnDrop(self.group);
        squeeze(self.group, self.limit, self.interrupt)?;
        let end = SETTLE + BEFORE + DURING + AFTER;
        let stretch = load.run(end, |run| {
            run.set_active(trouble.connections());
            self.interrupt.sleep(SETTLE + BEFORE)?;
            trouble.happen(DURING, (&cluster, run), chance, self.interrupt)?;
            self.interrupt
                .sleep(end.saturating_sub(run.began.elapsed()))
        })?;
        limited.lift()?;
        // Fails when a page was lost, which no kind may.
        swap.off()?;
        Ok(Timeline::of(&stretch))
    }
}

/// As the demonstration: rs:8+2 and two to spare.
const HOST_COUNT: usize = 12;
const SLAB_MIB: u64 = 8;
