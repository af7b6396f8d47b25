//! The process that holds a swap device, from its start to its end.
//!
//! One thread, the first, does all of this; the device's threads serve the pages. It ends when it
//! is asked to ([`super::control`]) or gets SIGINT or SIGTERM, and only when every page is back:
//! a `swapoff` that fails for lack of memory leaves it serving. SIGINT stays ignored where whoever
//! started this process ignored it, as the `&` of a script does.

use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::control::{Conversation, Lock, Status};
use super::launch::Announcer;
use super::reclaim::Reclaim;
use super::{Device, Error, OffReport, Options, Result, control, harden, refuse};
use crate::disk::Disk;

/// What `open` in [`run`] may fail with.
pub type PrepareError = Box<dyn std::error::Error + Send + Sync>;

/// Turns swap on over the disk that `open` makes, serves it until its end, and returns what the
/// last `swapoff` came to. Call it from the first thread, before any other is started.
///
/// `open` makes the disk and maps all of it, and says how far it is through the function that it
/// is given; with hosts on this machine it ends with [`refuse::check_hosts_locked`]. It may start
/// threads. `ready` tells the starting command; see [`super::launch`].
///
/// # Errors
/// Whatever stands in the way of turning swap on; everything done is undone by then.
pub fn run(
    options: Options,
    mut ready: Announcer,
    open: impl FnOnce(&mut dyn FnMut(&str)) -> Result<Arc<dyn Disk>, PrepareError>,
) -> Result<OffReport> {
    let outcome = start(&options, &mut ready, open);
    match outcome {
        Ok(server) => server.serve(),
        Err(error) => {
            ready.failed(&error);
            Err(error)
        }
    }
}

/// A server whose swap is on. Fields are dropped in this order.
struct Server {
    device: Device,
    // The disk outlives the device's threads.
    disk: Arc<dyn Disk>,
    reclaim: Option<Reclaim>,
    listener: UnixListener,
    signals: Signals,
    _files: Files,
    _lock: Lock,
}

fn start(
    options: &Options,
    ready: &mut Announcer,
    open: impl FnOnce(&mut dyn FnMut(&str)) -> Result<Arc<dyn Disk>, PrepareError>,
) -> Result<Server> {
    // Before the first thread: both are inherited, not applied to threads that exist.
    let signals = Signals::block().map_err(Error::system("block signals"))?;
    refuse::check_own_cgroup()?;
    for warning in harden::harden()? {
        ready.warn(&warning.text);
    }
    std::fs::create_dir_all(&options.dir)
        .map_err(Error::system(format!("make {}", options.dir.display())))?;
    let lock = Lock::take(&options.dir)?;
    if let Some(device) = control::left_behind(&options.dir) {
        return Err(Error::LeftOn { device });
    }
    let files = Files {
        dir: options.dir.clone(),
    };
    let listener = control::listen(&options.dir)?;
    let disk = open(&mut |text| ready.progress(text)).map_err(Error::Prepare)?;
    let mut device = Device::serve(&disk, options.clone())?;
    if ready.is_orphaned() || signals.is_pending() {
        return Err(Error::Interrupted);
    }
    control::write_state(&options.dir, device.path(), &device.label())
        .map_err(Error::system("note the swap device"))?;
    device.swap_on()?;
    let server = Server {
        device,
        disk,
        reclaim: options.reclaim.then(Reclaim::default),
        listener,
        signals,
        _files: files,
        _lock: lock,
    };
    // A starting command that is gone by now wanted no swap; `server` ends with this scope.
    if !ready.done(&server.status()) {
        return Err(Error::Interrupted);
    }
    Ok(server)
}

impl Server {
    fn serve(mut self) -> Result<OffReport> {
        loop {
            let arrived = self.wait().map_err(Error::system("wait for a request"))?;
            if let Some(reclaim) = &mut self.reclaim {
                let signals = &self.signals;
                reclaim.tend(&mut self.device, &*self.disk, || signals.are_waiting());
            }
            if arrived == Arrived::Signal {
                match self.device.swap_off(|_| ()) {
                    Ok(report) => return Ok(report),
                    Err(error) => tracing::error!(%error, "end on a signal"),
                }
                continue;
            }
            if arrived == Arrived::Nothing {
                continue;
            }
            let Ok((stream, _)) = self.listener.accept() else {
                continue;
            };
            let (mut client, request) = match Conversation::open(stream) {
                Ok(opened) => opened,
                Err(error) => {
                    tracing::debug!(%error, "hear a swap client out");
                    continue;
                }
            };
            match request.as_str() {
                "status" => {
                    let mut answer = String::new();
                    self.status().write_to(&mut answer);
                    answer.push('\n');
                    client.say(&answer);
                }
                "off" => {
                    if let Some(report) = self.off(&mut client) {
                        return Ok(report);
                    }
                }
                _ => client.say("error unknown request\n\n"),
            }
        }
    }

    /// `Some` when swap is off.
    fn off(&mut self, client: &mut Conversation) -> Option<OffReport> {
        let outcome = self
            .device
            .swap_off(|left_bytes| client.say(&format!("progress {left_bytes}\n")));
        match outcome {
            Ok(report) => {
                client.say(&format!(
                    "used_bytes {}\nunreadable_pages {}\n\n",
                    report.used_bytes, report.unreadable_pages
                ));
                Some(report)
            }
            Err(Error::StillOn { device, reason }) => {
                client.say(&format!("still_on {} {reason}\n\n", device.display()));
                None
            }
            Err(error) => {
                client.say(&format!("error {error}\n\n"));
                None
            }
        }
    }

    fn status(&self) -> Status {
        let counters = self.device.counters();
        Status {
            device: self.device.path().to_owned(),
            transport: self.device.transport().to_owned(),
            pid: std::process::id(),
            size_bytes: self.device.size_bytes(),
            used_bytes: self.device.used_bytes().unwrap_or(0),
            reads: counters.reads.load(Ordering::Relaxed),
            writes: counters.writes.load(Ordering::Relaxed),
            read_bytes: counters.read_bytes.load(Ordering::Relaxed),
            written_bytes: counters.written_bytes.load(Ordering::Relaxed),
            errors: counters.errors.load(Ordering::Relaxed),
            unreadable_pages: counters.unreadable_pages(),
            ..self.reclaim.as_ref().map(Reclaim::told).unwrap_or_default()
        }
    }

    /// Waits for a signal or a client; with pages that may be reclaimed, not for long.
    fn wait(&self) -> io::Result<Arrived> {
        let timeout_ms = if self.reclaim.is_some() {
            RECLAIM_LOOK_MS
        } else {
            -1
        };
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut entries = [
            entry(self.signals.fd.as_raw_fd()),
            entry(self.listener.as_raw_fd()),
        ];
        // SAFETY: `entries` is a live array of two entries for the call.
        if unsafe { libc::poll(entries.as_mut_ptr(), 2, timeout_ms) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(if entries[0].revents != 0 && self.signals.take() {
            Arrived::Signal
        } else if entries[1].revents != 0 {
            Arrived::Client
        } else {
            Arrived::Nothing
        })
    }
}

/// What a wait ended with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Arrived {
    Signal,
    Client,
    Nothing,
}

/// Between two looks at what the machine has to spare; hosts say it once a second.
const RECLAIM_LOOK_MS: libc::c_int = 500;

/// Removes the server's files when it ends.
struct Files {
    dir: std::path::PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        control::remove_files(&self.dir);
    }
}

/// SIGTERM, and SIGINT unless it is ignored, as a descriptor; blocked in this thread and those it
/// starts.
struct Signals {
    fd: OwnedFd,
}

impl Signals {
    fn block() -> io::Result<Self> {
        // SAFETY: `set` is initialised by sigemptyset before it is read; the calls write nothing
        // else, and the descriptor is new and ours.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            // Linux keeps a blocked signal for the descriptor, also one that is ignored.
            if !is_ignored(libc::SIGINT) {
                libc::sigaddset(&raw mut set, libc::SIGINT);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let fd = libc::signalfd(-1, &raw const set, flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                fd: OwnedFd::from_raw_fd(fd),
            })
        }
    }

    /// Takes one signal, if there is one.
    fn take(&self) -> bool {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: `info` is a live buffer of the length given.
        let len = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
        len > 0
    }

    fn is_pending(&self) -> bool {
        self.take()
    }

    /// Whether there is one to take.
    fn are_waiting(&self) -> bool {
        let mut entry = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `entry` is one live entry for the call.
        unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
    }
}

/// Whether whoever started this process had it ignore the signal: nothing here does.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is set, and `action` is writable.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the kernel filled it; zeros are right for all of its fields besides.
    let action = unsafe { action.assume_init() };
    failed == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Writes one line and flushes it; false when nobody reads any more.
pub(super) fn say_line(out: &mut impl Write, key: &str, value: &str) -> bool {
    let value = value.replace('\n', " ");
    writeln!(out, "{key} {value}")
        .and_then(|()| out.flush())
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends this thread a signal.
    fn raise(signal: libc::c_int) {
        // SAFETY: it takes a number alone.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn an_interrupt_that_is_ignored_ends_nothing() {
        // SAFETY: no handler is installed; no other test of this process has a say in this signal.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        let signals = Signals::block().unwrap();
        raise(libc::SIGINT);
        assert!(!signals.are_waiting());
        raise(libc::SIGTERM);
        assert!(signals.take());
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    }
}
