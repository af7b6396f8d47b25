//! The thread that takes pages out of this address space when the process that serves them says so.
//!
//! libc does not know it, so programs of one thread stay that: it makes system calls alone, and has
//! a table of descriptors of its own, with the socket and the userfaultfd, which the program cannot
//! close. It holds the latter so that faults go on waiting, and do not become zeros, when the
//! serving process is killed; then it ends this one.

use crate::sys;
use crate::wire::RANGES_MAX;

const STACK: usize = 32 << 10;
const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;

/// Starts it. The descriptors are the caller's to close. Signals are blocked meanwhile: the thread
/// takes none.
pub fn start(socket: i32, userfaultfd: i32) -> bool {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let stack = sys::mmap(0, STACK, sys::PROT_RW, flags, -1, 0);
    if stack < 0 {
        return false;
    }
    let flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    let both = (socket as usize) << 32 | userfaultfd as usize;
    let mask = sys::block_signals();
    // SAFETY: the stack is new and this thread's alone; `run` does not return.
    let tid = unsafe { sys::cenote_clone(flags, stack as usize + STACK, run, both) };
    sys::restore_signals(mask);
    tid > 0
}

extern "C" fn run(both: usize) -> ! {
    let (socket, userfaultfd) = ((both >> 32) as i32, both as u32 as i32);
    let low = socket.min(userfaultfd) as u32;
    let high = socket.max(userfaultfd) as u32;
    if low > 0 {
        sys::close_range(0, low - 1);
    }
    if high > low + 1 {
        sys::close_range(low + 1, high - 1);
    }
    sys::close_range(high + 1, u32::MAX);
    let mut list = [0_u64; 1 + 2 * RANGES_MAX];
    loop {
        let len = sys::read(socket, &mut list);
        if len == sys::EINTR || len == sys::EAGAIN {
            continue;
        }
        let count = list[0] as usize;
        if len < 8 || count > RANGES_MAX || len as usize != 8 * (1 + 2 * count) {
            // Nobody answers faults any more.
            sys::die();
        }
        let ranges = &list[1..1 + 2 * count];
        // What is dropped stays so until this is answered: it may be dropped twice.
        if !sys::madvise_all(ranges, sys::MADV_DONTNEED_LOCKED) {
            for range in ranges.chunks_exact(2) {
                sys::madvise(
                    range[0] as usize,
                    range[1] as usize,
                    sys::MADV_DONTNEED_LOCKED,
                );
            }
        }
        if sys::write(socket, &[0; 8]) != 8 {
            sys::die();
        }
    }
}
