//! A command that is run within a limit of time, and of words.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};

use super::Error;

/// Most that a command may say; what is more is nonsense.
const SAID_BYTES_MAX: usize = 64 * 1024;
/// Of a failure, how much is told.
const TOLD_BYTES_MAX: usize = 400;
/// Reads of a pipe in a row: more than a pipe holds.
const DRAINED_MAX: usize = 64;
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A command that does not outlive its limit, also when who runs it is killed: `timeout`, which leads the
/// process group, ends it then.
pub fn command(program: &str, limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    let seconds = format!("{:.3}", limit.as_secs_f64());
    command.args(["-s", "KILL", &seconds, program]);
    command
}

/// Runs a [`command`] to its end; what it wrote to standard output.
///
/// Where it fails, or the limit is over, it is ended with everything that it started in its process group.
/// What it leaves running when it succeeds stays; who of that holds its output open keeps nobody.
///
/// # Errors
/// `Os`, `Late`, `Failed`, or `Nonsense` where it says too much.
pub fn run(mut command: Command, what: &str, limit: Duration) -> Result<Vec<u8>, Error> {
    let deadline = Instant::now() + limit;
    let os = |error: std::io::Error| Error::os(what, error);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(os)?;
    let mut group = Group(child);
    let mut out = Pipe::new(group.0.stdout.take(), Kept::Beginning).map_err(os)?;
    let mut err = Pipe::new(group.0.stderr.take(), Kept::End).map_err(os)?;
    let late = || {
        let what = what.to_owned();
        Error::Late { what, limit }
    };
    let status = loop {
        out.drain();
        err.drain();
        match group.ended().map_err(os)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(late()),
            None => wait(&out, &err).map_err(os)?,
        }
    };
    // All that it wrote itself is there by now.
    out.drain();
    err.drain();
    if status.exit_status() != Some(0) {
        if Instant::now() >= deadline {
            return Err(late());
        }
        return Err(Error::Failed {
            what: what.to_owned(),
            status: shown(&status),
            said: tail(&err.said),
        });
    }
    group.leave().map_err(os)?;
    if out.said.len() > SAID_BYTES_MAX {
        return Err(Error::Nonsense {
            what: what.to_owned(),
            said: format!("more than {SAID_BYTES_MAX} bytes"),
        });
    }
    Ok(out.said)
}

fn shown(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Until one of them says more, for a moment.
fn wait<A: AsFd, B: AsFd>(out: &Pipe<A>, err: &Pipe<B>) -> std::io::Result<()> {
    let out = out.from.as_ref().map(AsFd::as_fd);
    let err = err.from.as_ref().map(AsFd::as_fd);
    let fds = out.into_iter().chain(err);
    let mut fds: Vec<PollFd<'_>> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(LOOK).expect("milliseconds");
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A child with all that it started, ended when this is dropped.
struct Group(Child);

impl Group {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed()).expect("a child has a number")
    }

    /// How it ended, if it has. Its number is its group's, and nobody else's before it is waited for.
    fn ended(&self) -> std::io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.pid()), options)?)
    }

    /// It has ended: what it started goes on.
    fn leave(mut self) -> std::io::Result<()> {
        self.0.wait()?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = kill_process_group(self.pid(), Signal::KILL) {
            tracing::debug!(%error, "a command's group has ended by itself");
        }
        drop(self.0.wait());
    }
}

/// What is kept of what is said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kept {
    /// A little more than may be said. Who says more has nobody to say it to, and is killed.
    Beginning,
    /// As much as is told of it: logs may be long.
    End,
}

/// One end of a pipe, read without waiting.
struct Pipe<R> {
    from: Option<R>,
    said: Vec<u8>,
    kept: Kept,
}

impl<R: Read + AsFd> Pipe<R> {
    fn new(from: Option<R>, kept: Kept) -> std::io::Result<Self> {
        let from = from.expect("it is piped");
        fcntl_setfl(&from, fcntl_getfl(&from)? | OFlags::NONBLOCK)?;
        Ok(Self {
            from: Some(from),
            said: Vec::new(),
            kept,
        })
    }

    /// Takes what is there, or a part of it: who says more all the while is looked at in between.
    fn drain(&mut self) {
        let mut part = [0; 4096];
        for _ in 0..DRAINED_MAX {
            let Some(from) = &mut self.from else { return };
            match from.read(&mut part) {
                Ok(count) if count > 0 && self.kept == Kept::End => {
                    self.said.extend_from_slice(&part[..count]);
                    let old = self.said.len().saturating_sub(TOLD_BYTES_MAX);
                    self.said.drain(..old);
                }
                Ok(count) if count > 0 && self.said.len() <= SAID_BYTES_MAX => {
                    self.said.extend_from_slice(&part[..count]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A pipe that breaks has said what it said.
                Ok(_) | Err(_) => self.from = None,
            }
        }
    }
}

/// The end of what was said, printable.
fn tail(said: &[u8]) -> String {
    let from = said.len().saturating_sub(TOLD_BYTES_MAX);
    let text = String::from_utf8_lossy(&said[from..]);
    text.trim().escape_debug().to_string()
}
