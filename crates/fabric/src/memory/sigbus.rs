//! Surviving the loss of mapped memory: the SIGBUS handler and the table of mappings it knows.
//!
//! A mapping whose file was truncated faults on access. The handler finds the mapping, sets its
//! dead flag and maps anonymous memory over the whole of it, so that the access goes on and
//! whoever made it sees the flag afterwards. Faults elsewhere go to the handler that was there before.
//!
//! Concurrency: slots are added under a mutex and read by the handler without any lock. A slot's
//! fields change only while its length is 0, and the handler believes a base address only between
//! two equal lengths. The mapping that faulted cannot change meanwhile: its user borrows it.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What the handler knows about one mapping. Never freed, reused by later mappings.
#[repr(align(32))]
pub(super) struct Slot {
    base: AtomicUsize,
    len_bytes: AtomicUsize,
    dead: AtomicBool,
}

impl Slot {
    const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            len_bytes: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
        }
    }

    /// Whether the mapping has lost its memory. Ask after the access.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        // The accesses before must not be seen after the flag: a fault elsewhere sets it first and
        // replaces the memory second.
        fence(Ordering::Acquire);
        self.dead.load(Ordering::Relaxed)
    }

    /// Declares the memory lost, before it is.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    fn covers(&self, address: usize) -> bool {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Acquire);
        len_bytes != 0
            && self.len_bytes.load(Ordering::Acquire) == len_bytes
            && address.wrapping_sub(base) < len_bytes
    }
}

/// Makes the mapping at `base` known to the handler, which it installs first.
pub(super) fn add(base: usize, len_bytes: usize) -> io::Result<&'static Slot> {
    install()?;
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = match free.slots.pop() {
        Some(slot) => slot,
        None => free.grow()?,
    };
    slot.base.store(base, Ordering::Release);
    slot.dead.store(false, Ordering::Release);
    slot.len_bytes.store(len_bytes, Ordering::SeqCst);
    Ok(slot)
}

/// Forgets a mapping that nobody accesses any more; call it before the unmapping.
pub(super) fn remove(slot: &'static Slot) {
    slot.len_bytes.store(0, Ordering::SeqCst);
    slot.base.store(0, Ordering::SeqCst);
    FREE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .slots
        .push(slot);
}

/// Slots without a mapping, and how many chunks stand.
struct Free {
    slots: Vec<&'static Slot>,
    chunk_count: usize,
}

impl Free {
    /// Adds a chunk, twice as long as the one before, and takes its first slot.
    fn grow(&mut self) -> io::Result<&'static Slot> {
        let place = CHUNKS
            .get(self.chunk_count)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let len = CHUNK_SLOTS_FIRST << self.chunk_count;
        let chunk: &'static [Slot] = (0..len).map(|_| Slot::new()).collect::<Vec<_>>().leak();
        place.store(chunk.as_ptr().cast_mut(), Ordering::Release);
        self.chunk_count += 1;
        self.slots.extend(chunk[1..].iter().rev());
        Ok(&chunk[0])
    }
}

fn find(address: usize) -> Option<&'static Slot> {
    for (index, chunk) in CHUNKS.iter().enumerate() {
        let start = chunk.load(Ordering::Acquire);
        if start.is_null() {
            return None;
        }
        // SAFETY: a chunk that is stored was leaked with exactly this length, initialised before.
        let slots = unsafe { std::slice::from_raw_parts(start, CHUNK_SLOTS_FIRST << index) };
        if let Some(slot) = slots.iter().find(|slot| slot.covers(address)) {
            return Some(slot);
        }
    }
    None
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
    // SAFETY: errno's address is this thread's and always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the range is exactly one mapping of ours, borrowed by the access that faulted, so it
    // neither moves nor ends during this call. Two threads may both do this: zeros over zeros.
    let mapped = unsafe {
        libc::mmap(
            slot.base.load(Ordering::Acquire) as *mut libc::c_void,
            slot.len_bytes.load(Ordering::Acquire),
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

static CHUNKS: [AtomicPtr<Slot>; CHUNK_COUNT_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK_COUNT_MAX];
static FREE: Mutex<Free> = Mutex::new(Free {
    slots: Vec::new(),
    chunk_count: 0,
});
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Slots of the first chunk; each later one doubles.
const CHUNK_SLOTS_FIRST: usize = 256;
/// 256 * (2^16 - 1) mappings: far above the kernel's own limit of 65530 per process.
const CHUNK_COUNT_MAX: usize = 16;
