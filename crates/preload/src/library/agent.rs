//! The thread that takes pages out of this address space when the process that serves them says so.
//!
//! libc does not know it, so programs of one thread stay that: it makes system calls alone, and has
//! a table of descriptors of its own, with the socket and the userfaultfd, which the program cannot
//! close. It holds the latter so that faults go on waiting, and do not become zeros, when the
//! serving process is killed; then it ends this one.
//!
//! Credentials are per thread, and libc changes those of the threads that it knows. So this one
//! gives its own up when it begins: a program that drops root has no root thread left.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;
use crate::wire::RANGES_MAX;

const STACK: usize = 32 << 10;
const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;

/// What the thread is told, at the lowest addresses of its stack.
struct Start {
    socket: i32,
    userfaultfd: i32,
    state: AtomicU32,
}

/// States of a [`Start`]: it has privileges.
const BEGINS: u32 = 0;
/// It has none, and waits.
const WAITS: u32 = 1;
/// It drops pages.
const SERVES: u32 = 2;
/// It ends.
const ENDS: u32 = 3;

/// A thread that waits to be told whether it is needed.
pub struct Agent(&'static Start);

impl Agent {
    /// Has it drop pages from now on, as the socket says.
    pub fn serve(self) {
        self.tell(SERVES);
    }

    /// Ends it. Its stack stays.
    pub fn end(self) {
        self.tell(ENDS);
    }

    fn tell(self, what: u32) {
        self.0.state.store(what, Ordering::Release);
        sys::futex_wake(&self.0.state);
    }
}

/// Starts it, and waits until it has no privileges; or says by which error there is none. The
/// descriptors are the caller's to close. Signals are blocked meanwhile: the thread takes none, and
/// libc cannot change the credentials of the caller, from whom it has its own.
pub fn start(socket: i32, userfaultfd: i32) -> Result<Agent, i32> {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let stack = sys::mmap(0, STACK, sys::PROT_RW, flags, -1, 0);
    if stack < 0 {
        return Err(-stack as i32);
    }
    let flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    let start = stack as *mut Start;
    // SAFETY: the mapping is new, aligned and larger.
    unsafe {
        start.write(Start {
            socket,
            userfaultfd,
            state: AtomicU32::new(BEGINS),
        });
    }
    // SAFETY: it was just written, and the stack of a thread is never unmapped.
    let start = unsafe { &*start };
    let mask = sys::block_signals();
    // SAFETY: the stack is new and this thread's alone; `run` does not return.
    let tid = unsafe { sys::cenote_clone(flags, stack as usize + STACK, run, stack as usize) };
    if tid > 0 {
        while start.state.load(Ordering::Acquire) == BEGINS {
            sys::futex_wait(&start.state, BEGINS);
        }
    }
    sys::restore_signals(mask);
    if tid > 0 {
        return Ok(Agent(start));
    }
    sys::munmap(stack as usize, STACK);
    Err(-tid as i32)
}

extern "C" fn run(start: usize) -> ! {
    // SAFETY: the argument that `start` passes, written before, of which only the state changes.
    let start = unsafe { &*(start as *const Start) };
    let (socket, userfaultfd) = (start.socket, start.userfaultfd);
    drop_privileges();
    start.state.store(WAITS, Ordering::Release);
    sys::futex_wake(&start.state);
    let low = socket.min(userfaultfd) as u32;
    let high = socket.max(userfaultfd) as u32;
    if low > 0 {
        sys::close_range(0, low - 1);
    }
    if high > low + 1 {
        sys::close_range(low + 1, high - 1);
    }
    sys::close_range(high + 1, u32::MAX);
    loop {
        match start.state.load(Ordering::Acquire) {
            SERVES => serve(socket),
            ENDS => sys::end_thread(),
            _ => sys::futex_wait(&start.state, WAITS),
        }
    }
}

fn serve(socket: i32) -> ! {
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

/// What this thread does needs no rights: `madvise` of its own memory, two descriptors that are
/// open, and a signal to its own process.
fn drop_privileges() {
    let Some(mut capabilities) = sys::capabilities() else {
        return;
    };
    if capabilities.iter().all(|set| set.permitted == 0) {
        return;
    }
    let is_dumpable = sys::is_dumpable();
    // A program that laid them down for a while may become another user later all the same.
    for set in &mut capabilities {
        set.effective = set.permitted;
    }
    sys::set_capabilities(&capabilities);
    sys::become_nobody();
    sys::set_capabilities(&[sys::Capabilities::NONE; 2]);
    sys::refuse_new_privileges();
    // Who becomes another user takes the right to dump core from the whole process.
    if is_dumpable {
        sys::set_dumpable();
    }
}
