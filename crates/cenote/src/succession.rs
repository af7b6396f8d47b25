//! How a host's process passes its slabs to the next one, in one of two ways.
//!
//! - **exec**: this process becomes another program, with the same number. The descriptors stay
//!   open across it; one of them, named by a variable, is a memfd that lists the others and holds
//!   the state.
//! - **systemd's store**: the descriptors are given to the service manager before this process
//!   ends, and the next one gets them from it (`service`), each by its name.
//!
//! Either way the next process starts with an [`Inheritance`]. Invariant: nothing is given up
//! here before the other side has it; a failed exec leaves this process as it was, and the manager
//! keeps what it passed until the next process serves it.
#![allow(
    unsafe_code,
    reason = "exec and descriptor flags have no safe wrapper in std"
)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cli::failure::Failure;
use cenote_cli::signals;
use cenote_host::{Daemon, Inheritance};

use crate::service;

/// Names the descriptor of the memfd in the environment of the next process.
const VARIABLE: &str = "CENOTE_HANDOVER_FD";
/// Names the file with a state that a program is asked to look at, and nothing else.
const PROBE: &str = "CENOTE_HANDOVER_PROBE";
/// Names of the descriptors in systemd's store.
const STORED_STATE: &str = "cenote-state";
const STORED_SLAB: &str = "cenote-slab-";
/// As many as a service manager can pass: their names are one variable, `LISTEN_FDNAMES`, which may
/// have 128 KiB, and above it does not start the service at all. The unit says the same.
const STORED_MAX: usize = 7680;
/// Most bytes of a state: a million slabs have less.
const STATE_BYTES_MAX: u64 = 128 << 20;

/// How long the program that is installed may take to say whether it understands a state. Nobody
/// is served meanwhile; it takes milliseconds.
const ANSWER: Duration = Duration::from_secs(5);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// This program as it was started, so that a file that has been replaced since is found.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("find this program's file")
}

/// Names under which the service manager keeps what it passed to this process.
pub struct Kept(Vec<String>);

impl Kept {
    /// Has the manager drop all of it: this process has taken it over, or nobody can. Until then
    /// the process that follows one that did not start gets it again.
    pub fn forget(&mut self) {
        for name in self.0.drain(..) {
            service::forget(&name);
        }
    }
}

/// What the process before this one left, empty when there was none; and what of it the service
/// manager keeps.
///
/// # Errors
/// It left something that cannot be used. What can be is closed; the memory is gone unless the
/// manager keeps it.
pub fn inheritance() -> (Result<Inheritance>, Kept) {
    if let Some(number) = std::env::var_os(VARIABLE) {
        let inheritance = after_exec(&number).context("take over from the previous process");
        return (inheritance, Kept(Vec::new()));
    }
    let stored = service::stored();
    let names = stored.iter().map(|(name, _)| name.clone()).collect();
    (from_store(stored), Kept(names))
}

/// Whether this program was started only to say if it could take over; the state to look at then.
///
/// # Errors
/// It does not understand the state.
pub fn probed() -> Option<Result<Vec<u8>>> {
    let path = std::env::var_os(PROBE)?;
    let state = File::open(path).map_err(anyhow::Error::from);
    Some(state.and_then(read_state).and_then(|state| {
        if Inheritance::is_understood(&state) {
            Ok(state)
        } else {
            bail!("this version does not understand the state of the host that runs")
        }
    }))
}

/// Becomes `program`, with this process's arguments and the daemon's slabs. It returns only when it does
/// not: `Ok` when `stop` was set meanwhile.
///
/// # Errors
/// The program cannot be run or does not understand the state; nothing has changed then.
pub fn exec(program: &Path, daemon: &Daemon, stop: &AtomicBool) -> Result<()> {
    let (state, memory) = daemon.handover();
    ask_first(program, &state)?;
    let mut file = File::from(memfd("cenote-handover")?);
    file.write_all(&u32::try_from(memory.len())?.to_le_bytes())?;
    for fd in &memory {
        file.write_all(&fd.as_raw_fd().to_le_bytes())?;
    }
    file.write_all(&state)?;
    let number = file.as_raw_fd().to_string();
    let mut kept = memory;
    kept.push(file.as_fd());
    let open = Open::keep(kept)?;
    // A signal that comes from now on stays pending for the next process. One before is known here alone.
    let _held = signals::hold();
    if stop.load(Ordering::SeqCst) {
        return Ok(());
    }
    let error = replace(program, &number);
    drop(open);
    Err(error).with_context(|| format!("run {}", program.display()))
}

/// Refuses more slabs than the service manager would keep.
///
/// # Errors
/// It would not.
pub fn check_store(slabs: usize) -> Result<(), Failure> {
    check_store_of(service::stored_max(), slabs)
}

fn check_store_of(most: Option<usize>, slabs: usize) -> Result<(), Failure> {
    let needed = slabs.saturating_add(1);
    let most = most.unwrap_or(STORED_MAX).min(STORED_MAX);
    if needed <= most {
        return Ok(());
    }
    Err(Failure::new(
        format!(
            "to keep {slabs} slabs takes {needed} descriptors, but the service manager keeps at \
             most {most}"
        ),
        match needed <= STORED_MAX {
            true => format!("FileDescriptorStoreMax={needed} of the service, or larger slabs"),
            false => "use larger slabs, or do not keep them".to_owned(),
        },
    ))
}

/// Leaves the daemon's slabs with the service manager, for the next process of the service. The
/// caller ends without taking them back.
///
/// # Errors
/// The manager does not take them, or not so many.
pub fn store(daemon: &Daemon) -> Result<usize> {
    let (state, memory) = daemon.handover();
    check_store(memory.len())?;
    let mut paper = File::from(memfd("cenote-handover")?);
    paper.write_all(&state)?;
    // First: if the manager drops what comes last, the next process finds that there should be more.
    service::store(STORED_STATE, paper.as_fd())?;
    for (index, fd) in memory.iter().enumerate() {
        service::store(&format!("{STORED_SLAB}{index}"), *fd)?;
    }
    Ok(memory.len())
}

/// Has a program say whether it understands the state and would start with these arguments, before
/// this one is gone.
fn ask_first(program: &Path, state: &[u8]) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new().context("write the state for a look at it")?;
    file.write_all(state)?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(PROBE, file.path())
        .env_remove(VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("run {}", program.display()))?;
    let deadline = Instant::now() + ANSWER;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(LOOK),
        }
    };
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    if status.is_none_or(|status| !status.success()) {
        let program = program.display();
        bail!("{program} cannot take over from this version; its message is above");
    }
    Ok(())
}

fn after_exec(number: &OsStr) -> Result<Inheritance> {
    let fd = number.to_str().and_then(|text| text.parse().ok());
    let fd: RawFd = fd.with_context(|| format!("{VARIABLE} is not a number"))?;
    let mut paper = File::from(take(fd)?);
    paper.rewind()?;
    let mut count = [0; 4];
    paper.read_exact(&mut count)?;
    let mut memory = Vec::new();
    for _ in 0..u32::from_le_bytes(count) {
        let mut number = [0; 4];
        paper.read_exact(&mut number)?;
        memory.push(take(RawFd::from_le_bytes(number))?);
    }
    let mut state = Vec::new();
    paper.take(STATE_BYTES_MAX).read_to_end(&mut state)?;
    Ok(Inheritance { state, memory })
}

fn from_store(stored: Vec<(String, OwnedFd)>) -> Result<Inheritance> {
    let (mut state, mut memory) = (Vec::new(), Vec::new());
    for (name, fd) in stored {
        if name == STORED_STATE {
            state = read_state(File::from(fd))?;
        } else if let Some(index) = name.strip_prefix(STORED_SLAB) {
            let index: usize = index.parse().with_context(|| format!("stored as {name}"))?;
            memory.push((index, fd));
        }
    }
    memory.sort_by_key(|(index, _)| *index);
    let memory = memory.into_iter().map(|(_, fd)| fd).collect();
    Ok(Inheritance { state, memory })
}

fn read_state(mut file: File) -> Result<Vec<u8>> {
    let mut state = Vec::new();
    // A descriptor from the store stands where it was left.
    file.rewind()?;
    file.take(STATE_BYTES_MAX).read_to_end(&mut state)?;
    Ok(state)
}

/// Descriptors that stay open across exec, until this is dropped.
struct Open<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Open<'a> {
    fn keep(fds: Vec<BorrowedFd<'a>>) -> Result<Self> {
        // First, so that a failure half way takes back what was done.
        let open = Self(fds);
        for fd in &open.0 {
            set_close_on_exec(*fd, false).context("keep descriptors open")?;
        }
        Ok(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        for fd in &self.0 {
            if let Err(error) = set_close_on_exec(*fd, true) {
                tracing::warn!(%error, "a descriptor stays open in programs that are started");
            }
        }
    }
}

/// Owns a descriptor that the process before left open. Only what it is known to have left is
/// ever passed here, each once.
fn take(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: the number is looked at, no memory is touched.
    if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        bail!("descriptor {fd} is not open");
    }
    // SAFETY: it is open, and was left for us by the process before: this program, which opened
    // it for nobody else. Nothing in this process has had a chance to own it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_close_on_exec(fd.as_fd(), true)?;
    Ok(fd)
}

fn set_close_on_exec(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: no pointers; the descriptor is open.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn memfd(name: &str) -> Result<OwnedFd> {
    let name = CString::new(name).expect("no zero byte in a literal");
    // SAFETY: `name` is a zero-terminated string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("make a memfd");
    }
    // SAFETY: just made, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// exec by the system call alone: `std` would unblock signals first, and one that comes before
/// the next program has its handlers would end it. Returns only when it failed.
fn replace(program: &Path, number: &str) -> io::Error {
    let text = |text: &[u8]| CString::new(text).expect("the system gave it as a C string");
    let arguments: Vec<CString> = std::env::args_os().map(|a| text(a.as_bytes())).collect();
    let is_ours = |name: &OsString| {
        [VARIABLE, PROBE].iter().any(|ours| name == ours) || name.as_bytes().starts_with(b"LISTEN_")
    };
    let kept = std::env::vars_os().filter(|(name, _)| !is_ours(name));
    let ours = (OsString::from(VARIABLE), OsString::from(number));
    let variables: Vec<CString> = kept
        .chain([ours])
        .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        let ends = std::iter::once(std::ptr::null());
        texts.iter().map(|text| text.as_ptr()).chain(ends).collect()
    };
    let program = text(program.as_os_str().as_bytes());
    let (arguments, variables) = (&arguments, &variables);
    let (argv, envp) = (pointers(arguments), pointers(variables));
    // SAFETY: a path and two arrays of C strings that end with null; all live through the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_kept_where_they_and_the_state_fit_the_store() {
        let remedy = |most, slabs| {
            let refused = check_store_of(most, slabs).err();
            refused.map(|failure| failure.remedy().to_owned())
        };
        assert_eq!(remedy(Some(9), 8), None);
        let raised = remedy(Some(8), 8).expect("one is for the state");
        assert!(raised.contains("FileDescriptorStoreMax=9"), "{raised}");
        // Before version 254 systemd does not say; nor does it help to raise what cannot be passed.
        assert_eq!(remedy(None, STORED_MAX - 1), None);
        for most in [None, Some(1 << 20)] {
            let larger = remedy(most, STORED_MAX).expect("cannot be passed");
            assert!(larger.starts_with("use larger slabs"), "{larger}");
        }
    }

    #[test]
    fn the_names_of_all_that_is_stored_fit_a_variable() {
        let slabs = (1..STORED_MAX).map(|index| format!("{STORED_SLAB}{index}:").len());
        let names = "LISTEN_FDNAMES=".len() + STORED_STATE.len() + 1 + slabs.sum::<usize>();
        assert!(names < 128 << 10, "{names}");
    }
}
