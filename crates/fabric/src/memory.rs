//! Memory that is lent: the host's [`Region`] and a client's [`Mapping`] of it.
//!
//! Either side may lose the memory at any instruction: the host by truncating the memfd, or a
//! peer that holds it writable by doing the same. Every access goes through [`View`], which asks
//! the dead flag after the access and never hands out a reference to the bytes.
//!
//! Invariants: a memfd never grows, and no peer changes its seals; a mapping's address range is
//! valid, shared or replaced by zeros, until it is dropped. Who may open a process's descriptors
//! can open a read-only grant for writing: memory that others only read is sealed against that.

mod in_place;
mod persist;
mod sigbus;
mod stream;
mod view;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::Ordering;

use crate::{Error, Result, WindowDescriptor};
pub use in_place::InPlace;
pub use stream::order_stores;
pub use view::Dead;
pub(crate) use view::View;

/// How a region's memory is made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RegionOptions {
    /// On 2 MiB pages where the kernel has them; otherwise silently on small ones.
    pub huge: bool,
    /// On those that the machine keeps for such use, if enough are left; silently.
    pub reserved: bool,
    /// Never swapped out.
    pub lock: bool,
}

/// Memory of a host that a window can be opened on: one memfd, mapped here.
#[derive(Debug)]
pub struct Region {
    view: View,
    fd: OwnedFd,
    /// Its memory is its maker's, and outlives windows on it.
    is_kept: bool,
}

impl Region {
    /// Makes a region of zeros; `name` is for people who look at the process's maps.
    ///
    /// Costs no memory until it is written or [`Region::populate`]d.
    ///
    /// # Errors
    /// `Os`: no descriptor, address space or lockable memory is left.
    ///
    /// # Panics
    /// If `len_bytes` is 0 or the name contains a zero byte.
    pub fn create(name: &str, len_bytes: u64, options: RegionOptions) -> Result<Self> {
        Self::create_with(name, len_bytes, options, SEALS)
    }

    /// The same of memory that outlives windows on it: what is given back by revoking one, or by
    /// the end of a listener, is access alone. Over `shm` who has mapped it keeps it mapped, so it
    /// is for bytes that clients may go on reading. Nobody can truncate it.
    ///
    /// [`Region::seal`] it before a peer gets hold of it.
    ///
    /// # Errors
    /// As [`Region::create`].
    ///
    /// # Panics
    /// As [`Region::create`].
    pub fn create_kept(name: &str, len_bytes: u64, options: RegionOptions) -> Result<Self> {
        let region = Self::create_with(name, len_bytes, options, KEPT_SEALS)?;
        Ok(Self {
            is_kept: true,
            ..region
        })
    }

    fn create_with(
        name: &str,
        len_bytes: u64,
        options: RegionOptions,
        seals: libc::c_int,
    ) -> Result<Self> {
        assert!(len_bytes > 0, "a region has at least one byte");
        let name = CString::new(name).expect("the caller's name has no zero byte");
        let what = || format!("create a region of {len_bytes} bytes");
        let len = usize::try_from(len_bytes).map_err(|_| Error::Bound("region length"))?;
        let huge_file = options.reserved
            && len.is_multiple_of(view::HUGE_PAGE_BYTES)
            && huge_pages_free() * view::HUGE_PAGE_BYTES >= len;
        let reserved = if huge_file {
            Self::on_reserved_pages(&name, len, seals).ok()
        } else {
            None
        };
        let region = match reserved {
            Some(region) => region,
            None => Self::on_memfd(&name, len, 0, seals).map_err(|e| Error::os(what(), e))?,
        };
        if options.huge {
            region.view.advise_huge();
        }
        if options.lock {
            region
                .view
                .lock()
                .map_err(|e| Error::os(format!("lock {len_bytes} bytes in memory"), e))?;
        }
        Ok(region)
    }

    /// Takes over a region that an earlier process of this host made: its memfd, bytes and all.
    /// Locks end with a process: see [`Region::lock`].
    ///
    /// # Errors
    /// `StaleWindow`: the memfd is not `len_bytes` long, or not one that [`Region::create`] makes;
    /// `Os`: it cannot be mapped.
    pub fn inherit(fd: OwnedFd, len_bytes: u64, huge: bool) -> Result<Self> {
        let what = || format!("take over a region of {len_bytes} bytes");
        let len = usize::try_from(len_bytes).map_err(|_| Error::Bound("region length"))?;
        // SAFETY: no pointers.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let is_ours = seals & !F_SEAL_EXEC == SEALS;
        let file_len = file_len(fd.as_fd()).map_err(|e| Error::os(what(), e))?;
        if !is_ours || len == 0 || file_len != len_bytes {
            return Err(Error::StaleWindow);
        }
        let view = View::map(fd.as_fd(), len, true).map_err(|e| Error::os(what(), e))?;
        let region = Self {
            view,
            fd,
            is_kept: false,
        };
        if huge {
            region.view.advise_huge();
        }
        Ok(region)
    }

    /// Ends changes to what others may do with memory that is [kept](Region::create_kept): whose
    /// windows have no [`WRITE`](crate::Rights::WRITE), nobody but this process can write it from
    /// here on, not through any descriptor. Linux before 5.1 has no such seal; that is logged once.
    /// A file has none.
    ///
    /// # Errors
    /// `Os`: it was sealed before against writes that are wanted now.
    pub fn seal(&self, rights: crate::Rights) -> Result<()> {
        let seals = self.seals();
        let is_to_be_written = rights.contains(crate::Rights::WRITE);
        if seals < 0 || seals & libc::F_SEAL_SEAL != 0 {
            return match seals > 0 && is_to_be_written && seals & libc::F_SEAL_FUTURE_WRITE != 0 {
                true => Err(Error::os(
                    "open a region to writes",
                    io::Error::from_raw_os_error(libc::EPERM),
                )),
                false => Ok(()),
            };
        }
        if !is_to_be_written && self.add_seals(libc::F_SEAL_FUTURE_WRITE).is_err() {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "this kernel cannot seal memory against writes: over shm processes that may only \
                     read it can write it"
                );
            });
        }
        self.add_seals(libc::F_SEAL_SEAL)
            .map_err(|e| Error::os("seal a region", e))
    }

    /// Below 0: it is on a file that has none.
    fn seals(&self) -> libc::c_int {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_GET_SEALS) }
    }

    fn add_seals(&self, seals: libc::c_int) -> io::Result<()> {
        // SAFETY: no pointers.
        match unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A region on a file, all of it: what is written is the file's. The file keeps its length as long
    /// as whoever else can write to it lets it, and is never truncated here.
    ///
    /// # Errors
    /// `Os`: it is empty, or cannot be mapped.
    pub fn on_file(fd: OwnedFd) -> Result<Self> {
        let what = || "map a file".to_owned();
        let len = file_len(fd.as_fd()).map_err(|e| Error::os(what(), e))?;
        let len = usize::try_from(len).map_err(|_| Error::Bound("region length"))?;
        if len == 0 {
            return Err(Error::os(what(), io::ErrorKind::UnexpectedEof.into()));
        }
        let view = View::map(fd.as_fd(), len, true).map_err(|e| Error::os(what(), e))?;
        Ok(Self {
            view,
            fd,
            is_kept: true,
        })
    }

    /// Locks all of it into RAM, every page now.
    ///
    /// # Errors
    /// `Os`: more than the process may lock.
    pub fn lock(&self) -> Result<()> {
        self.view
            .lock()
            .map_err(|e| Error::os(format!("lock {} bytes in memory", self.len_bytes()), e))?;
        self.populate()
    }

    fn on_reserved_pages(name: &CString, len: usize, seals: libc::c_int) -> io::Result<Self> {
        Self::on_memfd(name, len, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, seals)
    }

    fn on_memfd(
        name: &CString,
        len: usize,
        flags: libc::c_uint,
        seals: libc::c_int,
    ) -> io::Result<Self> {
        // SAFETY: `name` is a zero-terminated string; a non-negative result is a new descriptor of ours.
        let fd = unsafe {
            libc::memfd_create(
                name.as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_len(&fd, len)?;
        // A memfd is made for everybody. Where its mode cannot be changed it stays so: peers of
        // other users that were given a descriptor could open it again.
        // SAFETY: no pointers.
        unsafe { libc::fchmod(fd.as_raw_fd(), 0o600) };
        let view = View::map(fd.as_fd(), len, true)?;
        let region = Self {
            view,
            fd,
            is_kept: false,
        };
        region.add_seals(seals)?;
        Ok(region)
    }

    /// Allocates every page now, so that no later writer pays for it.
    ///
    /// # Errors
    /// `Os`: there is not that much memory.
    pub fn populate(&self) -> Result<()> {
        self.view
            .populate()
            .map_err(|e| Error::os(format!("populate {} bytes", self.len_bytes()), e))
    }

    /// Gives the memory back to the system and marks the region dead; nobody can reach it after. One that
    /// is [kept](Region::create_kept) stays as it is.
    ///
    /// A window on it is to be revoked instead (see [`crate::Listen::revoke`]).
    ///
    /// # Errors
    /// `Os`, which a memfd of ours does not give.
    pub fn truncate(&self) -> Result<()> {
        if self.is_kept {
            return Ok(());
        }
        self.view.kill();
        set_len(&self.fd, 0).map_err(|e| Error::os("truncate a region", e))
    }

    /// Its length in bytes, as created.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.view.len_bytes() as u64
    }

    /// Whether its memory is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.view.is_dead()
    }

    /// Whether somebody else made the memory shorter, as whoever may write it can: nothing here has
    /// noticed that unless it touched what is gone. A system call.
    #[must_use]
    pub fn is_cut_short(&self) -> bool {
        file_len(self.as_fd()).is_ok_and(|len_bytes| len_bytes < self.len_bytes())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Dead`]: the memory is gone and `target` unspecified.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> std::result::Result<(), Dead> {
        let start = self.checked(offset, target.len());
        // SAFETY: `checked` bounds the range; `target` is exclusive and that long.
        unsafe { self.view.read(start, target.as_mut_ptr(), target.len()) }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Dead`]: the memory is gone.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn write(&self, offset: u64, source: &[u8]) -> std::result::Result<(), Dead> {
        let start = self.checked(offset, source.len());
        // SAFETY: `checked` bounds the range; `source` is readable and that long.
        let written = unsafe { self.view.write(start, source.as_ptr(), source.len()) };
        order_stores();
        written
    }

    /// The 8 bytes at `offset`, a multiple of 8, in one load.
    ///
    /// # Errors
    /// [`Dead`]: the memory is gone.
    ///
    /// # Panics
    /// If the offset is no multiple of 8 inside the region.
    pub fn load(&self, offset: u64) -> std::result::Result<u64, Dead> {
        let start = self.checked(offset, 8);
        let value = self.view.atomic(start).load(Ordering::Acquire);
        self.view.alive().map(|()| u64::from_le(value))
    }

    /// Stores 8 bytes at `offset`, a multiple of 8, at once. Who sees them sees all that this thread
    /// wrote to the region before.
    ///
    /// # Errors
    /// [`Dead`]: the memory is gone.
    ///
    /// # Panics
    /// If the offset is no multiple of 8 inside the region.
    pub fn store(&self, offset: u64, value: u64) -> std::result::Result<(), Dead> {
        let start = self.checked(offset, 8);
        self.view
            .atomic(start)
            .store(value.to_le(), Ordering::Release);
        self.view.alive()
    }

    /// Begins to write a range back from the processor's caches, for memory that outlives a power
    /// cut. It is there once [`order_stores`] has returned.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn write_back(&self, offset: u64, len_bytes: usize) {
        let start = self.checked(offset, len_bytes);
        // SAFETY: `checked` bounds the range, and the view keeps it mapped.
        unsafe { persist::write_back(self.view.base().add(start), len_bytes) };
    }

    /// Bytes where they lie, for reads and writes.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn in_place(&self, offset: u64, len_bytes: usize) -> InPlace<'_> {
        let start = self.checked(offset, len_bytes);
        InPlace::new(&self.view, start, len_bytes).expect("`checked` bounds the range")
    }

    /// The window table works on the bytes themselves.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The descriptor that an attaching client gets: writable, or a new read-only one.
    pub(crate) fn grant(&self, writable: bool) -> io::Result<Grant<'_>> {
        if writable {
            return Ok(Grant::Writable(self.fd.as_fd()));
        }
        File::open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
            .map(|file| Grant::ReadOnly(file.into()))
    }

    fn checked(&self, offset: u64, len: usize) -> usize {
        let start = usize::try_from(offset).expect("offset inside the region");
        let end = start.checked_add(len).expect("range inside the region");
        assert!(
            end <= self.view.len_bytes(),
            "range {start}..{end} passes the region's end"
        );
        start
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What is passed to a client: it may map no more than its window's rights allow.
pub(crate) enum Grant<'a> {
    Writable(BorrowedFd<'a>),
    ReadOnly(OwnedFd),
}

impl AsFd for Grant<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Writable(fd) => *fd,
            Self::ReadOnly(fd) => fd.as_fd(),
        }
    }
}

/// A client's map of a window. Lives until the last clone of its `RemoteWindow` is dropped.
#[derive(Debug)]
pub struct Mapping {
    pub(crate) view: View,
    /// As granted; a verb that names anything else is refused.
    pub(crate) descriptor: WindowDescriptor,
}

impl Mapping {
    /// Maps a received descriptor, which is not needed afterwards.
    pub(crate) fn new(fd: BorrowedFd<'_>, descriptor: WindowDescriptor) -> Result<Self> {
        let len =
            usize::try_from(descriptor.len_bytes).map_err(|_| Error::Bound("window length"))?;
        let writable = descriptor.rights.contains(crate::Rights::WRITE);
        let what = || format!("map a window of {len} bytes");
        let file_len = file_len(fd).map_err(|e| Error::os(what(), e))?;
        // An empty file is a window that was revoked meanwhile.
        if file_len < descriptor.len_bytes || len == 0 {
            return Err(Error::StaleWindow);
        }
        let view = View::map(fd, len, writable).map_err(|e| Error::os(what(), e))?;
        view.advise_huge();
        Ok(Self { view, descriptor })
    }
}

/// Raises the limit of open descriptors to what the process may have: one per window is needed.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit. Refusals leave the limit as it is; running out is reported then.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0
            && limit.rlim_cur < limit.rlim_max
        {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Of a region's memfd. Not against shrinking: truncation is how it is revoked. Against seals, so
/// that no peer can stop that.
const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Of one that is kept: it is never truncated, and sealed once its rights are known.
const KEPT_SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
/// Added by the kernel where `vm.memfd_noexec` forbids memory that can be executed (Linux 6.3).
const F_SEAL_EXEC: libc::c_int = 0x20;

fn set_len(fd: &OwnedFd, len: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: no pointers.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn file_len(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all-zero is a valid `stat` for the call to fill.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is exclusive and lives through the call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.st_size.unsigned_abs())
}

/// 2 MiB pages that an administrator reserved and nobody uses.
fn huge_pages_free() -> usize {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
