//! A disk as a block device of this machine, and as a swap area on it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::export::{Counters, Export, Shared};
use super::fuse_loop::FuseLoop;
use super::kernel_nbd::KernelNbd;
use super::{Discard, Error, LoopDevice, Options, Result, area, refuse};
use crate::disk::Disk;

/// A served disk. Dropping it turns swap off if it is on, and ends the device.
pub struct Device {
    size_bytes: u64,
    swap: SwapState,
    options: Options,
    shared: Arc<Shared>,
    attached: Attached,
}

/// How the kernel reaches the export.
enum Attached {
    Nbd(KernelNbd),
    Fuse(FuseLoop),
}

impl Attached {
    fn path(&self) -> &Path {
        match self {
            Self::Nbd(nbd) => nbd.path(),
            Self::Fuse(fuse) => fuse.device().path(),
        }
    }

    fn transport(&self) -> &'static str {
        match self {
            Self::Nbd(_) => "nbd",
            Self::Fuse(fuse) if fuse.has_rings() => "io_uring",
            Self::Fuse(_) => "/dev/fuse",
        }
    }

    fn open_merge_switch(&self) -> io::Result<File> {
        match self {
            Self::Nbd(nbd) => nbd.open_merge_switch(),
            Self::Fuse(fuse) => fuse.device().open_merge_switch(),
        }
    }

    /// Whether neighbouring pages may be one request; without, one that cannot be read fails alone.
    fn set_merging(&self, is_on: bool) {
        let value: &[u8] = if is_on { b"0" } else { b"2" };
        let set = self
            .open_merge_switch()
            .and_then(|mut switch| switch.write_all(value));
        if let Err(error) = set {
            tracing::warn!(%error, is_on, "set the merging of requests; with it a lost page may fail its neighbours");
        }
    }
}

/// What a `swapoff` came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OffReport {
    /// Bytes that were swapped out when it began.
    pub used_bytes: u64,
    /// Pages that could not be read since swap was turned on, this swapoff included, and that
    /// nobody wrote again: their owners lost them. `swapoff(2)` itself succeeds nevertheless.
    pub unreadable_pages: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SwapState {
    Off,
    On,
}

impl Device {
    /// Serves `disk` as a block device with blocks of 4096 bytes: `/dev/nbdN` where the kernel has
    /// nbd, else `/dev/loopN`. Nothing on it is changed.
    ///
    /// # Errors
    /// A size that the disk cannot hold, or a step that the system refused; what was done until
    /// then is undone.
    pub fn serve(disk: &Arc<dyn Disk>, options: Options) -> Result<Self> {
        let size_bytes = refuse::check_size(options.size_bytes, disk.size_bytes())?;
        fs::create_dir_all(&options.dir)
            .map_err(Error::system(format!("make {}", options.dir.display())))?;
        let (attached, shared) = attach(&**disk, size_bytes, &options)?;
        match attached.open_merge_switch() {
            // Only set here, on a new cell.
            Ok(switch) => drop(shared.merge_switch.set(switch)),
            Err(error) => {
                tracing::warn!(%error, "open the switch for merging; a lost page may fail its neighbours");
            }
        }
        Ok(Self {
            size_bytes,
            swap: SwapState::Off,
            options,
            shared,
            attached,
        })
    }

    /// `/dev/nbdN` or `/dev/loopN`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.attached.path()
    }

    /// How the kernel's requests come: `nbd`, `io_uring` (FUSE's) or `/dev/fuse`.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.attached.transport()
    }

    /// What this device can be known again by; a later one of the same name has another. Empty,
    /// which no device is known by, where the system does not show it.
    #[must_use]
    pub fn label(&self) -> String {
        label_of(self.path()).unwrap_or_default()
    }

    /// Size of the device.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Bytes swapped out to it now; `None` while swap is off.
    #[must_use]
    pub fn used_bytes(&self) -> Option<u64> {
        area::used_bytes(self.path())
    }

    /// Writes a new swap header and turns swap on.
    ///
    /// The disk should be mapped whole by now: memory found only when a page is swapped out comes
    /// too late.
    ///
    /// # Errors
    /// When the header cannot be written, or the kernel refuses the area.
    pub fn swap_on(&mut self) -> Result<()> {
        self.swap_on_with(self.options.discard)
    }

    fn swap_on_with(&mut self, discard: Discard) -> Result<()> {
        let header = area::header(self.size_bytes, random_bytes()?);
        let path = self.path();
        let file = OpenOptions::new().write(true).open(path);
        file.and_then(|file| {
            file.write_all_at(&header, 0)?;
            file.sync_all()
        })
        .map_err(Error::system(format!(
            "write a swap header to {}",
            path.display()
        )))?;
        area::on(path, self.options.priority, discard)
            .map_err(Error::system(format!("swapon {}", path.display())))?;
        self.swap = SwapState::On;
        Ok(())
    }

    /// Whether it is a swap area now, as far as this device turned it on and off.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.swap == SwapState::On
    }

    /// Brings every page back into memory and leaves an empty swap area, as long as `goes_on(bytes
    /// left)` says so and no request fails: swapoff gives up a page that cannot be read. The kernel
    /// hears of it when it is through with the pages of a program. What the pages held on the disk is discarded. False: it did not go on, or
    /// they do not fit; swap is on with those that are left.
    ///
    /// # Errors
    /// When swap could not be turned on again; [`Device::swap_on_again`] tries once more.
    pub fn reclaim(&mut self, mut goes_on: impl FnMut(u64) -> bool) -> Result<bool> {
        self.attached.set_merging(false);
        let errors = &self.counters().errors;
        let before = errors.load(Ordering::Relaxed);
        let outcome = area::off_while(self.path(), |left_bytes| {
            errors.load(Ordering::Relaxed) == before && goes_on(left_bytes)
        });
        self.merge_again();
        if let Err(error) = outcome {
            tracing::info!(%error, "pages stay swapped out");
            return Ok(false);
        }
        self.swap = SwapState::Off;
        self.swap_on_again()?;
        Ok(true)
    }

    /// Has neighbouring pages be one request after a swapoff, unless some cannot be read.
    fn merge_again(&self) {
        if self.counters().unreadable_pages() == 0 {
            self.attached.set_merging(true);
        }
    }

    /// Turns swap on, empty, after every page was reclaimed.
    ///
    /// # Errors
    /// As [`Device::swap_on`].
    pub fn swap_on_again(&mut self) -> Result<()> {
        let discard = match self.options.discard {
            Discard::None => Discard::Once,
            other => other,
        };
        self.swap_on_with(discard)
    }

    /// Turns swap off; `watch(bytes left)` is called now and then while pages come back.
    ///
    /// # Errors
    /// [`Error::StillOn`] when the pages do not fit into memory; the device goes on serving.
    pub fn swap_off(&mut self, watch: impl FnMut(u64)) -> Result<OffReport> {
        let used_bytes = self.used_bytes().unwrap_or(0);
        self.attached.set_merging(false);
        if self.swap == SwapState::On && self.used_bytes().is_some() {
            area::off(self.path(), watch).map_err(|error| {
                self.merge_again();
                Error::StillOn {
                    device: self.path().to_owned(),
                    reason: match error.raw_os_error() {
                        Some(libc::ENOMEM) => NO_MEMORY.to_owned(),
                        _ => error.to_string(),
                    },
                }
            })?;
        }
        self.swap = SwapState::Off;
        Ok(OffReport {
            used_bytes,
            unreadable_pages: self.counters().unreadable_pages(),
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.swap == SwapState::On
            && let Err(error) = self.swap_off(|_| ())
        {
            tracing::error!(%error, "end the swap device");
        }
    }
}

/// The label of a device that is served, or was when its server was killed.
pub(super) fn label_of(path: &Path) -> io::Result<String> {
    KernelNbd::label_of(path).or_else(|_| LoopDevice::label_of(path))
}

/// Shows the disk by nbd, or else by FUSE.
fn attach(disk: &dyn Disk, size_bytes: u64, options: &Options) -> Result<(Attached, Arc<Shared>)> {
    let thread_count = options.thread_count.max(1);
    let export = || {
        Export::new(disk, size_bytes, thread_count).map_err(Error::system("make the disk's queues"))
    };
    if KernelNbd::is_available() {
        let (export, shared) = export()?;
        match KernelNbd::attach(&Arc::new(export), thread_count) {
            Ok(nbd) => return Ok((Attached::Nbd(nbd), shared)),
            Err(error) => tracing::warn!(%error, "connect the kernel's nbd; FUSE is used instead"),
        }
    }
    let (export, shared) = export()?;
    let label = format!("cenote-{:08x}", u32::from_ne_bytes(random_bytes()?));
    let fuse = FuseLoop::attach(export, thread_count, options.fuse, &options.dir, &label)?;
    Ok((Attached::Fuse(fuse), shared))
}

fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::system("read /dev/urandom"))?;
    Ok(bytes)
}

/// The kernel charges pages that come back to the cgroups that own them.
const NO_MEMORY: &str = "its pages do not fit into free memory, or not under the limit of the \
                         memory cgroup that owns them";
