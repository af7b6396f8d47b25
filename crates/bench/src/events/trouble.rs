//! What happens to hosts or to a program, and for how long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use super::Kind;
use crate::apps::memcached_load::{CONNECTION_COUNT, Steering};
use crate::beside::in_background;
use crate::cluster::LocalCluster;
use crate::rot::Rot;
use crate::swap_rig::interrupt::Interrupt;

/// Something that happens while a program pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trouble {
    /// Nothing: what the load varies by itself.
    Nothing,
    /// One host is killed.
    Death,
    /// Another client moves all that it can to and from the same hosts.
    Flows,
    /// Twice as many connections ask.
    Burst,
    /// The memory of one host rots, all of it and over and over.
    Corruption,
}

impl Trouble {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Death,
        Self::Flows,
        Self::Burst,
        Self::Corruption,
    ];

    /// As in a row.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Nothing => "nothing happens",
            Self::Death => "one host dies",
            Self::Flows => "background flows",
            Self::Burst => "request burst",
            Self::Corruption => "corruption injected",
        }
    }

    /// As in the name of a file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Death => "death",
            Self::Flows => "flows",
            Self::Burst => "burst",
            Self::Corruption => "corruption",
        }
    }

    /// The volume that takes a kind's place: where memory rots, one that notices. With a disk behind
    /// it a page that rotted is an error, and its program would end.
    pub(super) fn stand_in(self, kind: Kind) -> Option<Kind> {
        match (self, kind) {
            (Self::Corruption, Kind::Coded) => Some(Kind::Correcting),
            (Self::Corruption, Kind::Copied) => Some(Kind::Checked),
            (Self::Corruption, Kind::Backed) => None,
            _ => Some(kind),
        }
    }

    /// Connections that ask when nothing happens.
    pub(super) fn connections(self) -> usize {
        match self {
            Self::Burst => CONNECTION_COUNT / 2,
            _ => CONNECTION_COUNT,
        }
    }

    /// Lets it happen for `time`.
    pub(super) fn happen(
        self,
        time: Duration,
        (cluster, load): (&LocalCluster, &Steering<'_>),
        chance: u64,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        match self {
            Self::Nothing => interrupt.sleep(time),
            Self::Death => {
                cluster.kill((chance % cluster.host_count() as u64) as usize)?;
                interrupt.sleep(time)
            }
            Self::Flows => flow(cluster, || interrupt.sleep(time)),
            Self::Corruption => {
                let host = (chance % cluster.host_count() as u64) as usize;
                Rot::host(cluster, host)?.beside(|| interrupt.sleep(time))
            }
            Self::Burst => {
                load.set_active(CONNECTION_COUNT);
                interrupt.sleep(time)?;
                load.set_active(self.connections());
                Ok(())
            }
        }
    }
}

/// Writes and reads large pieces of a volume on all hosts for as long as `wait` takes.
pub(crate) fn flow(
    cluster: &LocalCluster,
    wait: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let scheme = FLOW_SCHEME.parse().expect("a valid scheme");
    let volume = cluster.volume(scheme, FLOW_BYTES)?;
    let mut worker = volume.worker().context("a worker for background flows")?;
    let flow = |stop: &AtomicBool| {
        let mut piece = vec![0x5a; PIECE_BYTES];
        let mut offsets = (0..FLOW_BYTES).step_by(PIECE_BYTES).cycle();
        while let Some(offset) = offsets.next()
            && !stop.load(Ordering::Relaxed)
        {
            worker.write(offset, &piece)?;
            worker.read(offset, &mut piece)?;
        }
        Ok(())
    };
    let waited = in_background(flow, wait);
    volume.close();
    waited
}

/// Over as many hosts as can be, so that all have to do with it.
const FLOW_SCHEME: &str = "rs:8+2";
/// Beyond the caches; `scene` leaves room for it on the hosts.
pub(crate) const FLOW_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 128 << 10;
