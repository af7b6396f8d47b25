//! A command that is run within a limit of time, and of words.

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::Error;

/// Most that a command may say; what is more is nonsense.
const SAID_BYTES_MAX: usize = 64 * 1024;
/// Of a failure, how much is told.
const TOLD_BYTES_MAX: usize = 400;
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long what an ended command wrote may take to be read: a process that it left holds the pipe.
const DRAIN: Duration = Duration::from_millis(500);

/// Runs a command to its end; what it wrote to standard output.
///
/// It is ended with everything that it started in its process group, once the limit is over.
///
/// # Errors
/// `Os`, `Late`, `Failed`, or `Nonsense` where it says too much.
pub fn run(mut command: Command, what: &str, limit: Duration) -> Result<Vec<u8>, Error> {
    let deadline = Instant::now() + limit;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| Error::os(what, error))?;
    let mut group = Group(child);
    let out = reader(group.0.stdout.take(), what)?;
    let err = reader(group.0.stderr.take(), what)?;
    let status = loop {
        match group.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(None) => {
                let what = what.to_owned();
                return Err(Error::Late { what, limit });
            }
            Err(error) => return Err(Error::os(what, error)),
        }
    };
    let read = |from: &Receiver<Vec<u8>>| from.recv_timeout(DRAIN).unwrap_or_default();
    let (said, complained) = (read(&out), read(&err));
    if !status.success() {
        return Err(Error::Failed {
            what: what.to_owned(),
            status: status.to_string(),
            said: tail(&complained),
        });
    }
    if said.len() > SAID_BYTES_MAX {
        return Err(Error::Nonsense {
            what: what.to_owned(),
            said: format!("more than {SAID_BYTES_MAX} bytes"),
        });
    }
    Ok(said)
}

/// A child with all that it started, ended when this is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // Its number is its group's, and is not used again before it is waited for.
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed())
            && let Err(error) = kill_process_group(pid, Signal::KILL)
        {
            tracing::debug!(%error, "a command's group has ended by itself");
        }
        drop(self.0.wait());
    }
}

/// Reads a pipe to its end, or a little more than may be said, on a thread: a pipe that somebody holds open
/// keeps nobody.
fn reader(
    pipe: Option<impl Read + Send + 'static>,
    what: &str,
) -> Result<Receiver<Vec<u8>>, Error> {
    let pipe = pipe.expect("it is piped");
    let (sender, receiver) = channel();
    let work = move || {
        let mut said = Vec::new();
        let most = SAID_BYTES_MAX as u64 + 1;
        // A pipe that breaks has said what it said.
        drop(pipe.take(most).read_to_end(&mut said));
        // Nobody waits for it any more: then nobody needs it.
        drop(sender.send(said));
    };
    let thread = Builder::new().name("provider".to_owned()).spawn(work);
    thread.map_err(|error| Error::os(what, error))?;
    Ok(receiver)
}

/// The end of what was said, printable.
fn tail(said: &[u8]) -> String {
    let from = said.len().saturating_sub(TOLD_BYTES_MAX);
    let text = String::from_utf8_lossy(&said[from..]);
    text.trim().escape_debug().to_string()
}
