//! What a disk queue asks of a disk: start this, tell me what ended.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use super::File;

/// One transfer between a run of pages on the disk and as many buffers.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Returned with its end.
    pub token: u32,
    /// To the disk, or from it.
    pub is_write: bool,
    /// First byte of the volume, a multiple of the page.
    pub offset: u64,
    /// One page each.
    pub vectors: *const libc::iovec,
    /// How many.
    pub count: u32,
}

impl Transfer {
    /// Bytes that it moves when it succeeds.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.count) * crate::PAGE_BYTES as u64
    }
}

/// A disk, as one queue sees it. Transfers end in any order.
pub trait Device: Send {
    /// Starts a transfer. There is room: a queue starts no more than [`FLIGHTS_MAX`] at a time.
    ///
    /// # Safety
    /// The vectors and the buffers that they name stay valid, and unshared as the transfer's
    /// direction asks, until its end came out of [`Device::wait`].
    unsafe fn start(&mut self, transfer: Transfer);

    /// Puts transfers that ended in `ended`, with their tokens and errors. Blocks, if it may, until
    /// there is one or `bell` is readable.
    ///
    /// # Errors
    /// The device cannot be asked; transfers are as they were.
    fn wait(
        &mut self,
        bell: RawFd,
        may_block: bool,
        ended: &mut Vec<(u32, io::Result<()>)>,
    ) -> io::Result<()>;
}

/// Transfers at a time per queue: enough for any disk, and the pages of a queue are in fewer.
pub const FLIGHTS_MAX: usize = 32;

/// Pages in one transfer: 128 KiB, the longest request of the kernel's block layer by default.
pub const RUN_MAX: usize = 32;

/// A file or block device by `io_uring`, past the page cache.
pub struct Uring {
    ring: IoUring,
    file: Arc<File>,
    /// Bytes that each transfer is to move.
    wanted: [u64; FLIGHTS_MAX],
    is_armed: bool,
}

/// In front of the volume's first page: whose it is.
pub const HEADER_BYTES: u64 = crate::PAGE_BYTES as u64;

/// Token of the wait for the bell.
const BELL: u64 = u64::MAX;

/// A ring that works.
///
/// # Errors
/// The system allows none.
pub(super) fn ring(entries: u32) -> io::Result<IoUring> {
    ring_by(|is_cooperative| {
        let mut builder = IoUring::builder();
        if is_cooperative {
            builder.setup_coop_taskrun();
        }
        builder.build(entries)
    })
}

/// As [`ring()`], made by `build`: one whose completions wait for its thread to ask, where the
/// kernel knows such.
fn ring_by(mut build: impl FnMut(bool) -> io::Result<IoUring>) -> io::Result<IoUring> {
    let mut ring = match build(true) {
        // Linux before 5.19.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => build(false)?,
        built => built?,
    };
    try_out(&mut ring)?;
    Ok(ring)
}

/// Has the ring do nothing: a sandbox may allow to make one and refuse to use it.
fn try_out(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the operation points to nothing.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    while let Err(error) = ring.submit_and_wait(1) {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let ended = ring.completion().next();
    ended
        .map(drop)
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

impl Uring {
    /// A queue of its own to the file.
    ///
    /// # Errors
    /// The system allows no `io_uring`.
    pub fn new(file: Arc<File>) -> io::Result<Self> {
        let entries = u32::try_from(FLIGHTS_MAX * 2).expect("small");
        Ok(Self {
            ring: ring(entries)?,
            file,
            wanted: [0; FLIGHTS_MAX],
            is_armed: false,
        })
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: what the entry refers to outlives it: the caller of `start` says so of buffers,
        // and the bell is the store's, which outlives its queues.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // Full of what was not submitted yet, which makes room.
            if let Err(error) = self.ring.submit() {
                tracing::warn!(%error, "hand transfers to the kernel");
            }
        }
    }
}

impl Device for Uring {
    unsafe fn start(&mut self, transfer: Transfer) {
        let fd = types::Fd(self.file.as_raw_fd());
        let Transfer { vectors, count, .. } = transfer;
        let entry = if transfer.is_write {
            opcode::Writev::new(fd, vectors, count)
                .offset(HEADER_BYTES + transfer.offset)
                .build()
        } else {
            opcode::Readv::new(fd, vectors, count)
                .offset(HEADER_BYTES + transfer.offset)
                .build()
        };
        self.wanted[transfer.token as usize] = transfer.len_bytes();
        self.push(&entry.user_data(u64::from(transfer.token)));
    }

    fn wait(
        &mut self,
        bell: RawFd,
        may_block: bool,
        ended: &mut Vec<(u32, io::Result<()>)>,
    ) -> io::Result<()> {
        if may_block && !self.is_armed {
            let entry = opcode::PollAdd::new(types::Fd(bell), libc::POLLIN as u32).build();
            self.push(&entry.user_data(BELL));
            self.is_armed = true;
        }
        let waited = self.ring.submit_and_wait(usize::from(may_block));
        for completion in self.ring.completion() {
            if completion.user_data() == BELL {
                self.is_armed = false;
                continue;
            }
            let token = u32::try_from(completion.user_data()).expect("a token went in");
            let result = match completion.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                moved if u64::from(moved.unsigned_abs()) == self.wanted[token as usize] => Ok(()),
                // Part of it: the queue tries page by page.
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
            ended.push((token, result));
        }
        match waited {
            // What ended comes first: it may be what the system waits for.
            Err(error) if ended.is_empty() && error.raw_os_error() != Some(libc::EINTR) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_knows_no_cooperative_rings_makes_a_plain_one() {
        if let Err(error) = IoUring::new(1) {
            println!("skipped: io_uring: {error}");
            return;
        }
        let mut asked = Vec::new();
        let made = ring_by(|is_cooperative| {
            asked.push(is_cooperative);
            match is_cooperative {
                true => Err(io::Error::from_raw_os_error(libc::EINVAL)),
                false => IoUring::new(1),
            }
        });
        assert!(made.is_ok(), "{:?}", made.err());
        assert_eq!(asked, [true, false]);
    }

    #[test]
    fn a_system_that_forbids_rings_is_asked_once() {
        let mut asked = 0;
        let refused = ring_by(|_| {
            asked += 1;
            Err(io::Error::from_raw_os_error(libc::EPERM))
        });
        let errno = refused.err().and_then(|error| error.raw_os_error());
        assert_eq!((errno, asked), (Some(libc::EPERM), 1));
    }
}
