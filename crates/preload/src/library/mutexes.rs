//! What mutexes cannot be in memory that is served.

use crate::next::next;

/// The kernel takes a mutex with priority inheritance for its thread, and does not wait for a page
/// meanwhile: libc would end the program.
#[unsafe(no_mangle)]
extern "C" fn pthread_mutexattr_setprotocol(attributes: *mut u8, protocol: i32) -> i32 {
    const PTHREAD_PRIO_INHERIT: i32 = 1;
    const ENOTSUP: i32 = 95;
    if protocol == PTHREAD_PRIO_INHERIT {
        return ENOTSUP;
    }
    next!(
        c"pthread_mutexattr_setprotocol",
        fn(*mut u8, i32) -> i32,
        (attributes, protocol)
    )
}
