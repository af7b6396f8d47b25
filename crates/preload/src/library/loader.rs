//! `dlopen` and `dlmopen` without RTLD_DEEPBIND: a library that is loaded with it calls libc's
//! `free` and `munmap`, which do not know memory that is served.
//!
//! The loader looks for a library where its caller's object says (RUNPATH, `$ORIGIN`). So these
//! change the mode, and jump: the caller is whoever called them.

use core::arch::naked_asm;

use crate::next::Next;

extern "C" fn find_dlopen() -> usize {
    static NEXT: Next = Next::new(c"dlopen");
    NEXT.at()
}

extern "C" fn find_dlmopen() -> usize {
    static NEXT: Next = Next::new(c"dlmopen");
    NEXT.at()
}

/// rdi: name; esi: mode, of which 8 is RTLD_DEEPBIND.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn dlopen() {
    naked_asm!(
        "endbr64",
        "and esi, -9",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        find = sym find_dlopen,
    )
}

/// rdi: namespace; rsi: name; edx: mode.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn dlmopen() {
    naked_asm!(
        "endbr64",
        "and edx, -9",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {find}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        find = sym find_dlmopen,
    )
}
