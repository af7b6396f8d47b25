//! redb's file: a part of the medium.
//!
//! Its length may be set beyond the area, since redb doubles it long before it uses it; what is
//! written there fails. Writes are handed on at once, so that they are durable after the medium's
//! sync.
//!
//! redb takes nothing more after an error of what it lies on. So the first error ends an [`Opening`]:
//! nothing of it reaches the medium any more, and the next one has the area for itself. Bytes that
//! are not those that were there before are such an error ([`BlockSums`]).

mod block_sums;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::label::Label;
use crate::medium::{BLOCK_BYTES, Medium};
use block_sums::BlockSums;

/// The area, and the label that tells how long redb's file is.
pub struct Area {
    medium: Arc<dyn Medium>,
    label: Arc<Mutex<Label>>,
    start: u64,
    size_bytes: u64,
    opening: Opening,
    sums: BlockSums,
}

/// Whether a database can be used still, from its opening to the first error of the medium.
#[derive(Clone, Debug, Default)]
pub struct Opening(Arc<AtomicBool>);

impl Opening {
    /// Whether it is over.
    pub fn has_failed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Ends it.
    pub fn fail(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Runs an access of the medium, unless it is over; an error ends it.
    fn access<T>(&self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.has_failed() {
            return Err(io::Error::other("this opening of the metadata is over"));
        }
        run().inspect_err(|_| self.fail())
    }
}

impl Area {
    /// The area that `label` tells of.
    pub fn new(medium: Arc<dyn Medium>, label: Arc<Mutex<Label>>, opening: Opening) -> Self {
        let (start, size_bytes) = {
            let label = lock(&label);
            (label.metadata_offset(), label.metadata_bytes)
        };
        Self {
            medium,
            label,
            start,
            size_bytes,
            opening,
            sums: BlockSums::default(),
        }
    }

    /// Where `len` bytes from `offset` on lie; an error beyond the area.
    fn place(&self, offset: u64, len: usize) -> io::Result<u64> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size_bytes => Ok(self.start + offset),
            _ => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the metadata's part of the volume is full",
            )),
        }
    }

    fn damage(&self, offset: u64) -> io::Error {
        let at = self.start + offset;
        tracing::error!(
            at,
            "the volume has other bytes of the metadata than were written to it"
        );
        io::Error::new(
            io::ErrorKind::InvalidData,
            "a page of the metadata is damaged",
        )
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        let mut label = lock(&self.label);
        self.sums.forget_from(len.min(label.metadata_len));
        // What comes in is zeros: an earlier attempt to make the file system may have left more.
        let mut at = label.metadata_len.next_multiple_of(BLOCK_BYTES);
        let end = len.min(self.size_bytes);
        while at < end {
            let (is_held, to) = self.medium.allocation(self.start + at, self.start + end);
            let to = to - self.start;
            if is_held {
                for block in (at..to).step_by(BLOCK_BYTES as usize) {
                    let zeros = [0; BLOCK_BYTES as usize];
                    self.medium.write(self.start + block, &zeros)?;
                }
            }
            at = to;
        }
        let longer = Label {
            metadata_len: len,
            ..label.clone()
        };
        longer.write(&*self.medium)?;
        *label = longer;
        Ok(())
    }
}

impl std::fmt::Debug for Area {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Area")
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

impl StorageBackend for Area {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.label).metadata_len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.opening.access(|| {
            let at = self.place(offset, out.len())?;
            self.medium.read(at, out)?;
            match self.sums.check(offset, out) {
                true => Ok(()),
                false => Err(self.damage(offset)),
            }
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.opening.access(|| self.resize(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.opening.access(|| Ok(self.medium.sync()?))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.opening.access(|| {
            let at = self.place(offset, data.len())?;
            self.sums.note(offset, data);
            Ok(self.medium.write(at, data)?)
        })
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
