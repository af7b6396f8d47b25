//! What is agreed with the kernel when it begins to show files: how the mount is named and who may
//! look in, and which of FUSE's features both sides use.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Filesystem, INodeNo, InitFlags, KernelConfig, MountOption, Request, SessionACL};

use super::Options;
use super::kernel::Kernel;
use super::point::{self, SOURCE};
use crate::files::Files;

/// Bytes of one read or write at most.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Asynchronous requests that the kernel may have open at once; arbitrary.
const BACKGROUND_MAX: u16 = 128;

/// Mounts, and agrees with the kernel on how; the requests are read elsewhere.
///
/// # Errors
/// `ResourceBusy` with a [`PointError`](point::PointError): another process was first.
pub(super) fn mount(path: &Path, options: &Options, terms: Terms) -> io::Result<Session> {
    let claimed = point::claim(path);
    let _claimed = claimed.map_err(|error| io::Error::new(ErrorKind::ResourceBusy, error))?;
    let rings = Arc::new(AtomicBool::new(false));
    let handshake = Handshake {
        terms,
        rings: Arc::clone(&rings),
    };
    let fuser = fuser::Session::new(handshake, path, &config(SOURCE, options))?;
    Ok(Session {
        fuser,
        has_rings: rings.load(Ordering::Relaxed),
    })
}

/// A mount that is there; whatever is mounted at its path is taken away when this is dropped.
pub(super) struct Session {
    pub(super) fuser: fuser::Session<Handshake>,
    /// Whether the kernel waits for rings before it sends anything.
    pub(super) has_rings: bool,
}

impl Session {
    /// For a connection that is over, and the only user of its [`Kernel`]: it is mounted nowhere any
    /// more, and at its path may be the next mount, which a drop would take away. `fuser` means not to,
    /// and looks at the wrong event.
    ///
    /// Costs what `fuser` keeps in memory of a mount, some hundred bytes.
    pub(super) fn close(self, kernel: Arc<Kernel>) {
        let device = self.fuser.as_fd().as_raw_fd();
        std::mem::forget(self.fuser);
        if Arc::into_inner(kernel).is_none() {
            // Its notifier writes to the descriptor, which by then could be another file's.
            return tracing::warn!("somebody still has an ended mount; it keeps a descriptor");
        }
        // SAFETY: the session owned the descriptor and closes nothing any more: its count in the shared
        // device is never given back. The notifiers, which share that, went with the kernel.
        drop(unsafe { OwnedFd::from_raw_fd(device) });
    }

    /// What answers its requests.
    pub(super) fn kernel(&self, files: &Arc<Files>) -> Kernel {
        let notifier = self.fuser.notifier();
        Kernel::new(Arc::clone(files), move |ino| {
            // A negative offset: attributes alone, no bytes.
            if let Err(error) = notifier.inval_inode(INodeNo(ino), -1, 0) {
                tracing::debug!(%error, ino, "have the kernel ask for attributes");
            }
        })
    }
}

/// What is asked for in INIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Longest write and read ahead.
    pub(super) request_bytes_max: u32,
    /// Requests over io_uring.
    pub(super) rings: bool,
}

/// Answers INIT; `fuser` is not asked to serve anything else.
pub(super) struct Handshake {
    terms: Terms,
    /// Set when the kernel takes rings.
    rings: Arc<AtomicBool>,
}

impl Filesystem for Handshake {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if self.terms.rings {
            let asked = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING);
            self.rings.store(asked.is_ok(), Ordering::Relaxed);
        }
        agree(config, self.terms.request_bytes_max)
    }
}

/// How a session is mounted, and by how many threads it is served; `source` begins what `mount`
/// and `df` show before the name.
#[must_use]
pub fn config(source: &str, options: &Options) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{source}{}", options.name)),
        MountOption::Subtype("cenote".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoDev,
    ];
    config.acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.n_threads = Some(options.threads.max(1));
    // A thread that waits for requests on a descriptor of its own wakes alone.
    config.clone_fd = true;
    config
}

/// Asks the kernel for caches that nobody else invalidates, large requests and many at a time.
///
/// # Errors
/// The kernel takes no requests of that size.
pub fn negotiate(config: &mut KernelConfig) -> io::Result<()> {
    agree(config, REQUEST_BYTES_MAX)
}

fn agree(config: &mut KernelConfig, request_bytes_max: u32) -> io::Result<()> {
    let wanted = [
        InitFlags::FUSE_WRITEBACK_CACHE,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        // Without it the kernel asks for capabilities of the file at every write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    ];
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::info!(?flag, "this kernel has no such FUSE feature");
        }
    }
    let refused = |least: u32| io::Error::other(format!("FUSE allows {least}"));
    config.set_max_write(request_bytes_max).map_err(refused)?;
    if let Err(most) = config.set_max_readahead(request_bytes_max) {
        config.set_max_readahead(most).map_err(refused)?;
    }
    let background = config.set_max_background(BACKGROUND_MAX);
    background.map_err(|least| refused(least.into()))?;
    Ok(())
}
