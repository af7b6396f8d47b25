//! Mistakes that can be injected, by name: in the code's own crates, and in the network.

use std::time::Duration;

use anyhow::{Result, bail};
use cenote_fabric::sim::injected_faults::InjectedFaults;
use cenote_volume::{Mode, Placement, Protection};

use super::Options;
use super::world::World;
use crate::weights;

/// Every mistake that can be injected and that a checker sees in the cluster of [`injected`], by name.
#[must_use]
pub fn fault_names() -> Vec<&'static str> {
    let fabric = FABRIC.iter().map(|(name, _)| *name);
    let others = cenote_pool::injected_faults::ALL
        .iter()
        .map(|(name, _)| *name);
    let all = others.chain(fabric);
    all.filter(|name| !UNSEEN.contains(name)).collect()
}

/// Not shown to be found: no cluster is known that leads to it (`give-back-unsettled`), or an assertion of the
/// code comes first (`share-slot`). They can be injected by name.
const UNSEEN: [&str; 2] = ["give-back-unsettled", "share-slot"];

/// A small cluster whose load and faults lead to where the mistake `name` shows, often.
#[must_use]
pub fn injected(name: &str, seed: u64) -> Options {
    let small = Options {
        seed,
        duration: Duration::from_secs(60),
        hosts: 8,
        clients: 2,
        slab_bytes: 16 << 10,
        volume_bytes: 256 << 10,
        rate: 200,
        epoch: Duration::from_secs(5),
        fault_pause: Duration::from_millis(100),
        plant: Some(name.to_owned()),
        mode: Some(Mode::FailureRecovery),
        ..Options::default()
    };
    // So few pages that everybody is at the same ones.
    let tiny = Options {
        clients: 1,
        slab_bytes: 8 << 10,
        volume_bytes: 64 << 10,
        ..small.clone()
    };
    match name {
        // Many at a few pages, on links that are slow now and then while slabs are rebuilt.
        "torn-read" | "two-writers" | "no-fence" | "no-drain" | "keep-void" => Options {
            workers: 3,
            rate: 1000,
            gentle_percent: 100,
            weights: weights! { delay: 4, crash: 2, lose: 1 },
            ..tiny
        },
        // Sessions break while much is under way, and their clients come back.
        "forget-in-flight" => Options {
            rate: 500,
            gentle_percent: 0,
            weights: weights! { lose: 1 },
            ..small
        },
        // Slabs change hands, too.
        "land-after-revoke" | "old-generation" | "no-zero" => Options {
            rate: 500,
            gentle_percent: 0,
            weights: weights! { lose: 6, cut: 1, pause_client: 1 },
            ..small
        },
        // Hosts are out of reach, two at a time, while clients end.
        "journal-late" | "keep-stale" => Options {
            // One to regenerate on: with two away a stripe stays degraded.
            hosts: 7,
            slabs_per_host: Some(24),
            rate: 2000,
            gentle_percent: 100,
            weights: weights! { cut: 10, replace_client: 5 },
            ..tiny
        },
        // Clients end in the middle of writing, on links that are slow now and then. A new one has
        // time to come upon what is left.
        "forget-listed" | "skip-redo" | "stale-image" | "no-renew" => {
            Options {
                workers: 3,
                // Each new volume in place of one that is left takes its memory beside that one's.
                slabs_per_host: Some(24),
                rate: 2000,
                gentle_percent: 100,
                fault_pause: Duration::from_millis(300),
                weights: weights! { replace_client: 4, delay: 3, crash: 1, lose: 1 },
                ..tiny
            }
        }
        // Stripes lose more than they survive, and are mapped again by writes of other pages of theirs: few
        // writes, and many pages in an extent.
        "mend-by-parity" => Options {
            clients: 1,
            workers: 3,
            hosts: 6,
            scheme: "rs:2+1".parse().expect("a scheme"),
            mode: Some(Mode::EcOnly),
            slab_bytes: 64 << 10,
            volume_bytes: 512 << 10,
            slabs_per_host: Some(64),
            gentle_percent: 0,
            fault_pause: Duration::from_millis(200),
            weights: weights! { crash: 6 },
            ..small
        },
        // Many write the pages that others read, or parts of them, over links that are slow now and then.
        "late-split-lands" | "share-slot" => Options {
            workers: 3,
            rate: 5000,
            gentle_percent: 100,
            weights: weights! { delay: 8 },
            ..tiny
        },
        // Splits are late, pages are read and written again at once, and clients end.
        "release-early" | "read-unlanded" | "read-overtaken" | "forget-early" => Options {
            workers: 3,
            slabs_per_host: Some(24),
            rate: 3000,
            gentle_percent: 100,
            mode: Some(Mode::EcOnly),
            fault_pause: Duration::from_millis(300),
            weights: weights! { delay: 6, replace_client: 4 },
            ..tiny
        },
        // What is expected of hosts changes all the time, while slabs are moved and rebuilt.
        "ahead-of-stripe" | "encode-by-scheme" => Options {
            workers: 3,
            slabs_per_host: Some(24),
            rate: 2000,
            gentle_percent: 100,
            fault_pause: Duration::from_millis(100),
            weights: weights! { reshape: 10, delay: 6, drain: 4, crash: 1 },
            ..tiny
        },
        // Pages are restriped over slow links while clients end, and few are written again.
        "skip-layout-bit" => Options {
            workers: 1,
            hosts: 12,
            slabs_per_host: Some(24),
            rate: 100,
            gentle_percent: 100,
            fault_pause: Duration::from_millis(150),
            weights: weights! { restripe: 10, delay: 12, lose: 2, replace_client: 8 },
            ..tiny
        },
        // Pages are restriped all the time, while others write them, hosts go and clients end.
        "move-over-newer" | "forget-layouts" => Options {
            workers: 3,
            hosts: 12,
            slabs_per_host: Some(24),
            rate: 2000,
            gentle_percent: 100,
            weights: weights! { restripe: 10, delay: 4, crash: 2, lose: 2, replace_client: 3 },
            ..tiny
        },
        // Hosts go, more of them at a time than volumes survive, and come back empty.
        "leave-lost" => Options {
            scheme: "rs:2+1".parse().expect("a scheme"),
            gentle_percent: 0,
            weights: weights! { crash: 4, drain: 2 },
            ..small
        },
        // Hosts go one after the other, now and then.
        "despair-early" => Options {
            scheme: "rs:2+1".parse().expect("a scheme"),
            gentle_percent: 0,
            fault_pause: Duration::from_secs(4),
            epoch: Duration::from_secs(20),
            weights: weights! { crash: 1 },
            ..small
        },
        // Splits rot where they lie, while slabs are moved.
        "skip-compare" | "heal-wrong" => Options {
            scheme: "rs:2+3".parse().expect("a scheme"),
            rate: 1000,
            mode: Some(Mode::Correction),
            weights: weights! { rot: 20, delay: 3, drain: 1 },
            ..tiny
        },
        "skip-tag" => Options {
            rate: 1000,
            protection: Protection::Checksum,
            weights: weights! { rot: 20, delay: 3 },
            ..tiny
        },
        // Hosts go for good while splits rot that few read, one at a time.
        "believe-sources" => Options {
            clients: 1,
            scheme: "rs:4+3".parse().expect("a scheme"),
            hosts: 9,
            rate: 20,
            protection: Protection::Checksum,
            gentle_percent: 100,
            weights: weights! { rot: 20, crash: 4 },
            ..small
        },
        // Machines need their memory, and hosts ask for slabs back.
        "free-before-done" => Options {
            weights: weights! { squeeze: 1 },
            ..small
        },
        // Connections break one by one: others still carry writes while extents lose their slabs.
        "early-clear" => Options {
            clients: 1,
            workers: 3,
            slab_bytes: 8 << 10,
            volume_bytes: 128 << 10,
            rate: 1000,
            fault_pause: Duration::from_millis(50),
            weights: weights! { lose: 12 },
            ..small.backed()
        },
        // Machines need their memory again and again, and hosts ask for many slabs at a time, over slow links.
        "ask-twice" => Options {
            workers: 1,
            rate: 500,
            gentle_percent: 0,
            fault_pause: Duration::from_millis(100),
            weights: weights! { squeeze: 12, delay: 4 },
            ..small
        },
        // Owners end or are silent for a lease, and their hosts have no slabs but theirs for the next.
        "reuse-open" => Options {
            clients: 1,
            slabs_per_host: Some(6),
            rate: 500,
            gentle_percent: 0,
            weights: weights! { replace_client: 4, pause_client: 4 },
            ..small
        },
        // Sessions end all the time, more than stripes survive: their slabs are waited for and taken back.
        "retake-unrenewed" => Options {
            workers: 3,
            slabs_per_host: Some(24),
            rate: 3000,
            gentle_percent: 0,
            fault_pause: Duration::from_millis(50),
            weights: weights! { drain: 2, lose: 20, delay: 4 },
            ..tiny
        },
        // Hosts go, of groups that have just enough.
        "stay-inside" => Options {
            hosts: 9,
            placement: Some(Placement::CodingSets { spare: 0 }),
            weights: weights! { crash: 2 },
            ..small
        },
        // Slabs move and are given up all the time, under many writes over links that are slow now
        // and then.
        "give-back-unsettled" => Options {
            workers: 3,
            slabs_per_host: Some(24),
            rate: 2000,
            gentle_percent: 100,
            weights: weights! { drain: 8, reshape: 4, delay: 8 },
            ..tiny
        },
        // Few pages are written again and again, the disk is late, and hosts go.
        "disk-reorders" => Options {
            clients: 1,
            workers: 3,
            slab_bytes: 8 << 10,
            volume_bytes: 64 << 10,
            rate: 2000,
            weights: weights! { drain: 8, disk: 4, crash: 2 },
            ..small.backed()
        },
        // Disks refuse things, and hosts go.
        "forget-refusal" => Options {
            workers: 3,
            volume_bytes: 128 << 10,
            rate: 1000,
            weights: weights! { disk: 8, crash: 4, drain: 2 },
            ..small.backed()
        },
        // Hosts are replaced while disks refuse things.
        "keep-bit-away" | "keep-bit-failed" | "clear-bit-refused" | "mark-while-unreachable" => {
            Options {
                workers: 3,
                hosts: 6,
                volume_bytes: 128 << 10,
                rate: 1000,
                weights: weights! { upgrade: 6, disk: 4, delay: 1 },
                ..small.backed_as("rs:2+1".parse().expect("a scheme"))
            }
        }
        // Hosts are replaced, and lend a slab or two each.
        "forget-slab" => Options {
            weights: weights! { upgrade: 1 },
            ..small
        },
        // The disk is late, and extents lose their slabs and get others.
        "disk-overtakes" | "free-early" => Options {
            clients: 1,
            workers: 3,
            slab_bytes: 8 << 10,
            volume_bytes: 256 << 10,
            rate: 1000,
            weights: weights! { drain: 12, delay: 6, lose: 2, crash: 1 },
            ..small.backed()
        },
        _ => small,
    }
}

/// Breaks a guarantee of the network.
type Change = fn(&mut InjectedFaults);

const FABRIC: [(&str, Change); 4] = [
    ("lose-order", |injected| {
        injected.loses_order = true;
    }),
    ("land-after-revoke", |injected| {
        injected.lands_after_revoke = true;
    }),
    ("old-generation", |injected| {
        injected.accepts_old_generations = true;
    }),
    ("fabric-error-as-ack", |injected| {
        injected.errors_count_as_acknowledged = true;
    }),
];

/// Injects what the options name; what it gives takes it back when it is dropped.
pub fn inject(options: &Options, world: &World) -> Result<Injection> {
    let Some(name) = options.plant.as_deref() else {
        return Ok(Injection);
    };
    if let Some((_, change)) = FABRIC.iter().find(|(known, _)| *known == name) {
        let mut injected = InjectedFaults::default();
        change(&mut injected);
        world.net.inject(injected);
        return Ok(Injection);
    }
    let known = cenote_pool::injected_faults::ALL
        .iter()
        .find(|(known, _)| *known == name);
    let Some(&(_, fault)) = known else {
        bail!("inject {name:?}: known are {}", fault_names().join(", "));
    };
    #[cfg(feature = "injected-faults")]
    {
        cenote_pool::injected_faults::inject(Some(fault));
        Ok(Injection)
    }
    #[cfg(not(feature = "injected-faults"))]
    {
        let _ = fault;
        bail!("inject {name:?}: this build has no injected faults (feature `injected-faults`)");
    }
}

/// What is injected in this thread, while it lives: an assertion may end the simulation as well.
pub struct Injection;

impl Drop for Injection {
    fn drop(&mut self) {
        #[cfg(feature = "injected-faults")]
        cenote_pool::injected_faults::inject(None);
    }
}
