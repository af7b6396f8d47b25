//! Memory of a program, most of which is in a volume.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use cenote_volume::{PAGE_BYTES, Volume, VolumeError};

use crate::counters::Counters;
use crate::handler::{Bell, Command, Handler};
use crate::memory::{Memory, MemoryError};
use crate::pages::Pages;

/// Least that a region keeps resident, in bytes.
pub const RESIDENT_MIN_BYTES: u64 = 64 * PAGE_BYTES as u64;

/// What a region is to be.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    /// Where it begins in the volume: a multiple of the page.
    pub offset: u64,
    /// Its size: a multiple of the page, not 0, inside the volume.
    pub len_bytes: u64,
    /// Most bytes of it in this machine's memory: at least [`RESIDENT_MIN_BYTES`].
    pub resident_max_bytes: u64,
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Not whole pages, nothing, or beyond the volume's end.
    #[error(
        "a region of {len_bytes} bytes at {offset} is not some whole pages of a volume of \
         {volume_bytes}"
    )]
    Range {
        /// As in the configuration.
        offset: u64,
        /// As in the configuration.
        len_bytes: u64,
        /// The volume's size.
        volume_bytes: u64,
    },
    /// Too little would be resident.
    #[error("a region keeps at least {RESIDENT_MIN_BYTES} bytes resident, not {0}")]
    Resident(u64),
    /// No memory whose faults can be answered.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The volume has no worker for it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What is resident, and what happened so far.
#[derive(Clone, Copy, Debug)]
pub struct RegionStatus {
    /// Bytes that are resident, or on their way.
    pub resident_bytes: u64,
    /// Bytes that may be.
    pub room_bytes: u64,
    /// Faults, reads, writes.
    pub counters: Counters,
}

/// A range of memory that is as large as a part of a volume and takes as much of this machine as it
/// is given.
///
/// It begins as zeros, whatever the volume has there, and leaves the volume's part undefined when
/// it is dropped. A child of `fork` does not have it. Bytes that the volume lost raise SIGBUS in
/// the thread that touches them. Whoever borrows it may pass its bytes to system calls.
///
/// ```no_run
/// # fn open() -> cenote_volume::Volume { unimplemented!() }
/// use cenote_pager::{Region, RegionConfig};
///
/// let volume = open();
/// let mut region = Region::new(&volume, RegionConfig {
///     offset: 0,
///     len_bytes: 1 << 30,
///     resident_max_bytes: 256 << 20,
/// })?;
/// region.bytes_mut()[123_456_789] = 1;
/// # Ok::<(), cenote_pager::RegionError>(())
/// ```
pub struct Region {
    memory: Arc<Memory>,
    commands: Option<Sender<Command>>,
    bell: Arc<Bell>,
    handler: Option<JoinHandle<()>>,
}

impl Region {
    /// Makes a region and starts its handler.
    ///
    /// # Errors
    /// As [`RegionError`] says.
    pub fn new(volume: &Volume, config: RegionConfig) -> Result<Self, RegionError> {
        let page = PAGE_BYTES as u64;
        let RegionConfig {
            offset,
            len_bytes,
            resident_max_bytes,
        } = config;
        let volume_bytes = volume.size_bytes();
        let is_whole = offset.is_multiple_of(page) && len_bytes.is_multiple_of(page);
        let end = offset.checked_add(len_bytes);
        let page_count = u32::try_from(len_bytes / page).ok();
        let page_count = page_count.filter(|count| *count > 0 && *count < u32::MAX);
        let (Some(page_count), true) = (
            page_count,
            is_whole && end.is_some_and(|end| end <= volume_bytes),
        ) else {
            return Err(RegionError::Range {
                offset,
                len_bytes,
                volume_bytes,
            });
        };
        if resident_max_bytes < RESIDENT_MIN_BYTES {
            return Err(RegionError::Resident(resident_max_bytes));
        }
        let os = |what| move |source| RegionError::Os { what, source };
        let room = u32::try_from(resident_max_bytes / page).unwrap_or(u32::MAX);
        let memory = Arc::new(Memory::new(page_count)?);
        let bell = Arc::new(Bell::new().map_err(os("make an eventfd"))?);
        let (commands, inbox) = channel();
        let handler = Handler::new(
            Arc::clone(&memory),
            Pages::new(page_count, room),
            volume.worker()?,
            offset,
            inbox,
            Arc::clone(&bell),
        );
        let handler = std::thread::Builder::new()
            .name("cenote-pager".to_owned())
            .spawn(move || handler.run())
            .map_err(os("start a thread"))?;
        Ok(Self {
            memory,
            commands: Some(commands),
            bell,
            handler: Some(handler),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as self, is readable throughout, and the handler
        // changes no byte of it: a page that comes back is as it went.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr(), self.memory.len()) }
    }

    /// Its bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().as_ptr(), self.memory.len()) }
    }

    /// Where it begins, for threads that share it by their own rules.
    #[must_use]
    pub fn base(&self) -> std::ptr::NonNull<u8> {
        self.memory.base()
    }

    /// Makes whole pages zeros again and gives their memory back, here and in the cluster.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn discard(&mut self, pages: Range<u32>) {
        self.forget(pages);
    }

    /// As [`Region::discard`], for who has the pages by other means than the borrow.
    pub(crate) fn forget(&self, pages: Range<u32>) {
        assert!(pages.start <= pages.end && pages.end as usize * PAGE_BYTES <= self.memory.len());
        let (answer, answered) = sync_channel(1);
        self.ask(Command::Discard(pages, answer));
        answered
            .recv()
            .expect("the handler answers, or the process ends");
    }

    /// Changes how many bytes may be resident; pages go at once, as fast as the volume takes them.
    ///
    /// # Errors
    /// [`RegionError::Resident`].
    pub fn set_resident_max(&self, bytes: u64) -> Result<(), RegionError> {
        if bytes < RESIDENT_MIN_BYTES {
            return Err(RegionError::Resident(bytes));
        }
        let room = u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        self.ask(Command::SetRoom(room));
        Ok(())
    }

    /// What is resident, and what happened so far.
    #[must_use]
    pub fn status(&self) -> RegionStatus {
        let (answer, answered) = sync_channel(1);
        self.ask(Command::Status(answer));
        answered
            .recv()
            .expect("the handler answers, or the process ends")
    }

    fn ask(&self, command: Command) {
        let commands = self.commands.as_ref().expect("there until it is dropped");
        commands
            .send(command)
            .expect("the handler lives as long as the region");
        self.bell.ring();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.commands = None;
        self.bell.ring();
        if let Some(handler) = self.handler.take() {
            // A handler that panicked has ended the process.
            handler.join().ok();
        }
    }
}
