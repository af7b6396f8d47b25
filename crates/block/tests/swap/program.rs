//! A program that swaps: it fills more memory than its cgroup has, and checks each byte of it.

use std::os::fd::RawFd;

use cenote_block::swap::cgroup::MemoryCgroup;

use super::mix;

/// A child in a memory cgroup that fills memory, waits, and checks it page by page. It only makes
/// system calls after fork, since this process has threads.
pub struct Program {
    pid: libc::pid_t,
    said: RawFd,
    told: RawFd,
    pub group: MemoryCgroup,
}

impl Program {
    pub fn start(limit_bytes: u64, memory_bytes: u64) -> Self {
        let name = format!("cenote-test-{}-{limit_bytes}", std::process::id());
        let group = MemoryCgroup::create(&name, limit_bytes).unwrap();
        let (mut out, mut back) = ([0; 2], [0; 2]);
        // SAFETY: pipes into live arrays; the child of fork makes system calls only.
        let pid = unsafe {
            assert_eq!(libc::pipe2(out.as_mut_ptr(), libc::O_CLOEXEC), 0);
            assert_eq!(libc::pipe2(back.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(fill_and_check(memory_bytes as usize, out[1], back[0]));
            }
            libc::close(out[1]);
            libc::close(back[0]);
            pid
        };
        assert!(pid > 0);
        group.add(pid as u32).unwrap();
        let program = Self {
            pid,
            said: out[0],
            told: back[1],
            group,
        };
        program.go_on();
        program
    }

    /// One that has filled its memory.
    pub fn filled(limit_bytes: u64, memory_bytes: u64) -> Self {
        let program = Self::start(limit_bytes, memory_bytes);
        let mut byte = 0_u8;
        // SAFETY: one byte into a live variable.
        let read = unsafe { libc::read(program.said, (&raw mut byte).cast(), 1) };
        assert_eq!((read, byte), (1, b'f'), "the program filled its memory");
        program
    }

    pub fn go_on(&self) {
        // SAFETY: one byte from a static.
        let written = unsafe { libc::write(self.told, b"g".as_ptr().cast(), 1) };
        assert_eq!(written, 1);
    }

    /// 0 for success, a signal or a count otherwise.
    pub fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: our own child and a live variable.
        let ended = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        // A status that nobody wrote would be a success.
        assert_eq!(ended, self.pid, "{}", std::io::Error::last_os_error());
        status
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: our own child, which may be gone, and our own descriptors.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            libc::close(self.said);
            libc::close(self.told);
        }
    }
}

/// # Safety
/// Runs in a child of fork: system calls and its own mapping only.
unsafe fn fill_and_check(len: usize, say: RawFd, hear: RawFd) -> i32 {
    let mut byte = 0_u8;
    // SAFETY: descriptors of the two pipes; the mapping is `len` bytes long and private.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The parent's lock does not reach here, but MCL_FUTURE might have.
        libc::munlockall();
        libc::read(hear, (&raw mut byte).cast(), 1);
        let memory = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if memory == libc::MAP_FAILED {
            return 99;
        }
        let words = std::slice::from_raw_parts_mut(memory.cast::<u64>(), len / 8);
        for (index, word) in words.iter_mut().enumerate() {
            *word = mix(index as u64);
        }
        libc::write(say, b"f".as_ptr().cast(), 1);
        libc::read(hear, (&raw mut byte).cast(), 1);
        for (index, word) in words.iter().enumerate() {
            if *word != mix(index as u64) {
                return 1;
            }
        }
    }
    0
}
