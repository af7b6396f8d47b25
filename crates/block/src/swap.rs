//! A disk as a swap device of this machine.
//!
//! [`Device`] shows a [`Disk`](crate::disk::Disk) to the kernel, by the kernel's nbd where there
//! is one, else as one FUSE file under a loop device, and turns swap on and off on it; [`server`]
//! is the process that holds it, [`control`] how another process asks that one for its state or
//! its end, [`launch`] how a command starts it in the background.
//!
//! Invariants: the server's memory is locked before its first thread; nothing on the path of a
//! page allocates; `swapoff(2)` never runs in the serving process (the kernel marks its caller as
//! the first victim of the OOM killer); a server that is gone leaves no mount behind.
//! Elsewhere: the volume behind the disk, and mapping it whole, are the caller's.

pub mod area;
pub mod cgroup;
pub mod control;
mod dev_fuse;
mod device;
mod export;
mod fuse_loop;
mod fuse_rings;
pub mod harden;
mod kernel_nbd;
pub mod launch;
mod loop_device;
mod reclaim;
pub mod refuse;
pub mod server;
mod standby;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use cenote_fuse::{
    SWITCH as FUSE_RINGS_SWITCH, State as FuseRingsState, state as fuse_rings_state,
};
pub use device::{Device, OffReport};
pub use export::Counters;
pub use loop_device::LoopDevice;

/// How the kernel is to use the device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the server's socket, lock and log; made if it is not there.
    pub dir: PathBuf,
    /// Bytes of the disk to use, a multiple of 4096; `None` takes all of it.
    pub size_bytes: Option<u64>,
    /// Swap priority, 0 to 32767; `None` leaves it to the kernel, which puts later ones last.
    pub priority: Option<u16>,
    /// When the kernel tells the disk of pages it no longer needs.
    pub discard: Discard,
    /// Threads that serve pages, at least 1, each with its own queue and 1 MiB of buffers. More
    /// than the cores only helps where an operation waits for a network.
    pub thread_count: usize,
    /// Whether pages come back by themselves when the disk says that this machine has memory to
    /// spare for all of them.
    pub reclaim: bool,
    /// How FUSE requests come, where the kernel has no nbd.
    pub fuse: FuseTransport,
}

impl Options {
    /// All of the disk, the kernel's priority, no discards, two serving threads, pages are reclaimed.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            size_bytes: None,
            priority: None,
            discard: Discard::None,
            thread_count: 2,
            reclaim: true,
            fuse: FuseTransport::Auto,
        }
    }
}

/// How the kernel hands FUSE requests over.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FuseTransport {
    /// Over io_uring where the kernel has that and it is switched on, else as below.
    #[default]
    Auto,
    /// Over `/dev/fuse`, by reads and writes.
    DevFuse,
}

/// When freed swap pages are discarded on the disk.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Discard {
    /// Never. The right choice for a volume that was mapped whole for swapping.
    #[default]
    None,
    /// The whole area once, when swap is turned on.
    Once,
    /// Each cluster of pages when its last page is freed.
    Pages,
}

/// Why a swap device could not be made, used or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused a step.
    #[error("{action}: {source}")]
    System {
        /// What was being done.
        action: String,
        /// What the system answered.
        source: io::Error,
    },
    /// Going on could deadlock the machine or lose data.
    #[error("refused: {0}")]
    Refused(#[from] refuse::Refusal),
    /// A server for this directory runs already.
    #[error("a swap server (pid {pid}) is already running in {}", dir.display())]
    Running {
        /// Its directory.
        dir: PathBuf,
        /// Its process.
        pid: u32,
    },
    /// The server of this directory was killed, and its device is still on.
    #[error("{} is still on, but its server was killed", device.display())]
    LeftOn {
        /// The swap device.
        device: PathBuf,
    },
    /// No server runs for this directory.
    #[error("no swap server is running in {}", dir.display())]
    NotRunning {
        /// The directory.
        dir: PathBuf,
    },
    /// The server takes no question, or gives no answer: it is stopped, or waits for something.
    #[error("the swap server has not answered for {:.1} s", waited.as_secs_f64())]
    Silent {
        /// How long it was waited for.
        waited: Duration,
    },
    /// `swapoff` could not bring every page back; the device still serves.
    #[error("swapoff {}: {reason}; swap stays on and is still served", device.display())]
    StillOn {
        /// The swap device.
        device: PathBuf,
        /// What the kernel said, in words.
        reason: String,
    },
    /// The server answered what this version does not understand, or reported an error.
    #[error("swap server: {0}")]
    Server(String),
    /// The caller's own preparation of the disk failed.
    #[error("{0}")]
    Prepare(Box<dyn std::error::Error + Send + Sync>),
    /// A signal, or the end of the starting command, ended the start.
    #[error("interrupted before swap was on")]
    Interrupted,
}

impl Error {
    fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;
