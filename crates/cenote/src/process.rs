//! Processes of ours: how one is told from a stranger with its number, and ended.
//!
//! A process number is reused, so a process is known by its number *and* its start
//! time in clock ticks since a boot that is named too. Signals go through a pidfd
//! that is opened before the start time is compared: whoever it names then is the
//! process that gets the signal.
//!
//! The unsafe code of this crate is here and in `signals`.
#![allow(unsafe_code, reason = "pidfd and setsid have no safe wrapper in std")]

use std::fs;
use std::io::{self, BufRead as _, BufReader, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;

use crate::folder::Folder;

/// Which process, once and for all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// Start time in clock ticks since boot, and the boot's id.
    started: String,
}

impl Identity {
    /// Of a process that runs now.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn of(pid: u32) -> Result<Self> {
        let stat = Stat::read(pid).with_context(|| format!("process {pid}"))?;
        Ok(Self {
            pid,
            started: format!("{} {}", stat.start_ticks, boot_id()?),
        })
    }

    /// Writes `pid` (the number alone, for scripts) and `started` into `folder`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(&self, folder: &Folder) -> Result<()> {
        // The number goes last: where `pid` is, `started` is whole.
        folder.write("started", &format!("{}\n", self.started))?;
        folder.write("pid", &self.number())?;
        Ok(())
    }

    /// Reads what [`Identity::save`] wrote; `None` when no process was noted, or half of it was forgotten.
    ///
    /// # Errors
    /// The files are there and make no sense, or others can have written them.
    pub fn load(folder: &Folder) -> Result<Option<Self>> {
        let Some(text) = folder.read("pid")? else {
            return Ok(None);
        };
        let Ok(pid) = text.trim().parse() else {
            let what = format!(
                "{}: {:?} is not a pid",
                folder.join("pid").display(),
                text.trim()
            );
            let hint = "end its process by hand if it runs, and remove the file";
            return Err(Failure::new(what, hint).into());
        };
        Ok(folder.read("started")?.map(|started| Self {
            pid,
            started: started.trim().to_owned(),
        }))
    }

    /// Forgets a process that has ended, and no other one that is noted meanwhile; its number.
    ///
    /// # Errors
    /// As [`Identity::load`] and [`Identity::open`]; the system refuses.
    pub fn forget_ended(folder: &Folder) -> Result<Option<u32>> {
        let Some(identity) = Self::load(folder)? else {
            return Ok(None);
        };
        if identity.open()?.is_some() {
            return Ok(None);
        }
        // `started` stays: it may be the next one's already, and says nothing alone.
        let is_forgotten = folder.remove_if("pid", &identity.number())?;
        Ok(is_forgotten.then_some(identity.pid))
    }

    /// Forgets this process, if it is the one that is noted.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget_own(folder: &Folder) -> Result<()> {
        // As above, of `started`.
        folder.remove_if("pid", &format!("{}\n", std::process::id()))?;
        Ok(())
    }

    /// What `pid` has.
    fn number(&self) -> String {
        format!("{}\n", self.pid)
    }

    /// Forgets what [`Identity::save`] wrote.
    ///
    /// # Errors
    /// A file is there and cannot be removed.
    pub fn forget(folder: &Folder) -> Result<()> {
        for name in ["pid", "started"] {
            folder.remove(name)?;
        }
        Ok(())
    }

    /// A handle on the process, if it still runs. A zombie does not, once its last thread has ended.
    ///
    /// # Errors
    /// The system refuses for another reason than the process being gone.
    pub fn open(&self) -> Result<Option<Process>> {
        let Ok(number) = libc::pid_t::try_from(self.pid) else {
            return Ok(None);
        };
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // EINVAL: a thread, or no number at all; not one that we started.
                Some(libc::ESRCH | libc::EINVAL) => Ok(None),
                _ => Err(error).with_context(|| format!("open process {}", self.pid)),
            };
        }
        let fd = i32::try_from(fd).context("pidfd number")?;
        // SAFETY: the call above returned a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let is_it = match Stat::read(self.pid) {
            Ok(stat) => self.started == format!("{} {}", stat.start_ticks, boot_id()?),
            Err(_) => false,
        };
        let process = Process { fd };
        // Not by its state: the first thread of a process that was killed is a zombie while others
        // still hold its sockets and its memory.
        let runs = is_it && !process.wait(Instant::now()).context("look at a process")?;
        Ok(runs.then_some(process))
    }
}

/// A handle that stays with its process even when the number is reused.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
}

impl Process {
    /// Sends a signal; a process that is gone meanwhile is no error.
    ///
    /// # Errors
    /// The signal is not permitted.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the descriptor is open, the info pointer may be null, flags are 0.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(()),
            _ => Err(error),
        }
    }

    /// Waits until the process has ended, at most until `deadline`; whether it has.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&self, deadline: Instant) -> io::Result<bool> {
        wait_readable(&self.fd, deadline)
    }
}

/// Waits until a descriptor is readable or closed by its peer; whether it is by `deadline`.
///
/// # Errors
/// Those of poll(2).
pub fn wait_readable(fd: &impl AsRawFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that a remainder below 1 ms does not spin.
        let timeout = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut entry = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `entry` is one valid pollfd for the length of the call.
        let count = unsafe { libc::poll(&raw mut entry, 1, timeout) };
        if count > 0 {
            return Ok(true);
        }
        if count == 0 && left <= Duration::from_millis(1) {
            return Ok(false);
        }
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Makes the child lead a session of its own: no terminal, no signal of ours reaches it. What this
/// process was told to ignore is for its own session: the child heeds it, as `kv down` ends nodes by
/// SIGINT.
pub fn detach(command: &mut Command) -> &mut Command {
    let apart = || {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: no handler is installed, and both numbers are signals that may be set.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: it touches no memory of ours.
        match unsafe { libc::setsid() } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: signal and setsid are async-signal-safe, and the closure allocates nothing.
    unsafe { command.pre_exec(apart) }
}

/// The command goes on when this program ends: no terminal, no folder that somebody may want away,
/// what it says first to be read here, and what it has to complain of in `log`.
pub fn in_background(command: &mut Command, log: fs::File) -> &mut Command {
    command
        .env_remove("CENOTE_DIR")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    detach(command)
}

/// What a child that was started [`in_background`] says first; empty when it ended before.
///
/// # Errors
/// The pipe cannot be read.
pub fn first_line(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut line)?;
    Ok(line)
}

/// Whether a process was killed or exits, and the kernel is still at taking back what it had.
pub fn is_ending(pid: u32) -> bool {
    // The shared one stays while its threads end one by one.
    let is_killed = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let pending = status.lines().filter_map(|line| {
            let mask = line
                .strip_prefix("SigPnd:")
                .or(line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        let pending = pending.fold(0, |all, mask| all | mask);
        Some(pending & 1 << (libc::SIGKILL - 1) != 0)
    };
    // One that cannot be looked at has just gone.
    Stat::read(pid).map_or(true, |stat| stat.is_exiting) || is_killed().unwrap_or(true)
}

/// Whether a process was stopped, by a signal or a debugger: it exits once it goes on.
pub fn is_stopped(pid: u32) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.is_stopped)
}

/// The fields of /proc/PID/stat that matter here.
struct Stat {
    start_ticks: u64,
    is_stopped: bool,
    /// The kernel's PF_EXITING, of the first thread.
    is_exiting: bool,
}

impl Stat {
    fn read(pid: u32) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).context("/proc/PID/stat has another form")
    }

    /// Fields 3, 9 and 22 of proc(5). The name in field 2 may hold blanks and brackets.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
        let is_stopped = matches!(fields.next()?, "T" | "t");
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        let start_ticks = fields.nth(12)?.parse().ok()?;
        Some(Self {
            start_ticks,
            is_stopped,
            is_exiting: flags & 4 != 0,
        })
    }
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).context(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> std::process::Child {
        Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_saved_identity_finds_its_process_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let mut child = sleeper();
        Identity::of(child.id()).unwrap().save(&folder).unwrap();
        let text = fs::read_to_string(directory.path().join("pid")).unwrap();
        assert_eq!(text, format!("{}\n", child.id()));

        let identity = Identity::load(&folder).unwrap().unwrap();
        let process = identity.open().unwrap().expect("it runs");
        process.signal(libc::SIGKILL).unwrap();
        assert!(
            process
                .wait(Instant::now() + Duration::from_secs(30))
                .unwrap()
        );
        // Ended but not reaped: a zombie is not running.
        assert!(identity.open().unwrap().is_none());
        child.wait().unwrap();
        assert!(identity.open().unwrap().is_none());

        Identity::forget(&folder).unwrap();
        assert_eq!(Identity::load(&folder).unwrap(), None);
    }

    #[test]
    fn half_a_note_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let mut child = sleeper();
        Identity::of(child.id()).unwrap().save(&folder).unwrap();
        folder.remove("started").unwrap();
        assert_eq!(Identity::load(&folder).unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_one_that_has_ended_is_forgotten_and_none_that_is_noted_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let mut child = sleeper();
        let identity = Identity::of(child.id()).unwrap();
        identity.save(&folder).unwrap();
        assert_eq!(Identity::forget_ended(&folder).unwrap(), None);
        assert_eq!(Identity::load(&folder).unwrap(), Some(identity.clone()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Identity::forget_ended(&folder).unwrap(), Some(identity.pid));
        assert_eq!(Identity::load(&folder).unwrap(), None);

        // Another one is noted while the first is looked at: half, and then whole.
        identity.save(&folder).unwrap();
        let mut other = sleeper();
        let next = Identity::of(other.id()).unwrap();
        folder.write("started", &next.started).unwrap();
        assert_eq!(Identity::forget_ended(&folder).unwrap(), Some(identity.pid));
        folder.write("pid", &next.number()).unwrap();
        assert_eq!(Identity::load(&folder).unwrap(), Some(next.clone()));
        assert!(!folder.remove_if("pid", &identity.number()).unwrap());
        assert_eq!(Identity::load(&folder).unwrap(), Some(next));
        assert_eq!(folder.names().unwrap(), ["pid", "started"]);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_stranger_with_the_same_number_is_not_ours() {
        let mut child = sleeper();
        let mut identity = Identity::of(child.id()).unwrap();
        identity.started = identity
            .started
            .replacen(|c: char| c.is_ascii_digit(), "x", 1);
        assert!(identity.open().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_name_with_blanks_and_brackets_does_not_shift_the_fields() {
        let mut text = String::from("7 (a) b) c) S");
        for field in 4..=52 {
            text.push_str(&format!(" {field}"));
        }
        let stat = Stat::parse(&text).unwrap();
        assert_eq!(stat.start_ticks, 22);
        assert!(!stat.is_exiting, "flags 9");
        assert!(!stat.is_stopped);
        let stopped = Stat::parse(&text.replace(") S", ") T"));
        assert!(stopped.unwrap().is_stopped);
        assert!(Stat::parse("7 (a").is_none());
    }
}
