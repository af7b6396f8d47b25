//! A file system shown to the kernel in a directory, from the mount to its end.
//!
//! It ends when it is unmounted, by whomever, or when its owner asks for it ([`Mount::end`]); then
//! everything is committed. A thread commits once a second meanwhile.

mod convert;
mod device;
mod kernel;
pub mod mount_table;
mod open_directories;
mod point;
mod rings;
mod server;
pub mod session;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::{Caller, Files};
use point::MountRecord;
use server::Served;

pub use point::{MountPoint, PointError};
pub use server::threads_max;

/// A file system that the kernel shows.
pub struct Mount {
    files: Arc<Files>,
    place: MountRecord,
    has_rings: bool,
    session: Option<JoinHandle<()>>,
    committer: Option<(Sender<()>, JoinHandle<()>)>,
}

/// How it is shown.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of the volume; `mount` and `df` show it after `cenote:`.
    pub name: String,
    /// Threads that serve requests; over io_uring at least one for each processor.
    pub threads: usize,
    /// Whether other users may look in; permissions then decide what they may do.
    pub allow_other: bool,
    /// How the kernel's requests come.
    pub transport: Transport,
}

/// How the kernel's requests come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Transport {
    /// Over io_uring where the kernel has that and allows it, else over `/dev/fuse`.
    #[default]
    Auto,
    /// Over `/dev/fuse`.
    DevFuse,
}

/// Between two commits that nobody asked for; arbitrary: what a crash may take of what was not
/// synced.
const COMMIT_PERIOD: Duration = Duration::from_secs(1);
/// How long those who still use a file are waited for at the end; arbitrary.
const LAST_USERS: Duration = Duration::from_secs(5);

impl Mount {
    /// Shows `files` at `point`; `ended` is called when it is no longer shown.
    ///
    /// # Errors
    /// The system refuses to mount, or to start threads.
    pub fn start(
        files: Files,
        point: &MountPoint,
        options: &Options,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let files = Arc::new(files);
        let point = point.path().to_owned();
        let (stop, stopped) = channel();
        let committed = Arc::clone(&files);
        let commit = move || {
            // Without it nothing would become durable any more, and nobody would say so.
            let _end = server::EndOnPanic;
            commit_often(&committed, &stopped);
        };
        let committer = server::start("cenote-commit", commit)?;
        let served = Served::start(&files, &point, options)?;
        let place = MountRecord::new(point);
        let has_rings = served.has_rings();
        let session = server::start("cenote-files", move || {
            served.join();
            ended();
        })?;
        Ok(Self {
            files,
            place,
            has_rings,
            session: Some(session),
            committer: Some((stop, committer)),
        })
    }

    /// The file system.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Whether the kernel's requests come over io_uring.
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.has_rings
    }

    /// Ends it: unmounts it unless somebody has, and commits everything. Files that are still open
    /// after a while fail from then on.
    ///
    /// # Errors
    /// Not everything could be committed, or unmounted; what is left is as after a crash.
    pub fn end(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let unmounted = match session.is_finished() {
            // Its connection has ended; that does not unmount it.
            true => self.place.take_away_dead(),
            false => self.unmount(),
        };
        let patience = Instant::now() + LAST_USERS;
        while unmounted.is_ok() && !session.is_finished() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        let has_ended = session.is_finished();
        let served = match has_ended {
            true => {
                let joined = session.join();
                joined.map_err(|_| io::Error::other("the thread that ends the mount panicked"))
            }
            false => {
                tracing::warn!("programs still use the files; they fail from now on");
                Ok(())
            }
        };
        if let Some((stop, committer)) = self.committer.take() {
            drop(stop);
            if committer.join().is_err() {
                tracing::error!("the thread that commits ended by itself");
            }
        }
        // Whatever else failed: nobody commits after this.
        let closed = match has_ended {
            true => self.files.close(),
            // Files without a name may be in use still; the next mount deletes them.
            false => self.files.commit(),
        };
        closed.map_err(io::Error::other)?;
        unmounted.and(served)
    }

    /// Unmounts it where it is now, after the kernel has written its cache back.
    fn unmount(&self) -> io::Result<()> {
        let Some(path) = self.place.now() else {
            return Ok(());
        };
        // While its threads still serve.
        if let Err(error) = point::write_back(&path) {
            tracing::warn!(%error, "have the kernel write its cache back");
        }
        point::unmount(&path)
            .inspect_err(|error| tracing::error!(%error, path = %path.display(), "unmount"))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "end the mount");
        }
    }
}

/// Has the kernel let memory that this process asks for not wait for what it serves itself. Before
/// the first thread: later ones inherit it.
///
/// # Errors
/// This user may not (CAP_SYS_RESOURCE).
pub fn join_the_io_path() -> io::Result<()> {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: PR_SET_IO_FLUSHER takes integers only; the unused arguments must be zero.
    match unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The caller that this process is, now.
#[must_use]
pub fn this_process() -> Caller {
    // SAFETY: both take nothing, touch no memory and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    Caller {
        uid,
        gid,
        now: convert::now(),
    }
}

fn commit_often(files: &Files, stopped: &Receiver<()>) {
    while stopped.recv_timeout(COMMIT_PERIOD) == Err(RecvTimeoutError::Timeout) {
        files.follow_size();
        if let Err(error) = files.commit() {
            // Said where it was met; requests tell it from then on.
            tracing::debug!(%error, "commit");
        }
    }
}
