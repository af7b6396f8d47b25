//! The interpreter's lock, given up while a call waits; and what becomes of such calls when the
//! interpreter ends.
//!
//! Before CPython 3.14 a thread that asks for the lock of an interpreter that has ended is ended itself, in
//! a way that may not pass through Rust: the process aborts. So from the interpreter's exit on, threads whose
//! calls have ended do not ask for it, but wait for the end of the process. Only daemon threads can get there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The thread that ends the interpreter, once it does.
static ENDER: OnceLock<ThreadId> = OnceLock::new();
/// Threads that may be asking for the lock.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// Does something that waits, without the interpreter's lock.
pub fn detached<T: Send>(py: Python<'_>, wait: impl FnOnce() -> T + Send) -> T {
    let end = py.detach(move || {
        let end = wait();
        ask_for_lock();
        end
    });
    ASKING.fetch_sub(1, Ordering::SeqCst);
    end
}

/// Has the interpreter's exit begin here, before it ends.
///
/// # Errors
/// Those of `atexit`.
pub fn watch_for_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let function = wrap_pyfunction!(end, module)?;
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (function,)).map(drop)
}

/// Whether the interpreter ends: what other threads have they may keep for ever.
pub fn is_ending() -> bool {
    ENDER.get().is_some()
}

fn ask_for_lock() {
    ASKING.fetch_add(1, Ordering::SeqCst);
    let Some(ender) = ENDER.get() else { return };
    if *ender != std::thread::current().id() {
        ASKING.fetch_sub(1, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }
}

/// Returns when nobody asks for the lock any more.
#[pyfunction]
fn end(py: Python<'_>) {
    /// They get it at once, but for those that a forked child counts and does not have.
    const LIMIT: Duration = Duration::from_secs(1);
    ENDER.get_or_init(|| std::thread::current().id());
    let until = Instant::now() + LIMIT;
    while ASKING.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        py.detach(|| std::thread::sleep(Duration::from_millis(1)));
    }
}
