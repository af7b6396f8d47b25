//! System calls without libc: no `errno`, no cancellation, no lock. What is called here may run in
//! a thread that libc does not know.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

pub const PROT_NONE: usize = 0;
pub const PROT_RW: usize = 3;
pub const MAP_SHARED_BITS: usize = 0x0f;
pub const MAP_PRIVATE: usize = 0x02;
pub const MAP_FIXED: usize = 0x10;
pub const MAP_ANONYMOUS: usize = 0x20;
pub const MAP_NORESERVE: usize = 0x4000;
pub const MAP_POPULATE: usize = 0x8000;
pub const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
pub const MADV_DONTNEED: usize = 4;
pub const MADV_FREE: usize = 8;
pub const MADV_NOHUGEPAGE: usize = 15;
pub const MADV_DONTNEED_LOCKED: usize = 24;
pub const EAGAIN: isize = -11;
pub const EINTR: isize = -4;
pub const ENOMEM: i32 = 12;
pub const EINVAL: i32 = 22;
pub const EPIPE: i32 = 32;
pub const ECONNRESET: i32 = 104;
pub const ETIMEDOUT: i32 = 110;

const SYS_READ: usize = 0;
const SYS_WRITE: usize = 1;
const SYS_CLOSE: usize = 3;
const SYS_MMAP: usize = 9;
const SYS_MPROTECT: usize = 10;
const SYS_MUNMAP: usize = 11;
const SYS_BRK: usize = 12;
const SYS_SIGPROCMASK: usize = 14;
const SYS_MREMAP: usize = 25;
const SYS_MADVISE: usize = 28;
const SYS_GETPID: usize = 39;
const SYS_SOCKET: usize = 41;
const SYS_CONNECT: usize = 42;
const SYS_SENDMSG: usize = 46;
const SYS_RECVMSG: usize = 47;
const SYS_KILL: usize = 62;
const SYS_FUTEX: usize = 202;
const SYS_EXIT_GROUP: usize = 231;
const SYS_OPENAT: usize = 257;
const SYS_USERFAULTFD: usize = 323;
const SYS_CLOSE_RANGE: usize = 436;
const O_CLOEXEC: usize = 0o2_000_000;
const O_RDWR: usize = 0o2;
const O_CLOEXEC_NONBLOCK: usize = 0o2_000_000 | 0o4_000;

/// # Safety
/// As the call `n` of the kernel says.
pub unsafe fn syscall6(n: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the registers are those of a system call on x86-64; its effects are the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") n as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Up to five arguments; the others are 0.
fn call(n: usize, args: &[usize]) -> isize {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    // SAFETY: every caller is in this file and passes what its call takes.
    unsafe { syscall6(n, all) }
}

pub fn mmap(addr: usize, len: usize, prot: usize, flags: usize, fd: i32, offset: usize) -> isize {
    call(SYS_MMAP, &[addr, len, prot, flags, fd as usize, offset])
}

pub fn munmap(addr: usize, len: usize) -> isize {
    call(SYS_MUNMAP, &[addr, len])
}

pub fn mremap(addr: usize, old: usize, new: usize, flags: usize, to: usize) -> isize {
    call(SYS_MREMAP, &[addr, old, new, flags, to])
}

/// Gives a range this protection, as a new mapping has it: without a key of the program's, and in
/// dumps of core.
pub fn protect_as_new(addr: usize, len: usize, prot: usize) -> isize {
    const SYS_PKEY_MPROTECT: usize = 329;
    const MADV_DODUMP: usize = 17;
    static HAS_KEYS: AtomicBool = AtomicBool::new(true);
    let has_keys = HAS_KEYS.load(Ordering::Relaxed);
    let mut result = match has_keys {
        true => call(SYS_PKEY_MPROTECT, &[addr, len, prot, 0]),
        false => call(SYS_MPROTECT, &[addr, len, prot]),
    };
    if has_keys && result < 0 && result != -ENOMEM as isize {
        result = call(SYS_MPROTECT, &[addr, len, prot]);
        if result >= 0 {
            // It was not the protection that was refused: this machine has no keys.
            HAS_KEYS.store(false, Ordering::Relaxed);
        }
    }
    if result >= 0 {
        madvise(addr, len, MADV_DODUMP);
    }
    result
}

pub fn madvise(addr: usize, len: usize, advice: usize) -> isize {
    call(SYS_MADVISE, &[addr, len, advice])
}

/// Where the heap ends. libc's function for it is one of this library's own names.
pub fn break_end() -> usize {
    call(SYS_BRK, &[0]) as usize
}

/// Advises ranges, each an address and a length, by one call: other cores flush their tables once
/// (Linux 6.16). Whether it was done to all; kernels before 6.15 do not know who is meant.
pub fn madvise_all(ranges: &[u64], advice: usize) -> bool {
    // PIDFD_SELF_THREAD_GROUP.
    const SELF: i32 = -10_001;
    let (at, count) = (ranges.as_ptr() as usize, ranges.len() / 2);
    let lens = ranges.chunks_exact(2).map(|range| range[1] as isize);
    process_madvise(SELF, [at, count, advice, 0]) == lens.sum::<isize>()
}

/// With where ranges are and how many, advice and flags.
pub fn process_madvise(process: i32, arguments: [usize; 4]) -> isize {
    const SYS_PROCESS_MADVISE: usize = 440;
    let [at, count, advice, flags] = arguments;
    let process = process as isize as usize;
    call(SYS_PROCESS_MADVISE, &[process, at, count, advice, flags])
}

/// Whether a descriptor of a process means this one. On kernels before 6.13, which cannot tell, it
/// does not: they take no advice by one but hints.
pub fn is_this_process(process: i32) -> bool {
    const SYS_IOCTL: usize = 16;
    const PIDFD_GET_INFO: usize = 0xc040_ff0b;
    const PIDFD_INFO_PID: u64 = 1;
    const WILLNEED: usize = 3;
    if process < 0 {
        // It is one of the numbers that mean this process, or nobody's.
        return process_madvise(process, [0, 0, WILLNEED, 0]) == 0;
    }
    // A mask, a number of a cgroup, a thread and its process.
    let mut info = [PIDFD_INFO_PID, 0, 0, 0, 0, 0, 0, 0];
    let at = info.as_mut_ptr() as usize;
    let result = call(SYS_IOCTL, &[process as usize, PIDFD_GET_INFO, at]);
    result == 0 && info[2] >> 32 == call(SYS_GETPID, &[]) as u64
}

/// The bytes of a segment of shared memory.
pub fn segment_len(segment: i32) -> Option<usize> {
    const SYS_SHMCTL: usize = 31;
    const IPC_STAT: usize = 2;
    // struct shmid64_ds, the length behind the permissions.
    let mut status = [0_u64; 14];
    let at = status.as_mut_ptr() as usize;
    (call(SYS_SHMCTL, &[segment as usize, IPC_STAT, at]) >= 0).then_some(status[6] as usize)
}

/// `shmat`.
pub fn attach(segment: i32, addr: usize, flags: usize) -> isize {
    const SYS_SHMAT: usize = 30;
    call(SYS_SHMAT, &[segment as usize, addr, flags])
}

pub fn read(fd: i32, out: &mut [u64]) -> isize {
    call(
        SYS_READ,
        &[fd as usize, out.as_mut_ptr() as usize, size_of_val(out)],
    )
}

pub fn write(fd: i32, bytes: &[u8]) -> isize {
    call(
        SYS_WRITE,
        &[fd as usize, bytes.as_ptr() as usize, bytes.len()],
    )
}

pub fn close(fd: i32) {
    call(SYS_CLOSE, &[fd as usize]);
}

/// Closes descriptors `first ..= last` of this thread's table.
pub fn close_range(first: u32, last: u32) {
    call(SYS_CLOSE_RANGE, &[first as usize, last as usize, 0]);
}

/// Writes a line that ends with a number; of a longer text than there is room for, the beginning.
pub fn write_number(fd: i32, text: &[u8], mut number: u32) {
    let mut line = [b'\n'; 96];
    let mut digits = [b'0'; 10];
    let mut first = digits.len();
    while number > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    let digits = &digits[first..];
    let text = &text[..text.len().min(line.len() - 1 - digits.len())];
    let end = text.len() + digits.len();
    line[..text.len()].copy_from_slice(text);
    line[text.len()..end].copy_from_slice(digits);
    write(fd, &line[..=end]);
}

/// What tells this thread from the others of libc: its thread pointer, which a child of `fork`
/// has, too.
pub fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: the first word of a thread's block is its own address, by the ABI.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

pub fn open_memory() -> i32 {
    const AT_FDCWD: usize = -100_isize as usize;
    let path = c"/proc/self/mem".as_ptr() as usize;
    call(SYS_OPENAT, &[AT_FDCWD, path, O_CLOEXEC, 0]) as i32
}

/// A descriptor that also answers faults inside the kernel.
pub fn userfaultfd() -> i32 {
    const AT_FDCWD: usize = -100_isize as usize;
    const SYS_IOCTL: usize = 16;
    const USERFAULTFD_IOC_NEW: usize = 0xaa00;
    let fd = call(SYS_USERFAULTFD, &[O_CLOEXEC_NONBLOCK]);
    if fd >= 0 {
        return fd as i32;
    }
    let path = c"/dev/userfaultfd".as_ptr() as usize;
    let device = call(SYS_OPENAT, &[AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0]);
    if device < 0 {
        return fd as i32;
    }
    let fd = call(
        SYS_IOCTL,
        &[device as usize, USERFAULTFD_IOC_NEW, O_CLOEXEC_NONBLOCK],
    );
    close(device as i32);
    fd as i32
}

/// What a thread may do: 32 of its capabilities, as bits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Capabilities {
    pub effective: u32,
    pub permitted: u32,
    pub inheritable: u32,
}

impl Capabilities {
    pub const NONE: Self = Self {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    };
}

/// Version 3, of this thread.
const CAPABILITIES_HEADER: [u32; 2] = [0x2008_0522, 0];

/// The capabilities of this thread.
pub fn capabilities() -> Option<[Capabilities; 2]> {
    const SYS_CAPGET: usize = 125;
    let (mut header, mut sets) = (CAPABILITIES_HEADER, [Capabilities::NONE; 2]);
    let at = [&raw mut header as usize, &raw mut sets as usize];
    (call(SYS_CAPGET, &at) == 0).then_some(sets)
}

pub fn set_capabilities(sets: &[Capabilities; 2]) {
    const SYS_CAPSET: usize = 126;
    let mut header = CAPABILITIES_HEADER;
    let at = [&raw mut header as usize, sets.as_ptr() as usize];
    call(SYS_CAPSET, &at);
}

/// Makes this thread alone a user and group that nobody else is, without further groups. Whoever
/// is the same user may trace it, and so read and write the whole process: so not 65534, nor the
/// same for two processes. Without the right to, and in a user namespace that has no such id, it
/// stays who it is.
pub fn become_nobody() {
    const SYS_SETGROUPS: usize = 116;
    const SYS_SETRESUID: usize = 117;
    const SYS_SETRESGID: usize = 119;
    const SYS_GETTID: usize = 186;
    const SYS_GETRANDOM: usize = 318;
    const GRND_NONBLOCK: usize = 1;
    // Ids that no system gives to users.
    const FIRST: u32 = 0xe000_0000;
    const COUNT: u32 = 0x1000_0000;
    let mut random = call(SYS_GETTID, &[]) as u32;
    call(SYS_GETRANDOM, &[&raw mut random as usize, 4, GRND_NONBLOCK]);
    let id = (FIRST + random % COUNT) as usize;
    call(SYS_SETGROUPS, &[0, 0]);
    call(SYS_SETRESGID, &[id, id, id]);
    call(SYS_SETRESUID, &[id, id, id]);
}

const SYS_PRCTL: usize = 157;

/// This thread gets no rights by programs that it would start.
pub fn refuse_new_privileges() {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    call(SYS_PRCTL, &[PR_SET_NO_NEW_PRIVS, 1]);
}

/// Whether this process may dump core, and be traced by its user.
pub fn is_dumpable() -> bool {
    const PR_GET_DUMPABLE: usize = 3;
    call(SYS_PRCTL, &[PR_GET_DUMPABLE]) == 1
}

pub fn set_dumpable() {
    const PR_SET_DUMPABLE: usize = 4;
    call(SYS_PRCTL, &[PR_SET_DUMPABLE, 1]);
}

/// Ends this thread alone.
pub fn end_thread() -> ! {
    const SYS_EXIT: usize = 60;
    loop {
        call(SYS_EXIT, &[0]);
    }
}

/// Ends this process and all its threads; no handler runs. A thread may signal its own process
/// whatever its user is. The first process of a container is deaf to a signal of its own: it exits,
/// with the status that a shell shows for that signal.
pub fn die() -> ! {
    const SIGKILL: usize = 9;
    loop {
        let pid = call(SYS_GETPID, &[]);
        call(SYS_KILL, &[pid as usize, SIGKILL]);
        call(SYS_EXIT_GROUP, &[128 + SIGKILL]);
    }
}

/// Blocks every signal of this thread; the mask before.
pub fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0_u64);
    let at = [0, &raw const all as usize, &raw mut before as usize, 8];
    call(SYS_SIGPROCMASK, &at);
    before
}

pub fn restore_signals(mask: u64) {
    const SIG_SETMASK: usize = 2;
    call(
        SYS_SIGPROCMASK,
        &[SIG_SETMASK, &raw const mask as usize, 0, 8],
    );
}

pub fn futex_wait(word: &core::sync::atomic::AtomicU32, seen: u32) {
    const WAIT_PRIVATE: usize = 128;
    call(
        SYS_FUTEX,
        &[word.as_ptr() as usize, WAIT_PRIVATE, seen as usize, 0],
    );
}

pub fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    const WAKE_PRIVATE: usize = 129;
    call(SYS_FUTEX, &[word.as_ptr() as usize, WAKE_PRIVATE, 1]);
}

/// Bytes of a socket's path, at most.
pub const PATH_MAX: usize = 107;

/// Connects to a socket of packets.
pub fn connect(path: &[u8]) -> i32 {
    const AF_UNIX: u16 = 1;
    const SEQPACKET_CLOEXEC: usize = 5 | 0o2_000_000;
    let mut address = [0_u8; 110];
    if path.len() > PATH_MAX {
        return -1;
    }
    address[..2].copy_from_slice(&AF_UNIX.to_ne_bytes());
    address[2..2 + path.len()].copy_from_slice(path);
    let fd = call(SYS_SOCKET, &[AF_UNIX as usize, SEQPACKET_CLOEXEC, 0]);
    if fd < 0 {
        return fd as i32;
    }
    let result = call(
        SYS_CONNECT,
        &[fd as usize, address.as_ptr() as usize, address.len()],
    );
    if result < 0 {
        close(fd as i32);
        return result as i32;
    }
    fd as i32
}

#[repr(C)]
struct Message {
    name: usize,
    name_len: usize,
    vec: usize,
    vec_len: usize,
    control: usize,
    control_len: usize,
    flags: usize,
}

/// A control message with up to two descriptors.
#[repr(C, align(8))]
struct Rights {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; 2],
}

/// Sends words and descriptors.
pub fn send(fd: i32, words: &[u64], fds: &[i32]) -> isize {
    let vec = [words.as_ptr() as usize, size_of_val(words)];
    let mut rights = Rights {
        len: 16 + 4 * fds.len(),
        level: 1,
        kind: 1,
        fds: [0; 2],
    };
    rights.fds[..fds.len()].copy_from_slice(fds);
    let message = Message {
        name: 0,
        name_len: 0,
        vec: vec.as_ptr() as usize,
        vec_len: 1,
        control: &raw const rights as usize,
        control_len: 24,
        flags: 0,
    };
    const MSG_NOSIGNAL: usize = 0x4000;
    call(
        SYS_SENDMSG,
        &[fd as usize, &raw const message as usize, MSG_NOSIGNAL],
    )
}

/// Receives words, and a descriptor if one comes with them.
pub fn receive(fd: i32, words: &mut [u64]) -> (isize, Option<i32>) {
    let vec = [words.as_mut_ptr() as usize, size_of_val(words)];
    let mut rights = Rights {
        len: 0,
        level: 0,
        kind: 0,
        fds: [-1; 2],
    };
    let mut message = Message {
        name: 0,
        name_len: 0,
        vec: vec.as_ptr() as usize,
        vec_len: 1,
        control: &raw mut rights as usize,
        control_len: 24,
        flags: 0,
    };
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let at = [fd as usize, &raw mut message as usize, MSG_CMSG_CLOEXEC];
    let mut result = call(SYS_RECVMSG, &at);
    while result == EINTR {
        result = call(SYS_RECVMSG, &at);
    }
    let has_fd = message.control_len >= 20 && rights.len >= 20;
    (result, has_fd.then_some(rights.fds[0]))
}

// rdi: flags; rsi: top of the new stack; rdx: function; rcx: its argument.
global_asm!(
    ".hidden cenote_clone",
    ".globl cenote_clone",
    ".type cenote_clone,@function",
    "cenote_clone:",
    "mov r8, rdx",
    "mov r9, rcx",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov [rsi - 8], r8",
    "mov [rsi - 16], r9",
    "sub rsi, 16",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    "xor ebp, ebp",
    "pop rdi",
    "pop rax",
    "call rax",
    "ud2",
);

unsafe extern "C" {
    /// Starts a thread that libc does not know.
    pub fn cenote_clone(
        flags: usize,
        stack_top: usize,
        run: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> isize;
}
