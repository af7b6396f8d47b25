//! What to simulate: the cluster, its load, its faults.

use std::time::Duration;

use cenote_codec::PARITY_MAX;
use cenote_fabric::sim::{Config, LinkModel, Stragglers};
use cenote_measure::random::Random;
use cenote_volume::{Mode, PAGE_BYTES, Placement, Protection, Resilience, Scheme, SealKey};

const MODES: [Mode; 4] = [
    Mode::FailureRecovery,
    Mode::Detection,
    Mode::Correction,
    Mode::EcOnly,
];

/// What to simulate. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random seed.
    pub seed: u64,
    /// Virtual time to simulate.
    pub duration: Duration,
    /// Real time after which no further epoch begins.
    pub limit: Option<Duration>,
    /// Hosts of the cluster.
    pub hosts: usize,
    /// Clients, each with a volume of its own.
    pub clients: usize,
    /// Workers of each client.
    pub workers: usize,
    /// Redundancy of every volume.
    pub scheme: Scheme,
    /// What every volume expects of its hosts; `None`: each draws a mode that its scheme allows.
    pub mode: Option<Mode>,
    /// What clients keep of every page.
    pub protection: Protection,
    /// How hosts of stripes are chosen; `None`: the least loaded of all.
    pub placement: Option<Placement>,
    /// Whether a disk is behind each volume: then any host may go at any time.
    pub is_backed: bool,
    /// Size of a slab.
    pub slab_bytes: u64,
    /// Slabs that each host lends; `None`: just enough for all volumes, the orphans of as many
    /// again as two thirds of them, and r hosts away.
    pub slabs_per_host: Option<u32>,
    /// Size of each volume.
    pub volume_bytes: u64,
    /// Requests per virtual second and worker.
    pub rate: u64,
    /// Virtual time of work under faults between two readings back of everything.
    pub epoch: Duration,
    /// Mean virtual time between two faults.
    pub fault_pause: Duration,
    /// How often each fault is drawn.
    pub weights: Weights,
    /// Epochs of a hundred in which no stripe loses more than r.
    pub gentle_percent: u64,
    /// A fault to inject, by name; only in builds made for it.
    pub plant: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            duration: Duration::from_secs(3600),
            limit: None,
            hosts: 16,
            clients: 3,
            workers: 2,
            scheme: "rs:4+2".parse().expect("a valid scheme"),
            mode: None,
            protection: Protection::None,
            placement: None,
            is_backed: false,
            slab_bytes: 64 << 10,
            slabs_per_host: None,
            volume_bytes: 1 << 20,
            rate: 200,
            epoch: Duration::from_secs(60),
            fault_pause: Duration::from_secs(1),
            weights: Weights::all(),
            gentle_percent: 80,
            plant: None,
        }
    }
}

/// How often each fault is drawn, beside the others.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Weights {
    /// A host's process ends, or its machine.
    pub crash: u64,
    /// A link is cut, in one direction or both.
    pub cut: u64,
    /// A connection breaks, or all between two machines, some with much under way.
    pub lose: u64,
    /// A host's process stops for a while.
    pub pause_host: u64,
    /// A client's does.
    pub pause_client: u64,
    /// A client's process ends and another takes its place.
    pub replace_client: u64,
    /// A link becomes slow.
    pub delay: u64,
    /// An acknowledgement is lost.
    pub lose_acknowledgement: u64,
    /// A host wants everything back for a while.
    pub drain: u64,
    /// The programs of a host's machine need its memory for a while.
    pub squeeze: u64,
    /// A volume is to expect something else of its hosts: mode, delta, parities.
    pub reshape: u64,
    /// A volume's pages are to be cut otherwise, into half or twice as many splits.
    pub restripe: u64,
    /// A host or client that takes part in a relocation crashes at one of its steps.
    pub ambush: u64,
    /// A split of a volume that notices rots where it lies.
    pub rot: u64,
    /// Two hosts do not reach each other, while their clients reach both.
    pub part: u64,
    /// Another process takes a host's place and has its slabs: soon, late, or without them.
    pub upgrade: u64,
    /// The disk behind a volume refuses things for a while, is full, or takes long.
    pub disk: u64,
}

/// [`Weights`] of the faults that are named: no others are drawn.
#[macro_export]
macro_rules! weights {
    ($($fault:ident: $weight:expr),*) => {
        $crate::cluster::Weights {
            $($fault: $weight,)*
            ..$crate::cluster::Weights::default()
        }
    };
}

impl Weights {
    /// Faults of every kind.
    #[must_use]
    pub fn all() -> Self {
        Self {
            crash: 20,
            cut: 15,
            lose: 12,
            pause_host: 12,
            pause_client: 10,
            replace_client: 5,
            delay: 12,
            lose_acknowledgement: 8,
            drain: 8,
            squeeze: 8,
            reshape: 6,
            // Where it is asked for, as rot is: each change makes a simulated day a good deal longer.
            restripe: 0,
            ambush: 6,
            // Where it is asked for: it takes hosts from those that may be away.
            rot: 0,
            part: 10,
            // Where it is asked for.
            upgrade: 0,
            disk: 0,
        }
    }
}

impl Options {
    /// As they are, with a disk behind every volume, which has one copy of a page elsewhere; hosts
    /// are drained, too, and disks fall ill.
    #[must_use]
    pub fn backed(self) -> Self {
        self.backed_as(Scheme::PLAIN)
    }

    /// The same, with another scheme in front of the disk.
    #[must_use]
    pub fn backed_as(self, scheme: Scheme) -> Self {
        Self {
            scheme,
            is_backed: true,
            gentle_percent: 100,
            weights: Weights {
                drain: 20,
                upgrade: 20,
                disk: 20,
                ambush: 0,
                ..self.weights
            },
            ..self
        }
    }

    /// As they are, with splits that rot. Without tags no client ends in the middle of a write: a page
    /// whose write ended unknown is believed as it lies.
    #[must_use]
    pub fn rotting(self) -> Self {
        let is_tagged = self.protection != Protection::None;
        let weights = Weights {
            rot: 120,
            replace_client: if is_tagged {
                self.weights.replace_client
            } else {
                0
            },
            // A slab that is taken unanswered is one more than those that may be away.
            squeeze: if is_tagged { self.weights.squeeze } else { 0 },
            ambush: if is_tagged { self.weights.ambush } else { 0 },
            // Into a mode that does not notice.
            reshape: 0,
            // Into a mode that does not notice, as well.
            restripe: if is_tagged { self.weights.restripe } else { 0 },
            ..self.weights
        };
        Self { weights, ..self }
    }

    /// The papers' latencies, with stragglers: messages of one operation meet others between them.
    pub(super) fn network(&self) -> Config {
        let stragglers = Stragglers {
            chance_ppm: 5000,
            scale_ns: 20_000,
            doublings_max: 8,
        };
        let link = LinkModel {
            stragglers,
            ..LinkModel::default()
        };
        Config {
            link,
            ..Config::default()
        }
    }

    /// What a volume expects of its hosts.
    pub(super) fn resilience(&self, random: &mut Random) -> Resilience {
        let delta = self.scheme.r().min(1);
        let possible = |mode| Resilience::new(self.scheme, mode, delta).ok();
        let modes: Vec<Resilience> = MODES.into_iter().filter_map(possible).collect();
        match self.mode {
            // As long as somebody writes splits that nobody waits for, all the rest is tried as well.
            None => *random.pick(&modes),
            Some(mode) => possible(mode).unwrap_or_else(|| Resilience::of(self.scheme)),
        }
    }

    /// What a volume comes to expect of its hosts later, with k data splits: never fewer parities than in
    /// the beginning, so that it survives what all others do.
    pub(super) fn another_resilience(&self, k: usize, random: &mut Random) -> Resilience {
        let schemes: Vec<Scheme> = self.schemes(k).collect();
        let scheme = *random.pick(&schemes);
        let modes = MODES
            .into_iter()
            .filter(|mode| self.mode.is_none_or(|given| given == *mode));
        let all = modes.flat_map(|mode| (0..=2).map(move |delta| (mode, delta)));
        let possible: Vec<Resilience> = all
            .filter_map(|(mode, delta)| Resilience::new(scheme, mode, delta).ok())
            .collect();
        match possible.is_empty() {
            true => Resilience::of(scheme),
            false => *random.pick(&possible),
        }
    }

    /// Another number of data splits than `k`, of those that a volume may come to have.
    pub(super) fn another_k(&self, k: usize, random: &mut Random) -> Option<usize> {
        let others: Vec<usize> = self.all_k().filter(|&other| other != k).collect();
        (!others.is_empty()).then(|| *random.pick(&others))
    }

    /// Half and twice as many as in the beginning, where a scheme has them and there are hosts for it.
    fn all_k(&self) -> impl Iterator<Item = usize> {
        let k = self.scheme.k();
        let changes = self.weights.restripe > 0;
        let others = [k / 2, k * 2].into_iter().filter(move |_| changes);
        let is_possible = |k: &usize| {
            let is_cut = *k > 0 && (PAGE_BYTES / *k) as u64 <= self.slab_bytes;
            is_cut && self.schemes(*k).next().is_some()
        };
        std::iter::once(k).chain(others.filter(is_possible))
    }

    /// What volumes may come to have with k data splits.
    fn schemes(&self, k: usize) -> impl Iterator<Item = Scheme> {
        let r = self.scheme.r();
        let most = (r + self.more_parities()).min(self.members_max().saturating_sub(k));
        (r..=most).filter_map(move |r| scheme_of(k, r))
    }

    /// Splits of a page at most. One host is left to regenerate on.
    fn members_max(&self) -> usize {
        self.hosts - 1
    }

    /// Parities that a volume may have besides those of the beginning.
    fn more_parities(&self) -> usize {
        let room = self.members_max().saturating_sub(self.scheme.members());
        let most = if self.weights.reshape > 0 { 2 } else { 0 };
        room.min(most).min(PARITY_MAX - self.scheme.r())
    }

    /// Hosts that may be away at a time: every volume survives it, with a split that rots meanwhile.
    pub(super) fn spare_hosts(&self) -> usize {
        let compared = match self.mode {
            _ if self.is_backed => return self.hosts,
            _ if self.weights.rot == 0 || self.protection != Protection::None => 0,
            Some(Mode::FailureRecovery | Mode::EcOnly) => 0,
            Some(Mode::Detection) => 1,
            Some(Mode::Correction) | None => 2,
        };
        self.scheme.r().saturating_sub(compared)
    }

    /// Whether splits rot of pages whose tags tell it.
    pub(super) fn rots_under_tags(&self) -> bool {
        self.weights.rot > 0 && self.protection != Protection::None && self.scheme.r() > 0
    }

    pub(super) fn slabs_per_host(&self) -> u32 {
        let parities = self.scheme.r() + self.more_parities();
        let all_of = |k: usize| {
            let extents = self.volume_bytes.div_ceil(self.slab_bytes * k as u64);
            extents * (k + parities) as u64
        };
        let most = self.all_k().map(all_of).max().unwrap_or(0);
        // A part of a volume is there twice while it is restriped, and what went meanwhile is on its way back.
        let least = self.all_k().map(all_of).min().unwrap_or(0);
        let twice = if self.all_k().count() > 1 { least } else { 0 };
        let slabs = (most + twice) * self.clients as u64;
        let hosts = self.hosts - self.scheme.r();
        let enough = u32::try_from((slabs * 5 / 3).div_ceil(hosts as u64)).unwrap_or(u32::MAX);
        self.slabs_per_host.unwrap_or(enough)
    }

    /// Mean pause of a worker between two requests.
    pub(super) fn pause_ns(&self) -> u64 {
        1_000_000_000 / self.rate
    }

    /// The command that repeats the simulation.
    #[must_use]
    pub fn command(&self) -> String {
        if let Some(plant) = &self.plant {
            return format!("cenote lab sim --seed {} --plant {plant}", self.seed);
        }
        let placement = self
            .placement
            .map(|placement| format!(" --placement {placement}"));
        format!(
            "cenote lab sim --seed {} --duration {}s --hosts {} --clients {} --workers {} {}{}{}{} --rate {} --fault-pause {}s",
            self.seed,
            self.duration.as_secs_f64(),
            self.hosts,
            self.clients,
            self.workers,
            if self.is_backed {
                format!("--backed --scheme {}", self.scheme)
            } else {
                format!("--scheme {}", self.scheme)
            },
            self.mode
                .map_or_else(String::new, |mode| format!(" --mode {mode}")),
            self.protection_flags(),
            placement.unwrap_or_default(),
            self.rate,
            self.fault_pause.as_secs_f64()
        )
    }

    fn protection_flags(&self) -> String {
        let mut flags = match self.protection {
            Protection::None => String::new(),
            Protection::Checksum => " --checksum".to_owned(),
            Protection::Sealed(_) => " --seal".to_owned(),
        };
        if self.weights.rot > 0 {
            flags.push_str(" --rot");
        }
        flags
    }
}

/// The key of simulated volumes that are sealed: which one it is changes nothing.
pub fn seal_key() -> SealKey {
    SealKey::new([7; SealKey::BYTES])
}

/// The scheme of so many data splits and parities, if there is one.
fn scheme_of(k: usize, r: usize) -> Option<Scheme> {
    let text = match (k, r) {
        (1, 0) => "plain".to_owned(),
        (1, r) => format!("mirror:{}", r + 1),
        (k, r) => format!("rs:{k}+{r}"),
    };
    text.parse().ok()
}
