//! `cenote bench files`: `cenote mount` beside what bounds it and what does instead.
//!
//! The same load in five folders: ours, whose requests come over io_uring; ours over `/dev/fuse`
//! (the only one where the kernel has no FUSE over io_uring, which is switched on meanwhile); a FUSE
//! file system that only hands requests on to tmpfs, which is what `/dev/fuse` allows on this
//! machine; tmpfs; and ext4 over a block device that is another volume of the same hosts. Places
//! take turns in each round; the median of the rounds is kept. In every row more is better.

mod load;
mod mounted_folder;
mod passthrough;

use std::path::{Path, PathBuf};

use anyhow::ensure;
use cenote_volume::Scheme;

use super::{Row, fio};
use crate::cluster::LocalCluster;
use crate::rounds::{Samples, turns};
use crate::swap_rig::fuse_switch::FuseSwitch;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::{Folder, fresh, is_root};
use load::{Access, Names};
use mounted_folder::{MountedFolder, Transport};
pub use mounted_folder::{Role, serve};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for mounts and sockets; made, and removed.
    pub dir: PathBuf,
    /// `shm` or `tcp`.
    pub transport: String,
    /// Bytes of the file that fio reads and writes.
    pub data_bytes: u64,
    /// How many files are made, looked at and deleted; none: no names are measured.
    pub files: u64,
    /// Rounds of which the median is taken.
    pub rounds: usize,
    /// How long each run of fio takes; 0: no data is measured.
    pub seconds: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: fresh(&std::env::temp_dir(), "files"),
            transport: "shm".into(),
            data_bytes: 256 << 20,
            files: 100_000,
            rounds: 3,
            seconds: 1.0,
        }
    }
}

impl Options {
    /// Makes it a matter of a minute: fewer files, less data, one round.
    pub fn shorten(&mut self) {
        self.data_bytes = 32 << 20;
        self.files = 2000;
        self.rounds = 1;
        self.seconds = 0.2;
    }

    /// Size of a volume that all of it fits in, as ours and as ext4.
    fn volume_bytes(&self) -> u64 {
        let names = self.files * FILE_BYTES;
        (names.max(self.data_bytes) * 2 + (64 << 20)).next_multiple_of(16 << 20)
    }
}

const SCHEME: &str = "rs:8+2";
const HOSTS: usize = 12;
/// What a file takes of a volume, about: see docs/guides/files.md.
const FILE_BYTES: u64 = 13 << 10;

/// Where it is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Contender {
    Ours,
    /// Ours over `/dev/fuse`, where the other is over io_uring.
    OursDevFuse,
    Passthrough,
    Tmpfs,
    Ext4,
}

impl Contender {
    const PEERS: [Self; 4] = [
        Self::OursDevFuse,
        Self::Passthrough,
        Self::Tmpfs,
        Self::Ext4,
    ];
}

/// What is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Case {
    Access(Access),
    Names(Names),
}

impl Case {
    fn label(self) -> String {
        match self {
            Self::Access(access) => access.label(),
            Self::Names(names) => names.label().to_owned(),
        }
    }

    fn metric(self) -> (&'static str, &'static str) {
        match self {
            Self::Access(access) => fio::metric(access.block_bytes),
            Self::Names(_) => ("rate", "ops/s"),
        }
    }
}

/// The places. Dropped in this order: the passthrough is over the tmpfs, and hosts are last.
struct Places {
    ours: MountedFolder,
    ours_dev_fuse: Option<MountedFolder>,
    passthrough: MountedFolder,
    tmpfs: MountedFolder,
    ext4: MountedFolder,
    /// What ext4 lies on.
    device: String,
    _cluster: LocalCluster,
}

impl Places {
    fn make(options: &Options, dir: &Path) -> anyhow::Result<Self> {
        let scheme: Scheme = SCHEME.parse().expect("a scheme");
        let bytes = options.volume_bytes();
        // Three volumes, ten splits to eight of data, and slabs that do not fit.
        let host_mib =
            ((bytes >> 20) * 3 * 10 / 8 * 5 / 4 / HOSTS as u64).next_multiple_of(16) + 64;
        let cluster = LocalCluster::start_in(
            &dir.join("cluster"),
            HOSTS,
            host_mib,
            &options.transport,
            &["--slab", "8M"],
        )?;
        let tmpfs = MountedFolder::tmpfs(dir, bytes * 2)?;
        let passthrough = MountedFolder::passthrough(dir, &tmpfs)?;
        let what = (scheme, bytes);
        let (ours, transport) = MountedFolder::ours(&cluster, dir, what, Transport::IoUring)?;
        let ours_dev_fuse = match transport {
            Transport::IoUring => {
                Some(MountedFolder::ours(&cluster, dir, what, Transport::DevFuse)?.0)
            }
            Transport::DevFuse => None,
        };
        let (ext4, device) = MountedFolder::ext4(&cluster, dir, scheme, (bytes, options.files))?;
        Ok(Self {
            ours,
            ours_dev_fuse,
            passthrough,
            tmpfs,
            ext4,
            device,
            _cluster: cluster,
        })
    }

    /// Who is there.
    fn all(&self) -> Vec<Contender> {
        let peers = Contender::PEERS.into_iter();
        let peers =
            peers.filter(|who| self.ours_dev_fuse.is_some() || *who != Contender::OursDevFuse);
        std::iter::once(Contender::Ours).chain(peers).collect()
    }

    fn path(&self, who: Contender) -> &Path {
        match who {
            Contender::Ours => self.ours.path(),
            Contender::OursDevFuse => self.ours_dev_fuse.as_ref().unwrap_or(&self.ours).path(),
            Contender::Passthrough => self.passthrough.path(),
            Contender::Tmpfs => self.tmpfs.path(),
            Contender::Ext4 => self.ext4.path(),
        }
    }

    fn name(&self, who: Contender) -> String {
        match who {
            Contender::Ours => "cenote mount".to_owned(),
            Contender::OursDevFuse => "cenote mount over /dev/fuse".to_owned(),
            Contender::Passthrough => "FUSE passthrough to tmpfs".to_owned(),
            Contender::Tmpfs => "tmpfs".to_owned(),
            Contender::Ext4 => {
                let device = self.device.trim_start_matches("/dev/");
                let kind = device.trim_end_matches(|digit: char| digit.is_ascii_digit());
                format!("ext4 on {kind} of cenote")
            }
        }
    }
}

/// Measures everything that was asked for; narrates on stderr.
///
/// # Errors
/// What is missing, could not be started or went away, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    ensure!(is_root(), "it mounts file systems: run it as root");
    ensure!(options.rounds > 0, "no rounds asked for");
    let interrupt = Interrupt::catch()?;
    let folder = Folder::make(options.dir.clone())?;
    let switch = FuseSwitch::on();
    if let Err(error) = &switch {
        eprintln!("over /dev/fuse alone: {error:#}");
    }
    let places = Places::make(options, &folder.0)?;
    let all = places.all();
    let mut told = Samples::new();
    let mut tell = |who: Contender, case: Case, figure: f64| {
        eprintln!("{who:?} {}: {figure:.0} {}", case.label(), case.metric().1);
        told.push(who, case, figure);
    };
    let in_turn = |round| turns(all.len(), round).map(|index| all[index]);
    if options.seconds > 0.0 {
        for who in all.iter().copied() {
            load::fill(places.path(who), options.data_bytes)?;
        }
        for access in Access::all() {
            for round in 0..options.rounds {
                for who in in_turn(round) {
                    interrupt.check()?;
                    let (place, bytes) = (places.path(who), options.data_bytes);
                    let figure = access.measure(place, bytes, options.seconds)?;
                    tell(who, Case::Access(access), figure);
                }
            }
        }
    }
    for round in 0..options.rounds {
        for who in in_turn(round).filter(|_| options.files > 0) {
            interrupt.check()?;
            for (names, figure) in load::names(places.path(who), options.files)? {
                tell(who, Case::Names(names), figure);
            }
        }
    }
    Ok(rows(options, &told, |who| places.name(who)))
}

fn rows(
    options: &Options,
    told: &Samples<Contender, Case, f64>,
    name: impl Fn(Contender) -> String,
) -> Vec<Row> {
    let accesses = Access::all().into_iter().map(Case::Access);
    let names = Names::ALL.into_iter().map(Case::Names);
    let mut rows = Vec::new();
    for case in accesses.chain(names) {
        let text = format!("{SCHEME} {} {}", options.transport, case.label());
        for peer in Contender::PEERS {
            let pairs = told.pairs((&Contender::Ours, &peer), &case, |figure| *figure);
            if !pairs.is_empty() {
                let (case, metric) = (("files", &text), case.metric());
                rows.push(Row::of_rounds(case, metric, Some(true), name(peer), &pairs));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_medians_of_what_was_measured_and_nothing_else() {
        let case = Case::Names(Names::Create);
        let mut told = Samples::new();
        for figure in [1.0, 9.0, 2.0] {
            told.push(Contender::Ours, case, figure);
            told.push(Contender::Tmpfs, case, 8.0);
        }
        let rows = rows(&Options::default(), &told, |who| format!("{who:?}"));
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].ours, rows[0].ratio), (2.0, 0.25));
        assert_eq!(rows[0].peer, "Tmpfs");
        assert_eq!(rows[0].case, "rs:8+2 shm create");
    }
}
