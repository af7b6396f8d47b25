//! Surviving the loss of mapped memory: the SIGBUS handler and the table of mappings it knows.
//!
//! A mapping whose file was truncated faults on access. The handler finds the mapping, sets its
//! dead flag and maps anonymous memory over the whole of it, so that the access goes on and
//! whoever made it sees the flag afterwards. Faults elsewhere go to the handler that was there before.
//!
//! Concurrency: the handler looks into the table without any lock. The mapping that faulted cannot
//! change meanwhile: its user borrows it.

mod table;

use std::io;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

pub(super) use table::Slot;
use table::Table;

/// Makes the mapping at `base` known to the handler, which it installs first.
pub(super) fn add(base: usize, len_bytes: usize) -> io::Result<&'static Slot> {
    install()?;
    TABLE
        .get_or_init(|| Table::new(CHUNK_SLOTS_FIRST))
        .add(base, len_bytes)
}

/// Forgets a mapping that nobody accesses any more; call it before the unmapping.
pub(super) fn remove(slot: &'static Slot) {
    TABLE.get().expect("it was added").remove(slot);
}

fn find(address: usize) -> Option<&'static Slot> {
    TABLE.get()?.find(address)
}

fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: all-zero is a valid `sigaction` (default action, empty mask) to be filled in.
    let (mut previous, mut ours): (libc::sigaction, libc::sigaction) =
        unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both point to valid `sigaction`s. The handler only uses atomics, `mmap`, `sigaction`
    // and `raise`, and PREVIOUS is set before the handler can run.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous) != 0 {
            return Err(io::Error::last_os_error());
        }
        PREVIOUS.get_or_init(|| previous);
        if libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // Codes above 0 are faults; others were sent, and their address means nothing.
    if code > 0 && find(address).is_some_and(replace_memory) {
        return;
    }
    chain(signal, info, context, code);
}

/// Maps zeros over the whole mapping; false when the kernel refuses.
fn replace_memory(slot: &'static Slot) -> bool {
    slot.kill();
    let (base, len_bytes) = slot.range();
    // SAFETY: errno's address is this thread's and always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the range is exactly one mapping of ours, borrowed by the access that faulted, so it
    // neither moves nor ends during this call. Two threads may both do this: zeros over zeros.
    let mapped = unsafe {
        libc::mmap(
            base as *mut libc::c_void,
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    mapped != libc::MAP_FAILED
}

/// Hands a SIGBUS that is not ours to the handler before us, or to the default action.
fn chain(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    code: libc::c_int,
) {
    let previous = PREVIOUS.get().expect("set before the handler is installed");
    let handler = previous.sa_sigaction;
    let sent = code <= 0;
    if handler == libc::SIG_IGN && sent {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: an all-zero sigaction is the default action. A fault repeats on return and ends
        // the process; a sent signal is sent again, and arrives when this handler returns.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            if sent {
                libc::raise(signal);
            }
        }
    } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
        type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: SA_SIGINFO says that the stored address is a function of this type.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, WithInfo>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the stored address is a function of this type.
        let handler = unsafe {
            std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(handler)
        };
        handler(signal);
    }
}

/// Made before the first mapping is known, so that the handler finds it.
static TABLE: OnceLock<Table> = OnceLock::new();
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Slots of the first chunk of the table; each later one doubles.
const CHUNK_SLOTS_FIRST: usize = 256;
