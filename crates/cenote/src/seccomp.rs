//! What a program under `cenote run` may not ask of the kernel: transfers that go to its pages by
//! their place in this machine's memory, and not by their address. A page that went away meanwhile
//! would miss the bytes. Who is not confined can do this to its memory all the same, as debuggers do.
//!
//! Such calls fail as they do on a kernel or a file system that lacks them, for which programs have
//! another way.
#![allow(
    unsafe_code,
    reason = "filters of system calls have no safe wrapper in std"
)]

use std::io;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// The low half of an argument.
const fn argument(at: u32) -> u32 {
    16 + 8 * at
}
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
#[cfg(target_arch = "x86_64")]
const OPEN: u32 = libc::SYS_open as u32;
#[cfg(not(target_arch = "x86_64"))]
const OPEN: u32 = libc::SYS_openat as u32;
const DIRECT: u32 = libc::O_DIRECT as u32;
/// Merging of a process's equal pages, which what it starts inherits.
const PR_SET_MEMORY_MERGE: i32 = 67;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const fn error(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

const fn load(at: u32) -> sock_filter {
    code(BPF_LD | BPF_W | BPF_ABS, at, 0, 0)
}

const fn end(how: u32) -> sock_filter {
    code(BPF_RET | BPF_K, how, 0, 0)
}

/// Skips so many when it is not `value`.
const fn equals(value: u32, skip: u8) -> sock_filter {
    code(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
}

/// Skips so many when the bit is not set.
const fn has(bit: u32, skip: u8) -> sock_filter {
    code(BPF_JMP | BPF_JSET | BPF_K, bit, 0, skip)
}

const fn code(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

const FILTER: [sock_filter; 66] = [
    load(ARCHITECTURE),
    code(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
    end(ALLOW),
    load(NUMBER),
    // Buffers that are registered with io_uring are pinned for good.
    equals(libc::SYS_io_uring_setup as u32, 1),
    end(error(libc::ENOSYS)),
    // A ring that was there before.
    equals(libc::SYS_io_uring_enter as u32, 1),
    end(error(libc::ENOSYS)),
    equals(libc::SYS_io_uring_register as u32, 1),
    end(error(libc::ENOSYS)),
    // Its flags cannot be looked at.
    equals(libc::SYS_openat2 as u32, 1),
    end(error(libc::ENOSYS)),
    // Direct reads are written to memory by the device.
    equals(OPEN, 4),
    load(argument(1)),
    has(DIRECT, 1),
    end(error(libc::EINVAL)),
    end(ALLOW),
    equals(libc::SYS_openat as u32, 4),
    load(argument(2)),
    has(DIRECT, 1),
    end(error(libc::EINVAL)),
    end(ALLOW),
    equals(libc::SYS_open_by_handle_at as u32, 4),
    load(argument(2)),
    has(DIRECT, 1),
    end(error(libc::EINVAL)),
    end(ALLOW),
    // The kernel takes the target's pages before it copies.
    equals(libc::SYS_process_vm_writev as u32, 1),
    end(error(libc::ENOSYS)),
    // Ciphers write to a receiver's pages, and network cards to those of a ring.
    equals(libc::SYS_socket as u32, 6),
    load(argument(0)),
    equals(libc::AF_ALG as u32, 1),
    end(error(libc::EAFNOSUPPORT)),
    equals(libc::AF_XDP as u32, 1),
    end(error(libc::EAFNOSUPPORT)),
    end(ALLOW),
    // TLS in the kernel decrypts into a receiver's pages.
    equals(libc::SYS_setsockopt as u32, 6),
    load(argument(1)),
    equals(libc::SOL_TCP as u32, 3),
    load(argument(2)),
    equals(libc::TCP_ULP as u32, 1),
    end(error(libc::ENOENT)),
    end(ALLOW),
    // A page that is merged with others loses its protection, by which a write to it is seen.
    equals(libc::SYS_prctl as u32, 6),
    load(argument(0)),
    equals(PR_SET_MEMORY_MERGE as u32, 2),
    load(argument(1)),
    equals(0, 1),
    end(ALLOW),
    end(error(libc::EINVAL)),
    equals(libc::SYS_madvise as u32, 4),
    load(argument(2)),
    equals(libc::MADV_MERGEABLE as u32, 1),
    end(error(libc::EINVAL)),
    end(ALLOW),
    equals(libc::SYS_process_madvise as u32, 4),
    load(argument(3)),
    equals(libc::MADV_MERGEABLE as u32, 1),
    end(error(libc::EINVAL)),
    end(ALLOW),
    equals(libc::SYS_fcntl as u32, 5),
    load(argument(1)),
    equals(libc::F_SETFL as u32, 3),
    load(argument(2)),
    has(DIRECT, 1),
    end(error(libc::EINVAL)),
];

fn last_errno() -> Option<i32> {
    io::Error::last_os_error().raw_os_error()
}

/// Confines this process and what it starts. Makes system calls alone: it may be called between
/// `fork` and `exec`.
pub fn confine() -> io::Result<()> {
    // SAFETY: it takes numbers alone.
    let cleared = unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) };
    // A kernel that does not merge knows nothing of it.
    if cleared != 0 && last_errno() != Some(libc::EINVAL) {
        return Err(io::Error::last_os_error());
    }
    // Jumps go forward over what is there, at most to the last.
    let mut filter = [end(ALLOW); FILTER.len() + 1];
    filter[..FILTER.len()].copy_from_slice(&FILTER);
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let set = || {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the program is valid for the call.
        unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) }
    };
    if set() == 0 {
        return Ok(());
    }
    // Without the capability a filter needs this promise.
    // SAFETY: it takes numbers alone.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    match set() {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
