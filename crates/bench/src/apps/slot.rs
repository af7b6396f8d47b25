//! The kinds of swap that are compared, each prepared once and turned on for one program at a time.
//!
//! All but zram are block devices or files of one size that were written full before: first
//! touches are nobody's figure. Ours and nbdkit are each one FUSE file under a loop device.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use cenote_block::swap::area as format;

use super::nbdkit::NbdkitLoop;
use crate::cluster::{LocalCluster, process_cpu_ns};
use crate::demo::Disk;
use crate::swap_rig::area::Area;
use crate::swap_rig::our_swap::OurSwap;
use crate::swap_rig::swap_file::SwapFile;

/// A kind of swap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Slot {
    /// A volume without redundancy on the hosts, with a backing file on disk.
    Plain,
    /// A volume rs:8+2 on the hosts.
    Coded,
    /// A volume of two copies on the hosts.
    Mirrored,
    /// nbdkit's memory plugin.
    Nbdkit,
    /// A swap file on disk.
    File,
    /// Compressed memory of this machine.
    Zram,
}

impl Slot {
    /// Every kind, ours first.
    pub const ALL: [Self; 6] = [
        Self::Plain,
        Self::Coded,
        Self::Mirrored,
        Self::Nbdkit,
        Self::File,
        Self::Zram,
    ];

    /// As in a row.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain+backing",
            Self::Coded => "rs:8+2",
            Self::Mirrored => "mirror:2",
            Self::Nbdkit => "nbdkit memory",
            Self::File => "swap file",
            Self::Zram => "zram",
        }
    }

    /// Whether a row is ours. Copies are on our hosts too, and what coding is compared with.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Plain | Self::Coded)
    }

    /// Whether our hosts have its pages.
    fn is_on_hosts(self) -> bool {
        self.is_ours() || self == Self::Mirrored
    }
}

/// What has to be there before a slot can be turned on. Dropped in this order.
pub(crate) struct Slots {
    cluster: Option<LocalCluster>,
    nbdkit: Option<NbdkitLoop>,
    file: Option<SwapFile>,
    zram: Option<Zram>,
    dir: PathBuf,
    size_bytes: u64,
    /// The own direct reads of the swap file's disk.
    disk: Option<Disk>,
}

impl Slots {
    pub(crate) fn prepare(
        wanted: &[Slot],
        dir: &Path,
        size_bytes: u64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut slots = Self {
            cluster: None,
            nbdkit: None,
            file: None,
            zram: None,
            dir: dir.to_owned(),
            size_bytes,
            disk: None,
        };
        if wanted.iter().any(|slot| slot.is_on_hosts()) {
            // Ten splits to eight of data, or two copies; and half as much again for slabs that do
            // not fit.
            let size_mib = size_bytes >> 20;
            let stored_mib = match wanted.contains(&Slot::Mirrored) {
                true => size_mib * 2,
                false => size_mib * 10 / 8,
            };
            let host_mib = stored_mib * 3 / 2 / HOST_COUNT as u64;
            let host_mib = host_mib.next_multiple_of(SLAB_MIB);
            eprintln!(
                "{HOST_COUNT} hosts of {host_mib} MiB in slabs of {SLAB_MIB} MiB over shared memory"
            );
            slots.cluster = Some(LocalCluster::start_in(
                &dir.join("cluster"),
                HOST_COUNT,
                host_mib,
                "shm",
                &["--slab", &format!("{SLAB_MIB}M")],
            )?);
        }
        if wanted.contains(&Slot::Nbdkit) {
            slots.nbdkit = Some(NbdkitLoop::start(dir, size_bytes)?);
        }
        if wanted.contains(&Slot::File) {
            let file = SwapFile::make(&dir.join("swapfile"), size_bytes)?;
            let disk = file.read_latency(seed)?;
            eprintln!(
                "the disk of the swap file: direct 4 KiB read p50 {:.0} us, p99 {:.0} us",
                disk.read_us_p50, disk.read_us_p99
            );
            slots.disk = Some(disk);
            slots.file = Some(file);
        }
        if wanted.contains(&Slot::Zram) {
            slots.zram = Some(Zram::make(size_bytes)?);
        }
        Ok(slots)
    }

    /// Turns one on.
    pub(crate) fn on(&self, slot: Slot) -> anyhow::Result<On<'_>> {
        self.on_with(slot, &[])
    }

    /// Turns one on; what is ours is started with these variables of the environment.
    pub(crate) fn on_with(&self, slot: Slot, variables: &[(&str, &str)]) -> anyhow::Result<On<'_>> {
        let area = match slot {
            Slot::Plain | Slot::Coded | Slot::Mirrored => {
                let cluster = self.cluster.as_ref().context("no cluster was prepared")?;
                let size = self.size_bytes.to_string();
                let backing = self.dir.join("backing");
                let scheme = ["--size", &size, "--scheme"];
                let backing = backing.display().to_string();
                let more: &[&str] = match slot {
                    Slot::Plain => &["plain", "--backing", &backing],
                    _ => &[slot.label()],
                };
                let args = [&scheme[..], more].concat();
                Held::Ours(OurSwap::on_with(cluster.dir(), &args, variables)?.0)
            }
            Slot::Nbdkit => Held::Area(self.nbdkit.as_ref().context("no nbdkit")?.on()?),
            Slot::File => Held::Area(self.file.as_ref().context("no swap file")?.on()?),
            Slot::Zram => Held::Area(self.zram.as_ref().context("no zram")?.on()?),
        };
        Ok(On {
            slots: self,
            slot,
            area,
        })
    }

    /// Our hosts, if some slot is on them.
    pub(crate) fn cluster(&self) -> Option<&LocalCluster> {
        self.cluster.as_ref()
    }

    /// Peer name of a slot, with its version where it has one, and a disk with its own latency.
    pub(crate) fn name(&self, slot: Slot) -> String {
        let known = match slot {
            Slot::Nbdkit => self.nbdkit.as_ref().map(|one| one.name().to_owned()),
            Slot::Zram => self
                .zram
                .as_ref()
                .map(|one| format!("zram {}", one.algorithm)),
            Slot::File => self
                .disk
                .map(|disk| format!("swap file, disk {:.0} us", disk.read_us_p50)),
            Slot::Plain | Slot::Coded | Slot::Mirrored => None,
        };
        known.unwrap_or_else(|| slot.label().to_owned())
    }
}

/// A slot that is on; dropping it turns it off.
pub(crate) struct On<'a> {
    slots: &'a Slots,
    slot: Slot,
    area: Held,
}

enum Held {
    Ours(OurSwap),
    Area(Area),
}

/// CPU time used so far to keep and to move pages outside the kernel, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    /// By whoever holds the memory: our hosts, nbdkit.
    pub(super) remote_ns: u64,
    /// By whoever serves the FUSE file: `cenote swap`, nbdfuse.
    pub(super) local_ns: u64,
}

impl On<'_> {
    /// `None` where the kernel does it all.
    pub(super) fn cpu(&self) -> anyhow::Result<Option<Cpu>> {
        match (&self.area, self.slot) {
            (Held::Ours(swap), _) => {
                let status = swap.swap_status()?;
                let pid = status["pid"]
                    .as_u64()
                    .and_then(|pid| u32::try_from(pid).ok());
                let cluster = self.slots.cluster.as_ref();
                Ok(Some(Cpu {
                    remote_ns: cluster.map_or(0, LocalCluster::cpu_ns),
                    local_ns: process_cpu_ns(pid.context("the swap server has a pid")?),
                }))
            }
            (_, Slot::Nbdkit) => Ok(self.slots.nbdkit.as_ref().map(NbdkitLoop::cpu)),
            _ => Ok(None),
        }
    }

    /// How requests come to our server; none where it is not ours.
    pub(crate) fn transport(&self) -> anyhow::Result<Option<String>> {
        let Held::Ours(swap) = &self.area else {
            return Ok(None);
        };
        let status = swap.swap_status()?;
        Ok(status["transport"].as_str().map(str::to_owned))
    }

    /// Brings every page back and turns it off.
    pub(crate) fn off(self) -> anyhow::Result<()> {
        match self.area {
            Held::Ours(swap) => swap.off(),
            Held::Area(area) => area.off(),
        }
    }
}

/// The machine's `/dev/zram0`, reset when dropped.
struct Zram {
    algorithm: String,
}

impl Zram {
    fn make(size_bytes: u64) -> anyhow::Result<Self> {
        let state = setting("initstate").context("this kernel has no /dev/zram0")?;
        ensure!(
            state.trim() == "0",
            "/dev/zram0 is somebody's: zramctl says whose"
        );
        let zram = Self {
            algorithm: chosen(&setting("comp_algorithm")?),
        };
        set("disksize", &size_bytes.to_string())?;
        let header = format::header(size_bytes, [7; 16]);
        let mut device = fs::OpenOptions::new()
            .write(true)
            .open(ZRAM)
            .context("open /dev/zram0")?;
        device
            .write_all(&header)
            .and_then(|()| device.sync_all())
            .context("write a swap header to /dev/zram0")?;
        Ok(zram)
    }

    fn on(&self) -> anyhow::Result<Area> {
        Area::on(Path::new(ZRAM))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        if let Err(error) = set("reset", "1") {
            eprintln!("{error:#}");
        }
    }
}

fn setting(name: &str) -> anyhow::Result<String> {
    let path = Path::new(ZRAM_SETTINGS).join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

fn set(name: &str, value: &str) -> anyhow::Result<()> {
    let path = Path::new(ZRAM_SETTINGS).join(name);
    // One that does not know the setting says so by making no file.
    if !path.exists() {
        bail!("{} is not there", path.display());
    }
    fs::write(&path, value).with_context(|| format!("write {}", path.display()))
}

/// The one in brackets, as the kernel marks it.
fn chosen(algorithms: &str) -> String {
    let start = algorithms.find('[').map_or(0, |at| at + 1);
    let rest = &algorithms[start..];
    rest[..rest.find(']').unwrap_or(rest.len())]
        .trim()
        .to_owned()
}

/// As the demonstration: rs:8+2 and two to spare.
const HOST_COUNT: usize = 12;
/// So large that the slabs of a program that pages are busy enough to be mapped.
const SLAB_MIB: u64 = 16;
const ZRAM: &str = "/dev/zram0";
const ZRAM_SETTINGS: &str = "/sys/block/zram0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_algorithm_in_use_is_the_one_in_brackets() {
        assert_eq!(chosen("[lzo-rle] lzo lz4 \n"), "lzo-rle");
        assert_eq!(chosen("lzo lzo-rle [zstd]"), "zstd");
    }
}
