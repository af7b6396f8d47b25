//! SIGINT and SIGTERM as a flag, so that a run that is interrupted takes itself down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// While it lives the two signals only set the flag.
pub(crate) struct Interrupt {
    old: [libc::sighandler_t; 2],
}

impl Interrupt {
    pub(crate) fn catch() -> anyhow::Result<Self> {
        INTERRUPTED.store(false, Ordering::Relaxed);
        let mut old = [libc::SIG_DFL; 2];
        for (old, signal) in old.iter_mut().zip(SIGNALS) {
            // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
            *old = unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
            if *old == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error()).context("catch signals");
            }
        }
        Ok(Self { old })
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        check()
    }

    /// Sleeps, but not through an interruption.
    pub(crate) fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CHECK_PERIOD));
        }
    }
}

/// An error once one of the signals came, while somebody catches them: they are the whole process's.
pub(crate) fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for (old, signal) in self.old.iter().zip(SIGNALS) {
            // SAFETY: gives the disposition back that `catch` was given.
            unsafe { libc::signal(signal, *old) };
        }
    }
}

extern "C" fn note(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

const SIGNALS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];
/// How soon an interruption is noticed; arbitrary.
const CHECK_PERIOD: Duration = Duration::from_millis(50);
