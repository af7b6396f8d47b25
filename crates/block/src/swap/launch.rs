//! Starting a swap server in the background, and hearing from it until swap is on.
//!
//! The command starts its own binary again with the server's arguments and its standard output as
//! a pipe; the server writes `progress`, `warning`, `error`, `left-on` or `ready` lines on it. A
//! command that is interrupted closes the pipe, which ends a server that is not ready yet.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::control::Status;
use super::server::say_line;
use super::{Error, Result};

/// What a server says while it starts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum News<'a> {
    /// How far it is.
    Progress(&'a str),
    /// A measure that the system refused.
    Warning(&'a str),
}

/// Starts `command`, the server of `dir`, in a session of its own and returns when swap is on.
/// Its errors after that go to `swap.log` in `dir`.
///
/// # Errors
/// What the server said stood in its way; it is gone by then.
pub fn start(mut command: Command, dir: &Path, mut hear: impl FnMut(News<'_>)) -> Result<Status> {
    fs::create_dir_all(dir).map_err(Error::system(format!("make {}", dir.display())))?;
    let log_path = dir.join(LOG_NAME);
    let log = OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.map_err(Error::system(format!("open {}", log_path.display())))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    // SAFETY: setsid is async-signal-safe and touches no memory; a new child leads no group, so
    // it cannot fail.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command
        .spawn()
        .map_err(Error::system("start the swap server"))?;
    let stdout = child.stdout.take().expect("the command's stdout is a pipe");
    let outcome = listen(stdout, &mut hear);
    if outcome.is_err() {
        // It ends by itself: it reported its end, or finds the pipe closed.
        child
            .wait()
            .map_err(Error::system("wait for the swap server"))?;
    }
    outcome.map_err(|error| match error {
        Error::Server(text) if text.is_empty() => Error::Server(format!(
            "it ended without a word; see {}",
            log_path.display()
        )),
        other => other,
    })
}

fn listen(stdout: impl std::io::Read, hear: &mut impl FnMut(News<'_>)) -> Result<Status> {
    let mut status = None;
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(Error::system("hear from the swap server"))?;
        let (key, value) = line.split_once(' ').unwrap_or((&line, ""));
        match (key, &mut status) {
            ("progress", None) => hear(News::Progress(value)),
            ("warning", None) => hear(News::Warning(value)),
            ("error", _) => return Err(Error::Server(value.to_owned())),
            ("left-on", _) => {
                let device = value.into();
                return Err(Error::LeftOn { device });
            }
            ("ready", None) => status = Some(Status::default()),
            ("end", Some(_)) => break,
            (key, Some(status)) => status.read_line(key, value),
            _ => {}
        }
    }
    status.ok_or_else(|| Error::Server(String::new()))
}

/// The server's end of the pipe.
pub struct Announcer {
    out: Option<File>,
    orphaned: bool,
}

impl Announcer {
    /// Speaks to the command that started this process through [`start`], on standard output;
    /// from `ready` on, standard output goes nowhere.
    #[must_use]
    pub fn to_starter() -> Self {
        // SAFETY: dup makes a new descriptor, which is ours alone.
        let out = unsafe {
            let fd = libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 3);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        };
        Self {
            out,
            orphaned: false,
        }
    }

    /// Speaks to nobody, for a server that is not started in the background.
    #[must_use]
    pub fn silent() -> Self {
        Self {
            out: None,
            orphaned: false,
        }
    }

    /// Says how far the start is.
    pub fn progress(&mut self, text: &str) {
        self.say("progress", text);
    }

    /// Says that the system refused a measure.
    pub fn warn(&mut self, text: &str) {
        tracing::warn!("{text}");
        self.say("warning", text);
    }

    /// Says what stood in the way.
    pub fn failed(&mut self, error: &Error) {
        match error {
            // Its remedy is another than that of a server that failed.
            Error::LeftOn { device } => self.say("left-on", &device.to_string_lossy()),
            error => self.say("error", &error.to_string()),
        }
    }

    /// Says that swap is on, and is silent from then on; false when nobody heard it.
    pub(super) fn done(&mut self, status: &Status) -> bool {
        let mut lines = String::from("ready\n");
        status.write_to(&mut lines);
        lines.push_str("end");
        let Some(mut out) = self.out.take() else {
            return true;
        };
        let heard = lines.lines().all(|line| {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            say_line(&mut out, key, value)
        });
        // Without it the pipe stays open, and whoever reads it sees its end when this process ends.
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            // SAFETY: both descriptors are open; standard output has no owner in Rust's sense.
            unsafe { libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO) };
        }
        heard
    }

    /// Whether the starting command is gone.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    fn say(&mut self, key: &str, value: &str) {
        if let Some(out) = &mut self.out
            && !say_line(out, key, value)
        {
            self.orphaned = true;
        }
    }
}

const LOG_NAME: &str = "swap.log";

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_device_that_a_killed_server_left_on_is_heard_of_as_such() {
        let (heard, said) = io::pipe().expect("a pipe");
        let mut announcer = Announcer {
            out: Some(File::from(OwnedFd::from(said))),
            orphaned: false,
        };
        let device = PathBuf::from("/dev/loop0");
        announcer.failed(&Error::LeftOn { device });
        drop(announcer);
        let error = listen(heard, &mut |_| ()).expect_err("it failed");
        assert!(matches!(error, Error::LeftOn { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "/dev/loop0 is still on, but its server was killed"
        );
    }
}
