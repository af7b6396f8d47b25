//! A disk as a block device of this machine, and as a swap area on it.
//!
//! The FUSE mount lives only until the loop device has its file open, then it is detached: there
//! is nothing to unmount later, also not for a server that was killed. The filesystem ends when
//! the loop device lets the file go.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::export::{Counters, DISK_NAME, Export, Shared, WARM_NAME, WRITE_BYTES_MAX};
use super::{Error, LoopDevice, Options, Result, area, refuse};
use crate::disk::Disk;

/// A served disk. Dropping it turns swap off if it is on, and ends the device.
pub struct Device {
    size_bytes: u64,
    swap: SwapState,
    options: Options,
    shared: Arc<Shared>,
    // Dropped in this order by `Drop`: the session ends when the loop device has let go.
    loop_device: Option<LoopDevice>,
    session: Option<fuser::BackgroundSession>,
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
    /// Serves `disk` as `/dev/loopN` with blocks of 4096 bytes. Nothing on it is changed.
    ///
    /// # Errors
    /// A size that the disk cannot hold, or a step that the system refused; what was done until
    /// then is undone.
    pub fn serve(disk: &Arc<dyn Disk>, options: Options) -> Result<Self> {
        let size_bytes = refuse::check_size(options.size_bytes, disk.size_bytes())?;
        let thread_count = options.thread_count.max(1);
        let (export, shared) = Export::new(&**disk, size_bytes, thread_count)
            .map_err(Error::system("make the disk's queues"))?;
        fs::create_dir_all(&options.dir)
            .map_err(Error::system(format!("make {}", options.dir.display())))?;
        let mount_point = MountPoint::make(&options.dir)?;
        let session = mount(export, &mount_point.path, thread_count)
            .map_err(Error::system("mount the FUSE file"))?;
        let mut device = Self {
            size_bytes,
            swap: SwapState::Off,
            options,
            shared,
            loop_device: None,
            session: Some(session),
        };
        warm_up(&mount_point.path, thread_count)
            .map_err(Error::system("warm the serving threads up"))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount_point.path.join(DISK_NAME))
            .map_err(Error::system("open the FUSE file"))?;
        let label = format!("cenote-{:08x}", u32::from_ne_bytes(random_bytes()?));
        let loop_device = LoopDevice::attach(&file, area::PAGE_BYTES as u32, &label)
            .map_err(Error::system("put a loop device over the FUSE file"))?;
        if let Err(error) = loop_device.allow_merging() {
            tracing::warn!(%error, "allow merged requests; swapping out is slower without");
        }
        if let Ok(switch) = loop_device.open_merge_switch() {
            // Only set here, on a new cell.
            drop(device.shared.merge_switch.set(switch));
        }
        device.loop_device = Some(loop_device);
        Ok(device)
    }

    /// `/dev/loopN`.
    #[must_use]
    pub fn path(&self) -> &Path {
        let device = self.loop_device.as_ref();
        device.map_or(Path::new(""), LoopDevice::path)
    }

    /// A random name that the loop device carries, to know it again by.
    #[must_use]
    pub fn label(&self) -> String {
        LoopDevice::label_of(self.path()).unwrap_or_default()
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
        area::on(path, self.options.priority, self.options.discard)
            .map_err(Error::system(format!("swapon {}", path.display())))?;
        self.swap = SwapState::On;
        Ok(())
    }

    /// Turns swap off; `watch(bytes left)` is called now and then while pages come back.
    ///
    /// # Errors
    /// [`Error::StillOn`] when the pages do not fit into memory; the device goes on serving.
    pub fn swap_off(&mut self, watch: impl FnMut(u64)) -> Result<OffReport> {
        let used_bytes = self.used_bytes().unwrap_or(0);
        if let Some(device) = &self.loop_device
            && let Err(error) = device.stop_merging()
        {
            tracing::warn!(%error, "stop merging requests; a lost page may fail its neighbours");
        }
        if self.swap == SwapState::On && self.used_bytes().is_some() {
            area::off(self.path(), watch).map_err(|error| Error::StillOn {
                device: self.path().to_owned(),
                reason: match error.raw_os_error() {
                    Some(libc::ENOMEM) => NO_MEMORY.to_owned(),
                    _ => error.to_string(),
                },
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
        let Some(session) = self.session.take() else {
            return;
        };
        if self.loop_device.take().is_none() {
            // A start that failed: the mount is still there, and ends the session.
            if let Err(error) = session.umount_and_join() {
                tracing::warn!(%error, "unmount the FUSE file");
            }
            return;
        }
        let patience = Instant::now() + END_TIMEOUT;
        while !session.guard.is_finished() {
            if Instant::now() > patience {
                tracing::warn!("the loop device is still in use; its data ends with this process");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Err(error) = session.join() {
            tracing::warn!(%error, "end the FUSE session");
        }
    }
}

fn mount(export: Export, path: &Path, thread_count: usize) -> io::Result<fuser::BackgroundSession> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        fuser::MountOption::FSName("cenote".to_owned()),
        fuser::MountOption::Subtype("cenote".to_owned()),
        fuser::MountOption::NoExec,
        fuser::MountOption::NoAtime,
    ];
    config.n_threads = Some(thread_count);
    config.clone_fd = true;
    fuser::Session::new(export, path, &config)?.spawn()
}

/// Sends each thread one request of the largest size, all at the same time, so that the buffers
/// that fuser made have their memory before a page depends on it.
fn warm_up(mount_point: &Path, thread_count: usize) -> io::Result<()> {
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..thread_count)
            .map(|index| {
                scope.spawn(move || {
                    let path = mount_point.join(format!("{WARM_NAME}{index}"));
                    let file = OpenOptions::new().write(true).open(path)?;
                    file.write_all_at(&vec![0; WRITE_BYTES_MAX], 0)
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| {
            let outcome = writer.join();
            outcome.unwrap_or_else(|_| Err(io::Error::other("a warm-up thread panicked")))
        })
    })
}

fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::system("read /dev/urandom"))?;
    Ok(bytes)
}

/// A directory to mount on, which is detached and removed when dropped.
struct MountPoint {
    path: PathBuf,
}

impl MountPoint {
    fn make(dir: &Path) -> Result<Self> {
        let path = dir.join(format!("mount-{}", std::process::id()));
        // Left by a server that was killed between the mount and its detaching.
        drop(Self { path: path.clone() });
        fs::create_dir(&path).map_err(Error::system(format!("make {}", path.display())))?;
        Ok(Self { path })
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Ok(name) = std::ffi::CString::new(self.path.as_os_str().as_encoded_bytes()) {
            // SAFETY: `name` is a live C string. Fails harmlessly where nothing is mounted.
            unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
        }
        if let Err(error) = fs::remove_dir(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "remove the mount point");
        }
    }
}

/// The kernel charges pages that come back to the cgroups that own them.
const NO_MEMORY: &str = "its pages do not fit into free memory, or not under the limit of the \
                         memory cgroup that owns them";
/// How long the end of a device waits for the last user of it; arbitrary.
const END_TIMEOUT: Duration = Duration::from_secs(5);
