//! The handlers that libc calls around `fork`: while a thread forks, it has the arena's lock.
//!
//! libc calls the handlers that were registered last first. These are registered before those of
//! the program's allocators, so that a fork waits for the allocators' locks first and for the
//! arena's last: in the order of an allocator that maps memory under a lock of its own.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::arena;

unsafe extern "C" {
    fn __register_atfork(
        before: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
        object: *mut u8,
    ) -> i32;
}

/// Registers them once: when this library is loaded, or earlier, by the first allocation. Nobody
/// may have the arena's lock: a thread that forks holds libc's lock of handlers and waits for it.
pub fn register() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.load(Ordering::Relaxed) && !IS_DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions are this library's, which is never unloaded.
        unsafe { __register_atfork(before_fork, in_parent, in_child, core::ptr::null_mut()) };
    }
}

extern "C" fn before_fork() {
    arena::begin_fork();
}

extern "C" fn in_parent() {
    arena::end_fork(false);
}

extern "C" fn in_child() {
    arena::end_fork(true);
}
