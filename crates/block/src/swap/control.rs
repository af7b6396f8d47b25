//! How another process asks a swap server for its state or its end.
//!
//! The server listens on `swap.sock` in its directory and holds a lock on `swap.lock` as long as
//! it lives. A request is one line, `status` or `off`; the answer is `key value` lines and an
//! empty line. `progress` lines may come before them. `swap.state` names the device, for the case
//! that the server was killed: whoever then asks for its end does what is left to do.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::area::PAGE_BYTES;
use super::{Error, OffReport, Result, area, device};
use crate::unix::connect_within;

/// What a swap server reports of itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// The swap device.
    pub device: PathBuf,
    /// How the kernel's requests come: `nbd`, `io_uring` or `/dev/fuse`; empty from an older server.
    pub transport: String,
    /// The serving process.
    pub pid: u32,
    /// Size of the device.
    pub size_bytes: u64,
    /// Bytes swapped out now.
    pub used_bytes: u64,
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Pages that cannot be read.
    pub unreadable_pages: u64,
    /// Times that every page was reclaimed by itself.
    pub reclaims: u64,
    /// Bytes that did.
    pub reclaimed_bytes: u64,
    /// Times that memory got short meanwhile, or somebody wanted the server, and the rest stayed.
    pub reclaims_cut: u64,
}

impl Status {
    /// Appends `key value` lines.
    pub(super) fn write_to(&self, out: &mut String) {
        let numbers = [
            ("pid", u64::from(self.pid)),
            ("size_bytes", self.size_bytes),
            ("used_bytes", self.used_bytes),
            ("reads", self.reads),
            ("writes", self.writes),
            ("read_bytes", self.read_bytes),
            ("written_bytes", self.written_bytes),
            ("errors", self.errors),
            ("unreadable_pages", self.unreadable_pages),
            ("homecomings", self.reclaims),
            ("home_bytes", self.reclaimed_bytes),
            ("homecomings_cut", self.reclaims_cut),
        ];
        out.push_str(&format!("device {}\n", self.device.display()));
        out.push_str(&format!("transport {}\n", self.transport));
        for (key, value) in numbers {
            out.push_str(&format!("{key} {value}\n"));
        }
    }

    /// Takes a `key value` line in; unknown keys are a newer server's and are skipped.
    pub(super) fn read_line(&mut self, key: &str, value: &str) {
        let number = value.parse().unwrap_or(0);
        match key {
            "device" => self.device = value.into(),
            "transport" => self.transport = value.to_owned(),
            "pid" => self.pid = u32::try_from(number).unwrap_or(0),
            "size_bytes" => self.size_bytes = number,
            "used_bytes" => self.used_bytes = number,
            "reads" => self.reads = number,
            "writes" => self.writes = number,
            "read_bytes" => self.read_bytes = number,
            "written_bytes" => self.written_bytes = number,
            "errors" => self.errors = number,
            "unreadable_pages" => self.unreadable_pages = number,
            "homecomings" => self.reclaims = number,
            "home_bytes" => self.reclaimed_bytes = number,
            "homecomings_cut" => self.reclaims_cut = number,
            _ => {}
        }
    }
}

/// The state of the server in `dir`, which has a few seconds to say it.
///
/// # Errors
/// As [`status_within`].
pub fn status(dir: &Path) -> Result<Status> {
    status_within(dir, ANSWER_LIMIT)
}

/// The state of the server in `dir`, which has `limit` to say it.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::Silent`], or what became of the conversation.
pub fn status_within(dir: &Path, limit: Duration) -> Result<Status> {
    let mut status = Status::default();
    ask(dir, "status", Some(limit), |key, value| {
        status.read_line(key, value);
        Ok(())
    })?;
    Ok(status)
}

/// Turns swap off, ends the server in `dir` and waits until it is gone. `watch(bytes left)` is
/// called while pages come back. The report says whether pages were lost; callers make that their
/// own failure.
///
/// Where the server was killed, its pages are lost; swap is turned off nevertheless, so that the
/// machine does not wait for them for ever, and the report counts them all.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::StillOn`], or what became of the conversation.
pub fn off(dir: &Path, mut watch: impl FnMut(u64)) -> Result<OffReport> {
    let mut used_bytes = 0;
    let mut unreadable_pages = None;
    // Pages come back for as long as that takes.
    let asked = ask(dir, "off", None, |key, value| {
        let number = value.parse().unwrap_or(0);
        match key {
            "progress" => watch(number),
            "used_bytes" => used_bytes = number,
            "unreadable_pages" => unreadable_pages = Some(number),
            "still_on" => {
                let (device, reason) = value.split_once(' ').unwrap_or((value, ""));
                return Err(Error::StillOn {
                    device: device.into(),
                    reason: reason.to_owned(),
                });
            }
            _ => {}
        }
        Ok(())
    });
    match asked {
        Err(Error::NotRunning { .. }) => return off_without_server(dir, watch),
        other => other?,
    }
    let unreadable_pages = unreadable_pages
        .ok_or_else(|| Error::Server("it ended without saying what became of swap".to_owned()))?;
    // The server holds its lock until the device is gone.
    Lock::wait(dir)?;
    Ok(OffReport {
        used_bytes,
        unreadable_pages,
    })
}

/// Ends what a killed server left behind.
fn off_without_server(dir: &Path, watch: impl FnMut(u64)) -> Result<OffReport> {
    let not_running = || Error::NotRunning {
        dir: dir.to_owned(),
    };
    let _lock = Lock::take(dir)?;
    let device = left_behind(dir).ok_or_else(not_running)?;
    let used_bytes = area::used_bytes(&device).unwrap_or(0);
    area::off(&device, watch).map_err(|error| Error::StillOn {
        device,
        reason: error.to_string(),
    })?;
    remove_files(dir);
    Ok(OffReport {
        used_bytes,
        unreadable_pages: used_bytes / PAGE_BYTES as u64,
    })
}

/// The swap device that a killed server of `dir` left on, if it is the same device still.
pub(super) fn left_behind(dir: &Path) -> Option<PathBuf> {
    let state = match fs::read_to_string(dir.join(STATE_NAME)) {
        Ok(state) => state,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, "read which swap device was left on");
            }
            return None;
        }
    };
    let (device, label) = state.trim_end().split_once(' ')?;
    let device = PathBuf::from(device);
    let same = device::label_of(&device).is_ok_and(|found| found == label);
    (same && area::used_bytes(&device).is_some()).then_some(device)
}

/// Notes the device for the case that this process is killed.
pub(super) fn write_state(dir: &Path, device: &Path, label: &str) -> io::Result<()> {
    fs::write(
        dir.join(STATE_NAME),
        format!("{} {label}\n", device.display()),
    )
}

/// Removes what a server keeps in its directory, but its log.
pub(super) fn remove_files(dir: &Path) {
    for name in [SOCKET_NAME, STATE_NAME, LOCK_NAME] {
        if let Err(error) = fs::remove_file(dir.join(name))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, name, "remove a swap server's file");
        }
    }
}

/// Listens in `dir`. The lock is held, so a socket there is a leftover.
pub(super) fn listen(dir: &Path) -> Result<UnixListener> {
    let path = dir.join(SOCKET_NAME);
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(Error::system(format!("remove {}", path.display()))(error));
    }
    UnixListener::bind(&path).map_err(Error::system(format!("listen on {}", path.display())))
}

/// Sends a request and hands each line of the answer to `take`; all of them come within `limit`.
fn ask(
    dir: &Path,
    request: &str,
    limit: Option<Duration>,
    mut take: impl FnMut(&str, &str) -> Result<()>,
) -> Result<()> {
    let began = Instant::now();
    let failed = |action| {
        move |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent {
                waited: began.elapsed(),
            },
            _ => Error::system(action)(error),
        }
    };
    let connected = connect_within(&dir.join(SOCKET_NAME), limit.unwrap_or(ANSWER_LIMIT));
    let mut stream = connected.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => failed("reach the swap server")(error),
        _ => Error::NotRunning {
            dir: dir.to_owned(),
        },
    })?;
    let asked = stream
        .set_write_timeout(limit)
        .and_then(|()| writeln!(stream, "{request}"));
    asked.map_err(failed("ask the swap server"))?;
    let deadline = limit.map(|limit| began + limit);
    for line in BufReader::new(Until { stream, deadline }).lines() {
        let line = line.map_err(failed("hear from the swap server"))?;
        if line.is_empty() {
            return Ok(());
        }
        let (key, value) = line.split_once(' ').unwrap_or((&line, ""));
        if key == "error" {
            return Err(Error::Server(value.to_owned()));
        }
        take(key, value)?;
    }
    Err(Error::Server("it went away before it answered".to_owned()))
}

/// What comes until a deadline, of one who may send a byte now and then for ever.
struct Until {
    stream: UnixStream,
    deadline: Option<Instant>,
}

impl Read for Until {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(into)
    }
}

/// How long a server may take to say how it is; it shares a machine that is short of memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The lock that a server holds while it lives.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of `dir`, and notes our pid in it.
    pub(super) fn take(dir: &Path) -> Result<Self> {
        loop {
            // The file may go with its server after it was opened: then there is another to take.
            if let Some(lock) = Self::take_file(Self::open(dir)?, dir)? {
                return Ok(lock);
            }
        }
    }

    /// Takes the lock that a file is; `None` if it is not the one of `dir` any more.
    fn take_file(file: File, dir: &Path) -> Result<Option<Self>> {
        // SAFETY: flock on an open file; no memory is involved.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            // Taken a moment ago, it may not name its holder yet.
            let pid = fs::read_to_string(dir.join(LOCK_NAME)).unwrap_or_default();
            return Err(Error::Running {
                dir: dir.to_owned(),
                pid: pid.trim().parse().unwrap_or(0),
            });
        }
        if !is_lock_of(&file, dir)? {
            return Ok(None);
        }
        file.set_len(0)
            .and_then(|()| writeln!(&file, "{}", std::process::id()))
            .map_err(Error::system("write the swap server's lock"))?;
        Ok(Some(Self { _file: file }))
    }

    /// Waits until whoever holds the lock is gone.
    fn wait(dir: &Path) -> Result<()> {
        Self::wait_for_file(&Self::open(dir)?, dir)
    }

    /// Waits until whoever holds this file's lock is gone, and removes what it left behind.
    fn wait_for_file(file: &File, dir: &Path) -> Result<()> {
        // SAFETY: flock on an open file; no memory is involved.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(Error::system("wait for the swap server's end")(error));
            }
        }
        // A server that removed its lock left nothing: what is there may be the next one's.
        if is_lock_of(file, dir)? {
            remove_files(dir);
        }
        Ok(())
    }

    fn open(dir: &Path) -> Result<File> {
        let path = dir.join(LOCK_NAME);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NotRunning {
                dir: dir.to_owned(),
            },
            _ => Error::system(format!("open {}", path.display()))(error),
        })
    }
}

/// Whether an open file is the lock file that `dir` has now.
fn is_lock_of(file: &File, dir: &Path) -> Result<bool> {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let look = Error::system("look at the swap server's lock");
    let opened = file.metadata().map(identity);
    match fs::metadata(dir.join(LOCK_NAME)).map(identity) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        current => current
            .and_then(|current| Ok(current == opened?))
            .map_err(look),
    }
}

/// One conversation, as the server has it.
pub(super) struct Conversation {
    stream: UnixStream,
}

impl Conversation {
    /// Reads the request; a client that says nothing for long is sent away.
    pub(super) fn open(stream: UnixStream) -> io::Result<(Self, String)> {
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let mut line = String::new();
        let mut reader = BufReader::new(io::Read::take(&stream, REQUEST_BYTES_MAX));
        reader.read_line(&mut line)?;
        line.truncate(line.trim_end().len());
        Ok((Self { stream }, line))
    }

    /// Sends lines; the client may be gone, which is its own affair.
    pub(super) fn say(&mut self, lines: &str) {
        if let Err(error) = self.stream.write_all(lines.as_bytes()) {
            tracing::debug!(%error, "answer a swap client");
        }
    }
}

const SOCKET_NAME: &str = "swap.sock";
const LOCK_NAME: &str = "swap.lock";
const STATE_NAME: &str = "swap.state";
/// Longest request line; arbitrary, far above `status`.
const REQUEST_BYTES_MAX: u64 = 256;
/// How long a client may take to say what it wants; arbitrary.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_for_a_server_leaves_the_files_of_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let ended = Lock::open(dir).unwrap();
        remove_files(dir);
        let _next = Lock::take(dir).unwrap();
        fs::write(dir.join(STATE_NAME), "/dev/loop1 label").unwrap();
        Lock::wait_for_file(&ended, dir).unwrap();
        assert!(dir.join(STATE_NAME).exists() && dir.join(LOCK_NAME).exists());
    }

    #[test]
    fn what_a_killed_server_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        drop(Lock::take(dir).unwrap());
        fs::write(dir.join(STATE_NAME), "/dev/loop1 label").unwrap();
        Lock::wait(dir).unwrap();
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_is_no_longer_there_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let gone = Lock::open(dir).unwrap();
        remove_files(dir);
        assert!(Lock::take_file(gone, dir).unwrap().is_none());
        let _held = Lock::take(dir).unwrap();
        assert!(matches!(Lock::take(dir), Err(Error::Running { .. })));
    }
}
