//! The faults of another process, by its userfaultfd: reading them, and installing, protecting and
//! poisoning its pages.
//!
//! While the process forks the kernel refuses changes (EAGAIN) until the fork's event is read and
//! the thread that forks has gone on. What is done between that and the making of the child's books
//! is done in both address spaces, so that they stay equal. The child may fork as well before it
//! has books: then it refuses changes, and its own child gets them, too.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use cenote_volume::PAGE_BYTES;
use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE,
};

use crate::memory::{UFFDIO_POISON, UFFDIO_WRITEPROTECT_MODE_WP, ioctl};

/// Messages that are read at once.
const EVENTS: usize = 32;

/// Why a thread waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// The page is not there; whether it is to be written.
    Missing { to_write: bool },
    /// It is there, and protected.
    Protected,
}

/// A fault at an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    pub address: u64,
    pub cause: Cause,
}

/// The descriptor, and what was read from it.
pub struct Kernel {
    uffd: OwnedFd,
    /// Faults that nobody took so far.
    pub faults: Vec<Fault>,
    /// Children whose books are not made so far.
    pub forked: Vec<Kernel>,
    /// Whether a change was refused for good, of a child whose books are not made: its pages are
    /// not what its books will say.
    pub has_missed: bool,
    /// Whether the last read found a fork for which there is no descriptor, or no memory.
    is_short: bool,
    /// Whether a thread of the process forks for as long as a test wants.
    #[cfg(test)]
    pub forks: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Kernel {
    /// Of a descriptor that is new: ranges are registered for it, each an address and a length.
    pub fn begin(uffd: OwnedFd, ranges: &[(u64, u64)]) -> io::Result<Self> {
        let features = sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP
            | sys::UFFD_FEATURE_EVENT_FORK
            | sys::UFFD_FEATURE_POISON;
        let mut api = sys::uffdio_api {
            api: u64::from(sys::UFFD_API),
            features: u64::from(features),
            ioctls: 0,
        };
        // SAFETY: `api` is the structure of this ioctl.
        unsafe { ioctl(uffd.as_raw_fd(), UFFDIO_API, &mut api) }?;
        for (start, len) in ranges {
            let mut register = sys::uffdio_register {
                range: sys::uffdio_range {
                    start: *start,
                    len: *len,
                },
                mode: u64::from(sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP),
                ioctls: 0,
            };
            // SAFETY: `register` is the structure of this ioctl; the range is the other's.
            unsafe { ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER, &mut register) }?;
        }
        Ok(Self::of_child(uffd))
    }

    /// Of a child, whose ranges are its parent's.
    pub fn of_child(uffd: OwnedFd) -> Self {
        Self {
            uffd,
            faults: Vec::new(),
            forked: Vec::new(),
            has_missed: false,
            is_short: false,
            #[cfg(test)]
            forks: std::sync::Arc::default(),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.uffd.as_raw_fd()
    }

    /// Whether a fork waits, for want of a descriptor: its event makes the descriptor readable, and
    /// cannot be read.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Reads what has happened. Never blocks.
    pub fn read(&mut self) -> io::Result<()> {
        const MESSAGE: usize = size_of::<sys::uffd_msg>();
        self.is_short = false;
        loop {
            let mut messages = [const { [0_u8; MESSAGE] }; EVENTS];
            let (at, len) = (messages.as_mut_ptr().cast(), size_of_val(&messages));
            // SAFETY: the buffer is valid for its length.
            let read = unsafe { libc::read(self.fd(), at, len) };
            if read < 0 {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(()),
                    // The event of the fork stays where it is.
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                        self.is_short = true;
                        Ok(())
                    }
                    _ => Err(error),
                };
            }
            let count = read as usize / MESSAGE;
            for message in &messages[..count] {
                self.take(message);
            }
            if count < EVENTS {
                return Ok(());
            }
        }
    }

    /// struct uffd_msg: the event at 0; of a page fault flags at 8, address at 16; of a fork the
    /// child's descriptor at 8.
    fn take(&mut self, message: &[u8]) {
        let word =
            |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes of 32"));
        match u32::from(message[0]) {
            sys::UFFD_EVENT_PAGEFAULT => {
                let has = |flag: u32| word(8) & u64::from(flag) != 0;
                self.faults.push(Fault {
                    address: word(16),
                    cause: match has(sys::UFFD_PAGEFAULT_FLAG_WP) {
                        true => Cause::Protected,
                        false => Cause::Missing {
                            to_write: has(sys::UFFD_PAGEFAULT_FLAG_WRITE),
                        },
                    },
                });
            }
            sys::UFFD_EVENT_FORK => {
                // SAFETY: the kernel made the descriptor for whoever reads the message.
                let child = unsafe { OwnedFd::from_raw_fd(word(8) as u32 as RawFd) };
                self.forked.push(Self::of_child(child));
            }
            _ => {}
        }
    }

    /// Installs a page of zeros, writable, and wakes who waits. Whether it was missing: one that is
    /// there keeps its bytes, and is `protected` or writable from now on.
    pub fn zero(&mut self, address: u64, protected: bool) -> io::Result<bool> {
        self.each(&|fd| match zero(fd, address) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                Self::let_be(fd, address, protected).map(|()| false)
            }
            result => result.map(|()| true),
        })
    }

    /// Installs `bytes`, a page, and wakes who waits. One that is there has the same bytes: it was
    /// protected when it was to be dropped, and a fork came before.
    pub fn install(&mut self, address: u64, bytes: &[u8], protected: bool) -> io::Result<()> {
        assert_eq!(bytes.len(), PAGE_BYTES);
        self.each(&|fd| match copy(fd, address, bytes, protected) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                Self::let_be(fd, address, protected)
            }
            result => result,
        })
    }

    fn let_be(fd: RawFd, address: u64, protected: bool) -> io::Result<()> {
        protect(fd, address, PAGE_BYTES as u64, protected)?;
        wake(fd, address)
    }

    /// Makes writes to a page faults, or lets them through and wakes who waits.
    pub fn protect(&mut self, address: u64, protected: bool) -> io::Result<()> {
        self.each(&|fd| protect(fd, address, PAGE_BYTES as u64, protected))
    }

    /// Succeeds if a range of protected pages is still what was registered.
    pub fn is_there(&mut self, address: u64, len: u64) -> io::Result<()> {
        self.each(&|fd| protect(fd, address, len, true))
    }

    /// Whoever touches the page gets SIGBUS. `false`: it is there, with the store's bytes, since it was
    /// on its way out when a fork copied it. It is writable from now on.
    pub fn poison(&mut self, address: u64) -> io::Result<bool> {
        let is_poisoned = match self.each(&|fd| poison(fd, address)) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.protect(address, false)?;
                false
            }
            result => result.map(|()| true)?,
        };
        self.wake(address)?;
        Ok(is_poisoned)
    }

    /// Wakes who waits for a page.
    pub fn wake(&mut self, address: u64) -> io::Result<()> {
        self.each(&|fd| wake(fd, address))
    }

    /// Whether nobody has the address space any more.
    pub fn is_dead(&self, address: u64) -> bool {
        let probed = self.ask(&|fd| protect(fd, address, PAGE_BYTES as u64, false));
        probed.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
    }

    /// Does the same in those children whose books are not made, and then in the address space. In
    /// the latter not before all others have it: EAGAIN while one of these processes forks. To
    /// yield meanwhile would cost the programs of this handler a time slice of every other process.
    ///
    /// What is tried again after that is done again in children. It changes nothing there a second
    /// time: nobody has answered their faults meanwhile.
    fn each<T>(&mut self, call: &impl Fn(RawFd) -> io::Result<T>) -> io::Result<T> {
        let mut refused = None;
        for child in &mut self.forked {
            match child.each(call) {
                Err(error) if is_again(&error) => refused = Some(error),
                Err(error) if !is_gone(&error) => child.has_missed = true,
                // One that is gone by then needs nothing.
                Ok(_) | Err(_) => {}
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        match self.ask(call) {
            Err(error) if is_again(&error) => {
                self.read()?;
                Err(error)
            }
            result => result,
        }
    }

    fn ask<T>(&self, call: &impl Fn(RawFd) -> io::Result<T>) -> io::Result<T> {
        #[cfg(test)]
        if self.forks.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        call(self.fd())
    }
}

/// Whether the kernel refuses a change for now.
pub fn is_again(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// Whether the kernel says that a mapping or a process is gone; or, of a page that is to be poisoned
/// in a child, that it is there, or is poisoned already.
pub fn is_gone(error: &io::Error) -> bool {
    const GONE: [i32; 4] = [libc::ENOENT, libc::ESRCH, libc::EINVAL, libc::EEXIST];
    error
        .raw_os_error()
        .is_some_and(|code| GONE.contains(&code))
}

fn range(address: u64, len: u64) -> sys::uffdio_range {
    sys::uffdio_range {
        start: address,
        len,
    }
}

fn zero(fd: RawFd, address: u64) -> io::Result<()> {
    let mut zero = sys::uffdio_zeropage {
        range: range(address, PAGE_BYTES as u64),
        mode: 0,
        zeropage: 0,
    };
    // SAFETY: `zero` is the structure of this ioctl; the range is another process's.
    unsafe { ioctl(fd, UFFDIO_ZEROPAGE, &mut zero) }
}

fn copy(fd: RawFd, address: u64, bytes: &[u8], protected: bool) -> io::Result<()> {
    let mut copy = sys::uffdio_copy {
        dst: address,
        src: bytes.as_ptr() as u64,
        len: PAGE_BYTES as u64,
        mode: match protected {
            true => u64::from(sys::UFFDIO_COPY_MODE_WP),
            false => 0,
        },
        copy: 0,
    };
    // SAFETY: `copy` is the structure of this ioctl; its source is borrowed for the call, its
    // target another process's.
    unsafe { ioctl(fd, UFFDIO_COPY, &mut copy) }
}

fn protect(fd: RawFd, address: u64, len: u64, protected: bool) -> io::Result<()> {
    let mut protect = sys::uffdio_writeprotect {
        range: range(address, len),
        mode: match protected {
            true => UFFDIO_WRITEPROTECT_MODE_WP,
            false => 0,
        },
    };
    // SAFETY: `protect` is the structure of this ioctl; the range is another process's.
    unsafe { ioctl(fd, UFFDIO_WRITEPROTECT, &mut protect) }
}

fn poison(fd: RawFd, address: u64) -> io::Result<()> {
    let mut poison = sys::uffdio_poison {
        range: range(address, PAGE_BYTES as u64),
        mode: 0,
        updated: 0,
    };
    // SAFETY: `poison` is the structure of this ioctl; the range is another process's.
    unsafe { ioctl(fd, UFFDIO_POISON, &mut poison) }
}

fn wake(fd: RawFd, address: u64) -> io::Result<()> {
    let mut range = range(address, PAGE_BYTES as u64);
    // SAFETY: `range` is the structure of this ioctl.
    unsafe { ioctl(fd, UFFDIO_WAKE, &mut range) }
}
