//! A tier in a file on a disk: `io_uring`, past the page cache. An address is the offset in the
//! file; what is below the log's begin is a hole.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};

use super::buffer::{BLOCK_BYTES, Buffer};
use super::{Busy, Ended, Request, Tier};
use crate::log::error::Error;
use crate::log::session::Pause;

/// Requests under way at a time: more than any disk works on at once.
const DEPTH: usize = 128;

/// The kernel keeps the file of a process that was killed until the disk has done what was under
/// way: milliseconds, or longer on a busy disk.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// A file that no other tier uses, in any process. Requests that are under way when it is dropped
/// are waited for.
pub struct SsdTier {
    ring: IoUring,
    file: File,
    name: String,
    under_way: HashMap<u64, Flight>,
    /// Ended without the ring.
    ended: Vec<Ended>,
}

/// What the kernel works on, and the memory that it uses meanwhile.
enum Flight {
    Write(Arc<Buffer>),
    Read {
        buffer: Buffer,
        /// Bytes in front of the first that is wanted.
        skip: usize,
        len_bytes: usize,
    },
    Other,
}

impl SsdTier {
    /// A new file. There must be none.
    ///
    /// # Errors
    /// The file cannot be made, or not be used past the page cache, or the system allows no
    /// `io_uring`.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let tier = Self::with(path, OpenOptions::new().create_new(true))?;
        let kept = lock(&tier.file, path).and_then(|()| {
            // A sync of the file does not keep its name, and a checkpoint may be in another folder.
            cenote_durable::keep_name(path).map_err(|source| Error::Io {
                what: "sync the folder of the log's file",
                source,
            })
        });
        if let Err(error) = kept {
            drop(std::fs::remove_file(path));
            return Err(error);
        }
        Ok(tier)
    }

    /// The file of a log that is to be recovered.
    ///
    /// # Errors
    /// As [`SsdTier::create`]; another tier, in this process or another one, still has the file after 5 s.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let tier = Self::with(path, &mut OpenOptions::new())?;
        lock(&tier.file, path)?;
        Ok(tier)
    }

    fn with(path: &Path, options: &mut OpenOptions) -> Result<Self, Error> {
        let refused = |what| move |source| Error::Io { what, source };
        // The ring first: no file is left behind where it is refused.
        let ring = IoUring::new(DEPTH as u32).map_err(refused(
            "make an io_uring (sysctl kernel.io_uring_disabled, or the container, may forbid it)",
        ))?;
        let file = options
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(path)
            .map_err(refused(
                "open the log's file past the page cache (O_DIRECT)",
            ))?;
        Ok(Self {
            ring,
            file,
            name: path.display().to_string(),
            under_way: HashMap::new(),
            ended: Vec::new(),
        })
    }

    fn push(&mut self, token: u64, entry: squeue::Entry, flight: Flight) -> Result<(), Busy> {
        let entry = entry.user_data(token);
        // SAFETY: the buffers that the entry names are on the heap and owned by `flight`, which is
        // kept until the kernel has said that it is done with them; so is the file, by `self`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            return Err(Busy);
        }
        self.under_way.insert(token, flight);
        // What is not taken now is taken at the next poll.
        drop(self.ring.submit());
        Ok(())
    }

    fn reap(&mut self, ended: &mut Vec<Ended>) {
        ended.append(&mut self.ended);
        while let Some(completion) = self.ring.completion().next() {
            let token = completion.user_data();
            let Some(flight) = self.under_way.remove(&token) else {
                continue;
            };
            let result = match usize::try_from(completion.result()) {
                Ok(moved) => flight.end(moved),
                Err(_) => Err(io::Error::from_raw_os_error(-completion.result())),
            };
            ended.push(Ended { token, result });
        }
    }
}

/// Keeps other tiers off the file until it is closed: two would write over each other's pages.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    let mut pause = Pause::default();
    let source = loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => pause.after(false),
            Err(TryLockError::WouldBlock) => {
                let name = path.display();
                let text = format!("{name} is in use by another store; close that one first");
                break io::Error::new(io::ErrorKind::ResourceBusy, text);
            }
            Err(TryLockError::Error(source)) => break source,
        }
    };
    let what = "lock the log's file";
    Err(Error::Io { what, source })
}

impl Flight {
    fn end(self, moved: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Write(page) if moved < page.len() => Err(io::ErrorKind::WriteZero.into()),
            Self::Write(_) | Self::Other => Ok(Vec::new()),
            Self::Read {
                buffer,
                skip,
                len_bytes,
            } => {
                let end = moved.min(skip + len_bytes);
                Ok(buffer.get(skip..end).unwrap_or_default().to_vec())
            }
        }
    }
}

impl Tier for SsdTier {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn capacity_bytes(&self) -> Option<u64> {
        None
    }

    fn block_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn start(&mut self, token: u64, request: Request) -> Result<(), Busy> {
        if self.under_way.len() >= DEPTH {
            return Err(Busy);
        }
        let fd = types::Fd(self.file.as_raw_fd());
        match request {
            Request::Write { address, page } => {
                let entry = opcode::Write::new(fd, page.as_ptr(), page.len() as u32);
                self.push(token, entry.offset(address).build(), Flight::Write(page))
            }
            Request::Read { address, len_bytes } => {
                let skip = address as usize % BLOCK_BYTES;
                let whole = (skip + len_bytes).next_multiple_of(BLOCK_BYTES);
                let mut buffer = Buffer::zeroed(whole);
                let entry = opcode::Read::new(fd, buffer.as_mut_ptr(), whole as u32);
                let entry = entry.offset(address - skip as u64).build();
                let flight = Flight::Read {
                    buffer,
                    skip,
                    len_bytes,
                };
                self.push(token, entry, flight)
            }
            Request::Sync => {
                let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC);
                self.push(token, entry.build(), Flight::Other)
            }
            Request::Drop { address } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let entry = opcode::Fallocate::new(fd, address).offset(0).mode(mode);
                self.push(token, entry.build(), Flight::Other)
            }
            // Of recoveries alone, which wait for it anyway.
            Request::Cut { address } => {
                let result = match self.file.metadata() {
                    Ok(data) if data.len() > address => self.file.set_len(address),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                };
                let result = result.map(|()| Vec::new());
                self.ended.push(Ended { token, result });
                Ok(())
            }
        }
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        if !self.ring.submission().is_empty() {
            match self.ring.submit() {
                // The kernel has no room for more just now.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)
                    ) => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        self.reap(ended);
        Ok(())
    }
}

impl Drop for SsdTier {
    fn drop(&mut self) {
        // The kernel writes into buffers of reads that are under way.
        while !self.under_way.is_empty() {
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.raw_os_error() != Some(libc::EINTR)
            {
                // It keeps what it may still write to.
                std::mem::forget(std::mem::take(&mut self.under_way));
            }
            self.reap(&mut Vec::new());
        }
    }
}
