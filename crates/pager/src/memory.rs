//! A range of addresses whose faults this process answers itself: userfaultfd.
//!
//! Anonymous private memory, registered for missing pages and for writes to protected ones. Each
//! [`Shard`] of it has a descriptor of its own, so that its faults come to its handler and to nobody
//! else. Unsafe of a region is here alone: mapping, ioctls, and bytes of pages that are resident and
//! protected.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use cenote_preload::stripes::Stripes;
use cenote_volume::PAGE_BYTES;
use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE,
};

/// `_IOWR(0xAA, 8, struct uffdio_poison)`, which the list above lacks.
pub(crate) const UFFDIO_POISON: u32 = 0xc020_aa08;
/// The list above lacks it as well.
pub(crate) const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;
/// `_IO(0xAA, 0)` of `/dev/userfaultfd`.
const USERFAULTFD_IOC_NEW: u32 = 0xaa00;
/// `PIDFD_SELF_THREAD_GROUP`: this process, wherever a pidfd is wanted.
const PIDFD_SELF: libc::c_int = -10_001;
/// Messages that are read at once.
const EVENTS: usize = 32;

/// Why there is no such memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// This process may not answer faults that happen in the kernel.
    #[error(
        "userfaultfd is not allowed here ({0}): run as root, give access to /dev/userfaultfd, or set \
         vm.unprivileged_userfaultfd=1"
    )]
    Denied(io::Error),
    /// The kernel is too old.
    #[error("the kernel's userfaultfd lacks {lacks}: Linux {since} has it")]
    Kernel {
        /// What is missing.
        lacks: &'static str,
        /// The first version that has it.
        since: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Whether this process may have such memory, on this kernel.
///
/// # Errors
/// Why not.
pub fn works() -> Result<(), MemoryError> {
    let memory = Arc::new(Memory::new(1)?);
    Shard::new(&memory, Stripes::new(1, 1), 0).map(drop)
}

/// A fault of some thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    pub page: u32,
    pub to_write: bool,
}

/// The range.
pub(crate) struct Memory {
    base: NonNull<u8>,
    page_count: u32,
}

// SAFETY: `base` is an address that this value owns the mapping of; all methods take `&self` and
// are system calls, which may be made from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(page_count: u32) -> Result<Self, MemoryError> {
        let len = page_count as usize * PAGE_BYTES;
        // Of nobody at first: a program that locks all of its memory would have every page brought in
        // before their faults are anybody's.
        // SAFETY: a new private mapping at an address that the kernel chooses touches nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(os("reserve addresses")(io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast()).expect("a mapping is not at 0");
        let memory = Self { base, page_count };
        // A child would have nobody to answer its faults; a huge page is none of ours.
        for (advice, what) in [
            (libc::MADV_DONTFORK, "keep the memory from children"),
            (libc::MADV_NOHUGEPAGE, "refuse huge pages"),
        ] {
            let range = memory.range(0, page_count as usize);
            advise(range, advice).map_err(os(what))?;
        }
        let (at, access) = (base.as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the range is the mapping, which nobody else knows.
        if unsafe { libc::munlock(at, len) < 0 || libc::mprotect(at, len, access) < 0 } {
            return Err(os("open the memory")(io::Error::last_os_error()));
        }
        Ok(memory)
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.page_count as usize * PAGE_BYTES
    }

    fn range(&self, page: usize, count: usize) -> sys::uffdio_range {
        sys::uffdio_range {
            start: self.base.as_ptr() as u64 + (page * PAGE_BYTES) as u64,
            len: (count * PAGE_BYTES) as u64,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, and whoever borrows its bytes borrows the region.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len()) };
    }
}

/// A part of the range, and the descriptor that its faults come from. Pages have the shard's own
/// numbers. When it is dropped nobody answers its faults, and nobody may touch its pages any more.
pub(crate) struct Shard {
    uffd: OwnedFd,
    memory: Arc<Memory>,
    stripes: Stripes,
    index: usize,
}

impl Shard {
    /// The shard of this index of all pages of `memory`.
    pub fn new(memory: &Arc<Memory>, stripes: Stripes, index: usize) -> Result<Self, MemoryError> {
        let shard = Self {
            uffd: open()?,
            memory: Arc::clone(memory),
            stripes,
            index,
        };
        for pages in stripes.stripes(index) {
            let mut register = sys::uffdio_register {
                range: memory.range(pages.start, pages.len()),
                mode: u64::from(sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP),
                ioctls: 0,
            };
            // SAFETY: `register` is the structure of this ioctl; the range is in the memory's
            // mapping.
            unsafe { shard.ioctl(UFFDIO_REGISTER, &mut register) }
                .map_err(os("register memory with userfaultfd"))?;
            if register.ioctls & 1 << sys::_UFFDIO_WRITEPROTECT == 0 {
                return Err(MemoryError::Kernel {
                    lacks: "write protection",
                    since: "5.7",
                });
            }
        }
        Ok(shard)
    }

    pub fn fd(&self) -> RawFd {
        self.uffd.as_raw_fd()
    }

    /// Which page of the range a page is.
    pub fn page(&self, page: u32) -> u64 {
        self.stripes.page(self.index, page as usize) as u64
    }

    /// Appends faults that have happened. Never blocks. Whether there may be more.
    pub fn faults(&self, out: &mut Vec<Fault>) -> io::Result<bool> {
        const MESSAGE: usize = size_of::<sys::uffd_msg>();
        let mut messages = [const { [0_u8; MESSAGE] }; EVENTS];
        // SAFETY: the buffer is valid for its length.
        let read = unsafe {
            libc::read(
                self.fd(),
                messages.as_mut_ptr().cast(),
                size_of_val(&messages),
            )
        };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        let count = read as usize / MESSAGE;
        for message in &messages[..count] {
            // struct uffd_msg: the event at 0; of a page fault flags at 8, address at 16.
            let word = |at: usize| {
                u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes of 32"))
            };
            if u32::from(message[0]) != sys::UFFD_EVENT_PAGEFAULT {
                continue;
            }
            let (flags, address) = (word(8), word(16));
            let page = (address - self.memory.base.as_ptr() as u64) / PAGE_BYTES as u64;
            let (shard, page) = self.stripes.find(page as usize);
            debug_assert_eq!(
                shard, self.index,
                "faults come to the shard that has the page"
            );
            out.push(Fault {
                page: page as u32,
                to_write: flags
                    & u64::from(sys::UFFD_PAGEFAULT_FLAG_WRITE | sys::UFFD_PAGEFAULT_FLAG_WP)
                    != 0,
            });
        }
        Ok(count == EVENTS)
    }

    /// Installs a page of zeros.
    pub fn zero(&self, page: u32) -> io::Result<()> {
        let mut zero = sys::uffdio_zeropage {
            range: self.range(page),
            mode: 0,
            zeropage: 0,
        };
        // SAFETY: `zero` is the structure of this ioctl; the range is in the memory's mapping.
        self.again(|| unsafe { self.ioctl(UFFDIO_ZEROPAGE, &mut zero) })
    }

    /// Installs `bytes`, a page, and wakes who waits for it.
    pub fn install(&self, page: u32, bytes: &[u8], protected: bool) -> io::Result<()> {
        assert_eq!(bytes.len(), PAGE_BYTES);
        let range = self.range(page);
        let mut copy = sys::uffdio_copy {
            dst: range.start,
            src: bytes.as_ptr() as u64,
            len: range.len,
            mode: match protected {
                true => u64::from(sys::UFFDIO_COPY_MODE_WP),
                false => 0,
            },
            copy: 0,
        };
        // SAFETY: `copy` is the structure of this ioctl; its source is a page that is borrowed for
        // the call, its target a page of the memory's mapping.
        self.again(|| unsafe { self.ioctl(UFFDIO_COPY, &mut copy) })
    }

    /// Makes writes to a page faults, or lets them through and wakes who waits.
    pub fn protect(&self, page: u32, protected: bool) -> io::Result<()> {
        let mut protect = sys::uffdio_writeprotect {
            range: self.range(page),
            mode: match protected {
                true => UFFDIO_WRITEPROTECT_MODE_WP,
                false => 0,
            },
        };
        // SAFETY: `protect` is the structure of this ioctl; the range is in the memory's mapping.
        self.again(|| unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut protect) })
    }

    /// Takes pages out of the memory, also where the program has locked it, if the kernel can by one
    /// call, which flushes the other cores' tables once (Linux 6.16).
    pub fn drop_pages(&self, pages: &[u32]) -> io::Result<()> {
        let mut done = 0;
        if pages.len() > 1 {
            let ranges = pages.iter().map(|page| self.range(*page));
            let ranges = ranges.map(|range| libc::iovec {
                iov_base: range.start as *mut libc::c_void,
                iov_len: range.len as usize,
            });
            let ranges: Vec<libc::iovec> = ranges.collect();
            let (at, count) = (ranges.as_ptr(), ranges.len());
            let call = libc::SYS_process_madvise;
            // SAFETY: the ranges are in the memory's mapping, as for `advise`; the list is valid for
            // the call.
            let bytes = unsafe {
                libc::syscall(call, PIDFD_SELF, at, count, libc::MADV_DONTNEED_LOCKED, 0)
            };
            // Kernels before 6.15 do not know who is meant; one may stop in the middle.
            done = usize::try_from(bytes).unwrap_or(0) / PAGE_BYTES;
        }
        for page in &pages[done..] {
            advise(self.range(*page), libc::MADV_DONTNEED_LOCKED)?;
        }
        Ok(())
    }

    /// Whoever touches the page gets SIGBUS.
    pub fn poison(&self, page: u32) -> io::Result<()> {
        let mut poison = sys::uffdio_poison {
            range: self.range(page),
            mode: 0,
            updated: 0,
        };
        // SAFETY: `poison` is the structure of this ioctl; the range is in the memory's mapping.
        self.again(|| unsafe { self.ioctl(UFFDIO_POISON, &mut poison) })
    }

    /// Wakes who waits for a page.
    pub fn wake(&self, page: u32) -> io::Result<()> {
        let mut range = self.range(page);
        // SAFETY: `range` is the structure of this ioctl.
        unsafe { self.ioctl(UFFDIO_WAKE, &mut range) }
    }

    /// Copies a page that is resident and protected.
    pub fn copy_out(&self, page: u32, out: &mut [u8]) {
        let range = self.range(page);
        assert_eq!(out.len(), PAGE_BYTES);
        // SAFETY: the page is inside the mapping. It is resident, so that reading it does not
        // fault; writers are kept out by its protection, and `out` is no part of the region: it is
        // borrowed.
        unsafe {
            let source = range.start as *const u8;
            std::ptr::copy_nonoverlapping(source, out.as_mut_ptr(), PAGE_BYTES);
        }
    }

    /// A page of this shard, in the mapping.
    fn range(&self, page: u32) -> sys::uffdio_range {
        let page = page as usize;
        assert!(page < self.stripes.len(self.index));
        self.memory.range(self.stripes.page(self.index, page), 1)
    }

    /// Repeats a call that the kernel refuses while the address space changes.
    fn again(&self, mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        loop {
            match call() {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    std::thread::yield_now()
                }
                result => return result,
            }
        }
    }

    /// # Safety
    /// `argument` is the structure of `request`, and what it names may be read and changed.
    unsafe fn ioctl<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: by this function's own contract.
        unsafe { ioctl(self.fd(), request, argument) }
    }
}

fn os(what: &'static str) -> impl FnOnce(io::Error) -> MemoryError {
    move |source| MemoryError::Os { what, source }
}

fn advise(range: sys::uffdio_range, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the range is in a mapping of a `Memory`; what the advice does to bytes is what the
    // caller asked for, and nothing else is there.
    let result = unsafe { libc::madvise(range.start as *mut _, range.len as usize, advice) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// `argument` is the structure of `request`, and what it names may be read and changed.
pub(crate) unsafe fn ioctl<T>(fd: RawFd, request: u32, argument: &mut T) -> io::Result<()> {
    // SAFETY: by this function's own contract.
    let result = unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(argument)) };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor that also answers faults of system calls: a program's `read` into the region is
/// one.
fn open() -> Result<OwnedFd, MemoryError> {
    let uffd = descriptor()?;
    let mut api = sys::uffdio_api {
        api: u64::from(sys::UFFD_API),
        features: u64::from(sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP | sys::UFFD_FEATURE_POISON),
        ioctls: 0,
    };
    // SAFETY: `api` is the structure of this ioctl.
    unsafe { ioctl(uffd.as_raw_fd(), UFFDIO_API, &mut api) }.map_err(|_| MemoryError::Kernel {
        lacks: "poisoned pages",
        since: "6.6",
    })?;
    Ok(uffd)
}

/// A descriptor that the kernel has not been told anything for.
pub(crate) fn descriptor() -> Result<OwnedFd, MemoryError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the call takes flags alone.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let fd = match fd {
        0.. => fd as RawFd,
        _ => {
            let refused = io::Error::last_os_error();
            let device = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/userfaultfd");
            let device = device.map_err(|_| MemoryError::Denied(refused))?;
            // SAFETY: this ioctl takes flags alone.
            let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) };
            if fd < 0 {
                return Err(MemoryError::Denied(io::Error::last_os_error()));
            }
            fd
        }
    };
    // SAFETY: the descriptor was just made and is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
