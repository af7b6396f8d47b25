//! The C library's allocator, as servers with large buffers that come and go want it.

#![allow(unsafe_code, reason = "malloc's options have no safe wrapper in std")]

/// What is longer is given back to the system as soon as it is freed. glibc's own default, which it
/// raises to the longest that was ever freed, up to 32 MiB.
#[cfg(target_env = "gnu")]
const GIVEN_BACK_BYTES: libc::c_int = 128 << 10;

/// Has large buffers given back to the system when they are freed, also after many of them: each
/// thread has a heap of its own, and one with something small at its end gives nothing back.
pub fn give_back_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers alone, and may be called at any time.
    unsafe {
        // It may refuse, and nothing is to be done about it: more memory is taken then.
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK_BYTES);
    }
}
