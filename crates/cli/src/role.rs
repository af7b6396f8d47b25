//! How the process of a command ends besides by its own return: when nobody reads what it prints any
//! more, and when one of its threads panics.

use std::any::Any;
use std::io;
use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{failure, signals, stderr};

/// What a command is to the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It asks, orders and prints. A reader that goes away ends it at once, as it does other tools.
    Prints,
    /// It has something to put in order when it ends: a volume, programs of its own, the terminal. A reader
    /// that goes away ends it without a word, and so does a panic with one, once that is done.
    Tidies,
    /// Others live on what its threads do. A panic of one takes the process with it: half of a server
    /// answers, is taken for alive, and serves nothing. Whoever is served may come and go.
    Serves,
}

impl Role {
    /// Takes the role, for the rest of the process's life. Before the first thread.
    pub fn take(self) {
        signals::heed_children();
        match self {
            Self::Prints => {
                signals::end_with_the_reader();
                hush_println();
            }
            Self::Tidies => hush_println(),
            Self::Serves => {
                let before = panic::take_hook();
                panic::set_hook(Box::new(move |panic| {
                    before(panic);
                    end_as_one(panic);
                }));
            }
        }
    }
}

/// Has a `println` that could not print say nothing itself: [`run`] says what is to be said.
fn hush_println() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if unprinted(panic.payload()).is_none() {
            before(panic);
        }
    }));
}

fn end_as_one(panic: &PanicHookInfo<'_>) -> ! {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = panic.location().map(ToString::to_string);
    let place = place.unwrap_or_default();
    stderr::say(format_args!("thread {name} panicked at {place}: exiting"));
    std::process::abort();
}

/// What a process that the missing reader's signal has ended would have left.
const ENDED_BY_THE_READER: u8 = 128 + 13;

/// Runs a command; its exit code where it ended because nobody reads standard output any more, or
/// because that takes no more, which is said here.
pub fn run<T>(command: impl FnOnce() -> T) -> Result<T, ExitCode> {
    match panic::catch_unwind(panic::AssertUnwindSafe(command)) {
        Ok(result) => Ok(result),
        Err(panic) => match unprinted(&*panic) {
            Some(_) if has_no_reader() => Err(ExitCode::from(ENDED_BY_THE_READER)),
            Some(why) => {
                let error = anyhow::anyhow!("write to standard output: {why}");
                Err(failure::report(&error, |_| None))
            }
            None => panic::resume_unwind(panic),
        },
    }
}

/// The exit code of a command that failed because nobody reads standard output any more; there is nobody
/// to tell.
pub fn ended_by_the_reader(error: &anyhow::Error) -> Option<ExitCode> {
    let is_broken = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    let is_broken = error.chain().any(is_broken);
    (is_broken && has_no_reader()).then(|| ExitCode::from(ENDED_BY_THE_READER))
}

/// Why `println` could not print, if that is what a panic is.
fn unprinted(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>()?.strip_prefix(UNPRINTED)
}

/// What `println` panics with; nothing but its words tells it from other panics.
const UNPRINTED: &str = "failed printing to stdout: ";

/// Whether standard output is a pipe or socket whose other end is closed.
fn has_no_reader() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec::try_from(Duration::ZERO).expect("nothing is short enough");
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(gone)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output, Stdio};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs one of the tests below as a process of its own.
    fn alone(test: &str) -> Output {
        let module = module_path!().split_once("::").expect("inside a crate").1;
        Command::new(std::env::current_exe().expect("our own file"))
            .args(["--ignored", "--nocapture", "--exact"])
            .arg(format!("{module}::{test}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .expect("this program again")
    }

    #[test]
    #[ignore = "ends its process; a_panic_of_any_thread_ends_a_server runs it"]
    fn panics_in_a_thread_of_a_server() {
        Role::Serves.take();
        let worker = std::thread::Builder::new().name("nbd-7".into());
        let worker = worker.spawn(|| panic!("on purpose")).expect("a thread");
        std::thread::park_timeout(PATIENCE);
        drop(worker);
    }

    #[test]
    fn a_panic_of_any_thread_ends_a_server() {
        let ended = alone("panics_in_a_thread_of_a_server");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(6), "by SIGABRT: {said}");
        assert!(said.contains("on purpose"), "{said}");
        assert!(said.contains("thread nbd-7 panicked at"), "{said}");
    }

    #[test]
    #[ignore = "ignores a signal; children_are_waited_for_where_their_signal_was_ignored runs it"]
    #[allow(unsafe_code, reason = "std ignores no signals")]
    fn waits_for_a_child() {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Role::Prints.take();
        let ended = Command::new("sh").args(["-c", "exit 7"]).status();
        assert_eq!(ended.expect("its end").code(), Some(7));
    }

    #[test]
    fn children_are_waited_for_where_their_signal_was_ignored() {
        let ended = alone("waits_for_a_child");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
    }

    #[test]
    fn other_panics_and_other_pipes_are_told() {
        let print: Box<dyn Any + Send> = Box::new(format!("{UNPRINTED}full"));
        assert_eq!(unprinted(&*print), Some("full"));
        assert!(!has_no_reader(), "somebody reads");
        let other: Box<dyn Any + Send> = Box::new("another".to_owned());
        assert_eq!(unprinted(&*other), None);
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(ended_by_the_reader(&error).is_none(), "somebody reads");
    }
}
