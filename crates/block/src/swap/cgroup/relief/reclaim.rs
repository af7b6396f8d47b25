//! Reclaim of a version 1 memory cgroup, which has no file for it.
//!
//! Lowering the limit reclaims on the thread that asks. But once the usage is below it the new
//! limit counts, and the program meets it, with nothing to spare, for as long as that thread then
//! waits for a processor. So a limit of nothing is asked for, which the kernel does not set while
//! anything is used, and a timer interrupts the request until the usage is low enough: the limit
//! never moves.
#![allow(unsafe_code, reason = "timers and signals have no safe wrapper in std")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::rc::Rc;

use super::super::{V1_LIMIT, V1_USAGE, number};

/// Presses the usage of one cgroup down, on the thread that made this.
#[derive(Debug)]
pub(super) struct Reclaimer {
    path: PathBuf,
    /// Its signal goes to the thread that made it.
    timer: libc::timer_t,
    _stays_there: PhantomData<Rc<()>>,
}

impl Reclaimer {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        // A signal without a handler would be dropped, and interrupt nothing.
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: all zeros are valid: no flags, so that a request is not begun again.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        // SAFETY: `action` is valid, and its handler does nothing, which is safe anywhere.
        check(unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) })?;

        // SAFETY: all zeros are valid.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        // SAFETY: no precondition.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = ptr::null_mut();
        // SAFETY: both pointers are to values of their types.
        check(unsafe {
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        })?;
        let reclaimer = Self {
            path: path.to_owned(),
            timer,
            _stays_there: PhantomData,
        };
        // Who presses late or with a small share of a processor loses against a program that
        // brings in pages with all the others.
        // SAFETY: setpriority takes integers only; of a thread, as 0 is this one.
        if let Err(error) = check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }) {
            tracing::debug!(%error, "the cgroup's watcher goes before other threads");
        }
        Ok(reclaimer)
    }

    /// Reclaims until the usage is at most `enough_bytes`, or no more can be reclaimed now. The
    /// kernel's limit is `limit_bytes` before and after.
    pub(super) fn press(&self, enough_bytes: u64, limit_bytes: u64) -> io::Result<()> {
        let mut usage_bytes = self.usage_bytes()?;
        while usage_bytes > enough_bytes {
            match self.reclaim_for_a_while() {
                // The cgroup is empty.
                Ok(()) => fs::write(self.path.join(V1_LIMIT), limit_bytes.to_string())?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => break,
                Err(error) => return Err(error),
            }
            let before = std::mem::replace(&mut usage_bytes, self.usage_bytes()?);
            if usage_bytes >= before {
                // What is on its way out may need the processor that this takes.
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// One request. `fs::write` would begin it again when it is interrupted.
    fn reclaim_for_a_while(&self) -> io::Result<()> {
        let mut limit = File::options().write(true).open(self.path.join(V1_LIMIT))?;
        // Again and again: a signal that comes before the request begins interrupts nothing.
        self.set_timer(PERIOD_NS)?;
        let result = limit.write(b"0").map(|_| ());
        self.set_timer(0)?;
        result
    }

    fn set_timer(&self, period_ns: libc::c_long) -> io::Result<()> {
        let period = libc::timespec {
            tv_sec: 0,
            tv_nsec: period_ns,
        };
        let setting = libc::itimerspec {
            it_interval: period,
            it_value: period,
        };
        // SAFETY: the timer lives as long as this does; `setting` is valid.
        check(unsafe { libc::timer_settime(self.timer, 0, &raw const setting, ptr::null_mut()) })
    }

    fn usage_bytes(&self) -> io::Result<u64> {
        number(&fs::read_to_string(self.path.join(V1_USAGE))?)
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after this.
        unsafe { libc::timer_delete(self.timer) };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Nothing else in this process uses it, and by default it is ignored.
const SIGNAL: libc::c_int = libc::SIGURG;
/// Where a request has freed nothing. Short: the program may be faster meanwhile.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
/// What is reclaimed in that time may be too much: a few MiB.
const PERIOD_NS: libc::c_long = 1_000_000;
