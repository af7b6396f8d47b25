//! An export as one FUSE file under a loop device, where the kernel has no nbd.
//!
//! The FUSE mount lives only until the loop device has its file open, then it is detached: there
//! is nothing to unmount later, also not for a server that was killed. The filesystem ends when
//! the loop device lets the file go.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::dev_fuse::DevFuse;
use super::export::{DISK_NAME, Export, REQUEST_BYTES_MAX, WARM_NAME};
use super::fuse_rings::{Rings, Shape};
use super::{Error, FuseTransport, LoopDevice, Result, area};

/// A loop device over a served file; dropping it ends both.
pub(super) struct FuseLoop {
    // The session ends when the loop device has let go.
    loop_device: Option<LoopDevice>,
    session: Option<Session>,
}

/// What serves the mount.
struct Session {
    fuser: fuser::BackgroundSession,
    /// Over which requests come; none: over `/dev/fuse`.
    rings: Option<Rings>,
}

impl FuseLoop {
    /// Mounts `export` below `dir` and puts a loop device of that `label` over its file. Requests
    /// come over io_uring, where that is `wanted` and the kernel has it, else over `/dev/fuse`.
    ///
    /// # Errors
    /// A step that the system refused; what was done until then is undone.
    pub(super) fn attach(
        export: Export,
        thread_count: usize,
        wanted: FuseTransport,
        dir: &Path,
        label: &str,
    ) -> Result<Self> {
        let mount_point = MountPoint::make(dir)?;
        let export = Arc::new(export);
        let session = Session::start(&export, thread_count, wanted, &mount_point.path)
            .map_err(Error::system("mount the FUSE file"))?;
        let is_warm = session.rings.is_some();
        let mut attached = Self {
            loop_device: None,
            session: Some(session),
        };
        if !is_warm {
            warm_up(&mount_point.path, thread_count)
                .map_err(Error::system("warm the serving threads up"))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount_point.path.join(DISK_NAME))
            .map_err(Error::system("open the FUSE file"))?;
        let loop_device = LoopDevice::attach(&file, area::PAGE_BYTES as u32, label)
            .map_err(Error::system("put a loop device over the FUSE file"))?;
        if let Err(error) = loop_device.allow_merging() {
            tracing::warn!(%error, "allow merged requests; swapping out is slower without");
        }
        attached.loop_device = Some(loop_device);
        Ok(attached)
    }

    /// The device that the kernel sees.
    ///
    /// # Panics
    /// Never: [`attach`](Self::attach) returns no device without it.
    pub(super) fn device(&self) -> &LoopDevice {
        let device = self.loop_device.as_ref();
        device.expect("a loop device from attach to drop")
    }

    /// Whether requests come over io_uring.
    pub(super) fn has_rings(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.rings.is_some())
    }
}

impl Drop for FuseLoop {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        if self.loop_device.take().is_none() {
            // A start that failed: the mount is still there, and ends the session.
            session.unmount();
            return;
        }
        let patience = Instant::now() + END_TIMEOUT;
        while !session.is_over() {
            if Instant::now() > patience {
                tracing::warn!("the loop device is still in use; its data ends with this process");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        session.join();
    }
}

impl Session {
    fn start(
        export: &Arc<Export>,
        thread_count: usize,
        wanted: FuseTransport,
        path: &Path,
    ) -> io::Result<Self> {
        if wanted == FuseTransport::Auto {
            match Self::over_rings(export, thread_count, path) {
                Ok(session) => return Ok(session),
                Err(error) => {
                    tracing::info!(%error, "FUSE over io_uring; /dev/fuse is used instead")
                }
            }
        }
        let files = DevFuse {
            export: Arc::clone(export),
            write_bytes_max: REQUEST_BYTES_MAX,
            rings: None,
        };
        Ok(Self {
            fuser: mount(files, path, thread_count)?.spawn()?,
            rings: None,
        })
    }

    fn over_rings(export: &Arc<Export>, thread_count: usize, path: &Path) -> io::Result<Self> {
        if cenote_fuse::state() != cenote_fuse::State::On {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "not switched on, or not in this kernel: {}",
                    cenote_fuse::SWITCH
                ),
            ));
        }
        let shape = Shape::new(cenote_fuse::queue_count()?, thread_count);
        let mut rings = Rings::prepare(export, shape)?;
        let granted = Arc::new(AtomicBool::new(false));
        let files = DevFuse {
            export: Arc::clone(export),
            write_bytes_max: shape.payload_bytes,
            rings: Some(Arc::clone(&granted)),
        };
        // One thread: nothing but FORGET comes this way.
        let mounted = mount(files, path, 1).and_then(|session| {
            if !granted.load(Ordering::Relaxed) {
                return Err(io::Error::other("the kernel did not offer it"));
            }
            let device = session.as_fd().try_clone_to_owned()?;
            Ok((session.spawn()?, device))
        });
        let (fuser, device) = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                rings.join();
                return Err(error);
            }
        };
        let registered = rings.register(device);
        let session = Self {
            fuser,
            rings: Some(rings),
        };
        if let Err(error) = registered {
            session.unmount();
            return Err(error);
        }
        Ok(session)
    }

    fn is_over(&self) -> bool {
        self.fuser.guard.is_finished() && self.rings.as_ref().is_none_or(Rings::are_over)
    }

    /// Ends what is mounted, and waits for its threads.
    fn unmount(self) {
        if let Err(error) = self.fuser.umount_and_join() {
            tracing::warn!(%error, "unmount the FUSE file");
            // Somebody has it open. The threads end when the mount point is detached.
            return;
        }
        if let Some(rings) = self.rings {
            rings.join();
        }
    }

    /// Waits for the threads of a mount that is over.
    fn join(self) {
        if let Err(error) = self.fuser.join() {
            tracing::warn!(%error, "end the FUSE session");
        }
        if let Some(rings) = self.rings {
            rings.join();
        }
    }
}

fn mount(files: DevFuse, path: &Path, thread_count: usize) -> io::Result<fuser::Session<DevFuse>> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        fuser::MountOption::FSName("cenote".to_owned()),
        fuser::MountOption::Subtype("cenote".to_owned()),
        fuser::MountOption::NoExec,
        fuser::MountOption::NoAtime,
    ];
    config.n_threads = Some(thread_count);
    config.clone_fd = true;
    fuser::Session::new(files, path, &config)
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
                    file.write_all_at(&vec![0; REQUEST_BYTES_MAX], 0)
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| {
            let outcome = writer.join();
            outcome.unwrap_or_else(|_| Err(io::Error::other("a warm-up thread panicked")))
        })
    })
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

/// How long the end of a device waits for the last user of it; arbitrary.
const END_TIMEOUT: Duration = Duration::from_secs(5);
